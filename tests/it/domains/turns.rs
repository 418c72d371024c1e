//! Which rows are next, and what accounts take of what all have together.

use std::time::Duration;

use formgate::store::Registry;
use formgate::store::registry::{Budget, BudgetTaken as Taken, DueDomain, Lease, Requester};

use super::api::scene;
use super::clock::open;
use super::commands::add_tenant;
use crate::registry::scene::Scene;
use crate::support::database::Database;
use crate::support::fixture::on_both_databases;

const WEEK: Duration = Duration::from_hours(7 * 24);

fn add(scene: &Scene, slug: &str, hosts: &[&str]) {
    add_tenant(scene, slug);
    for host in hosts {
        scene.succeed(&["domain", "add", host, "--tenant", slug]);
    }
}

async fn due(registry: &Registry) -> Vec<DueDomain> {
    registry.due_domains(10).await.expect("the registry answers").1
}

on_both_databases! {
    async fn two_clicks_at_once_on_new_domains_put_one_of_them_first(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        let hosts = ["a.globex.test", "b.globex.test"];
        add(&scene, "acme", &hosts);
        let database = Database::connect(&scene.registry_url).await;
        let registries = [open(&scene.registry_url).await, open(&scene.registry_url).await];
        let mut together = 0;
        for _ in 0..20 {
            database.execute("UPDATE registry_domains SET asked = 0, asked_at = NULL").await;
            let click = |n: usize| registries[n].ask_for_check(hosts[n], "acme", Requester::Account);
            let (one, other) = tokio::join!(click(0), click(1));
            let first = [one, other].map(|asked| asked.unwrap().expect("the row is there").is_first);
            assert!(first[0] || first[1], "one of them comes first");
            together += usize::from(first[0] && first[1]);
        }
        assert_eq!(together, 0, "of 20 times, so often both came first");
        for registry in registries {
            registry.close().await;
        }
    }

    async fn the_domain_of_a_new_account_is_considered_next_to_any_number_of_another_one(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        add(&scene, "acme", &["a.globex.test"]);
        let database = Database::connect(&scene.registry_url).await;
        // More than are considered from either end, and all of them due for longer than the other account's.
        let earlier = database.in_hours(-1);
        database.execute(&format!("UPDATE registry_domains SET next_at = {earlier}")).await;
        database.execute(
            "INSERT INTO registry_domains (host, slug, is_added, proof, state, reason, since, created_at, next_at, failures, is_late, fence) \
             WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 25000) \
             SELECT 'a' || n || '.globex.test', slug, is_added, proof, state, reason, since, created_at, next_at, failures, is_late, fence \
             FROM registry_domains CROSS JOIN numbers",
        ).await;
        add(&scene, "globex", &["b.globex.test"]);
        let registry = open(&scene.registry_url).await;
        let slugs = || async { due(&registry).await.into_iter().map(|row| row.slug).collect::<Vec<_>>() };
        assert!(slugs().await.contains(&"globex".to_owned()), "the latest are considered too");
        let latest = database.in_hours(-2);
        database.execute(&format!("UPDATE registry_domains SET next_at = {latest} WHERE slug = 'globex'")).await;
        assert!(slugs().await.contains(&"globex".to_owned()), "and the oldest");
        registry.close().await;
    }

    async fn an_account_is_alone_once_the_domains_of_all_others_are_lost_or_removed(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        add(&scene, "acme", &["a.globex.test"]);
        let registry = open(&scene.registry_url).await;
        assert!(!registry.has_others("acme").await.unwrap());
        add(&scene, "globex", &["b.globex.test"]);
        let database = Database::connect(&scene.registry_url).await;
        for (state, expected) in [("claimed", true), ("live", true), ("gone", false), ("removed", false)] {
            let set = format!("UPDATE registry_domains SET state = '{state}' WHERE slug = 'globex'");
            database.execute(&set).await;
            assert_eq!(registry.has_others("acme").await.unwrap(), expected, "{state}");
            assert!(registry.has_others("globex").await.unwrap());
        }
        registry.close().await;
    }

    async fn a_budget_that_is_given_back_is_there_again_and_is_never_more_than_full(engine: Engine) {
        let (scene, _zones) = scene(engine).await;
        add(&scene, "acme", &["a.globex.test"]);
        let registry = open(&scene.registry_url).await;
        let budgets = ["domain ca globex.test", "host ca a.globex.test"]
            .map(|name| Budget { name: name.to_owned(), capacity: 2, period: WEEK, reserve: 0, account: None });
        let left = async || {
            let of = |n: usize| registry.budget_left(&budgets[n]);
            [of(0).await.unwrap().0, of(1).await.unwrap().0]
        };
        let domain = registry.lease_domains("a node", &due(&registry).await).await.unwrap().pop().expect("it is due");
        for expected in [1, 0] {
            assert_eq!(registry.take_budgets(&budgets, &domain).await.unwrap(), Taken::Yes);
            assert_eq!(left().await, [expected; 2]);
        }
        let refused = registry.take_budgets(&budgets, &domain).await.unwrap();
        assert!(matches!(&refused, Taken::Until { budget, .. } if *budget == budgets[0].name), "{refused:?}");
        registry.give_back(&budgets[1..]).await.unwrap();
        assert_eq!(left().await, [0, 1]);
        for expected in [[1, 2], [2, 2], [2, 2]] {
            registry.give_back(&budgets).await.unwrap();
            assert_eq!(left().await, expected);
        }
        assert_eq!(registry.take_budgets(&budgets, &domain).await.unwrap(), Taken::Yes);
        assert!(registry.write_domain(&domain, Lease::End, &[]).await.unwrap());
        registry.close().await;
    }
}
