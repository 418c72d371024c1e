//! The keys of `seal_keys`: which node has which, and what happens when one is missing.

use std::time::{Duration, Instant};

use formgate::seal::{SealKey, Seals};
use formgate::store::registry::DomainState;
use serde_json::Value;

use super::scene::{LIMIT, NEW_SEAL_KEY, SEAL_KEY, Scene};
use crate::support::acme_proxy::{Fault, Kind};
use crate::support::client::operator_get;
use crate::support::database::Database;
use crate::support::fixture::on_both_databases;
use crate::support::process::Node;

fn seals(key: &str) -> Seals {
    Seals::new(Some(SealKey::parse(key).expect("it is a key")), [])
}

fn id_of(key: &str) -> String {
    seals(key).ids().next().expect("there is a key").to_owned()
}

/// Stops a node, which then takes its row out of the registry.
fn stop(node: &mut Node) {
    node.terminate();
    assert_eq!(node.wait(LIMIT), 0);
}

/// Waits until `/readyz` of a node has this about domains. Returns the answer.
pub(super) async fn readiness_becomes(node: &mut Node, is_right: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let ready: Value = operator_get(node.operator_address(), "/readyz").await.json();
        if is_right(&ready) {
            return ready;
        }
        assert!(began.elapsed() < LIMIT, "{ready}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Lets an order wait at its challenge, and seals its key with another one.
async fn seal_order_with(scene: &Scene, seal_key: &str) {
    scene.becomes(scene.host(), DomainState::Queued, "ca_down").await;
    let registry = scene.registry().await;
    let row = registry.find_domains(scene.host()).await.unwrap().remove(0);
    registry.close().await;
    let mut pending: Value = serde_json::from_str(row.pending.as_deref().expect("an order")).unwrap();
    let key = seals(SEAL_KEY).open(pending["key"].as_str().expect("a key"), scene.host()).unwrap();
    pending["key"] = seals(seal_key).seal(&key, scene.host()).into();
    let past = if scene.registry_url.starts_with("sqlite") { "1" } else { "'2020-01-01Z'" };
    let database = Database::connect(&scene.registry_url).await;
    database.execute(&format!("UPDATE registry_domains SET pending = '{pending}', next_at = {past}")).await;
    database.close().await;
}

/// An authority that is busy for an hour once an order is open.
fn busy(scene: &Scene) {
    let busy = Fault::Problem { status: 503, kind: "serverInternal", detail: "busy", retry_after: Some("3600") };
    scene.proxy.break_all(Kind::Challenge, busy);
}

/// Waits until the registry has as many live nodes.
async fn lists(scene: &Scene, nodes: usize) {
    let (registry, began) = (scene.registry().await, Instant::now());
    while registry.nodes().await.unwrap().iter().filter(|node| node.is_live).count() != nodes {
        assert!(began.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    registry.close().await;
}

on_both_databases! {
    async fn nothing_is_sealed_with_a_key_that_a_live_node_lacks(engine: Engine) {
        let mut scene = Scene::new(engine).await;
        let mut node = scene.start(0);
        scene.goes_live(scene.host()).await;
        let registry = scene.registry().await;
        let before = registry.find_certificate(scene.host()).await.unwrap().unwrap();
        scene.seal_keys(&[NEW_SEAL_KEY, SEAL_KEY]);
        let refused = scene.run(&["seal", "rotate"]);
        assert!(refused.code == 1 && refused.stdout.is_empty(), "{}", refused.stdout);
        assert!(refused.stderr.contains("these nodes lack the first key"), "{}", refused.stderr);
        let name = registry.nodes().await.unwrap()[0].name.clone();
        assert!(refused.stderr.contains(&name), "{name}: {}", refused.stderr);
        assert_eq!(registry.find_certificate(scene.host()).await.unwrap().unwrap(), before, "nothing was sealed");
        // A node that has the key and does not seal with it yet is named afterwards.
        stop(&mut node);
        scene.seal_keys(&[SEAL_KEY, NEW_SEAL_KEY]);
        let mut node = scene.start(0);
        lists(&scene, 1).await;
        scene.seal_keys(&[NEW_SEAL_KEY, SEAL_KEY]);
        let early = scene.run(&["seal", "rotate"]);
        assert_eq!((early.code, &*early.stdout), (1, "sealed with the first key: 1 certificate, 0 orders, 1 account key\n"));
        assert!(early.stderr.contains("these nodes still seal with another key"), "{}", early.stderr);
        stop(&mut node);
        let _node = scene.start(0);
        lists(&scene, 1).await;
        let done = scene.run(&["seal", "rotate"]);
        assert_eq!((done.code, &*done.stderr), (0, ""), "{}", done.stdout);
        // A node of an earlier version does not write its keys.
        let database = Database::connect(&scene.registry_url).await;
        database.execute("UPDATE registry_nodes SET seal_keys = NULL").await;
        database.close().await;
        let old = scene.run(&["seal", "rotate"]);
        assert!(old.code == 0 && old.stderr.contains("of an earlier version"), "{}{}", old.stdout, old.stderr);
        registry.close().await;
    }

    async fn a_key_that_is_missing_is_named_by_the_node_and_by_commands(engine: Engine) {
        let mut scene = Scene::new(engine).await;
        let mut node = scene.start(0);
        scene.goes_live(scene.host()).await;
        stop(&mut node);
        let id = id_of(SEAL_KEY);
        scene.seal_keys(&[NEW_SEAL_KEY]);
        let checked = scene.run(&["check"]);
        let fault = format!("`seal_keys` lacks the key `{id}`, which sealed the account key and the key of 1 certificate");
        assert!(checked.code == 1 && checked.stdout.contains(&fault), "{}{}", checked.stdout, checked.stderr);
        let status = scene.run(&["acme", "status"]);
        assert!(status.code == 0 && status.stderr.contains(&fault), "{}{}", status.stdout, status.stderr);
        let status: Value = serde_json::from_str(&scene.run(&["acme", "status", "--json"]).stdout).unwrap();
        assert_eq!(status["missing_seal_keys"], serde_json::json!([id]));
        let rotate = scene.run(&["seal", "rotate"]);
        let lost = format!("`seal_keys` lacks the key `{id}`, which sealed these: the account key, {}; put the key", scene.host());
        assert!(rotate.code == 1 && rotate.stderr.contains(&lost), "{}", rotate.stderr);

        let mut node = scene.start(0);
        let is_named = |ready: &Value| {
            ready["parts"]["domains"].as_str().is_some_and(|part| part.contains("the account key can't be opened"))
                && ready["tenants"]["acme"].to_string().contains(&format!("sealed with the key `{id}`"))
        };
        let ready = readiness_becomes(&mut node, is_named).await;
        assert_eq!(ready["ready"], true, "other tenants are served");
        let cause = node.wait_for_log(LIMIT, |line| {
            let line: Value = serde_json::from_str(line).ok()?;
            line["message"].as_str()?.starts_with("the account key can't be opened").then(|| line["cause"].to_string())
        });
        assert!(cause.expect("it is logged").contains(&id));
        // No copy of the key is left.
        let page = include_str!("../../../deploy/domains.md");
        let (_, section) = page.split_once("### A lost seal key\n").expect("the section is there");
        let statements = section.split("```").nth(1).and_then(|block| block.strip_prefix("sql\n")).expect("it has SQL");
        let database = Database::connect(&scene.registry_url).await;
        database.execute(&statements.replace("ID", &id)).await;
        database.close().await;
        readiness_becomes(&mut node, |ready| ready["parts"]["domains"] == "ok").await;
        scene.is_served(&node, scene.host()).await;
        assert!(!scene.run(&["check"]).stdout.contains("lacks the key"));
    }

    async fn an_order_whose_key_no_node_can_open_is_made_again(engine: Engine) {
        let scene = Scene::new(engine).await;
        busy(&scene);
        let mut node = scene.start(0);
        scene.becomes(scene.host(), DomainState::Queued, "ca_down").await;
        scene.proxy.heal();
        seal_order_with(&scene, NEW_SEAL_KEY).await;
        scene.goes_live(scene.host()).await;
        scene.is_served(&node, scene.host()).await;
        assert_eq!((scene.proxy.orders(), scene.proxy.finalized()), (2, 1));
        assert_eq!(node.stop(LIMIT).await, 0);
        assert_eq!(node.log().matches("the key of an order can't be opened").count(), 1, "{}", node.log());
    }

    async fn an_order_whose_key_another_node_can_open_is_left_to_that_one(engine: Engine) {
        let mut scene = Scene::new(engine).await;
        busy(&scene);
        let mut node = scene.start(0);
        scene.becomes(scene.host(), DomainState::Queued, "ca_down").await;
        scene.seal_keys(&[SEAL_KEY, NEW_SEAL_KEY]);
        let _other = scene.start(1);
        lists(&scene, 2).await;
        scene.proxy.heal();
        seal_order_with(&scene, NEW_SEAL_KEY).await;
        scene.goes_live(scene.host()).await;
        assert_eq!((scene.proxy.orders(), scene.proxy.finalized()), (1, 1), "the same order");
        assert_eq!(node.stop(LIMIT).await, 0);
        assert!(!node.log().contains("the key of an order can't be opened"), "{}", node.log());
    }

    async fn a_key_that_is_put_aside_and_comes_back_is_noticed_by_a_running_node(engine: Engine) {
        let scene = Scene::new(engine).await;
        let mut node = scene.start(0);
        scene.goes_live(scene.host()).await;
        readiness_becomes(&mut node, |ready| ready["parts"]["domains"] == "ok").await;
        // Another node stores what this one can't open.
        let registry = scene.registry().await;
        let certificate = registry.find_certificate(scene.host()).await.unwrap().unwrap();
        let pair = certificate.pair.clone().unwrap();
        let key = seals(SEAL_KEY).open(&pair.key, scene.host()).unwrap();
        let sealed = seals(NEW_SEAL_KEY).seal(&key, scene.host());
        assert!(registry.reseal_certificate(&certificate, &sealed).await.unwrap());
        readiness_becomes(&mut node, |ready| ready["tenants"]["acme"].to_string().contains("which `seal_keys` lacks")).await;
        let back = registry.find_certificate(scene.host()).await.unwrap().unwrap();
        assert!(registry.reseal_certificate(&back, &pair.key).await.unwrap());
        readiness_becomes(&mut node, |ready| ready["parts"]["domains"] == "ok").await;
        registry.close().await;
    }

    async fn rows_of_domains_are_made_again_after_a_restore_of_an_older_registry(engine: Engine) {
        let scene = Scene::new(engine).await;
        let node = scene.start(0);
        scene.goes_live(scene.host()).await;
        scene.is_served(&node, scene.host()).await;
        // The backup is older than the domain, and than what the node wrote last.
        let database = Database::connect(&scene.registry_url).await;
        let restore = "BEGIN; DELETE FROM registry_domains; DELETE FROM registry_certificates; DELETE FROM registry_nodes; \
            DELETE FROM registry_events; UPDATE registry_head SET revision = 0; COMMIT";
        database.execute(restore).await;
        database.close().await;
        scene.becomes(scene.host(), DomainState::Live, "").await;
        scene.is_served(&node, scene.host()).await;
        assert_eq!(scene.proxy.orders(), 2, "the certificate is not in the backup");
    }
}
