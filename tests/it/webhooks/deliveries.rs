//! `GET /subscribe/{id}/deliveries`.

use serde_json::{Value, json};

use super::scene::{Scene, received, without_delivery};
use crate::support::fixture::on_both_databases;
use crate::support::receiver::{Act, Receiver};

on_both_databases! {
    async fn each_attempt_is_listed_with_what_the_receiver_answered(engine: Engine) {
        let scene = Scene::new(engine).await;
        let receiver = Receiver::start(|nth| match nth {
            0 => Act::answer(503, &[], "Try again later"),
            _ => Act::answer(200, &[], "Thanks"),
        })
        .await;
        let id = scene.subscribe(&receiver, "submission.created", None).await["id"].as_str().unwrap().to_owned();
        scene.insert(1, 1, "x").await;
        let requests = received(&receiver, 2).await;
        scene.wait_until_delivered().await;
        let list = async |query: &str| scene.client.get(&format!("/api/v1/subscribe/{id}/deliveries{query}")).send().await.json();
        let all = list("").await;
        let attempts = all["data"].as_array().unwrap();
        let seen: Vec<_> = attempts.iter().map(|of| (&of["attempt"], &of["status"], &of["error"], &of["response"])).collect();
        assert_eq!(seen, [
            (&json!(2), &json!(200), &Value::Null, &json!("Thanks")),
            (&json!(1), &json!(503), &Value::Null, &json!("Try again later")),
        ]);
        for attempt in attempts {
            assert_eq!(attempt["event"], requests[0].headers["webhook-id"].to_str().unwrap());
            assert_eq!((&attempt["type"], &attempt["submission"]), (&json!("submission.created"), &json!("sub_1")));
        }
        assert_eq!(list("?status=failed").await["data"], json!([attempts[1]]));
        assert_eq!(list("?status=succeeded").await["data"], json!([attempts[0]]));
    }

    async fn a_long_log_comes_in_pages_of_fifty_the_newest_first(engine: Engine) {
        let scene = Scene::with(engine, without_delivery).await;
        let receiver = Receiver::always(Act::status(200)).await;
        let id = scene.subscribe(&receiver, "submission.updated", None).await["id"].as_str().unwrap().to_owned();
        for attempt in 1..=120 {
            let refused = r#"FALSE, NULL, '{"code":"connect","fault":"refused"}'"#;
            let accepted = if attempt % 2 == 0 { "TRUE, 204, NULL" } else { refused };
            scene.execute(&format!(
                "INSERT INTO webhook_attempts (subscription_id, event_id, event, submission_id, attempt, at, duration_ms, accepted, status, error) \
                 SELECT id, 'evt_1', 'submission.updated', 7, {attempt}, {}, 5, {accepted} FROM subscriptions", scene.at(attempt)
            )).await;
        }
        let path = format!("/api/v1/subscribe/{id}/deliveries");
        let mut listed = Vec::new();
        for page in 1..=3 {
            let answer = scene.client.get(&format!("{path}?page={page}")).send().await.json();
            assert_eq!((&answer["meta"]["total"], &answer["meta"]["per_page"]), (&json!(120), &json!(50)));
            listed.extend(answer["data"].as_array().unwrap().iter().map(|attempt| attempt["attempt"].as_i64().unwrap()));
        }
        assert_eq!(listed, (1..=120).rev().collect::<Vec<_>>());
        let failed = scene.client.get(&format!("{path}?status=failed&page=1")).send().await.json();
        assert_eq!((&failed["meta"]["total"], &failed["data"][0]["error"]), (&json!(60), &json!("no connection: connection refused")));
        assert!(failed["links"]["next"].as_str().unwrap().ends_with(&format!("{path}?status=failed&page=2")), "{failed}");
        let faulty = scene.client.get(&format!("{path}?status=maybe&page=0")).send().await;
        let fields: Vec<String> = faulty.json()["errors"].as_object().unwrap().keys().cloned().collect();
        assert_eq!((faulty.status.as_u16(), fields), (422, vec!["page".to_owned(), "status".to_owned()]));
    }
}
