//! Orders: one for each host whatever dies or stalls, never past a budget, and to another authority if one fails.

use std::time::{Duration, Instant};

use formgate::domains::await_check;
use formgate::host::HostName;
use formgate::store::registry::{DomainFilter, DomainState, Lease, Requester};
use serde_json::Value;

use super::scene::{LIMIT, Scene, reason_of};
use crate::support::acme_proxy::{Fault, Kind};
use crate::support::database::Database;
use crate::support::fixture::on_both_databases;
use crate::support::process::Node;

/// Starts a node that makes an order, and before the authority looks at it the one that the authority connects to.
async fn start_one_that_orders_and_one_that_answers(scene: &Scene) -> (Node, Node) {
    scene.proxy.break_all(Kind::NewOrder, Fault::HoldAnswer);
    let ordering = scene.start(1);
    scene.proxy.wait_for(Kind::NewOrder, 1).await;
    let answering = scene.start(0);
    scene.proxy.heal_kind(Kind::NewOrder);
    (ordering, answering)
}

/// Ends every lease, as if its time had passed.
async fn end_leases(scene: &Scene) {
    try_to_end_leases(scene).await.unwrap();
}

/// The same, unless a node holds a lock.
async fn try_to_end_leases(scene: &Scene) -> Result<(), sqlx::Error> {
    let database = Database::connect(&scene.registry_url).await;
    let (limit, past) = if scene.registry_url.starts_with("sqlite") {
        ("PRAGMA busy_timeout = 1000", "1")
    } else {
        ("SET lock_timeout = '1s'", "'2020-01-01Z'")
    };
    // Of a lease that ended, and not of one that was given back.
    let update = format!("{limit}; UPDATE registry_domains SET leased_until = {past}, next_at = {past}");
    let ended = database.try_execute(&update).await;
    database.close().await;
    ended
}

on_both_databases! {
    async fn five_nodes_make_one_order_for_each_host(engine: Engine) {
        let scene = Scene::new(engine).await.with_hosts(4);
        let nodes: Vec<_> = (0..5).map(|node| scene.start(node)).collect();
        for host in &scene.hosts {
            scene.goes_live(host).await;
        }
        assert_eq!((scene.proxy.orders(), scene.proxy.finalized()), (5, 5));
        for node in &nodes {
            scene.is_served(node, scene.host()).await;
        }
    }

    async fn an_order_survives_a_node_that_dies_at_any_step(engine: Engine) {
        for kind in [Kind::Challenge, Kind::Finalize, Kind::Certificate] {
            let scene = Scene::new(engine).await;
            scene.proxy.break_all(kind, Fault::HoldAnswer);
            let (mut dying, node) = start_one_that_orders_and_one_that_answers(&scene).await;
            scene.proxy.wait_for(kind, 1).await;
            let registry = scene.registry().await;
            let row = registry.find_domains(scene.host()).await.unwrap().remove(0);
            registry.close().await;
            let pending: Value = serde_json::from_str(row.pending.as_deref().expect("an order")).unwrap();
            assert!(pending["url"].is_string(), "{kind:?}: {pending}");
            dying.kill();
            scene.proxy.heal();
            end_leases(&scene).await;
            scene.goes_live(scene.host()).await;
            scene.is_served(&node, scene.host()).await;
            assert_eq!((scene.proxy.orders(), scene.proxy.finalized()), (1, 1), "{kind:?}");
        }
    }

    async fn a_node_that_was_stopped_writes_nothing_once_another_goes_on(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.proxy.break_all(Kind::Finalize, Fault::HoldAnswer);
        let (mut stopped, node) = start_one_that_orders_and_one_that_answers(&scene).await;
        scene.proxy.wait_for(Kind::Authorization, 1).await;
        loop {
            stopped.signal("STOP");
            if try_to_end_leases(&scene).await.is_ok() {
                break;
            }
            // Stopped in a transaction it would keep everything from the registry.
            stopped.signal("CONT");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        scene.proxy.heal();
        let live = scene.goes_live(scene.host()).await;
        let leaf = scene.is_served(&node, scene.host()).await;
        stopped.signal("CONT");
        // It takes over what the other one wrote.
        let same = scene.is_served(&stopped, scene.host()).await;
        assert_eq!(same, leaf);
        let later = scene.goes_live(scene.host()).await;
        assert_eq!(later.not_after, live.not_after);
        assert_eq!(scene.proxy.finalized(), 1);
    }

    async fn no_order_is_made_past_a_budget(engine: Engine) {
        let scene = Scene::new(engine).await.authority("orders_per_3_hours = 5").with_hosts(7);
        let _node = scene.start(0);
        let began = Instant::now();
        let registry = scene.registry().await;
        loop {
            let rows = registry.list_domains(&Default::default(), 100).await.unwrap();
            let in_state = |state| rows.iter().filter(|row| row.state == state).count();
            if in_state(DomainState::Live) == 4 && in_state(DomainState::Queued) == 4 {
                let waiting = rows.iter().find(|row| row.state == DomainState::Queued).unwrap();
                let reason = reason_of(waiting);
                assert_eq!((&reason["reason"], &reason["detail"]), (&"ca_limited".into(), &"budget of orders".into()));
                break;
            }
            assert!(began.elapsed() < LIMIT, "{rows:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        registry.close().await;
        assert_eq!(scene.proxy.orders(), 4, "a fifth is kept for renewals");
    }

    async fn the_time_that_an_authority_names_is_kept_to_the_second(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.proxy.break_next(1, Kind::NewOrder, Fault::limit("7"));
        let began = jiff::Timestamp::now();
        let _node = scene.start(0);
        let row = scene.becomes(scene.host(), DomainState::Queued, "ca_limited").await;
        assert_eq!(reason_of(&row)["until"], serde_json::to_value(row.next_at).unwrap(), "{row:?}");
        assert!(row.next_at >= began + jiff::SignedDuration::from_secs(7), "{row:?}");
        scene.goes_live(scene.host()).await;
        assert!(jiff::Timestamp::now() >= row.next_at);
        assert_eq!(scene.proxy.orders(), 1);
    }

    async fn the_only_authority_is_not_asked_sooner_when_it_has_failed_five_times(engine: Engine) {
        let scene = Scene::new(engine).await.with_hosts(4);
        let busy = Fault::Problem { status: 503, kind: "serverInternal", detail: "busy", retry_after: Some("3600") };
        scene.proxy.break_all(Kind::NewOrder, busy);
        let began = jiff::Timestamp::now();
        let mut node = scene.start(0);
        for host in &scene.hosts {
            let row = scene.becomes(host, DomainState::Queued, "ca_down").await;
            assert!(row.next_at >= began + jiff::SignedDuration::from_secs(3600), "{row:?}");
        }
        assert_eq!(node.stop(LIMIT).await, 0);
        assert_eq!(scene.proxy.count(Kind::NewOrder), 5);
        assert!(node.log().contains("the CA can't be used"), "{}", node.log());
    }

    async fn another_authority_takes_over_from_one_that_is_down(engine: Engine) {
        let scene = Scene::new(engine).await.with_hosts(4);
        let directory = scene.pebble.directory();
        let scene = scene.and_authority("second", &directory);
        scene.proxy.break_everything(&Fault::Answer(503, "no"));
        let node = scene.start(0);
        let registry = scene.registry().await;
        let began = Instant::now();
        let are_live = async || {
            let rows = registry.list_domains(&Default::default(), 100).await.unwrap();
            rows.len() == scene.hosts.len() && rows.iter().all(|row| row.state == DomainState::Live)
        };
        // Time passes: each is tried again.
        while !are_live().await {
            for host in &scene.hosts {
                registry.ask_for_check(host, "acme", Requester::Operator).await.unwrap();
            }
            assert!(began.elapsed() < LIMIT, "{:?}", registry.list_domains(&Default::default(), 100).await);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        let certificate = registry.find_certificate(scene.host()).await.unwrap().unwrap();
        assert_eq!(certificate.authority, "second");
        registry.close().await;
        scene.is_served(&node, scene.host()).await;
    }

    async fn a_tenant_with_many_domains_that_hang_does_not_hold_up_another(engine: Engine) {
        let scene = Scene::new(engine).await.with_hosts(80);
        scene.zones.serve("sign-in.test", &[2], "");
        scene.proxy.break_all(Kind::NewOrder, Fault::Hang);
        let _node = scene.start(0);
        scene.proxy.wait_for(Kind::NewOrder, 16).await;
        scene.register("globex");
        scene.becomes_of("globex", "globex.sign-in.test", DomainState::Dns, "no_records").await;
        let registry = scene.registry().await;
        let of_acme = DomainFilter { slug: Some("acme"), ..DomainFilter::default() };
        let rows = registry.list_domains(&of_acme, 100).await.unwrap();
        registry.close().await;
        let waiting = rows.iter().filter(|row| row.checked_at.is_none()).count();
        assert!(rows.len() == 81 && waiting > 0, "{waiting} of {} were due before it, and wait", rows.len());
    }

    async fn a_person_who_asks_for_a_check_waits_for_no_other_domain(engine: Engine) {
        let scene = Scene::new(engine).await.with_hosts(40);
        scene.zones.serve("sign-in.test", &[2], "");
        scene.proxy.break_all(Kind::NewOrder, Fault::Hang);
        let many = ["globex", "hooli", "initech", "umbrella", "wonka"];
        for slug in many {
            scene.register(slug);
            for number in 0..20 {
                let host = scene.zones.name(&format!("h{number}.{slug}"));
                scene.add(slug, &host).await;
            }
            let records: Vec<_> = (0..20).map(|number| format!("h{number} A HERE\n_formgate.h{number} TXT formgate-proof-of-{slug}")).collect();
            scene.serve(slug, &records.join("\n"));
        }
        let _node = scene.start(0);
        // All that a node works on hangs.
        scene.proxy.wait_for(Kind::NewOrder, 20).await;
        let registry = scene.registry().await;
        let last = async || {
            let of_wonka = DomainFilter { slug: Some("wonka"), ..DomainFilter::default() };
            let rows = registry.list_domains(&of_wonka, 100).await.unwrap();
            rows.into_iter().rfind(|row| row.pending.is_none()).expect("one waits")
        };
        let (waits, also_waits) = (last().await, scene.zones.name("h0.acme"));
        let asked = registry.ask_for_check(&waits.host, "wonka", Requester::Account).await.unwrap().unwrap();
        assert!(asked.is_first);
        let again = registry.ask_for_check(&waits.host, "wonka", Requester::Account).await.unwrap().unwrap();
        let (looked_at, is_looked_at) =
            await_check(&registry, &HostName::parse(&waits.host).unwrap(), "wonka", asked, LIMIT).await.unwrap();
        assert!(is_looked_at && looked_at.is_some_and(|row| row.checked_at > waits.checked_at));
        assert!(again.is_first && again.fence >= asked.fence);
        let all = registry.list_domains(&DomainFilter::default(), 500).await.unwrap();
        let waiting = all.iter().filter(|row| row.pending.is_none()).count();
        assert!(waiting > 90, "{waiting} of {} were due before it, and wait", all.len());
        let other = registry.ask_for_check(&also_waits, "acme", Requester::Account).await.unwrap().unwrap();
        assert!(other.is_first, "what one account asks for is not counted for another");
        registry.close().await;
    }

    async fn an_account_asks_for_one_check_at_a_time_and_for_six_in_a_minute(engine: Engine) {
        let scene = Scene::new(engine).await;
        scene.register("globex");
        let hosts: Vec<_> = (0..8).map(|number| scene.zones.name(&format!("h{number}.globex"))).collect();
        for host in &hosts {
            scene.add("globex", host).await;
        }
        let registry = scene.registry().await;
        // A first look is none of the six.
        let (now, due) = registry.due_domains(100).await.unwrap();
        for mut leased in registry.lease_domains("a node", &due).await.unwrap() {
            leased.checked_at = Some(now);
            leased.next_at = now + LIMIT;
            assert!(registry.write_domain(&leased, Lease::End, &[]).await.unwrap());
        }
        let ask = async |host: &str, by: Requester| registry.ask_for_check(host, "globex", by).await.unwrap();
        assert_eq!(ask("none.test", Requester::Account).await, None);
        let is_first = async |host: &str, by| ask(host, by).await.expect("there is a row").is_first;
        assert!(is_first(&hosts[0], Requester::Account).await);
        assert!(is_first(&hosts[0], Requester::Account).await, "the same one is not asked for twice");
        assert!(!is_first(&hosts[1], Requester::Account).await, "one waits");
        assert!(!is_first(&hosts[1], Requester::Operator).await, "also for the operator, where it takes its turn");
        let look = async || {
            let (_, due) = registry.due_domains(1).await.unwrap();
            let asked = due.into_iter().next().expect("it is due");
            assert!(asked.is_asked);
            let leased = registry.lease_domains("a node", &[asked]).await.unwrap();
            leased.into_iter().next().expect("it is leased")
        };
        let leased = look().await;
        assert_eq!(leased.host, hosts[0]);
        assert!(!is_first(&hosts[1], Requester::Account).await, "one is in work");
        assert!(registry.write_domain(&leased, Lease::End, &[]).await.unwrap());
        for host in &hosts[1..6] {
            assert!(is_first(host, Requester::Account).await, "{host}");
            let leased = look().await;
            assert_eq!(&leased.host, host);
            assert!(registry.write_domain(&leased, Lease::End, &[]).await.unwrap());
        }
        assert!(!is_first(&hosts[6], Requester::Account).await, "the seventh");
        registry.close().await;
    }

    async fn a_refusal_and_a_closed_port_are_told_apart(engine: Engine) {
        let scene = Scene::new(engine).await;
        let blocked = &scene.serve_blocked();
        let scene = scene.domains(&[blocked]);
        // The second node has no port 80.
        let _node = scene.start(1);
        let row = scene.becomes(blocked, DomainState::Queued, "ca_refused").await;
        assert!(row.next_at > jiff::Timestamp::now() + jiff::SignedDuration::from_mins(3), "{row:?}");
        let row = scene.becomes(scene.host(), DomainState::Queued, "unreachable").await;
        assert_eq!(row.failures, 1);
    }
}
