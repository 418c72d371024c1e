//! `GET /subscribe`, `POST /subscribe`, `GET /subscribe/{id}`, `DELETE /subscribe/{id}`, `POST /unsubscribe`.

mod delete;
mod limit;
mod list;
mod subscribe;
mod unsubscribe;

use serde_json::Value;

use crate::support::answer::Answer;
use crate::support::client::Client;

const SUBSCRIBE: &str = "/api/v1/subscribe";

const TARGET: &str = "https://hooks.example/catch/1?key=a%20b";

async fn subscribe(client: &Client, body: &Value) -> Answer {
    client.post(SUBSCRIBE).json(body).send().await
}

async fn unsubscribe(client: &Client, body: &Value) -> Answer {
    client.post("/api/v1/unsubscribe").json(body).send().await
}

/// The subscription in an answer with a status.
fn data(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{answer:?}");
    answer.json()["data"].clone()
}

/// The ids of every subscription.
async fn ids(client: &Client) -> Vec<Value> {
    let answer = client.get(SUBSCRIBE).send().await;
    data(&answer, 200).as_array().unwrap().iter().map(|subscription| subscription["id"].clone()).collect()
}

fn faulty_fields(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 422, "{answer:?}");
    answer.json()["errors"].as_object().unwrap().keys().cloned().collect()
}
