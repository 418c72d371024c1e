//! Subscriptions of tokens that are limited to forms: what they are sent, and who manages them.

use std::time::{Duration, Instant};

use formgate::store::FormReach;
use serde_json::{Value, json};

use super::scene::{LIMIT, Scene, envelope, events, received, without_delivery};
use crate::support::client::Client;
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, Receiver};

/// A token of the scene's account.
pub(super) struct SceneToken {
    pub(super) client: Client,
    pub(super) id: i64,
}

impl Scene {
    /// A token that is limited to forms.
    pub(super) async fn limited(&self, forms: &[i64]) -> SceneToken {
        let token = self.site.limited_token(
            "acme",
            "limited",
            &["--forms", &FormReach::of(forms.to_vec()).to_string().replace(' ', ",")],
        );
        let client = self.client.with(&token);
        let me = client.get("/api/v1/me").send().await.json();
        SceneToken { client, id: me["token"]["id"].as_i64().unwrap_or_else(|| panic!("{me}")) }
    }

    /// Changes the forms of a token, as a command does, and waits until the node knows them.
    async fn limit_to(&self, token: &SceneToken, reach: &FormReach) {
        let (forms, id) = (reach.names(), token.id.to_string());
        let given = forms.as_ref().map_or_else(|| "all".to_owned(), |forms| forms.join(","));
        let changed = self.site.run(&["token", "change", "--tenant", "acme", &id, "--forms", &given], b"");
        assert_eq!(changed.code, 0, "{changed:?}");
        let began = Instant::now();
        while token.client.get("/api/v1/me").send().await.json()["token"]["forms"] != json!(forms) {
            assert!(began.elapsed() < LIMIT, "the node does not learn that the token has {forms:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl SceneToken {
    /// Subscribes a receiver. Returns the answer's `data`.
    pub(super) async fn subscribe(&self, receiver: &Receiver, more: &Value) -> Value {
        let mut body = json!({ "target_url": receiver.url("/hook") });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = self.client.post("/api/v1/subscribe").json(&body).send().await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["data"].clone()
    }

    pub(super) async fn shown(&self, id: &Value) -> Value {
        let path = format!("/api/v1/subscribe/{}", id.as_str().expect("an id"));
        self.client.get(&path).send().await.json()["data"].clone()
    }
}

/// The submissions of requests, sorted: those of different ones may arrive in any order.
fn submissions(receiver: &Receiver) -> Vec<String> {
    let mut names: Vec<String> = events(&receiver.requests()).into_iter().map(|(_, id)| id).collect();
    names.sort();
    names
}

on_both_databases! {
    async fn a_subscription_is_sent_what_its_token_reaches(engine: Engine) {
        let scene = Scene::new(engine).await;
        let token = scene.limited(&[1]).await;
        let receivers = [Receiver::always(Act::status(200)).await, Receiver::always(Act::status(200)).await];
        let created = &token.subscribe(&receivers[0], &json!({})).await["id"];
        let deleted = &token.subscribe(&receivers[1], &json!({"event": "submission.deleted"})).await["id"];
        for (submission, form) in [(1, 1), (2, 2), (3, 3), (4, 1)] {
            scene.insert(submission, form, "x").await;
        }
        received(&receivers[0], 3).await;
        scene.wait_until_delivered().await;
        assert_eq!(submissions(&receivers[0]), ["sub_1", "sub_2", "sub_4"]);
        // A form that goes with its submissions was in reach until then.
        scene.execute("DELETE FROM answers; DELETE FROM submissions WHERE id IN (2, 3); DELETE FROM elements WHERE form_id IN (2, 3);
            DELETE FROM forms WHERE id IN (2, 3)").await;
        received(&receivers[1], 1).await;
        scene.execute("DELETE FROM submissions WHERE id = 1").await;
        received(&receivers[1], 2).await;
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE leased_by IS NOT NULL", 0).await;
        assert_eq!(submissions(&receivers[1]), ["sub_1", "sub_2"]);
        for id in [created, deleted] {
            assert_eq!(token.shown(id).await["pending"], 0);
        }
        // The cursor of a webhook is one for the token that subscribed.
        let cursor = envelope(&receivers[1].requests()[0])["cursor"].as_str().unwrap().to_owned();
        let path = format!("/api/v1/submission/changes?cursor={cursor}");
        assert_eq!(token.client.get(&path).send().await.status, 200);
        assert_eq!(scene.client.get(&path).send().await.status, 422);
    }

    async fn what_is_out_of_reach_by_the_time_of_its_delivery_is_not_sent(engine: Engine) {
        let scene = Scene::new(engine).await;
        let token = scene.limited(&[1, 3]).await;
        let receiver = Receiver::always(Act::status(200)).await;
        let id = &token.subscribe(&receiver, &json!({})).await["id"];
        scene.acted(id, "pause", &json!({})).await;
        for (submission, form) in [(1, 1), (2, 3), (3, 3), (4, 2)] {
            scene.insert(submission, form, "x").await;
        }
        assert_eq!(token.shown(id).await["pending"], 4);
        // Moved by the product, a form that was moved, and the token narrowed.
        scene.execute("UPDATE submissions SET form_id = 1 WHERE id = 2; UPDATE forms SET parent_id = NULL WHERE id = 2").await;
        assert_eq!(token.shown(id).await["pending"], 3);
        scene.limit_to(&token, &FormReach::of([1])).await;
        for shown in [scene.subscription(id).await, token.shown(id).await] {
            assert_eq!(shown["pending"], 2, "{shown}");
        }
        scene.acted(id, "resume", &json!({})).await;
        received(&receiver, 2).await;
        scene.wait_until_delivered().await;
        assert_eq!(submissions(&receiver), ["sub_1", "sub_2"]);
        // Widened again: what was passed over is not sent any more, and what comes is.
        scene.limit_to(&token, &FormReach::All).await;
        scene.insert(5, 3, "x").await;
        received(&receiver, 3).await;
        scene.wait_until_delivered().await;
        assert_eq!(submissions(&receiver), ["sub_1", "sub_2", "sub_5"]);
    }

    async fn what_was_set_aside_is_not_sent_once_it_is_out_of_reach(engine: Engine) {
        let scene = Scene::new(engine).await;
        let token = scene.limited(&[1, 3]).await;
        let receiver = Receiver::start(|nth| Act::status(if nth < 2 { 422 } else { 200 })).await;
        let id = &token.subscribe(&receiver, &json!({})).await["id"];
        scene.insert(1, 1, "x").await;
        scene.insert(2, 3, "x").await;
        received(&receiver, 2).await;
        scene.wait_for("SELECT count(*) FROM webhook_events WHERE next_attempt_at IS NOT NULL", 2).await;
        let later = scene.database.in_hours(1);
        scene.execute(&format!("UPDATE webhook_events SET next_attempt_at = {later}")).await;
        assert_eq!(token.shown(id).await["pending"], 2);
        let refused = received(&receiver, 2).await;
        let of_second = refused.iter().find(|request| envelope(request)["data"]["id"] == "sub_2").unwrap();
        let event = envelope(of_second)["id"].clone();
        scene.limit_to(&token, &FormReach::of([1])).await;
        assert_eq!(token.shown(id).await["pending"], 1);
        assert_eq!(scene.faults(id, "replay", &json!({"event": event})).await, ["event"]);
        assert_eq!(scene.faults(id, "replay", &json!({"submissions": ["sub_2"]})).await, ["submissions.0"]);
        scene.acted(id, "replay", &json!({"failed": true})).await;
        scene.wait_for("SELECT count(*) FROM webhook_events", 0).await;
        scene.insert(3, 1, "x").await;
        received(&receiver, 4).await;
        scene.wait_until_delivered().await;
        assert_eq!(submissions(&receiver), ["sub_1", "sub_1", "sub_2", "sub_3"]);
        // The log of deliveries has what the token reaches; that of the account has all.
        let path = format!("/api/v1/subscribe/{}/deliveries", id.as_str().unwrap());
        let listed = token.client.get(&path).send().await.json();
        let of: Vec<&Value> = listed["data"].as_array().unwrap().iter().map(|attempt| &attempt["submission"]).collect();
        assert_eq!((of, &listed["meta"]["total"]), (vec![&json!("sub_3"), &json!("sub_1"), &json!("sub_1")], &json!(3)));
        assert_eq!(scene.client.get(&path).send().await.json()["meta"]["total"], 4);
    }

    async fn narrowing_a_token_ends_what_a_sender_has_read_before(engine: Engine) {
        let scene = Scene::with(engine, |webhooks| _ = webhooks.insert("per_subscription".into(), 1.into())).await;
        let token = scene.limited(&[1, 3]).await;
        let slow = |nth| if nth == 0 { vec![Act::Pause(Duration::from_secs(8))] } else { Vec::new() };
        let receiver = Receiver::start(move |nth| [slow(nth), Act::status(200)].concat()).await;
        let id = &token.subscribe(&receiver, &json!({})).await["id"];
        scene.acted(id, "pause", &json!({})).await;
        for (submission, form) in [(1, 1), (2, 3), (3, 3)] {
            scene.insert(submission, form, "x").await;
        }
        assert_eq!(token.shown(id).await["pending"], 3);
        scene.acted(id, "resume", &json!({})).await;
        // The sender has all three, and waits for the first.
        received(&receiver, 1).await;
        scene.limit_to(&token, &FormReach::of([1])).await;
        scene.insert(4, 1, "x").await;
        scene.wait_until_delivered().await;
        let seen = submissions(&receiver);
        assert!(seen.iter().all(|name| name == "sub_1" || name == "sub_4"), "{seen:?}");
        assert!(seen.contains(&"sub_4".to_owned()), "{seen:?}");
    }

    async fn a_test_and_a_sample_show_what_is_in_reach(engine: Engine) {
        let scene = Scene::with(engine, without_delivery).await;
        let token = scene.limited(&[1]).await;
        let receiver = Receiver::always(Act::status(200)).await;
        let id = token.subscribe(&receiver, &json!({})).await["id"].as_str().unwrap().to_owned();
        scene.insert(1, 3, "x").await;
        let test = format!("/api/v1/subscribe/{id}/test");
        for client in [&token.client, &scene.client] {
            let early = client.post(&test).send().await;
            assert_eq!((early.status.as_u16(), early.json()["errors"]["subscription"].is_array()), (422, true), "{early:?}");
        }
        assert_eq!(token.client.get("/api/v1/subscribe/sample").send().await.json(), json!([]));
        scene.insert(2, 2, "x").await;
        scene.insert(3, 3, "x").await;
        for client in [&token.client, &scene.client] {
            assert_eq!(client.post(&test).send().await.status, 200);
        }
        assert_eq!(submissions(&receiver), ["sub_2", "sub_2"], "whoever asks, a test is what the subscription would send");
        for (query, expected) in [("", &["sub_2"][..]), ("?form=1", &["sub_2"]), ("?form=3", &[])] {
            let sample = token.client.get(&format!("/api/v1/subscribe/sample{query}")).send().await.json();
            let names: Vec<&str> = sample.as_array().unwrap().iter().map(|one| one["data"]["id"].as_str().unwrap()).collect();
            assert_eq!(names, expected, "{query}");
        }
        let all = scene.client.get("/api/v1/subscribe/sample").send().await.json();
        assert_eq!(all.as_array().map(Vec::len), Some(3));
    }

    async fn a_limited_token_manages_only_the_subscriptions_that_it_made(engine: Engine) {
        let scene = Scene::with(engine, without_delivery).await;
        let (one, other) = (scene.limited(&[1]).await, scene.limited(&[1]).await);
        let receiver = Receiver::always(Act::status(200)).await;
        let of_all = scene.subscribe(&receiver, "submission.created", None).await["id"].clone();
        // The same is looked for among its own, and an account's other tokens look for one that sends as much.
        let own = one.subscribe(&receiver, &json!({})).await["id"].clone();
        let others = other.subscribe(&receiver, &json!({})).await["id"].clone();
        assert!(own != of_all && others != own && others != of_all);
        let body = json!({"target_url": receiver.url("/hook")});
        for (client, id) in [(&one.client, &own), (&other.client, &others), (&scene.client, &of_all)] {
            let again = client.post("/api/v1/subscribe").json(&body).send().await;
            assert_eq!((again.status.as_u16(), &again.json()["data"]["id"]), (200, id));
        }
        let list = async |client: &Client| {
            let listed = client.get("/api/v1/subscribe").send().await.json();
            let ids: Vec<Value> = listed["data"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect();
            assert_eq!(listed["meta"]["total"], ids.len());
            ids
        };
        assert_eq!(list(&one.client).await, std::slice::from_ref(&own));
        assert_eq!(list(&scene.client).await, [of_all.clone(), own.clone(), others.clone()]);
        for id in [&of_all, &others] {
            let path = format!("/api/v1/subscribe/{}", id.as_str().unwrap());
            for action in ["/pause", "/resume", "/rotate", "/replay", "/test"] {
                let refused = one.client.post(&format!("{path}{action}")).json(&json!({"failed": true})).send().await;
                assert_eq!((refused.status.as_u16(), refused.json()), (404, json!({"message": "Subscription not found"})), "{action}");
            }
            for path in [path.clone(), format!("{path}/deliveries")] {
                assert_eq!(one.client.get(&path).send().await.status, 404, "{path}");
            }
            assert_eq!(one.client.delete(&path).send().await.json(), json!({"deleted": 0}));
            assert_eq!(one.client.post("/api/v1/unsubscribe").json(&json!({"id": id})).send().await.json(), json!({"deleted": 0}));
        }
        assert_eq!(one.client.post("/api/v1/unsubscribe").json(&body).send().await.json(), json!({"deleted": 1}));
        assert_eq!(list(&scene.client).await, [of_all.clone(), others.clone()]);
        assert_eq!(scene.client.post("/api/v1/unsubscribe").json(&body).send().await.json(), json!({"deleted": 2}));
        // A limit that comes later is one of the subscriptions that were made before.
        let late = scene.limited(&[1]).await;
        scene.limit_to(&late, &FormReach::All).await;
        let made = late.subscribe(&receiver, &json!({})).await["id"].clone();
        let again = scene.client.post("/api/v1/subscribe").json(&body).send().await;
        assert_eq!((again.status.as_u16(), &again.json()["data"]["id"]), (200, &made));
        scene.limit_to(&late, &FormReach::of([1])).await;
        assert_eq!(list(&late.client).await, [made]);
        assert_eq!(scene.client.post("/api/v1/subscribe").json(&body).send().await.status, 201, "that one sends less now");
    }
}
