//! A SQLite file whose write lock another program holds: writes are refused after one wait, however many there are, and reads
//! go on.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;

use super::scene::Scene;
use crate::support::answer::Answer;
use crate::support::busy::takes_less_than;
use crate::support::database::Database;
use crate::support::fixture::Engine;

/// Two seconds of waiting, and more than anything else takes, if not always on a busy machine. Waits that add up take longer.
const ONE_WAIT: Duration = Duration::from_secs(5);

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

/// That writes are refused; how long the last one waited.
fn slowest_refusal(answers: &[(Answer, Duration)]) -> Duration {
    for (number, (answer, took)) in answers.iter().enumerate() {
        assert_eq!(answer.status, 503, "write {number} after {took:?}: {answer:?}");
        assert!(answer.number("retry-after") >= Some(1), "{answer:?}");
    }
    answers.iter().map(|(_, took)| *took).max().expect("there were writes")
}

#[tokio::test]
async fn concurrent_writes_are_refused_after_one_wait_and_reads_continue() {
    let mut scene = Scene::on(Engine::Sqlite);
    assert_eq!(scene.write().await, 201);
    scene.wait_until_use_is_stored().await;
    let product = Database::connect(scene.site.database_url("acme")).await;
    product.execute("BEGIN IMMEDIATE").await;
    let mut writes = 0;
    takes_less_than(ONE_WAIT, "the refusal of a write", async || {
        let reads = async {
            for _ in 0..20 {
                assert_eq!(scene.acme.get("/api/v1/form").send().await.status, 200);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let (answers, ()) = tokio::join!(writes_at_once(&scene), reads);
        writes += answers.len() as u64;
        assert_eq!(scene.acme.get("/api/v1/form").send().await.status, 200, "after refused writes");
        slowest_refusal(&answers)
    })
    .await;
    assert!(scene.said("another program holds the write lock of the SQLite file") > 0, "{}", scene.node.log());
    assert_eq!(scene.count("formgate_database_breaker_trips_total").await, 0);
    // One a write, however often it tried.
    assert_eq!(scene.count(r#"formgate_database_failures_total{reason="locked"}"#).await, writes);
    product.execute("ROLLBACK").await;
    assert_eq!(scene.write().await, 201);
}

/// Writes of all kinds share one connection, and those of groups also take turns: their waits must not add up.
#[tokio::test]
async fn writes_of_all_kinds_that_come_one_after_another_are_each_refused_after_one_wait() {
    // They come for longer than one waits. If their waits added up, the last would wait for a minute.
    const EACH: Duration = Duration::from_millis(150);
    const WRITES: u32 = 32;
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
    takes_less_than(ONE_WAIT, "the refusal of a write", async || {
        slowest_refusal(&join_all((0..WRITES).map(&write)).await)
    })
    .await;
    product.execute("ROLLBACK").await;
    assert_eq!(scene.write().await, 201);
}

/// On a machine so busy that the transaction is not short, another time.
#[tokio::test]
async fn a_write_waits_for_a_short_transaction_of_another_program() {
    let scene = Scene::on(Engine::Sqlite);
    let product = Database::connect(scene.site.database_url("acme")).await;
    for _ in 0..5 {
        product.execute("BEGIN IMMEDIATE").await;
        let commit = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            product.execute("COMMIT").await;
        };
        let (status, ()) = tokio::join!(scene.write(), commit);
        if status == 201 {
            return;
        }
        assert_eq!(status, 503);
    }
    panic!("each write is refused");
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
        (&["reindex", "--tenant", "acme"], b""),
    ] {
        let done = scene.site.run(command, input);
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.stderr.contains("another program holds the write lock of the SQLite file"), "{done:?}");
        assert!(done.stderr.contains(&format!(": process {} (`it", std::process::id())), "{done:?}");
    }
    product.execute("ROLLBACK").await;
}
