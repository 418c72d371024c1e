//! A SQLite file whose write lock another program holds: writes are refused after one wait, however many there are, and reads
//! go on.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;

use super::scene::Scene;
use crate::support::answer::Answer;
use crate::support::database::Database;
use crate::support::fixture::Engine;

/// Two seconds of waiting, and far more than anything else takes on a loaded machine. Waits that add up take longer.
const ONE_WAIT: Duration = Duration::from_secs(8);

async fn writes_at_once(scene: &Scene) -> Vec<(Answer, Duration)> {
    let began = Instant::now();
    let acme = &scene.acme;
    let group = |name: String| acme.put("/api/v1/group").json(&json!({"name": name}));
    let hook = json!({"target_url": "https://hooks.example.com/1"});
    let mut calls: Vec<_> = (0..4).map(|number| group(format!("Staff {number}"))).collect();
    calls.push(acme.delete("/api/v1/group/1"));
    calls.push(acme.post("/api/v1/subscribe").json(&hook));
    calls.push(acme.post("/api/v1/unsubscribe").json(&hook));
    join_all(calls.into_iter().map(|call| async move { (call.send().await, began.elapsed()) })).await
}

#[tokio::test]
async fn concurrent_writes_are_refused_after_one_wait_and_reads_continue() {
    let mut scene = Scene::on(Engine::Sqlite);
    assert_eq!(scene.write().await, 201);
    let product = Database::connect(scene.site.database_url("acme")).await;
    product.execute("BEGIN IMMEDIATE").await;
    let reads = async {
        for _ in 0..20 {
            assert_eq!(scene.acme.get("/api/v1/form").send().await.status, 200);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (answers, ()) = tokio::join!(writes_at_once(&scene), reads);
    for (answer, took) in &answers {
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.number("retry-after") >= Some(1), "{answer:?}");
        assert!(*took < ONE_WAIT, "refused after {took:?}");
    }
    assert_eq!(scene.acme.get("/api/v1/form").send().await.status, 200, "after refused writes");
    assert!(scene.said("another program holds the write lock of the SQLite file") > 0, "{}", scene.node.log());
    assert_eq!(scene.count("formgate_database_breaker_trips_total").await, 0);
    // One a write, however often it tried.
    assert_eq!(scene.count(r#"formgate_database_failures_total{reason="locked"}"#).await, answers.len() as u64);
    product.execute("ROLLBACK").await;
    assert_eq!(scene.write().await, 201);
}

/// Writes of all kinds share one connection, and those of groups also take turns: their waits must not add up.
#[tokio::test]
async fn writes_of_all_kinds_that_come_one_after_another_are_each_refused_after_one_wait() {
    const EACH: Duration = Duration::from_millis(250);
    const WRITES: u32 = 48;
    // Closer than for writes at once: each of these begins while the node has little else to do.
    const ONE_WAIT: Duration = Duration::from_secs(5);
    let scene = Scene::on(Engine::Sqlite);
    let product = Database::connect(scene.site.database_url("acme")).await;
    product.execute("BEGIN IMMEDIATE").await;
    let acme = &scene.acme;
    let write = async |number: u32| {
        tokio::time::sleep(EACH * number).await;
        let call = match number % 4 {
            0 => acme.put("/api/v1/group").json(&json!({"name": "Staff"})),
            1 => acme.post("/api/v1/subscribe").json(&json!({"target_url": "https://hooks.example.com/1"})),
            2 => acme.delete("/api/v1/group/1"),
            _ => acme.delete("/api/v1/subscribe/1"),
        };
        let began = Instant::now();
        (call.send().await, began.elapsed())
    };
    for (number, (answer, took)) in join_all((0..WRITES).map(write)).await.into_iter().enumerate() {
        assert_eq!(answer.status, 503, "write {number} after {took:?}: {answer:?}");
        assert!(answer.number("retry-after") >= Some(1), "{answer:?}");
        assert!(took < ONE_WAIT, "write {number} is refused after {took:?}");
    }
    product.execute("ROLLBACK").await;
    assert_eq!(scene.write().await, 201);
}

#[tokio::test]
async fn a_write_waits_for_a_short_transaction_of_another_program() {
    let scene = Scene::on(Engine::Sqlite);
    let product = Database::connect(scene.site.database_url("acme")).await;
    product.execute("BEGIN IMMEDIATE").await;
    let commit = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        product.execute("COMMIT").await;
    };
    let (status, ()) = tokio::join!(scene.write(), commit);
    assert_eq!(status, 201);
}

#[tokio::test]
async fn a_command_names_the_process_that_locks_the_file() {
    let scene = Scene::on(Engine::Sqlite);
    let product = Database::connect(scene.site.database_url("acme")).await;
    product.execute("BEGIN IMMEDIATE").await;
    let form = br#"{"type":"form","id":1,"name":"Leave"}"#;
    for (command, input) in [
        (["token", "create", "--tenant", "acme", "--name", "another"].as_slice(), b"".as_slice()),
        (&["import", "--tenant", "acme", "-"], form),
        (&["migrate", "--tenant", "acme"], b""),
    ] {
        let done = scene.site.run(command, input);
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.stderr.contains("another program holds the write lock of the SQLite file"), "{done:?}");
        assert!(done.stderr.contains(&format!(": process {} (`it", std::process::id())), "{done:?}");
    }
    product.execute("ROLLBACK").await;
}
