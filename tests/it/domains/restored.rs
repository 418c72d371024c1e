//! Certificates after a restore of the registry: later ones are served, and no valid one is lost.

use std::time::Instant;

use formgate::store::registry::{DomainFilter, DomainState};
use serde_json::Value;

use super::scene::{LIMIT, Scene};
use crate::support::database::Database;
use crate::support::fixture::on_both_databases;
use crate::support::registry_backup::{back_up, restore};

/// Renews the certificate of the tenant's host, and waits for another one.
async fn renew(scene: &Scene) {
    let (before, began) = (scene.is_issued_by(scene.host(), "pebble").await, Instant::now());
    scene.renew_now(scene.host()).await;
    while scene.is_issued_by(scene.host(), "pebble").await.pair == before.pair {
        assert!(began.elapsed() < LIMIT);
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// Takes a revision, and waits until the node has read it: what a restore loses.
async fn move_on(registry: &Database) {
    registry.execute("UPDATE registry_head SET revision = revision + 1").await;
    let (began, read) =
        (Instant::now(), "SELECT count(*) FROM registry_nodes n, registry_head h WHERE n.revision = h.revision");
    while registry.integers::<1>(read).await[0] == 0 {
        assert!(began.elapsed() < LIMIT);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

on_both_databases! {
    async fn a_certificate_of_after_a_restore_is_served_by_a_node_that_was_away(engine: Engine) {
        let scene = Scene::new(engine).await;
        let mut node = scene.start(0);
        scene.goes_live(scene.host()).await;
        let first = scene.is_served(&node, scene.host()).await;
        let database = Database::connect(&scene.registry_url).await;
        back_up(&database).await;
        for _ in 0..3 {
            renew(&scene).await;
        }
        // Its snapshot has a certificate with a later revision than the next one will have.
        let began = Instant::now();
        while scene.is_served(&node, scene.host()).await == first {
            assert!(began.elapsed() < LIMIT);
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        assert_eq!(node.stop(LIMIT).await, 0);
        let lost = scene.is_issued_by(scene.host(), "pebble").await;
        restore(&database).await;
        database.close().await;
        let node = scene.start(0);
        let before = scene.is_served(&node, scene.host()).await;
        assert_ne!(before, first, "the later certificate is kept, although the registry has lost it");
        renew(&scene).await;
        assert!(scene.is_issued_by(scene.host(), "pebble").await.revision < lost.revision);
        let began = Instant::now();
        while scene.is_served(&node, scene.host()).await == before {
            assert!(began.elapsed() < LIMIT, "the certificate of after the restore is not served");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    async fn a_valid_certificate_is_not_replaced_by_an_expired_one_or_none_and_nothing_expired_is_live(engine: Engine) {
        let scene = Scene::new(engine).await;
        let mut node = scene.start(0);
        scene.goes_live(scene.host()).await;
        let leaf = scene.is_served(&node, scene.host()).await;
        let database = Database::connect(&scene.registry_url).await;
        back_up(&database).await;
        let past = if scene.registry_url.starts_with("sqlite") { "2" } else { "'2020-01-02Z'" };
        database.execute(&format!("UPDATE kept_registry_certificates SET not_after = {past}")).await;
        move_on(&database).await;
        restore(&database).await;
        node.wait_for_lines(LIMIT, "registry was restored", 1);
        let registry = scene.registry().await;
        let shown = scene.run(&["domain", "show", scene.host(), "--json"]).stdout;
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!((&shown["state"], &shown["reason"]), (&"failing".into(), &"expired".into()), "{shown}");
        for (state, count) in [(DomainState::Live, 0), (DomainState::Failing, 1)] {
            let filter = DomainFilter { state: Some(state), ..DomainFilter::default() };
            assert_eq!(registry.list_domains(&filter, 10).await.unwrap().len(), count, "{state:?}");
            let counted = registry.count_domains().await.unwrap();
            let counted: i64 = counted.iter().filter(|found| found.state == state).map(|found| found.count).sum();
            assert_eq!(counted, i64::try_from(count).unwrap(), "{state:?}");
        }
        registry.close().await;
        assert_eq!(scene.is_served(&node, scene.host()).await, leaf);

        database.execute("DELETE FROM kept_registry_certificates").await;
        move_on(&database).await;
        restore(&database).await;
        node.wait_for_lines(LIMIT, "registry was restored", 2);
        assert_eq!(scene.is_served(&node, scene.host()).await, leaf);
        assert_eq!(node.stop(LIMIT).await, 0);
        database.close().await;
        let node = scene.start(0);
        assert_eq!(scene.is_served(&node, scene.host()).await, leaf, "from the snapshot");
        assert_eq!(scene.proxy.orders(), 1, "no other certificate was ordered");
    }

    async fn a_file_that_has_expired_does_not_replace_a_valid_certificate_that_was_obtained(engine: Engine) {
        let mut scene = Scene::new(engine).await;
        let mut node = scene.start(0);
        scene.goes_live(scene.host()).await;
        let leaf = scene.is_served(&node, scene.host()).await;
        assert_eq!(node.stop(LIMIT).await, 0);
        scene.with_files_for_days(-30..-1);
        let node = scene.start(0);
        assert_eq!(scene.is_served(&node, scene.host()).await, leaf);
    }
}
