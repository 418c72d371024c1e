//! The feed goes on from the cursor of an export without a gap, and `since` has what changed.

use serde_json::{Value, json};

use super::{PATH, export, export_matching, filled};
use crate::api::account::account;
use crate::api::changes::follower::{Follower, all_submissions};
use crate::api::world::World;
use crate::support::fixture::{on_all_databases, on_both_databases};

on_all_databases! {
    async fn what_changes_after_an_export_is_in_the_feed_from_its_cursor(engine: Engine) {
        let (account, _) = filled(engine, 1..8, "x");
        let database = account.database().await;
        for (parameters, forms) in [("", ""), ("&form=1", "forms=1")] {
            let exported = export(&account.client, parameters).await;
            let mut follower = Follower::from(&account.client, forms, exported.copy(), &exported.cursor);
            assert_eq!(follower.catch_up().await, [], "nothing changed");
            let id = if forms.is_empty() { 1 } else { 3 };
            database
                .execute(&format!(
                    "DELETE FROM answers WHERE submission_id = {id}; DELETE FROM submissions WHERE id = {id};
                     UPDATE answers SET value = 'new{forms}' WHERE submission_id = {};
                     UPDATE submissions SET form_id = 3 - form_id WHERE id = {}",
                    id + 1,
                    id + 3,
                ))
                .await;
            let changed = follower.catch_up().await;
            assert!(changed.contains(&("deleted".to_owned(), format!("sub_{id}"))), "{changed:?}");
            let filter = if forms.is_empty() { json!({}) } else { json!({"forms": [1]}) };
            assert_eq!(follower.copy, all_submissions(&account.client, &filter).await);
            assert_eq!(follower.restarts, 0);

            // The same by an export of what changed.
            let mut copy = exported.copy();
            let since = export(&account.client, &format!("{parameters}&since={}", exported.cursor)).await;
            since.apply_to(&mut copy);
            assert_eq!(copy, follower.copy);
            assert!(since.rows.contains(&json!({"id": format!("sub_{id}"), "deleted": true})));
            assert_eq!(export(&account.client, &format!("{parameters}&since={}", since.cursor)).await.rows, Vec::<Value>::new());
        }
    }
}

on_both_databases! {
    async fn exports_of_what_changed_keep_copies_in_step_with_any_filter_and_reach(engine: Engine) {
        let mut world = World::new(83, 1000, 120);
        let account = account(engine, &world.ndjson());
        let database = account.database().await;
        let mut forms = world.some_forms(0.4);
        forms.push(1002);
        let limited = account.client.with(&account.token_within(&forms));
        let mut copies = Vec::new();
        for (client, reach) in [(account.client.clone(), None), (limited, Some(forms))] {
            for filter in [json!({}), world.filter(), world.filter(), world.filter()] {
                let exported = export_matching(&client, "", &filter).await;
                copies.push((client.clone(), reach.clone(), filter, exported.copy(), exported.cursor));
            }
        }
        let mut deletions = 0;
        for _ in 0..20 {
            for _ in 0..4 {
                database.execute(&world.change()).await;
            }
            for (client, reach, filter, copy, cursor) in &mut copies {
                let changed = export_matching(client, &format!("&since={cursor}"), filter).await;
                changed.apply_to(copy);
                deletions += changed.rows.iter().filter(|row| row["deleted"] == true).count();
                let expected = world.search_within(filter, reach.as_deref());
                let expected = expected.into_iter().map(|one| (one["id"].as_str().unwrap().to_owned(), one)).collect();
                assert_eq!(*copy, expected, "{filter} of {reach:?}");
                *cursor = changed.cursor;
            }
        }
        assert!(deletions > 0, "no deletion was met");
    }

    async fn a_cursor_that_is_lost_is_410_with_a_link_to_everything(engine: Engine) {
        let (account, _) = filled(engine, 1..8, "x");
        let cursor = export(&account.client, "&form=1").await.cursor;
        assert_eq!(account.run(&["changes", "reset", "--tenant", "acme"]).code, 0);
        for query in [format!("since={cursor}"), format!("as_of={cursor}&after=2")] {
            let answer = account.client.get(&format!("{PATH}?format=ndjson&form=1&{query}")).send().await;
            assert_eq!((answer.status.as_u16(), &answer.json()["reason"]), (410, &json!("reset")), "{query}");
            let restart = answer.json()["links"]["restart"].as_str().unwrap().to_owned();
            assert!(restart.ends_with("/api/v1/submission/export?format=ndjson&form=1"), "{restart}");
            let head = account.client.head(&format!("{PATH}?format=ndjson&form=1&{query}")).send().await;
            assert_eq!(head.status, 410);
        }
    }

    async fn a_cursor_of_a_form_is_lost_when_a_form_is_moved_below_it(engine: Engine) {
        let (account, _) = filled(engine, 1..8, "x");
        let database = account.database().await;
        let cursor = export(&account.client, "&form=1").await.cursor;
        database.execute("UPDATE forms SET parent_id = 1 WHERE id = 2").await;
        let answer = account.client.get(&format!("{PATH}?format=ndjson&form=1&since={cursor}")).send().await;
        assert_eq!((answer.status.as_u16(), &answer.json()["reason"]), (410, &json!("reset")));
        assert_eq!(export(&account.client, "&form=1").await.rows.len(), 7, "with the sub-form");
    }

    async fn an_export_is_logged_and_its_rows_are_read_by_the_token(engine: Engine) {
        let (account, _) = filled(engine, 1..8, "x");
        let reader = account.run(&["token", "create", "--tenant", "acme", "--name", "warehouse"]);
        let client = account.client.with(reader.stdout.trim_end());
        client.head(&format!("{PATH}?format=ndjson")).send().await;
        let exported = export(&client, "&form=1").await;
        assert_eq!(exported.rows.len(), 6);
        for id in 1..8 {
            let readers = account.client.get(&format!("/api/v1/submission/{id}/readers")).send().await.json();
            let names: Vec<&str> = readers["data"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
            assert_eq!(names, if id < 7 { &["warehouse"][..] } else { &[] }, "{id}");
        }
        let since = std::time::Instant::now();
        loop {
            let log = account.client.get("/api/v1/request?limit=100").send().await.json();
            let of_exports = log["data"].as_array().unwrap().iter().filter(|row| row["route"] == "/submission/export");
            let rows: Vec<(&Value, &Value)> = of_exports.map(|row| (&row["method"], &row["rows"])).collect();
            if rows == [(&json!("GET"), &json!(6)), (&json!("HEAD"), &Value::Null)] {
                return;
            }
            assert!(since.elapsed().as_secs() < 60, "{rows:?}");
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    }
}
