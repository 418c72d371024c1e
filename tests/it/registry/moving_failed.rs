//! Moves that can't succeed: they are refused, or fail with a reason, and the account is served as before.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::Value;

use super::moving::{begin, ended, url, wait_for_target};
use super::scene::{Answer, LIMIT, Scene, me};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::postgres::Postgres;

/// Waits until a move says what it waits for.
async fn reason(scene: &Scene, begun: &Answer) -> String {
    let (target, since) = (format!("/v1/moves/{}", begun.body["move"]["id"]), Instant::now());
    loop {
        let shown = scene.call(0, Method::GET, &target, None).await.body["move"].clone();
        match &shown["reason"] {
            Value::String(reason) => return reason.clone(),
            _ => assert!(since.elapsed() < LIMIT, "{shown}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_database_that_can_not_have_the_account_is_refused() {
    let scene = Scene::new(Engine::Sqlite);
    let node = scene.start(0);
    let token = scene.add(0, "acme").await;
    let server = Postgres::shared();
    for statement in [
        "CREATE ROLE mover LOGIN",
        "CREATE DATABASE in_latin_1 TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'",
        "CREATE DATABASE of_others",
    ] {
        server.execute(statement);
    }
    Postgres::execute_in(&server.url("of_others"), "REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    let of_mover = format!("postgres://mover@127.0.0.1:{}/of_others", server.port());
    for (to, expected) in [
        (server.url("in_latin_1"), "its encoding is LATIN1"),
        (of_mover.clone(), "grant CREATE on the schema public"),
        (format!("{of_mover}?schema=acme"), "grant CREATE on the database"),
        (server.url("nowhere"), "does not exist"),
    ] {
        let refused = begin(&scene, "acme", &to).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        let reason = refused.body["errors"]["to"][0].as_str().expect("a reason");
        assert!(reason.contains(expected), "{to}: {reason}");
    }
    assert_eq!(me(&node, "acme", &token).await, 200);
    Postgres::execute_in(&server.url("of_others"), "GRANT CREATE ON SCHEMA public TO mover");
    let begun = begin(&scene, "acme", &of_mover).await;
    assert_eq!(begun.status, 202, "{begun:?}");
    ended(&scene, &begun, "done").await;
    assert_eq!(me(&node, "acme", &token).await, 200);
}

#[tokio::test]
async fn a_database_that_can_not_be_written_fails_the_move() {
    let scene = Scene::new(Engine::Sqlite);
    let node = scene.start(0);
    let token = scene.add(0, "acme").await;
    let server = Postgres::shared();
    server.execute("CREATE DATABASE only_read");
    server.execute("ALTER DATABASE only_read SET default_transaction_read_only = on");
    let begun = begin(&scene, "acme", &server.url("only_read")).await;
    assert_eq!(begun.status, 202, "{begun:?}");
    assert!(reason(&scene, &begun).await.contains("read-only"));
    let shown = ended(&scene, &begun, "failed").await;
    assert!(shown["reason"].as_str().is_some_and(|reason| reason.contains("read-only")), "{shown}");
    assert_eq!(me(&node, "acme", &token).await, 200);
    server.execute("ALTER DATABASE only_read RESET default_transaction_read_only");
    let again = begin(&scene, "acme", &server.url("only_read")).await;
    assert_eq!(again.status, 202, "{again:?}");
    ended(&scene, &again, "done").await;
    assert_eq!(me(&node, "acme", &token).await, 200);
}

on_both_databases! {
    async fn a_move_of_a_tenant_that_is_removed_fails(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        let old = Database::connect(&url(&scene, "acme")).await;
        old.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave')").await;
        old.execute("BEGIN; UPDATE forms SET name = 'Sick leave'").await;
        let new = engine.empty_database(scene.folder(), "new");
        let begun = begin(&scene, "acme", &new).await;
        assert_eq!(begun.status, 202, "{begun:?}");
        wait_for_target(&new).await;
        let reason = reason(&scene, &begun).await;
        assert!(reason.contains("lock"), "{reason}");
        let removed = scene.call(0, Method::DELETE, "/v1/tenants/acme", None).await;
        assert!(removed.status.is_success(), "{removed:?}");
        old.execute("COMMIT").await;
        let shown = ended(&scene, &begun, "failed").await;
        assert!(shown["reason"].as_str().is_some_and(|reason| reason.contains("the tenant was removed")), "{shown}");
        // Nothing of the move is left that its product would notice.
        old.execute("UPDATE forms SET name = 'Leave'").await;
        old.close().await;
        let back = scene.call(0, Method::PUT, "/v1/tenants/acme?wait=60", Some(&scene.tenant("acme"))).await;
        assert!(back.status.is_success(), "{back:?}");
    }
}
