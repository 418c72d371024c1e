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
}
