//! Two nodes of one account, of which one is killed now and then, and requests that are sent until they are answered.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use serde_json::{Value, json};

use super::super::patch_of;
use crate::support::answer::Answer;
use crate::support::client::Client;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;

pub(super) struct Cluster {
    site: Arc<Site>,
    token: String,
    nodes: Mutex<Vec<Node>>,
    /// Of each node, for requests that begin now.
    clients: Mutex<Vec<Client>>,
    sequences: AtomicUsize,
    requests: AtomicUsize,
    repeated: AtomicUsize,
}

impl Cluster {
    pub(super) fn start(engine: Engine) -> Self {
        let guard = toml::Table::from_iter([("max_detached_percent".to_owned(), toml::Value::from(100))]);
        let site = Site::new().tenant_with("acme", engine, |tenant| {
            tenant.set("scim_requests_per_minute", 100_000).set("group_guard", guard)
        });
        let site = site.requests_per_minute(100_000).write();
        let token = site.limited_token("acme", "Directory", &["--scopes", "scim"]);
        let nodes = vec![site.start(), site.start()];
        let cluster = Self {
            site: Arc::new(site),
            token,
            nodes: Mutex::new(nodes),
            clients: Mutex::default(),
            sequences: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            repeated: AtomicUsize::new(0),
        };
        cluster.find_clients();
        cluster
    }

    fn find_clients(&self) {
        let host = self.site.host("acme");
        let nodes = self.nodes.lock().unwrap();
        *self.clients.lock().unwrap() = nodes.iter().map(|node| node.client().to(&host).with(&self.token)).collect();
    }

    /// Counts a sequence that is over.
    pub(super) fn note_sequence(&self) {
        self.sequences.fetch_add(1, Ordering::Relaxed);
    }

    /// How many requests were answered.
    pub(super) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// How often one was sent again.
    pub(super) fn repeated(&self) -> usize {
        self.repeated.load(Ordering::Relaxed)
    }

    /// Kills a node each time that a number of sequences is over, and starts another one, until the clients are done. Returns
    /// how many it killed.
    pub(super) async fn kill_while(&self, clients: impl Future, each: usize) -> usize {
        let mut clients = pin!(clients);
        let mut kills = 0;
        loop {
            let due = (kills + 1) * each;
            let waiting = pin!(async {
                while self.sequences.load(Ordering::Relaxed) < due {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                // The other one answers meanwhile.
                self.nodes.lock().unwrap().remove(0).kill();
                let site = Arc::clone(&self.site);
                let node = tokio::task::spawn_blocking(move || site.start()).await.unwrap();
                self.nodes.lock().unwrap().push(node);
                self.find_clients();
            });
            match select(clients.as_mut(), waiting).await {
                Either::Left(_) => return kills,
                Either::Right(_) => kills += 1,
            }
        }
    }

    /// The answer to a request, which is sent again if it gets none, or is refused for now.
    pub(super) async fn send(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        for attempt in 0..600 {
            let number = self.requests.load(Ordering::Relaxed) + attempt;
            let client = self.clients.lock().unwrap()[number % 2].clone();
            let call = client.method(method.parse().unwrap(), &format!("/scim/v2{path}"));
            match call.header("content-type", "application/scim+json").body(body.clone()).try_send().await {
                Ok(answer) if answer.status != 503 => {
                    self.requests.fetch_add(1, Ordering::Relaxed);
                    return answer;
                }
                Ok(_) | Err(_) => {
                    self.repeated.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        panic!("{method} {path} is never answered");
    }

    /// A resource or a list that exists.
    pub(super) async fn read(&self, path: &str) -> Value {
        let answer = self.send("GET", path, &Value::Null).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.json()
    }

    /// A write that is carried out.
    pub(super) async fn write(&self, method: &str, path: &str, body: &Value) {
        let answer = self.send(method, path, body).await;
        assert!([200, 204].contains(&answer.status.as_u16()), "{method} {path} {body}: {answer:?}");
    }

    pub(super) async fn patch(&self, path: &str, operations: &Value) {
        self.write("PATCH", path, &patch_of(operations)).await;
    }

    /// The ids of the members of a group.
    pub(super) async fn members(&self, group: &str) -> BTreeSet<String> {
        let shown = self.read(&format!("/Groups/{group}?attributes=members.value")).await;
        let members = shown["members"].as_array().cloned().unwrap_or_else(|| panic!("{}", json!(shown)));
        members.iter().map(|member| member["value"].as_str().unwrap().to_owned()).collect()
    }
}
