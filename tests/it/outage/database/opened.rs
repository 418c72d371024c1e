//! How many connections are opened for what: reading, writing and the last use of a token share one.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::json;

use crate::support::acme::Acme;
use crate::support::client::operator_count;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};

/// How many connections a node has opened, to either database.
async fn opened(acme: &mut Acme) -> u64 {
    let operator = acme.node.operator_address();
    let mut opened = 0;
    for database in ["postgres", "sqlite"] {
        let metric = format!(r#"formgate_database_connections_opened_total{{database="{database}"}}"#);
        opened += operator_count(operator, &metric).await;
    }
    opened
}

/// When the only token was last used, by what is stored.
fn last_used(acme: &Acme) -> Option<Timestamp> {
    let list = acme.site.run(&["token", "list", "--json", "--tenant", "acme"], b"").stdout;
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    list[0]["last_used_at"].as_str().map(|at| at.parse().expect("an instant"))
}

/// Stores that all tokens were last used `minutes` minutes ago. Returns the instant.
async fn store_use(acme: &Acme, engine: Engine, minutes: i64) -> Timestamp {
    let at = (Timestamp::now().as_second() / 60 - minutes) * 60;
    let at = Timestamp::from_second(at).expect("an instant");
    let database = Database::connect(acme.site.database_url("acme")).await;
    let value = match engine {
        Engine::Sqlite => at.as_microsecond().to_string(),
        Engine::Postgres | Engine::PostgresOn(_) => format!("'{at}'"),
    };
    database.execute(&format!("UPDATE tokens SET last_used_at = {value}")).await;
    database.close().await;
    at
}

async fn until(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(30), "it does not come about");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn write_a_group(acme: &Acme) {
    let group = json!({"name": "Staff", "external_id": "staff", "members": [{"email": "nia@acme.example"}]});
    assert!(acme.caller().put("/api/v1/group").json(&group).send().await.status.is_success());
}

on_both_databases! {
    async fn reading_writing_and_the_last_use_of_a_token_take_one_connection(engine: Engine) {
        let mut acme = Acme::of(Site::new().tenant("acme", engine).requests_per_minute(100_000));
        assert_eq!(acme.caller().get("/api/v1/form").send().await.status, 200);
        until(|| last_used(&acme).is_some()).await;
        for _ in 0..3 {
            write_a_group(&acme).await;
            assert_eq!(acme.caller().post("/api/v1/submission").json(&json!({})).send().await.status, 200);
        }
        assert_eq!(opened(&mut acme).await, 1);
    }

    async fn a_last_use_is_written_an_hour_after_the_one_before_also_by_another_process(engine: Engine) {
        // A row of the log would take it along within seconds.
        let site = Site::new().tenant("acme", engine).requests_per_minute(100_000).gateway("request_log", false);
        let mut acme = Acme::of(site);
        let stored = store_use(&acme, engine, 30).await;
        for _ in 0..3 {
            assert_eq!(acme.caller().get("/api/v1/form").send().await.status, 200);
            write_a_group(&acme).await;
        }
        assert_eq!(last_used(&acme), Some(stored), "half an hour later it need not be written");
        acme.stop().await;
        assert!(last_used(&acme) > Some(stored), "but in a stop");

        let stored = store_use(&acme, engine, 61).await;
        acme.node = acme.site.start();
        assert_eq!(acme.caller().get("/api/v1/form").send().await.status, 200);
        until(|| last_used(&acme) > Some(stored)).await;
        assert_eq!(opened(&mut acme).await, 1);
    }
}
