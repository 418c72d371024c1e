//! `GET /subscribe`, `GET /subscribe/{id}`.

use serde_json::{Value, json};

use super::{SUBSCRIBE, TARGET, data, subscribe};
use crate::api::account::account;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn a_long_list_comes_in_pages_of_a_hundred_by_id(engine: Engine) {
        let account = account(engine, "");
        let (client, database) = (&account.client, account.database().await);
        let mut made = Vec::new();
        for at in 0..100 {
            made.push(data(&subscribe(client, &json!({"target_url": format!("{TARGET}&at={at}")})).await, 201)["id"].clone());
        }
        // Of a time without a limit.
        for at in 100..103 {
            database
                .execute(&format!(
                    "INSERT INTO subscriptions (target_url, event, secret, created_at) \
                     SELECT target_url || '{at}', event, secret, created_at FROM subscriptions WHERE id = (SELECT min(id) FROM subscriptions)"
                ))
                .await;
            let [id] = database.integers("SELECT max(id) FROM subscriptions").await;
            made.push(json!(format!("hook_{id}")));
        }
        let mut listed = Vec::new();
        for page in 1..=3 {
            let answer = client.get(&format!("{SUBSCRIBE}?page={page}")).send().await.json();
            assert_eq!((&answer["meta"]["total"], &answer["meta"]["per_page"]), (&json!(103), &json!(100)));
            assert_eq!(answer["links"]["first"], "https://acme.example.test/api/v1/subscribe?page=1");
            listed.extend(answer["data"].as_array().unwrap().iter().map(|subscription| subscription["id"].clone()));
        }
        assert_eq!(listed, made);
        assert_eq!(super::faulty_fields(&client.get(&format!("{SUBSCRIBE}?page=0")).send().await), ["page"]);
    }

    async fn both_forms_of_an_id_find_a_subscription_and_others_are_not_found(engine: Engine) {
        let client = &account(engine, "").client;
        let made = data(&subscribe(client, &json!({"target_url": TARGET})).await, 201);
        let id = made["id"].as_str().unwrap();
        for id in [id, id.strip_prefix("hook_").unwrap()] {
            assert_eq!(data(&client.get(&format!("{SUBSCRIBE}/{id}")).send().await, 200)["target_url"], TARGET);
        }
        for id in ["hook_77", "for_1", "hook_", "0", "x", "9223372036854775808"] {
            let answer = client.get(&format!("{SUBSCRIBE}/{id}")).send().await;
            assert_eq!((answer.status.as_u16(), &answer.json()["message"]), (404, &Value::from("Subscription not found")), "{id}");
        }
    }
}
