//! Readers of single forms while forms are moved in the tree.

use serde_json::json;

use super::follower::{Follower, all_submissions};
use super::{cursor, entries, insert, refused, with_forms};
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn a_reader_of_a_form_begins_again_once_another_came_or_went(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        let client = &account.client;
        // 1 has 3 below it, which has 6; 2 and 4 stand alone; 5 has 7.
        database.execute(
            "INSERT INTO forms (id, name, parent_id) VALUES (5, 'F', NULL), (6, 'F', 3), (7, 'F', 5), (8, 'F', 6)",
        ).await;
        for form in 1..=7 {
            database.execute(&insert(engine, form, &format!("{form}, NULL, FALSE"))).await;
        }
        let mut of_one = Follower::new(client, "forms=for_1&limit=2");
        let mut of_all = Follower::new(client, "");
        of_one.catch_up().await;
        of_all.catch_up().await;
        for (statement, begins_again) in [
            ("UPDATE forms SET parent_id = NULL WHERE id = 3", true),
            ("UPDATE forms SET parent_id = 1 WHERE id = 3", true),
            ("UPDATE forms SET parent_id = 3 WHERE id = 4", true),
            // Within the forms, and among others.
            ("UPDATE forms SET parent_id = 1 WHERE id = 6", false),
            ("UPDATE forms SET parent_id = 3 WHERE id = 6; UPDATE forms SET parent_id = 2 WHERE id = 7", false),
            // The form itself, whose sub-forms follow it.
            ("UPDATE forms SET parent_id = 2 WHERE id = 1", false),
            ("UPDATE forms SET parent_id = NULL WHERE id = 1", false),
            // There and back again.
            ("UPDATE forms SET parent_id = 1 WHERE id = 5; UPDATE forms SET parent_id = NULL WHERE id = 5", false),
            // One that another one leads to.
            ("UPDATE forms SET parent_id = 5 WHERE id = 7", false),
            ("UPDATE forms SET parent_id = 6 WHERE id = 5", true),
            ("BEGIN; UPDATE forms SET parent_id = 2 WHERE id = 5; UPDATE forms SET parent_id = 6 WHERE id = 7; COMMIT", true),
            ("UPDATE forms SET name = 'G', disabled = TRUE WHERE id = 6", false),
            ("UPDATE elements SET name = 'Why'; UPDATE elements SET name = 'Reason'", false),
            // New forms, and one without a submission that goes.
            ("INSERT INTO forms (id, name, parent_id) VALUES (9, 'F', 6)", false),
            ("INSERT INTO forms (id, name) VALUES (10, 'F'); UPDATE forms SET parent_id = 1 WHERE id = 10", false),
            ("DELETE FROM forms WHERE id = 8", false),
        ] {
            let before = of_one.restarts;
            database.execute(statement).await;
            // Whoever looks first gives the numbers.
            cursor(client, "").await;
            of_one.catch_up().await;
            assert_eq!(of_one.restarts - before, usize::from(begins_again), "{statement}");
            assert_eq!(of_one.copy, all_submissions(client, &json!({"forms": [1]})).await, "{statement}");
            assert_eq!(of_one.catch_up().await, [], "{statement}");
            assert_eq!(of_all.catch_up().await, [], "{statement}");
        }
        // Those of a new form come as they are inserted.
        database.execute(&insert(engine, 9, "9, NULL, FALSE")).await;
        assert_eq!(of_one.catch_up().await, entries(&[("created", 9)]));
        // One whose submissions were deleted: they go too.
        database.execute("DELETE FROM submissions WHERE id = 9").await;
        database.execute("DELETE FROM forms WHERE id = 9").await;
        of_one.catch_up().await;
        assert_eq!(of_one.copy, all_submissions(client, &json!({"forms": [1]})).await);
        assert_eq!((of_all.catch_up().await.len(), of_all.restarts), (1, 0));
        assert_eq!(account.reindex(), super::super::submission::NOTHING_WRONG);
    }

    async fn a_form_that_was_moved_unnoticed_is_found_by_reindex(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        database.execute(&insert(engine, 1, "3, NULL, FALSE")).await;
        let here = cursor(&account.client, "&forms=1").await;
        // As if the triggers were disabled.
        database.execute("BEGIN; UPDATE forms SET parent_id = NULL WHERE id = 3; DELETE FROM form_notes; COMMIT").await;
        account.reindex();
        let (status, body) = refused(&account.client, &format!("forms=1&cursor={here}")).await;
        assert_eq!((status, &body["reason"]), (410, &json!("reset")), "{body}");
    }

    async fn a_request_that_waits_for_a_form_is_told_that_it_was_moved(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        database.execute(&insert(engine, 1, "3, NULL, FALSE")).await;
        let here = cursor(&account.client, "&forms=1").await;
        let waiting = async { refused(&account.client, &format!("forms=1&cursor={here}&wait=25")).await };
        let moving = database.execute("UPDATE forms SET parent_id = NULL WHERE id = 3");
        let ((status, body), ()) = tokio::join!(waiting, moving);
        assert_eq!((status, &body["reason"]), (410, &json!("reset")), "{body}");
        let restart = body["links"]["restart"].as_str().expect("a link");
        assert!(restart.ends_with("changes?forms=1&wait=25"), "{restart}");
    }
}
