//! A change is told once: as part of an event that nobody has been sent, or as an event of its own.

use serde_json::{Value, json};

use super::scene::{Scene, envelope, events, received, without_delivery};
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, Receiver};

fn answers(event: &Value) -> Vec<&str> {
    event["data"]["allElements"].as_array().unwrap().iter().map(|answer| answer["value"].as_str().unwrap()).collect()
}

fn event(kind: &str, submission: &str) -> (String, String) {
    (format!("submission.{kind}"), submission.to_owned())
}

/// What a transaction that began before an event was sent commits now: its note has the time of the event.
async fn commit_late(scene: &Scene, value: &str) {
    let note = "UPDATE intake SET at = (SELECT changed_at FROM submission_changes WHERE submission_id = 1)";
    scene
        .execute(&format!("BEGIN; UPDATE answers SET value = '{value}' WHERE submission_id = 1; {note}; COMMIT"))
        .await;
}

on_both_databases! {
    async fn what_commits_after_created_was_sent_is_told_as_updated(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(204)).await;
        for kind in ["created", "updated"] {
            scene.subscribe(&receiver, &format!("submission.{kind}"), None).await;
        }
        scene.insert(1, 1, "first").await;
        received(&receiver, 1).await;
        scene.wait_until_delivered().await;
        commit_late(&scene, "late").await;
        let requests = received(&receiver, 2).await;
        assert_eq!(events(&requests), [event("created", "sub_1"), event("updated", "sub_1")]);
        assert_eq!(answers(&envelope(&requests[1])), ["late"]);
        scene.insert(2, 1, "next").await;
        scene.wait_until_delivered().await;
        let requests = received(&receiver, 3).await;
        assert_eq!(events(&requests)[2..], [event("created", "sub_2")]);
    }

    async fn a_subscriber_of_updates_alone_is_told_what_commits_after_created_was_due(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(204)).await;
        scene.subscribe(&receiver, "submission.updated", None).await;
        scene.insert(1, 1, "first").await;
        scene.wait_for("SELECT count(*) FROM change_state, submission_changes WHERE created_event <= released_seq", 1).await;
        commit_late(&scene, "late").await;
        let requests = received(&receiver, 1).await;
        assert_eq!(events(&requests), [event("updated", "sub_1")]);
        assert_eq!(answers(&envelope(&requests[0])), ["late"]);
    }

    async fn a_change_that_is_numbered_late_is_part_of_an_event_that_nobody_was_sent(engine: Engine) {
        let scene = Scene::with(engine, without_delivery).await;
        let receiver = Receiver::always(Act::status(204)).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        let numbers = async || {
            let answer = scene.client.post("/api/v1/submission").json(&json!({})).send().await;
            assert_eq!(answer.status, 200, "{answer:?}");
            let query = "SELECT created_event, coalesce(updated_event, 0) FROM submission_changes";
            scene.database.integers::<2>(query).await
        };
        let at = scene.at(1);
        let insert = "INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES (1, 1, 'pending'";
        scene.execute(&format!("{insert}, {at}, {at})")).await;
        scene.execute(&format!("INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES (1, 10, 'a', {at})")).await;
        assert_eq!(numbers().await, [1, 0]);
        // It is long due, and was not released.
        scene.execute(&format!("UPDATE submission_changes SET changed_at = {at}, burst_at = {at}; UPDATE change_state SET released_seq = 0")).await;
        commit_late(&scene, "b").await;
        assert_eq!(numbers().await, [2, 0], "it is part of the event");
        commit_late(&scene, "c").await;
        assert_eq!(numbers().await, [2, 3], "which was released then");
    }

    async fn what_goes_and_comes_back_before_anybody_is_told_is_an_update(engine: Engine) {
        let scene = Scene::with(engine, without_delivery).await;
        let receiver = Receiver::always(Act::status(204)).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        let numbers = async |released: i64| {
            let answer = scene.client.post("/api/v1/submission").json(&json!({})).send().await;
            assert_eq!(answer.status, 200, "{answer:?}");
            scene.execute(&format!("UPDATE change_state SET released_seq = {released}")).await;
            let query = "SELECT coalesce(created_event, -1), coalesce(updated_event, -1), coalesce(deleted_event, -1) FROM submission_changes";
            scene.database.integers::<3>(query).await
        };
        let at = scene.at(1);
        let insert = format!("INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES (1, 1, 'pending', {at}, {at})");
        scene.execute(&insert).await;
        assert_eq!(numbers(1).await, [1, -1, -1], "it is sent");
        scene.execute("DELETE FROM submissions").await;
        assert_eq!(numbers(1).await, [0, -1, 2], "the deletion is not");
        scene.execute(&insert).await;
        assert_eq!(numbers(1).await, [-1, 3, -1], "receivers know it");
        scene.execute("DELETE FROM submissions").await;
        assert_eq!(numbers(4).await, [0, -1, 4], "now the deletion is sent");
        scene.execute(&insert).await;
        assert_eq!(numbers(4).await, [5, -1, -1]);
        // Nobody knows it yet.
        scene.execute("DELETE FROM submissions").await;
        assert_eq!(numbers(4).await, [-1, -1, 6]);
        scene.execute(&insert).await;
        assert_eq!(numbers(4).await, [7, -1, -1]);
    }

    async fn the_subscriber_of_a_form_is_told_of_deletions_below_it_also_if_the_form_goes_with_them(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(204)).await;
        scene.subscribe(&receiver, "submission.deleted", Some("for_1")).await;
        for (id, form) in [(1, 2), (2, 2), (3, 1)] {
            scene.insert(id, form, "some").await;
        }
        scene.wait_for("SELECT count(*) FROM submission_changes, form_placements p WHERE p.form_id = 2", 3).await;
        scene.execute("BEGIN; DELETE FROM submissions WHERE id = 1; UPDATE forms SET parent_id = NULL WHERE id = 2; COMMIT").await;
        assert_eq!(events(&received(&receiver, 1).await), [event("deleted", "sub_1")]);
        scene.execute("UPDATE forms SET parent_id = 1 WHERE id = 2").await;
        scene.wait_for("SELECT count(*) FROM form_notes", 0).await;
        scene.execute("BEGIN; DELETE FROM submissions WHERE id = 2; DELETE FROM forms WHERE id = 2; COMMIT").await;
        assert_eq!(events(&received(&receiver, 2).await)[1..], [event("deleted", "sub_2")]);
        scene.execute("DELETE FROM submissions WHERE id = 3").await;
        assert_eq!(events(&received(&receiver, 3).await)[2..], [event("deleted", "sub_3")]);
    }
}
