//! A disk is full: a clear answer, and serving goes on.

use std::process::Command;
use std::time::Duration;

use http::Method;

use super::scene::{Scene, me, readiness_becomes};
use crate::support::database::Database;
use crate::support::fixture::Engine;
use crate::support::postgres::Postgres;
use crate::support::process::Node;

/// Limits the size of each file that the node writes, or removes the limit.
fn limit_files(node: &Node, bytes: &str) {
    let limit = format!("--fsize={bytes}:unlimited");
    let done = Command::new("prlimit").args(["--pid", &node.id().to_string(), &limit]).status();
    assert!(done.expect("prlimit is a part of util-linux").success());
}

#[tokio::test]
async fn a_registry_on_a_full_disk_is_a_clear_answer_and_serving_goes_on() {
    let scene = Scene::new(Engine::Sqlite);
    scene.write(0);
    let mut node = Node::spawn(&scene.config(0));
    let token = scene.add(0, "acme").await;
    // The node looks whether the tenant has subscriptions, and closes its database then.
    let registry = Database::connect(&scene.registry_url).await;
    while registry.integers("SELECT count(*) FROM registry_subscribed").await != [1] {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    registry.close().await;
    limit_files(&node, "4096");
    let put = scene.call(0, Method::PUT, "/v1/tenants/globex", Some(&scene.tenant("globex"))).await;
    let message = put.body["message"].as_str().unwrap();
    assert!(put.status == 503 && message.starts_with("The registry can't be used: "), "{put:?}");
    assert_eq!(me(&node, "acme", &token).await, 200);
    let listed = scene.call(0, Method::GET, "/v1/tenants", None).await;
    assert!(listed.status == 200 && listed.body["data"].as_array().unwrap().len() == 1, "{listed:?}");
    readiness_becomes(&mut node, "it takes no writes of this node; callers do not wait for it").await;
    node.wait_for_lines(Duration::from_secs(30), "cannot write to the registry", 1);
    limit_files(&node, "unlimited");
    readiness_becomes(&mut node, "ok").await;
    let other = scene.add(0, "globex").await;
    assert_eq!(me(&node, "globex", &other).await, 200);
}

/// What a node could not keep is missing on its disk, but never between what it kept before and after.
#[tokio::test]
async fn a_snapshot_on_a_full_disk_has_all_rows_up_to_its_revision() {
    let mut server = Postgres::start();
    let scene = Scene::new(Engine::Sqlite).gateway("registry", server.new_database());
    scene.write(0);
    let mut node = Node::spawn(&scene.config(0));
    let mut tokens = vec![("a", scene.add(0, "a").await)];
    assert_eq!(scene.kept(0).await, [1, 1]);
    limit_files(&node, "4096");
    let put = scene.call(0, Method::PUT, "/v1/tenants/b?wait=60", Some(&scene.tenant("b"))).await;
    assert_eq!(put.status, 202, "the registry has it, and its database does not exist yet: {put:?}");
    let reason = put.body["waiting_for"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("the database is unavailable"), "the node has taken over the row: {put:?}");
    limit_files(&node, "unlimited");
    tokens.push(("b", scene.add_again(0, "b").await));
    tokens.push(("c", scene.add(0, "c").await));
    let [rows, revision] = scene.kept(0).await;
    assert_eq!(rows, revision, "{}", node.log());
    assert!(node.log().contains("cannot write the registry snapshot"), "{}", node.log());
    drop(node);
    let node = scene.start(0);
    scene.keeps(0, 3).await;
    drop(node);
    server.crash();
    let node = scene.start(0);
    for (slug, token) in &tokens {
        assert_eq!(me(&node, slug, token).await, 200, "{slug}");
    }
}
