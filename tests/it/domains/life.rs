//! A domain from its claim to a certificate, and every way in which it stops on the way.

use std::time::{Duration, Instant};

use formgate::store::registry::{DomainAdded, DomainState};

use super::scene::{HOST, LIMIT, Scene, reason_of};
use crate::support::client::operator_get;
use crate::support::fixture::on_both_databases;
use crate::support::zones::Mood;

on_both_databases! {
    async fn a_host_of_a_file_goes_live_without_a_hand_by_http(engine: Engine) {
        let scene = Scene::new(engine).await;
        let node = scene.start(0);
        let row = scene.goes_live(HOST).await;
        assert!(row.not_after.is_some() && row.renew_at < row.not_after, "{row:?}");
        scene.is_served(&node, HOST).await;
        assert_eq!(scene.proxy.orders(), 1);
        assert_eq!(scene.proxy.accounts(), 1);
    }

    async fn a_host_goes_live_by_a_handshake_where_port_80_is_not_ours(engine: Engine) {
        let scene = Scene::new(engine).await.challenges(&["tls-alpn-01"]);
        let node = scene.start(0);
        scene.goes_live(HOST).await;
        scene.is_served(&node, HOST).await;
    }

    async fn records_are_named_until_they_are_right(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.zones.serve("acme.org", &[2], "www A 192.0.2.1");
        let node = scene.start(0);
        let row = scene.becomes(HOST, DomainState::Dns, "no_records").await;
        let reason = reason_of(&row);
        assert!(reason.to_string().contains("acme.edge.example.net"), "{reason}");
        scene.zones.serve("acme.org", &[2], "forms A 192.0.2.1");
        scene.becomes(HOST, DomainState::Dns, "elsewhere").await;
        scene.zones.serve("acme.org", &[2], "forms A 127.0.0.1");
        scene.goes_live(HOST).await;
        scene.is_served(&node, HOST).await;
    }

    async fn a_live_domain_stays_live_while_dns_cannot_be_asked(engine: Engine) {
        let scene = Scene::new(engine).await.domains(&["www.acme.org"]);
        let mut node = scene.start(0);
        let operator = node.operator_address();
        scene.goes_live(HOST).await;
        scene.becomes("www.acme.org", DomainState::Dns, "no_records").await;
        let leaf = scene.is_served(&node, HOST).await;
        let ready = async |expected: &str| {
            let began = Instant::now();
            loop {
                let answer = operator_get(operator, "/readyz").await;
                assert_eq!(answer.status, 200, "{answer:?}");
                if answer.json()["parts"]["domains"] == expected {
                    return;
                }
                assert!(began.elapsed() < LIMIT, "not {expected:?}, but: {answer:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        ready("ok").await;
        // It lost its way to the Internet.
        scene.zones.set_resolver_mood(Mood::Servfail);
        scene.check_soon(HOST).await;
        scene.becomes(HOST, DomainState::Live, "dns_down").await;
        let row = scene.becomes("www.acme.org", DomainState::Dns, "dns_down").await;
        assert_eq!(reason_of(&row)["records"][0]["value"], "acme.edge.example.net", "what to set: {row:?}");
        ready("DNS can't be asked for 2; check the resolvers").await;
        let explained = scene.run(&["explain", &format!("https://{HOST}/")]);
        assert!(explained.stdout.contains("is live, dns_down; obtained, until"), "{}", explained.stdout);
        assert_eq!(scene.is_served(&node, HOST).await, leaf);
        scene.zones.end_resolver_mood();
        // By itself, after half a minute.
        scene.goes_live(HOST).await;
        scene.becomes("www.acme.org", DomainState::Dns, "no_records").await;
        ready("ok").await;
        assert_eq!(scene.proxy.orders(), 1);
    }

    async fn a_renewal_that_fails_while_dns_cannot_be_asked_is_not_the_owners_fault(engine: Engine) {
        let scene = Scene::new(engine).await;
        let node = scene.start(0);
        scene.goes_live(HOST).await;
        let leaf = scene.is_served(&node, HOST).await;
        // The authority asks the same resolver.
        scene.zones.set_resolver_mood(Mood::Servfail);
        scene.renew_now(HOST).await;
        let row = scene.becomes(HOST, DomainState::Live, "dns_down").await;
        let detail = reason_of(&row)["detail"].as_str().unwrap_or_default().to_owned();
        assert!(row.failures == 1 && detail.contains("no resolver works; "), "{row:?}");
        assert!(detail.contains("; the authority pebble: "), "{detail}");
        assert_eq!(scene.is_served(&node, HOST).await, leaf);
        scene.zones.end_resolver_mood();
        scene.check_soon(HOST).await;
        scene.goes_live(HOST).await;
        assert_eq!((scene.proxy.orders(), scene.proxy.finalized()), (3, 2));
    }

    async fn only_domains_that_were_added_count_as_added(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.register("globex");
        let registry = scene.registry().await;
        let listed = |number| (format!("a{number}.globex.org"), "globex".to_owned(), "proof".to_owned());
        registry.need_domains(&(0..3).map(listed).collect::<Vec<_>>()).await.unwrap();
        assert_eq!(registry.count_added_domains("globex").await.unwrap(), 0);
        for host in ["shop.globex.org", "www.globex.org"] {
            scene.add("globex", host).await;
        }
        assert_eq!(registry.count_added_domains("globex").await.unwrap(), 2);
        registry.remove_domain("globex", "www.globex.org", jiff::Timestamp::now(), "test").await.unwrap();
        assert_eq!(registry.count_added_domains("globex").await.unwrap(), 1);
        assert_eq!(registry.count_added_domains("acme").await.unwrap(), 0);
        registry.close().await;
    }

    async fn an_added_domain_is_served_once_its_owner_has_proved_it(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.register("globex");
        scene.zones.serve("globex.org", &[2], "shop A 127.0.0.1");
        let node = scene.start(0);
        let host = "shop.globex.org";
        let proof = scene.add("globex", host).await;
        let row = scene.becomes_of("globex", host, DomainState::Dns, "proof_missing").await;
        assert!(reason_of(&row).to_string().contains(&proof), "{row:?}");
        assert!(scene.shake(&node, host).await.is_err());
        scene.zones.serve("globex.org", &[2], &format!("shop A 127.0.0.1\n_formgate.shop TXT {proof}"));
        scene.becomes_of("globex", host, DomainState::Live, "").await;
        let leaf = scene.is_served(&node, host).await;
        // It comes back with the certificate that it had.
        let (registry, now) = (scene.registry().await, jiff::Timestamp::now());
        assert!(registry.remove_domain("globex", host, now, "test").await.unwrap().is_some());
        registry.close().await;
        scene.becomes_of("globex", host, DomainState::Removed, "").await;
        scene.add("globex", host).await;
        scene.becomes_of("globex", host, DomainState::Live, "").await;
        assert_eq!(scene.is_served(&node, host).await, leaf);
        // To point to the tenant's own label is a proof too.
        scene.zones.serve("edge.example.net", &[3], "globex A 127.0.0.1");
        scene.zones.serve("initech.org", &[2], "www CNAME globex.edge.example.net");
        scene.add("globex", "www.initech.org").await;
        scene.becomes_of("globex", "www.initech.org", DomainState::Live, "").await;
    }

    async fn a_contested_domain_moves_to_its_owner_after_three_days(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.register("globex");
        scene.register("initech");
        scene.zones.serve("globex.org", &[2], "shop A 127.0.0.1");
        let node = scene.start(0);
        let host = "shop.globex.org";
        let squatted = scene.add("initech", host).await;
        scene.zones.serve("globex.org", &[2], &format!("shop A 127.0.0.1\n_formgate.shop TXT {squatted}"));
        scene.becomes_of("initech", host, DomainState::Live, "").await;
        let registry = scene.registry().await;
        let now = jiff::Timestamp::now();
        let contested = registry.add_domain("globex", host, "formgate-owner", now, "test").await.unwrap();
        assert_eq!(contested, DomainAdded::Contested { owner: "initech".to_owned() });
        let row = scene.becomes_of("globex", host, DomainState::Claimed, "taken").await;
        assert_eq!(reason_of(&row)["moves_at"], serde_json::Value::Null);
        let both = format!("shop A 127.0.0.1\n_formgate.shop TXT {squatted}\n_formgate.shop TXT formgate-owner");
        scene.zones.serve("globex.org", &[2], &both);
        let days_pass = || scene.pass_days("globex", host);
        days_pass().await;
        let row = scene.becomes_of("globex", host, DomainState::Claimed, "taken").await;
        assert_eq!(registry.owner_of(host).await.unwrap().as_deref(), Some("initech"), "its proof is there: {row:?}");
        scene.zones.serve("globex.org", &[2], "shop A 127.0.0.1\n_formgate.shop TXT formgate-owner");
        days_pass().await;
        scene.becomes_of("globex", host, DomainState::Live, "").await;
        assert_eq!(registry.owner_of(host).await.unwrap().as_deref(), Some("globex"));
        registry.close().await;
        scene.is_served(&node, host).await;
    }

    async fn a_host_that_a_file_covers_or_no_tenant_has_ends_its_life(engine: Engine) {
        let scene = Scene::new(engine).await.domains(&["www.acme.org"]);
        scene.zones.serve("acme.org", &[2], "forms A 127.0.0.1\nwww A 127.0.0.1");
        let mut node = scene.start(0);
        scene.goes_live("www.acme.org").await;
        let leaf = scene.is_served(&node, "www.acme.org").await;
        let scene = scene.tenant(HOST);
        scene.write(0);
        node.signal("HUP");
        scene.check_soon("www.acme.org").await;
        scene.becomes("www.acme.org", DomainState::Removed, "").await;
        assert!(scene.shake(&node, "www.acme.org").await.is_err());
        // It comes back with the certificate that it had.
        let scene = scene.domains(&["www.acme.org"]);
        scene.write(0);
        node.signal("HUP");
        scene.goes_live("www.acme.org").await;
        assert_eq!(scene.is_served(&node, "www.acme.org").await, leaf);
    }
}
