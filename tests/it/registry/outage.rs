//! The registry is away, or a node dies: what was served is served, and what was acknowledged is kept.

use std::fs;
use std::time::Duration;

use http::Method;
use serde_json::Value;

use super::scene::{LIMIT, Scene, me, me_becomes, readiness_becomes};
use crate::support::client::{operator_get, wait_for_count};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::postgres::Postgres;

#[tokio::test]
async fn a_node_starts_and_serves_while_the_registry_is_away() {
    let mut server = Postgres::start();
    let scene = Scene::new(Engine::Sqlite).gateway("registry", server.new_database());
    let node = scene.start(0);
    let token = scene.add(0, "acme").await;
    scene.keeps(0, 1).await;
    assert_eq!(scene.run(&["check"]).code, 0);
    server.crash();
    assert_eq!(me(&node, "acme", &token).await, 200);
    let checked = scene.run(&["check"]);
    let fault = "the registry can't be read, and the snapshot is served: the database is unavailable";
    assert!(checked.code == 1 && checked.stdout.contains(fault), "{checked:?}");
    let put = scene.call(0, Method::PUT, "/v1/tenants/globex", Some(&scene.tenant("globex"))).await;
    assert_eq!(put.status, 503, "{put:?}");
    drop(node);
    let mut node = scene.start(0);
    assert_eq!(me(&node, "acme", &token).await, 200, "from the snapshot");
    let ready: Value = operator_get(node.operator_address(), "/readyz").await.json();
    assert!(ready["ready"] == true && ready["parts"]["registry"].as_str().unwrap().starts_with("away"), "{ready}");
    server.recover();
    let began = std::time::Instant::now();
    loop {
        let put = scene
            .call(0, Method::PUT, "/v1/tenants/globex?wait=60&migrate=1&token=x", Some(&scene.tenant("globex")))
            .await;
        if put.status == 201 {
            let token = put.body["token"]["token"].as_str().unwrap().to_owned();
            me_becomes(&node, "globex", &token, 200).await;
            break;
        }
        assert!(put.status == 503 && began.elapsed() < LIMIT, "{put:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_registry_that_hangs_or_takes_no_writes_is_a_clear_answer_and_serving_goes_on() {
    let mut server = Postgres::start();
    let scene = Scene::new(Engine::Sqlite).gateway("registry", server.new_database());
    let mut node = scene.start(0);
    let token = scene.add(0, "acme").await;
    server.hang(true);
    let put = scene.call(0, Method::PUT, "/v1/tenants/globex", Some(&scene.tenant("globex"))).await;
    assert!(put.status == 503 && put.headers.contains_key("retry-after"), "{put:?}");
    assert_eq!(me(&node, "acme", &token).await, 200);
    wait_for_count(node.operator_address(), "formgate_registry_up", 0).await;
    server.hang(false);
    wait_for_count(node.operator_address(), "formgate_registry_up", 1).await;
    server.execute("ALTER SYSTEM SET default_transaction_read_only = on");
    server.execute("SELECT pg_reload_conf()");
    let began = std::time::Instant::now();
    loop {
        let put = scene.call(0, Method::PUT, "/v1/tenants/globex", Some(&scene.tenant("globex"))).await;
        if put.status == 503 {
            break;
        }
        // The setting has not arrived yet.
        assert!(put.status == 201 && began.elapsed() < LIMIT, "{put:?}");
        scene.call(0, Method::DELETE, "/v1/tenants/globex", None).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(me(&node, "acme", &token).await, 200);
    let listed = scene.call(0, Method::GET, "/v1/tenants", None).await;
    assert_eq!(listed.status, 200, "it is still read: {listed:?}");
    readiness_becomes(&mut node, "it takes no writes of this node; callers do not wait for it").await;
}

#[tokio::test]
async fn without_registry_and_snapshot_a_node_does_not_start() {
    let mut server = Postgres::start();
    let scene = Scene::new(Engine::Sqlite).gateway("registry", server.new_database());
    scene.write(0);
    server.crash();
    let output = scene.run(&["serve"]);
    assert!(output.code == 1 && output.stderr.contains("there is no snapshot of it at"), "{}", output.stderr);
}

on_both_databases! {
    async fn the_snapshot_is_sealed_and_only_its_owner_can_read_it(engine: Engine) {
        use std::os::unix::fs::PermissionsExt;

        let mut webhooks = toml::Table::new();
        webhooks.insert("secret_key".into(), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".into());
        let scene = Scene::new(engine).gateway("webhooks", webhooks);
        let node = scene.start(0);
        scene.add(0, "acme").await;
        drop(node);
        let file = scene.snapshot(0);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let all: Vec<u8> = ["", "-wal"]
            .iter()
            .filter_map(|end| fs::read(format!("{}{end}", file.display())).ok())
            .flatten()
            .collect();
        let has = |text: &str| all.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(has("sealed1.") && !has("acme.example.test") && !has("database ="));
    }

    async fn an_empty_registry_in_place_of_a_lost_one_takes_no_tenant_away(engine: Engine) {
        let scene = Scene::new(engine);
        let mut node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let registry = Database::connect(&scene.registry_url).await;
        registry
            .execute(
                "BEGIN; DELETE FROM registry_claims; DELETE FROM registry_tenants; DELETE FROM registry_nodes; \
                 UPDATE registry_head SET epoch = 'of a new one', revision = 0; COMMIT",
            )
            .await;
        wait_for_count(node.operator_address(), "formgate_registry_up", 0).await;
        assert_eq!(me(&node, "acme", &token).await, 200);
        let put = scene.call(0, Method::PUT, "/v1/tenants/globex", Some(&scene.tenant("globex"))).await;
        assert!(put.status == 503 && put.body["message"].as_str().unwrap().contains("another registry"), "{put:?}");
        drop(node);
        let mut node = scene.start(0);
        assert_eq!(me(&node, "acme", &token).await, 200, "from the snapshot");
        wait_for_count(node.operator_address(), "formgate_registry_up", 0).await;
        drop(node);
        for end in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{end}", scene.snapshot(0).display()));
        }
        let node = scene.start(0);
        assert_eq!(me(&node, "acme", &token).await, 404, "the operator wants the other one");
        scene.add(0, "globex").await;
    }

    async fn calls_to_a_damaged_registry_get_a_next_step_and_serving_goes_on(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let registry = Database::connect(&scene.registry_url).await;
        registry.execute("DROP TABLE registry_claims").await;
        registry.close().await;
        let put = scene.call(0, Method::PUT, "/v1/tenants/globex", Some(&scene.tenant("globex"))).await;
        let message = put.body["message"].as_str().expect("a message");
        assert!(put.status == 503 && message.contains("; restore a backup of the registry"), "{put:?}");
        assert_eq!(me(&node, "acme", &token).await, 200);
    }

    async fn what_was_acknowledged_survives_kill_9(engine: Engine) {
        let scene = Scene::new(engine);
        let mut node = scene.start(0);
        let mut acknowledged = Vec::new();
        for round in 0..5 {
            let slug = format!("t{round}");
            let target = format!("/v1/tenants/{slug}");
            let tenant = scene.tenant(&slug).to_string();
            let (sent, ()) = tokio::join!(scene.send(0, Method::PUT, &target, tenant, &[]), async {
                tokio::time::sleep(Duration::from_millis(5 * round)).await;
                node.kill();
            });
            if sent.is_some_and(|answer| answer.status == 201) {
                acknowledged.push(slug);
            }
            node = scene.start(0);
        }
        for slug in &acknowledged {
            let shown = scene.call(0, Method::GET, &format!("/v1/tenants/{slug}"), None).await;
            assert_eq!(shown.status, 200, "{shown:?}");
            assert_eq!(me(&node, slug, "fg_none").await, 401, "it is served");
        }
        let listed = scene.call(0, Method::GET, "/v1/tenants", None).await;
        assert!(listed.body["data"].as_array().unwrap().len() >= acknowledged.len());
    }
}

/// A port or a socket that another process has.
#[tokio::test]
async fn a_start_that_fails_leaves_no_node_for_which_callers_wait() {
    let scene = Scene::new(Engine::Sqlite);
    let node = scene.start(0);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let ports = [("listen", toml::Value::from(vec![taken.clone()])), ("admin_listen", taken.into())];
    let configure = |key: &str, value: toml::Value| {
        let mut config: toml::Table = fs::read_to_string(scene.config(0)).unwrap().parse().unwrap();
        let gateway = config["gateway"].as_table_mut().unwrap();
        gateway.insert("registry_snapshot".into(), scene.snapshot(1).display().to_string().into());
        gateway["operator"]["listen"] = vec![format!("unix:{}", scene.socket(1).display())].into();
        if key == "operator" {
            gateway["operator"]["listen"] = vec![format!("unix:{}", scene.socket(0).display())].into();
        } else {
            gateway.insert(key.into(), value);
        }
        fs::write(scene.config(1), config.to_string()).unwrap();
    };
    for (key, value) in ports.into_iter().chain([("operator", true.into())]) {
        configure(key, value);
        let file = scene.config(1).display().to_string();
        let served = crate::support::process::formgate(&["serve", "--config", &file]);
        assert!(served.code == 1 && served.stderr.contains("can't listen on"), "{key}: {served:?}");
        let nodes = scene.call(0, Method::GET, "/v1/nodes", None).await;
        assert_eq!(nodes.body["data"].as_array().map(Vec::len), Some(1), "{key}: {nodes:?}");
    }
    drop(node);
}
