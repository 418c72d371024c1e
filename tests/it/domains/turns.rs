//! Which rows are next, and what accounts take of what all have together.

use formgate::store::registry::Requester;

use super::api::scene;
use super::clock::open;
use super::commands::add_tenant;
use crate::registry::scene::Scene;
use crate::support::database::Database;
use crate::support::fixture::on_both_databases;

fn add(scene: &Scene, slug: &str, hosts: &[&str]) {
    add_tenant(scene, slug);
    for host in hosts {
        scene.succeed(&["domain", "add", host, "--tenant", slug]);
    }
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
}
