//! `POST /unsubscribe`.

use serde_json::{Value, json};

use super::{TARGET, data, faulty_fields, ids, subscribe, unsubscribe};
use crate::api::account::account;
use crate::support::client::Client;
use crate::support::fixture::on_both_databases;

const OTHER: &str = "https://hooks.example/other";

async fn deleted(client: &Client, body: &Value) -> u64 {
    let answer = unsubscribe(client, body).await;
    assert_eq!(answer.status, 200, "{body}: {answer:?}");
    let json = answer.json();
    assert_eq!(json.as_object().unwrap().len(), 1);
    json["deleted"].as_u64().unwrap()
}

/// Both events, for every form and for two forms, at one target; and one at another target.
async fn seven(client: &Client) -> Vec<Value> {
    let mut made = Vec::new();
    for form in [Value::Null, json!(3), json!(4)] {
        for event in ["submission.created", "submission.updated"] {
            made.push(
                data(&subscribe(client, &json!({"target_url": TARGET, "event": event, "form": form})).await, 201)["id"]
                    .clone(),
            );
        }
    }
    made.push(data(&subscribe(client, &json!({"target_url": OTHER})).await, 201)["id"].clone());
    made
}

on_both_databases! {
    async fn an_id_ends_one_subscription(engine: Engine) {
        let account = account(engine, "");
        account.database().await.execute("INSERT INTO forms (id, name) VALUES (3, 'Leave'), (4, 'Travel')").await;
        let client = &account.client;
        let made = seven(client).await;
        let number = |id: &Value| id.as_str().unwrap().trim_start_matches("hook_").to_owned();
        assert_eq!(deleted(client, &json!({"id": made[0]})).await, 1);
        assert_eq!(deleted(client, &json!({"id": made[0]})).await, 0, "there was none any more");
        assert_eq!(deleted(client, &json!({"id": number(&made[1])})).await, 1);
        assert_eq!(deleted(client, &json!({"id": number(&made[2]).parse::<u64>().unwrap()})).await, 1);
        assert_eq!(deleted(client, &json!({"id": "hook_9223372036854775807"})).await, 0);
        assert_eq!(ids(client).await, made[3..]);
        let path = format!("{}/{}", super::SUBSCRIBE, made[0].as_str().unwrap());
        assert_eq!(client.get(&path).send().await.status, 404);
    }

    async fn a_target_ends_all_its_subscriptions_or_those_of_an_event_or_a_form(engine: Engine) {
        let account = account(engine, "");
        account.database().await.execute("INSERT INTO forms (id, name) VALUES (3, 'Leave'), (4, 'Travel')").await;
        let client = &account.client;
        for (body, count) in [
            (json!({"target_url": TARGET}), 6),
            (json!({"hookUrl": TARGET}), 6),
            (json!({"targetUrl": TARGET}), 6),
            (json!({"url": TARGET}), 6),
            (json!({"target_url": TARGET, "event": "submission.updated"}), 3),
            (json!({"target_url": TARGET, "form": "for_3"}), 2),
            (json!({"target_url": TARGET, "form": "4"}), 2),
            (json!({"target_url": TARGET, "form": null}), 2),
            (json!({"target_url": TARGET, "form": 3, "event": "submission.created"}), 1),
            (json!({"target_url": TARGET, "form": 5}), 0),
            (json!({"target_url": "https://hooks.example/"}), 0),
            (json!({"target_url": OTHER, "event": null}), 1),
        ] {
            let before = seven(client).await;
            assert_eq!(deleted(client, &body).await, count, "{body}");
            assert_eq!(ids(client).await.len() as u64, before.len() as u64 - count, "{body}");
            deleted(client, &json!({"target_url": TARGET})).await;
            deleted(client, &json!({"target_url": OTHER})).await;
            assert_eq!(ids(client).await, [Value::Null; 0]);
            assert_eq!(deleted(client, &body).await, 0, "{body}");
        }
    }

    async fn calls_at_once_end_each_subscription_once(engine: Engine) {
        let mut account = account(engine, "");
        account.database().await.execute("INSERT INTO forms (id, name) VALUES (3, 'Leave'), (4, 'Travel')").await;
        let clients = [account.client.clone(), account.another_node()];
        for round in 0..10 {
            let made = seven(&account.client).await;
            let calls: Vec<_> = (0..20)
                .map(|at| {
                    let body = match at % 3 {
                        0 => json!({"id": made[at % 6]}),
                        1 => json!({"target_url": TARGET}),
                        _ => json!({"target_url": TARGET, "event": "submission.updated"}),
                    };
                    let client = clients[at % 2].clone();
                    tokio::spawn(async move { deleted(&client, &body).await })
                })
                .collect();
            let mut count = 0;
            for call in calls {
                count += call.await.unwrap();
            }
            assert_eq!(count, 6, "round {round}");
            assert_eq!(deleted(&account.client, &json!({"target_url": OTHER})).await, 1);
        }
    }

    async fn a_request_without_a_valid_key_is_refused(engine: Engine) {
        let client = &account(engine, "").client;
        data(&subscribe(client, &json!({"target_url": TARGET})).await, 201);
        for (body, fields) in [
            (json!({}), vec!["id"]),
            (json!({"event": "submission.created"}), vec!["id"]),
            (json!({"id": null, "target_url": null}), vec!["id"]),
            (json!({"id": "for_1"}), vec!["id"]),
            (json!({"id": 0}), vec!["id"]),
            (json!({"id": [1]}), vec!["id"]),
            (json!({"target_url": "http://hooks.example/"}), vec!["target_url"]),
            (json!({"target_url": TARGET, "event": "x", "form": "x"}), vec!["event", "form"]),
        ] {
            assert_eq!(faulty_fields(&unsubscribe(client, &body).await), fields, "{body}");
        }
        assert_eq!(ids(client).await.len(), 1);
    }
}
