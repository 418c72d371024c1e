//! The clock of the registry was set back: what was to end at an instant that is now far ahead has ended.

use std::time::Duration;

use formgate::store::registry::{Beat, Budget, Lease, RegistryMark};
use formgate::store::{DatabaseLocation, Registry};
use jiff::Timestamp;

use super::api::scene;
use super::commands::add_tenant;
use crate::support::database::Database;
use crate::support::fixture::on_both_databases;

const HOUR: Duration = Duration::from_hours(1);

pub(super) async fn open(url: &str) -> Registry {
    Registry::open(&DatabaseLocation::parse(url, "/".as_ref()).unwrap()).await.unwrap()
}

on_both_databases! {
    async fn a_lease_or_a_look_further_ahead_than_any_can_be_is_not_believed(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        add_tenant(&scene, "acme");
        scene.succeed(&["domain", "add", "forms.globex.test", "--tenant", "acme"]);
        let (registry, database) = (open(&scene.registry_url).await, Database::connect(&scene.registry_url).await);
        let due = async || registry.due_domains(10).await.unwrap().1;
        let lease = async || {
            let rows = due().await;
            (rows.len(), registry.lease_domains("a node", &rows).await.unwrap().len())
        };
        assert_eq!(lease().await, (1, 1));
        assert_eq!(lease().await, (0, 0), "it is leased");
        database.execute(&format!("UPDATE registry_domains SET leased_until = {}", database.in_hours(1))).await;
        assert_eq!(lease().await, (1, 1));
        // A row is never written with a look further ahead.
        database.execute("UPDATE registry_domains SET leased_until = NULL").await;
        let rows = due().await;
        let mut domain = registry.lease_domains("a node", &rows).await.unwrap().pop().unwrap();
        domain.next_at = Timestamp::now() + HOUR * 24 * 365;
        assert!(registry.write_domain(&domain, Lease::End, &[]).await.unwrap());
        let far = database.in_hours(24 * 9 + 1);
        assert_eq!(database.integers(&format!("SELECT count(*) FROM registry_domains WHERE next_at < {far}")).await, [1]);
        for (days, expected) in [(8, (0, 0)), (10, (1, 1))] {
            let next = database.in_hours(24 * days);
            database.execute(&format!("UPDATE registry_domains SET leased_until = NULL, next_at = {next}")).await;
            assert_eq!(lease().await, expected, "{days} days");
        }
        // Somebody who waits is served as well.
        database.execute(&format!("UPDATE registry_domains SET asked = fence + 1, leased_until = {}", database.in_hours(2))).await;
        let rows = due().await;
        assert!(rows.len() == 1 && rows[0].is_asked, "{rows:?}");
        registry.close().await;
    }

    async fn a_budget_that_is_full_later_than_any_can_be_is_full(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        add_tenant(&scene, "acme");
        let (registry, database) = (open(&scene.registry_url).await, Database::connect(&scene.registry_url).await);
        let budget = Budget { name: "failures".to_owned(), capacity: 5, period: HOUR, reserve: 0, account: None };
        // More than there are: it is used up, and no more than that.
        for _ in 0..12 {
            registry.use_budget(&budget).await.unwrap();
        }
        let (left, free_at) = registry.budget_left(&budget).await.unwrap();
        assert!(left == 0 && free_at.is_some_and(|at| at <= Timestamp::now() + HOUR), "{left} {free_at:?}");
        let all_full = async |hours: i64| {
            database.execute(&format!("UPDATE registry_budgets SET full_at = {}", database.in_hours(hours))).await;
            registry.budget_left(&budget).await.unwrap()
        };
        assert_eq!(all_full(2).await, (5, None));
        registry.use_budget(&budget).await.unwrap();
        assert_eq!(registry.budget_left(&budget).await.unwrap().0, 4, "it counts from there");
        // What an authority has named holds, and is forgotten when it is past believing.
        let limit = Budget { name: "limit".to_owned(), capacity: 1, period: HOUR * 24 * 9, reserve: 0, account: None };
        let until = Timestamp::now() + HOUR * 24 * 8;
        registry.exhaust_budget(&limit, until).await.unwrap();
        let (left, free_at) = registry.budget_left(&limit).await.unwrap();
        assert!(left == 0 && free_at.is_some_and(|at| at.duration_since(until).as_millis().abs() <= 1), "{left} {free_at:?}");
        all_full(24 * 30).await;
        assert_eq!(registry.budget_left(&limit).await.unwrap(), (1, None));
        registry.forget_full_budgets().await.unwrap();
        assert_eq!(database.integers("SELECT count(*) FROM registry_budgets").await, [0]);
        registry.close().await;
    }

    async fn a_node_that_wrote_before_the_clock_was_set_back_is_gone(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        add_tenant(&scene, "acme");
        let (registry, database) = (open(&scene.registry_url).await, Database::connect(&scene.registry_url).await);
        let beat = Beat {
            id: "dead".to_owned(),
            name: "host-1".to_owned(),
            version: "1",
            mark: RegistryMark::default(),
            refused: Vec::new(),
            reasons: Vec::new(),
            refused_count: 0,
            beat: "x".to_owned(),
            seal_keys: Vec::new(),
            closing: Vec::new(),
            started_at: Timestamp::now(),
        };
        registry.write_beat(&beat).await.unwrap();
        let is_live = async || registry.nodes().await.unwrap().iter().any(|node| node.is_live);
        assert!(is_live().await);
        database.execute(&format!("UPDATE registry_nodes SET seen_at = {}", database.in_hours(1))).await;
        assert!(!is_live().await);
        assert!(registry.wait_for_nodes(1, &[], Duration::ZERO, |_| false).await.unwrap().is_empty(), "nobody waits for it");
        registry.forget_gone_nodes(&[]).await.unwrap();
        assert_eq!(registry.nodes().await.unwrap().len(), 1, "it is listed for a day");
        database.execute(&format!("UPDATE registry_nodes SET seen_at = {}", database.in_hours(48))).await;
        registry.forget_gone_nodes(&["dead".to_owned()]).await.unwrap();
        assert_eq!(registry.nodes().await.unwrap().len(), 1, "this node has seen it");
        registry.forget_gone_nodes(&[]).await.unwrap();
        assert!(registry.nodes().await.unwrap().is_empty());
        registry.close().await;
    }
}
