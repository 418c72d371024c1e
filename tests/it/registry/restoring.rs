//! An account goes back to an instant, from its Litestream replica or from a dump: what it has then is what a model had, what
//! people have decided since stays, and nothing is sent again.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use jiff::{SignedDuration, Timestamp};
use rand::RngExt;
use serde_json::{Value, json};
use toml::Table;

use super::scene::{LIMIT, Scene, client};
use crate::support::certificate;
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::dns::{DnsServer, Lookup};
use crate::support::fixture::Engine;
use crate::support::litestream::{Litestream, path_with_litestream};
use crate::support::postgres::find_client;
use crate::support::process::{Node, Output};
use crate::support::receiver::{Act, HOST, Receiver};

/// How long the random writer writes.
const WRITING: Duration = Duration::from_secs(10);

/// How far Litestream may be behind: it looks once a second, on a machine that may be busy.
const BEHIND: SignedDuration = SignedDuration::from_secs(8);

/// What an account has, as far as the writer writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    submissions: BTreeMap<i64, String>,
    groups: BTreeSet<String>,
}

/// A state, and when the write that led to it began and had ended.
struct Moment {
    began: Timestamp,
    ended: Timestamp,
    state: State,
}

/// An account with a receiver, of which a product writes the submissions.
struct Account {
    engine: Engine,
    scene: Scene,
    node: Node,
    token: String,
    source: String,
    receiver: Receiver,
    /// Tokens, by their names.
    others: BTreeMap<&'static str, String>,
    _dns: DnsServer,
}

/// Inserts a submission with an answer.
fn insertion(engine: Engine, id: i64, value: &str) -> String {
    let at = match engine {
        Engine::Sqlite => format!("{}", (1_772_366_400 + id) * 1_000_000),
        _ => format!("to_timestamp({})", 1_772_366_400 + id),
    };
    format!(
        "INSERT INTO submissions (id, form_id, status, created_at, updated_at, draft)
           VALUES ({id}, 1, 'pending', {at}, {at}, FALSE);
         INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES ({id}, 1, '{value}', {at})"
    )
}

impl Account {
    async fn new(engine: Engine) -> Self {
        let dns = DnsServer::start().await;
        dns.answer(HOST, &[Lookup::of(&["127.0.0.1"])]);
        let scene = Scene::new(engine);
        let mut webhooks = Table::new();
        webhooks.insert("ca_file".into(), certificate::authority(scene.folder()).display().to_string().into());
        webhooks.insert("dns_servers".into(), vec![dns.address.to_string()].into());
        webhooks.insert("allow_targets".into(), vec!["127.0.0.0/8"].into());
        let scene = scene.gateway("webhooks", webhooks);
        let node = scene.start(0);
        let mut tenant = scene.tenant("acme");
        tenant["requests_per_minute"] = json!(100_000);
        if engine == Engine::Sqlite {
            let file = scene.folder().join("accounts/acme.db");
            tenant["database"] = format!("sqlite:{}", file.display()).into();
        }
        let put = "/v1/tenants/acme?migrate=1&wait=60&token=tests";
        let added = scene.call(0, Method::PUT, put, Some(&tenant)).await;
        assert_eq!(added.status, 201, "{added:?}");
        let token = added.body["token"]["token"].as_str().expect("a token").to_owned();
        let source = tenant["database"].as_str().expect("a URL").to_owned();
        let product = Database::connect(&source).await;
        product
            .execute(
                "INSERT INTO forms (id, name) VALUES (1, 'Leave');
                 INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (1, 1, 1, 'e', 'Why', 'text')",
            )
            .await;
        product.close().await;
        let receiver = Receiver::always(Act::status(200)).await;
        Self { engine, scene, node, token, source, receiver, others: BTreeMap::new(), _dns: dns }
    }

    fn client(&self, token: &str) -> Client {
        client(&self.node, "acme", token)
    }

    fn create_token(&self, name: &str) -> String {
        self.scene.succeed(&["token", "create", "--tenant", "acme", "--name", name]).trim().to_owned()
    }

    fn token_id(&self, name: &str) -> String {
        let listed = self.scene.succeed(&["token", "list", "--tenant", "acme", "--json"]);
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        let named = listed.as_array().expect("a list").iter().find(|token| token["name"] == name);
        named.expect("there is one")["id"].to_string()
    }

    fn of_token(&self, command: &str, name: &str, more: &[&str]) {
        let id = self.token_id(name);
        self.scene.succeed(&[&["token", command, "--tenant", "acme", &id][..], more].concat());
    }

    async fn subscribe(&self, path: &str) -> Value {
        let body = json!({ "target_url": self.receiver.url(path), "event": "submission.created" });
        let answer = self.client(&self.token).post("/api/v1/subscribe").json(&body).send().await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["data"]["id"].clone()
    }

    /// Waits until a path of the receiver was sent a submission.
    async fn is_sent(&self, path: &str, submission: i64) {
        let since = Instant::now();
        while !self.sent(path).contains(&submission) {
            assert!(since.elapsed() < LIMIT, "{path} lacks {submission}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The submissions that a path was sent, in order.
    fn sent(&self, path: &str) -> Vec<i64> {
        let requests = self.receiver.requests();
        let of_path = requests.iter().filter(|request| request.line.contains(path));
        let number = |body: &[u8]| {
            let body: Value = serde_json::from_slice(body).expect("JSON");
            body["data"]["id"].as_str().and_then(|id| id.strip_prefix("sub_")?.parse().ok()).expect("an id")
        };
        of_path.map(|request| number(&request.body)).collect()
    }

    /// Writes by SQL and through the API for a while. Returns every state that the account had.
    async fn write_at_random(&self) -> Vec<Moment> {
        let product = Database::connect(&self.source).await;
        let api = self.client(&self.token);
        let (since, mut state, mut next) = (Instant::now(), State::default(), 1);
        let mut moments = vec![Moment { began: Timestamp::now(), ended: Timestamp::now(), state: state.clone() }];
        while since.elapsed() < WRITING {
            let (kind, picked) = (rand::rng().random_range(0..10), rand::rng().random::<u32>() as usize);
            let known = state.submissions.keys().nth(picked % state.submissions.len().max(1)).copied();
            let began = Timestamp::now();
            match (kind, known) {
                (6 | 7, Some(id)) => {
                    let value = format!("changed {next}");
                    let update = format!("UPDATE answers SET value = '{value}' WHERE submission_id = {id}");
                    product.execute(&update).await;
                    state.submissions.insert(id, value);
                }
                (8, Some(id)) => {
                    product.execute(&format!("DELETE FROM submissions WHERE id = {id}")).await;
                    state.submissions.remove(&id);
                }
                (9, _) => {
                    let name = format!("Group {next}");
                    let put = api.put("/api/v1/group").json(&json!({ "name": name })).send().await;
                    assert_eq!(put.status, 201, "{put:?}");
                    state.groups.insert(name);
                }
                _ => {
                    let value = format!("answer {next}");
                    let insert = insertion(self.engine, next, &value);
                    product.execute(&format!("BEGIN; {insert}; COMMIT")).await;
                    state.submissions.insert(next, value);
                }
            }
            next += 1;
            moments.push(Moment { began, ended: Timestamp::now(), state: state.clone() });
            let pause = rand::rng().random_range(5..60);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        product.close().await;
        moments
    }

    fn restore(&self, at: Timestamp, to: &str, more: &[&str]) -> Output {
        let (at, path) = (at.to_string(), path_with_litestream());
        let command = [&["tenant", "restore", "acme", "--at", &at, "--as", to][..], more].concat();
        self.scene.run_in(&command, &[("PATH", path.to_str().expect("UTF-8"))])
    }

    /// Changes who may do what, and what is sent to whom, restores with `restore`, moves there, and checks everything.
    async fn goes_back(
        &self,
        moments: &[Moment],
        window: [Timestamp; 2],
        restored: &str,
        restore: impl Fn() -> Output,
    ) {
        let last = moments.last().expect("a state").state.submissions.keys().last().copied().expect("a submission");
        self.is_sent("/kept", last).await;
        let page = self.client(&self.token).get("/api/v1/submission/changes?cursor=now").send().await;
        let cursor = page.json()["meta"]["cursor"].as_str().expect("a cursor").to_owned();
        self.of_token("revoke", "revoked", &[]);
        self.of_token("change", "narrowed", &["--scopes", "forms:read"]);
        let new = self.create_token("new");
        let deleted = self.client(&self.token).post("/api/v1/unsubscribe");
        let deleted = deleted.json(&json!({ "target_url": self.receiver.url("/deleted") })).send().await;
        assert_eq!(deleted.json()["deleted"], 1, "{deleted:?}");
        self.subscribe("/new").await;

        let output = restore();
        assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
        assert!(output.stdout.contains("next: formgate tenant move acme --to"), "{}", output.stdout);
        assert!(
            output.stdout.contains("1 were created since, 1 ended since, 1 got other limits since"),
            "{}",
            output.stdout
        );
        let state = state_of(restored).await;
        assert_was(moments, &state, window);

        // Until the move, decisions are made at the old place.
        self.of_token("revoke", "revoked later", &[]);
        let newest = self.create_token("newest");
        let before = self.receiver.requests().len();
        let ended = Arc::<AtomicBool>::default();
        let caller = tokio::spawn(call(self.client(&self.token), Arc::clone(&ended)));
        let moved = self.scene.succeed(&["tenant", "move", "acme", "--to", restored, "--wait", "60", "--json"]);
        let moved: Value = serde_json::from_str(&moved).expect("JSON");
        assert_eq!(moved["move"]["state"], "done", "{moved}");
        ended.store(true, Ordering::Release);
        assert!(caller.await.expect("no request fails") > 0);

        self.checks_followers(&cursor, &state).await;
        self.checks_tokens(&[&new, &newest]).await;
        self.checks_webhooks(last + 1_000, before, restored).await;
        self.checks_sides(restored).await;
    }

    /// The old cursor leads nowhere, and from the beginning there is what was restored.
    async fn checks_followers(&self, cursor: &str, state: &State) {
        let api = self.client(&self.token);
        let lost = api.get(&format!("/api/v1/submission/changes?cursor={cursor}")).send().await;
        assert_eq!((lost.status.as_u16(), &lost.json()["reason"]), (410, &json!("reset")), "{lost:?}");
        let (mut seen, mut target) = (BTreeSet::new(), "/api/v1/submission/changes?limit=500".to_owned());
        loop {
            let page = api.get(&target).send().await.json();
            let ids = page["data"].as_array().expect("changes").iter();
            seen.extend(ids.map(|change| change["id"].as_str().expect("an id")[4..].parse::<i64>().expect("a number")));
            if page["meta"]["has_more"] == false {
                break;
            }
            target = format!(
                "/api/v1/submission/changes?limit=500&cursor={}",
                page["meta"]["cursor"].as_str().expect("one")
            );
        }
        assert_eq!(seen, state.submissions.keys().copied().collect());
    }

    async fn checks_tokens(&self, new: &[&str]) {
        let tokens = self.scene.succeed(&["token", "list", "--tenant", "acme", "--json"]);
        let tokens: Value = serde_json::from_str(&tokens).expect("JSON");
        let ids: BTreeSet<_> = tokens.as_array().expect("a list").iter().map(|token| token["id"].to_string()).collect();
        assert_eq!(ids.len(), tokens.as_array().map_or(0, Vec::len));
        for token in new {
            assert_eq!(self.client(token).get("/api/v1/me").send().await.status, 200);
        }
        let [narrowed, revoked, later] = ["narrowed", "revoked", "revoked later"].map(|name| self.value_of(name));
        for token in [revoked, later] {
            assert_eq!(self.client(&token).get("/api/v1/me").send().await.status, 401);
        }
        let narrow = self.client(&narrowed);
        assert_eq!(narrow.get("/api/v1/form").send().await.status, 200);
        assert_eq!(narrow.post("/api/v1/submission").json(&json!({})).send().await.status, 403);
        // No id is given again.
        self.create_token("after");
        assert!(!ids.contains(&self.token_id("after")));
    }

    /// What is written from now on is sent to whoever subscribes now, and nothing else was sent since.
    async fn checks_webhooks(&self, id: i64, before: usize, restored: &str) {
        let product = Database::connect(restored).await;
        product.execute(&format!("BEGIN; {}; COMMIT", insertion(self.engine, id, "after"))).await;
        product.close().await;
        for path in ["/kept", "/new"] {
            self.is_sent(path, id).await;
            assert_eq!(self.sent(path).iter().filter(|sent| **sent == id).count(), 1, "{path}");
        }
        assert_eq!(self.receiver.requests().len(), before + 2, "something was sent again");
        assert!(!self.sent("/deleted").contains(&id));
    }

    async fn checks_sides(&self, restored: &str) {
        let [old, new] = [Database::connect(&self.source).await, Database::connect(restored).await];
        let refused = old.try_execute("INSERT INTO users (email) VALUES ('a@b.example')").await.unwrap_err();
        assert!(refused.to_string().contains("formgate moved this account: write to "), "{refused}");
        for side in [&old, &new] {
            for action in ["tenant.restored", "tenant.moved"] {
                let rows = format!("SELECT count(*) FROM audit_log WHERE action = '{action}'");
                assert_eq!(side.integers(&rows).await, [1], "{action}");
            }
        }
        assert_eq!(new.integers("SELECT count(*) FROM admin_links").await, [0]);
        assert_eq!(
            old.text("SELECT id FROM database_identity").await,
            new.text("SELECT id FROM database_identity").await
        );
        self.scene.succeed(&["audit", "verify", "--tenant", "acme"]);
        for side in [old, new] {
            side.close().await;
        }
    }
}

/// Calls the account again and again. Returns how often.
async fn call(client: Client, ended: Arc<AtomicBool>) -> u64 {
    let mut calls = 0;
    while !ended.load(Ordering::Acquire) {
        let answer = client.get("/api/v1/form").send().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        calls += 1;
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    calls
}

async fn state_of(url: &str) -> State {
    let database = Database::connect(url).await;
    let rows =
        "SELECT CAST(s.id AS text) || ' ' || a.value FROM submissions s JOIN answers a ON a.submission_id = s.id";
    let read = |row: String| {
        let (id, value) = row.split_once(' ').expect("an id and a value");
        (id.parse().expect("a number"), value.to_owned())
    };
    let submissions = database.texts(rows).await.into_iter().map(read).collect();
    let groups = database.texts("SELECT name FROM groups WHERE NOT built_in").await.into_iter().collect();
    database.close().await;
    State { submissions, groups }
}

/// Fails unless the account had the state at some time between two instants.
fn assert_was(moments: &[Moment], state: &State, [from, to]: [Timestamp; 2]) {
    let was = moments.iter().enumerate().any(|(at, moment)| {
        let lasted = moments.get(at + 1).is_none_or(|next| next.ended >= from);
        moment.state == *state && moment.began <= to && lasted
    });
    let at = moments.iter().position(|moment| moment.state == *state);
    let at = at.map(|at| (at, moments[at].began, moments[at].ended));
    assert!(was, "between {from} and {to} the account had no state such as {at:?}");
}

impl Account {
    /// Tokens and subscriptions of which something is decided later.
    async fn with_others(mut self) -> Self {
        for name in ["narrowed", "revoked", "revoked later"] {
            let token = self.create_token(name);
            self.others.insert(name, token);
        }
        // Numbered before the subscriptions, so that they begin with the next submission.
        self.client(&self.token).get("/api/v1/submission/changes?cursor=now").send().await;
        self.subscribe("/kept").await;
        self.subscribe("/deleted").await;
        self.scene.succeed(&["admin", "link", "--tenant", "acme", "--email", "ana@acme.example"]);
        self
    }

    fn value_of(&self, name: &str) -> String {
        self.others[name].clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn to_a_random_second_from_a_replica_of_litestream() {
    let account = Account::new(Engine::Sqlite).await;
    let folder = account.scene.folder();
    let litestream = Litestream::replicating(&folder.join("accounts"), &folder.join("litestream"));
    litestream.wait_for(&folder.join("accounts/acme.db"));
    let account = account.with_others().await;
    let mut moments = account.write_at_random().await;
    let (first, last) = (moments[0].ended, moments.last().expect("a state").ended);
    // The first half is for Litestream to have what was there before.
    let span = last.duration_since(first).as_secs_f64() * rand::rng().random_range(0.5..1.0);
    let at = first + SignedDuration::from_secs_f64(span);
    moments[0].began = first - BEHIND;
    let restored = format!("sqlite:{}", account.scene.folder().join("accounts/acme-restored.db").display());
    let config = litestream.config();
    let restore = || account.restore(at, &restored, &["--litestream-config", &config]);
    account.goes_back(&moments, [at - BEHIND, at], &restored, restore).await;
    // The restored file is replicated too.
    litestream.wait_for(&account.scene.folder().join("accounts/acme-restored.db"));
}

#[tokio::test(flavor = "multi_thread")]
async fn to_the_moment_of_a_dump_on_postgres() {
    let account = Account::new(Engine::Postgres).await.with_others().await;
    let dump = account.scene.folder().join("acme.dump");
    let dumping = async {
        let share = rand::rng().random_range(0.3..0.8);
        tokio::time::sleep(WRITING.mul_f64(share)).await;
        let began = Timestamp::now();
        let mut command = Command::new(find_client("pg_dump"));
        command.args(["--format=custom", "--dbname", &account.source, "--file"]).arg(&dump);
        let output = tokio::task::block_in_place(|| command.output().expect("there is a pg_dump"));
        assert!(output.status.success(), "{output:?}");
        [began, Timestamp::now()]
    };
    let (moments, window) = tokio::join!(account.write_at_random(), dumping);
    let restored = Engine::Postgres.empty_database(account.scene.folder(), "restored");
    let mut command = Command::new(find_client("pg_restore"));
    command.args(["--no-owner", "--exit-on-error", "--dbname", &restored]).arg(&dump);
    let output = command.output().expect("there is a pg_restore");
    assert!(output.status.success(), "{output:?}");
    account.goes_back(&moments, window, &restored, || account.restore(window[1], &restored, &[])).await;
}
