//! How many subscriptions an account has at most.

use futures_util::future::join_all;
use serde_json::json;

use super::{SUBSCRIBE, TARGET, data, faulty_fields, ids, subscribe};
use crate::api::account::account;
use crate::support::fixture::on_both_databases;

on_both_databases! {
    async fn an_account_has_at_most_a_hundred_also_when_many_are_made_at_once(engine: Engine) {
        let mut account = account(engine, "");
        let clients = [account.client.clone(), account.another_node()];
        let mut made = 0;
        for round in 0..11 {
            let calls = (0..10).map(|nth| {
                let url = format!("{TARGET}&n={round}.{nth}");
                let client = &clients[nth % 2];
                async move { subscribe(client, &json!({"hookUrl": url})).await }
            });
            for answer in join_all(calls).await {
                if answer.status == 201 {
                    made += 1;
                } else {
                    assert_eq!(faulty_fields(&answer), ["hookUrl"]);
                }
            }
        }
        assert_eq!((made, ids(&clients[0]).await.len()), (100, 100));
        data(&subscribe(&clients[1], &json!({"url": format!("{TARGET}&n=0.0")})).await, 200);
        let first = ids(&clients[0]).await[0].as_str().unwrap().to_owned();
        clients[0].delete(&format!("{SUBSCRIBE}/{first}")).send().await;
        data(&subscribe(&clients[1], &json!({"url": format!("{TARGET}&n=another")})).await, 201);
    }
}
