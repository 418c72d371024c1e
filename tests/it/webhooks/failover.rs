//! What happens when a node dies, stalls or stops while it delivers.

use std::time::Duration;

use super::scene::{LIMIT, Scene, by_id, events, received};
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, Receiver};
use crate::support::rewind::Rewind;

/// How often a node is killed. Each time, its lease has to end first.
const KILLS: usize = 3;

/// How many events one subscription may have in flight.
const PER_SUBSCRIPTION: usize = 4;

on_both_databases! {
    async fn a_node_that_is_killed_loses_nothing_and_repeats_what_was_in_flight(engine: Engine) {
        let mut scene = Scene::new(engine).await;
        let answer = || [vec![Act::Pause(Duration::from_millis(10))], Act::status(200)].concat();
        let receiver = Receiver::start(move |_| answer()).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        scene.start_another_node();
        let mut inserted = 0;
        for _ in 0..KILLS {
            let before = receiver.requests().len();
            for _ in 0..40 {
                inserted += 1;
                scene.insert(inserted, 1, "x").await;
            }
            received(&receiver, before + 10).await;
            let sender = scene.sending_node().await;
            scene.nodes[sender].kill();
            scene.nodes.remove(sender);
            scene.start_another_node();
        }
        scene.wait_until_delivered().await;
        let requests = receiver.requests();
        let same = by_id(&requests);
        assert_eq!(same.len(), usize::try_from(inserted).unwrap(), "each event arrived");
        assert!(requests.len() - same.len() <= KILLS * PER_SUBSCRIPTION, "{} of {}", requests.len(), same.len());
        for attempts in same.values() {
            assert!(attempts.iter().all(|attempt| attempt.body == attempts[0].body), "{attempts:?}");
        }
    }

    async fn a_sender_whose_database_goes_back_sends_what_has_its_numbers_now(engine: Engine) {
        let scene = Scene::new(engine).await;
        // The last of four is answered after the database went back.
        let receiver = Receiver::start(|nth| {
            if nth == 3 { [vec![Act::Pause(Duration::from_secs(4))], Act::status(200)].concat() } else { Act::status(200) }
        })
        .await;
        scene.subscribe(&receiver, "submission.created", None).await;
        scene.insert(1, 1, "x").await;
        scene.wait_for("SELECT count(*) FROM webhook_attempts", 1).await;
        scene.wait_until_delivered().await;
        let kept = Rewind::to_now(&scene.database).await;
        for submission in 11..=13 {
            scene.insert(submission, 1, "x").await;
        }
        received(&receiver, 4).await;
        kept.go_back().await;
        for submission in 21..=24 {
            scene.insert(submission, 1, "x").await;
        }
        let mut sent: Vec<String> = events(&received(&receiver, 8).await).into_iter().map(|(_, id)| id).collect();
        sent.sort();
        sent.dedup();
        assert_eq!(sent, ["sub_1", "sub_11", "sub_12", "sub_13", "sub_21", "sub_22", "sub_23", "sub_24"]);
    }

    async fn a_node_that_was_paused_writes_nothing_about_what_another_has_taken_over(engine: Engine) {
        let mut scene = Scene::new(engine).await;
        let receiver = Receiver::start(|nth| {
            if nth == 0 { vec![Act::Pause(Duration::from_secs(3)), Act::send("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")] } else { Act::status(200) }
        })
        .await;
        scene.subscribe(&receiver, "submission.created", None).await;
        scene.start_another_node();
        scene.insert(1, 1, "x").await;
        received(&receiver, 1).await;
        let sender = scene.sending_node().await;
        scene.nodes[sender].signal("STOP");
        received(&receiver, 2).await;
        scene.wait_until_delivered().await;
        scene.nodes[sender].signal("CONT");
        // The 503 has been waiting for the node; it may write nothing about it. The next event shows that it goes on.
        scene.insert(2, 1, "x").await;
        scene.wait_until_delivered().await;
        scene.wait_for("SELECT count(*) FROM webhook_attempts WHERE NOT accepted", 0).await;
        scene.wait_for("SELECT count(*) FROM webhook_events", 0).await;
    }

    async fn a_node_that_stops_repeats_nothing(engine: Engine) {
        let mut scene = Scene::new(engine).await;
        let receiver = Receiver::start(|_| [vec![Act::Pause(Duration::from_millis(300))], Act::status(200)].concat()).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        for id in 1..=20 {
            scene.insert(id, 1, "x").await;
        }
        received(&receiver, 3).await;
        assert_eq!(scene.nodes[0].stop(LIMIT).await, 0);
        let before = receiver.requests().len();
        assert!(before < 20, "it stopped in between");
        scene.nodes.clear();
        scene.start_another_node();
        received(&receiver, 20).await;
        scene.wait_until_delivered().await;
        assert_eq!(receiver.requests().len(), 20);
    }
}
