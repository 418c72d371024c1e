//! Tokens across nodes: remembered, and forgotten in time.

use std::time::{Duration, Instant};

use formgate::tenant::token::PresentedToken;
use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::support::client::Client;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::process::Node;
use crate::support::redis::Redis;

/// Within a second, and what a busy machine adds.
const AT_ONCE: Duration = Duration::from_millis(1500);

/// Within five seconds, and what a busy machine adds.
const SOON: Duration = Duration::from_millis(5500);

/// How long an event in the log of a node may take on a busy machine.
const LOGGED: Duration = Duration::from_secs(20);

/// What a node logs once it is subscribed to token changes and knows the number of the newest one.
const RECEIVING: &str = "receiving token changes";

/// What it logs when it no longer is.
const NOT_RECEIVING: &str = "token changes not received";

/// What it logs for each change.
const RECEIVED: &str = "token change received";

/// Two nodes, which share a Redis or don't.
struct Nodes {
    site: Site,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    token: String,
}

impl Nodes {
    fn start(redis: Option<&Redis>) -> Self {
        let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000);
        let site = match redis {
            Some(redis) => site.redis(redis).gateway("redis_timeout_ms", 200).write(),
            None => site.write(),
        };
        let token = site.token("acme", "tests");
        let environment = [("FORMGATE_LOG", "info,formgate=debug")];
        let nodes: Vec<_> = (0..2).map(|_| Node::spawn_in(&site.config_path, &environment)).collect();
        let clients = nodes.iter().map(|node| node.client().to(&site.host("acme"))).collect();
        let mut nodes = Self { site, nodes, clients, token };
        if redis.is_some() {
            nodes.wait_for_lines(RECEIVING, 1);
        }
        nodes
    }

    /// Waits until each node has logged a line the given number of times.
    fn wait_for_lines(&mut self, text: &str, count: usize) {
        for node in &mut self.nodes {
            node.wait_for_lines(LOGGED, text, count);
        }
    }

    async fn statuses(&self, token: &str) -> Vec<u16> {
        let call = async |client: &Client| client.with(token).get("/api/v1/me").send().await.status.as_u16();
        let mut statuses = Vec::new();
        for client in &self.clients {
            statuses.push(call(client).await);
        }
        statuses
    }

    /// Revokes a token by its number; what the command said.
    fn revoke(&self, id: &str) -> String {
        let revoke = self.site.run(&["token", "revoke", "--tenant", "acme", id], b"");
        assert_eq!(revoke.code, 0, "{}", revoke.stderr);
        revoke.stderr
    }

    /// Asserts that every node refuses a token in requests that are sent after a time, and then for good.
    async fn assert_refused_within(&self, limit: Duration, token: &str) {
        let began = Instant::now();
        // In turn, since a node closes a connection that is not used for a minute.
        let mut accepting: Vec<_> = self.clients.iter().collect();
        while !accepting.is_empty() {
            for client in std::mem::take(&mut accepting) {
                let sent = began.elapsed();
                if client.with(token).get("/api/v1/me").send().await.status != 401 {
                    assert!(sent < limit, "a request that was sent after {sent:?} is accepted");
                    accepting.push(client);
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A moment later, in which nodes may have lost Redis or found it again. A loaded machine only prolongs it.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(self.statuses(token).await, [401, 401]);
    }

    /// Stores a token behind the back of the nodes.
    async fn insert(&self, token: &PresentedToken) {
        let file = format!("sqlite:{}", self.site.folder().join("acme.db").display());
        let mut database = SqliteConnection::connect(&file).await.unwrap();
        let insert = "INSERT INTO tokens (name, prefix, digest, created_at) SELECT 'new', $1, $2, created_at FROM tokens LIMIT 1";
        let insert = sqlx::query(insert).bind(token.shown()).bind(token.digest().as_bytes().to_vec());
        insert.execute(&mut database).await.unwrap();
        database.close().await.unwrap();
    }
}

#[tokio::test]
async fn revoking_is_felt_at_once_where_redis_tells() {
    let redis = Redis::start();
    let nodes = Nodes::start(Some(&redis));
    assert_eq!(nodes.statuses(&nodes.token).await, [200, 200]);
    assert!(!nodes.revoke("1").contains("warning"));
    nodes.assert_refused_within(AT_ONCE, &nodes.token).await;
}

/// The command can't tell anybody that listens. The nodes find that a number was missed.
#[tokio::test]
async fn a_revocation_takes_effect_at_once_on_a_node_that_received_no_announcement() {
    let redis = Redis::start();
    let nodes = Nodes::start(Some(&redis));
    assert_eq!(nodes.statuses(&nodes.token).await, [200, 200]);
    assert_eq!(redis.run::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]), 2);
    nodes.revoke("1");
    nodes.assert_refused_within(AT_ONCE, &nodes.token).await;
}

#[tokio::test]
async fn narrowing_is_felt_on_every_node_and_widening_too() {
    let redis = Redis::start();
    for redis in [Some(&redis), None] {
        let nodes = Nodes::start(redis);
        assert_eq!(nodes.statuses(&nodes.token).await, [200, 200]);
        let change = |limits: &[&str]| {
            let changed = nodes.site.run(&[&["token", "change", "--tenant", "acme", "1"], limits].concat(), b"");
            assert!(changed.code == 0 && !changed.stderr.contains("warning"), "{}", changed.stderr);
        };
        // Each change is felt by what a form answers.
        for (limits, expected) in [
            (&["--scopes", "groups:read"][..], 403),
            (&["--scopes", "all"], 200),
            (&["--networks", "203.0.113.0/24"], 401),
            (&["--networks", "all"], 200),
        ] {
            change(limits);
            let began = Instant::now();
            for client in &nodes.clients {
                while client.with(&nodes.token).get("/api/v1/form").send().await.status != expected {
                    assert!(began.elapsed() < LOGGED, "{limits:?} is not felt");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn revoking_while_redis_hangs_is_felt_at_once() {
    let mut redis = Redis::start();
    let nodes = Nodes::start(Some(&redis));
    assert_eq!(nodes.statuses(&nodes.token).await, [200, 200]);
    redis.signal("STOP");
    assert!(nodes.revoke("1").contains("warning"));
    nodes.assert_refused_within(AT_ONCE, &nodes.token).await;
}

/// The token is not used while Redis is away, so nobody looks it up then; and when it is back, no number was missed.
#[tokio::test]
async fn a_token_that_was_revoked_while_redis_was_away_is_refused_when_it_is_back() {
    let mut redis = Redis::start();
    let mut nodes = Nodes::start(Some(&redis));
    assert_eq!(nodes.statuses(&nodes.token).await, [200, 200]);
    let before: Vec<_> = nodes.nodes.iter_mut().map(|node| node.count_lines(RECEIVING)).collect();
    redis.signal("STOP");
    assert!(nodes.revoke("1").contains("warning"));
    nodes.wait_for_lines(NOT_RECEIVING, 1);
    redis.signal("CONT");
    for (node, before) in nodes.nodes.iter_mut().zip(before) {
        node.wait_for_lines(LOGGED, RECEIVING, before + 1);
    }
    assert_eq!(nodes.statuses(&nodes.token).await, [401, 401]);
}

#[tokio::test]
async fn revoking_is_felt_soon_where_there_is_no_redis() {
    let nodes = Nodes::start(None);
    assert_eq!(nodes.statuses(&nodes.token).await, [200, 200]);
    nodes.revoke("1");
    nodes.assert_refused_within(SOON, &nodes.token).await;
}

/// As when the command runs where Redis can't be reached, and the nodes can.
#[tokio::test]
async fn a_revocation_takes_effect_within_a_minute_without_announcements() {
    let redis = Redis::start();
    let nodes = Nodes::start(Some(&redis));
    assert_eq!(nodes.statuses(&nodes.token).await, [200, 200]);
    let file = format!("sqlite:{}", nodes.site.folder().join("acme.db").display());
    let mut database = SqliteConnection::connect(&file).await.unwrap();
    sqlx::query("UPDATE tokens SET revoked_at = created_at").execute(&mut database).await.unwrap();
    nodes.assert_refused_within(Duration::from_secs(61), &nodes.token).await;
}

#[tokio::test]
async fn a_new_token_works_at_once_on_every_node_though_it_was_asked_for_before() {
    let redis = Redis::start();
    for redis in [Some(&redis), None] {
        let mut nodes = Nodes::start(redis);
        let new = PresentedToken::generate();
        for _ in 0..3 {
            assert_eq!(nodes.statuses(new.expose()).await, [401, 401]);
        }
        nodes.insert(&new).await;
        // The word that goes round is that the tenant's tokens changed, not which.
        let created = nodes.site.run(&["token", "create", "--tenant", "acme", "--name", "another"], b"");
        let another = created.stdout.trim_end();
        if redis.is_some() {
            nodes.wait_for_lines(RECEIVED, 1);
        }
        assert_eq!(nodes.statuses(new.expose()).await, [200, 200]);
        assert_eq!(nodes.statuses(another).await, [200, 200]);
    }
}

#[tokio::test]
async fn a_token_that_was_found_is_not_looked_up_again() {
    let redis = Redis::start();
    let site = Site::new().tenant("acme", Engine::Postgres).requests_per_minute(100_000);
    let site = site.redis(&redis).gateway("redis_timeout_ms", 5000).write();
    let token = site.token("acme", "tests");
    let mut node = Node::spawn_in(&site.config_path, &[("FORMGATE_LOG", "info,formgate=debug")]);
    let client = node.client().to(&site.host("acme")).with(&token);
    let config: toml::Table = std::fs::read_to_string(&site.config_path).unwrap().parse().unwrap();
    let url = config["tenant"][0]["database"].as_str().unwrap();
    let mut database = PgConnection::connect(url).await.unwrap();
    // On a machine so loaded that the node loses Redis meanwhile and looks tokens up, another time.
    for _ in 0..10 {
        let lost = node.count_lines(NOT_RECEIVING);
        node.wait_for_lines(LOGGED, RECEIVING, lost + 1);
        assert_eq!(client.get("/api/v1/nothing").send().await.status, 404);
        // Nobody can read the tokens now.
        let mut locking = database.begin().await.unwrap();
        sqlx::query("LOCK TABLE tokens IN ACCESS EXCLUSIVE MODE").execute(&mut *locking).await.unwrap();
        // Twenty connections: two hundred handshakes at once take a loaded machine longer than they may.
        let callers = (0..20).map(async |_| {
            let mut statuses = Vec::new();
            for _ in 0..10 {
                statuses.push(client.get("/api/v1/nothing").send().await.status);
            }
            statuses
        });
        // A request that waits for the lock is answered 503 when the time of a statement is over.
        let answered = tokio::time::timeout(Duration::from_secs(60), futures_util::future::join_all(callers)).await;
        locking.rollback().await.unwrap();
        if node.count_lines(NOT_RECEIVING) == lost {
            assert!(answered.expect("a token was looked up").concat().iter().all(|status| *status == 404));
            return;
        }
    }
    panic!("the node lost Redis in every attempt");
}

on_both_databases! {
    async fn last_use_is_kept_to_the_minute_and_survives_a_stop(engine: Engine) {
        let site = Site::new().tenant("acme", engine).requests_per_minute(100_000).write();
        let [used, _unused] = ["used", "unused"].map(|name| site.token("acme", name));
        let mut node = site.start();
        let client = node.client().to(&site.host("acme"));
        let before = jiff::Timestamp::now().as_second().div_euclid(60);
        for _ in 0..10 {
            assert_eq!(client.with(&used).get("/api/v1/nothing").send().await.status, 404);
        }
        let after = jiff::Timestamp::now().as_second().div_euclid(60);
        node.terminate();
        assert_eq!(node.wait(Duration::from_secs(30)), 0);
        let list = site.run(&["token", "list", "--tenant", "acme", "--json"], b"").stdout;
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let last: jiff::Timestamp = list[0]["last_used_at"].as_str().expect("it was used").parse().unwrap();
        assert_eq!(last.as_microsecond() % 60_000_000, 0, "{last}");
        assert!((before..=after).contains(&(last.as_second() / 60)), "{last}");
        assert!(list[1]["last_used_at"].is_null(), "{list}");
    }
}

/// A trigger counts the writes, whoever makes them.
#[tokio::test]
async fn many_uses_are_few_writes() {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000).write();
    let tokens: Vec<_> = (0..3).map(|n| site.token("acme", &format!("tests {n}"))).collect();
    let file = format!("sqlite:{}", site.folder().join("acme.db").display());
    let mut database = SqliteConnection::connect(&file).await.unwrap();
    for statement in [
        "CREATE TABLE writes (token INTEGER)",
        "CREATE TRIGGER count_writes AFTER UPDATE ON tokens BEGIN INSERT INTO writes VALUES (new.id); END",
    ] {
        sqlx::query(statement).execute(&mut database).await.unwrap();
    }
    let mut node = site.start();
    let client = node.client().to(&site.host("acme"));
    let began = jiff::Timestamp::now().as_second().div_euclid(60);
    for _ in 0..50 {
        for token in &tokens {
            assert_eq!(client.with(token).get("/api/v1/nothing").send().await.status, 404);
        }
    }
    node.terminate();
    assert_eq!(node.wait(Duration::from_secs(30)), 0);
    let minutes = jiff::Timestamp::now().as_second().div_euclid(60) - began + 1;
    let writes: i64 = sqlx::query_scalar("SELECT count(*) FROM writes").fetch_one(&mut database).await.unwrap();
    assert!((3..=3 * minutes).contains(&writes), "{writes} writes in {minutes} minutes");
}
