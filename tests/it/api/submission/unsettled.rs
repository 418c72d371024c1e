//! Searches are right where formgate has not derived, or can't, from what was written; and wherever it was written from.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::NOTHING_WRONG;
use crate::api::account::{Account, account};
use crate::api::world::{World, ZONE};
use crate::support::client::{Client, operator_count, operator_get};
use crate::support::database::Database;
use crate::support::fixture::{Engine, Server, Site, on_both_databases};
use crate::support::postgres::Postgres;

/// The plain tables that a world fills.
const PLAIN: &str = "users, forms, elements, labels, flow_steps, submissions, answers, submission_labels, submission_pending, \
    submission_participants, submission_flow_steps";

fn filters(world: &mut World) -> Vec<Value> {
    let mut filters =
        vec![json!({}), json!({"sortBy": "created_at"}), json!({"search": "an"}), json!({"search": "ing"})];
    filters.extend(
        (1..=5).flat_map(|id| [json!({"labels": [id]}), json!({"sharedLabels": [id]}), json!({"forms": [id]})]),
    );
    filters.extend((0..25).map(|_| world.filter()));
    filters
}

async fn change(world: &mut World, database: &Database) {
    for _ in 0..30 {
        database.execute(&world.change()).await;
    }
}

/// Asks until the answer is as expected, which it is in time.
async fn wait_until(database: &Database, query: &str, expected: i64) {
    let since = Instant::now();
    loop {
        let [found] = database.integers(query).await;
        if found == expected {
            return;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{query}: {found}, not {expected}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_held_write_lock_of_sqlite_keeps_no_search_from_being_right() {
    let mut world = World::new(41, 0, 80);
    let account = account(Engine::Sqlite, &world.ndjson());
    let database = account.database().await;
    change(&mut world, &database).await;
    database.execute("BEGIN IMMEDIATE").await;
    let filters = filters(&mut world);
    world.assert_found(&account.client, filters).await;
    let [noted] = database.integers("SELECT count(*) FROM intake").await;
    assert!(noted > 0, "nothing was written meanwhile");
    database.execute("COMMIT").await;
    assert_settled_in_time(&account, &database).await;
}

/// Where nothing hinders any more, what was written is derived from.
async fn assert_settled_in_time(account: &Account, database: &Database) {
    let since = Instant::now();
    while database.integers("SELECT count(*) FROM intake").await != [0] {
        assert!(since.elapsed() < Duration::from_secs(60), "the intake is not empty");
        account.search("", &json!({})).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(account.reindex(), NOTHING_WRONG);
}

#[tokio::test]
async fn a_postgres_that_is_read_only_keeps_no_search_from_being_right() {
    let mut world = World::new(42, 0, 80);
    let account = account(Engine::Postgres, &world.ndjson());
    let database = account.database().await;
    let read_only = |value: &str| {
        format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = {value}', current_database()); END $$; \
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    };
    change(&mut world, &database).await;
    database.execute(&read_only("on")).await;
    let filters = filters(&mut world);
    world.assert_found(&account.client, filters).await;
    database.execute(&read_only("off")).await;
    assert_settled_in_time(&account, &database).await;
}

#[tokio::test]
async fn a_file_that_is_put_in_the_place_of_sqlites_is_the_database_from_then_on() {
    let account = account(Engine::Sqlite, &World::new(49, 0, 30).ndjson());
    let total = async || account.search("", &json!({})).await["meta"]["total"].as_i64().expect("a number");
    let before = total().await;
    let database = account.database().await;
    let path = account.database_url().strip_prefix("sqlite:").expect("a SQLite URL");
    database.execute(&format!("VACUUM INTO '{path}.restored'")).await;
    database
        .execute("INSERT INTO submissions (form_id, status, created_at, updated_at) VALUES (1, 'info', 1, 1)")
        .await;
    assert_eq!(total().await, before + 1);
    database.close().await;

    std::fs::rename(format!("{path}.restored"), path).expect("both are in one folder");
    assert_eq!(total().await, before);
    let group = json!({"name": "Made after that", "members": []});
    assert_eq!(account.client.put("/api/v1/group").json(&group).send().await.status, 201);
    let database = account.database().await;
    assert_eq!(database.integers("SELECT count(*) FROM groups WHERE name = 'Made after that'").await, [1]);
    database
        .execute("INSERT INTO submissions (form_id, status, created_at, updated_at) VALUES (1, 'info', 1, 1)")
        .await;
    assert_eq!(total().await, before + 1);
    assert_eq!(account.reindex(), NOTHING_WRONG);
}

/// A site whose account is in a database of the caller's.
fn site_on(url: &str) -> Site {
    Site::new()
        .tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("timezone", ZONE).set("database", url))
        .requests_per_minute(100_000)
        .write()
}

#[tokio::test]
async fn a_standby_is_searched_as_the_primary_is() {
    let mut world = World::new(43, 0, 80);
    let primary = Postgres::start_replicated();
    let url = primary.new_database();
    let site = site_on(&url);
    site.migrate();
    site.import("acme", &world.ndjson());
    let token = site.token("acme", "tests");
    let standby = primary.start_standby();
    let database = Database::connect(&url).await;
    change(&mut world, &database).await;

    let (_, name) = url.rsplit_once('/').expect("a URL names its database");
    let standby_url = standby.url(name);
    let replica = Database::connect(&standby_url).await;
    let [noted] = database.integers("SELECT count(*) FROM intake").await;
    wait_until(&replica, "SELECT count(*) FROM intake", noted).await;
    let site = site_on(&standby_url);
    let node = site.start();
    let client: Client = node.client().to(&site.host("acme")).with(&token);
    let filters = filters(&mut world);
    world.assert_found(&client, filters).await;
}

#[tokio::test]
async fn rows_written_by_logical_replication_are_found() {
    let mut world = World::new(44, 0, 80);
    let server = Postgres::start_replicated();
    let (from, to) = (server.new_database(), server.new_database());
    let (publisher, subscriber) = (site_on(&from), site_on(&to));
    for site in [&publisher, &subscriber] {
        site.migrate();
    }
    publisher.import("acme", &world.ndjson());
    let (source, copy) = (Database::connect(&from).await, Database::connect(&to).await);
    source.execute(&format!("CREATE PUBLICATION all_plain FOR TABLE {PLAIN}")).await;
    // Made by itself: within one server, a subscription that makes it waits for itself.
    source.execute("SELECT pg_create_logical_replication_slot('copying', 'pgoutput')").await;
    let connection =
        from.replace("postgres://postgres@127.0.0.1:", "host=127.0.0.1 user=postgres port=").replace('/', " dbname=");
    copy.execute(&format!(
        "CREATE SUBSCRIPTION copying CONNECTION '{connection}' PUBLICATION all_plain WITH (create_slot = false, slot_name = 'copying')"
    ))
    .await;
    wait_until(&copy, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'", 0).await;
    change(&mut world, &source).await;
    source.execute("INSERT INTO labels (id, name) VALUES (900, 'The last')").await;
    wait_until(&copy, "SELECT count(*) FROM labels WHERE id = 900", 1).await;

    let token = subscriber.token("acme", "tests");
    let node = subscriber.start();
    let client = node.client().to(&subscriber.host("acme")).with(&token);
    let filters = filters(&mut world);
    world.assert_found(&client, filters).await;
    copy.execute("ALTER SUBSCRIPTION copying DISABLE").await;
    copy.execute("ALTER SUBSCRIPTION copying SET (slot_name = NONE)").await;
    copy.execute("DROP SUBSCRIPTION copying").await;
}

on_both_databases! {
    async fn instants_that_no_answer_can_show_are_refused_and_fail_no_page(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'F')").await;
        let (instants, drop): (&[&str], &str) = match engine {
            Engine::Postgres | Engine::PostgresOn(_) => (
                &["'infinity'", "'-infinity'", "'10000-01-01'", "'4000-01-01 BC'"],
                "ALTER TABLE submissions DROP CONSTRAINT submissions_instants",
            ),
            Engine::Sqlite => (
                &["1714564800000000000", "-1000000000000000000", "253402300800000000"],
                "PRAGMA ignore_check_constraints = ON",
            ),
        };
        let insert = |at: &str| format!("INSERT INTO submissions (form_id, status, created_at, updated_at) VALUES (1, 'info', {at}, {at})");
        for at in instants {
            assert!(database.try_execute(&insert(at)).await.is_err(), "{at} is refused");
        }
        // As a program writes them that turns the constraint off.
        database.execute(drop).await;
        for at in instants {
            database.execute(&insert(at)).await;
        }
        for filter in [json!({}), json!({"sortBy": "created_at", "sortDirection": "asc"}), json!({"start": "2024-01-01"})] {
            account.search("", &filter).await;
        }
        let found = account.search("", &json!({})).await;
        assert_eq!(found["meta"]["total"], instants.len());
        assert_eq!(found["data"].as_array().map(Vec::len), Some(instants.len()));
        // The constraint can't be restored with such rows.
        let done = account.run(&["reindex", "--tenant", "acme"]);
        let is_restored = engine == Engine::Sqlite;
        assert_eq!((done.code, &*done.stdout), (i32::from(!is_restored), NOTHING_WRONG), "{done:?}");
    }

    async fn emptied_tables_leave_nothing_behind(engine: Engine) {
        let account = account(engine, &World::new(45, 0, 40).ndjson());
        let database = account.database().await;
        account.search("", &json!({})).await;
        for (emptied, derived) in [
            ("submission_labels", ["listed_by_label", "listed_counts WHERE listed <> 0 AND counted LIKE '%label'"]),
            ("answers", ["listed_documents", "listed_terms"]),
            ("submissions", ["listed_submissions", "listed_counts WHERE listed <> 0 AND counted IN ('form', 'created', 'updated', 'label', 'shared label')"]),
        ] {
            let empty = match engine {
                Engine::Postgres | Engine::PostgresOn(_) => format!("TRUNCATE {emptied} CASCADE"),
                Engine::Sqlite => format!("DELETE FROM {emptied}"),
            };
            database.execute(&empty).await;
            account.search("", &json!({"search": "an"})).await;
            for table in derived {
                assert_eq!(database.integers(&format!("SELECT count(*) FROM {table}")).await, [0], "{table}");
            }
        }
        assert_eq!(account.reindex(), NOTHING_WRONG);
    }

    async fn check_counts_wrong_rows_and_reindex_fixes_them(engine: Engine) {
        let account = account(engine, &World::new(48, 0, 40).ndjson());
        let database = account.database().await;
        let deep = || account.run(&["check", "--deep"]).stdout;
        assert!(!deep().contains("not what they are derived from"), "{}", deep());
        database.execute("UPDATE submissions SET updated_at = updated_at WHERE id = (SELECT min(id) FROM listed_submissions)").await;
        database.execute("DELETE FROM listed_documents WHERE submission_id = (SELECT max(submission_id) FROM listed_documents \
                 WHERE submission_id < (SELECT max(id) FROM listed_submissions))").await;
        database.execute("UPDATE listed_submissions SET status = 'no such' WHERE id = (SELECT max(id) FROM listed_submissions)").await;
        database.execute("UPDATE listed_counts SET listed = listed + 1 WHERE counted = 'form'").await;
        let told = deep();
        assert!(told.contains("3 rows that searches read are not what they are derived from"), "{told}");
        assert_ne!(account.reindex(), NOTHING_WRONG);
        assert!(!deep().contains("not what they are derived from"), "{}", deep());
    }

    async fn a_part_of_a_word_is_found_whatever_letter_it_ends_with(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        let at = if engine == Engine::Postgres { "now()" } else { "1700000000000000" };
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'F'); INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (101, 1, 1, 'g', 'N', 'text')").await;
        for (id, value) in (1..).zip(["ΟΔΥΣΣΕΥΣ", "ΑΣΦΑΛΕΙΑ ΟΧΗΜΑΤΟΣ", "Οδυσσεύς", "ᲐᲑᲒ İstanbul", "a\u{1f}b", "a\u{fdd0}b"]) {
            database.execute(&format!("INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES ({id}, 1, 'info', {at}, {at}); INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES ({id}, 101, '{value}', {at})")).await;
        }
        for (keyword, total) in [
            ("ΟΔΥΣ", 2), ("οδυσ", 2), ("οδυς", 2), ("ΟΔΥΣΣΕΥΣ", 1), ("ΑΣ", 1), ("τος", 1), ("Σεύς", 1), ("აბგ", 1),
            ("i\u{307}stan", 1), ("\u{1f}b", 1), ("a\u{1f}b", 1), ("a\u{fdd0}b", 1), ("a\u{fffd}b", 1), ("ab", 0),
        ] {
            assert_eq!(account.search("", &json!({"search": keyword})).await["meta"]["total"], total, "{keyword:?}");
        }
        for (answer, total) in [("οδυσσευσ", 1), ("ΟΔΥΣΣΕΥς", 1), ("οδυσσεύΣ", 1), ("οδυσ", 0), ("A\u{1f}B", 1)] {
            assert_eq!(account.search("", &json!({"terms": {"101": [answer]}})).await["meta"]["total"], total, "{answer:?}");
        }
    }
}

/// SQLite fires no trigger for the row that a REPLACE removes, and the new one may be graduated.
#[tokio::test]
async fn a_form_that_is_replaced_shows_the_children_as_it_says_now() {
    let account = account(Engine::Sqlite, "");
    let database = account.database().await;
    database
        .execute(
            "INSERT INTO forms (id, name) VALUES (1, 'Child'), (2, 'Parent'); \
             INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (101, 1, 1, 'g', 'N', 'text'); \
             INSERT INTO submissions (id, form_id, parent_id, status, created_at, updated_at) \
             VALUES (1, 2, NULL, 'info', 0, 0), (2, 1, 1, 'info', 0, 0); \
             INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES (2, 101, 'passport', 0)",
        )
        .await;
    let found = async || {
        let found = account.search("", &json!({"search": "passport"})).await;
        found["data"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found().await, ["sub_2"]);
    for (form, shown_in) in [
        ("INSERT OR REPLACE INTO forms (id, name, graduated) VALUES (2, 'Parent', 1)", "sub_1"),
        ("INSERT OR IGNORE INTO forms (id, name, graduated) VALUES (2, 'Parent', 0)", "sub_1"),
        ("REPLACE INTO forms (id, name, graduated) VALUES (2, 'Parent', 0)", "sub_2"),
        ("PRAGMA recursive_triggers = ON; REPLACE INTO forms (id, name, graduated) VALUES (2, 'Parent', 1)", "sub_1"),
    ] {
        database.execute(form).await;
        assert_eq!(found().await, [shown_in], "{form}");
        let total = account.search("", &json!({})).await["meta"]["total"].as_i64();
        assert_eq!(total, Some(if shown_in == "sub_1" { 1 } else { 2 }), "{form}");
        assert_eq!(
            account.client.get("/api/v1/submission/2").send().await.status == 200,
            shown_in == "sub_2",
            "{form}"
        );
    }
    assert_eq!(account.reindex(), NOTHING_WRONG);
}

#[tokio::test]
async fn searches_are_refused_for_a_while_where_deriving_takes_too_long() {
    let mut account = account(Engine::Postgres, &World::new(50, 0, 20).ndjson());
    let total = account.search("", &json!({})).await["meta"]["total"].as_i64().expect("a number");
    let operator = account.operator();
    let behind = async || operator_count(operator, "formgate_database_behind").await;
    let database = account.database().await;
    let mut written = 0;
    let refused = loop {
        assert!(written < 2_000_000, "no machine derives from that in 3 s");
        database
            .execute(
                "INSERT INTO submissions (form_id, status, created_at, updated_at) \
                 SELECT 1, 'info', now(), now() FROM generate_series(1, 50000)",
            )
            .await;
        written += 50_000;
        let answer = account.client.post("/api/v1/submission").json(&json!({})).send().await;
        if answer.status != 200 {
            break answer;
        }
    };
    assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (503, Some("1")), "{refused:?}");
    assert_eq!(behind().await, 1);
    let readiness = operator_get(operator, "/readyz").await;
    assert_eq!(readiness.status, 200, "other tenants are served");
    assert!(readiness.json().to_string().contains("acme"), "{readiness:?}");
    assert_eq!(account.client.get("/api/v1/form").send().await.status, 200, "nothing but searches waits for it");
    let (mut noted, mut since) = (i64::MAX, Instant::now());
    while behind().await > 0 {
        // However long it takes on this machine: it gets on.
        let [left] = database.integers("SELECT count(*) FROM intake").await;
        if left < noted {
            (noted, since) = (left, Instant::now());
        }
        assert!(since.elapsed() < Duration::from_secs(60), "it goes on without a request");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!operator_get(operator, "/readyz").await.json().to_string().contains("acme"));
    assert_eq!(account.search("", &json!({})).await["meta"]["total"], total + written);
}

#[tokio::test]
async fn settings_of_the_database_change_no_answer_on_postgres() {
    settings_of_the_database_change_no_answer(Engine::Postgres).await;
}

/// The pooler opens new connections to the server, which have new defaults, for sessions that began before.
#[tokio::test]
async fn settings_of_the_database_change_no_answer_through_a_pooler() {
    settings_of_the_database_change_no_answer(Engine::PostgresOn(Server::Pooled)).await;
}

async fn settings_of_the_database_change_no_answer(engine: Engine) {
    let account = account(engine, &World::new(47, 0, 20).ndjson());
    let filters = [json!({}), json!({"search": "an"}), json!({"search": "ing"}), json!({"labels": [1]})];
    let mut before = Vec::new();
    for filter in &filters {
        before.push(account.search("", filter).await);
    }
    let database = account.database().await;
    for setting in
        ["search_path = elsewhere", "standard_conforming_strings = off", "plan_cache_mode = force_generic_plan"]
    {
        database
            .execute(&format!(
                "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET {setting}', current_database()); END $$; \
                 SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ))
            .await;
        database
            .execute(
                "UPDATE submissions SET updated_at = updated_at WHERE id = 1; UPDATE answers SET value = value || ''",
            )
            .await;
        // A pooler may hand out a session that was ended, more than once.
        let began = Instant::now();
        while account.client.post("/api/v1/submission").json(&json!({})).send().await.status == 503 {
            assert!(began.elapsed() < Duration::from_secs(60), "the pooler has only sessions that were ended");
        }
        for (filter, before) in filters.iter().zip(&before) {
            assert_eq!(&account.search("", filter).await, before, "{setting}: {filter}");
        }
        assert_eq!(account.reindex(), NOTHING_WRONG, "{setting}");
    }
}

#[tokio::test]
async fn writers_need_no_search_path_and_no_other_right_on_postgres() {
    let account = account(Engine::Postgres, &World::new(46, 0, 20).ndjson());
    let total = account.search("", &json!({})).await["meta"]["total"].as_i64().expect("a number");
    let database = account.database().await;
    database
        .execute(
            "CREATE ROLE bare_writer; GRANT USAGE ON SCHEMA public TO bare_writer; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON submissions, answers TO bare_writer; \
             SET ROLE bare_writer; SET search_path = ''; SET standard_conforming_strings = off; \
             INSERT INTO public.submissions (id, form_id, status, created_at, updated_at) VALUES (900001, 1, 'info', now(), now()); \
             UPDATE public.submissions SET status = 'denied' WHERE id = 900001",
        )
        .await;
    assert_eq!(account.search("", &json!({})).await["meta"]["total"], total + 1);
    assert_eq!(account.reindex(), NOTHING_WRONG);
}
