//! What the metrics say about subscriptions and their receivers.

use std::time::{Duration, Instant};

use super::scene::{LIMIT, Scene};
use crate::support::client::operator_get;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::process::Node;
use crate::support::receiver::{Act, Receiver};

/// Waits until a metric of a node has a value, and returns that.
async fn wait_for(node: &mut Node, series: &str, is_it: impl Fn(i64) -> bool) {
    let (operator, began) = (node.operator_address(), Instant::now());
    loop {
        let body = String::from_utf8(operator_get(operator, "/metrics").await.body).expect("metrics are UTF-8");
        let value = body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        let value: i64 = value.unwrap_or_else(|| panic!("no {series}")).parse().expect("a number");
        if is_it(value) {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{series} is {value}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

on_both_databases! {
    async fn a_receiver_is_counted_when_it_fails_is_disabled_and_is_gone(engine: Engine) {
        let mut scene = Scene::with(engine, |webhooks| {
            webhooks.insert("disable_after_hours".into(), 1.into());
        }).await;
        let (failing, gone) = (Receiver::always(Act::status(503)).await, Receiver::always(Act::status(410)).await);
        scene.subscribe(&failing, "submission.created", None).await;
        scene.subscribe(&gone, "submission.created", None).await;
        scene.insert(1, 1, "x").await;
        for state in ["failing", "gone"] {
            let series = format!("formgate_webhook_state_changes_total{{state=\"{state}\"}}");
            wait_for(&mut scene.nodes[0], &series, |count| count == 1).await;
        }
        let [long_ago, later] = match engine {
            Engine::Sqlite => ["(strftime('%s', 'now') - 7200) * 1000000", "(strftime('%s', 'now') + 3600) * 1000000"],
            _ => ["now() - interval '2 hours'", "now() + interval '1 hour'"],
        };
        let only = "WHERE state = 'failing'";
        scene.execute(&format!("UPDATE subscriptions SET failing_since = {long_ago}, next_attempt_at = {later} {only}")).await;
        let oldest = r#"formgate_webhook_oldest_pending_seconds{state="failing"}"#;
        wait_for(&mut scene.nodes[0], oldest, |seconds| seconds >= 7200).await;
        scene.execute(&format!("UPDATE subscriptions SET next_attempt_at = NULL {only}")).await;
        wait_for(&mut scene.nodes[0], r#"formgate_webhook_disabled_total{reason="status"}"#, |count| count == 1).await;
        wait_for(&mut scene.nodes[0], r#"formgate_webhook_attempts_total{result="status"}"#, |count| count == 2).await;
        wait_for(&mut scene.nodes[0], r#"formgate_webhook_attempts_total{result="gone"}"#, |count| count == 1).await;

        // A node counts all subscriptions when it starts.
        let working = Receiver::always(Act::status(204)).await;
        scene.subscribe(&working, "submission.updated", None).await;
        scene.nodes.clear();
        let mut node = scene.site.start();
        for (state, expected) in [("active", 1), ("paused", 0), ("failing", 0), ("disabled", 1), ("gone", 1)] {
            let series = format!("formgate_webhook_subscriptions{{state=\"{state}\"}}");
            wait_for(&mut node, &series, |count| count == expected).await;
        }
    }

    async fn refused_events_wait_and_numbering_takes_time(engine: Engine) {
        let mut scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(422)).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        scene.insert(1, 1, "x").await;
        wait_for(&mut scene.nodes[0], "formgate_webhook_events_set_aside_total", |count| count == 1).await;
        wait_for(&mut scene.nodes[0], "formgate_database_settle_duration_seconds_count", |count| count > 0).await;
        scene.wait_for("SELECT count(*) FROM webhook_events WHERE next_attempt_at IS NOT NULL", 1).await;
        scene.nodes.clear();
        wait_for(&mut scene.site.start(), "formgate_webhook_events_set_aside", |count| count == 1).await;
    }
}
