//! Changes reach every node, in order, and affect no other tenant.

use http::Method;
use serde_json::{Value, json};

use super::scene::{LIMIT, Scene, me, me_becomes};
use crate::support::client::wait_for_count;
use crate::support::database::Database;
use crate::support::fixture::on_both_databases;
use crate::support::load::Load;
use crate::support::process::Node;

on_both_databases! {
    async fn a_tenant_that_all_nodes_serve_is_answered_for_by_each(engine: Engine) {
        let scene = Scene::new(engine);
        let nodes = [scene.start(0), scene.start(1), scene.start(2)];
        let token = scene.add(1, "acme").await;
        for node in &nodes {
            assert_eq!(me(node, "acme", &token).await, 200);
        }
        let removed = scene.call(2, Method::DELETE, "/v1/tenants/acme?wait=60", None).await;
        assert_eq!(removed.status, 200, "{removed:?}");
        for node in &nodes {
            assert_eq!(me(node, "acme", &token).await, 404);
        }
        let again = scene.call(0, Method::PUT, "/v1/tenants/acme?wait=60", Some(&scene.tenant("acme"))).await;
        assert_eq!(again.status, 201, "{again:?}");
        for node in &nodes {
            assert_eq!(me(node, "acme", &token).await, 200, "its database was kept");
        }
        let listed = scene.call(0, Method::GET, "/v1/nodes", None).await;
        assert_eq!(listed.body["data"].as_array().map(Vec::len), Some(3), "{listed:?}");
        for node in listed.body["data"].as_array().unwrap() {
            assert_eq!((&node["revision"], &node["live"], &node["refused"]), (&json!(3), &json!(true), &json!([])));
        }
    }

    async fn a_node_that_starts_logs_how_many_tenants_it_serves(engine: Engine) {
        let mut scene = Scene::new(engine);
        let text = scene.text("filed");
        scene.write_files(&text, 1);
        let served = |node: &mut Node| {
            node.wait_for_log(LIMIT, |line| {
                let line: Value = serde_json::from_str(line).ok()?;
                if line["message"] == "listening" { line["tenants"].as_u64() } else { None }
            })
        };
        let mut node = scene.start(0);
        assert_eq!(served(&mut node), Some(1));
        scene.add(0, "acme").await;
        scene.add(0, "globex").await;
        drop(node);
        assert_eq!(served(&mut scene.start(0)), Some(3), "those of the registry too");
    }

    async fn a_host_moves_from_one_tenant_to_another_in_one_batch(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let (acme, globex) = (scene.add(0, "acme").await, scene.add(0, "globex").await);
        let [mut first, mut second] = ["acme", "globex"].map(|slug| scene.tenant(slug));
        first["address"] = json!("globex.example.test");
        second["address"] = json!("acme.example.test");
        let batch = json!({ "operations": [
            { "put": "acme", "tenant": first }, { "put": "globex", "tenant": second },
        ] });
        let answer = scene.call(0, Method::POST, "/v1/batch?wait=60", Some(&batch)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(me(&node, "globex", &acme).await, 200);
        assert_eq!(me(&node, "acme", &globex).await, 200);
        assert_eq!(me(&node, "acme", &acme).await, 401);
    }

    async fn a_row_that_can_not_be_read_leaves_its_tenant_as_it_was(engine: Engine) {
        let scene = Scene::new(engine);
        let mut node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let registry = Database::connect(&scene.registry_url).await;
        registry
            .execute(
                "BEGIN; UPDATE registry_head SET revision = revision + 1; UPDATE registry_tenants SET \
                 toml = '[[tenant]] slug = of a newer version', revision = (SELECT revision FROM registry_head); COMMIT",
            )
            .await;
        let address = node.operator_address();
        wait_for_count(address, "formgate_registry_refused_tenants", 1).await;
        assert_eq!(me(&node, "acme", &token).await, 200);
        let other = scene.add(0, "globex").await;
        assert_eq!(me(&node, "globex", &other).await, 200, "others go on");
        let nodes = scene.call(0, Method::GET, "/v1/nodes", None).await;
        assert_eq!(nodes.body["data"][0]["refused"], json!(["acme"]));
        let answer = scene.call(0, Method::PUT, "/v1/tenants/acme?wait=60", Some(&scene.tenant("acme"))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        wait_for_count(address, "formgate_registry_refused_tenants", 0).await;
    }

    async fn changes_of_others_cut_no_request(engine: Engine) {
        let scene = Scene::new(engine).gateway("threads", 2);
        let node = scene.start(0);
        let mut tenant = scene.tenant("acme");
        tenant["requests_per_minute"] = json!(100_000);
        let put = "/v1/tenants/acme?migrate=1&wait=60&token=tests";
        let answer = scene.call(0, Method::PUT, put, Some(&tenant)).await;
        let token = answer.body["token"]["token"].as_str().unwrap().to_owned();
        let caller = super::scene::client(&node, "acme", &token);
        let load = Load::start(2, move || caller.clone());
        for round in 0..20 {
            let slug = format!("t{round}");
            let put = format!("/v1/tenants/{slug}?migrate=1&wait=60");
            assert_eq!(scene.call(0, Method::PUT, &put, Some(&scene.tenant(&slug))).await.status, 201);
            let remove = format!("/v1/tenants/{slug}?wait=60");
            assert_eq!(scene.call(0, Method::DELETE, &remove, None).await.status, 200);
        }
        let seen = load.finish().await;
        assert!(seen.answered > 0 && seen.failures.is_empty(), "{:?}", seen.failures);
    }

    async fn a_registry_that_was_restored_is_read_again(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let (acme, globex) = (scene.add(0, "acme").await, scene.add(0, "globex").await);
        let registry = Database::connect(&scene.registry_url).await;
        // As a backup had it: only the first tenant, and later writes took the same numbers.
        registry
            .execute(
                "BEGIN; UPDATE registry_nodes SET beat = 'of the backup'; DELETE FROM registry_claims WHERE slug = 'globex'; \
                 DELETE FROM registry_tenants WHERE slug = 'globex'; COMMIT",
            )
            .await;
        me_becomes(&node, "globex", &globex, 404).await;
        assert_eq!(me(&node, "acme", &acme).await, 200);
    }
}
