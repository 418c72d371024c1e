//! Readers of a database that loses its newest commits.

use serde_json::json;

use super::follower::{Follower, all_submissions};
use super::{PATH, cursor, insert, refused, with_forms};
use crate::support::database::Database;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::rewind::Rewind;

async fn insert_all(engine: Engine, database: &Database, ids: impl IntoIterator<Item = i64>) {
    for id in ids {
        database.execute(&insert(engine, id, "1, NULL, FALSE")).await;
    }
}

on_both_databases! {
    async fn a_reader_of_changes_that_the_database_has_lost_begins_again(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        let client = &account.client;
        insert_all(engine, &database, 1..=3).await;
        let behind = cursor(client, "").await;
        // As many numbers as were lost, fewer, and more.
        for (round, later) in [(1, 2), (2, 1), (3, 4)] {
            let (lost, later) = (100 * round..100 * round + 2, 100 * round + 50..100 * round + 50 + later);
            let mut followers = ["", "limit=1", "forms=1"].map(|query| Follower::new(client, query));
            for follower in &mut followers {
                follower.catch_up().await;
            }
            let kept = Rewind::to_now(&database).await;
            insert_all(engine, &database, lost.clone()).await;
            for follower in &mut followers {
                assert_eq!(follower.catch_up().await.len(), 2);
            }
            kept.go_back().await;
            insert_all(engine, &database, later).await;
            for follower in &mut followers {
                follower.catch_up().await;
                assert_eq!(follower.copy, all_submissions(client, &json!({})).await, "round {round}");
            }
            assert_eq!(followers.each_ref().map(|follower| follower.restarts), [1; 3], "round {round}");
        }
        // One who has seen nothing that was lost goes on.
        let (status, body) = refused(client, &format!("cursor={behind}")).await;
        assert_eq!((status, body["data"].as_array().map(Vec::len)), (200, Some(7)), "{body}");
    }

    async fn a_reader_that_was_told_less_than_it_could_have_read_begins_again_too(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        insert_all(engine, &database, 1..=3).await;
        cursor(&account.client, "").await;
        let kept = Rewind::to_now(&database).await;
        // It has a later number now, so a page that ends before leaves it out.
        database.execute("UPDATE submissions SET status = 'denied' WHERE id = 1").await;
        let mut follower = Follower::new(&account.client, "limit=1");
        assert_eq!(follower.pull().await, (vec![("created".to_owned(), "sub_2".to_owned())], true));
        kept.go_back().await;
        insert_all(engine, &database, 11..=12).await;
        follower.catch_up().await;
        assert_eq!(follower.copy, all_submissions(&account.client, &json!({})).await);
        assert_eq!(follower.restarts, 1);
    }

    async fn a_request_that_waits_for_a_log_that_goes_back_is_told(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        insert_all(engine, &database, 1..=3).await;
        cursor(&account.client, "").await;
        let kept = Rewind::to_now(&database).await;
        insert_all(engine, &database, 11..=12).await;
        let here = cursor(&account.client, "").await;
        let waiting = async { refused(&account.client, &format!("cursor={here}&wait=25")).await };
        let other = async {
            kept.go_back().await;
            // As many as were lost: the log ends with the number that the request waits at.
            insert_all(engine, &database, 21..=22).await;
            all_submissions(&account.client, &json!({})).await;
        };
        let ((status, body), ()) = tokio::join!(waiting, other);
        assert_eq!(status, 410, "{body}");
        assert!([json!("reset"), json!("ahead")].contains(&body["reason"]), "{body}");
    }

    async fn a_cursor_is_accepted_as_long_as_its_stamp_is_kept(engine: Engine) {
        let (account, database) = with_forms(engine).await;
        let client = &account.client;
        let mut cursors = Vec::new();
        for id in 1..=3 {
            insert_all(engine, &database, [id]).await;
            cursors.push(cursor(client, "").await);
        }
        let long_ago = super::at(engine, -200 * 86_400);
        // The second one was the newest for 90 days and more.
        database.execute(&format!("UPDATE change_stamps SET at = {long_ago} WHERE seq < 3")).await;
        account.reindex();
        assert_eq!(database.integers("SELECT count(*) FROM change_stamps").await, [2]);
        let mut outcomes = Vec::new();
        for cursor in &cursors {
            let (status, body) = refused(client, &format!("cursor={cursor}")).await;
            outcomes.push((status, body["reason"].clone()));
        }
        assert_eq!(outcomes, [(410, json!("expired")), (200, json!(null)), (200, json!(null))]);
        // That of a quiet account never gets too old.
        database.execute(&format!("UPDATE change_stamps SET at = {long_ago}")).await;
        account.reindex();
        assert_eq!(database.integers("SELECT count(*) FROM change_stamps").await, [1]);
        assert_eq!(refused(client, &format!("cursor={}", cursors[2])).await.0, 200);
        assert_eq!(client.get(&format!("{PATH}?limit=1")).send().await.status, 200);
    }
}
