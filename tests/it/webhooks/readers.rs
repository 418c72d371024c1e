//! What is sent to a receiver counts as read by the token that subscribed.

use std::time::Instant;

use serde_json::{Value, json};

use super::scene::{LIMIT, Scene, received};
use crate::support::child::free_port;
use crate::support::client::Client;
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, HOST, Receiver};

async fn subscribe(client: &Client, url: &str, event: &str) -> Value {
    let answer = client.post("/api/v1/subscribe").json(&json!({ "target_url": url, "event": event })).send().await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["data"]["id"].clone()
}

impl Scene {
    /// The names of the readers of a submission. The receiver that always fails may be sent it now or later.
    async fn readers(&self, id: i64) -> Vec<String> {
        let readers = self.client.get(&format!("/api/v1/submission/{id}/readers")).send().await.json();
        let name = |reader: &Value| reader["name"].as_str().unwrap().to_owned();
        readers["data"]
            .as_array()
            .unwrap_or_else(|| panic!("{readers}"))
            .iter()
            .map(name)
            .filter(|name| id == 1 || name != "refused")
            .collect()
    }

    /// Waits until a submission has been read by these.
    async fn wait_for_readers(&self, id: i64, names: &[&str]) {
        let began = Instant::now();
        loop {
            let found = self.readers(id).await;
            if found == names {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{id}: {found:?} instead of {names:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Waits until a delivery of a subscription failed.
    async fn wait_for_failure(&self, id: &Value) {
        let path = format!("/api/v1/subscribe/{}/deliveries", id.as_str().unwrap());
        let began = Instant::now();
        while self.client.get(&path).send().await.json()["data"].as_array().unwrap().is_empty() {
            assert!(began.elapsed() < LIMIT, "nothing was tried");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

on_both_databases! {
    async fn a_delivery_counts_for_the_token_that_subscribed_whatever_the_response(engine: Engine) {
        let scene = Scene::new(engine).await;
        let [accepted, refused, unreachable, deleted, tested] = ["accepted", "refused", "unreachable", "deleted", "tested"].map(|name| scene.client.with(&scene.site.token("acme", name)));
        let [good, bad, other] = [Receiver::always(Act::status(200)).await, Receiver::always(Act::status(500)).await, Receiver::always(Act::status(200)).await];
        let nowhere = format!("https://{HOST}:{}/hook", free_port());
        subscribe(&accepted, &good.url("/hook"), "submission.created").await;
        subscribe(&refused, &bad.url("/hook"), "submission.created").await;
        let failing = subscribe(&unreachable, &nowhere, "submission.created").await;
        subscribe(&deleted, &other.url("/deleted"), "submission.deleted").await;
        let nobodys = subscribe(&scene.client, &other.url("/nobody"), "submission.created").await;
        scene.execute(&format!("UPDATE subscriptions SET token_id = NULL WHERE id = {}", nobodys.as_str().unwrap().trim_start_matches("hook_"))).await;

        scene.insert(1, 1, "x").await;
        scene.wait_for_readers(1, &["accepted", "refused"]).await;
        received(&other, 1).await;
        scene.wait_for_failure(&failing).await;

        scene.insert(2, 1, "x").await;
        scene.wait_for_readers(2, &["accepted"]).await;
        scene.execute("DELETE FROM answers WHERE submission_id = 1; DELETE FROM submissions WHERE id = 1").await;
        received(&other, 3).await;
        assert_eq!(scene.readers(1).await, ["accepted", "refused"]);

        // A test sends the newest submission.
        let receiver = Receiver::always(Act::status(200)).await;
        let test = subscribe(&tested, &receiver.url("/hook"), "submission.updated").await;
        let path = format!("/api/v1/subscribe/{}/test", test.as_str().unwrap());
        assert_eq!(scene.client.post(&path).send().await.json()["data"]["status"], 200);
        assert_eq!(scene.readers(2).await, ["accepted", "tested"]);
        let command = scene.site.run_in_thread(&["webhook", "test", failing.as_str().unwrap(), "--tenant", "acme"]).await;
        assert_eq!((command.code, scene.readers(2).await.len()), (1, 2), "{command:?}");
        scene.execute(&format!("UPDATE subscriptions SET target_url = '{}' WHERE token_id = 4", receiver.url("/command"))).await;
        let command = scene.site.run_in_thread(&["webhook", "test", failing.as_str().unwrap(), "--tenant", "acme"]).await;
        assert_eq!(command.code, 0, "{command:?}");
        assert_eq!(scene.readers(2).await, ["accepted", "unreachable", "tested"]);
        assert_eq!(scene.readers(1).await, ["accepted", "refused"]);
    }
}
