//! What other programs write that is no text, and roles with few rights.

use serde_json::json;

use super::NOTHING_WRONG;
use crate::api::account::account;
use crate::api::world::World;
use crate::support::fixture::{Engine, Site};
use crate::support::postgres::Postgres;

/// A writer of another encoding, as old programs are.
#[tokio::test]
async fn a_text_that_is_not_utf_8_is_shown_and_fails_no_search_on_sqlite() {
    let account = account(Engine::Sqlite, &World::new(48, 0, 20).ndjson());
    let total = account.search("", &json!({})).await["meta"]["total"].clone();
    let database = account.database().await;
    database.execute("UPDATE answers SET value = CAST(x'7a7a4ae46e' AS TEXT) WHERE submission_id = 1").await;
    database
        .execute("UPDATE elements SET name = CAST(x'4ae4' AS TEXT); UPDATE labels SET name = CAST(x'e4' AS TEXT)")
        .await;
    assert_eq!(account.search("", &json!({})).await["meta"]["total"], total);
    let found = account.search("", &json!({"search": "zzj"})).await;
    assert_eq!(found["meta"]["total"], 1);
    assert!(found.to_string().contains("zzJ\u{fffd}n"), "{found}");
    assert_eq!(account.reindex(), NOTHING_WRONG);
}

/// A role that may only read, as some operators give it.
#[tokio::test]
async fn a_role_that_may_only_read_searches_what_was_written_and_writes_are_refused_on_postgres() {
    let server = Postgres::start();
    let url = server.new_database();
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", url.as_str())).write();
    site.migrate();
    site.import("acme", &World::new(49, 0, 20).ndjson());
    let token = site.token("acme", "tests");
    Postgres::execute_in(&url, "CREATE ROLE reader LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader");
    let reader = url.replace("postgres@", "reader@");
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", reader)).write();
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    Postgres::execute_in(&url, "UPDATE answers SET value = 'zzjoin' WHERE submission_id = 1");
    let found = client.post("/api/v1/submission").json(&json!({"search": "zzjoin"})).send().await;
    assert_eq!((found.status.as_u16(), &found.json()["meta"]["total"]), (200, &json!(1)), "{found:?}");
    let written = client.put("/api/v1/group").json(&json!({"name": "Staff"})).send().await;
    assert_eq!((written.status.as_u16(), written.number("retry-after")), (503, Some(1)), "{written:?}");
}
