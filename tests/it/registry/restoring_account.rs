//! An account that goes back to an instant: what it has at each moment, a writer that writes at random, and a receiver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use http::Method;
use jiff::Timestamp;
use rand::RngExt;
use serde_json::{Value, json};
use toml::Table;

use super::scene::{LIMIT, Scene, client};
use crate::support::certificate;
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::dns::{DnsServer, Lookup};
use crate::support::fixture::Engine;
use crate::support::litestream::path_with_litestream;
use crate::support::postgres::find_client;
use crate::support::process::{Node, Output};
use crate::support::receiver::{Act, HOST, Receiver};

/// How long the random writer writes.
pub(super) const WRITING: Duration = Duration::from_secs(10);

/// What an account has, as far as the writer writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) submissions: BTreeMap<i64, String>,
    pub(super) groups: BTreeSet<String>,
}

/// A state, and when the write that led to it began and had ended.
pub(super) struct Moment {
    pub(super) began: Timestamp,
    pub(super) ended: Timestamp,
    pub(super) state: State,
}

/// An account with a receiver, of which a product writes the submissions.
pub(super) struct Account {
    pub(super) engine: Engine,
    pub(super) scene: Scene,
    pub(super) node: Node,
    pub(super) token: String,
    pub(super) source: String,
    pub(super) receiver: Receiver,
    /// Tokens, by their names.
    pub(super) others: BTreeMap<&'static str, String>,
    _dns: DnsServer,
}

/// Inserts a submission with an answer.
pub(super) fn insertion(engine: Engine, id: i64, value: &str) -> String {
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
    pub(super) async fn new(engine: Engine) -> Self {
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

    pub(super) fn client(&self, token: &str) -> Client {
        client(&self.node, "acme", token)
    }

    pub(super) fn create_token(&self, name: &str) -> String {
        self.scene.succeed(&["token", "create", "--tenant", "acme", "--name", name]).trim().to_owned()
    }

    pub(super) fn token_id(&self, name: &str) -> String {
        let listed = self.scene.succeed(&["token", "list", "--tenant", "acme", "--json"]);
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        let named = listed.as_array().expect("a list").iter().find(|token| token["name"] == name);
        named.expect("there is one")["id"].to_string()
    }

    pub(super) fn of_token(&self, command: &str, name: &str, more: &[&str]) {
        let id = self.token_id(name);
        self.scene.succeed(&[&["token", command, "--tenant", "acme", &id][..], more].concat());
    }

    pub(super) async fn subscribe(&self, path: &str) -> Value {
        let body = json!({ "target_url": self.receiver.url(path), "event": "submission.created" });
        let answer = self.client(&self.token).post("/api/v1/subscribe").json(&body).send().await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["data"]["id"].clone()
    }

    /// Waits until a path of the receiver was sent a submission.
    pub(super) async fn is_sent(&self, path: &str, submission: i64) {
        let since = Instant::now();
        while !self.sent(path).contains(&submission) {
            assert!(since.elapsed() < LIMIT, "{path} lacks {submission}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The submissions that a path was sent, in order.
    pub(super) fn sent(&self, path: &str) -> Vec<i64> {
        let requests = self.receiver.requests();
        let of_path = requests.iter().filter(|request| request.line.contains(path));
        let number = |body: &[u8]| {
            let body: Value = serde_json::from_slice(body).expect("JSON");
            body["data"]["id"].as_str().and_then(|id| id.strip_prefix("sub_")?.parse().ok()).expect("an id")
        };
        of_path.map(|request| number(&request.body)).collect()
    }

    /// Writes by SQL and through the API for a while. Returns every state that the account had.
    pub(super) async fn write_at_random(&self) -> Vec<Moment> {
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

    pub(super) fn restore(&self, at: Timestamp, to: &str, more: &[&str]) -> Output {
        let (at, path) = (at.to_string(), path_with_litestream());
        let command = [&["tenant", "restore", "acme", "--at", &at, "--as", to][..], more].concat();
        self.scene.run_in(&command, &[("PATH", path.to_str().expect("UTF-8"))])
    }

    /// Tokens and subscriptions of which something is decided later.
    pub(super) async fn with_others(mut self) -> Self {
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

    pub(super) fn value_of(&self, name: &str) -> String {
        self.others[name].clone()
    }
}

/// Writes a dump of a database.
pub(super) fn dump(url: &str, file: &Path) {
    let mut command = Command::new(find_client("pg_dump"));
    let output =
        command.args(["--format=custom", "--dbname", url, "--file"]).arg(file).output().expect("there is a pg_dump");
    assert!(output.status.success(), "{output:?}");
}

/// Restores a dump into a new database. Returns its URL.
pub(super) fn load(file: &Path, folder: &Path) -> String {
    let restored = Engine::Postgres.empty_database(folder, "restored");
    let mut command = Command::new(find_client("pg_restore"));
    command.args(["--no-owner", "--exit-on-error", "--dbname", &restored]).arg(file);
    let output = command.output().expect("there is a pg_restore");
    assert!(output.status.success(), "{output:?}");
    restored
}

pub(super) async fn state_of(url: &str) -> State {
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
pub(super) fn assert_was(moments: &[Moment], state: &State, [from, to]: [Timestamp; 2]) {
    let was = moments.iter().enumerate().any(|(at, moment)| {
        let lasted = moments.get(at + 1).is_none_or(|next| next.ended >= from);
        moment.state == *state && moment.began <= to && lasted
    });
    let at = moments.iter().position(|moment| moment.state == *state);
    let at = at.map(|at| (at, moments[at].began, moments[at].ended));
    assert!(was, "between {from} and {to} the account had no state such as {at:?}");
}
