//! Counting domains: one node does it, and all show what it found.

use std::time::{Duration, Instant};

use super::scene::{LIMIT, Scene};
use crate::support::client::operator_get;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn one_node_counts_at_a_time(engine: Engine) {
        let scene = Scene::new(engine).await;
        let registry = scene.registry().await;
        assert!(registry.stored_counts().await.unwrap().is_due);
        assert!(registry.lease_counting().await.unwrap());
        assert!(!registry.lease_counting().await.unwrap(), "another node counts");
        assert!(!registry.stored_counts().await.unwrap().is_due);
        registry.store_counts("{\"late\":7}", Duration::from_mins(10)).await.unwrap();
        let stored = registry.stored_counts().await.unwrap();
        assert_eq!((&*stored.counts, stored.is_due), ("{\"late\":7}", false));
        assert!(!registry.lease_counting().await.unwrap(), "it is not time");
        registry.store_counts("{}", Duration::ZERO).await.unwrap();
        assert!(registry.lease_counting().await.unwrap());
        registry.close().await;
    }

    async fn every_node_shows_what_one_has_counted(engine: Engine) {
        let scene = Scene::new(engine).await;
        let mut nodes = [scene.start(0), scene.start(1)];
        scene.goes_live(scene.host()).await;
        for node in &mut nodes {
            let (address, began) = (node.operator_address(), Instant::now());
            loop {
                let metrics = String::from_utf8(operator_get(address, "/metrics").await.body).expect("metrics are UTF-8");
                let live = metrics.lines().find(|line| line.starts_with("formgate_domains{") && line.contains("\"live\""));
                if live.is_some_and(|line| line.ends_with(" 1")) {
                    break;
                }
                assert!(began.elapsed() < LIMIT, "{live:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
