//! A statement whose client has gone ends, and its connection serves again.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http::header::{AUTHORIZATION, HOST};
use http_body_util::Full;
use toml::Table;

use super::scene::{BY_ITSELF, PATIENCE, Scene};
use crate::support::client::{operator_count, wait_for_count};
use crate::support::connection::{Connection, Protocol};
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};

/// Far longer than a statement runs on without its caller, and less than anything here may take with one.
const SOON: Duration = Duration::from_secs(20);

/// How long everything may take here, in seconds: a statement that is slow, and a request.
const LONG: i64 = 60;

/// Statements of requests. The inspection of the node counts the forms too, once.
const STATEMENTS: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
    AND application_name = 'formgate' AND state = 'active' AND query NOT LIKE '%AS noted%'";

/// Makes reading forms take longer than any test, and nothing else.
async fn slow_down(database: &Database) {
    let slow = match database {
        Database::Postgres(_) => {
            "ALTER TABLE forms RENAME TO forms_table; \
             CREATE VIEW forms AS SELECT f.* FROM pg_sleep(60) s LEFT JOIN forms_table f ON true"
        }
        Database::Sqlite(_) => {
            "ALTER TABLE forms RENAME TO forms_table; CREATE VIEW forms AS SELECT * FROM forms_table \
             UNION ALL SELECT f.* FROM forms_table f WHERE f.id < 0 OR (WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL \
             SELECT n + 1 FROM c WHERE n < 100000000000) SELECT max(n) FROM c) < 0; \
             INSERT INTO forms_table (id, name) VALUES (1, 'One')"
        }
    };
    database.execute(slow).await;
}

/// A tenant with one connection, whose forms are slow to read.
async fn slow_scene(engine: Engine) -> (Scene, Database) {
    let limits = Table::from_iter([("request_seconds".to_owned(), LONG.into())]);
    let site = Site::new().gateway("limits", limits).databases("statement_seconds", LONG).databases("wait_ms", 25_000);
    let scene = Scene::with(site, engine, |tenant| tenant.set("max_connections", 1));
    let database = Database::connect(scene.site.database_url("acme")).await;
    slow_down(&database).await;
    assert_eq!(scene.acme.get("/api/v1/group").send().await.status, 200);
    (scene, database)
}

/// Waits until no statement of a request runs, and the one connection serves again: it is free, or another one has taken its
/// place.
async fn wait_until_free(scene: &Scene, engine: Engine, database: &Database) {
    let hung_up = Instant::now();
    if engine != Engine::Sqlite {
        while database.integers(STATEMENTS).await != [0] {
            if hung_up.elapsed() >= SOON {
                panic!("still running: {:?}", database.texts(&STATEMENTS.replace("count(*)", "query")).await);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(scene.acme.get("/api/v1/group").send().await.status, 200);
    assert!(hung_up.elapsed() < SOON, "the connection is not free");
}

/// A caller who asks for forms and hangs up while the statement runs.
async fn hang_up(scene: &mut Scene, engine: Engine, database: &Database, protocol: Protocol) {
    let host = scene.site.host("acme");
    let mut connection = Connection::open(scene.node.address, &host, protocol).await.unwrap();
    connection.ready().await.unwrap();
    let (authority, path) = (format!("https://{host}/api/v1/form"), "/api/v1/form".to_owned());
    let uri = if protocol == Protocol::Http2 { authority } else { path };
    let token = scene.site.token("acme", "another");
    // It is looked up, and its use is stored, so that the statement of the request is the next one.
    assert_eq!(scene.acme.with(&token).get("/api/v1/group").send().await.status, 200);
    scene.wait_until_use_is_stored().await;
    let request = Request::get(uri).header(AUTHORIZATION, format!("Bearer {token}"));
    let request = if protocol == Protocol::Http2 { request } else { request.header(HOST, host) };
    // On HTTP/2 the connection stays and the stream is reset; on HTTP/1.1 the connection goes.
    let kept = connection.share();
    let operator = scene.node.operator_address();
    tokio::select! {
        answer = async move { connection.send(request.body(Full::<Bytes>::default()).unwrap()).await } => {
            panic!("the statement is not slow: {answer:?}");
        }
        () = wait_until_it_runs(operator, engine, database) => {}
    }
    wait_until_free(scene, engine, database).await;
    drop(kept);
}

/// Waits until a statement of a request runs. Of SQLite, only that a connection is in use can be seen.
async fn wait_until_it_runs(operator: SocketAddr, engine: Engine, database: &Database) {
    let connections = async |state: &str| {
        operator_count(operator, &format!(r#"formgate_database_connections{{database="sqlite",state="{state}"}}"#))
            .await
    };
    let runs = async || match engine {
        Engine::Sqlite => connections("open").await > connections("idle").await,
        _ => database.integers(STATEMENTS).await != [0],
    };
    let began = Instant::now();
    while !runs().await {
        assert!(began.elapsed() < BY_ITSELF, "no statement runs");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

on_both_databases! {
    async fn a_client_that_closes_the_connection(engine: Engine) {
        let (mut scene, database) = slow_scene(engine).await;
        hang_up(&mut scene, engine, &database, Protocol::Http1).await;
        hang_up(&mut scene, engine, &database, Protocol::Http1).await;
    }

    async fn a_client_that_resets_the_stream(engine: Engine) {
        let (mut scene, database) = slow_scene(engine).await;
        hang_up(&mut scene, engine, &database, Protocol::Http2).await;
    }

    /// Many who hang up leave no more behind than the tenant has connections.
    async fn many_clients_that_hang_up(engine: Engine) {
        let (mut scene, database) = slow_scene(engine).await;
        let operator = scene.node.operator_address();
        tokio::select! {
            answers = join_all((0..20).map(|_| scene.acme.get("/api/v1/form").fresh().send())) => {
                panic!("they are answered: {answers:?}");
            }
            () = wait_for_count(operator, "formgate_requests_in_flight", 20) => {}
        }
        if engine != Engine::Sqlite {
            let [running] = database.integers(STATEMENTS).await;
            assert!(running <= 1, "{running} statements on one connection");
        }
        wait_until_free(&scene, engine, &database).await;
    }

    async fn a_statement_past_its_limit(engine: Engine) {
        let site = Site::new().databases("statement_seconds", 1);
        let scene = Scene::with(site, engine, |tenant| tenant.set("max_connections", 1));
        let database = Database::connect(scene.site.database_url("acme")).await;
        slow_down(&database).await;
        assert_eq!(scene.ask_within(PATIENCE).await.status, 503);
        assert_eq!(scene.acme.get("/api/v1/group").send().await.status, 200, "and its connection serves on");
    }

    /// What one caller asks for takes too long; that is no reason to refuse the others.
    async fn statements_past_their_limit_in_a_row(engine: Engine) {
        let site = Site::new().databases("statement_seconds", 1);
        let mut scene = Scene::with(site, engine, |tenant| tenant);
        let database = Database::connect(scene.site.database_url("acme")).await;
        slow_down(&database).await;
        for _ in 0..2 {
            let answers = join_all((0..3).map(|_| scene.acme.get("/api/v1/form").send())).await;
            assert!(answers.iter().all(|answer| answer.status == 503));
            assert_eq!(scene.acme.get("/api/v1/group").send().await.status, 200);
        }
        assert_eq!(scene.count("formgate_database_breaker_trips_total").await, 0);
        assert!(scene.count(r#"formgate_database_failures_total{reason="timeout"}"#).await >= 6);
    }
}

mod pooled {
    use crate::support::fixture::{Engine, Server};

    const POOLED: Engine = Engine::PostgresOn(Server::Pooled);

    #[tokio::test]
    async fn a_client_that_closes_the_connection() {
        super::a_client_that_closes_the_connection(POOLED).await;
    }

    #[tokio::test]
    async fn a_statement_past_its_limit() {
        super::a_statement_past_its_limit(POOLED).await;
    }
}
