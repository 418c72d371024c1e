//! An account goes away for good: `DELETE /v1/tenants/{slug}?erase=1` and `formgate tenant remove --erase`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use super::scene::{Answer, LIMIT, Scene, client, me, me_becomes};
use crate::support::client::{operator_get, wait_for_count};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::planting::plant_in_every_column;
use crate::support::postgres::find_client;
use crate::support::process::Node;
use crate::support::redis::Redis;

const ERASE: &str = "/v1/tenants/acme?erase=1";

/// What no file, table, key, metric or line of the log may have afterwards.
const PLANTED: [&str; 4] = ["planted", "Planted", "PLANTED", "acme.example.test"];

async fn erase(scene: &Scene, target: &str) -> Answer {
    scene.call(0, Method::DELETE, target, None).await
}

fn list<'a>(answer: &'a Answer, key: &str) -> Vec<&'a str> {
    answer.body[key].as_array().expect("a list").iter().map(|item| item.as_str().expect("a text")).collect()
}

async fn database(scene: &Scene, slug: &str) -> Database {
    Database::connect(scene.tenant(slug)["database"].as_str().unwrap()).await
}

/// How many of some tables an account's database has.
async fn tables(database: &Database, names: &str) -> i64 {
    let sql = match database {
        Database::Postgres(_) => format!("SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname IN ({names})"),
        Database::Sqlite(_) => format!("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ({names})"),
    };
    let [count] = database.integers(&sql).await;
    count
}

/// Everything that a database has: the bytes of the files, or a dump.
fn content(url: &str) -> Vec<u8> {
    if let Some(file) = url.strip_prefix("sqlite:") {
        let beside = ["", "-wal", "-shm", "-journal"].map(|end| format!("{file}{end}"));
        return beside.iter().flat_map(|file| fs::read(file).unwrap_or_default()).collect();
    }
    let dump = Command::new(find_client("pg_dump")).args(["--inserts", "--dbname", url]).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    dump.stdout
}

fn has(content: &[u8], text: &str) -> bool {
    content.windows(text.len()).any(|bytes| bytes == text.as_bytes())
}

/// Every file below a folder.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.metadata() {
            Ok(found) if found.is_dir() => files_in(&path),
            Ok(found) if found.is_file() => vec![path],
            _ => Vec::new(),
        })
        .collect()
}

/// Every key of a Redis, and what it has.
fn content_of_redis(redis: &Redis) -> Vec<u8> {
    let mut content = Vec::new();
    for key in redis.run::<Vec<String>>(&["KEYS", "*"]) {
        content.extend_from_slice(key.as_bytes());
        let kind: String = redis.run(&["TYPE", &key]);
        let values: Vec<Vec<u8>> = match kind.as_str() {
            "zset" => redis.run(&["ZRANGE", &key, "0", "-1"]),
            "hash" => redis.run(&["HGETALL", &key]),
            "list" => redis.run(&["LRANGE", &key, "0", "-1"]),
            "string" => vec![redis.run(&["GET", &key])],
            // It expired just now.
            "none" => Vec::new(),
            other => panic!("{key} is a {other}"),
        };
        content.extend(values.concat());
    }
    content
}

fn assert_nothing_planted(what: &str, content: &[u8]) {
    for planted in PLANTED {
        assert!(!has(content, planted), "{what} has {planted}");
    }
}

/// Adds the account with texts that are looked for later, on two nodes. Returns a token.
async fn plant(scene: &Scene, nodes: [&Node; 2]) -> String {
    let mut tenant = scene.tenant("acme");
    tenant["name"] = json!("Planted Name");
    tenant["domains"] = json!(["planted.acme.test"]);
    let target = "/v1/tenants/acme?migrate=1&wait=60&token=Planted+token";
    let added = scene.call(0, Method::PUT, target, Some(&tenant)).await;
    assert_eq!(added.status, 201, "{added:?}");
    let token = added.body["token"]["token"].as_str().unwrap().to_owned();
    let user = json!({ "type": "user", "id": 7, "email": "planted@example.com", "name": "PLANTED" });
    let imported = scene.send(0, Method::POST, "/v1/tenants/acme/import", format!("{user}\n"), &[]).await.unwrap();
    assert_eq!(imported.status, 200, "{imported:?}");
    // A certificate that was obtained, which every node takes over.
    let registry = Database::connect(&scene.registry_url).await;
    let (since, until) = (registry.in_hours(-1), registry.in_hours(1));
    registry
        .execute(&format!(
            "UPDATE registry_head SET revision = revision + 1; \
             INSERT INTO registry_certificates (host, slug, revision, chain, key, authority, not_before, not_after) \
             SELECT 'planted.acme.test', 'acme', revision, 'PLANTED CHAIN', 'PLANTED KEY', 'ca', {since}, {until} FROM registry_head"
        ))
        .await;
    registry.close().await;
    for node in nodes {
        assert_eq!(me(node, "acme", &token).await, 200);
    }
    for node in 0..2 {
        let snapshot = format!("sqlite:{}", scene.snapshot(node).display());
        let began = std::time::Instant::now();
        loop {
            let database = Database::connect(&snapshot).await;
            let [certificates] = database.integers("SELECT count(*) FROM registry_certificates").await;
            database.close().await;
            if certificates == 1 {
                break;
            }
            assert!(began.elapsed() < LIMIT, "the snapshot has the certificate");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    token
}

/// Stops a node that has not the write lock of the registry's file.
async fn stop_without_lock(scene: &Scene, node: &mut Node) {
    loop {
        node.signal("STOP");
        let unchanged = scene.call(0, Method::PUT, "/v1/tenants/acme", Some(&scene.tenant("acme"))).await;
        if unchanged.status != 503 {
            return;
        }
        node.signal("CONT");
    }
}

on_both_databases! {
    async fn nothing_of_an_erased_account_is_left_anywhere(engine: Engine) {
        let redis = Redis::start();
        let scene = Scene::new(engine).gateway("redis", redis.url());
        let mut nodes = [scene.start(0), scene.start(1)];
        let token = plant(&scene, [&nodes[0], &nodes[1]]).await;
        let neighbor = scene.add(0, "globex").await;
        assert!(!redis.run::<Vec<String>>(&["KEYS", "*{acme}*"]).is_empty());
        let url = scene.tenant("acme")["database"].as_str().unwrap().to_owned();
        let own = database(&scene, "acme").await;
        let mut planted = plant_in_every_column(&own).await;
        own.close().await;
        // What nodes write with a delay is written when they close the database.
        let agent = [("user-agent", "planted agent"), ("x-request-id", "planted-request")];
        for node in &nodes {
            let request = client(node, "acme", &token).get("/api/v1/form");
            let answer = agent.iter().fold(request, |request, (name, value)| request.header(name, value)).send().await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        let before = content(&url);
        planted.retain(|text| !has(&before, text));
        assert_eq!(planted, Vec::<String>::new(), "these are in the database, so the search is able to find them");
        let file = url.strip_prefix("sqlite:").map(PathBuf::from);
        let logged = nodes.each_mut().map(|node| node.log().len());

        let erased = erase(&scene, &format!("{ERASE}&wait=60")).await;
        assert_eq!(erased.status, 200, "{erased:?}");
        let (gone, kept) = (list(&erased, "erased").join("\n"), list(&erased, "kept").join("\n"));
        for text in ["certificate of planted.acme.test", "keys in Redis", "rows of the tenant in the registry"] {
            assert!(gone.contains(text), "{gone}");
        }
        assert!(kept.contains("backups") && kept.contains("logged before") && !kept.contains("did not confirm"), "{kept}");
        match &file {
            Some(file) => {
                assert!(gone.contains(&file.display().to_string()), "{gone}");
                for end in ["", "-wal", "-shm", "-journal"] {
                    assert!(!PathBuf::from(format!("{}{end}", file.display())).exists(), "{end}");
                }
            }
            None => {
                let database = database(&scene, "acme").await;
                let left = "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'S', 'v')), \
                            (SELECT count(*) FROM pg_proc WHERE proname LIKE 'formgate%')";
                assert_eq!(database.integers(left).await, [0, 0]);
                database.close().await;
                assert_nothing_planted("the database", &content(&url));
            }
        }
        assert_eq!(erase(&scene, ERASE).await.status, 404);

        let files = files_in(scene.folder());
        assert!(files.len() > 4, "{files:?}");
        for file in files {
            assert_nothing_planted(&file.display().to_string(), &fs::read(&file).unwrap_or_default());
        }
        assert_nothing_planted("the registry", &content(&scene.registry_url));
        for node in 0..2 {
            assert!(scene.snapshot(node).exists());
        }
        assert_eq!(me(&nodes[0], "globex", &neighbor).await, 200);
        let in_redis = content_of_redis(&redis);
        assert!(has(&in_redis, "globex") && !has(&in_redis, "acme"), "{}", String::from_utf8_lossy(&in_redis));
        assert_nothing_planted("Redis", &in_redis);
        for (node, logged) in nodes.iter_mut().zip(logged) {
            assert_eq!(me(node, "acme", &token).await, 404);
            assert_eq!(me(node, "globex", &neighbor).await, 200);
            let metrics = operator_get(node.operator_address(), "/metrics").await;
            let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
            assert!(!metrics.contains("acme"), "{metrics}");
            let log = node.log();
            assert_nothing_planted("the log", &log.as_bytes()[logged..]);
        }
        let changes = scene.call(0, Method::GET, "/v1/changes", None).await;
        let types: Vec<_> = changes.body["data"].as_array().unwrap().iter().map(|change| [&change["slug"], &change["type"]]).collect();
        assert!(types.contains(&[&json!("acme"), &json!("removed")]), "{types:?}");
        // The slug is free, and whoever gets it has nothing of the account before.
        let again = scene.add(0, "acme").await;
        assert_eq!(me(&nodes[0], "acme", &again).await, 200);
    }

    async fn nothing_is_erased_while_a_live_node_may_serve_the_account(engine: Engine) {
        let scene = Scene::new(engine);
        let first = scene.start(0);
        let mut second = scene.start(1);
        let token = scene.add(0, "acme").await;
        stop_without_lock(&scene, &mut second).await;
        let waiting = erase(&scene, &format!("{ERASE}&wait=1")).await;
        assert_eq!(waiting.status, 202, "{waiting:?}");
        let named = waiting.body["waiting_for"].as_array().unwrap();
        // The first one may need more than a second on a loaded machine.
        let is_second = |node: &Value| node["name"].as_str().unwrap().contains(&second.id().to_string());
        assert!(named.iter().any(is_second), "{waiting:?}");
        assert_eq!((list(&waiting, "erased").len(), list(&waiting, "kept").len()), (0, 1));
        assert_eq!(me(&first, "acme", &token).await, 404);
        let tables_of = database(&scene, "acme").await;
        assert_eq!(tables(&tables_of, "'users', 'tokens'").await, 2, "they are still there");
        tables_of.close().await;
        // Neither the slug nor the database is given to anybody.
        let put = scene.call(0, Method::PUT, "/v1/tenants/acme", Some(&scene.tenant("acme"))).await;
        assert_eq!((put.status.as_u16(), put.body["errors"]["slug"].is_array()), (409, true), "{put:?}");
        let mut other = scene.tenant("other");
        other["database"] = scene.tenant("acme")["database"].clone();
        let put = scene.call(0, Method::PUT, "/v1/tenants/other", Some(&other)).await;
        assert_eq!((put.status.as_u16(), put.body["errors"]["database"].is_array()), (409, true), "{put:?}");
        second.signal("CONT");
        let erased = erase(&scene, &format!("{ERASE}&wait=60")).await;
        assert_eq!(erased.status, 200, "{erased:?}");
        assert_eq!(erase(&scene, ERASE).await.status, 404);
    }

    async fn an_erasure_that_a_crash_ended_is_repeated(engine: Engine) {
        let scene = Scene::new(engine);
        let mut first = scene.start(0);
        let mut second = scene.start(1);
        let token = scene.add(0, "acme").await;
        stop_without_lock(&scene, &mut second).await;
        {
            let target = format!("{ERASE}&wait=60");
            let begun = erase(&scene, &target);
            let removed = me_becomes(&first, "acme", &token, 404);
            tokio::select! {
                answer = begun => panic!("{answer:?}"),
                () = removed => {}
            }
        }
        first.kill();
        second.signal("CONT");
        let _first = scene.start(0);
        let erased = erase(&scene, &format!("{ERASE}&wait=60")).await;
        assert_eq!(erased.status, 200, "{erased:?}");
        assert_eq!(erase(&scene, ERASE).await.status, 404);
        assert_nothing_planted("the registry", &content(&scene.registry_url));
        if engine == Engine::Postgres {
            let left = database(&scene, "acme").await;
            assert_eq!(tables(&left, "'users', 'tokens'").await, 0);
            left.close().await;
        }
    }

    async fn tables_of_others_stay_and_a_view_refuses_the_erasure(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let theirs = database(&scene, "acme").await;
        theirs.execute("CREATE TABLE theirs (content text); INSERT INTO theirs VALUES ('kept'); CREATE VIEW report AS SELECT id FROM users").await;
        theirs.close().await;
        let refused = erase(&scene, ERASE).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.body["errors"]["database"][0].as_str().unwrap().contains("view report"), "{refused:?}");
        assert_eq!(me(&node, "acme", &token).await, 200, "nothing changed");
        let theirs = database(&scene, "acme").await;
        theirs.execute("DROP VIEW report; CREATE TABLE mine (owner bigint REFERENCES forms (id))").await;
        let refused = erase(&scene, ERASE).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        theirs.execute("DROP TABLE mine").await;
        theirs.close().await;
        let erased = erase(&scene, &format!("{ERASE}&wait=60")).await;
        assert_eq!(erased.status, 200, "{erased:?}");
        let left = database(&scene, "acme").await;
        assert_eq!(left.texts("SELECT content FROM theirs").await, ["kept"]);
        assert_eq!(tables(&left, "'users', 'tokens', 'audit_log', '_sqlx_migrations', 'listed_trigrams'").await, 0);
        left.close().await;
    }

    async fn a_request_in_flight_is_waited_for(engine: Engine) {
        let scene = Scene::new(engine);
        let mut node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let client = client(&node, "acme", &token);
        let feed = client.get("/api/v1/submission/changes").try_send().await.expect("an answer");
        let next = feed.json()["meta"]["cursor"].as_str().expect("a cursor").to_owned();
        let waiting = tokio::spawn(async move { client.get(&format!("/api/v1/submission/changes?cursor={next}&wait=15")).try_send().await });
        wait_for_count(node.operator_address(), "formgate_requests_in_flight", 1).await;
        let early = erase(&scene, &format!("{ERASE}&wait=2")).await;
        assert_eq!(early.status, 202, "{early:?}");
        assert!(early.body["waiting_for"][0]["reason"].as_str().unwrap().contains("still use the database"), "{early:?}");
        let erased = erase(&scene, &format!("{ERASE}&wait=60")).await;
        assert_eq!(erased.status, 200, "{erased:?}");
        let answered = waiting.await.unwrap().expect("an answer");
        assert_eq!(answered.status, 200, "the request ended as if nothing had happened");
    }

    async fn an_account_that_moves_is_erased_afterwards_and_its_moves_are_forgotten(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let registry = Database::connect(&scene.registry_url).await;
        let now = registry.in_hours(0);
        // On a host that has no node, so that it goes on.
        registry.execute(&format!(
            "INSERT INTO registry_moves
               (slug, state, is_open, source, target, old_database, database, place, identity, host, asked_by, created_at)
             VALUES ('acme', 'copying', TRUE, 'postgres://planted/old', '', '', '', '', '', 'elsewhere', '', {now}),
               ('acme', 'cancelled', FALSE, '', 'postgres://planted/copy', '', '', '', '', 'elsewhere', '', {now})"
        )).await;
        let own = database(&scene, "acme").await;
        let digest = if engine == Engine::Sqlite { "X'00'" } else { "'\\x00'" };
        own.execute(&format!(
            "INSERT INTO audit_log (id, at, actor, source, action, subject, details, digest)
             VALUES (77, {now}, 'root', 'command', 'tenant.restored', 'tenant acme', '{{\"database\": \"postgres://planted/restored\"}}', {digest})"
        )).await;
        own.close().await;
        let refused = erase(&scene, ERASE).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.body["message"].as_str().unwrap().contains("is being moved"), "{refused:?}");
        assert_eq!(me(&node, "acme", &token).await, 200, "nothing changed");
        registry.execute("UPDATE registry_moves SET state = 'done', is_open = FALSE WHERE state = 'copying'").await;
        let erased = erase(&scene, &format!("{ERASE}&wait=60")).await;
        assert_eq!(erased.status, 200, "{erased:?}");
        for place in ["old", "copy", "restored"] {
            let place = format!("the database postgres://planted/{place}");
            assert!(list(&erased, "kept").iter().any(|kept| kept.contains(&place)), "{place}: {erased:?}");
        }
        assert_eq!(registry.integers("SELECT count(*) FROM registry_moves").await, [0]);
        registry.close().await;
    }

    async fn a_tenant_of_a_file_is_not_erased(engine: Engine) {
        let mut scene = Scene::new(engine);
        let text = scene.text("acme");
        scene.write_files(&text, 1);
        scene.succeed(&["migrate", "--tenant", "acme"]);
        let _node = scene.start(0);
        let refused = erase(&scene, ERASE).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.contains("0.toml:"), "with file and line: {message}");
        let command = scene.run(&["tenant", "remove", "acme", "--erase"]);
        assert!(command.code == 1 && command.stderr.contains("0.toml:"), "{}", command.stderr);
    }

    async fn the_command_prints_the_receipt(engine: Engine) {
        let scene = Scene::new(engine);
        let node = scene.start(0);
        let token = scene.add(0, "acme").await;
        let receipt: Value = serde_json::from_str(&scene.succeed(&["tenant", "remove", "acme", "--erase", "--wait", "60"])).unwrap();
        assert!(receipt["erased"].as_array().is_some_and(|erased| erased.len() > 2), "{receipt}");
        assert!(receipt["kept"].to_string().contains("list of changes"), "{receipt}");
        assert_eq!(me(&node, "acme", &token).await, 404);
        let again = scene.run(&["tenant", "remove", "acme", "--erase"]);
        assert!(again.code == 1 && again.stderr.contains("no tenant `acme`"), "{}", again.stderr);
    }
}

#[tokio::test]
async fn what_a_reader_keeps_in_a_file_with_tables_of_others_is_said() {
    let scene = Scene::new(Engine::Sqlite);
    let _node = scene.start(0);
    scene.add(0, "acme").await;
    let theirs = database(&scene, "acme").await;
    theirs.execute("CREATE TABLE theirs (content text); INSERT INTO theirs VALUES ('kept'); BEGIN").await;
    // As Litestream does all the time.
    assert_eq!(theirs.texts("SELECT content FROM theirs").await, ["kept"]);
    let erased = erase(&scene, &format!("{ERASE}&wait=60")).await;
    assert_eq!(erased.status, 200, "{erased:?}");
    let kept = list(&erased, "kept").join("\n");
    assert!(kept.contains("write-ahead log") && kept.contains("PRAGMA wal_checkpoint(TRUNCATE)"), "{kept}");
    theirs.execute("COMMIT").await;
    theirs.close().await;
    let left = database(&scene, "acme").await;
    assert_eq!(tables(&left, "'users', 'tokens', 'audit_log'").await, 0);
    left.close().await;
}

#[tokio::test]
async fn a_schema_that_formgate_created_is_dropped_and_its_neighbor_is_served() {
    let scene = Scene::new(Engine::Postgres);
    let node = scene.start(0);
    let shared = scene.tenant("shared")["database"].as_str().unwrap().to_owned();
    let separator = if shared.contains('?') { '&' } else { '?' };
    let own = Database::connect(&shared).await;
    own.execute("CREATE SCHEMA theirs").await;
    let mut tokens = Vec::new();
    for slug in ["one", "two", "theirs"] {
        let mut tenant = scene.tenant("shared");
        tenant["address"] = json!(format!("{slug}.example.test"));
        tenant["database"] = json!(format!("{shared}{separator}schema={slug}"));
        let target = format!("/v1/tenants/{slug}?migrate=1&wait=60&token=tests");
        let added = scene.call(0, Method::PUT, &target, Some(&tenant)).await;
        assert_eq!(added.status, 201, "{added:?}");
        tokens.push(added.body["token"]["token"].as_str().unwrap().to_owned());
    }
    for slug in ["one", "theirs"] {
        let erased = scene.call(0, Method::DELETE, &format!("/v1/tenants/{slug}?erase=1&wait=60"), None).await;
        assert_eq!(erased.status, 200, "{erased:?}");
    }
    let left = "SELECT nspname::text FROM pg_namespace WHERE nspname IN ('one', 'two', 'theirs') ORDER BY nspname";
    assert_eq!(own.texts(left).await, ["theirs", "two"], "formgate did not create that of others");
    let [tables] = own.integers("SELECT count(*) FROM pg_class WHERE relnamespace = 'theirs'::regnamespace").await;
    assert_eq!(tables, 0);
    own.close().await;
    assert_eq!(me(&node, "two", &tokens[1]).await, 200);
}
