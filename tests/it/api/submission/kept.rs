//! Totals are exact after whatever anybody writes by SQL, in whatever order, at once, and when it is taken back.

use serde_json::{Value, json};

use super::NOTHING_WRONG;
use crate::api::account::{Account, account};
use crate::api::world::{STATUSES, World};
use crate::support::client::wait_for_count;
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};

/// Searches whose totals are kept.
fn kept_filters(base: i64) -> Vec<Value> {
    let mut filters = vec![json!({}), json!({"sortBy": "created_at", "sortDirection": "asc"})];
    filters.extend((1..=8).map(|form| json!({"forms": [base + form]})));
    filters.extend((1..=4).map(|form| json!({"forms": [base + form], "statuses": ["pending", "info", "pending"]})));
    filters.push(json!({"statuses": ["approved"]}));
    filters.push(json!({"statuses": ["approved", "denied"], "sortDirection": "asc"}));
    filters.extend((1..=5).flat_map(|label| {
        [json!({"labels": [base + label]}), json!({"sharedLabels": [base + label], "sortDirection": "asc"})]
    }));
    for (start, end) in [("2024-03-31", "2024-10-26"), ("2024-06-15T12:00:00Z", "2024-06-15T12:00:00.5Z")] {
        filters.push(json!({"start": start}));
        filters.push(json!({"end": end, "sortDirection": "asc"}));
        filters.push(json!({"start": start, "end": end}));
        filters.push(json!({"start": start, "end": end, "sortBy": "created_at"}));
    }
    filters
}

on_both_databases! {
    async fn totals_follow_rows_written_by_sql(engine: Engine) {
        let mut world = World::new(11, 3000, 150);
        let account = account(engine, &world.ndjson());
        let database = account.database().await;
        for round in 0..12 {
            for _ in 0..20 {
                database.execute(&world.change()).await;
            }
            for filter in kept_filters(3000) {
                let expected = world.search(&filter);
                let page = 1 + round % expected.len().div_ceil(20).max(1);
                let answer = account.search(&format!("?page={page}"), &filter).await;
                assert_eq!(answer["meta"]["total"], expected.len(), "{filter}");
                let on_page = expected.chunks(20).nth(page - 1).unwrap_or_default();
                assert_eq!(answer["data"].as_array().unwrap(), on_page, "page {page} of {filter}");
            }
            let filter = world.filter();
            assert_eq!(account.search("", &filter).await["meta"]["total"], world.search(&filter).len(), "{filter}");
        }
        assert_eq!(account.reindex(), NOTHING_WRONG);
    }

    async fn what_is_taken_back_does_not_count(engine: Engine) {
        let world = World::new(12, 0, 40);
        let account = account(engine, &world.ndjson());
        let before = account.search("", &json!({})).await["meta"].clone();
        let database = account.database().await;
        let copy = "INSERT INTO submissions (form_id, status, created_at, updated_at) SELECT form_id, status, created_at, updated_at FROM submissions";
        database.execute(&format!("BEGIN; {copy}; SAVEPOINT a; {copy}; ROLLBACK TO a; DELETE FROM submission_labels; ROLLBACK")).await;
        assert_eq!(account.search("", &json!({})).await["meta"], before);
        assert_eq!(account.reindex(), NOTHING_WRONG);
    }

    async fn writers_at_once_leave_exact_totals(engine: Engine) {
        let account = account(engine, &World::new(13, 0, 60).ndjson());
        let writers = (0..6_u64).map(|writer| {
            let connecting = account.database();
            async move {
                let database = connecting.await;
                if let Database::Sqlite(_) = database {
                    database.execute("PRAGMA busy_timeout = 60000").await;
                }
                let begin = if let Database::Sqlite(_) = database { "BEGIN IMMEDIATE" } else { "BEGIN" };
                for round in 0..15 {
                    // Rows of the writer's own, so that writers meet in the counts alone.
                    let (id, form, label) = (1000 * (writer + 1) + round, 1 + round % 8, 1 + round % 5);
                    let at = if let Database::Sqlite(_) = database { "1700000000000000" } else { "now()" };
                    let end = if round % 4 == 3 { "ROLLBACK" } else { "COMMIT" };
                    let status = STATUSES[usize::try_from(round % 6).unwrap()];
                    database.execute(&format!(
                        "{begin}; INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES ({id}, {form}, '{status}', {at}, {at}); \
                         INSERT INTO submission_labels (submission_id, label_id) VALUES ({id}, {label}); \
                         UPDATE submissions SET draft = true WHERE id = {id} - 1; \
                         DELETE FROM submissions WHERE id = {id} - 5; {end}"
                    )).await;
                }
            }
        });
        futures_util::future::join_all(writers).await;
        assert_eq!(account.reindex(), NOTHING_WRONG);
    }
}

#[tokio::test]
async fn writers_to_one_form_do_not_wait_for_each_other_on_postgres() {
    let account = account(Engine::Postgres, &World::new(14, 0, 20).ndjson());
    let total = account.search("", &json!({})).await["meta"]["total"].as_i64().unwrap();
    let insert =
        "INSERT INTO submissions (form_id, status, created_at, updated_at) VALUES (1, 'pending', now(), now())";
    let (one, other) = (account.database().await, account.database().await);
    one.execute(&format!("BEGIN; {insert}; {insert}")).await;
    other.execute(&format!("SET lock_timeout = '2s'; {insert}")).await;
    assert_eq!(account.search("", &json!({})).await["meta"]["total"], total + 1);
    one.execute("COMMIT").await;
    assert_eq!(account.search("", &json!({})).await["meta"]["total"], total + 3);

    // A snapshot of the whole transaction never fails on a count either.
    one.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM submissions").await;
    other.execute(insert).await;
    one.execute(&format!("{insert}; COMMIT")).await;
    assert_eq!(account.search("", &json!({})).await["meta"]["total"], total + 5);

    one.execute("TRUNCATE submissions CASCADE").await;
    assert_eq!(account.search("", &json!({})).await["meta"]["total"], 0);
}

/// Three submissions of a form and two labels, by SQL.
const LABELLED: &str = "INSERT INTO forms (id, name) VALUES (1, 'F'); INSERT INTO labels (id, name) VALUES (1, 'L'), (2, 'M'); \
    INSERT INTO submissions (id, form_id, status, created_at, updated_at) \
    SELECT i, 1, 'pending', timestamptz '2024-05-01T00:00:00Z', timestamptz '2024-05-01T00:00:00Z' + i * interval '1 second' \
    FROM generate_series(1, 3) AS i";

/// Asserts what a label finds.
async fn assert_labelled(account: &Account, label: i64, expected: &[&str]) {
    let found = account.search("", &json!({"labels": [label]})).await;
    let ids: Vec<_> = found["data"].as_array().unwrap().iter().map(|found| found["id"].as_str().unwrap()).collect();
    assert_eq!(ids, expected, "label {label}");
    assert_eq!(found["meta"]["total"], expected.len(), "label {label}");
}

#[tokio::test]
async fn labels_attached_in_opposite_order_do_not_block_on_postgres() {
    let account = account(Engine::Postgres, "");
    let (one, other) = (account.database().await, account.database().await);
    one.execute(LABELLED).await;
    for writer in [&one, &other] {
        writer.execute("SET lock_timeout = '2s'; BEGIN").await;
    }
    one.execute("INSERT INTO submission_labels (submission_id, label_id) VALUES (1, 1)").await;
    other.execute("INSERT INTO submission_labels (submission_id, label_id) VALUES (2, 2)").await;
    one.execute("INSERT INTO submission_labels (submission_id, label_id) VALUES (2, 1), (3, 1)").await;
    other.execute("INSERT INTO submission_labels (submission_id, label_id) VALUES (1, 2)").await;
    assert_labelled(&account, 1, &[]).await;
    one.execute("COMMIT").await;
    assert_labelled(&account, 1, &["sub_3", "sub_2", "sub_1"]).await;
    assert_labelled(&account, 2, &[]).await;
    other.execute("COMMIT").await;
    assert_labelled(&account, 1, &["sub_3", "sub_2", "sub_1"]).await;
    assert_labelled(&account, 2, &["sub_2", "sub_1"]).await;

    one.execute("UPDATE submissions SET updated_at = updated_at + interval '1 hour' WHERE id IN (1, 2)").await;
    assert_labelled(&account, 1, &["sub_2", "sub_1", "sub_3"]).await;
    assert_eq!(one.integers("SELECT count(*) FROM intake").await, [0]);
    assert_eq!(account.reindex(), NOTHING_WRONG);
}

#[tokio::test]
async fn labels_change_concurrently_with_their_submissions_on_postgres() {
    let account = account(Engine::Postgres, "");
    let (one, other) = (account.database().await, account.database().await);
    one.execute(LABELLED).await;
    one.execute("INSERT INTO submission_labels (submission_id, label_id) VALUES (1, 1), (2, 1)").await;
    other.execute("SET lock_timeout = '2s'").await;
    for (isolation, end) in
        [("READ COMMITTED", "COMMIT"), ("REPEATABLE READ", "COMMIT"), ("READ COMMITTED", "ROLLBACK")]
    {
        one.execute(&format!("BEGIN ISOLATION LEVEL {isolation}; SELECT count(*) FROM labels")).await;
        // Put on before the change, and taken off and put on after it.
        other.execute("INSERT INTO submission_labels (submission_id, label_id) VALUES (3, 1)").await;
        one.execute("UPDATE submissions SET updated_at = updated_at + interval '1 hour' WHERE id IN (1, 3)").await;
        other.execute("DELETE FROM submission_labels WHERE submission_id = 1").await;
        other.execute("INSERT INTO submission_labels (submission_id, label_id) VALUES (1, 2)").await;
        assert_labelled(&account, 1, &["sub_3", "sub_2"]).await;
        one.execute(end).await;
        assert_labelled(&account, 1, &["sub_3", "sub_2"]).await;
        assert_labelled(&account, 2, &["sub_1"]).await;
        assert_eq!(account.reindex(), NOTHING_WRONG);
        assert_eq!(one.integers("SELECT count(*) FROM intake").await, [0]);
        assert_labelled(&account, 1, &["sub_3", "sub_2"]).await;
        one.execute("DELETE FROM submission_labels; INSERT INTO submission_labels (submission_id, label_id) VALUES (1, 1), (2, 1)").await;
    }

    // A submission that goes takes its labels along, whoever holds them.
    one.execute("BEGIN; DELETE FROM submissions WHERE id = 3").await;
    other.execute("DELETE FROM submission_labels WHERE submission_id = 2; DELETE FROM submissions WHERE id = 2").await;
    one.execute("COMMIT").await;
    assert_labelled(&account, 1, &["sub_1"]).await;
    assert_eq!(account.reindex(), NOTHING_WRONG);
}

on_both_databases! {
    async fn rows_that_are_derived_wrongly_are_counted_and_reported(engine: Engine) {
        let mut account = account(engine, "");
        let database = account.database().await;
        let form = "INSERT INTO forms (id, name) VALUES (1, 'Leave');";
        let at = if engine == Engine::Postgres { "now()" } else { "1700000000000000" };
        let submission = format!(
            "INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES (1, 1, 'approved', {at}, {at})"
        );
        database.execute(&format!("{form} {submission}")).await;
        assert_eq!(account.search("", &json!({})).await["meta"]["total"], 1);
        database.execute("DELETE FROM listed_submissions").await;
        // The submission that is not listed, and the sum of the counts. The next count is due in a day, or when a node starts.
        account.crash();
        let operator = account.operator();
        wait_for_count(operator, "formgate_database_wrong_rows", 2).await;
        account.reindex();
        account.reload();
        wait_for_count(operator, "formgate_database_wrong_rows", 0).await;
    }
}
