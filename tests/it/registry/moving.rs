//! Which moves of accounts to other databases are begun, how they are cancelled, and what stays behind.

use std::path::Path;
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};

use super::scene::{Answer, LIMIT, Scene, me};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};

pub(super) async fn begin(scene: &Scene, slug: &str, to: &str) -> Answer {
    let target = format!("/v1/tenants/{slug}/move");
    scene.call(0, Method::POST, &target, Some(&json!({ "to": to }))).await
}

/// Waits until a move has ended, and nothing is left to do for it.
pub(super) async fn ended(scene: &Scene, begun: &Answer, state: &str) -> Value {
    let (target, since) = (format!("/v1/moves/{}", begun.body["move"]["id"]), Instant::now());
    let registry = Database::connect(&scene.registry_url).await;
    loop {
        let shown = scene.call(0, Method::GET, &target, None).await.body["move"].clone();
        let [open] = registry.integers("SELECT count(*) FROM registry_moves WHERE is_open").await;
        if shown["state"] == state && open == 0 {
            registry.close().await;
            return shown;
        }
        assert!(since.elapsed() < LIMIT, "{shown}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Why the database of a tenant can't be replaced by another one with a call.
async fn point_to(scene: &Scene, slug: &str, database: &str, query: &str) -> String {
    let mut tenant = scene.tenant(slug);
    tenant["database"] = json!(database);
    let refused = scene.call(0, Method::PUT, &format!("/v1/tenants/{slug}{query}"), Some(&tenant)).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    refused.body["errors"]["database"][0].as_str().expect("a reason").to_owned()
}

/// Waits until a move has prepared its target.
pub(super) async fn wait_for_target(new: &str) {
    let since = Instant::now();
    loop {
        if new.strip_prefix("sqlite:").is_none_or(|file| Path::new(file).exists()) {
            let database = Database::connect(new).await;
            let is_prepared = database.try_execute("SELECT id FROM formgate_move").await.is_ok();
            database.close().await;
            if is_prepared {
                return;
            }
        }
        assert!(since.elapsed() < LIMIT, "the move is not begun");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(super) fn url(scene: &Scene, slug: &str) -> String {
    scene.tenant(slug)["database"].as_str().expect("a URL").to_owned()
}

on_both_databases! {
    async fn an_account_moves_there_and_back(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let (old, new) = (url(&scene, "acme"), engine.empty_database(scene.folder(), "new"));
        let begun = begin(&scene, "acme", &new).await;
        assert_eq!(begun.status, 202, "{begun:?}");
        let shown = &begun.body["move"];
        assert!(shown["slug"] == "acme" && shown["reason"].is_null() && shown["held_ms"].is_null(), "{shown}");
        let text = begun.body.to_string();
        assert!(!text.contains(":secret@"), "{text}");
        ended(&scene, &begun, "done").await;
        assert_eq!(me(&node, "acme", &token).await, 200);
        let row = scene.call(0, Method::GET, "/v1/tenants/acme", None).await;
        assert_eq!(row.body["data"]["tenant"]["database"], new);
        let database = Database::connect(&old).await;
        let refused = database.try_execute("INSERT INTO users (email) VALUES ('a@b.example')").await.unwrap_err();
        assert!(refused.to_string().contains("formgate moved this account: write to "), "{refused}");
        database.close().await;
        let late = scene.call(0, Method::DELETE, &format!("/v1/moves/{}", shown["id"]), None).await;
        assert_eq!(late.status, 409, "{late:?}");
        for query in ["", "?token=another"] {
            let refused = point_to(&scene, "acme", &old, query).await;
            assert!(refused.contains("an account has left this database"), "{refused}");
        }
        assert_eq!(me(&node, "acme", &token).await, 200);
        let back = begin(&scene, "acme", &old).await;
        assert_eq!(back.status, 202, "what the move left: {back:?}");
        ended(&scene, &back, "done").await;
        assert_eq!(me(&node, "acme", &token).await, 200);
        let [database, left] = [Database::connect(&old).await, Database::connect(&new).await];
        database.execute("INSERT INTO users (email) VALUES ('a@b.example')").await;
        assert!(left.try_execute("INSERT INTO users (email) VALUES ('a@b.example')").await.is_err());
        let listed = scene.call(0, Method::GET, "/v1/moves", None).await;
        assert_eq!(listed.body["moves"].as_array().map(Vec::len), Some(2), "{listed:?}");
    }

    async fn a_database_that_is_not_empty_is_no_target(engine: Engine) {
        let scene = Scene::new(engine);
        let _node = scene.start(0);
        scene.add(0, "acme").await;
        let other = engine.database(scene.folder(), "other");
        let database = Database::connect(&other).await;
        database.execute("INSERT INTO users (email) VALUES ('a@b.example')").await;
        database.close().await;
        let refused = begin(&scene, "acme", &other).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        assert!(refused.body["errors"]["to"][0].as_str().unwrap().contains("not empty"), "{refused:?}");
        let strange = engine.empty_database(scene.folder(), "strange");
        if engine == Engine::Sqlite {
            std::fs::File::create(strange.trim_start_matches("sqlite:")).expect("a file");
        }
        let database = Database::connect(&strange).await;
        database.execute("CREATE TABLE notes (text text)").await;
        let refused = begin(&scene, "acme", &strange).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        database.execute("DROP TABLE notes").await;
        database.close().await;
        let nowhere = format!("sqlite:{}/nowhere/x.db", std::env::temp_dir().display());
        let refused = begin(&scene, "acme", &nowhere).await;
        assert_eq!(refused.status, 422, "{refused:?}");
        assert!(refused.body["errors"]["to"][0].as_str().unwrap().contains("does not exist"), "{refused:?}");
        scene.add(0, "globex").await;
        let taken = begin(&scene, "acme", &url(&scene, "globex")).await;
        assert_eq!(taken.status, 409, "{taken:?}");
        let same = begin(&scene, "acme", &url(&scene, "acme")).await;
        assert_eq!(same.status, 422, "{same:?}");
        for to in ["", "mysql://x", "sqlite:"] {
            let faulty = begin(&scene, "acme", to).await;
            assert_eq!(faulty.status, 422, "{to}: {faulty:?}");
            assert!(faulty.body["errors"]["to"].is_array(), "{faulty:?}");
        }
        assert_eq!(begin(&scene, "nobody", "sqlite:x.db").await.status, 404);
        for call in ["/v1/moves/77", "/v1/moves/x"] {
            assert_eq!(scene.call(0, Method::GET, call, None).await.status, 404);
            assert_eq!(scene.call(0, Method::DELETE, call, None).await.status, 404);
        }
    }

    async fn a_cancelled_move_leaves_the_account_where_it_is(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let old = url(&scene, "acme");
        // A writer keeps the move from ending.
        let database = Database::connect(&old).await;
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave')").await;
        database.execute("BEGIN; UPDATE forms SET name = 'Sick leave'").await;
        let new = engine.empty_database(scene.folder(), "new");
        let begun = begin(&scene, "acme", &new).await;
        assert_eq!(begun.status, 202, "{begun:?}");
        let again = begin(&scene, "acme", &engine.empty_database(scene.folder(), "newer")).await;
        assert_eq!(again.status, 409, "{again:?}");
        wait_for_target(&new).await;
        let target = format!("/v1/moves/{}", begun.body["move"]["id"]);
        for _ in 0..2 {
            let cancelled = scene.call(0, Method::DELETE, &target, None).await;
            assert_eq!(cancelled.status, 200, "{cancelled:?}");
            assert_eq!(cancelled.body["move"]["state"], "cancelled");
        }
        database.execute("COMMIT").await;
        ended(&scene, &begun, "cancelled").await;
        database.execute("UPDATE forms SET name = 'Leave'").await;
        let kept = match engine {
            Engine::Sqlite => "SELECT count(*) FROM sqlite_master WHERE name LIKE 'formgate_move%'",
            _ => "SELECT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'formgate_move%')
                   + (SELECT count(*) FROM pg_class WHERE relname LIKE 'formgate_move%' AND relkind = 'r')",
        };
        assert_eq!(database.integers(kept).await, [0]);
        let refused = point_to(&scene, "acme", &new, "").await;
        assert!(refused.contains("the unfinished copy of a move"), "{refused}");
        assert_eq!(me(&node, "acme", &token).await, 200);
        let again = begin(&scene, "acme", &new).await;
        assert_eq!(again.status, 202, "{again:?}");
        ended(&scene, &again, "done").await;
        assert_eq!(me(&node, "acme", &token).await, 200);
    }

    async fn the_command_begins_a_move_and_waits(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let [old, new] = [url(&scene, "acme"), engine.empty_database(scene.folder(), "new")];
        // The second one begins before what the first one needed is removed.
        for to in [&new, &old] {
            let moved = scene.succeed(&["tenant", "move", "acme", "--to", to, "--wait", "60", "--json"]);
            let moved: Value = serde_json::from_str(&moved).expect("JSON");
            assert_eq!(moved["move"]["state"], "done", "{moved}");
        }
        assert_eq!(me(&node, "acme", &token).await, 200);
        let listed = scene.succeed(&["tenant", "moves", "--json"]);
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        assert_eq!(listed[0]["state"], "done", "{listed}");
        assert!(scene.succeed(&["tenant", "moves"]).contains("acme"));
        let refused = scene.run(&["tenant", "move", "nobody", "--to", &new]);
        assert!(refused.code == 1 && refused.stderr.contains("no tenant `nobody`"), "{refused:?}");
    }
}

#[tokio::test]
async fn an_account_of_several_nodes_does_not_move_to_a_file() {
    let scene = Scene::new(Engine::Postgres);
    let _nodes = [scene.start(0), scene.start(1)];
    scene.add(0, "acme").await;
    let refused = begin(&scene, "acme", &Engine::Sqlite.empty_database(scene.folder(), "new")).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.body["errors"]["to"][0].as_str().unwrap().contains("other live nodes"), "{refused:?}");
}

#[tokio::test]
async fn a_tenant_of_a_file_is_adopted_first() {
    let mut scene = Scene::new(Engine::Sqlite);
    let text = scene.text("acme");
    scene.write_files(&text, 1);
    crate::support::fixture::migrate(&url(&scene, "acme"));
    let _node = scene.start(0);
    let refused = begin(&scene, "acme", "sqlite:new.db").await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.body["message"].as_str().unwrap().contains("formgate tenant adopt"), "{refused:?}");
}
