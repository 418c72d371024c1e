//! A node is not ready from its start until it serves what the others serve.

use std::time::Instant;

use http::Method;
use serde_json::{Value, json};

use super::scene::{LIMIT, Scene, me};
use crate::support::client::operator_get;
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::process::Node;

/// The variable in which the databases of tenants are.
const VARIABLE: &str = "FORMGATE_TENANT_FOLDER";

async fn readiness(node: &mut Node) -> (u16, Value) {
    let answer = operator_get(node.operator_address(), "/readyz").await;
    (answer.status.as_u16(), answer.json())
}

/// Waits until a node is ready, or is not for a reason with these words.
async fn readiness_is(node: &mut Node, status: u16, words: &str) -> Value {
    let began = Instant::now();
    loop {
        let (found, body) = readiness(node).await;
        if found == status && body["parts"]["rows"].as_str().expect("a part").contains(words) {
            return body;
        }
        assert!(began.elapsed() < LIMIT, "{found}: {body}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Adds a tenant whose database is in the folder of a variable.
async fn add_with_variable(scene: &Scene, slug: &str) {
    let mut tenant = scene.tenant(slug);
    tenant["database"] = json!(format!("sqlite:${{{VARIABLE}}}/{slug}-of-variable.db"));
    let put = scene.call(0, Method::PUT, &format!("/v1/tenants/{slug}?migrate=1&wait=60"), Some(&tenant)).await;
    assert_eq!(put.status, 201, "{put:?}");
}

/// The same while another node lacks the variable.
async fn add_while_behind(scene: &Scene, slug: &str) {
    let mut tenant = scene.tenant(slug);
    tenant["database"] = json!(format!("sqlite:${{{VARIABLE}}}/{slug}-of-variable.db"));
    let put = scene.call(0, Method::PUT, &format!("/v1/tenants/{slug}?migrate=1&wait=60"), Some(&tenant)).await;
    let [behind] = &put.body["waiting_for"].as_array().expect("one is behind")[..] else { panic!("{put:?}") };
    let reason = behind["reason"].as_str().expect("a reason");
    assert!(put.status == 202 && reason.contains(VARIABLE) && !reason.contains('\n'), "{put:?}");
    let token = scene.call(1, Method::POST, &format!("/v1/tenants/{slug}/tokens"), Some(&json!({ "name": "x" }))).await;
    let message = token.body["message"].as_str().expect("a message");
    assert!(token.status == 503 && message.contains(VARIABLE) && !message.contains('\n'), "{token:?}");
}

on_both_databases! {
    async fn a_node_that_lacks_a_variable_is_not_ready_while_another_serves_the_row(engine: Engine) {
        let scene = Scene::new(engine);
        let folder = scene.folder().display().to_string();
        let mut first = scene.start_in(0, &[(VARIABLE, &folder)]);
        let token = scene.add(0, "acme").await;
        add_with_variable(&scene, "globex").await;
        readiness_is(&mut first, 200, "ok").await;
        let mut second = scene.start(1);
        let body = readiness_is(&mut second, 503, "It lacks 1: globex").await;
        assert!(body["ready"] == false && body["tenants"]["globex"].to_string().contains(VARIABLE), "{body}");
        assert_eq!(me(&second, "acme", &token).await, 200, "the others are served");
        assert_eq!(readiness(&mut first).await.0, 200);
        first.signal("TERM");
        // No other node serves the row any more, for as long as that lasts.
        let alone = "this node can't read 1: globex; it is ready, until another node serves them";
        readiness_is(&mut second, 200, alone).await;
        drop(first);
        let mut first = scene.start_in(0, &[(VARIABLE, &folder)]);
        readiness_is(&mut first, 200, "ok").await;
        readiness_is(&mut second, 503, "It lacks 1: globex").await;
    }

    async fn a_node_that_was_compared_with_another_one_stays_ready(engine: Engine) {
        let scene = Scene::new(engine);
        let folder = scene.folder().display().to_string();
        let _first = scene.start_in(0, &[(VARIABLE, &folder)]);
        scene.add(0, "acme").await;
        let mut second = scene.start(1);
        readiness_is(&mut second, 200, "ok").await;
        add_while_behind(&scene, "globex").await;
        readiness_is(&mut second, 200, "this node can't read 1: globex; it is ready").await;
    }

    async fn a_node_that_serves_no_tenant_is_not_ready_until_it_serves_one(engine: Engine) {
        let scene = Scene::new(engine);
        let folder = scene.folder().display().to_string();
        let mut node = scene.start_in(0, &[(VARIABLE, &folder)]);
        readiness_is(&mut node, 200, "ok").await;
        add_with_variable(&scene, "acme").await;
        drop(node);
        let mut node = scene.start(0);
        readiness_is(&mut node, 503, "this node serves no tenant; its log has the reason. It can't read 1: acme").await;
        scene.add(0, "globex").await;
        readiness_is(&mut node, 200, "it is ready, until another node serves them").await;
    }

    async fn very_many_rows_that_can_not_be_read_are_one_line_of_the_log(engine: Engine) {
        let scene = Scene::new(engine);
        let mut node = scene.start(0);
        scene.add(0, "acme").await;
        let registry = Database::connect(&scene.registry_url).await;
        let rows = match engine {
            Engine::Sqlite => "(WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) SELECT i FROM n)",
            _ => "generate_series(1, 500) AS n (i)",
        };
        registry.execute(&format!(
            "BEGIN; UPDATE registry_head SET revision = revision + 500; \
             INSERT INTO registry_tenants (slug, position, toml, revision, changed_at, changed_by) \
             SELECT 't' || i, i + 1, '[[tenant]] slug = of a newer version', i + 1, changed_at, changed_by FROM {rows}, \
             registry_tenants WHERE slug = 'acme'; COMMIT"
        )).await;
        registry.close().await;
        let found = node.wait_for_log(LIMIT, |line| line.contains("\"tenants\":500").then(|| line.to_owned()));
        let found = found.expect("a line with the number");
        assert!(found.contains("\"first\":\"t1\""), "{found}");
        assert_eq!(node.count_lines("can't be served"), 1, "no others");
        let began = Instant::now();
        let listed = loop {
            let nodes = scene.call(0, Method::GET, "/v1/nodes", None).await;
            if nodes.body["data"][0]["refused_count"] == 500 {
                break nodes;
            }
            assert!(began.elapsed() < LIMIT, "{nodes:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        };
        assert_eq!(listed.body["data"][0]["refused"].as_array().map(Vec::len), Some(100), "a number of them is named");
        let (status, body) = readiness(&mut node).await;
        assert_eq!((status, &body["parts"]["registry"]), (200, &json!("500 do not work")), "{body}");
        assert!(body["tenants"].as_object().is_some_and(|tenants| tenants.len() == 100), "{body}");
    }
}
