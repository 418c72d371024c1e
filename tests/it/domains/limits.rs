//! What authorities allow: budgets and rate limits lead to the next authority, and are kept to the second.

use std::time::{Duration, Instant};

use formgate::domains::Reason;
use formgate::store::registry::{Budget, DomainState};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::scene::{LIMIT, Scene, reason_of};
use crate::support::acme_proxy::{AcmeProxy, Fault, Kind};
use crate::support::fixture::on_both_databases;

/// The window of a renewal that is far away.
const FAR: Option<(&str, &str)> = Some(("2100-01-01T00:00:00Z", "2100-01-02T00:00:00Z"));

/// A second authority, with a proxy of its own.
async fn with_second(scene: Scene) -> (Scene, AcmeProxy) {
    let second = AcmeProxy::start(&scene.pebble).await;
    let directory = second.directory();
    (scene.and_authority("second", &directory), second)
}

on_both_databases! {
    async fn a_used_up_budget_leads_to_the_next_authority(engine: Engine) {
        let scene = Scene::new(engine).await.authority("orders_per_3_hours = 5").with_hosts(6);
        let (scene, second) = with_second(scene).await;
        let _node = scene.start(0);
        for host in &scene.hosts {
            scene.goes_live(host).await;
        }
        assert_eq!((scene.proxy.orders(), second.orders()), (4, 3), "a fifth of the first is kept for renewals");
    }

    async fn an_order_without_a_certificate_uses_nothing_of_the_budgets_of_certificates(engine: Engine) {
        let limits = "certificates_per_host_per_week = 1\ncertificates_per_domain_per_week = 1";
        let scene = Scene::new(engine).await.authority(limits);
        scene.proxy.break_next(2, Kind::NewOrder, Fault::limit("1"));
        let _node = scene.start(0);
        scene.goes_live(scene.host()).await;
        assert_eq!((scene.proxy.count(Kind::NewOrder), scene.proxy.orders()), (3, 1));
        let registry = scene.registry().await;
        let name = format!("host pebble {}", scene.host());
        let period = Duration::from_hours(7 * 24);
        let budget = Budget { name, capacity: 1, period, reserve: 0, account: None };
        assert_eq!(registry.budget_left(&budget).await.unwrap().0, 0, "one certificate was issued");
        registry.close().await;
    }

    async fn an_account_that_orders_much_leaves_orders_to_others(engine: Engine) {
        let scene = Scene::new(engine).await.authority("orders_per_3_hours = 10").with_hosts(7);
        scene.zones.serve("sign-in.test", &[2], "");
        scene.register("globex");
        let node = scene.start(0);
        let hosts = [scene.zones.name("a.globex"), scene.zones.name("b.globex")];
        let registry = scene.registry().await;
        let began = Instant::now();
        let counts = async || {
            let rows = registry.list_domains(&Default::default(), 100).await.unwrap();
            let count = |is: DomainState| rows.iter().filter(|row| row.slug == "acme" && row.state == is).count();
            (count(DomainState::Live), count(DomainState::Queued))
        };
        while counts().await != (4, 4) {
            assert!(began.elapsed() < LIMIT, "{:?}", counts().await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        registry.close().await;
        for host in &hosts {
            scene.add("globex", host).await;
        }
        let records = "a A HERE\nb A HERE\n_formgate.a TXT formgate-proof-of-globex\n_formgate.b TXT formgate-proof-of-globex";
        scene.serve("globex", records);
        for host in &hosts {
            scene.becomes_of("globex", host, DomainState::Live, "").await;
            scene.is_served(&node, host).await;
        }
        assert_eq!(scene.proxy.orders(), 6);
    }

    async fn a_limit_that_names_a_host_is_that_hosts_and_keeps_its_address_from_the_account(engine: Engine) {
        let scene = Scene::new(engine).await.with_hosts(2);
        let detail = "Your account is temporarily prevented from requesting certificates for forms.acme.org. \
            Please visit: https://authority.example.com/unpause?jwt=eyJhbGci";
        scene.proxy.break_next(1, Kind::NewOrder, Fault::Problem { status: 429, kind: "rateLimited", detail, retry_after: Some("3600") });
        let _node = scene.start(0);
        let registry = scene.registry().await;
        let began = Instant::now();
        let rows = loop {
            let rows = registry.list_domains(&Default::default(), 100).await.unwrap();
            let live = rows.iter().filter(|row| row.state == DomainState::Live).count();
            if live == 2 && rows.len() == 3 {
                break rows;
            }
            assert!(began.elapsed() < LIMIT, "{rows:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        registry.close().await;
        let paused = rows.iter().find(|row| row.state != DomainState::Live).expect("one is paused");
        let reason = Reason::read(&paused.reason);
        assert_eq!((paused.state, reason.name()), (DomainState::Queued, "ca_limited"), "{paused:?}");
        assert!(reason.next_step().contains("https://authority.example.com/unpause?jwt=eyJhbGci"), "{}", reason.next_step());
        let told = reason.told().next_step();
        assert!(told.contains("Please visit: https://authority.example.com/…") && !told.contains("jwt"), "{told}");
    }

    async fn a_renewal_goes_to_the_next_authority_and_replaces_only_what_that_one_issued(engine: Engine) {
        let (scene, second) = with_second(Scene::new(engine).await).await;
        scene.proxy.suggest(FAR, Some("21600"));
        second.suggest(FAR, Some("21600"));
        let _node = scene.start(0);
        scene.goes_live(scene.host()).await;
        scene.is_issued_by(scene.host(), "pebble").await;
        scene.proxy.break_all(Kind::NewOrder, Fault::limit("3600"));
        scene.renew_now(scene.host()).await;
        let before = scene.is_issued_by(scene.host(), "second").await;
        assert_eq!((scene.proxy.replaced().len(), second.replaced().len()), (1, 0));
        // The limit of the first one still holds, also for an operator who asks for a check.
        scene.renew_now(scene.host()).await;
        let began = Instant::now();
        while scene.is_issued_by(scene.host(), "second").await.pair == before.pair {
            assert!(began.elapsed() < LIMIT);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!((scene.proxy.count(Kind::NewOrder), second.replaced().len()), (2, 1));
        assert_eq!(scene.goes_live(scene.host()).await.failures, 0);
    }

    async fn a_renewal_that_the_authority_exempts_takes_nothing_of_the_budget(engine: Engine) {
        let scene = Scene::new(engine).await.authority("orders_per_3_hours = 1\nexempts_renewals = true");
        scene.proxy.suggest(FAR, Some("21600"));
        let _node = scene.start(0);
        scene.goes_live(scene.host()).await;
        for renewals in 1..=2 {
            let (before, began) = (scene.is_issued_by(scene.host(), "pebble").await, Instant::now());
            scene.renew_now(scene.host()).await;
            while scene.is_issued_by(scene.host(), "pebble").await.pair == before.pair {
                assert!(began.elapsed() < LIMIT, "the budget is used up, and is not asked");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            assert_eq!((scene.proxy.count(Kind::NewOrder), scene.proxy.replaced().len()), (1 + renewals, renewals));
        }
        // An order that replaces nothing counts.
        scene.goes_live(scene.host()).await;
        scene.proxy.break_next(1, Kind::NewOrder, Fault::refusal(400, "malformed", "no"));
        scene.renew_now(scene.host()).await;
        scene.becomes(scene.host(), DomainState::Live, "ca_limited").await;
        assert_eq!((scene.proxy.count(Kind::NewOrder), scene.proxy.replaced().len()), (4, 3));
    }

    async fn a_renewal_that_is_refused_in_any_words_is_ordered_once_without_what_it_replaces(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.proxy.suggest(FAR, Some("21600"));
        let _node = scene.start(0);
        scene.goes_live(scene.host()).await;
        let mut before = scene.is_issued_by(scene.host(), "pebble").await;
        for (renewals, (status, kind, words)) in
            (1..).zip([(400, "malformed", "no"), (403, "unauthorized", "predecessor unknown"), (500, "serverInternal", "oops")])
        {
            let orders = scene.proxy.count(Kind::NewOrder);
            scene.proxy.break_next(1, Kind::NewOrder, Fault::refusal(status, kind, words));
            scene.renew_now(scene.host()).await;
            let began = Instant::now();
            let after = loop {
                let after = scene.is_issued_by(scene.host(), "pebble").await;
                if after.pair != before.pair {
                    break after;
                }
                assert!(began.elapsed() < LIMIT, "{words}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            let counts = (scene.proxy.count(Kind::NewOrder) - orders, scene.proxy.replaced().len());
            assert_eq!(counts, (2, renewals), "{words}");
            assert_eq!(scene.goes_live(scene.host()).await.failures, 0, "{words}");
            before = after;
        }
    }

    async fn an_order_waits_if_every_authority_has_a_limit_until_the_first_of_them_ends(engine: Engine) {
        let (scene, second) = with_second(Scene::new(engine).await).await;
        scene.proxy.break_all(Kind::NewOrder, Fault::limit("3600"));
        second.break_next(1, Kind::NewOrder, Fault::limit("7"));
        let began = Timestamp::now();
        let _node = scene.start(0);
        second.wait_for(Kind::NewOrder, 1).await;
        scene.is_issued_by(scene.host(), "second").await;
        assert!(Timestamp::now() >= began + SignedDuration::from_secs(7));
        scene.goes_live(scene.host()).await;
        assert_eq!((scene.proxy.count(Kind::NewOrder), second.count(Kind::NewOrder)), (1, 2));
    }

    async fn the_reason_of_an_order_that_waits_has_the_words_of_the_authority(engine: Engine) {
        let (scene, second) = with_second(Scene::new(engine).await).await;
        scene.proxy.break_all(Kind::NewOrder, Fault::limit("7200"));
        second.break_all(Kind::NewOrder, Fault::limit("3600"));
        let began = Timestamp::now();
        let _node = scene.start(0);
        second.wait_for(Kind::NewOrder, 1).await;
        let hours = |hours| began + SignedDuration::from_hours(hours);
        let waits = Instant::now();
        let row = loop {
            let row = scene.becomes(scene.host(), DomainState::Queued, "ca_limited").await;
            if row.next_at >= hours(1) {
                break row;
            }
            assert!(waits.elapsed() < LIMIT, "{row:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let reason = reason_of(&row);
        assert_eq!((&reason["authority"], &reason["detail"]), (&"second".into(), &"rate limit: too many".into()));
        assert!(row.next_at < hours(2), "the earlier one: {row:?}");
        assert_eq!(reason["until"], serde_json::to_value(row.next_at).unwrap());
    }

    async fn a_limit_of_the_account_holds_for_new_domains_for_as_long_as_the_authority_says(engine: Engine) {
        let scene = Scene::new(engine).await;
        let shop = &scene.zones.name("shop.acme");
        let scene = scene.domains(&[shop]);
        let detail = "too many new orders (300) from this account in the last 3h0m0s";
        let limit = Fault::Problem { status: 429, kind: "rateLimited", detail, retry_after: Some("30") };
        scene.proxy.break_next(1, Kind::NewOrder, limit);
        let _node = scene.start(0);
        let limited = scene.becomes(scene.host(), DomainState::Queued, "ca_limited").await;
        scene.serve("acme", "forms A HERE\nshop A HERE");
        scene.check_soon(shop).await;
        let waiting = scene.becomes(shop, DomainState::Queued, "ca_limited").await;
        assert_eq!(waiting.next_at, limited.next_at, "the same instant");
        let status: Value = serde_json::from_str(&scene.run(&["acme", "status", "--json"]).stdout).unwrap();
        assert_eq!(status["authorities"][0]["orders_left"], 0, "{status}");
        for host in [scene.host(), shop] {
            scene.goes_live(host).await;
        }
        assert!(Timestamp::now() >= limited.next_at);
        assert_eq!(scene.proxy.count(Kind::NewOrder), 3);
    }
}
