//! A first load, which on Postgres makes the documents at its end, all of them at once, and checks the foreign keys so
//! where it is alone.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::world::{World, ZONE};
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site};

/// How many keyword indexes there are, which, and how they are defined.
const INDEXES: &str = "SELECT count(*), sum(indexrelid::bigint)::bigint, sum(hashtext(pg_get_indexdef(indexrelid))) \
    FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam \
    WHERE indrelid = 'listed_documents'::regclass AND amname = 'gin'";

/// How many foreign keys there are that were checked, which, and how they are defined.
const KEYS: &str = "SELECT count(*) FILTER (WHERE convalidated), sum(oid::bigint)::bigint, \
    sum(hashtext(concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid)))) \
    FROM pg_constraint WHERE contype = 'f' AND connamespace = 'public'::regnamespace";

fn site() -> Site {
    Site::new()
        .tenant_with("acme", Engine::Postgres, |tenant| tenant.set("timezone", ZONE))
        .tenant("globex", Engine::Postgres)
        .requests_per_minute(100_000)
        .write()
}

/// Searches find what a world holds, and nothing that is kept for them differs from it.
async fn assert_found(site: &Site, world: &mut World) {
    let token = site.token("acme", "tests");
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    let mut filters = vec![json!({}), json!({"search": "an"}), json!({"search": "ing"})];
    filters.extend((0..40).map(|_| world.filter()));
    world.assert_found(&client, filters).await;
    let mended = site.run(&["reindex", "--tenant", "acme"], b"");
    assert_eq!(mended.stdout, "mended 0 users, 0 submissions, 0 documents, 0 labels, 0 counts\n");
}

/// Asks once, and waits until nobody is connected to the account's database any more.
async fn glance<const N: usize>(site: &Site, query: &str) -> [i64; N] {
    let url = site.database_url("acme");
    let database = Database::connect(url).await;
    let seen = database.integers(query).await;
    database.close().await;
    let neighbour = Database::connect(site.database_url("globex")).await;
    let (_, name) = url.rsplit_once('/').expect("a URL names its database");
    let others = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}' AND usesysid IS NOT NULL");
    for _ in 0..1000 {
        if neighbour.integers(&others).await == [0] {
            return seen;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("somebody stays connected to {name}");
}

/// They would say that tables are small, long after the account has grown.
#[tokio::test]
async fn a_load_leaves_no_statistics_in_a_sqlite_file() {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("timezone", ZONE)).write();
    site.import("acme", &World::new(36, 0, 60).ndjson());
    let database = Database::connect(site.database_url("acme")).await;
    let counts = "SELECT (SELECT count(*) FROM listed_submissions) > 0, \
        (SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_stat1')";
    assert_eq!(database.integers(counts).await, [1, 0]);
    database.close().await;
}

#[tokio::test]
async fn a_first_load_without_other_sessions_checks_the_foreign_keys_at_its_end() {
    let site = site();
    let [number, before, definitions] = glance(&site, KEYS).await;
    assert!(number > 15, "{number} foreign keys");
    let mut world = World::new(34, 0, 150);
    let ndjson = world.ndjson();
    let lines: Vec<String> = ndjson.lines().map(str::to_owned).collect();

    let faulty = format!("{ndjson}{}\n", json!({"type": "flow_step", "id": 1, "form_id": 999_999, "name": "None"}));
    let refused = site.run(&["import", "--tenant", "acme", "-"], faulty.as_bytes());
    assert_ne!(refused.code, 0, "{}", refused.stdout);
    assert_eq!(glance(&site, KEYS).await, [number, before, definitions], "what is not kept changes nothing");

    let (first, later) = lines.split_at(lines.len() - 50);
    // What refers to the built-in group follows its id, which is another one at the end.
    let moved = [
        json!({"type": "form", "id": 777_777, "name": "Moved"}),
        json!({"type": "flow_step", "id": 777_777, "form_id": 777_777, "name": "All", "groups": [9_007_199_254_740_991_i64]}),
        json!({"type": "group", "id": 777_777, "name": "All Users"}),
    ];
    let moved: String = moved.iter().map(|line| format!("{line}\n")).collect();
    site.import("acme", &(moved + &each_after_another_version(first)));
    let groups = "SELECT group_id FROM flow_step_groups WHERE flow_step_id = 777777";
    assert_eq!(glance(&site, groups).await, [777_777]);
    let [still, made, same] = glance(&site, KEYS).await;
    assert_eq!((still, same), (number, definitions));
    assert_ne!(made, before, "the foreign keys are new ones");
    site.import("acme", &each_after_another_version(later));
    assert_eq!(glance(&site, KEYS).await, [number, made, definitions], "a later load leaves them");
    assert_found(&site, &mut world).await;
}

#[tokio::test]
async fn a_first_load_next_to_another_session_keeps_the_foreign_keys() {
    let site = site();
    let [number, before, definitions] = glance(&site, KEYS).await;
    let mut world = World::new(35, 0, 60);
    let other = Database::connect(site.database_url("acme")).await;
    let [none] = other.integers("SELECT count(*) FROM submissions").await;
    site.import("acme", &world.ndjson());
    let keys: [i64; 3] = other.integers(KEYS).await;
    assert_eq!((none, keys), (0, [number, before, definitions]));
    other.close().await;
    assert_found(&site, &mut world).await;
}

#[tokio::test]
async fn a_first_load_builds_the_keyword_indexes_from_all_documents() {
    let site = site();
    let database = Database::connect(site.database_url("acme")).await;
    let [number, before, definitions] = database.integers(INDEXES).await;
    assert_eq!(number, 2);

    let mut world = World::new(31, 0, 150);
    let lines: Vec<String> = world.ndjson().lines().map(str::to_owned).collect();
    let (first, later) = lines.split_at(lines.len() - 50);
    site.import("acme", &each_after_another_version(first));
    let [number, built, same] = database.integers(INDEXES).await;
    assert_eq!((number, same), (2, definitions));
    assert_ne!(built, before, "the indexes are new ones");

    site.import("acme", &each_after_another_version(later));
    assert_eq!(database.integers(INDEXES).await, [2, built, definitions], "a later load leaves the indexes");
    assert_found(&site, &mut world).await;
}

/// The lines, of which each submission's comes after one that gives it other answers.
fn each_after_another_version(lines: &[String]) -> String {
    let mut text = String::new();
    for line in lines {
        let mut other: Value = serde_json::from_str(line).expect("a line is JSON");
        if other["type"] == "submission" {
            for answer in other["answers"].as_array_mut().expect("a submission has answers") {
                answer["value"] = json!("another\nversion");
            }
            writeln!(text, "{other}").expect("memory takes it");
        }
        writeln!(text, "{line}").expect("memory takes it");
    }
    text
}

#[tokio::test]
async fn a_first_load_keeps_the_indexes_while_another_session_locks_the_documents() {
    let site = site();
    let database = Database::connect(site.database_url("acme")).await;
    let before: [i64; 3] = database.integers(INDEXES).await;
    let mut world = World::new(32, 0, 60);

    let reader = Database::connect(site.database_url("acme")).await;
    reader.execute("BEGIN").await;
    let [none] = reader.integers("SELECT count(*) FROM listed_documents").await;
    site.import("acme", &world.ndjson());
    assert_eq!(database.integers(INDEXES).await, before);
    reader.execute("COMMIT").await;
    assert_eq!(none, 0);
    assert_found(&site, &mut world).await;
}

#[tokio::test]
async fn a_first_load_leaves_the_indexes_to_their_owner() {
    let site = site();
    let database = Database::connect(site.database_url("acme")).await;
    let before: [i64; 3] = database.integers(INDEXES).await;
    database
        .execute(
            "CREATE ROLE loader; GRANT USAGE ON SCHEMA public TO loader; GRANT ALL ON ALL TABLES IN SCHEMA public TO loader; \
             GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO loader; \
             DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET role = loader', current_database()); END $$",
        )
        .await;
    database.close().await;
    let keys: [i64; 3] = glance(&site, KEYS).await;
    let mut world = World::new(33, 0, 60);
    site.import("acme", &world.ndjson());
    assert_eq!(glance(&site, KEYS).await, keys);
    let database = Database::connect(site.database_url("acme")).await;
    assert_eq!(database.integers(INDEXES).await, before);
    let own = "SET role = none; DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET role', current_database()); END $$";
    database.execute(own).await;
    assert_found(&site, &mut world).await;
}
