//! What Postgres is told to do otherwise under a name of ours: functions, triggers, rules, constraints, indexes, defaults.

use serde_json::json;

use super::{find, submissions};
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{self, Engine, Site};
use crate::support::postgres::Postgres;
use crate::support::process::Node;

fn site(database: &str) -> Site {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", database));
    site.requests_per_minute(100_000).write()
}

/// The lines of `formgate check` that warn.
fn warnings(site: &Site) -> Vec<String> {
    let checked = site.run(&["check"], b"");
    assert_eq!(checked.code, 0, "{checked:?}");
    checked.stdout.lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned).collect()
}

fn client(site: &Site, node: &Node) -> Client {
    node.client().to(&site.host("acme")).with(&site.token("acme", "tests"))
}

/// Each alteration, and what `check` says of it.
const ALTERATIONS: &[(&str, &str)] = &[
    (
        "CREATE OR REPLACE FUNCTION formgate_note_submission() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER \
         SET search_path = public, pg_temp AS $$ BEGIN RETURN NULL; END $$",
        "the function `formgate_note_submission` was altered",
    ),
    ("DROP FUNCTION formgate_note_part() CASCADE", "the function `formgate_note_part` is missing"),
    ("ALTER FUNCTION formgate_note_part() RESET ALL", "the function `formgate_note_part` was altered"),
    (
        "ALTER FUNCTION formgate_note_part() SET search_path = elsewhere, pg_temp",
        "the function `formgate_note_part` reads and writes the tables of another schema, `elsewhere`",
    ),
    (
        "DROP TRIGGER submissions_written ON submissions; CREATE TRIGGER submissions_written AFTER DELETE ON submissions \
         FOR EACH ROW EXECUTE FUNCTION formgate_note_submission(); \
         ALTER TABLE submissions ENABLE ALWAYS TRIGGER submissions_written",
        "the trigger `submissions_written` of `submissions` was altered",
    ),
    (
        "CREATE RULE forgetful AS ON INSERT TO intake DO INSTEAD NOTHING",
        "the rule forgetful rewrites what is written to `intake`",
    ),
    ("ALTER TABLE intake SET UNLOGGED", "the table `intake` is unlogged: a crash empties it"),
    ("ALTER TABLE users ALTER id DROP IDENTITY", "the identity of `users.id` is missing"),
    ("ALTER TABLE intake ALTER at DROP DEFAULT", "the default of `intake.at` is missing"),
    ("ALTER TABLE intake ALTER at SET DEFAULT '2000-01-01'", "the default of `intake.at` was altered"),
    (
        "DROP INDEX listed_updated; CREATE INDEX listed_updated ON listed_submissions (id)",
        "the index `listed_updated` of `listed_submissions` was altered",
    ),
    (
        "DROP INDEX submission_changes_seq; CREATE INDEX submission_changes_seq ON submission_changes (seq)",
        "the index `submission_changes_seq` of `submission_changes` was altered",
    ),
    (
        "ALTER TABLE users DROP CONSTRAINT users_email_check; ALTER TABLE users ADD CONSTRAINT users_email_check CHECK (true)",
        "the constraint `users_email_check` of `users` was altered",
    ),
    (
        "ALTER TABLE group_members DROP CONSTRAINT group_members_group_id_fkey; ALTER TABLE group_members \
         ADD CONSTRAINT group_members_group_id_fkey FOREIGN KEY (group_id) REFERENCES groups",
        "the constraint `group_members_group_id_fkey` of `group_members` was altered",
    ),
    (
        "ALTER TABLE users ALTER email_folded DROP EXPRESSION",
        "the column `users.email_folded` is `text not null`, not `text not null generated always as",
    ),
    ("DROP FUNCTION formgate_fold(text) CASCADE", "the function `formgate_fold` is missing"),
    (
        "CREATE OR REPLACE FUNCTION formgate_fold(value text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS \
         'SELECT value'; UPDATE users SET email = email",
        "the function `formgate_fold` was altered",
    ),
    ("DELETE FROM change_state", "the table `change_state` has lost its row"),
    (
        "CREATE UNIQUE INDEX mine ON listed_terms (term, shown_in, submission_id); \
         ALTER TABLE listed_terms REPLICA IDENTITY USING INDEX mine; DROP INDEX mine",
        "the table `listed_terms` has no replica identity",
    ),
];

#[tokio::test]
async fn every_definition_that_was_altered_is_named_and_restored() {
    let url = Postgres::database();
    let site = site(&url);
    site.migrate();
    let user = json!({"type": "user", "id": 41, "email": "Ada@example.com"});
    site.import("acme", &format!("{}\n{user}", submissions(&["passport"])));
    let database = Database::connect(&url).await;
    let node = site.start();
    let client = client(&site, &node);
    assert_eq!(find(&client, "passport").await, 1);
    for (command, (alteration, message)) in
        [&["reindex", "--tenant", "acme"][..], &["migrate"]].into_iter().cycle().zip(ALTERATIONS)
    {
        database.execute(alteration).await;
        let warned = warnings(&site);
        assert!(warned.len() == 1 && warned[0].contains(message), "{alteration}: {warned:?}");
        let done = site.run(command, b"");
        assert!(done.code == 0 && done.stderr.contains("restored "), "{alteration}: {done:?}");
        assert_eq!(warnings(&site), Vec::<String>::new(), "{alteration}");
    }
    assert_eq!(database.text("SELECT email_folded FROM users WHERE id = 41").await, "ada@example.com");
    let group = client.put("/api/v1/group").json(&json!({"name": "New", "members": [{"email": "b@example.com"}]}));
    assert_eq!(group.send().await.status, 201, "the next number of users is free");
    database
        .execute(
            "INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES (20, 1, 'pending', now(), now()); \
             INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES (20, 11, 'passport', now())",
        )
        .await;
    assert_eq!(find(&client, "passport").await, 2);
}

/// What was written while nothing was noted is derived.
#[tokio::test]
async fn what_an_altered_function_did_not_note_is_found_after_the_repair() {
    let url = Postgres::database();
    let site = site(&url);
    site.migrate();
    site.import("acme", &submissions(&["passport"]));
    let database = Database::connect(&url).await;
    let node = site.start();
    let client = client(&site, &node);
    assert_eq!(find(&client, "passport").await, 1);
    let (alteration, _) = ALTERATIONS[0];
    database.execute(alteration).await;
    database
        .execute("INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES (20, 1, 'pending', now(), now())")
        .await;
    let migrated = site.run(&["migrate"], b"");
    assert_eq!(migrated.code, 0, "{migrated:?}");
    let all = client.post("/api/v1/submission").json(&json!({})).send().await.json();
    assert_eq!(all["meta"]["total"], 2);
}

/// An account moves to another schema by renaming it. Its functions know the old name.
#[tokio::test]
async fn functions_of_a_renamed_schema_are_named_and_restored() {
    let old = Postgres::new_schema();
    let migrated = site(&old);
    migrated.migrate();
    migrated.import("acme", &submissions(&["passport"]));
    let (server, name) = old.split_once("?schema=").expect("the URL names the schema");
    let new = format!("{old}_renamed");
    Postgres::execute_in(server, &format!("ALTER SCHEMA {name} RENAME TO {name}_renamed"));
    let site = site(&new);
    let warned = warnings(&site);
    assert!(
        warned.len() == 1 && warned[0].contains(&format!("reads and writes the tables of another schema, `{name}`")),
        "{warned:?}"
    );
    // Another account takes the name.
    fixture::migrate(&old);
    let done = site.run(&["reindex", "--tenant", "acme"], b"");
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(warnings(&site), Vec::<String>::new());
    let (database, other) = (Database::connect(&new).await, Database::connect(&old).await);
    database
        .execute("INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES (20, 1, 'pending', now(), now())")
        .await;
    assert_eq!(database.integers("SELECT count(*) FROM intake").await, [1]);
    assert_eq!(other.integers("SELECT count(*) FROM intake").await, [0]);
}

/// `LIKE … INCLUDING ALL` copies keys and indexes under other names, and neither foreign keys nor triggers.
#[tokio::test]
async fn a_table_that_was_written_again_is_known_by_its_definitions() {
    let url = Postgres::database();
    let site = site(&url);
    site.migrate();
    site.import("acme", &submissions(&["passport"]));
    let database = Database::connect(&url).await;
    database
        .execute(
            "ALTER TABLE answers RENAME TO answers_old; CREATE TABLE answers (LIKE answers_old INCLUDING ALL); \
             INSERT INTO answers SELECT * FROM answers_old",
        )
        .await;
    let reindexed = site.run(&["reindex", "--tenant", "acme"], b"");
    assert_eq!(reindexed.code, 0, "{reindexed:?}");
    assert_eq!(warnings(&site), Vec::<String>::new());
    let keys = "SELECT count(*) FROM pg_constraint WHERE conrelid = 'answers'::regclass AND contype = 'p'";
    assert_eq!(database.integers(keys).await, [1]);
}

#[tokio::test]
async fn a_keyword_index_that_was_dropped_or_altered_is_named_and_created_again() {
    let url = Postgres::database();
    let site = site(&url);
    site.migrate();
    site.import("acme", &submissions(&["passport"]));
    let database = Database::connect(&url).await;
    for index in ["listed_documents_pairs", "listed_documents_trigrams"] {
        for altered in ["", "CREATE INDEX {} ON listed_documents (shown_in)"] {
            database.execute(&format!("DROP INDEX {index}; {}", altered.replace("{}", index))).await;
            let warned = warnings(&site);
            let remedy = "run `formgate reindex --tenant acme`, which creates it";
            assert!(warned.len() == 1 && warned[0].contains(remedy), "{index}: {warned:?}");
            let reindexed = site.run(&["reindex", "--tenant", "acme"], b"");
            assert_eq!(reindexed.code, 0, "{reindexed:?}");
            assert_eq!(warnings(&site), Vec::<String>::new(), "{index} {altered}");
        }
    }
}

/// Searches go on, and `check` names the cause.
#[tokio::test]
async fn a_publication_that_makes_postgres_refuse_writes_is_named() {
    let server = Postgres::start_replicated();
    let url = server.new_database();
    let site = site(&url);
    site.migrate();
    site.import("acme", &submissions(&["passport"]));
    let database = Database::connect(&url).await;
    let node = site.start();
    let client = client(&site, &node);
    assert_eq!(find(&client, "passport").await, 1);
    for publication in [
        "CREATE PUBLICATION narrow FOR TABLE intake (submission_id)",
        "CREATE PUBLICATION narrow FOR TABLE listed_submissions (form_id), listed_documents WHERE (shown_in > 0)",
    ] {
        database.execute(publication).await;
        database.execute("UPDATE submissions SET status = 'approved', updated_at = now() WHERE id = 1").await;
        assert_eq!(find(&client, "passport").await, 1, "{publication}");
        let feed = client.get("/api/v1/submission/changes").send().await;
        assert_eq!(feed.status, 503, "{publication}: {feed:?}");
        let warned = warnings(&site);
        assert!(
            warned.len() == 1
                && warned[0].contains("the publication `narrow` has a list of columns or a filter that does not suit")
                && warned[0].contains("ALTER PUBLICATION"),
            "{publication}: {warned:?}"
        );
        database.execute("DROP PUBLICATION narrow").await;
        assert_eq!(warnings(&site), Vec::<String>::new());
    }
    // Neither a list that has the key nor inserts alone are in the way.
    database
        .execute(
            "CREATE PUBLICATION listed FOR TABLE users (id, name), forms WHERE (id > 7); \
             CREATE PUBLICATION inserts FOR TABLE intake (submission_id) WITH (publish = 'insert')",
        )
        .await;
    assert_eq!(warnings(&site), Vec::<String>::new());

    // A table without an identity, as an index that is gone leaves it, is restored before rows are written.
    database
        .execute(
            "CREATE UNIQUE INDEX mine ON listed_terms (term, shown_in, submission_id); \
             ALTER TABLE listed_terms REPLICA IDENTITY USING INDEX mine; DROP INDEX mine; \
             CREATE PUBLICATION everything FOR ALL TABLES; UPDATE answers SET value = 'visa' WHERE submission_id = 1",
        )
        .await;
    assert_eq!(find(&client, "visa").await, 1);
    let migrated = site.run(&["migrate"], b"");
    assert_eq!(migrated.code, 0, "{migrated:?}");
    assert_eq!(warnings(&site), Vec::<String>::new());
    assert_eq!(find(&client, "visa").await, 1);
}

/// A repair waits for a table once, however many parts of it differ, and says what is left.
#[tokio::test]
async fn a_table_that_another_transaction_holds_is_waited_for_once() {
    let url = Postgres::database();
    let site = site(&url);
    site.migrate();
    site.import("acme", &submissions(&["passport"]));
    let database = Database::connect(&url).await;
    database.execute("ALTER TABLE submissions DISABLE TRIGGER USER; DROP INDEX forms_listed").await;
    let writer = Database::connect(&url).await;
    writer.execute("BEGIN; UPDATE submissions SET status = 'info' WHERE id = 1").await;
    let reindexed = site.run(&["reindex", "--tenant", "acme"], b"");
    assert_eq!(reindexed.code, 1, "{reindexed:?}");
    assert_eq!(reindexed.stderr.matches("canceling statement due to lock timeout").count(), 1, "{reindexed:?}");
    assert!(reindexed.stderr.contains("is disabled: another transaction holds the table"), "{reindexed:?}");
    assert!(reindexed.stderr.contains("3 parts of the schema could not be restored"), "{reindexed:?}");
    assert!(reindexed.stderr.contains("restored 1 altered parts"), "{reindexed:?}");
    writer.execute("COMMIT").await;
    let reindexed = site.run(&["reindex", "--tenant", "acme"], b"");
    assert_eq!(reindexed.code, 0, "{reindexed:?}");
    assert_eq!(warnings(&site), Vec::<String>::new());
}
