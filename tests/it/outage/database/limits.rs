//! A slow database: callers wait for a connection for a moment, so many are in flight, and no more.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use toml::Table;

use super::scene::{BY_ITSELF, PATIENCE, Scene};
use crate::support::answer::Answer;
use crate::support::busy::takes_less_than;
use crate::support::client::{Client, operator_count};
use crate::support::connection::Protocol;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, Tenant};

/// How long what is slow here takes, in seconds.
const SLOW: f64 = 2.0;

/// Less than one wait for something slow, and more than an answer takes, if not always on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(1500);

/// Less than waits that add up, and more than one that does not, if not always on a busy machine.
const ONE_WAIT: Duration = Duration::from_millis(4500);

/// Makes each reading of forms take so long.
async fn slow_down(database: &Database, seconds: f64) {
    database
        .execute(&format!(
            "ALTER TABLE forms RENAME TO forms_table; \
             CREATE VIEW forms AS SELECT f.* FROM pg_sleep({seconds}) s LEFT JOIN forms_table f ON true"
        ))
        .await;
}

/// A site whose statements and requests may take as long as a test needs.
fn patient_site() -> Site {
    let limits: Table = "request_seconds = 60".parse().expect("TOML");
    Site::new().gateway("limits", limits).databases("statement_seconds", 60)
}

/// A tenant on Postgres whose forms are read only when a test lets them be.
struct Held {
    scene: Scene,
    /// Holds the readers as long as it holds a lock.
    database: Database,
    /// Its requests share a connection, so that they arrive at once.
    client: Client,
}

impl Held {
    async fn with(site: Site, differ: impl FnOnce(Tenant) -> Tenant) -> Self {
        let scene = Scene::with(site, Engine::Postgres, differ);
        let client = scene.acme.over(Protocol::Http2);
        assert_eq!(client.get("/api/v1/form").send().await.status, 200);
        let database = Database::connect(scene.site.database_url("acme")).await;
        // Readers look for the lock rather than wait for it, since the time to wait for locks is limited.
        database
            .execute(
                "ALTER TABLE forms RENAME TO forms_table; \
                 CREATE FUNCTION held() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN \
                 WHILE EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = 1 \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) \
                 LOOP PERFORM pg_sleep(0.01); END LOOP; RETURN true; END $$; \
                 CREATE VIEW forms AS SELECT f.* FROM held() h LEFT JOIN forms_table f ON true; \
                 SELECT pg_advisory_lock(1)",
            )
            .await;
        Self { scene, database, client }
    }

    /// So many requests at once; the answers in their order in time.
    fn ask(&self, count: usize) -> FuturesUnordered<impl Future<Output = Answer>> {
        (0..count).map(|_| self.client.get("/api/v1/form").send()).collect()
    }

    async fn release(&self) {
        self.database.execute("SELECT pg_advisory_unlock(1)").await;
    }

    async fn hold(&self) {
        self.database.execute("SELECT pg_advisory_lock(1)").await;
    }
}

/// Asserts that so many answers are refusals, which come while the requests before them are held, and that the others are
/// served once they are not.
async fn assert_refused_at_once(
    held: &Held,
    mut answers: FuturesUnordered<impl Future<Output = Answer>>,
    count: usize,
) {
    for _ in 0..count {
        let answer = answers.next().await.expect("there are more");
        assert_eq!(answer.status, 503);
        assert!(answer.number("retry-after") >= Some(1), "{answer:?}");
    }
    held.release().await;
    while let Some(answer) = answers.next().await {
        assert_eq!(answer.status, 200);
    }
}

#[tokio::test]
async fn a_busy_pool_is_waited_for_a_moment_and_its_breaker_stays_closed() {
    let site = patient_site().databases("wait_ms", 300);
    let mut held = Held::with(site, |tenant| tenant.set("max_connections", 2)).await;
    assert_refused_at_once(&held, held.ask(10), 8).await;
    let scene = &mut held.scene;
    assert_eq!(scene.count(r#"formgate_database_refused_total{reason="wait"}"#).await, 8);
    assert_eq!(scene.count("formgate_database_breaker_trips_total").await, 0);
    assert_eq!(scene.count("formgate_database_waiting").await, 0);
    scene.others_are_served().await;
}

/// On a machine so busy that the time to wait for a connection is over before the node is paused, another time.
#[tokio::test]
async fn a_node_that_was_paused_refuses_no_request_for_that() {
    const WAIT: Duration = Duration::from_secs(1);
    let site = patient_site().databases("wait_ms", 1000);
    let mut held = Held::with(site, |tenant| tenant.set("max_connections", 2)).await;
    let operator = held.scene.node.operator_address();
    let mut statuses = Vec::new();
    for _ in 0..5 {
        let answers = join_all((0..4).map(|_| held.client.get("/api/v1/form").send()));
        let Held { scene, database, .. } = &mut held;
        let stand_still = async {
            let began = Instant::now();
            while operator_count(operator, "formgate_database_waiting").await < 2 && began.elapsed() < WAIT {}
            scene.node.signal("STOP");
            database.execute("SELECT pg_advisory_unlock(1)").await;
            tokio::time::sleep(WAIT + WAIT / 5).await;
            scene.node.signal("CONT");
        };
        let (answers, ()) = tokio::join!(answers, stand_still);
        statuses = answers.iter().map(|answer| answer.status.as_u16()).collect();
        if statuses == [200; 4] {
            break;
        }
        held.hold().await;
    }
    assert_eq!(statuses, [200; 4]);
    assert_eq!(held.scene.count("formgate_database_waiting").await, 0);
}

#[tokio::test]
async fn past_the_requests_in_flight_a_tenant_is_refused_at_once() {
    let mut held = Held::with(patient_site(), |tenant| tenant.set("max_in_flight", 4)).await;
    assert_refused_at_once(&held, held.ask(12), 8).await;
    assert_eq!(held.scene.count(r#"formgate_database_refused_total{reason="in_flight"}"#).await, 8);
    held.scene.others_are_served().await;
}

/// The slow statements that run on this database.
const LOOK_UPS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";

#[tokio::test]
async fn a_flood_of_unknown_tokens_does_not_lock_out_known_ones() {
    // No address may try too many.
    let limits: Table = "bad_tokens_burst = 10000".parse().expect("TOML");
    let site = Site::new().gateway("limits", limits);
    let scene = Scene::with(site, Engine::Postgres, |tenant| tenant.set("max_connections", 4));
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    let database = Database::connect(scene.site.database_url("acme")).await;
    // Looking up a token that is not remembered takes long.
    database
        .execute(&format!(
            "ALTER TABLE tokens RENAME TO tokens_table; \
             CREATE VIEW tokens AS SELECT t.* FROM pg_sleep({SLOW}) s JOIN tokens_table t ON true"
        ))
        .await;
    let known = scene.acme.over(Protocol::Http2);
    takes_less_than(AT_ONCE, "an answer to a known token", async || {
        // It is cached again, for some seconds.
        let began = Instant::now();
        while known.get("/api/v1/form").send().await.status != 200 {
            assert!(began.elapsed() < BY_ITSELF, "the known token is not looked up");
        }
        let strangers = join_all((0..100).map(|_| async {
            let token = formgate::tenant::token::PresentedToken::generate();
            scene.acme.with(token.expose()).get("/api/v1/form").send().await.status.as_u16()
        }));
        let slowest = async {
            let began = Instant::now();
            while database.integers(LOOK_UPS).await == [0] {
                assert!(began.elapsed() < BY_ITSELF, "no unknown token is looked up");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let mut slowest = Duration::ZERO;
            for _ in 0..10 {
                let began = Instant::now();
                let status = known.get("/api/v1/form").send().await.status;
                // One that is refused waits for longer than any.
                slowest = slowest.max(if status == 200 { began.elapsed() } else { Duration::MAX });
            }
            slowest
        };
        let (strangers, slowest) = tokio::join!(strangers, slowest);
        assert!(strangers.iter().all(|status| [401, 503].contains(status)), "{strangers:?}");
        assert!(strangers.contains(&401) && strangers.contains(&503), "{strangers:?}");
        slowest
    })
    .await;
}

#[tokio::test]
async fn a_locked_table_delays_its_clients_only_briefly() {
    let mut scene = Scene::on(Engine::Postgres);
    let acme = scene.acme.over(Protocol::Http2);
    assert_eq!(acme.get("/api/v1/form").send().await.status, 200);
    let database = Database::connect(scene.site.database_url("acme")).await;
    database.execute("BEGIN; LOCK TABLE forms").await;
    takes_less_than(ONE_WAIT, "a refusal", async || {
        let began = Instant::now();
        let answers = join_all((0..30).map(|_| acme.get("/api/v1/form").send())).await;
        assert!(answers.iter().all(|answer| answer.status == 503), "{answers:?}");
        began.elapsed()
    })
    .await;
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
    let line = scene.node.wait_for_log(BY_ITSELF, |line| line.contains("database_ms").then(|| line.to_owned()));
    let line: serde_json::Value = serde_json::from_str(&line.expect("the slow request's line")).expect("a JSON object");
    let (database, all) = (line["database_ms"].as_f64(), line["duration_ms"].as_f64());
    assert!(database >= Some(1200.0) && database <= all, "{line}");
    assert_eq!(line["route"], "GET /form");
}
