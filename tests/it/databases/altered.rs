//! What administrators and their tools do to a schema: triggers and constraints that are disabled for a load, indexes that
//! are dropped, publications, row level security.

use std::time::Duration;

use serde_json::{Value, json};

use super::{find, submissions};
use crate::api::submission::NOTHING_WRONG;
use crate::support::client::{Client, operator_get, wait_for_count};
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::postgres::Postgres;

/// The plain tables whose rows are noted.
const NOTED: [&str; 9] = [
    "users",
    "forms",
    "groups",
    "group_members",
    "submissions",
    "answers",
    "submission_labels",
    "submission_pending",
    "submission_participants",
];

fn site(database: &str) -> Site {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", database));
    site.requests_per_minute(100_000).write()
}

/// Writes a submission as an apply worker of logical replication does, and many tools that load rows.
async fn replicate(database: &Database, id: i64, answer: &str) {
    database
        .execute(&format!(
            "SET session_replication_role = replica; \
             INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES ({id}, 1, 'pending', now(), now()); \
             INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES ({id}, 11, '{answer}', now()); \
             INSERT INTO forms (id, name) VALUES ({id}, 'Replicated'); INSERT INTO group_members VALUES (1, {id}); \
             SET session_replication_role = origin"
        ))
        .await;
}

/// The total of all forms, and the members of group 1 as counted.
async fn counts(client: &Client) -> [Value; 2] {
    let [forms, groups] = ["/api/v1/form", "/api/v1/group?external_id=one"].map(async |path| {
        let answer = client.get(path).send().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    });
    [forms.await["meta"]["total"].clone(), groups.await["data"][0]["members_count"].clone()]
}

/// The lines of `formgate check` that warn about the schema.
fn warnings(site: &Site) -> Vec<String> {
    let checked = site.run(&["check"], b"");
    assert_eq!(checked.code, 0, "{checked:?}");
    checked.stdout.lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned).collect()
}

/// What `pg_restore --disable-triggers` and loads in bulk leave behind. Each command that restores the triggers also derives
/// from what they missed.
#[tokio::test]
async fn triggers_that_were_disabled_and_enabled_are_reported_and_restored() {
    for command in [&["reindex", "--tenant", "acme"][..], &["migrate"]] {
        let url = Postgres::database();
        let site = site(&url);
        site.migrate();
        let group = json!({"type": "group", "id": 1, "name": "One", "external_id": "one", "managed": true});
        site.import("acme", &format!("{}\n{group}", submissions(&["passport"])));
        let token = site.token("acme", "tests");
        let database = Database::connect(&url).await;
        let modes =
            "SELECT string_agg(tgname || tgenabled::text, ' ' ORDER BY tgname) FROM pg_trigger WHERE NOT tgisinternal";
        let before = database.text(modes).await;
        assert_eq!(warnings(&site), Vec::<String>::new());

        for table in NOTED {
            database.execute(&format!("ALTER TABLE {table} DISABLE TRIGGER ALL")).await;
        }
        let written = "INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES (20, 1, 'pending', now(), now())";
        database.execute(written).await;
        let warned = warnings(&site);
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(
            warned[0].contains("is disabled; ") && warned[0].contains(" more: run `formgate reindex"),
            "{warned:?}"
        );
        for table in NOTED {
            database.execute(&format!("ALTER TABLE {table} ENABLE TRIGGER ALL")).await;
        }
        assert!(warnings(&site)[0].contains("does not fire for replicated rows"));
        let mut node = site.start();
        let client = node.client().to(&site.host("acme")).with(&token);
        replicate(&database, 30, "passport").await;
        let operator = node.operator_address();
        wait_for_count(operator, "formgate_databases_altered", 1).await;
        let ready = operator_get(operator, "/readyz").await.json();
        assert_eq!(ready["ready"], true);
        assert_eq!(ready["parts"]["schemas"], "altered; `formgate check` names the remedy");
        assert!(ready["tenants"]["acme"][0].as_str().is_some_and(|cause| cause.contains("does not fire")), "{ready}");
        node.wait_for_lines(Duration::from_secs(20), "does not fire for replicated rows", 1);

        // Plain writers are counted once, together with what stands beside their rows.
        database.execute("INSERT INTO forms (id, name) VALUES (8, 'Plain'); INSERT INTO users (id, email) VALUES (7, 'a@example.com'); INSERT INTO group_members VALUES (1, 7)").await;
        assert_eq!(counts(&client).await, [json!(3), json!(2)]);

        let done = site.run(command, b"");
        assert_eq!(done.code, 0, "{done:?}");
        assert!(
            done.stderr.contains("warning: tenant `acme`: restored ") && done.stderr.lines().count() == 1,
            "{done:?}"
        );
        assert_eq!(database.text(modes).await, before, "{command:?}");
        assert_eq!(warnings(&site), Vec::<String>::new());
        assert_eq!(find(&client, "passport").await, 2, "{command:?}: what was replicated meanwhile");
        assert_eq!(counts(&client).await, [json!(3), json!(2)], "{command:?}");
        replicate(&database, 31, "passport").await;
        assert_eq!(find(&client, "passport").await, 3, "{command:?}");
        assert_eq!(counts(&client).await, [json!(4), json!(3)], "{command:?}");
        let reindexed = site.run(&["reindex", "--tenant", "acme"], b"");
        assert_eq!((reindexed.code, reindexed.stdout.as_str(), reindexed.stderr.as_str()), (0, NOTHING_WRONG, ""));
    }
}

on_both_databases! {
    async fn every_part_of_the_schema_that_was_altered_is_named_and_restored(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        site.import("acme", &submissions(&["passport"]));
        let token = site.token("acme", "tests");
        let alterations: &[(&str, &str)] = match engine {
            Engine::Sqlite => &[
                ("DROP INDEX submissions_submitter", "the index `submissions_submitter` of `submissions` is missing"),
                ("DROP TRIGGER answers_inserted", "the trigger `answers_inserted` of `answers` is missing"),
                (
                    "DROP INDEX users_email; CREATE INDEX users_email ON users (email_folded)",
                    "the index `users_email` of `users` was altered",
                ),
                (
                    "DROP TRIGGER users_deleted; CREATE TRIGGER users_deleted AFTER DELETE ON users BEGIN SELECT 1; END",
                    "the trigger `users_deleted` of `users` was altered",
                ),
            ],
            Engine::Postgres | Engine::PostgresOn(_) => &[
                ("DROP INDEX submissions_submitter", "the index `submissions_submitter` of `submissions` is missing"),
                (
                    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'forms_listed'::regclass",
                    "the index `forms_listed` of `forms` is invalid",
                ),
                ("DROP TRIGGER answers_written ON answers", "the trigger `answers_written` of `answers` is missing"),
                (
                    "ALTER TABLE users ENABLE REPLICA TRIGGER users_deleted",
                    "the trigger `users_deleted` of `users` fires for replicated rows only",
                ),
                (
                    "ALTER TABLE answers DROP CONSTRAINT answers_element_id_fkey",
                    "the constraint `answers_element_id_fkey` of `answers` is missing",
                ),
                (
                    "ALTER TABLE answers DROP CONSTRAINT answers_element_id_fkey; ALTER TABLE answers ADD CONSTRAINT \
                     answers_element_id_fkey FOREIGN KEY (element_id) REFERENCES elements NOT VALID",
                    "the constraint `answers_element_id_fkey` of `answers` is not validated",
                ),
                ("ALTER TABLE tokens DROP CONSTRAINT tokens_pkey CASCADE", "the constraint `tokens_pkey` of `tokens` is missing"),
                (
                    "ALTER TABLE forms ALTER COLUMN name DROP NOT NULL",
                    "the column `forms.name` is `text`, not `text not null`",
                ),
                (
                    "ALTER TABLE webhook_events DISABLE TRIGGER ALL",
                    "the foreign key `webhook_events_subscription_id_fkey` is not checked: triggers of `webhook_events` are disabled",
                ),
                ("ALTER TABLE intake REPLICA IDENTITY NOTHING", "the table `intake` has no replica identity"),
                ("ALTER TABLE forms REPLICA IDENTITY NOTHING", "the table `forms` has no replica identity"),
            ],
        };
        let database = Database::connect(site.database_url("acme")).await;
        for (alteration, message) in alterations {
            database.execute(alteration).await;
            let warned = warnings(&site);
            assert!(warned.len() == 1 && warned[0].contains(message), "{alteration}: {warned:?}");
            let migrated = site.run(&["migrate"], b"");
            assert!(migrated.code == 0 && migrated.stderr.contains("restored "), "{alteration}: {migrated:?}");
            assert_eq!(warnings(&site), Vec::<String>::new(), "{alteration}");
        }
        let node = site.start();
        let client = node.client().to(&site.host("acme")).with(&token);
        assert_eq!(find(&client, "passport").await, 1);
    }

    async fn what_can_not_be_restored_is_reported_with_its_cause_and_the_rest_is_done(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let database = Database::connect(site.database_url("acme")).await;
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Once'); DROP INDEX forms_listed; DROP INDEX groups_built_in").await;
        database.execute("INSERT INTO groups (id, name, built_in) VALUES (8, 'Again', true); ALTER TABLE labels DROP COLUMN name").await;
        let warned = warnings(&site).join("\n");
        assert!(warned.contains("the column `labels.name` is missing: undo the change, or restore a backup"), "{warned}");
        let migrated = site.run(&["migrate"], b"");
        assert_eq!(migrated.code, 1, "{migrated:?}");
        assert!(migrated.stderr.contains("restored 1 altered parts"), "{migrated:?}");
        assert!(migrated.stderr.contains("2 parts of the schema could not be restored"), "{migrated:?}");
        let cause = if engine == Engine::Sqlite { "UNIQUE constraint failed" } else { "could not create unique index" };
        assert!(migrated.stderr.contains("the index `groups_built_in` of `groups` is missing: "), "{migrated:?}");
        assert!(migrated.stderr.contains(cause), "{migrated:?}");
        let warned = warnings(&site).join("\n");
        assert!(warned.contains("`labels.name`") && warned.contains("`groups_built_in`"), "{warned}");
        assert!(!warned.contains("forms_listed"), "{warned}");
    }
}

/// The operator's own columns, indexes and triggers are no concern of formgate's.
#[tokio::test]
async fn what_was_added_to_the_schema_is_left_alone() {
    let url = Postgres::database();
    let site = site(&url);
    site.migrate();
    let database = Database::connect(&url).await;
    database.execute("CREATE TABLE products (id bigint); ALTER TABLE products REPLICA IDENTITY NOTHING").await;
    database.execute("ALTER TABLE forms ADD COLUMN color text; CREATE INDEX forms_color ON forms (color)").await;
    database.execute("ALTER TABLE submissions REPLICA IDENTITY FULL").await;
    assert_eq!(warnings(&site), Vec::<String>::new());
    let migrated = site.run(&["migrate"], b"");
    assert_eq!((migrated.code, migrated.stderr.as_str()), (0, ""));
    let left = "SELECT relreplident::text FROM pg_class WHERE oid = 'products'::regclass";
    assert_eq!(database.text(left).await, "n");
}

/// As Debezium, Airbyte and an upgrade by logical replication create it.
#[tokio::test]
async fn a_publication_for_all_tables_keeps_nothing_from_being_written() {
    let server = Postgres::start_replicated();
    let url = server.new_database();
    let site = site(&url);
    site.migrate();
    site.import("acme", &submissions(&["passport"]));
    let token = site.token("acme", "tests");
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    assert_eq!(find(&client, "passport").await, 1);
    let database = Database::connect(&url).await;
    database.execute("CREATE PUBLICATION everything FOR ALL TABLES").await;
    database
        .execute(
            "INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES (20, 1, 'pending', now(), now()); \
             INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES (20, 11, 'passport', now())",
        )
        .await;
    assert_eq!(find(&client, "passport").await, 2);
    database.execute("UPDATE answers SET value = 'visa' WHERE submission_id = 20").await;
    assert_eq!(find(&client, "visa").await, 1);
    let feed = client.get("/api/v1/submission/changes").send().await;
    assert!(feed.status == 200 && feed.json()["data"].as_array().is_some_and(|data| data.len() == 2), "{feed:?}");
    let group = client.put("/api/v1/group").json(&json!({"name": "New", "members": [{"email": "a@example.com"}]}));
    assert_eq!(group.send().await.status, 201);
    site.import("acme", &submissions(&["passport", "passport", "passport"]));
    assert_eq!(find(&client, "passport").await, 3);
    let reindexed = site.run(&["reindex", "--tenant", "acme"], b"");
    assert_eq!((reindexed.code, reindexed.stdout.as_str()), (0, NOTHING_WRONG));
    assert_eq!(warnings(&site), Vec::<String>::new());
}

/// A role that policies apply to gets errors in words. Rows that a policy hides are never missing from a page, and never
/// reported as deleted.
#[tokio::test]
async fn row_level_security_is_an_error_and_no_deletion() {
    let server = Postgres::start_with(&[]);
    let url = server.new_database();
    let owner = site(&url);
    owner.migrate();
    owner.import("acme", &submissions(&["passport", "visa"]));
    let token = owner.token("acme", "tests");
    let database = Database::connect(&url).await;
    database
        .execute(
            "CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA public TO app; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app; \
             GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA public TO app",
        )
        .await;
    let site = site(&url.replace("postgres://postgres@", "postgres://app@"));
    let mut node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    let feed = client.get("/api/v1/submission/changes").send().await.json();
    let cursor = feed["meta"]["cursor"].as_str().expect("a cursor").to_owned();
    assert_eq!(feed["data"].as_array().map(Vec::len), Some(2));

    database
        .execute("ALTER TABLE submissions ENABLE ROW LEVEL SECURITY; UPDATE submissions SET status = 'approved'")
        .await;
    let changes = format!("/api/v1/submission/changes?cursor={cursor}");
    let feed = client.get(&changes).send().await;
    assert_eq!(feed.status, 503, "{feed:?}");
    assert_eq!(client.post("/api/v1/submission").json(&json!({})).send().await.status, 503);
    node.wait_for_lines(Duration::from_secs(20), "query would be affected by row-level security policy", 2);
    let warned = warnings(&site).join("\n");
    assert!(warned.contains("row level security applies to the table `submissions`"), "{warned}");
    assert!(warned.contains("ALTER TABLE … DISABLE ROW LEVEL SECURITY") && warned.contains("BYPASSRLS"), "{warned}");
    assert_eq!(warnings(&owner), Vec::<String>::new(), "policies do not apply to the owner");
    let reindexed = site.run(&["reindex", "--tenant", "acme"], b"");
    assert!(reindexed.code == 1 && reindexed.stderr.contains("BYPASSRLS"), "{reindexed:?}");

    database.execute("ALTER ROLE app BYPASSRLS").await;
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    let feed = client.get(&changes).send().await;
    let kinds =
        feed.json()["data"].as_array().expect("a page").iter().map(|change| change["type"].clone()).collect::<Vec<_>>();
    assert_eq!(kinds, ["updated", "updated"], "{feed:?}");
}
