//! `formgate explain --webhook`: why webhooks of a subscription do not arrive.

use serde_json::{Value, json};

use super::scene::{Scene, envelope};
use crate::support::dns::Lookup;
use crate::support::fixture::on_both_databases;
use crate::support::process::Output;
use crate::support::receiver::{Act, Identity, Receiver};

const CREATED: &str = "submission.created";

impl Scene {
    async fn explain(&self, subscription: &str) -> Output {
        self.site.run_in_thread(&["explain", &self.site.host("acme"), "--webhook", subscription]).await
    }

    async fn test(&self, subscription: &str) -> Output {
        self.site.run_in_thread(&["webhook", "test", subscription, "--tenant", "acme"]).await
    }

    async fn subscribe_url(&self, url: &str) -> String {
        let answer = self.client.post("/api/v1/subscribe").json(&json!({ "target_url": url })).send().await;
        assert_eq!(answer.status, 201, "{answer:?}");
        id(&answer.json()["data"])
    }
}

fn id(subscription: &Value) -> String {
    subscription["id"].as_str().expect("an id").to_owned()
}

/// The line of a step, and the line of its remedy.
fn step<'o>(output: &'o Output, name: &str) -> [&'o str; 2] {
    let mut lines = output.stdout.lines().skip_while(|line| !line.starts_with(&format!("{name} ")));
    let line = lines.next().unwrap_or_else(|| panic!("no step {name}:\n{}\n{}", output.stdout, output.stderr));
    [line, lines.next().unwrap_or_default()]
}

fn assert_step(output: &Output, name: &str, texts: &[&str], remedy: &str) {
    let [line, below] = step(output, name);
    for text in texts {
        assert!(line.contains(text), "{text:?} at the step {name}:\n{}", output.stdout);
    }
    assert!(below.contains(remedy), "{remedy:?} below the step {name}:\n{}", output.stdout);
}

on_both_databases! {
    async fn a_receiver_that_works_gets_a_signed_test_with_the_newest_submission(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(204)).await;
        scene.insert(1, 1, "Zoë").await;
        let made = scene.subscribe(&receiver, CREATED, Some("for_1")).await;
        let output = scene.explain(&id(&made)).await;
        assert_eq!(output.code, 0, "{output:?}");
        for (name, text) in [
            ("name", "of the tenant `acme`"),
            ("subscription", "submission.created of for_1 to https://hooks.example.test:"),
            ("pending", "no event waits; nothing was accepted so far"),
            ("dns", "127.0.0.1"),
            ("address", "allowed"),
            ("tcp", "accepts connections"),
            ("tls", "the certificate is valid"),
            ("answer", "answered 204"),
        ] {
            assert_step(&output, name, &[" ok ", text], "");
        }
        assert!(output.stdout.ends_with("\nWebhooks of this subscription arrive.\n"), "{}", output.stdout);
        let secret = made["secret"].as_str().unwrap().trim_start_matches("whsec_");
        assert!(!output.stdout.contains(secret) && !output.stdout.contains("Zoë"), "{}", output.stdout);

        let requests = receiver.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        let sent = envelope(&requests[0]);
        let shown = scene.client.get("/api/v1/submission/sub_1").send().await.json()["data"].clone();
        assert_eq!((&sent["test"], &sent["data"], &sent["subscription"]), (&json!(true), &shown, &made["id"]));
        assert_eq!(requests[0].headers["webhook-id"], sent["id"].as_str().unwrap());
        assert!(requests[0].headers["webhook-signature"].to_str().unwrap().starts_with("v1,"));
        // Nothing was written.
        assert_eq!(scene.database.integers("SELECT count(*) FROM webhook_attempts").await, [0]);
        let output = scene.test(&id(&made)).await;
        assert_eq!(output.code, 0, "{output:?}");
        assert!(output.stdout.contains("204"), "{output:?}");
    }

    async fn the_step_at_which_requests_stop_has_a_remedy(engine: Engine) {
        let scene = Scene::with(engine, |webhooks| {
            webhooks.insert("allow_targets".into(), vec!["127.0.0.1"].into());
        }).await;
        scene.dns.answer("inner.example.test", &[Lookup::of(&["10.0.0.1"])]);
        scene.insert(1, 1, "x").await;
        let (expired, failing) = (Receiver::identified(Identity::Expired).await, Receiver::always(Act::status(503)).await);
        for (url, name, what, remedy) in [
            ("https://none.example.test/", "dns", "does not exist", "DNS record"),
            ("https://inner.example.test/", "address", "blocked address", "allow_targets"),
            (&expired.url("/"), "tls", "expired", "renew"),
            (&failing.url("/"), "answer", "answered 503", "its log"),
        ] {
            let subscription = scene.subscribe_url(url).await;
            let output = scene.test(&subscription).await;
            assert_eq!(output.code, 1, "{output:?}");
            let output = scene.explain(&subscription).await;
            assert_eq!(output.code, 1, "{output:?}");
            assert_step(&output, name, &["STOP", what], remedy);
            assert!(output.stderr.contains(&format!("webhooks stop at the step `{name}`")), "{}", output.stderr);
        }
    }

    async fn the_state_of_the_subscription_and_what_waits_are_shown(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(503)).await;
        let made = scene.subscribe(&receiver, CREATED, None).await;
        scene.insert(1, 1, "x").await;
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE state = 'failing'", 1).await;
        let output = scene.explain(&id(&made)).await;
        assert_step(&output, "subscription", &["warn", "failing since", "answered 503", "tried again on"], "the steps below");
        assert_step(&output, "pending", &["1 event waits, since"], "");
        for (state, text, remedy) in [
            ("paused", "nothing is sent", "formgate webhook resume"),
            ("disabled", "the host name was not resolved", "formgate webhook resume"),
            ("gone", "the host name was not resolved", "answered 410"),
        ] {
            let reason = r#"{"code":"unresolved"}"#;
            scene.execute(&format!("UPDATE subscriptions SET state = '{state}', reason = '{reason}'")).await;
            let output = scene.explain(&id(&made)).await;
            assert_eq!(output.code, 1, "{output:?}");
            assert_step(&output, "subscription", &["STOP", state, text], remedy);
            assert!(output.stderr.contains("step `subscription`"), "{}", output.stderr);
            assert_step(&output, "answer", &["STOP", "answered 503"], "its log");
        }
    }

    async fn a_subscription_that_is_not_there_is_reported_with_those_that_are(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(204)).await;
        assert_step(&scene.explain("hook_1").await, "subscription", &["STOP", "no subscription `hook_1`"], "it has none");
        let made = id(&scene.subscribe(&receiver, CREATED, None).await);
        for wrong in ["hook_4711", "sub_1", "-", "99999999999999999999"] {
            let output = scene.explain(wrong).await;
            assert_eq!(output.code, 1, "{output:?}");
            assert_step(&output, "subscription", &["STOP", "no subscription"], &format!("it has {made}"));
        }
        let bare = scene.explain(made.trim_start_matches("hook_")).await;
        assert_step(&bare, "answer", &["warn", "no submission to send"], "try again");
        assert_eq!((bare.code, receiver.requests().len()), (0, 0), "{bare:?}");
    }
}
