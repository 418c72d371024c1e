//! An account moves to another database while readers, writers, followers and receivers use it, from each kind of database to
//! each; also on two nodes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use toml::Table;

use super::scene::{LIMIT, Scene, client};
use crate::support::certificate;
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::dns::{DnsServer, Lookup};
use crate::support::fixture::Engine;
use crate::support::process::Node;
use crate::support::receiver::{Act, HOST, Received, Receiver};

/// Between two calls of a client, and two writes by SQL: so that the machine is not what is tested.
const PAUSE: Duration = Duration::from_millis(15);

/// An account whose program writes by SQL.
struct Account {
    scene: Scene,
    from: Engine,
    to: Engine,
    source: String,
    target: String,
    token: String,
    _dns: DnsServer,
}

/// What the others do while the account moves, until `ended`.
struct Load {
    ended: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<u64>>,
    seen: Arc<Mutex<BTreeSet<String>>>,
}

/// The statement that inserts a submission with an answer.
fn insertion(engine: Engine, id: i64) -> String {
    let at = match engine {
        Engine::Sqlite => format!("{}", (1_772_366_400 + id) * 1_000_000),
        _ => format!("to_timestamp({})", 1_772_366_400 + id),
    };
    format!(
        "INSERT INTO submissions (id, form_id, status, created_at, updated_at, draft)
           VALUES ({id}, 1, 'pending', {at}, {at}, FALSE);
         INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES ({id}, 1, 'ÄNSWER {id}', {at})"
    )
}

impl Account {
    async fn new(from: Engine, to: Engine, nodes: usize) -> (Self, Vec<Node>) {
        let dns = DnsServer::start().await;
        dns.answer(HOST, &[Lookup::of(&["127.0.0.1"])]);
        let scene = Scene::new(from);
        let mut webhooks = Table::new();
        webhooks.insert("ca_file".into(), certificate::authority(scene.folder()).display().to_string().into());
        webhooks.insert("dns_servers".into(), vec![dns.address.to_string()].into());
        webhooks.insert("allow_targets".into(), vec!["127.0.0.0/8"].into());
        let scene = scene.gateway("webhooks", webhooks);
        let started = (0..nodes).map(|node| scene.start(node)).collect();
        let mut tenant = scene.tenant("acme");
        tenant["requests_per_minute"] = json!(100_000);
        let put = "/v1/tenants/acme?migrate=1&wait=60&token=tests";
        let added = scene.call(0, Method::PUT, put, Some(&tenant)).await;
        assert_eq!(added.status, 201, "{added:?}");
        let token = added.body["token"]["token"].as_str().expect("a token").to_owned();
        let source = tenant["database"].as_str().unwrap().to_owned();
        let target = to.empty_database(scene.folder(), "moved");
        let product = Database::connect(&source).await;
        product
            .execute(
                "INSERT INTO forms (id, name) VALUES (1, 'Leave');
                 INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (1, 1, 1, 'e', 'Why', 'text')",
            )
            .await;
        for id in 1..=300 {
            product.execute(&insertion(from, id)).await;
        }
        product.close().await;
        (Self { scene, from, to, source, target, token, _dns: dns }, started)
    }

    async fn begin_move(&self) -> Value {
        let body = json!({ "to": self.target });
        let begun = self.scene.call(0, Method::POST, "/v1/tenants/acme/move", Some(&body)).await;
        assert_eq!(begun.status, 202, "{begun:?}");
        begun.body["move"].clone()
    }

    /// Waits until the move is done.
    async fn done(&self, begun: &Value) -> Value {
        let (target, since) = (format!("/v1/moves/{}", begun["id"]), Instant::now());
        loop {
            let shown = self.scene.call(0, Method::GET, &target, None).await;
            let shown = shown.body["move"].clone();
            if shown["state"] == "done" {
                return shown;
            }
            assert!(!["failed", "cancelled"].contains(&shown["state"].as_str().unwrap()), "{shown}");
            assert!(since.elapsed() < LIMIT, "{shown}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Writes submissions by SQL until the old database refuses that. Returns the last one that was committed.
    async fn write_until_refused(&self, last: &AtomicI64) -> String {
        let product = Database::connect(&self.source).await;
        loop {
            let id = last.load(Ordering::Acquire) + 1;
            let statement = format!("BEGIN; {}; COMMIT", insertion(self.from, id));
            match product.try_execute(&statement).await {
                Ok(()) => last.store(id, Ordering::Release),
                Err(error) => {
                    product.try_execute("ROLLBACK").await.ok();
                    let error = error.to_string();
                    if !error.contains("locked") {
                        product.close().await;
                        return error;
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Fails unless the new database has these submissions and nothing else, and both sides the row of the audit log.
    async fn check(&self, last: i64) {
        let [source, target] = [Database::connect(&self.source).await, Database::connect(&self.target).await];
        let count = "SELECT count(*), coalesce(max(id), 0) FROM submissions";
        assert_eq!(target.integers(count).await, [last, last]);
        assert_eq!(target.integers("SELECT count(*) FROM answers").await, [last]);
        let sums =
            "SELECT count(*) FROM answers a JOIN submissions s ON s.id = a.submission_id WHERE a.value LIKE 'ÄNSWER %'";
        assert_eq!(target.integers(sums).await, [last]);
        for side in [&source, &target] {
            let rows = "SELECT count(*) FROM audit_log WHERE action = 'tenant.moved'";
            assert_eq!(side.integers(rows).await, [1]);
        }
        for query in ["SELECT id FROM database_identity", "SELECT epoch FROM change_state", "SELECT prefix FROM tokens"]
        {
            assert_eq!(source.text(query).await, target.text(query).await, "{query}");
        }
        // The next ids follow, and triggers and foreign keys are there again.
        target.execute(&insertion(self.to, last + 1)).await;
        let orphan = insertion(self.to, last + 2).replace(", 1, 'pending'", ", 77, 'pending'");
        assert!(target.try_execute(&orphan).await.is_err(), "a foreign key is missing");
        target.execute("INSERT INTO labels (name) VALUES ('next')").await;
        let noted = "SELECT CAST(CASE WHEN EXISTS (SELECT 1 FROM intake) OR EXISTS (
            SELECT 1 FROM listed_submissions WHERE id = (SELECT max(id) FROM submissions)) THEN 1 ELSE 0 END AS bigint)";
        assert_eq!(target.integers(noted).await, [1], "no trigger notes what is written");
        for side in [source, target] {
            side.close().await;
        }
    }
}

/// Calls a path again and again. Returns how often.
async fn call(client: Client, path: &'static str, ended: Arc<AtomicBool>) -> u64 {
    let mut calls = 0;
    while !ended.load(Ordering::Acquire) {
        let answer = client.get(path).send().await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        calls += 1;
        tokio::time::sleep(PAUSE).await;
    }
    calls
}

/// Searches for an answer again and again.
async fn search(client: Client, ended: Arc<AtomicBool>) -> u64 {
    let mut calls = 0;
    while !ended.load(Ordering::Acquire) {
        let body = json!({ "search": "änswer 7" });
        let answer = client.post("/api/v1/submission").json(&body).send().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_ne!(answer.json()["data"], json!([]), "a keyword finds nothing");
        calls += 1;
        tokio::time::sleep(PAUSE).await;
    }
    calls
}

/// Replaces the members of a group again and again.
async fn sync(client: Client, ended: Arc<AtomicBool>) -> u64 {
    let mut calls = 0;
    while !ended.load(Ordering::Acquire) {
        let members: Vec<_> = (0..5).map(|at| json!({ "email": format!("user{}@acme.example", calls + at) })).collect();
        let body = json!({ "name": "Staff", "members": members });
        let answer = client.put("/api/v1/group").json(&body).send().await;
        assert!([200, 201].contains(&answer.status.as_u16()), "{answer:?}");
        calls += 1;
        tokio::time::sleep(PAUSE).await;
    }
    calls
}

/// Follows the changes, with one cursor from the beginning to the end.
async fn follow(client: Client, seen: Arc<Mutex<BTreeSet<String>>>, ended: Arc<AtomicBool>) -> u64 {
    let (mut cursor, mut calls) = (None::<String>, 0);
    while !ended.load(Ordering::Acquire) {
        let from = cursor.as_ref().map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let answer = client.get(&format!("/api/v1/submission/changes?wait=2{from}")).send().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let page = answer.json();
        for change in page["data"].as_array().expect("changes") {
            seen.lock().unwrap().insert(change["id"].as_str().expect("an id").to_owned());
        }
        cursor = Some(page["meta"]["cursor"].as_str().expect("a cursor").to_owned());
        calls += 1;
        tokio::time::sleep(PAUSE).await;
    }
    calls
}

impl Load {
    fn on(nodes: &[Node], token: &str) -> Self {
        let (ended, seen) = (Arc::<AtomicBool>::default(), Arc::<Mutex<BTreeSet<String>>>::default());
        let mut tasks = Vec::new();
        for node in nodes {
            let client = || client(node, "acme", token);
            for path in ["/api/v1/me", "/api/v1/form", "/api/v1/submission/sub_1"] {
                tasks.push(tokio::spawn(call(client(), path, Arc::clone(&ended))));
            }
            tasks.push(tokio::spawn(search(client(), Arc::clone(&ended))));
            tasks.push(tokio::spawn(sync(client(), Arc::clone(&ended))));
            tasks.push(tokio::spawn(follow(client(), Arc::clone(&seen), Arc::clone(&ended))));
        }
        Self { ended, tasks, seen }
    }

    /// Waits until the followers have seen so many submissions, and ends everything. Fails if any request failed.
    async fn end(self, submissions: usize) {
        let since = Instant::now();
        while self.seen.lock().unwrap().len() < submissions {
            let seen = self.seen.lock().unwrap().len();
            assert!(since.elapsed() < LIMIT, "followers have seen {seen} of {submissions}");
            assert!(self.tasks.iter().all(|task| !task.is_finished()), "a request failed");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.ended.store(true, Ordering::Release);
        for task in self.tasks {
            assert!(task.await.expect("no request fails") > 0);
        }
    }
}

/// Waits until a receiver has each of these submissions at least once. Returns how many requests were more than that.
async fn received(receiver: &Receiver, from: i64, to: i64) -> usize {
    let since = Instant::now();
    loop {
        let number = |request: &Received| {
            let body: Value = serde_json::from_slice(&request.body).expect("JSON");
            body["data"]["id"].as_str().and_then(|id| id.strip_prefix("sub_")?.parse::<i64>().ok()).expect("an id")
        };
        let requests = receiver.requests();
        let numbers: Vec<i64> = requests.iter().map(number).filter(|number| (from..=to).contains(number)).collect();
        let different: BTreeSet<i64> = numbers.iter().copied().collect();
        if different.len() == usize::try_from(to - from + 1).unwrap() {
            return numbers.len() - different.len();
        }
        assert!(since.elapsed() < LIMIT, "{} of {}", different.len(), to - from + 1);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn moves_under_load(from: Engine, to: Engine, nodes: usize) {
    let (account, started) = Account::new(from, to, nodes).await;
    let receiver = Receiver::always(Act::status(200)).await;
    let api = client(&started[0], "acme", &account.token);
    // Numbered before the subscription, so that it begins with the next one.
    let page = api.get("/api/v1/submission/changes?cursor=now").send().await;
    assert_eq!(page.status, 200, "{page:?}");
    let subscription = json!({ "target_url": receiver.url("/hook"), "event": "submission.created" });
    let subscribed = api.post("/api/v1/subscribe").json(&subscription).send().await;
    assert_eq!(subscribed.status, 201, "{subscribed:?}");
    let load = Load::on(&started, &account.token);
    let last = AtomicI64::new(300);
    let moving = async {
        while last.load(Ordering::Acquire) < 320 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        account.done(&account.begin_move().await).await
    };
    let (refusal, moved) = tokio::join!(account.write_until_refused(&last), moving);
    assert!(refusal.contains("formgate moved this account: write to "), "{refusal}");
    assert!(moved["held_ms"].as_i64().expect("a number") <= 2_500, "{moved}");
    let last = last.into_inner();
    load.end(usize::try_from(last).unwrap()).await;
    let again = received(&receiver, 301, last).await;
    assert!(again <= 16, "{again} events were sent again");
    account.check(last).await;
    // What is written there by SQL is served, and delivered.
    received(&receiver, 301, last + 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_sqlite_to_postgres_under_load() {
    moves_under_load(Engine::Sqlite, Engine::Postgres, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_postgres_to_postgres_under_load_on_two_nodes() {
    moves_under_load(Engine::Postgres, Engine::Postgres, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_postgres_to_sqlite_under_load() {
    moves_under_load(Engine::Postgres, Engine::Sqlite, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_sqlite_to_sqlite_under_load() {
    moves_under_load(Engine::Sqlite, Engine::Sqlite, 1).await;
}

/// The node that carries a move out is killed at some moment, and started again: the account ends in one place.
async fn moves_although_killed(from: Engine, to: Engine, after: [u64; 3]) {
    for milliseconds in after {
        let (account, started) = Account::new(from, to, 1).await;
        let mut node = started.into_iter().next().expect("one node");
        let begun = account.begin_move().await;
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        node.kill();
        let node = account.scene.start(0);
        account.done(&begun).await;
        let api = client(&node, "acme", &account.token);
        assert_eq!(api.get("/api/v1/me").send().await.status, 200);
        let found = api.post("/api/v1/submission").json(&json!({})).send().await;
        assert_eq!(found.status, 200, "{found:?}");
        account.check(300).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_sqlite_to_postgres_although_the_node_is_killed() {
    moves_although_killed(Engine::Sqlite, Engine::Postgres, [300, 1_200, 2_200]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_postgres_to_sqlite_although_the_node_is_killed() {
    moves_although_killed(Engine::Postgres, Engine::Sqlite, [600, 1_500, 2_600]).await;
}
