//! Webhooks on their pages: state, attempts, and what an administrator does about them.

use std::time::Duration;

use http::Method;
use serde_json::json;

use super::scene::{Administrator, Scene, between, hidden, text};
use crate::support::certificate;
use crate::support::database::Database;
use crate::support::dns::{DnsServer, Lookup};
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, HOST, Receiver};

/// A site that delivers to receivers of the test.
async fn scene(engine: crate::support::fixture::Engine) -> (Scene, DnsServer) {
    let dns = DnsServer::start().await;
    dns.answer(HOST, &[Lookup::of(&["127.0.0.1"])]);
    let site = Scene::site(engine);
    let mut table = toml::Table::new();
    table.insert("ca_file".into(), certificate::authority(site.folder()).display().to_string().into());
    table.insert("dns_servers".into(), vec![dns.address.to_string()].into());
    table.insert("allow_targets".into(), vec!["127.0.0.0/8"].into());
    (Scene::of(site.gateway("webhooks", table)), dns)
}

async fn insert_submission(scene: &Scene) {
    let database = scene.database("acme").await;
    let (no, at) = match &database {
        Database::Postgres(_) => ("FALSE", "now()".to_owned()),
        Database::Sqlite(_) => ("0", jiff::Timestamp::now().as_microsecond().to_string()),
    };
    database
        .execute(&format!("INSERT INTO submissions (id, form_id, status, created_at, updated_at, draft) VALUES (1, 1, 'pending', {at}, {at}, {no})"))
        .await;
    database.close().await;
}

async fn page(administrator: &Administrator, path: &str) -> String {
    let answer = administrator.get(path).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    text(&answer)
}

on_both_databases! {
    async fn a_webhook_shows_the_deletions_that_it_lost(engine: Engine) {
        let (scene, _dns) = scene(engine).await;
        let own = scene.sign_in("acme", "admin").await;
        let (_, token) = own.generate("automation").await;
        let body = json!({ "target_url": "https://hooks.test/", "event": "submission.updated" });
        let answer = own.caller.with(&token).post("/api/v1/subscribe").json(&body).send().await;
        assert_eq!(answer.status, 201, "{answer:?}");
        for path in ["/admin/webhooks", "/admin/webhooks/1"] {
            assert!(!page(&own, path).await.contains("lost"), "{path}");
        }
        let database = scene.database("acme").await;
        let until = match &database {
            Database::Postgres(_) => "to_timestamp(1772366400)",
            Database::Sqlite(_) => "1772366400000000",
        };
        database.execute(&format!("UPDATE subscriptions SET lost_deletions = 3, lost_until = {until}")).await;
        database.close().await;
        for (language, expected) in [
            ("en", "3 deletions were not sent within 90 days and are lost"),
            ("de", "3 Löschungen wurden nicht innerhalb von 90 Tagen gesendet und sind verloren"),
        ] {
            let page = async |path: &str| text(&own.call(Method::GET, path).header("accept-language", language).send().await);
            assert!(page("/admin/webhooks").await.contains(expected), "{language}");
            let shown = page("/admin/webhooks/1").await;
            assert!(shown.contains(expected) && shown.contains("2026-03-01T12:00:00"), "{shown}");
        }
    }

    async fn webhooks_and_attempts_name_the_form(engine: Engine) {
        let (scene, _dns) = scene(engine).await;
        let own = scene.sign_in("acme", "admin").await;
        let database = scene.database("acme").await;
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave <b>'), (2, 'Trip')").await;
        let (_, token) = own.generate("automation").await;
        let receiver = Receiver::always(Act::answer(200, &[], "thanks")).await;
        for (form, path) in [(1, "/one"), (2, "/two")] {
            let body = json!({ "target_url": receiver.url(path), "event": "submission.created", "form": format!("for_{form}") });
            let answer = own.caller.with(&token).post("/api/v1/subscribe").json(&body).send().await;
            assert_eq!((answer.status.as_u16(), &answer.json()["data"]["forms"]), (201, &json!(null)), "{answer:?}");
        }
        let limited = own.post("/admin/tokens", &[("name", "limited"), ("forms", "2 1"), ("form_key", &super::scene::random())]).await;
        let limited = between(&text(&limited), "<code id=\"token-value\">", "</code>").to_owned();
        let body = json!({ "target_url": receiver.url("/three") });
        let answer = own.caller.with(&limited).post("/api/v1/subscribe").json(&body).send().await;
        assert_eq!(answer.json()["data"]["forms"], json!(["for_1", "for_2"]), "{answer:?}");
        let shown = page(&own, "/admin/webhooks/3").await;
        assert!(shown.contains("of what its token reaches: Leave &#60;b&#62;, Trip<") && !shown.contains("of every form"), "{shown}");
        insert_submission(&scene).await;
        let began = std::time::Instant::now();
        let shown = loop {
            let shown = page(&own, "/admin/webhooks/1").await;
            if shown.contains("<th scope=\"row\">sub_1") {
                break shown;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{shown}");
            // A session may open only so many pages a minute.
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        let row = between(&shown, "<th scope=\"row\">sub_1", "</th>");
        assert!(row.contains("<span class=\"note\">Leave &#60;b&#62;</span>"), "{row}");
        let list = page(&own, "/admin/webhooks").await;
        for (page, sentence) in [
            (&shown, "of the form “Leave &#60;b&#62;” and its sub-forms"),
            (&list, "of the form “Leave &#60;b&#62;”"),
            (&list, "of the form “Trip”"),
            (&list, "of what its token reaches: Leave &#60;b&#62;, Trip"),
        ] {
            assert!(page.contains(sentence) && !page.contains("for_1"), "{sentence} in {page}");
        }
        // What is gone is not named.
        database.execute("DELETE FROM forms WHERE id = 2").await;
        database.execute("DELETE FROM submissions WHERE id = 1").await;
        database.close().await;
        assert!(!page(&own, "/admin/webhooks").await.contains("Trip"));
        let shown = page(&own, "/admin/webhooks/1").await;
        assert!(shown.contains("<th scope=\"row\">sub_1 <span class=\"note\">evt_"), "{shown}");
    }

    async fn what_was_done_and_what_failed_look_different(engine: Engine) {
        const PATH: &str = "/admin/webhooks/1";
        let (scene, _dns) = scene(engine).await;
        let own = scene.sign_in("acme", "admin").await;
        let database = scene.database("acme").await;
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave')").await;
        database.close().await;
        let (_, token) = own.generate("automation").await;
        let receiver = Receiver::deciding(|number, _| Act::answer(if number == 0 { 200 } else { 500 }, &[], "")).await;
        let body = json!({ "target_url": receiver.url("/"), "event": "submission.updated" });
        let answer = own.caller.with(&token).post("/api/v1/subscribe").json(&body).send().await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let notice = |page: &str| {
            let (before, _) = page.split_once("\" role=\"status\"").or_else(|| page.split_once("\" role=\"alert\"")).unwrap();
            before.rsplit('"').next().unwrap().to_owned()
        };
        let test = async || {
            let shown = text(&own.post(PATH, &[("action", "test")]).await);
            assert!(shown.contains("No event was sent yet."), "a test is none: {shown}");
            notice(&shown)
        };
        assert_eq!(test().await, "warning", "there is nothing to send");
        insert_submission(&scene).await;
        assert_eq!(test().await, "done", "the receiver accepts it");
        assert_eq!(test().await, "warning", "the receiver refuses it");
        for action in ["pause", "resume", "replay"] {
            let answer = own.post(PATH, &[("action", action)]).await;
            let shown = page(&own, answer.header("location").expect("a redirect")).await;
            assert_eq!(notice(&shown), "done", "{action}");
        }
    }

    async fn a_webhook_is_shown_tested_paused_resumed_and_rotated(engine: Engine) {
        const PATH: &str = "/admin/webhooks/1";
        let (scene, _dns) = scene(engine).await;
        let (own, viewer) = (scene.sign_in("acme", "admin").await, scene.sign_in("acme", "viewer").await);
        assert!(page(&own, "/admin/webhooks").await.contains("No tool is subscribed yet"));
        let database = scene.database("acme").await;
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave')").await;
        database.close().await;
        let (_, token) = own.generate("automation").await;
        let receiver = Receiver::always(Act::answer(200, &[], "<b>thanks</b>")).await;
        let body = json!({ "target_url": receiver.url("/<i>hook"), "event": "submission.created" });
        let answer = own.caller.with(&token).post("/api/v1/subscribe").json(&body).send().await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let secret = answer.json()["data"]["secret"].as_str().expect("it is shown once").to_owned();

        let list = page(&viewer, "/admin/webhooks").await;
        assert!(list.contains("data-webhook=\"1\"") && list.contains("active") && !list.contains("<i>"), "{list}");
        assert!(!page(&viewer, PATH).await.contains("name=\"action\""), "a viewer has no buttons");
        let answer = own.post(PATH, &[("action", "test")]).await;
        assert_eq!(answer.status, 422);
        assert!(text(&answer).contains("there is no submission to send yet"));
        insert_submission(&scene).await;
        let began = std::time::Instant::now();
        while receiver.requests().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(60), "nothing was sent");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let tested = own.post(PATH, &[("action", "test")]).await;
        assert!(text(&tested).contains("The receiver accepted the test: 200"), "{tested:?}");
        assert!(text(&tested).contains("&#60;b&#62;thanks"), "{tested:?}");

        for (action, said, state) in [("pause", "It is paused", "paused"), ("resume", "It is resumed", "active")] {
            let answer = own.post(PATH, &[("action", action)]).await;
            assert_eq!(answer.status, 303, "{answer:?}");
            let shown = page(&own, answer.header("location").expect("a redirect")).await;
            assert!(shown.contains(said) && shown.contains(&format!("state {state}")), "{shown}");
        }
        assert_eq!(own.post(PATH, &[("action", "replay")]).await.status, 303);

        let secret_key = hidden(&own.get(PATH).await, "secret_key");
        let rotate = [("action", "rotate"), ("grace", "1h"), ("secret_key", &*secret_key)];
        // Sent twice at once: it rotates once, since the secret that was shown first must stay valid.
        let (first, second) = tokio::join!(own.post(PATH, &rotate), own.post(PATH, &rotate));
        let (rotated, refused) = if first.status == 200 { (first, second) } else { (second, first) };
        assert_eq!((rotated.status.as_u16(), refused.status.as_u16()), (200, 409), "{refused:?}");
        let new = between(&text(&rotated), "<code id=\"webhook-secret\">", "</code>").to_owned();
        assert!(new.starts_with("whsec_") && new != secret);
        let again = own.post(PATH, &rotate).await;
        assert_eq!(again.status, 409, "sending the form again rotates once");
        for shown in [text(&again), page(&own, PATH).await, page(&own, "/admin/audit").await] {
            assert!(!shown.contains(&new) && !shown.contains(&secret));
        }
        let audit = page(&own, "/admin/audit").await;
        for action in ["webhook.test", "webhook.pause", "webhook.resume", "webhook.replay", "webhook.rotate"] {
            assert!(audit.contains(action), "{action} in {audit}");
        }
        for fields in [&[("action", "delete")][..], &[], &[("action", "rotate"), ("grace", "9y")]] {
            assert_eq!(own.post(PATH, fields).await.status, 404, "{fields:?}");
        }
        for unknown in ["0", "-1", "2", "x", "9223372036854775808"] {
            let path = format!("/admin/webhooks/{unknown}");
            assert_eq!(own.get(&path).await.status, 404, "{unknown}");
            for action in ["pause", "resume", "replay", "test", "rotate"] {
                let fields = [("action", action), ("grace", "1h")];
                assert_eq!(own.post(&path, &fields).await.status, 404, "{action} of {unknown}");
            }
        }
    }
}
