//! Keeps a copy of an account's submissions in step with the feed, as an integrator's program does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::answer::Answer;
use crate::support::client::Client;

/// How long the feed may answer that it can't be read now.
const LIMIT: Duration = Duration::from_secs(60);

/// A copy, and how far it is in step.
pub(crate) struct Follower {
    client: Client,
    /// Further parameters: `&limit=3`.
    parameters: String,
    cursor: Option<String>,
    /// The submissions, by id.
    pub(crate) copy: BTreeMap<String, Value>,
    /// How often it had to begin again.
    pub(crate) restarts: usize,
}

impl Follower {
    pub(crate) fn new(client: &Client, parameters: &str) -> Self {
        let parameters = parameters.to_owned();
        Self { client: client.clone(), parameters, cursor: None, copy: BTreeMap::new(), restarts: 0 }
    }

    /// One that goes on from a copy and its cursor.
    pub(crate) fn from(client: &Client, parameters: &str, copy: BTreeMap<String, Value>, cursor: &str) -> Self {
        Self { cursor: Some(cursor.to_owned()), copy, ..Self::new(client, parameters) }
    }

    /// One call of the feed.
    pub(crate) async fn ask(&self) -> Answer {
        let cursor = self.cursor.as_ref().map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let path = format!("/api/v1/submission/changes?{}{cursor}", self.parameters);
        self.client.get(&path).send().await
    }

    /// Applies the next page. Returns the types and ids of its entries, and whether there is more.
    pub(crate) async fn pull(&mut self) -> (Vec<(String, String)>, bool) {
        let began = Instant::now();
        let answer = loop {
            let answer = self.ask().await;
            match answer.status.as_u16() {
                200 => break answer.json(),
                410 => {
                    let reason = &answer.json()["reason"];
                    assert!(reason == "reset" || reason == "ahead", "{answer:?}");
                    (self.cursor, self.copy) = (None, BTreeMap::new());
                    self.restarts += 1;
                }
                503 => {
                    assert!(began.elapsed() < LIMIT, "{answer:?}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                _ => panic!("{answer:?}"),
            }
        };
        let mut seen = Vec::new();
        for entry in answer["data"].as_array().expect("a list") {
            let (kind, id) = (text(&entry["type"]), text(&entry["id"]));
            if kind == "deleted" {
                assert_eq!(entry["submission"], Value::Null, "{entry}");
                self.copy.remove(&id);
            } else {
                assert_eq!(entry["submission"]["id"], id.as_str(), "{entry}");
                self.copy.insert(id.clone(), entry["submission"].clone());
            }
            assert!(!seen.iter().any(|(_, other)| *other == id), "{id} is on a page twice");
            seen.push((kind, id));
        }
        self.cursor = Some(text(&answer["meta"]["cursor"]));
        (seen, answer["meta"]["has_more"].as_bool().expect("a truth value"))
    }

    /// Applies all that there is now. Returns the types and ids of the entries.
    pub(crate) async fn catch_up(&mut self) -> Vec<(String, String)> {
        let mut all = Vec::new();
        loop {
            let (seen, has_more) = self.pull().await;
            all.extend(seen);
            if !has_more {
                return all;
            }
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// Every submission that a search finds, by id.
pub(crate) async fn all_submissions(client: &Client, filter: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for page in 1.. {
        let answer = client.post(&format!("/api/v1/submission?page={page}")).json(filter).send().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let found = answer.json();
        all.extend(found["data"].as_array().expect("a list").iter().map(|one| (text(&one["id"]), one.clone())));
        if found["links"]["next"].is_null() {
            break;
        }
    }
    all
}
