//! The order of events, and how many are sent at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::scene::{Scene, envelope, received};
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, Receiver};

/// How many submissions are edited, and how often each.
const SUBMISSIONS: i64 = 20;
const EDITS: i64 = 300;

on_both_databases! {
    async fn events_of_a_submission_arrive_in_their_order(engine: Engine) {
        let scene = Scene::with(engine, |webhooks| _ = webhooks.insert("settle_ms".into(), 20.into())).await;
        for id in 1..=SUBMISSIONS {
            scene.insert(id, 1, "0").await;
        }
        let receiver = Receiver::start(|nth| {
            let delay = Duration::from_millis(StdRng::seed_from_u64(nth as u64).random_range(0..60));
            [vec![Act::Pause(delay)], Act::status(200)].concat()
        })
        .await;
        scene.subscribe(&receiver, "submission.updated", None).await;
        let mut random = StdRng::seed_from_u64(7);
        let mut newest: BTreeMap<String, i64> = BTreeMap::new();
        for edit in 1..=EDITS {
            let id = random.random_range(1..=SUBMISSIONS);
            scene.execute(&format!("UPDATE answers SET value = '{edit}' WHERE submission_id = {id}")).await;
            newest.insert(format!("sub_{id}"), edit);
            if random.random_bool(0.05) {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        scene.wait_until_delivered().await;
        let mut seen: BTreeMap<String, i64> = BTreeMap::new();
        for sent in receiver.requests().iter().map(envelope) {
            let value = sent["data"]["allElements"][0]["value"].as_str().unwrap().parse().unwrap();
            let before = seen.insert(sent["data"]["id"].as_str().unwrap().to_owned(), value);
            assert!(before <= Some(value), "{before:?} before {value}");
        }
        assert_eq!(seen, newest);
    }

    async fn a_submission_that_changes_all_the_time_is_sent_once_in_ten_settle_times(engine: Engine) {
        let settle = Duration::from_millis(200);
        let scene = Scene::with(engine, |webhooks| _ = webhooks.insert("settle_ms".into(), 200.into())).await;
        scene.insert(1, 1, "0").await;
        let receiver = Receiver::start(|_| Act::status(200)).await;
        scene.subscribe(&receiver, "submission.updated", None).await;
        let (began, mut edited, mut edits, mut pauses) = (Instant::now(), Instant::now(), 0, 0);
        while began.elapsed() < settle * 40 {
            edits += 1;
            scene.execute(&format!("UPDATE answers SET value = '{edits}' WHERE submission_id = 1")).await;
            // On a busy machine an edit may be so late that the one before is an event of its own.
            pauses += usize::from(edited.elapsed() > settle / 2);
            edited = Instant::now();
            tokio::time::sleep(settle / 20).await;
        }
        let sent = receiver.requests().len();
        assert!((1..=5 + pauses).contains(&sent), "{sent} webhooks of {edits} edits, {pauses} of them late");
        scene.wait_until_delivered().await;
        let last = receiver.requests().last().map(envelope).expect("a webhook");
        assert_eq!(last["data"]["allElements"][0]["value"], edits.to_string());
    }

    async fn a_receiver_that_is_back_is_probed_and_never_stormed(engine: Engine) {
        let scene = Scene::new(engine).await;
        let is_back = Arc::new(AtomicBool::new(false));
        let receiver = Receiver::start({
            let is_back = Arc::clone(&is_back);
            move |_| match is_back.load(Ordering::SeqCst) {
                true => [vec![Act::Pause(Duration::from_millis(5))], Act::status(200)].concat(),
                false => Act::status(503),
            }
        })
        .await;
        let made = scene.subscribe(&receiver, "submission.created", None).await;
        scene.insert(1, 1, "x").await;
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE state = 'failing'", 1).await;
        let before = receiver.requests().len();
        assert_eq!(before, 1, "a receiver that fails is called once");
        for id in 2..=200 {
            scene.insert(id, 1, "x").await;
        }
        is_back.store(true, Ordering::SeqCst);
        let requests = received(&receiver, before + 200).await;
        assert!(receiver.most_at_once() <= 4, "{}", receiver.most_at_once());
        assert_eq!(requests[before].headers["formgate-attempt"], "2");
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE state = 'active' AND failures = 0", 1).await;
        assert_eq!(receiver.requests().len(), before + 200, "nothing is repeated: {made}");
    }
}
