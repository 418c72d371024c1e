//! `GET /group`, `PUT /group`, `GET /group/{id}`, `DELETE /group/{id}`.

mod at_once;
mod cut_off;
mod delete;
mod dry_run;
mod faults;
mod guard;
mod large;
mod list;
mod long;
mod mailbox;
mod members;
mod model;
mod recipe;
mod sequence;
mod show;
mod syncs;
mod write;

use serde_json::{Value, json};

use crate::support::answer::Answer;
use crate::support::client::Client;

const GROUPS: &str = "/api/v1/group";

/// The built-in group.
const ALL_USERS: &str = "grp_9007199254740991";

/// A PUT, whatever becomes of it; the query begins with `?` or is empty.
async fn put(client: &Client, query: &str, body: &Value) -> Answer {
    client.put(&format!("{GROUPS}{query}")).json(body).send().await
}

/// A PUT that has no fault.
async fn write(client: &Client, body: &Value) -> Value {
    written(&put(client, "", body).await)
}

/// The body of an answer to a write without fault, whose status and result agree.
fn written(answer: &Answer) -> Value {
    let json = answer.json();
    let result = match answer.status.as_u16() {
        200 => "updated",
        201 => "created",
        _ => panic!("{answer:?}"),
    };
    assert_eq!(json["result"], result);
    json
}

/// The fields that a refused PUT names, in their order.
fn faulty_fields(answer: &Answer) -> Vec<String> {
    assert_eq!(answer.status, 422, "{answer:?}");
    answer.json()["errors"].as_object().unwrap().keys().cloned().collect()
}

/// The counts `[attached, detached, created]` of a write.
fn counts(written: &Value) -> [u64; 3] {
    ["attached", "detached", "created"].map(|what| written["members"][what].as_u64().unwrap())
}

/// The pages of a list, one after the other by their links.
async fn pull(client: &Client, first: &str) -> Vec<Value> {
    let mut pulled = Vec::new();
    let mut next = Some(first.to_owned());
    while let Some(url) = next {
        let answer = client.get(&url[url.find("/api").unwrap()..]).send().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let page = answer.json();
        pulled.extend(page["data"].as_array().unwrap().iter().cloned());
        next = page["links"]["next"].as_str().map(str::to_owned);
    }
    pulled
}

/// One group with its members, which are as many as it says.
async fn show(client: &Client, id: &str) -> Value {
    let answer = client.get(&format!("{GROUPS}/{id}")).send().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let group = answer.json()["data"].clone();
    assert_eq!(group["members_count"], group["members"].as_array().unwrap().len());
    group
}

/// Every group with its members, in the order of the list, which says the same about each.
async fn everything(client: &Client) -> Vec<Value> {
    let mut groups = Vec::new();
    for listed in pull(client, GROUPS).await {
        let shown = show(client, listed["id"].as_str().unwrap()).await;
        let mut summary = shown.clone();
        summary.as_object_mut().unwrap().remove("members");
        assert_eq!(summary, listed);
        groups.push(shown);
    }
    groups
}

/// Members without names.
fn members<T: AsRef<str>>(emails: impl IntoIterator<Item = T>) -> Value {
    emails.into_iter().map(|email| json!({ "email": email.as_ref() })).collect()
}

/// The addresses of a group's members, in their order.
fn emails(group: &Value) -> Vec<&str> {
    group["members"].as_array().unwrap().iter().map(|member| member["email"].as_str().unwrap()).collect()
}
