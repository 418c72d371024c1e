//! A clock that was set back: what was to end at an instant that is now far ahead has ended.

use super::scene::{Scene, received};
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, Receiver};

on_both_databases! {
    async fn a_lease_or_an_attempt_further_ahead_than_any_can_be_is_not_believed(engine: Engine) {
        let scene = Scene::new(engine).await;
        let columns = [("leased_by = 'a node', leased_until", 1), ("leased_by = 'a node', leased_until", 24 * 365),
            ("state = 'failing', failures = 1, next_attempt_at", 26), ("state = 'failing', failures = 1, next_attempt_at", 24 * 365)];
        let mut receivers = Vec::new();
        for (columns, hours) in columns {
            let receiver = Receiver::always(Act::status(204)).await;
            let made = scene.subscribe(&receiver, "submission.created", None).await;
            let id = made["id"].as_str().unwrap().trim_start_matches("hook_").to_owned();
            scene.execute(&format!("UPDATE subscriptions SET {columns} = {} WHERE id = {id}", scene.database.in_hours(hours))).await;
            receivers.push(receiver);
        }
        // The receiver may have asked for that.
        let resting = Receiver::always(Act::status(204)).await;
        scene.subscribe(&resting, "submission.created", None).await;
        let next = scene.database.in_hours(23);
        scene.execute(&format!("UPDATE subscriptions SET state = 'failing', failures = 1, next_attempt_at = {next} WHERE id = 5")).await;
        scene.insert(1, 1, "x").await;
        for receiver in &receivers {
            received(receiver, 1).await;
        }
        assert_eq!(resting.requests().len(), 0);
    }

    async fn an_event_that_was_set_aside_is_sent_again_after_the_clock_was_set_back(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::start(|nth| if nth == 0 { Act::status(422) } else { Act::status(204) }).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        scene.insert(1, 1, "x").await;
        scene.wait_for("SELECT count(*) FROM webhook_events", 1).await;
        scene.execute(&format!("UPDATE webhook_events SET next_attempt_at = {}", scene.database.in_hours(24 * 30))).await;
        received(&receiver, 2).await;
        scene.wait_for("SELECT count(*) FROM webhook_events", 0).await;
    }

    async fn a_receiver_is_not_disabled_for_an_outage_that_has_yet_to_begin(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(503)).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        let since = scene.database.in_hours(24 * 30);
        scene.execute(&format!("UPDATE subscriptions SET state = 'failing', failures = 3, failing_since = {since}")).await;
        scene.insert(1, 1, "x").await;
        let soon = scene.database.in_hours(1);
        scene.wait_for(&format!("SELECT count(*) FROM subscriptions WHERE failures = 4 AND state = 'failing' AND failing_since < {soon}"), 1).await;
    }
}
