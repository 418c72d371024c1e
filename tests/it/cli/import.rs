//! A first load, which on Postgres makes the documents at its end, all of them at once.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::api::world::{World, ZONE};
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site};

/// How many keyword indexes there are, which, and how they are defined.
const INDEXES: &str = "SELECT count(*), sum(indexrelid::bigint)::bigint, sum(hashtext(pg_get_indexdef(indexrelid))) \
    FROM pg_index JOIN pg_class ON oid = indexrelid \
    WHERE indrelid = 'submission_documents'::regclass AND NOT indisprimary";

fn site() -> Site {
    let site = Site::new()
        .tenant_with("acme", Engine::Postgres, |tenant| tenant.set("timezone", ZONE))
        .requests_per_minute(100_000)
        .write();
    site.migrate();
    site
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
    assert_eq!(mended.stdout, "mended 0 users, 0 answers, 0 documents, 0 counts\n");
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
async fn a_first_load_leaves_the_indexes_to_who_does_not_let_go_of_the_documents() {
    let site = site();
    let database = Database::connect(site.database_url("acme")).await;
    let before: [i64; 3] = database.integers(INDEXES).await;
    let mut world = World::new(32, 0, 60);

    let reader = Database::connect(site.database_url("acme")).await;
    reader.execute("BEGIN").await;
    let [none] = reader.integers("SELECT count(*) FROM submission_documents").await;
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
    let mut world = World::new(33, 0, 60);
    site.import("acme", &world.ndjson());
    assert_eq!(database.integers(INDEXES).await, before);
    database.execute("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET role', current_database()); END $$").await;
    assert_found(&site, &mut world).await;
}
