//! `GET /submission/changes`: the feed of changes.

mod copied;
pub(crate) mod follower;
mod form_tree;
mod history;
mod recipes;
mod waiting;

use serde_json::{Value, json};

use self::follower::{Follower, all_submissions};
use super::account::{Account, account};
use super::world::World;
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_all_databases, on_both_databases};

const PATH: &str = "/api/v1/submission/changes";

/// Two forms, the second graduated; a sub-form of the first. Elements, a label, a user and a flow step.
const FORMS: &str = "
    INSERT INTO forms (id, name, graduated, parent_id) VALUES (1, 'Leave', FALSE, NULL), (2, 'Order', TRUE, NULL),
      (3, 'Sub-form', FALSE, 1), (4, 'Item', FALSE, NULL);
    INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (10, 1, 0, 'a', 'Reason', 'text'),
      (11, 1, 1, 'b', 'Reason', 'text'), (20, 2, 0, 'c', 'Reason', 'text'), (40, 4, 0, 'd', 'Reason', 'text');
    INSERT INTO labels (id, name) VALUES (5, 'urgent');
    INSERT INTO flow_steps (id, form_id, name) VALUES (7, 1, 'check');
";

fn user(engine: Engine) -> &'static str {
    match engine {
        Engine::Sqlite => {
            "INSERT INTO users (id, email, email_folded) VALUES (6, 'ana@acme.example', 'ana@acme.example')"
        }
        _ => "INSERT INTO users (id, email) VALUES (6, 'ana@acme.example')",
    }
}

/// An instant, in seconds after the first one.
fn at(engine: Engine, seconds: i64) -> String {
    match engine {
        Engine::Sqlite => format!("{}", (1_772_366_400 + seconds) * 1_000_000),
        _ => format!("to_timestamp({})", 1_772_366_400 + seconds),
    }
}

/// A statement that inserts a submission. `more` has the values of `form_id, parent_id, draft`.
fn insert(engine: Engine, id: i64, more: &str) -> String {
    let at = at(engine, id);
    format!(
        "INSERT INTO submissions (id, status, created_at, updated_at, form_id, parent_id, draft) \
         VALUES ({id}, 'pending', {at}, {at}, {more})"
    )
}

fn answer(engine: Engine, submission: i64, element: i64, value: &str) -> String {
    let at = at(engine, submission);
    format!(
        "INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES ({submission}, {element}, '{value}', {at})"
    )
}

async fn with_forms(engine: Engine) -> (Account, Database) {
    let account = account(engine, "");
    let database = account.database().await;
    database.execute(FORMS).await;
    database.execute(user(engine)).await;
    (account, database)
}

fn entries(expected: &[(&str, i64)]) -> Vec<(String, String)> {
    let mut entries: Vec<_> = expected.iter().map(|(kind, id)| ((*kind).to_owned(), format!("sub_{id}"))).collect();
    entries.sort();
    entries
}

async fn refused(client: &Client, query: &str) -> (u16, Value) {
    let answer = client.get(&format!("{PATH}?{query}")).send().await;
    (answer.status.as_u16(), answer.json())
}

/// The cursor at the end of the feed.
async fn cursor(client: &Client, parameters: &str) -> String {
    let answer = client.get(&format!("{PATH}?cursor=now{parameters}")).send().await;
    answer.json()["meta"]["cursor"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned()
}

on_all_databases! {
    async fn each_kind_of_change_is_one_entry_and_nothing_else_is_any(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        let mut follower = Follower::new(&account.client, "");
        assert_eq!(follower.catch_up().await, []);
        let instant = at(engine, 999);
        let written = |statement: String, expected: &'static [(&'static str, i64)]| (statement, expected);
        for (statement, expected) in [
            written(insert(engine, 1, "1, NULL, FALSE"), &[("created", 1)]),
            written(answer(engine, 1, 10, "Holiday"), &[("updated", 1)]),
            written("UPDATE answers SET value = 'Holiday' WHERE submission_id = 1".into(), &[]),
            written("UPDATE submissions SET status = 'pending' WHERE id = 1".into(), &[]),
            written("UPDATE answers SET value = 'Sick' WHERE submission_id = 1".into(), &[("updated", 1)]),
            written("UPDATE submissions SET status = 'approved' WHERE id = 1".into(), &[("updated", 1)]),
            written(format!("UPDATE submissions SET updated_at = {instant} WHERE id = 1"), &[("updated", 1)]),
            written("UPDATE submissions SET form_id = 3 WHERE id = 1".into(), &[("updated", 1)]),
            written("UPDATE submissions SET form_id = 1 WHERE id = 1".into(), &[("updated", 1)]),
            written("INSERT INTO submission_labels (submission_id, label_id) VALUES (1, 5)".into(), &[("updated", 1)]),
            written("INSERT INTO submission_pending (submission_id, user_id) VALUES (1, 6)".into(), &[("updated", 1)]),
            written("INSERT INTO submission_participants (submission_id, user_id) VALUES (1, 6)".into(), &[("updated", 1)]),
            written("INSERT INTO submission_flow_steps (submission_id, flow_step_id) VALUES (1, 7)".into(), &[("updated", 1)]),
            written("DELETE FROM submission_pending".into(), &[("updated", 1)]),
            written("UPDATE forms SET name = 'Holiday' WHERE id = 1".into(), &[]),
            written("UPDATE elements SET name = 'Why'; UPDATE elements SET name = 'Reason'".into(), &[]),
            // Drafts.
            written(insert(engine, 2, "1, NULL, TRUE"), &[]),
            written(answer(engine, 2, 10, "Later"), &[]),
            written("UPDATE submissions SET draft = FALSE WHERE id = 2".into(), &[("created", 2)]),
            written("UPDATE submissions SET draft = TRUE WHERE id = 2".into(), &[("deleted", 2)]),
            written("UPDATE submissions SET status = 'denied' WHERE id = 2".into(), &[]),
            written("DELETE FROM submissions WHERE id = 2".into(), &[]),
            // Children of a submission of a graduated form.
            written(insert(engine, 3, "2, NULL, FALSE"), &[("created", 3)]),
            written(insert(engine, 4, "4, 3, FALSE"), &[("updated", 3)]),
            written(answer(engine, 4, 40, "Chair"), &[("updated", 3)]),
            written("UPDATE submissions SET parent_id = NULL WHERE id = 4".into(), &[("created", 4), ("updated", 3)]),
            written("UPDATE submissions SET parent_id = 3 WHERE id = 4".into(), &[("deleted", 4), ("updated", 3)]),
            written("UPDATE forms SET graduated = FALSE WHERE id = 2".into(), &[("created", 4), ("updated", 3)]),
            written("UPDATE forms SET graduated = TRUE WHERE id = 2".into(), &[("deleted", 4), ("updated", 3)]),
            written("DELETE FROM submissions WHERE id = 4".into(), &[("updated", 3)]),
            // Deleted and inserted again, at once and one after the other.
            written("DELETE FROM submissions WHERE id = 1".into(), &[("deleted", 1)]),
            written(insert(engine, 1, "1, NULL, FALSE"), &[("created", 1)]),
            written(
                format!("BEGIN; DELETE FROM submissions WHERE id = 1; {}; COMMIT", insert(engine, 1, "1, NULL, FALSE")),
                &[],
            ),
            written(format!("BEGIN; {}; ROLLBACK", insert(engine, 9, "1, NULL, FALSE")), &[]),
        ] {
            database.execute(&statement).await;
            let mut seen = follower.catch_up().await;
            seen.sort();
            assert_eq!(seen, entries(expected), "{statement}");
            assert_eq!(follower.copy, all_submissions(&account.client, &json!({})).await, "{statement}");
        }
        assert_eq!(follower.restarts, 0);
        // A search may have numbered what it found, and the feed has it all the same.
        database.execute("UPDATE submissions SET status = 'back'").await;
        all_submissions(&account.client, &json!({})).await;
        assert_eq!(follower.catch_up().await.len(), 2);
        let mut late = Follower::new(&account.client, "limit=1");
        assert_eq!(late.catch_up().await, entries(&[("created", 1), ("created", 3)]));
        assert_eq!(late.copy, follower.copy);
    }

    async fn an_import_is_followed_and_the_same_one_again_changes_nothing(engine: Engine) {
        let world = World::new(5, 0, 70);
        let account = account(engine, &world.ndjson());
        let mut follower = Follower::new(&account.client, "limit=7");
        let seen = follower.catch_up().await;
        assert!(seen.len() > 20 && seen.iter().all(|(kind, _)| kind == "created"), "{seen:?}");
        assert_eq!(follower.copy, all_submissions(&account.client, &json!({})).await);
        account.import(&world.ndjson());
        assert_eq!(follower.catch_up().await, []);
        account.import(&world.ndjson().replace("\"pending\"", "\"denied\""));
        assert_ne!(follower.catch_up().await, []);
        assert_eq!(follower.copy, all_submissions(&account.client, &json!({})).await);
    }
}

on_both_databases! {
    async fn a_cursor_that_leads_nowhere_says_why_and_where_to_begin(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        let other = super::account::account(engine, "");
        for id in 1..=3 {
            database.execute(&insert(engine, id, "1, NULL, FALSE")).await;
        }
        let client = &account.client;
        let lost = async |cursor: &str, reason: &str| {
            let (status, body) = refused(client, &format!("limit=2&cursor={cursor}")).await;
            assert_eq!((status, &body["reason"]), (410, &json!(reason)), "{body}");
            let restart = body["links"]["restart"].as_str().expect("a link");
            let path = restart.split_once("/api/").map(|(_, path)| format!("/api/{path}")).expect("a path of the API");
            assert!(path.ends_with("changes?limit=2"), "{restart}");
            assert_eq!(client.get(&path).send().await.status, 200);
        };
        lost(&cursor(&other.client, "").await, "reset").await;

        let here = cursor(client, "").await;
        database.execute("DELETE FROM submissions WHERE id = 1").await;
        let mut follower = Follower::new(client, "");
        follower.catch_up().await;
        let past = at(engine, -200 * 86_400);
        database.execute(&format!("UPDATE submission_changes SET changed_at = {past} WHERE deleted")).await;
        assert_eq!(account.run(&["migrate"]).code, 0);
        lost(&here, "expired").await;
        assert_eq!(follower.catch_up().await, [], "it has seen the deletion");

        let here = cursor(client, "").await;
        database.execute("UPDATE change_state SET last_seq = 1").await;
        lost(&here, "ahead").await;
        database.execute("UPDATE change_state SET last_seq = 4").await;
        let done = account.run(&["changes", "reset", "--tenant", "acme"]);
        assert_eq!(done.code, 0, "{done:?}");
        lost(&here, "reset").await;
        let here = cursor(client, "").await;

        database.execute(match engine {
            Engine::Sqlite => "DELETE FROM submissions; INSERT INTO intake DEFAULT VALUES",
            _ => "TRUNCATE submissions CASCADE",
        }).await;
        all_submissions(client, &json!({})).await;
        lost(&here, "reset").await;
        assert_eq!(Follower::new(client, "").catch_up().await, []);
    }

    async fn a_log_without_its_state_makes_the_account_unavailable_until_reindex(engine: Engine) {
        let (mut account, database) = with_forms(engine).await;
        database.execute(&insert(engine, 1, "1, NULL, FALSE")).await;
        let here = cursor(&account.client, "").await;
        database.execute(&insert(engine, 2, "1, NULL, FALSE")).await;
        database.execute("DELETE FROM change_state").await;
        for query in ["", "cursor=now", &format!("cursor={here}")] {
            assert_eq!(refused(&account.client, query).await.0, 503, "{query}");
        }
        let search = account.client.post("/api/v1/submission").json(&json!({}));
        assert_eq!(search.send().await.status, 503, "what was written can't be numbered");
        let log = account.log();
        assert!(log.contains("has lost a row") && log.contains("`formgate reindex`"), "{log}");
        let done = account.run(&["reindex", "--tenant", "acme"]);
        assert_eq!(done.code, 0, "{done:?}");
        assert_eq!(refused(&account.client, &format!("cursor={here}")).await.0, 410);
        assert_eq!(all_submissions(&account.client, &json!({})).await.len(), 2);
    }

    async fn bad_parameters_are_faults_of_their_own(engine: Engine) {
        let (account, _) = with_forms(engine).await;
        let client = &account.client;
        let of_one = cursor(client, "&forms=for_1").await;
        let of_all = cursor(client, "").await;
        for (query, field) in [
            ("cursor=".to_owned(), "cursor"),
            ("cursor=x".to_owned(), "cursor"),
            (format!("cursor={}", &of_all[1..]), "cursor"),
            (format!("cursor={of_all}&forms=1"), "cursor"),
            (format!("cursor={of_one}"), "cursor"),
            (format!("cursor={of_one}&forms=1,2"), "cursor"),
            ("limit=0".to_owned(), "limit"),
            ("limit=501".to_owned(), "limit"),
            ("limit=-1".to_owned(), "limit"),
            ("wait=26".to_owned(), "wait"),
            ("wait=x".to_owned(), "wait"),
            ("forms=".to_owned(), "forms"),
            ("forms=1,,2".to_owned(), "forms"),
            ("forms=sub_1".to_owned(), "forms"),
            (format!("forms={}", vec!["1"; 101].join(",")), "forms"),
        ] {
            let (status, body) = refused(client, &query).await;
            assert_eq!(status, 422, "{query}: {body}");
            assert_eq!(body["errors"].as_object().expect("faults").keys().collect::<Vec<_>>(), [field], "{query}: {body}");
        }
        let same = client.get(&format!("{PATH}?cursor={of_one}&forms=for_1,1")).send().await;
        assert_eq!(same.status, 200, "{same:?}");
        assert_eq!(client.post(PATH).send().await.status, 405);
        assert_eq!(client.get("/api/v1/submission/1x").send().await.status, 404);
    }

    async fn the_feed_of_a_form_has_its_sub_forms_and_what_leaves_them(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        for (id, form) in [(1, 1), (2, 2), (3, 3), (4, 4)] {
            database.execute(&insert(engine, id, &format!("{form}, NULL, FALSE"))).await;
        }
        let mut follower = Follower::new(&account.client, "forms=for_1,4");
        assert_eq!(follower.catch_up().await, entries(&[("created", 1), ("created", 3), ("created", 4)]));
        for (statement, expected) in [
            ("UPDATE submissions SET status = 'info' WHERE id = 2", &[][..]),
            ("UPDATE submissions SET form_id = 3 WHERE id = 1", &[("updated", 1)]),
            ("UPDATE submissions SET form_id = 2 WHERE id = 1", &[("deleted", 1)]),
            ("UPDATE submissions SET form_id = 1 WHERE id IN (1, 2)", &[("created", 1), ("created", 2)]),
            ("DELETE FROM submissions WHERE id = 3", &[("deleted", 3)]),
        ] {
            database.execute(statement).await;
            let mut seen = follower.catch_up().await;
            seen.sort();
            assert_eq!(seen, entries(expected), "{statement}");
        }
        assert_eq!(follower.copy, all_submissions(&account.client, &json!({})).await);
        // One that leaves two of the forms, one after the other, is deleted once.
        for form in [3, 2] {
            database.execute(&format!("UPDATE submissions SET form_id = {form} WHERE id = 1")).await;
            cursor(&account.client, "").await;
        }
        assert_eq!(follower.catch_up().await, entries(&[("deleted", 1)]));
        database.execute("UPDATE submissions SET form_id = 1 WHERE id = 1").await;
        assert_eq!(follower.catch_up().await, entries(&[("created", 1)]));
        // More sub-forms than are looked up one after the other.
        for form in 100..200 {
            database.execute(&format!("INSERT INTO forms (id, name, parent_id) VALUES ({form}, 'F', 1)")).await;
        }
        let mut follower = Follower::new(&account.client, "forms=1,4&limit=2");
        follower.catch_up().await;
        assert_eq!(follower.copy, all_submissions(&account.client, &json!({})).await);
        database.execute("UPDATE submissions SET form_id = 150 WHERE id = 4").await;
        assert_eq!(follower.catch_up().await, entries(&[("updated", 4)]));
        for form in [101, 2] {
            database.execute(&format!("UPDATE submissions SET form_id = {form} WHERE id = 4")).await;
            cursor(&account.client, "").await;
        }
        assert_eq!(follower.catch_up().await, entries(&[("deleted", 4)]));
    }

    async fn a_page_of_large_submissions_is_streamed(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        let long = "x".repeat(300_000);
        for id in 1..=8 {
            database.execute(&insert(engine, id, "1, NULL, FALSE")).await;
            database.execute(&answer(engine, id, 10, &format!("{id}{long}"))).await;
        }
        let mut follower = Follower::new(&account.client, "");
        follower.catch_up().await;
        assert_eq!(follower.copy, all_submissions(&account.client, &json!({})).await);
        database.execute("UPDATE submissions SET status = 'denied' WHERE id > 1; DELETE FROM submissions WHERE id IN (2, 7)").await;
        let mut seen = follower.catch_up().await;
        seen.sort();
        let updated = [("updated", 3), ("updated", 4), ("updated", 5), ("updated", 6), ("updated", 8)];
        assert_eq!(seen, entries(&[&updated[..], &[("deleted", 2), ("deleted", 7)]].concat()));
        assert_eq!(follower.copy, all_submissions(&account.client, &json!({})).await);
    }

    async fn a_submission_above_a_mebibyte_is_an_entry_like_any_other(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        let long = "é".repeat(600_000);
        for (id, value) in [(1, "a"), (2, &*long), (3, "c")] {
            database.execute(&insert(engine, id, "1, NULL, FALSE")).await;
            database.execute(&answer(engine, id, 10, value)).await;
        }
        // Of a graduated form, whose child has the length.
        database.execute(&insert(engine, 4, "2, NULL, FALSE")).await;
        database.execute(&insert(engine, 5, "4, 4, FALSE")).await;
        database.execute(&answer(engine, 5, 40, &long)).await;
        let mut followers = ["", "limit=1", "limit=2", "forms=1,2"].map(|query| Follower::new(&account.client, query));
        for follower in &mut followers {
            follower.catch_up().await;
            let all = all_submissions(&account.client, &json!({})).await;
            assert!(all.len() == 4 && follower.copy == all && follower.restarts == 0, "{:?}", follower.copy.keys());
        }
        database.execute("DELETE FROM submissions WHERE id = 1; UPDATE submissions SET status = 'denied' WHERE id IN (2, 4)").await;
        let expected = entries(&[("deleted", 1), ("updated", 2), ("updated", 4)]);
        for follower in &mut followers {
            let mut seen = follower.catch_up().await;
            seen.sort();
            assert_eq!(seen, expected);
            assert!(follower.copy == all_submissions(&account.client, &json!({})).await);
        }
        // One that waits gets it too.
        let mut waiting = Follower::new(&account.client, "wait=25");
        waiting.catch_up().await;
        let writing = database.execute("UPDATE submissions SET status = 'info' WHERE id = 2");
        let ((seen, _), ()) = tokio::join!(waiting.pull(), writing);
        assert_eq!((seen, &waiting.copy["sub_2"]["status"]), (entries(&[("updated", 2)]), &json!("info")));
    }

    async fn a_change_that_the_log_did_not_notice_is_found_and_added(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        for id in 1..=3 {
            database.execute(&insert(engine, id, "1, NULL, FALSE")).await;
        }
        let mut follower = Follower::new(&account.client, "");
        follower.catch_up().await;
        let warning = "submissions changed without an entry in the change log";
        let checked = account.run(&["check", "--deep"]);
        assert!(!checked.stdout.contains(warning), "{checked:?}");
        // As if the log had seen what was there before the triggers were disabled.
        database.execute("UPDATE submission_changes SET shown = shown - 1 WHERE submission_id = 2").await;
        database.execute("UPDATE submission_changes SET matched = matched - 1 WHERE submission_id = 3").await;
        let checked = account.run(&["check", "--deep"]);
        assert!(checked.stdout.contains(&format!("warning: tenant `acme`: 2 {warning}")), "{checked:?}");
        // What is in the intake will be noticed.
        database.execute("UPDATE submissions SET status = 'denied' WHERE id = 2").await;
        let checked = account.run(&["check", "--deep"]);
        assert!(checked.stdout.contains(&format!("warning: tenant `acme`: 1 {warning}")), "{checked:?}");
        assert_eq!(account.run(&["reindex", "--tenant", "acme"]).code, 0);
        assert!(!account.run(&["check", "--deep"]).stdout.contains(warning));
        let mut seen = follower.catch_up().await;
        seen.sort();
        assert_eq!(seen, entries(&[("updated", 2), ("updated", 3)]));
    }
}
