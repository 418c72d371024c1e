//! Subscriptions that are bound to their token: they end with it, unless another one replaces it.

use formgate::store::{Actor, DatabaseLocation, Store};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::scene::{Scene, events, received};
use crate::support::client::Client;
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, Receiver};

impl Scene {
    async fn store(&self) -> Store {
        let location = DatabaseLocation::parse(self.site.database_url("acme"), "/".as_ref()).unwrap();
        Store::open(&location, 1).await.unwrap()
    }

    /// A subscription to what is created, as an unlimited token sees it.
    async fn state_of(&self, id: &Value) -> (Value, Value) {
        let shown = self.subscription(id).await;
        (shown["state"].clone(), shown["reason"].clone())
    }
}

/// The token of a client.
async fn token_of(client: &Client) -> i64 {
    client.get("/api/v1/me").send().await.json()["token"]["id"].as_i64().expect("a number")
}

async fn subscribe(client: &Client, receiver: &Receiver, bound: Option<bool>) -> Value {
    let body = json!({ "target_url": receiver.url("/hook"), "bound": bound });
    let answer = client.post("/api/v1/subscribe").json(&body).send().await;
    assert!([200, 201].contains(&answer.status.as_u16()), "{answer:?}");
    answer.json()["data"].clone()
}

fn ended() -> (Value, Value) {
    (json!("paused"), json!("token_ended"))
}

on_both_databases! {
    async fn a_bound_subscription_ends_with_its_token_and_another_outlives_it(engine: Engine) {
        let scene = Scene::new(engine).await;
        let client = scene.client.with(&scene.site.token("acme", "integration"));
        let receivers = [Receiver::always(Act::status(200)).await, Receiver::always(Act::status(200)).await];
        let bound = subscribe(&client, &receivers[0], Some(true)).await;
        let unbound = subscribe(&client, &receivers[1], None).await;
        assert_eq!((&bound["bound"], &unbound["bound"]), (&json!(true), &json!(false)));
        scene.insert(1, 1, "x").await;
        for receiver in &receivers {
            received(receiver, 1).await;
        }
        let (store, token) = (scene.store().await, token_of(&client).await);
        assert!(store.revoke_token(token, Timestamp::now(), &Actor::command("tests")).await.unwrap());
        assert_eq!(scene.state_of(&bound["id"]).await, ended());
        assert_eq!(scene.state_of(&unbound["id"]).await, (json!("active"), Value::Null));
        scene.insert(2, 1, "x").await;
        received(&receivers[1], 2).await;
        assert_eq!(scene.subscription(&bound["id"]).await["pending"], 1);
        assert_eq!(scene.faults(&bound["id"], "resume", &json!({})).await, ["subscription"]);
        // Pausing it says so, and it still can't be resumed.
        scene.acted(&bound["id"], "pause", &json!({})).await;
        assert_eq!(scene.state_of(&bound["id"]).await, (json!("paused"), json!("paused by request")));
        assert_eq!(scene.faults(&bound["id"], "resume", &json!({})).await, ["subscription"]);
        let counts = store.count_subscriptions().await.unwrap();
        assert_eq!(counts.by_state, [("active".to_owned(), 1), ("paused".to_owned(), 1)].into());
        assert_eq!(events(&receivers[0].requests()).len(), 1);
        store.close().await;
    }

    async fn a_token_that_expires_ends_what_is_bound_to_it_by_itself(engine: Engine) {
        let scene = Scene::new(engine).await;
        let client = scene.client.with(&scene.site.token("acme", "integration"));
        let receivers = [Receiver::always(Act::status(200)).await, Receiver::always(Act::status(200)).await];
        let bound = subscribe(&client, &receivers[0], Some(true)).await["id"].clone();
        let unbound = subscribe(&client, &receivers[1], Some(false)).await["id"].clone();
        let token = token_of(&client).await;
        let past = scene.at(0);
        scene.execute(&format!("UPDATE tokens SET expires_at = {past} WHERE id = {token}")).await;
        scene.insert(1, 1, "x").await;
        received(&receivers[1], 1).await;
        assert_eq!(scene.state_of(&bound).await, ended());
        assert_eq!(scene.state_of(&unbound).await.0, "active");
        let store = scene.store().await;
        let number = bound.as_str().unwrap().trim_start_matches("hook_").parse().unwrap();
        assert!(store.lease_subscription(number, "another".to_owned()).await.unwrap().is_none());
        let inspected = store.inspect_subscription(number).await.unwrap().unwrap();
        assert_eq!((inspected.state.as_str(), inspected.reason.unwrap().to_string().as_str()), ("paused", "token_ended"));
        // One that can be used again, because its expiry was put off, goes on where it stopped.
        scene.execute(&format!("UPDATE tokens SET expires_at = NULL WHERE id = {token}")).await;
        assert_eq!(scene.state_of(&bound).await.0, "active");
        received(&receivers[0], 1).await;
        store.close().await;
    }

    async fn a_sender_starts_nothing_more_once_the_token_has_ended(engine: Engine) {
        let scene = Scene::with(engine, |webhooks| _ = webhooks.insert("per_subscription".into(), 1.into())).await;
        let client = scene.client.with(&scene.site.token("acme", "integration"));
        let slow = |nth| if nth == 0 { vec![Act::Pause(std::time::Duration::from_secs(3))] } else { Vec::new() };
        let receiver = Receiver::start(move |nth| [slow(nth), Act::status(200)].concat()).await;
        let bound = subscribe(&client, &receiver, Some(true)).await["id"].clone();
        scene.acted(&bound, "pause", &json!({})).await;
        for submission in 1..=3 {
            scene.insert(submission, 1, "x").await;
        }
        assert_eq!(scene.subscription(&bound).await["pending"], 3);
        scene.acted(&bound, "resume", &json!({})).await;
        received(&receiver, 1).await;
        let (store, token) = (scene.store().await, token_of(&client).await);
        assert!(store.revoke_token(token, Timestamp::now(), &Actor::command("tests")).await.unwrap());
        store.close().await;
        // Another subscription gets what comes later, and after the running request has ended.
        let other = Receiver::always(Act::status(200)).await;
        scene.subscribe(&other, "submission.created", None).await;
        scene.insert(4, 1, "x").await;
        received(&other, 1).await;
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE bound AND leased_by IS NOT NULL", 0).await;
        assert_eq!(events(&receiver.requests()).len(), 1);
        assert_eq!(scene.state_of(&bound).await, ended());
    }

    async fn a_token_that_replaces_another_takes_over_what_is_bound_to_it(engine: Engine) {
        let scene = Scene::new(engine).await;
        let old = scene.limited(&[1]).await;
        let receivers = [Receiver::always(Act::status(200)).await, Receiver::always(Act::status(200)).await];
        let bound = old.subscribe(&receivers[0], &json!({"bound": true})).await["id"].clone();
        let unbound = old.subscribe(&receivers[1], &json!({})).await["id"].clone();
        let number = old.id.to_string();
        let rotated = scene.site.run(&["token", "rotate", "--tenant", "acme", &number, "--overlap", "1h"], b"");
        assert_eq!(rotated.code, 0, "{rotated:?}");
        let new = scene.client.with(rotated.stdout.trim());
        let list = async |client: &Client| {
            let listed = client.get("/api/v1/subscribe").send().await.json();
            listed["data"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>()
        };
        assert_eq!((list(&new).await, list(&old.client).await), (vec![bound.clone()], vec![unbound.clone()]));
        let revoked = scene.site.run(&["token", "revoke", "--tenant", "acme", &number], b"");
        assert_eq!(revoked.code, 0, "{revoked:?}");
        for id in [&bound, &unbound] {
            assert_eq!(scene.state_of(id).await, (json!("active"), Value::Null));
        }
        scene.insert(1, 3, "x").await;
        scene.insert(2, 1, "x").await;
        for receiver in &receivers {
            assert_eq!(events(&received(receiver, 1).await)[0].1, "sub_2", "the reach is that of the old token and of the new one");
        }
        let store = scene.store().await;
        let newer = token_of(&new).await;
        assert!(store.revoke_token(newer, Timestamp::now(), &Actor::command("tests")).await.unwrap());
        assert_eq!(scene.state_of(&bound).await, ended());
        assert_eq!(scene.state_of(&unbound).await.0, "active");
        store.close().await;
    }

    async fn a_token_that_asks_for_a_bound_subscription_gets_one_of_its_own(engine: Engine) {
        let scene = Scene::new(engine).await;
        let [one, other] = ["one", "other"].map(|name| scene.client.with(&scene.site.token("acme", name)));
        let receiver = Receiver::always(Act::status(200)).await;
        let shared = subscribe(&one, &receiver, None).await;
        assert_eq!(subscribe(&other, &receiver, None).await["id"], shared["id"]);
        let bound = subscribe(&other, &receiver, Some(true)).await;
        assert!(bound["id"] != shared["id"] && bound["bound"] == true, "{bound}");
        assert_eq!(subscribe(&other, &receiver, None).await["id"], bound["id"], "its own, if it has one");
        // Its own is bound from then on.
        let own = subscribe(&one, &receiver, Some(true)).await;
        assert_eq!((&own["id"], &own["bound"]), (&shared["id"], &json!(true)));
        // One that is bound to another token is none of its own.
        let third = scene.client.with(&scene.site.token("acme", "third"));
        let fresh = subscribe(&third, &receiver, None).await;
        assert!(![&bound["id"], &shared["id"]].contains(&&fresh["id"]), "{fresh}");
        for faulty in [json!("true"), json!(1), json!([])] {
            let body = json!({ "target_url": receiver.url("/hook"), "bound": faulty });
            let answer = one.post("/api/v1/subscribe").json(&body).send().await;
            assert_eq!((answer.status.as_u16(), &answer.json()["errors"]), (422, &json!({"bound": ["The bound must be true or false."]})));
        }
    }
}
