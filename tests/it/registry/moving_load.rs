//! What the others do while accounts move: callers of the API and of the operator's, followers, exports and receivers. None of
//! their requests may fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::moved::{Account, CHANGING, FIRST};
use super::scene::{LIMIT, Scene, client};
use crate::support::answer::Answer;
use crate::support::client::{Call, Client};
use crate::support::database::Database;
use crate::support::process::Node;
use crate::support::receiver::{Act, Received, Receiver};

/// How much is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Calls {
    /// Every kind of call.
    All,
    /// The cheapest of each kind, for one account of many.
    Few,
}

/// After how many calls of others a group is written. Settling one takes longer than a read, and searches wait for it.
const SYNCS: u32 = 8;

/// The calls of one account, until they are ended.
pub(super) struct Load {
    ended: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<u64>>,
    /// What followers have seen.
    seen: Arc<Mutex<BTreeSet<String>>>,
    /// By group: the members that were written last.
    groups: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
}

/// A caller that goes on until it is told to end.
#[derive(Clone)]
struct Caller {
    client: Client,
    /// Of the node that is called.
    log: Arc<Mutex<String>>,
    ended: Arc<AtomicBool>,
    pause: Duration,
}

impl Caller {
    /// The answer to a call, which is repeated as callers do while searches are not prepared for what was written: a busy machine
    /// takes longer for that than a request waits, whether the account moves or not.
    async fn ask(&self, call: impl Fn(&Client) -> Call) -> Answer {
        loop {
            let answer = call(&self.client).send().await;
            if answer.status != 503 {
                return answer;
            }
            let id = answer.header("x-request-id").expect("each answer has it").to_owned();
            let is_of_it = |line: &str| line.contains(&id) && line.contains("a request could not be served");
            let find = || self.log.lock().unwrap().lines().find(|line| is_of_it(line)).map(ToOwned::to_owned);
            let since = Instant::now();
            let logged = loop {
                match find() {
                    Some(line) => break line,
                    None if since.elapsed() > LIMIT => return answer,
                    None => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            };
            if !logged.contains("than searches have been prepared for yet") {
                return answer;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Whether to call once more, after a pause.
    async fn goes_on(&self) -> bool {
        tokio::time::sleep(self.pause).await;
        !self.ended.load(Ordering::Acquire)
    }

    /// Calls a path again and again. Returns how often, as all of these do.
    async fn call(self, path: &'static str) -> u64 {
        let mut calls = 0;
        while self.goes_on().await {
            let answer = self.ask(|client| client.get(path)).await;
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            calls += 1;
        }
        calls
    }

    async fn search(self) -> u64 {
        let mut calls = 0;
        while self.goes_on().await {
            let body = json!({ "search": "änswer 7" });
            let answer = self.ask(|client| client.post("/api/v1/submission").json(&body)).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_ne!(answer.json()["data"], json!([]), "a keyword finds nothing");
            calls += 1;
        }
        calls
    }

    /// Exports everything again and again: each file is whole.
    async fn export(self) -> u64 {
        let mut calls = 0;
        while self.goes_on().await {
            let answer = self.ask(|client| client.get("/api/v1/submission/export?format=ndjson")).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            let text = String::from_utf8(answer.body.to_vec()).expect("text");
            let rows = text.lines().count() - 1;
            let last: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
            assert_eq!(last["rows"], rows, "the export ended early");
            assert!(rows >= usize::try_from(FIRST).unwrap(), "{rows}");
            calls += 1;
        }
        calls
    }

    /// Replaces the members of a group again and again.
    async fn sync(self, group: String, groups: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>) -> u64 {
        let mut calls = 0;
        while self.goes_on().await {
            let emails: BTreeSet<_> = (0..5).map(|at| format!("user{}@acme.example", calls + at)).collect();
            let members: Vec<_> = emails.iter().map(|email| json!({ "email": email })).collect();
            let body = json!({ "name": group, "members": members });
            let answer = self.client.put("/api/v1/group").json(&body).send().await;
            assert!([200, 201].contains(&answer.status.as_u16()), "{answer:?}");
            groups.lock().unwrap().insert(group.clone(), emails);
            calls += 1;
        }
        calls
    }

    /// Follows the changes, with one cursor from the beginning to the end.
    async fn follow(self, seen: Arc<Mutex<BTreeSet<String>>>) -> u64 {
        let (mut cursor, mut calls) = (None::<String>, 0);
        while self.goes_on().await {
            let from = cursor.as_ref().map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
            let path = format!("/api/v1/submission/changes?wait=2{from}");
            let answer = self.ask(|client| client.get(&path)).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            let page = answer.json();
            for change in page["data"].as_array().expect("changes") {
                seen.lock().unwrap().insert(change["id"].as_str().expect("an id").to_owned());
            }
            cursor = Some(page["meta"]["cursor"].as_str().expect("a cursor").to_owned());
            calls += 1;
        }
        calls
    }

    /// Creates tokens and links through the operator API, and revokes the tokens.
    async fn hand_out(self, scene: Arc<Scene>, slug: String) -> u64 {
        let mut calls = 0;
        while self.goes_on().await {
            let tokens = format!("/v1/tenants/{slug}/tokens");
            let created = scene.call(0, Method::POST, &tokens, Some(&json!({ "name": "brief" }))).await;
            assert_eq!(created.status, 201, "{created:?}");
            let token = created.body["data"]["token"].as_str().expect("a token");
            let answer = self.client.clone().with(token).get("/api/v1/me").send().await;
            assert_eq!(answer.status, 200, "a new token: {answer:?}");
            let one = format!("{tokens}/{}", created.body["data"]["id"]);
            let revoked = scene.call(0, Method::DELETE, &one, None).await;
            assert_eq!(revoked.status, 200, "{revoked:?}");
            let links = format!("/v1/tenants/{slug}/links");
            let link = scene.call(0, Method::POST, &links, Some(&json!({ "email": "ana@acme.example" }))).await;
            assert_eq!(link.status, 201, "{link:?}");
            calls += 1;
        }
        calls
    }
}

impl Load {
    pub(super) fn on(nodes: &[Node], account: &Account, calls: Calls, pause: Duration) -> Self {
        let (ended, seen) = (Arc::<AtomicBool>::default(), Arc::<Mutex<BTreeSet<String>>>::default());
        let groups = Arc::<Mutex<BTreeMap<String, BTreeSet<String>>>>::default();
        let mut tasks = Vec::new();
        for (at, node) in nodes.iter().enumerate() {
            let caller = || {
                let client = client(node, &account.slug, &account.token);
                Caller { client, log: node.growing_log(), ended: Arc::clone(&ended), pause }
            };
            tasks.push(tokio::spawn(caller().call("/api/v1/me")));
            let syncing = Caller { pause: pause * SYNCS, ..caller() };
            tasks.push(tokio::spawn(syncing.sync(format!("Staff {at}"), Arc::clone(&groups))));
            tasks.push(tokio::spawn(caller().follow(Arc::clone(&seen))));
            if calls == Calls::All {
                for path in ["/api/v1/form", "/api/v1/submission/sub_1"] {
                    tasks.push(tokio::spawn(caller().call(path)));
                }
                tasks.push(tokio::spawn(caller().search()));
                tasks.push(tokio::spawn(caller().export()));
            }
        }
        if calls == Calls::All {
            let client = client(&nodes[0], &account.slug, &account.token);
            let caller = Caller { client, log: nodes[0].growing_log(), ended: Arc::clone(&ended), pause };
            tasks.push(tokio::spawn(caller.hand_out(Arc::clone(&account.scene), account.slug.clone())));
        }
        Self { ended, tasks, seen, groups }
    }

    /// Waits until the followers have seen all submissions, and ends everything. Fails if any request failed, or the new database
    /// has not what was written last.
    pub(super) async fn end(self, account: &Account, last: i64) {
        let since = Instant::now();
        let all: BTreeSet<_> = (1..=last).map(|id| format!("sub_{id}")).collect();
        while *self.seen.lock().unwrap() != all {
            let seen = self.seen.lock().unwrap().len();
            assert!(since.elapsed() < LIMIT, "followers have seen {seen} of {last}");
            assert!(self.tasks.iter().all(|task| !task.is_finished()), "a request failed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.ended.store(true, Ordering::Release);
        for task in self.tasks {
            assert!(task.await.expect("no request fails") > 0);
        }
        let target = Database::connect(&account.target).await;
        let groups = self.groups.lock().unwrap().clone();
        for (group, emails) in groups {
            let emails: Vec<_> = emails.iter().map(|email| format!("'{email}'")).collect();
            let members = format!(
                "SELECT count(*), coalesce(sum(CASE WHEN u.email IN ({}) THEN 1 ELSE 0 END), 0)
                 FROM group_members m JOIN groups g ON g.id = m.group_id JOIN users u ON u.id = m.user_id
                 WHERE g.name = '{group}'",
                emails.join(", ")
            );
            assert_eq!(target.integers(&members).await, [5, 5], "{group} has other members");
        }
        target.close().await;
    }
}

/// A receiver of what is created, and of what is changed.
pub(super) struct Hooks {
    receiver: Receiver,
}

impl Hooks {
    /// Subscribes a receiver. What was committed before is not sent.
    pub(super) async fn subscribe(node: &Node, account: &Account) -> Self {
        let receiver = Receiver::always(Act::status(200)).await;
        let api = client(node, &account.slug, &account.token);
        // Numbered before the subscription, so that it begins with the next one.
        let page = api.get("/api/v1/submission/changes?cursor=now").send().await;
        assert_eq!(page.status, 200, "{page:?}");
        for event in ["created", "updated"] {
            let target = receiver.url(&format!("/{event}"));
            let body = json!({ "target_url": target, "event": format!("submission.{event}") });
            let subscribed = api.post("/api/v1/subscribe").json(&body).send().await;
            assert_eq!(subscribed.status, 201, "{subscribed:?}");
        }
        Self { receiver }
    }

    /// Waits until each of these submissions was received at least once, and the last change of the one that changes, none
    /// before an earlier one. Returns how many requests were more than one of each event.
    pub(super) async fn received(&self, from: i64, to: i64, changed: Option<i64>, limit: Duration) -> usize {
        let since = Instant::now();
        loop {
            let requests = self.receiver.requests();
            let mut ids = BTreeSet::new();
            let first: Vec<&Received> = requests.iter().filter(|it| ids.insert(id(it))).collect();
            let created: BTreeSet<i64> =
                first.iter().filter(|it| it.line.contains("/created")).map(|it| submission(it)).collect();
            let changes: Vec<i64> =
                first.iter().filter(|it| it.line.contains("/updated")).filter_map(|it| version(it)).collect();
            assert!(changes.is_sorted(), "out of order: {changes:?}");
            let is_complete = (from..=to).all(|id| created.contains(&id));
            if is_complete && changes.last().copied() == changed {
                return requests.len() - first.len();
            }
            let missing = (from..=to).filter(|id| !created.contains(id)).count();
            assert!(
                since.elapsed() < limit,
                "{missing} of {} are missing, {changed:?}: {:?}",
                to - from + 1,
                changes.last()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn id(request: &Received) -> String {
    request.headers["webhook-id"].to_str().expect("an id").to_owned()
}

fn submission(request: &Received) -> i64 {
    let body: Value = serde_json::from_slice(&request.body).expect("JSON");
    body["data"]["id"].as_str().and_then(|id| id.strip_prefix("sub_")?.parse().ok()).expect("an id")
}

/// Which change of the submission that changes a request tells of.
fn version(request: &Received) -> Option<i64> {
    let body = String::from_utf8_lossy(&request.body);
    let (_, rest) = body.split_once(&format!("NSWER {CHANGING} v"))?;
    rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok()
}
