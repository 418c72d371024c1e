//! A filled database of an earlier version is brought to the newest: what is kept beside its plain tables is right at once.

use std::fs;

use serde_json::json;

use crate::api::changes::follower::{Follower, all_submissions};
use crate::api::world::{World, ZONE};
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};

/// The version that the database is taken back to.
const EARLIER: i64 = 2;

const POSTGRES: [&str; 2] = [
    include_str!("../../../src/store/schema/postgres-1.sql"),
    include_str!("../../../src/store/schema/postgres-2.sql"),
];
const SQLITE: [&str; 2] =
    [include_str!("../../../src/store/schema/sqlite-1.sql"), include_str!("../../../src/store/schema/sqlite-2.sql")];

/// The plain tables that a world fills.
const PLAIN: [(&str, &str); 10] = [
    ("users", "id, email, name"),
    ("forms", "id, name, anonymous, disabled, graduated, parent_id"),
    ("elements", "id, form_id, position, gid, name, type"),
    ("labels", "id, name, shared"),
    ("flow_steps", "id, form_id, name"),
    ("submissions", "id, form_id, parent_id, status, draft, submitter_id, created_at, updated_at"),
    ("submission_labels", "submission_id, label_id, shared"),
    ("submission_pending", "submission_id, user_id"),
    ("submission_participants", "submission_id, user_id"),
    ("submission_flow_steps", "submission_id, flow_step_id"),
];
const ANSWERS: &str = "submission_id, element_id, value, files, updated_at";

/// Takes the database back to the earlier version, with all that it holds.
async fn take_back(site: &Site, engine: Engine) {
    let url = site.database_url("acme");
    if let Some(path) = url.strip_prefix("sqlite:") {
        fs::rename(path, format!("{path}.newest")).expect("nothing else uses the file");
        fs::write(path, "").expect("the folder can be written");
    }
    let database = Database::connect(url).await;
    let scripts = match engine {
        Engine::Postgres | Engine::PostgresOn(_) => {
            database
                .execute("ALTER SCHEMA public RENAME TO newest; CREATE SCHEMA public; ALTER EXTENSION pg_trgm SET SCHEMA public")
                .await;
            POSTGRES
        }
        Engine::Sqlite => {
            let path = url.strip_prefix("sqlite:").expect("a SQLite URL");
            database.execute(&format!("ATTACH '{path}.newest' AS newest")).await;
            SQLITE
        }
    };
    for script in scripts {
        database.execute(script).await;
    }
    for (table, columns) in PLAIN {
        database.execute(&format!("INSERT INTO {table} ({columns}) SELECT {columns} FROM newest.{table}")).await;
    }
    if engine == Engine::Sqlite {
        // As an import left it, because SQL folds only ASCII letters there.
        database
            .execute("UPDATE users SET email_folded = (SELECT email_folded FROM newest.users u WHERE u.id = users.id)")
            .await;
    }
    database.execute(&format!("INSERT INTO answers ({ANSWERS}) SELECT {ANSWERS} FROM newest.answers")).await;
    let history = "CREATE TABLE _sqlx_migrations AS SELECT * FROM newest._sqlx_migrations WHERE version <= ";
    database.execute(&format!("{history}{EARLIER}")).await;
    match engine {
        Engine::Postgres | Engine::PostgresOn(_) => {
            database.execute("ALTER TABLE _sqlx_migrations ALTER installed_on SET DEFAULT now()").await;
            database.execute("DROP SCHEMA newest CASCADE").await;
            // The product's own role, as an operator would have made it.
            database.execute("CREATE ROLE migrated_writer; GRANT USAGE ON SCHEMA public TO migrated_writer").await;
            database.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO migrated_writer").await;
            database.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO migrated_writer").await;
        }
        Engine::Sqlite => database.execute("DETACH newest").await,
    }
    database.close().await;
}

/// The feed has what was there, and what a node of the version before took out of the intake: it numbers nothing.
async fn follow_beside_an_older_node(site: &Site, client: &Client) {
    let mut follower = Follower::new(client, "limit=50");
    follower.catch_up().await;
    assert_eq!(follower.copy, all_submissions(client, &json!({})).await);
    let (id, shown) = follower.copy.first_key_value().expect("there are some");
    let (id, status) = (id.clone(), shown["status"].as_str().expect("a text").to_owned());
    let other = if status == "info" { "denied" } else { "info" };
    let database = Database::connect(site.database_url("acme")).await;
    for status in [other, &status] {
        let number = id.trim_start_matches("sub_");
        database.execute(&format!("UPDATE submissions SET status = '{status}' WHERE id = {number}")).await;
        database.execute("DELETE FROM intake").await;
        assert_eq!(follower.catch_up().await, [("updated".to_owned(), id.clone())]);
        assert_eq!(follower.copy, all_submissions(client, &json!({})).await);
    }
    database.close().await;
}

on_both_databases! {
    async fn a_filled_database_is_brought_to_the_newest_schema(engine: Engine) {
        let mut world = World::new(21, 0, 120);
        let site = Site::new()
            .tenant_with("acme", engine, |tenant| tenant.set("timezone", ZONE))
            .requests_per_minute(100_000)
            .write();
        site.import("acme", &world.ndjson());
        take_back(&site, engine).await;
        let migrated = site.run(&["migrate"], b"");
        assert!(migrated.stdout.starts_with(&format!("acme: from version {EARLIER} to ")), "{migrated:?}");

        let token = site.token("acme", "tests");
        let node = site.start();
        let client = node.client().to(&site.host("acme")).with(&token);
        let mut filters = vec![json!({}), json!({"sortBy": "created_at"}), json!({"search": "an"})];
        filters.extend((1..=5).flat_map(|id| [json!({"labels": [id]}), json!({"sharedLabels": [id]}), json!({"forms": [id]})]));
        filters.extend((0..40).map(|_| world.filter()));
        world.assert_found(&client, filters.clone()).await;
        follow_beside_an_older_node(&site, &client).await;
        // The second step, while a node serves.
        let finished = site.run(&["migrate", "--finish"], b"");
        assert!(finished.stdout.starts_with("acme: from version "), "{finished:?}");
        world.assert_found(&client, filters).await;
        if engine == Engine::Postgres {
            let total = world.search(&json!({"labels": [1]})).len();
            let database = Database::connect(site.database_url("acme")).await;
            database
                .execute(
                    "SET ROLE migrated_writer; \
                     INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES (900001, 1, 'info', now(), now()); \
                     INSERT INTO submission_labels (submission_id, label_id) VALUES (900001, 1); \
                     UPDATE submissions SET updated_at = now() WHERE id = 900001",
                )
                .await;
            let answer = client.post("/api/v1/submission").json(&json!({"labels": [1]})).send().await.json();
            assert_eq!(answer["meta"]["total"], total + 1);
        }
        let mended = site.run(&["reindex", "--tenant", "acme"], b"");
        assert_eq!(mended.stdout, "mended 0 users, 0 submissions, 0 documents, 0 labels, 0 counts\n");
    }
}
