//! `DELETE /subscribe/{id}`, which tools call that keep the id of what they made.

use serde_json::json;

use super::{SUBSCRIBE, TARGET, data, ids, subscribe};
use crate::api::account::account;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn a_subscription_is_deleted_once_by_its_id_and_again_without_a_fault(engine: Engine) {
        let client = &account(engine, "").client;
        let mut made = Vec::new();
        for number in 1..=3 {
            let answer = subscribe(client, &json!({"url": format!("{TARGET}&n={number}")})).await;
            made.push(data(&answer, 201)["id"].as_str().unwrap().to_owned());
        }
        let bare = made[1].trim_start_matches("hook_").to_owned();
        for (id, deleted) in [(&made[0], 1), (&made[0], 0), (&bare, 1), (&made[1], 0), (&"hook_9223372036854775807".to_owned(), 0)] {
            let answer = client.delete(&format!("{SUBSCRIBE}/{id}")).send().await;
            assert_eq!((answer.status.as_u16(), answer.json()), (200, json!({"deleted": deleted})), "{id}");
        }
        assert_eq!(ids(client).await, [made[2].as_str()]);
        for id in ["hook_0", "sub_1", "x", "9223372036854775808", "hook_"] {
            let answer = client.delete(&format!("{SUBSCRIBE}/{id}")).send().await;
            assert_eq!((answer.status.as_u16(), answer.json()), (404, json!({"message": "Subscription not found"})), "{id}");
        }
        assert_eq!(ids(client).await, [made[2].as_str()]);
    }
}
