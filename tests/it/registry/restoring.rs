//! An account goes back to an instant, from its Litestream replica or from a dump: what it has then is what a model had, what
//! people have decided since stays, and nothing is sent again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use rand::RngExt;
use serde_json::{Value, json};

use super::restoring_account::{Account, Moment, State, WRITING, assert_was, dump, insertion, load, state_of};
use super::scene::{LIMIT, client};
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::Engine;
use crate::support::litestream::Litestream;
use crate::support::process::Output;

/// How far Litestream may be behind: it looks once a second, on a machine that may be busy.
const BEHIND: SignedDuration = SignedDuration::from_secs(8);

impl Account {
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
    let file = account.scene.folder().join("acme.dump");
    let dumping = async {
        let share = rand::rng().random_range(0.3..0.8);
        tokio::time::sleep(WRITING.mul_f64(share)).await;
        let began = Timestamp::now();
        tokio::task::block_in_place(|| dump(&account.source, &file));
        [began, Timestamp::now()]
    };
    let (moments, window) = tokio::join!(account.write_at_random(), dumping);
    let restored = load(&file, account.scene.folder());
    account.goes_back(&moments, window, &restored, || account.restore(window[1], &restored, &[])).await;
}

/// The node that carries the return out is killed at some moment: the account ends in the restored database, and nothing of the
/// old one is copied there.
#[tokio::test(flavor = "multi_thread")]
async fn although_the_node_is_killed() {
    for milliseconds in [100, 700, 1_500] {
        let mut account = Account::new(Engine::Postgres).await;
        let product = Database::connect(&account.source).await;
        product.execute(&insertion(Engine::Postgres, 1, "then")).await;
        let file = account.scene.folder().join("acme.dump");
        dump(&account.source, &file);
        let restored = load(&file, account.scene.folder());
        let then = state_of(&restored).await;
        product.execute(&insertion(Engine::Postgres, 2, "now")).await;
        product.close().await;
        let at = Timestamp::now();
        let early = account.restore(at - Duration::from_secs(3_600), &restored, &[]);
        assert!(early.code == 1 && early.stderr.contains("of a later instant than"), "{early:?}");
        let output = account.restore(at, &restored, &[]);
        assert_eq!(output.code, 0, "{}", output.stderr);
        let other = account.restore(at - Duration::from_secs(1), &restored, &[]);
        assert!(other.code == 1 && other.stderr.contains("is prepared already, as it was at"), "{other:?}");
        account.scene.succeed(&["tenant", "move", "acme", "--to", &restored]);
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        account.node.kill();
        account.node = account.scene.start(0);
        let since = Instant::now();
        loop {
            let moves = account.scene.succeed(&["tenant", "moves", "--json"]);
            let moves: Value = serde_json::from_str(&moves).expect("JSON");
            if moves[0]["state"] == "done" {
                break;
            }
            assert!(since.elapsed() < LIMIT, "{moves}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(state_of(&restored).await, then);
        let found =
            client(&account.node, "acme", &account.token).post("/api/v1/submission").json(&json!({})).send().await;
        assert_eq!(found.json()["meta"]["total"], 1, "{found:?}");
    }
}
