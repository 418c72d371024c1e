//! A domain from its claim to a certificate, and every way in which it stops on the way.

use std::time::{Duration, Instant};

use formgate::store::registry::{DomainAdded, DomainState, Requester};
use tokio::net::TcpStream;

use super::scene::{LIMIT, Scene, reason_of};
use crate::support::answer::Answer;
use crate::support::client::operator_get;
use crate::support::connection::exchange;
use crate::support::fixture::on_both_databases;
use crate::support::pebble::ports;
use crate::support::zones::Mood;

on_both_databases! {
    async fn a_host_of_a_file_goes_live_without_a_hand_by_http(engine: Engine) {
        let scene = Scene::new(engine).await;
        let node = scene.start(0);
        let row = scene.goes_live(scene.host()).await;
        assert!(row.not_after.is_some() && row.renew_at < row.not_after, "{row:?}");
        scene.is_served(&node, scene.host()).await;
        assert_eq!(scene.proxy.orders(), 1);
        assert_eq!(scene.proxy.accounts(), 1);

        // What authorities read has a part that a stranger chose, so that no browser may take it for a page.
        let stream = TcpStream::connect((scene.zones.address(), ports()[0])).await.expect("a connection");
        let head = format!(
            "GET /.well-known/acme-challenge/aHRtbA HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            scene.host()
        );
        let answer = Answer::read(&exchange(stream, head.as_bytes(), LIMIT).await).expect("an answer");
        assert!(answer.status == 200 && answer.body.starts_with(b"aHRtbA."), "{answer:?}");
        let headers = ["content-type", "x-content-type-options"].map(|name| answer.header(name));
        assert_eq!(headers, [Some("application/octet-stream"), Some("nosniff")]);
    }

    async fn a_host_goes_live_by_a_handshake_where_port_80_is_not_ours(engine: Engine) {
        let scene = Scene::new(engine).await.challenges(&["tls-alpn-01"]);
        let node = scene.start(0);
        scene.goes_live(scene.host()).await;
        scene.is_served(&node, scene.host()).await;
    }

    async fn records_are_named_until_they_are_right(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.serve("acme", "www A 192.0.2.1");
        let node = scene.start(0);
        let row = scene.becomes(scene.host(), DomainState::Dns, "no_records").await;
        let reason = reason_of(&row);
        assert!(reason.to_string().contains("acme.edge.example.net"), "{reason}");
        scene.serve("acme", "forms A 192.0.2.1");
        scene.becomes(scene.host(), DomainState::Dns, "elsewhere").await;
        scene.serve("acme", "forms A HERE");
        scene.goes_live(scene.host()).await;
        scene.is_served(&node, scene.host()).await;
    }

    async fn a_live_domain_stays_live_while_dns_cannot_be_asked(engine: Engine) {
        let scene = Scene::new(engine).await;
        let www = &scene.zones.name("www.acme");
        let scene = scene.domains(&[www]);
        let mut node = scene.start(0);
        let operator = node.operator_address();
        scene.goes_live(scene.host()).await;
        scene.becomes(www, DomainState::Dns, "no_records").await;
        let leaf = scene.is_served(&node, scene.host()).await;
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
        scene.check_soon(scene.host()).await;
        scene.becomes(scene.host(), DomainState::Live, "dns_down").await;
        let row = scene.becomes(www, DomainState::Dns, "dns_down").await;
        assert_eq!(reason_of(&row)["records"][0]["value"], "acme.edge.example.net", "what to set: {row:?}");
        ready("DNS can't be asked for 2; check the resolvers").await;
        let explained = scene.run(&["explain", &format!("https://{}/", scene.host())]);
        assert!(explained.stdout.contains("is live, dns_down; obtained, until"), "{}", explained.stdout);
        assert_eq!(scene.is_served(&node, scene.host()).await, leaf);
        scene.zones.end_resolver_mood();
        // By itself, after half a minute.
        scene.goes_live(scene.host()).await;
        scene.becomes(www, DomainState::Dns, "no_records").await;
        ready("ok").await;
        assert_eq!(scene.proxy.orders(), 1);
    }

    async fn a_renewal_that_fails_while_dns_cannot_be_asked_is_not_the_owners_fault(engine: Engine) {
        let scene = Scene::new(engine).await;
        let node = scene.start(0);
        scene.goes_live(scene.host()).await;
        let leaf = scene.is_served(&node, scene.host()).await;
        // The authority asks the same resolver.
        scene.zones.set_resolver_mood(Mood::Servfail);
        scene.renew_now(scene.host()).await;
        let row = scene.becomes(scene.host(), DomainState::Live, "dns_down").await;
        let detail = reason_of(&row)["detail"].as_str().unwrap_or_default().to_owned();
        assert!(row.failures == 1 && detail.contains("no resolver works; "), "{row:?}");
        assert!(detail.contains("; the CA pebble: "), "{detail}");
        assert_eq!(scene.is_served(&node, scene.host()).await, leaf);
        scene.zones.end_resolver_mood();
        scene.check_soon(scene.host()).await;
        scene.goes_live(scene.host()).await;
        assert_eq!((scene.proxy.orders(), scene.proxy.finalized()), (3, 2));
    }

    async fn only_domains_that_were_added_count_as_added(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.register("globex");
        let registry = scene.registry().await;
        let listed = |number| (scene.zones.name(&format!("a{number}.globex")), "globex".to_owned(), "proof".to_owned());
        registry.need_domains(&(0..3).map(listed).collect::<Vec<_>>()).await.unwrap();
        assert_eq!(registry.count_added_domains("globex").await.unwrap(), 0);
        let [shop, www] = ["shop.globex", "www.globex"].map(|name| scene.zones.name(name));
        for host in [&shop, &www] {
            scene.add("globex", host).await;
        }
        assert_eq!(registry.count_added_domains("globex").await.unwrap(), 2);
        registry.remove_domain("globex", &www, jiff::Timestamp::now(), "test").await.unwrap();
        assert_eq!(registry.count_added_domains("globex").await.unwrap(), 1);
        assert_eq!(registry.count_added_domains("acme").await.unwrap(), 0);
        registry.close().await;
    }

    async fn an_added_domain_is_served_once_its_owner_has_proved_it(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.register("globex");
        scene.serve("globex", "shop A HERE");
        let node = scene.start(0);
        let host = &scene.zones.name("shop.globex");
        let proof = scene.add("globex", host).await;
        let row = scene.becomes_of("globex", host, DomainState::Dns, "proof_missing").await;
        assert!(reason_of(&row).to_string().contains(&proof), "{row:?}");
        assert!(scene.shake(&node, host).await.is_err());
        scene.serve("globex", &format!("shop A HERE\n_formgate.shop TXT {proof}"));
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
        scene.zones.serve("edge.example.net", &[3], &format!("globex A {}", scene.zones.address()));
        scene.serve("initech", "www CNAME globex.edge.example.net");
        let www = &scene.zones.name("www.initech");
        scene.add("globex", www).await;
        scene.becomes_of("globex", www, DomainState::Live, "").await;
    }

    async fn a_contested_domain_moves_to_its_owner_after_three_days(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.register("globex");
        scene.register("initech");
        scene.serve("globex", "shop A HERE");
        let node = scene.start(0);
        let host = &scene.zones.name("shop.globex");
        let squatted = scene.add("initech", host).await;
        scene.serve("globex", &format!("shop A HERE\n_formgate.shop TXT {squatted}"));
        scene.becomes_of("initech", host, DomainState::Live, "").await;
        let registry = scene.registry().await;
        let now = jiff::Timestamp::now();
        let contested = registry.add_domain("globex", host, "formgate-owner", now, Requester::Operator).await.unwrap();
        assert_eq!(contested, DomainAdded::Contested { owner: "initech".to_owned() });
        let row = scene.becomes_of("globex", host, DomainState::Claimed, "taken").await;
        assert_eq!(reason_of(&row)["moves_at"], serde_json::Value::Null);
        let both = format!("shop A HERE\n_formgate.shop TXT {squatted}\n_formgate.shop TXT formgate-owner");
        scene.serve("globex", &both);
        let days_pass = || scene.pass_days("globex", host);
        days_pass().await;
        let row = scene.becomes_of("globex", host, DomainState::Claimed, "taken").await;
        let owner = async || registry.owner_of(host).await.unwrap().expect("it has one").slug;
        assert_eq!(owner().await, "initech", "its proof is there: {row:?}");
        // The record alone moves it, wherever the host leads.
        scene.serve("globex", "shop A 192.0.2.1\n_formgate.shop TXT formgate-owner");
        days_pass().await;
        scene.becomes_of("globex", host, DomainState::Dns, "elsewhere").await;
        scene.serve("globex", "shop A HERE\n_formgate.shop TXT formgate-owner");
        scene.becomes_of("globex", host, DomainState::Live, "").await;
        assert_eq!(owner().await, "globex");
        registry.close().await;
        let lost = scene.becomes_of("initech", host, DomainState::Gone, "taken").await;
        assert_eq!(reason_of(&lost)["record"], serde_json::Value::Null);
        scene.is_served(&node, host).await;
    }

    async fn a_host_that_a_file_covers_or_no_tenant_has_ends_its_life(engine: Engine) {
        let scene = Scene::new(engine).await;
        let www = &scene.zones.name("www.acme");
        let scene = scene.domains(&[www]);
        scene.serve("acme", "forms A HERE\nwww A HERE");
        let mut node = scene.start(0);
        scene.goes_live(www).await;
        let leaf = scene.is_served(&node, www).await;
        let scene = scene.tenant();
        scene.write(0);
        node.signal("HUP");
        scene.check_soon(www).await;
        scene.becomes(www, DomainState::Removed, "").await;
        assert!(scene.shake(&node, www).await.is_err());
        // It comes back with the certificate that it had.
        let scene = scene.domains(&[www]);
        scene.write(0);
        node.signal("HUP");
        scene.goes_live(www).await;
        assert_eq!(scene.is_served(&node, www).await, leaf);
    }
}
