//! Pausing, resuming and rotating a subscription, and what it shows of itself.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::scene::{Scene, envelope, events, received, without_delivery};
use crate::support::answer::Answer;
use crate::support::busy::{PeriodTooShort, with_period_from};
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::receiver::{Act, Receiver};

/// Why a receiver fails, as the database has it.
const STORED_REASON: &str = r#"{"code":"status","status":503}"#;

/// The routes of one subscription.
const ACTIONS: [&str; 4] = ["pause", "resume", "rotate", "replay"];

fn faulty_fields(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 422, "{answer:?}");
    answer.json()["errors"].as_object().unwrap().keys().cloned().collect()
}

impl Scene {
    /// Calls a route of a subscription.
    pub(super) async fn act(&self, id: &Value, action: &str, body: &Value) -> Answer {
        let path = format!("/api/v1/subscribe/{}/{action}", id.as_str().expect("an id"));
        self.client.post(&path).json(body).send().await
    }

    /// The subscription after a route that succeeded.
    pub(super) async fn acted(&self, id: &Value, action: &str, body: &Value) -> Value {
        let answer = self.act(id, action, body).await;
        assert_eq!(answer.status, 200, "{action} {body}: {answer:?}");
        answer.json()["data"].clone()
    }

    /// The fields with faults.
    pub(super) async fn faults(&self, id: &Value, action: &str, body: &Value) -> Vec<String> {
        faulty_fields(&self.act(id, action, body).await)
    }
}

on_both_databases! {
    async fn a_subscription_that_was_paused_for_too_long_says_which_deletions_it_lost(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(200)).await;
        let ids = [
            scene.subscribe(&receiver, "submission.deleted", None).await,
            scene.subscribe(&receiver, "submission.deleted", Some("for_1")).await,
            scene.subscribe(&receiver, "submission.updated", None).await,
            scene.subscribe(&receiver, "submission.deleted", Some("for_3")).await,
        ]
        .map(|subscription| subscription["id"].clone());
        for id in &ids[..3] {
            scene.acted(id, "pause", &json!({})).await;
        }
        // Of the first form, of its sub-form, of another one, and one that is not too old.
        for (submission, form) in [(1, 1), (2, 2), (3, 3), (4, 1)] {
            scene.insert(submission, form, "x").await;
        }
        assert_eq!(scene.subscription(&ids[0]).await["lost_deletions"], 0);
        scene.execute("DELETE FROM answers; DELETE FROM submissions").await;
        received(&receiver, 1).await;
        scene.wait_until_delivered().await;
        let past = [1, 2, 3].map(|day| scene.at((day - 200) * 86_400));
        for (submission, past) in (1..).zip(&past) {
            scene.execute(&format!("UPDATE submission_changes SET changed_at = {past} WHERE submission_id = {submission}")).await;
        }
        assert_eq!(scene.site.run(&["reindex", "--tenant", "acme"], b"").code, 0);
        let mut shown = Vec::new();
        for id in &ids {
            let subscription = scene.subscription(id).await;
            shown.push((subscription["lost_deletions"].clone(), subscription["lost_until"].clone()));
        }
        let lost = |count: i64, until: &str| (json!(count), json!(until));
        let none = (json!(0), Value::Null);
        let expected =
            [lost(3, "2025-08-16T12:00:00.000000Z"), lost(2, "2025-08-15T12:00:00.000000Z"), none.clone(), none];
        assert_eq!(shown, expected);
        // It goes on with what is left, and still says what it has lost.
        let resumed = scene.acted(&ids[1], "resume", &json!({})).await;
        assert_eq!((&resumed["state"], &resumed["lost_deletions"]), (&json!("active"), &json!(2)));
        assert_eq!(events(&received(&receiver, 2).await)[1].1, "sub_4");
        let listed = scene.site.run(&["webhook", "show", "--tenant", "acme", ids[0].as_str().expect("an id")], b"");
        assert!(listed.stdout.contains("lost deletions"), "{listed:?}");
    }

    async fn a_paused_subscription_gets_what_happened_meanwhile_once_it_is_resumed(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(200)).await;
        let id = &scene.subscribe(&receiver, "submission.created", Some("for_1")).await["id"];
        let paused = scene.acted(id, "pause", &json!({})).await;
        assert_eq!((&paused["state"], &paused["reason"]), (&json!("paused"), &json!("paused by request")));
        let stored = r#"SELECT count(*) FROM subscriptions WHERE reason = '{"code":"paused"}'"#;
        scene.wait_for(stored, 1).await;
        for (submission, form) in [(1, 1), (2, 2), (3, 3)] {
            scene.insert(submission, form, "x").await;
        }
        assert_eq!(scene.subscription(id).await["pending"], 2, "sub-forms included, and no other form");
        assert!(receiver.requests().is_empty());
        let resumed = scene.acted(id, "resume", &json!({})).await;
        assert_eq!((&resumed["state"], &resumed["reason"]), (&json!("active"), &Value::Null));
        let mut names: Vec<String> = events(&received(&receiver, 2).await).into_iter().map(|(_, id)| id).collect();
        // Those of two submissions are sent at once.
        names.sort();
        assert_eq!(names, ["sub_1", "sub_2"]);
        scene.wait_until_delivered().await;
        let delivered = scene.subscription(id).await;
        assert_eq!((&delivered["pending"], &delivered["state"]), (&json!(0), &json!("active")));
        assert!(delivered["last_success_at"].is_string(), "{delivered}");
    }

    async fn requests_that_run_when_a_subscription_is_paused_are_finished_and_not_repeated(engine: Engine) {
        let scene = Scene::new(engine).await;
        // The second answer is much later than the first, which is written meanwhile.
        let late = |nth: usize| [vec![Act::Pause(Duration::from_secs(3 + 2 * nth as u64))], Act::status(200)].concat();
        let receiver = Receiver::start(move |nth| if nth < 2 { late(nth) } else { Act::status(200) }).await;
        let id = &scene.subscribe(&receiver, "submission.created", None).await["id"];
        scene.insert(1, 1, "x").await;
        scene.insert(2, 1, "x").await;
        received(&receiver, 2).await;
        scene.acted(id, "pause", &json!({})).await;
        scene.wait_for("SELECT count(*) FROM webhook_attempts WHERE accepted", 2).await;
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE leased_by IS NULL", 1).await;
        assert_eq!(scene.subscription(id).await["state"], "paused");
        scene.insert(3, 1, "x").await;
        scene.acted(id, "resume", &json!({})).await;
        received(&receiver, 3).await;
        scene.wait_until_delivered().await;
        let mut names: Vec<String> = events(&receiver.requests()).into_iter().map(|(_, id)| id).collect();
        names.sort();
        assert_eq!(names, ["sub_1", "sub_2", "sub_3"]);
    }

    async fn a_failing_receiver_shows_why_and_is_tried_at_once_when_it_is_resumed(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::start(|nth| if nth == 0 { Act::status(503) } else { Act::status(200) }).await;
        let id = &scene.subscribe(&receiver, "submission.created", None).await["id"];
        scene.insert(1, 1, "x").await;
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE state <> 'active' OR last_success_at IS NOT NULL", 1).await;
        scene.execute(&format!("UPDATE subscriptions SET next_attempt_at = {}", scene.at(1_000_000_000))).await;
        let failing = scene.subscription(id).await;
        assert_eq!((&failing["state"], &failing["pending"]), (&json!("failing"), &json!(1)));
        for field in ["reason", "failing_since", "next_attempt_at"] {
            assert!(failing[field].is_string(), "{field}: {failing}");
        }
        let resumed = scene.acted(id, "resume", &json!({})).await;
        for field in ["reason", "failing_since", "next_attempt_at"] {
            assert!(resumed[field].is_null(), "{field}: {resumed}");
        }
        received(&receiver, 2).await;
        scene.wait_until_delivered().await;
        assert_eq!(scene.subscription(id).await["state"], "active");
    }

    async fn every_state_can_be_resumed_and_only_one_that_is_delivered_is_paused(engine: Engine) {
        let scene = Scene::with(engine, without_delivery).await;
        let receiver = Receiver::always(Act::status(200)).await;
        let id = &scene.subscribe(&receiver, "submission.deleted", None).await["id"];
        for (state, paused, reason) in [
            ("active", "paused", "paused by request"),
            ("failing", "paused", "paused by request"),
            ("paused", "paused", "the receiver answered 503"),
            ("disabled", "disabled", "the receiver answered 503"),
            ("gone", "gone", "the receiver answered 503"),
        ] {
            let at = scene.at(0);
            let change = format!("UPDATE subscriptions SET state = '{state}', reason = '{STORED_REASON}', failures = 3, failing_since = {at}, next_attempt_at = {at}");
            scene.execute(&change).await;
            let shown = scene.subscription(id).await;
            assert_eq!((&shown["state"], shown["next_attempt_at"].is_string()), (&json!(state), state == "failing"));
            let shown = scene.acted(id, "pause", &json!({})).await;
            assert_eq!((&shown["state"], &shown["reason"]), (&json!(paused), &json!(reason)), "{state}");
            scene.execute(&change).await;
            let shown = scene.acted(id, "resume", &json!({})).await;
            assert_eq!((&shown["state"], &shown["reason"], &shown["failing_since"]), (&json!("active"), &Value::Null, &Value::Null));
            scene.wait_for("SELECT count(*) FROM subscriptions WHERE failures = 0 AND next_attempt_at IS NULL", 1).await;
        }
    }

    async fn after_a_rotation_both_secrets_sign_for_a_while(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(200)).await;
        let made = scene.subscribe(&receiver, "submission.created", None).await;
        let id = &made["id"];
        let rotated = scene.acted(id, "rotate", &json!({})).await;
        assert_ne!(rotated["secret"], made["secret"]);
        assert!(scene.subscription(id).await.get("secret").is_none());
        let stored = scene.database.text("SELECT previous_secret FROM subscriptions").await;
        assert_eq!(made["secret"], stored.as_str());
        scene.insert(1, 1, "x").await;
        let signatures = |at: usize| receiver.requests()[at].headers["webhook-signature"].to_str().unwrap().split(' ').count();
        received(&receiver, 1).await;
        assert_eq!(signatures(0), 2);
        scene.acted(id, "rotate", &json!({"grace_seconds": 0})).await;
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE previous_secret IS NULL", 1).await;
        scene.insert(2, 1, "x").await;
        let seen = received(&receiver, 2).await.len();
        assert_eq!(signatures(seen - 1), 1);
        for grace in [json!(-1), json!(2_592_001), json!(1.5), json!("60"), json!(true), json!([1])] {
            assert_eq!(scene.faults(id, "rotate", &json!({"grace_seconds": grace})).await, ["grace_seconds"]);
        }
        for grace in [json!(null), json!(60.0), json!(2_592_000)] {
            scene.acted(id, "rotate", &json!({"grace_seconds": grace})).await;
        }
    }

    async fn an_unknown_subscription_is_not_found_on_every_route(engine: Engine) {
        let scene = Scene::with(engine, without_delivery).await;
        for id in ["hook_77", "for_1", "hook_", "0", "x", "9223372036854775808"] {
            for action in ACTIONS {
                let answer = scene.act(&json!(id), action, &json!({"failed": true})).await;
                assert_eq!((answer.status.as_u16(), answer.json()), (404, json!({"message": "Subscription not found"})), "{id} {action}");
            }
            let answer = scene.client.get(&format!("/api/v1/subscribe/{id}/deliveries")).send().await;
            assert_eq!((answer.status.as_u16(), answer.json()), (404, json!({"message": "Subscription not found"})), "{id}");
        }
    }

    async fn the_routes_of_a_subscription_take_one_method_each(engine: Engine) {
        let scene = Scene::with(engine, without_delivery).await;
        let receiver = Receiver::always(Act::status(200)).await;
        let id = scene.subscribe(&receiver, "submission.created", None).await["id"].as_str().unwrap().to_owned();
        for action in ACTIONS {
            let answer = scene.client.get(&format!("/api/v1/subscribe/{id}/{action}")).send().await;
            assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, Some("POST")), "{action}");
        }
        let path = format!("/api/v1/subscribe/{id}/deliveries");
        let answer = scene.client.delete(&path).send().await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, Some("GET, HEAD")));
        assert_eq!(scene.client.head(&path).send().await.status, 200);
    }
}

#[tokio::test]
async fn a_subscription_of_another_account_is_out_of_reach() {
    let site = Site::new().tenant("acme", Engine::Sqlite).tenant("globex", Engine::Postgres).write();
    let node = site.start();
    let [acme, globex] =
        ["acme", "globex"].map(|slug| node.client().to(&site.host(slug)).with(&site.token(slug, "tests")));
    let body = json!({"target_url": "https://hooks.example.com/1"});
    let made = acme.post("/api/v1/subscribe").json(&body).send().await;
    let id = made.json()["data"]["id"].as_str().unwrap().to_owned();
    for action in ACTIONS {
        let path = format!("/api/v1/subscribe/{id}/{action}");
        assert_eq!(globex.post(&path).json(&json!({"failed": true})).send().await.status, 404, "{action}");
        assert_eq!(acme.post(&path).json(&json!({"failed": true})).send().await.status, 200, "{action}");
    }
    let path = format!("/api/v1/subscribe/{id}/deliveries");
    assert_eq!(globex.get(&path).send().await.status, 404);
    assert_eq!(acme.get(&path).send().await.status, 200);
}

#[tokio::test]
async fn tests_of_one_account_leave_room_for_those_of_others() {
    let scene = Scene::built(Engine::Sqlite, |site| site.tenant("globex", Engine::Sqlite), without_delivery).await;
    let hanging = Receiver::always(vec![Act::Hang]).await;
    let made = scene.subscribe(&hanging, "submission.created", None).await;
    scene.insert(1, 1, "x").await;
    let path = format!("/api/v1/subscribe/{}/test", made["id"].as_str().unwrap());
    let of_acme = join_all((0..20).map(|_| scene.client.post(&path).fresh().send()));

    let site = &scene.site;
    let database = Database::connect(site.database_url("globex")).await;
    database
        .execute(
            "INSERT INTO forms (id, name) VALUES (1, 'F'); \
             INSERT INTO submissions (form_id, status, created_at, updated_at) VALUES (1, 'pending', 0, 0)",
        )
        .await;
    let globex = scene.nodes[0].client().to(&site.host("globex")).with(&site.token("globex", "tests"));
    let receiver = Receiver::always(Act::status(200)).await;
    let body = json!({ "target_url": receiver.url("/hook"), "event": "submission.created" });
    let made = globex.post("/api/v1/subscribe").json(&body).send().await.json();
    let of_globex = async {
        received(&hanging, 2).await;
        globex.post(&format!("/api/v1/subscribe/{}/test", made["data"]["id"].as_str().unwrap())).send().await
    };
    let (of_acme, of_globex) = tokio::join!(of_acme, of_globex);
    assert_eq!(of_globex.status, 200, "{of_globex:?}");
    assert_eq!(of_globex.json()["data"]["status"], 200);
    let sent = of_acme.iter().filter(|answer| answer.status == 200).count();
    assert!(of_acme.iter().all(|answer| answer.status == 200 || answer.status == 503), "{of_acme:?}");
    assert!((2..20).contains(&sent), "{sent} of 20 tests at once were sent");
}

on_both_databases! {
    async fn a_test_is_sent_at_once_whatever_the_state_and_a_sample_shows_the_same(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::answer(201, &[], "thanks")).await;
        let made = scene.subscribe(&receiver, "submission.created", Some("for_1")).await;
        let id = made["id"].as_str().unwrap();
        let test = format!("/api/v1/subscribe/{id}/test");
        let early = scene.client.post(&test).send().await;
        assert_eq!(early.status, 422, "there is nothing to send: {early:?}");
        assert_eq!(scene.client.get("/api/v1/subscribe/sample").send().await.json(), json!([]));
        scene.client.post(&format!("/api/v1/subscribe/{id}/pause")).send().await;
        scene.insert(1, 1, "x").await;
        let tested = scene.client.post(&test).send().await;
        assert_eq!(tested.status, 200, "{tested:?}");
        let tested = tested.json()["data"].clone();
        assert_eq!((&tested["status"], &tested["response"]), (&json!(201), &json!("thanks")));
        let sent = envelope(&receiver.requests()[0]);
        assert_eq!((&sent["test"], &sent["data"]["id"]), (&json!(true), &json!("sub_1")));
        scene.insert(2, 3, "y").await;
        let sample = scene.client.get("/api/v1/subscribe/sample?event=submission.updated&form=1").send().await.json();
        assert_eq!(sample.as_array().map(Vec::len), Some(1));
        assert_eq!(sample[0]["data"], sent["data"]);
        assert_eq!(sample[0]["type"], "submission.updated");
        let refused = scene.client.get("/api/v1/subscribe/sample?event=x&form=y").send().await;
        assert_eq!(refused.status, 422, "{refused:?}");
    }

    async fn a_test_of_a_receiver_that_never_answers_says_so_in_time(engine: Engine) {
        // A busy machine may leave too little of the request's time for the other steps.
        with_period_from(2, async |seconds| {
            let limits = || toml::Table::from_iter([("request_seconds".to_owned(), i64::from(seconds).into())]);
            let scene = Scene::built(engine, |site| site.gateway("limits", limits()), |_| ()).await;
            let receiver = Receiver::always(vec![Act::Hang]).await;
            let made = scene.subscribe(&receiver, "submission.created", None).await;
            scene.insert(1, 1, "x").await;
            let path = format!("/api/v1/subscribe/{}/test", made["id"].as_str().unwrap());
            let tested = scene.client.post(&path).send().await;
            if tested.status == 504 {
                return Err(PeriodTooShort);
            }
            assert_eq!(tested.status, 200, "{tested:?}");
            let tested = tested.json()["data"].clone();
            assert_eq!((&tested["status"], &tested["response"]), (&Value::Null, &Value::Null), "{tested}");
            let error = tested["error"].as_str();
            assert!(error.is_some_and(|error| error.starts_with("the time limit ended")), "{tested}");
            let took = 1000..u64::from(seconds) * 1000;
            assert!(tested["duration_ms"].as_u64().is_some_and(|ms| took.contains(&ms)), "{tested}");
            Ok(())
        })
        .await;
    }
}
