//! Sending events again.

use serde_json::{Value, json};

use super::scene::{Scene, events, received, without_delivery};
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, Receiver};

/// A scene that delivers nothing, with a subscription that was sent the events of submissions 1 to 5. Number 5 is of
/// another form than the subscription's.
async fn delivered(engine: crate::support::fixture::Engine) -> (Scene, Value) {
    let scene = Scene::with(engine, without_delivery).await;
    let receiver = Receiver::always(Act::status(200)).await;
    let made = scene.subscribe(&receiver, "submission.created", Some("for_1")).await;
    for (submission, form) in [(1, 1), (2, 2), (3, 1), (4, 1), (5, 3)] {
        scene.insert(submission, form, "x").await;
        // Numbers it, so that the numbers are in this order.
        scene.subscription(&made["id"]).await;
    }
    assert_eq!(scene.subscription(&made["id"]).await["pending"], 4);
    scene.execute("UPDATE subscriptions SET position = (SELECT last_seq FROM change_state)").await;
    assert_eq!(scene.subscription(&made["id"]).await["pending"], 0);
    (scene, made["id"].clone())
}

async fn pending(scene: &Scene, id: &Value, body: Value) -> Value {
    scene.acted(id, "replay", &body).await["pending"].clone()
}

on_both_databases! {
    async fn single_submissions_are_sent_again_once_however_often_they_are_named(engine: Engine) {
        let (scene, id) = delivered(engine).await;
        assert_eq!(pending(&scene, &id, json!({"submissions": ["sub_1", 2, "2"]})).await, 2);
        assert_eq!(pending(&scene, &id, json!({"submissions": ["sub_2"]})).await, 2);
        assert_eq!(scene.faults(&id, "replay", &json!({"submissions": ["sub_3", 99, "sub_5"]})).await, ["submissions.1", "submissions.2"]);
        assert_eq!(scene.subscription(&id).await["pending"], 2, "all of it, or nothing");
        scene.execute("DELETE FROM webhook_events").await;
        scene.execute("UPDATE subscriptions SET position = 0").await;
        assert_eq!(pending(&scene, &id, json!({"submissions": ["sub_1"]})).await, 4, "it has its turn anyway");
    }

    async fn a_cursor_or_an_instant_moves_the_position_back_and_never_forward(engine: Engine) {
        let (scene, id) = delivered(engine).await;
        let page = scene.client.get("/api/v1/submission/changes?limit=2").send().await.json();
        let cursor = page["meta"]["cursor"].clone();
        scene.execute(&format!("UPDATE subscriptions SET leased_by = 'another', leased_until = {}", scene.at(1_000_000_000))).await;
        assert_eq!(pending(&scene, &id, json!({"since": cursor})).await, 2);
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE leased_by IS NULL AND leased_until IS NULL", 1).await;
        let end = scene.client.get("/api/v1/submission/changes?cursor=now").send().await.json()["meta"]["cursor"].clone();
        assert_eq!(pending(&scene, &id, json!({"since": end})).await, 2, "never forward");
        assert_eq!(pending(&scene, &id, json!({"since": "9000-01-01T00:00:00Z"})).await, 2);
        assert_eq!(pending(&scene, &id, json!({"since": "2020-01-01"})).await, 4);
        assert_eq!(scene.site.run(&["changes", "reset", "--tenant", "acme"], b"").code, 0);
        assert_eq!(scene.faults(&id, "replay", &json!({"since": cursor})).await, ["since"], "a cursor of another log");
    }

    async fn what_failed_and_what_was_given_up_is_sent_again(engine: Engine) {
        let (scene, id) = delivered(engine).await;
        let far = scene.at(1_000_000_000);
        for (submission, attempts, given_up, next) in [(1, 3, "TRUE", "NULL"), (3, 1, "FALSE", far.as_str())] {
            scene.execute(&format!(
                "INSERT INTO webhook_events (subscription_id, seq, submission_id, event_id, body, attempts, failed_at, given_up, next_attempt_at) \
                 SELECT s.id, created_event, submission_id, 'evt_{submission}', '{{}}', {attempts}, {}, {given_up}, {next} \
                 FROM submission_changes, subscriptions s WHERE submission_id = {submission}", scene.at(0)
            )).await;
        }
        let due = format!("SELECT count(*) FROM webhook_events WHERE NOT given_up AND next_attempt_at < {far}");
        assert_eq!(scene.subscription(&id).await["pending"], 1);
        assert_eq!(pending(&scene, &id, json!({"event": "evt_1"})).await, 2);
        scene.wait_for(&due, 1).await;
        assert_eq!(pending(&scene, &id, json!({"failed": true})).await, 2);
        scene.wait_for(&due, 2).await;
        assert_eq!(pending(&scene, &id, json!({"since": "2020-01-01"})).await, 4, "each once, in its turn");
        scene.wait_for("SELECT count(*) FROM webhook_events WHERE next_attempt_at IS NULL", 2).await;
    }

    async fn an_event_of_the_log_is_sent_again_unless_its_submission_has_none_any_more(engine: Engine) {
        let (scene, id) = delivered(engine).await;
        for (submission, event) in [(4, "evt_4"), (99, "evt_99")] {
            scene.execute(&format!(
                "INSERT INTO webhook_attempts (subscription_id, event_id, event, submission_id, attempt, at, duration_ms, accepted, status) \
                 SELECT id, '{event}', 'submission.created', {submission}, 1, {}, 5, TRUE, 200 FROM subscriptions", scene.at(0)
            )).await;
        }
        assert_eq!(pending(&scene, &id, json!({"event": "evt_4"})).await, 1);
        for event in ["evt_99", "evt_5", "", "sub_1"] {
            assert_eq!(scene.faults(&id, "replay", &json!({"event": event})).await, ["event"], "{event}");
        }
    }

    async fn a_body_that_does_not_say_what_to_send_is_a_fault(engine: Engine) {
        let (scene, id) = delivered(engine).await;
        for (body, field) in [
            (json!({}), "body"),
            (json!({"event": null}), "body"),
            (json!({"failed": true, "since": "2020-01-01"}), "body"),
            (json!({"failed": false}), "failed"),
            (json!({"failed": "true"}), "failed"),
            (json!({"event": 1}), "event"),
            (json!({"event": "a\0"}), "event"),
            (json!({"since": 5}), "since"),
            (json!({"since": "yesterday"}), "since"),
            (json!({"since": "2024-02-30"}), "since"),
            (json!({"submissions": []}), "submissions"),
            (json!({"submissions": (1..=101).collect::<Vec<_>>()}), "submissions"),
            (json!({"submissions": (1..=1001).collect::<Vec<_>>()}), "submissions"),
            (json!({"submissions": "sub_1"}), "submissions"),
            (json!({"submissions": ["for_1"]}), "submissions.0"),
        ] {
            assert_eq!(scene.faults(&id, "replay", &body).await, [field], "{body}");
        }
        assert_eq!(scene.subscription(&id).await["pending"], 0);
    }

    async fn what_is_sent_again_arrives(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(200)).await;
        let id = &scene.subscribe(&receiver, "submission.created", None).await["id"];
        for submission in 1..=3 {
            scene.insert(submission, 1, "x").await;
        }
        received(&receiver, 3).await;
        scene.wait_until_delivered().await;
        scene.acted(id, "replay", &json!({"submissions": ["sub_2"]})).await;
        let requests = received(&receiver, 4).await;
        assert_eq!(events(&requests[3..]), [("submission.created".to_owned(), "sub_2".to_owned())]);
        scene.wait_until_delivered().await;
        scene.acted(id, "replay", &json!({"since": "2020-01-01"})).await;
        received(&receiver, 7).await;
        scene.wait_until_delivered().await;
        let last = scene.subscription(id).await;
        assert_eq!((&last["state"], &last["pending"]), (&json!("active"), &json!(0)));
    }
}
