//! A slow database: callers wait for a connection for a moment, so many are in flight, and no more.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::scene::{PATIENCE, Scene};
use crate::support::answer::Answer;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site};

/// How long what is slow here takes, in seconds.
const SLOW: f64 = 2.0;

/// Less than one wait for something slow, and far more than an answer takes on a loaded machine.
const AT_ONCE: Duration = Duration::from_millis(1500);

/// Makes each reading of forms take so long.
async fn slow_down(database: &Database, seconds: f64) {
    database
        .execute(&format!(
            "ALTER TABLE forms RENAME TO forms_table; \
             CREATE VIEW forms AS SELECT f.* FROM pg_sleep({seconds}) s LEFT JOIN forms_table f ON true"
        ))
        .await;
}

/// So many requests at once: each one's answer, and how long it took.
async fn at_once(scene: &Scene, count: usize) -> Vec<(Answer, Duration)> {
    let began = Instant::now();
    let call = |_| async { (scene.acme.get("/api/v1/form").send().await, began.elapsed()) };
    join_all((0..count).map(call)).await
}

fn count(answers: &[(Answer, Duration)], status: u16) -> usize {
    answers.iter().filter(|(answer, _)| answer.status == status).count()
}

#[tokio::test]
async fn a_busy_pool_is_waited_for_a_moment_and_its_breaker_stays_closed() {
    let site = Site::new().databases("wait_ms", 300);
    let mut scene = Scene::with(site, Engine::Postgres, |tenant| tenant.set("max_connections", 2));
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    let database = Database::connect(scene.site.database_url("acme")).await;
    slow_down(&database, SLOW).await;
    let answers = at_once(&scene, 10).await;
    assert_eq!((count(&answers, 200), count(&answers, 503)), (2, 8));
    for (answer, took) in &answers {
        assert!(answer.status != 503 || *took < AT_ONCE, "refused after {took:?}");
    }
    assert_eq!(scene.count(r#"formgate_database_refused_total{reason="wait"}"#).await, 8);
    assert_eq!(scene.count("formgate_database_breaker_trips_total").await, 0);
    assert_eq!(scene.count("formgate_database_waiting").await, 0);
    scene.others_are_served().await;
}

#[tokio::test]
async fn a_node_that_was_paused_refuses_no_request_for_that() {
    let site = Site::new().databases("wait_ms", 300);
    let mut scene = Scene::with(site, Engine::Postgres, |tenant| tenant.set("max_connections", 2));
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    let database = Database::connect(scene.site.database_url("acme")).await;
    slow_down(&database, 0.2).await;
    let Scene { node, acme, .. } = &mut scene;
    let stand_still = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        node.signal("STOP");
        tokio::time::sleep(Duration::from_secs(1)).await;
        node.signal("CONT");
    };
    let calls = join_all((0..4).map(|_| acme.get("/api/v1/form").send()));
    let (answers, ()) = tokio::join!(calls, stand_still);
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200; 4]);
    assert_eq!(scene.count("formgate_database_waiting").await, 0);
}

#[tokio::test]
async fn past_the_requests_in_flight_a_tenant_is_refused_at_once() {
    let mut scene = Scene::with(Site::new(), Engine::Postgres, |tenant| tenant.set("max_in_flight", 4));
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    let database = Database::connect(scene.site.database_url("acme")).await;
    slow_down(&database, SLOW).await;
    let answers = at_once(&scene, 12).await;
    assert_eq!((count(&answers, 200), count(&answers, 503)), (4, 8));
    for (answer, took) in answers.iter().filter(|(answer, _)| answer.status == 503) {
        assert!(*took < AT_ONCE, "refused after {took:?}");
        assert!(answer.number("retry-after") >= Some(1));
    }
    assert_eq!(scene.count(r#"formgate_database_refused_total{reason="in_flight"}"#).await, 8);
    scene.others_are_served().await;
}

/// The slow statements that run on this database.
const LOOK_UPS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";

#[tokio::test]
async fn a_flood_of_unknown_tokens_does_not_lock_out_known_ones() {
    let scene = Scene::with(Site::new(), Engine::Postgres, |tenant| tenant.set("max_connections", 4));
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    let database = Database::connect(scene.site.database_url("acme")).await;
    // Looking up a token that is not remembered takes long.
    database
        .execute(&format!(
            "ALTER TABLE tokens RENAME TO tokens_table; \
             CREATE VIEW tokens AS SELECT t.* FROM pg_sleep({SLOW}) s JOIN tokens_table t ON true"
        ))
        .await;
    let strangers = join_all((0..100).map(|_| async {
        let token = formgate::tenant::token::PresentedToken::generate();
        scene.acme.with(token.expose()).get("/api/v1/form").send().await.status.as_u16()
    }));
    let known = async {
        let began = Instant::now();
        while database.integers(LOOK_UPS).await == [0] {
            assert!(began.elapsed() < PATIENCE, "no unknown token is looked up");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for _ in 0..10 {
            assert_eq!(scene.ask_within(AT_ONCE).await.status, 200);
        }
    };
    let (strangers, ()) = tokio::join!(strangers, known);
    assert!(strangers.iter().all(|status| [401, 503].contains(status)), "{strangers:?}");
    assert!(strangers.contains(&401) && strangers.contains(&503), "{strangers:?}");
}

#[tokio::test]
async fn a_locked_table_delays_its_clients_only_briefly() {
    let mut scene = Scene::on(Engine::Postgres);
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    let database = Database::connect(scene.site.database_url("acme")).await;
    database.execute("BEGIN; LOCK TABLE forms").await;
    let answers = at_once(&scene, 30).await;
    assert_eq!(count(&answers, 503), 30);
    assert!(answers.iter().all(|(_, took)| *took < PATIENCE));
    scene.others_are_served().await;
    assert_eq!(scene.acme.get("/api/v1/group").send().await.status, 200, "another table of the tenant");
    assert_eq!(scene.count("formgate_database_breaker_trips_total").await, 0);
    database.execute("COMMIT").await;
    scene.comes_back().await;
}

#[tokio::test]
async fn the_log_shows_the_database_time_of_a_slow_request() {
    let mut scene = Scene::on(Engine::Postgres);
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    let database = Database::connect(scene.site.database_url("acme")).await;
    slow_down(&database, 1.2).await;
    assert_eq!(scene.acme.get("/api/v1/form").send().await.status, 200);
    let line = scene.node.wait_for_log(PATIENCE, |line| line.contains("database_ms").then(|| line.to_owned()));
    let line: serde_json::Value = serde_json::from_str(&line.expect("the slow request's line")).expect("a JSON object");
    let (database, all) = (line["database_ms"].as_f64(), line["duration_ms"].as_f64());
    assert!(database >= Some(1200.0) && database <= all, "{line}");
    assert_eq!(line["route"], "GET /form");
}
