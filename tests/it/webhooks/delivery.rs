//! What is sent, when, and what becomes of it.

use serde_json::{Value, json};

use super::scene::{Scene, by_id, envelope, events, received};
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, Receiver};

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(kind, id)| ((*kind).to_owned(), (*id).to_owned())).collect()
}

on_both_databases! {
    async fn a_change_arrives_with_the_submission_as_the_api_shows_it(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(204)).await;
        scene.insert(1, 1, "before").await;
        let made = scene.subscribe(&receiver, "submission.created", None).await;
        scene.insert(2, 1, "Zoë").await;
        let requests = received(&receiver, 1).await;
        let sent = envelope(&requests[0]);
        let shown = scene.client.get("/api/v1/submission/sub_2").send().await.json()["data"].clone();
        assert_eq!(sent["data"], shown, "with its answer, although that came in a transaction of its own");
        assert_eq!(sent["type"], "submission.created");
        assert_eq!(sent["account"], "acme");
        assert_eq!(sent["subscription"], made["id"]);
        assert_eq!(sent["form"], "for_1");
        assert_eq!(requests[0].headers["webhook-id"], sent["id"].as_str().unwrap());
        assert_eq!(requests[0].headers["formgate-attempt"], "1");
        let cursor = sent["cursor"].as_str().unwrap();
        let next = scene.client.get(&format!("/api/v1/submission/changes?cursor={cursor}")).send().await;
        assert_eq!(next.json()["data"], json!([]), "the feed goes on after it: {next:?}");
        scene.insert(3, 1, "after").await;
        let requests = received(&receiver, 2).await;
        assert_eq!(events(&requests), pairs(&[("submission.created", "sub_2"), ("submission.created", "sub_3")]));
    }

    async fn a_subscription_gets_the_events_of_its_kind_and_form(engine: Engine) {
        let scene = Scene::new(engine).await;
        let (all, of_form, gone) = (
            Receiver::always(Act::status(200)).await,
            Receiver::always(Act::status(200)).await,
            Receiver::always(Act::status(200)).await,
        );
        scene.subscribe(&all, "submission.updated", None).await;
        scene.subscribe(&of_form, "submission.created", Some("for_1")).await;
        scene.subscribe(&gone, "submission.deleted", None).await;
        for (id, form) in [(1, 1), (2, 2), (3, 3)] {
            scene.insert(id, form, "x").await;
        }
        let requests = received(&of_form, 2).await;
        let created = "submission.created";
        // Events of different submissions are sent at once.
        let mut arrived = events(&requests);
        arrived.sort();
        assert_eq!(arrived, pairs(&[(created, "sub_1"), (created, "sub_2")]), "sub-forms included");
        scene.execute("UPDATE answers SET value = 'y' WHERE submission_id = 3").await;
        assert_eq!(events(&received(&all, 1).await), pairs(&[("submission.updated", "sub_3")]));
        scene.execute("DELETE FROM answers WHERE submission_id = 2").await;
        scene.execute("DELETE FROM submissions WHERE id = 2").await;
        let deleted = received(&gone, 1).await;
        assert_eq!(envelope(&deleted[0])["data"], json!({ "id": "sub_2" }));
        assert_eq!(of_form.requests().len(), 2);
    }

    async fn a_clock_that_is_set_back_delays_and_merges_nothing(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(204)).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        scene.subscribe(&receiver, "submission.updated", None).await;
        let (before, later) = (scene.at(1), scene.at(50_000_000));
        scene
            .execute(&format!(
                "BEGIN; INSERT INTO submissions (id, form_id, status, created_at, updated_at, draft) \
                 VALUES (1, 1, 'pending', {before}, {before}, FALSE); \
                 UPDATE intake SET at = {later}; COMMIT"
            ))
            .await;
        received(&receiver, 1).await;
        scene.execute("UPDATE submissions SET status = 'approved' WHERE id = 1").await;
        let expected = pairs(&[("submission.created", "sub_1"), ("submission.updated", "sub_1")]);
        assert_eq!(events(&received(&receiver, 2).await), expected);
    }

    async fn each_attempt_of_an_event_has_the_same_id_and_bytes(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::start(|nth| if nth == 0 { Act::status(503) } else { Act::status(200) }).await;
        let made = scene.subscribe(&receiver, "submission.created", None).await;
        scene.insert(1, 1, "first").await;
        received(&receiver, 1).await;
        scene.wait_for("SELECT count(*) FROM webhook_events", 1).await;
        let failing = scene.subscription(&made["id"]).await;
        scene.execute("UPDATE answers SET value = 'second' WHERE submission_id = 1").await;
        let requests = received(&receiver, 2).await;
        let same = by_id(&requests);
        assert_eq!(same.len(), 1, "{requests:?}");
        assert_eq!(requests[0].body, requests[1].body);
        let attempts: Vec<_> = requests.iter().map(|request| request.headers["formgate-attempt"].clone()).collect();
        assert_eq!(attempts, ["1", "2"]);
        scene.wait_for("SELECT count(*) FROM webhook_events", 0).await;
        let _: Value = failing;
    }

    async fn a_refused_event_does_not_hold_up_the_others(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::start(|nth| if nth == 0 { Act::status(422) } else { Act::status(200) }).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        scene.insert(1, 1, "x").await;
        received(&receiver, 1).await;
        scene.insert(2, 1, "x").await;
        let requests = received(&receiver, 3).await;
        let created = "submission.created";
        assert_eq!(events(&requests), pairs(&[(created, "sub_1"), (created, "sub_2"), (created, "sub_1")]));
        assert_eq!(requests[0].body, requests[2].body);
        scene.wait_for("SELECT count(*) FROM webhook_events", 0).await;
    }

    async fn a_receiver_that_is_gone_gets_nothing_more(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::always(Act::status(410)).await;
        scene.subscribe(&receiver, "submission.created", None).await;
        scene.insert(1, 1, "x").await;
        scene.wait_for("SELECT count(*) FROM subscriptions WHERE state = 'gone' AND reason IS NOT NULL", 1).await;
        assert_eq!(receiver.requests().len(), 1);
    }
}
