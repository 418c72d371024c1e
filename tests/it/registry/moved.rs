//! An account that moves: its product, which writes by SQL until the old database refuses that, and what has to be true of the
//! new one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use serde_json::{Value, json};
use toml::Table;

use super::scene::Scene;
use crate::support::certificate;
use crate::support::database::Database;
use crate::support::dns::{DnsServer, Lookup};
use crate::support::fixture::Engine;
use crate::support::receiver::HOST;

/// Between two calls of a client, and two writes by SQL: so that the machine is not what is tested.
pub(super) const PAUSE: Duration = Duration::from_millis(40);

/// How many submissions an account has before it moves.
pub(super) const FIRST: i64 = 300;

/// The submission whose answer changes, once for every few inserts: an export waits for a submission that changes all the time.
pub(super) const CHANGING: i64 = 2;
const CHANGES: i64 = 10;

/// With which submission the answer changed last.
pub(super) fn changed(last: i64) -> Option<i64> {
    Some(last / CHANGES * CHANGES).filter(|changed| *changed > FIRST)
}

/// What the product has committed.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// The last submission; it has all before.
    pub(super) last: AtomicI64,
}

/// How the product's writing ended.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) text: String,
    /// Whether it can't know if the next submission was committed: the server died at that moment.
    pub(super) is_unsure: bool,
}

/// An account whose program writes by SQL.
pub(super) struct Account {
    pub(super) scene: Arc<Scene>,
    pub(super) slug: String,
    pub(super) source: String,
    pub(super) target: String,
    pub(super) token: String,
}

/// A scene whose nodes send webhooks to receivers on this machine.
pub(super) async fn scene(registry: Engine) -> (Arc<Scene>, DnsServer) {
    let dns = DnsServer::start().await;
    dns.answer(HOST, &[Lookup::of(&["127.0.0.1"])]);
    let scene = Scene::new(registry);
    let mut webhooks = Table::new();
    webhooks.insert("ca_file".into(), certificate::authority(scene.folder()).display().to_string().into());
    webhooks.insert("dns_servers".into(), vec![dns.address.to_string()].into());
    webhooks.insert("allow_targets".into(), vec!["127.0.0.0/8"].into());
    webhooks.insert("settle_ms".into(), 200.into());
    // A hundred accounts have more callers than one address may have connections.
    let mut limits = Table::new();
    limits.insert("connections_per_address".into(), 10_000.into());
    (Arc::new(scene.gateway("webhooks", webhooks).gateway("limits", limits)), dns)
}

fn instant(url: &str, id: i64) -> String {
    let seconds = 1_772_366_400 + id;
    if url.starts_with("sqlite:") { format!("{seconds}000000") } else { format!("to_timestamp({seconds})") }
}

/// The statements that insert a submission with an answer. They may be repeated.
pub(super) fn insertion(url: &str, id: i64) -> String {
    let at = instant(url, id);
    format!(
        "INSERT INTO submissions (id, form_id, status, created_at, updated_at, draft)
           VALUES ({id}, 1, 'pending', {at}, {at}, FALSE) ON CONFLICT DO NOTHING;
         INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES ({id}, 1, 'ÄNSWER {id}', {at})
           ON CONFLICT DO NOTHING"
    )
}

impl Account {
    /// Adds an account in an empty database, which will move to another one.
    pub(super) async fn add(scene: &Arc<Scene>, slug: &str, source: &str, target: &str) -> Self {
        let tenant = json!({
            "name": slug.to_uppercase(),
            "address": format!("{slug}.example.test"),
            "database": source,
            "timezone": "UTC",
            "requests_per_minute": 100_000,
        });
        let put = format!("/v1/tenants/{slug}?migrate=1&wait=60&token=tests");
        let added = scene.call(0, Method::PUT, &put, Some(&tenant)).await;
        assert_eq!(added.status, 201, "{added:?}");
        let token = added.body["token"]["token"].as_str().expect("a token").to_owned();
        let product = Database::connect(source).await;
        let rows: Vec<_> = (1..=FIRST).map(|id| insertion(source, id)).collect();
        product
            .execute(&format!(
                "BEGIN; INSERT INTO forms (id, name) VALUES (1, 'Leave');
                 INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (1, 1, 1, 'e', 'Why', 'text');
                 {}; COMMIT",
                rows.join(";")
            ))
            .await;
        product.close().await;
        let [slug, source, target] = [slug, source, target].map(str::to_owned);
        Self { scene: Arc::clone(scene), slug, source, target, token }
    }

    pub(super) async fn begin_move(&self) -> Value {
        let (path, body) = (format!("/v1/tenants/{}/move", self.slug), json!({ "to": self.target }));
        loop {
            let begun = self.scene.call(0, Method::POST, &path, Some(&body)).await;
            // Of one caller, the API has only some calls wait for a database at once.
            if begun.status == 429 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
            assert_eq!(begun.status, 202, "{begun:?}");
            return begun.body["move"].clone();
        }
    }

    /// Waits until the move is done. What the move needed may still be there.
    pub(super) async fn done(&self, begun: &Value, limit: Duration) -> Value {
        let (target, since) = (format!("/v1/moves/{}", begun["id"]), Instant::now());
        let mut last = Value::Null;
        loop {
            // A node that was killed does not answer, and neither does a registry.
            if let Some(shown) = self.scene.send(0, Method::GET, &target, "", &[]).await.filter(|it| it.status == 200) {
                let state = shown.body["move"]["state"].as_str().expect("a state");
                if state == "done" {
                    return shown.body["move"].clone();
                }
                assert!(!["failed", "cancelled"].contains(&state), "{shown:?}");
                last = shown.body;
            }
            assert!(since.elapsed() < limit, "{last}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Writes submissions by SQL until the old database says that the account has left. While it is locked, or down, tries again.
    pub(super) async fn write_until_refused(&self, written: &Written, pause: Duration) -> Refused {
        let product = Database::connect(&self.source).await;
        let mut is_unsure = false;
        loop {
            let id = written.last.load(Ordering::Acquire) + 1;
            let (insertion, at) = (insertion(&self.source, id), instant(&self.source, id));
            let change = format!(
                "UPDATE answers SET value = 'ÄNSWER {CHANGING} v{id}', updated_at = {at} WHERE submission_id = {CHANGING};"
            );
            let change = if changed(id) == Some(id) { change } else { String::new() };
            let statement = format!("BEGIN; {insertion}; {change} COMMIT");
            match product.try_execute(&statement).await {
                Ok(()) => {
                    written.last.store(id, Ordering::Release);
                    is_unsure = false;
                }
                Err(error) => {
                    let text = error.to_string();
                    if text.contains("formgate moved this account") {
                        product.try_execute("ROLLBACK").await.ok();
                        product.close().await;
                        return Refused { text, is_unsure };
                    }
                    is_unsure |= !matches!(error, sqlx::Error::Database(_));
                    product.try_execute("ROLLBACK").await.ok();
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Fails unless the new database has the submissions up to one and nothing else, and both sides the row of the audit log.
    pub(super) async fn check(&self, last: i64) {
        let [source, target] = [Database::connect(&self.source).await, Database::connect(&self.target).await];
        let count = "SELECT count(*), coalesce(max(id), 0) FROM submissions";
        assert_eq!(target.integers(count).await, [last, last]);
        assert_eq!(target.integers("SELECT count(*) FROM answers").await, [last]);
        let version = changed(last).map(|changed| format!(" v{changed}")).unwrap_or_default();
        let value = format!("ÄNSWER {CHANGING}{version}");
        let right = format!(
            "SELECT count(*) FROM answers a JOIN submissions s ON s.id = a.submission_id
             WHERE a.value = CASE WHEN s.id = {CHANGING} THEN '{value}' ELSE 'ÄNSWER ' || s.id END"
        );
        assert_eq!(target.integers(&right).await, [last], "another answer than was written");
        for side in [&source, &target] {
            let rows = "SELECT count(*) FROM audit_log WHERE action = 'tenant.moved'";
            assert_eq!(side.integers(rows).await, [1]);
        }
        let whose = ["SELECT id FROM database_identity", "SELECT epoch FROM change_state"];
        let tokens = "SELECT prefix FROM tokens WHERE name = 'tests'";
        for query in whose.into_iter().chain([tokens]) {
            assert_eq!(source.text(query).await, target.text(query).await, "{query}");
        }
        let refused = source.try_execute("DELETE FROM answers").await.expect_err("the account has left").to_string();
        assert!(refused.contains("formgate moved this account: write to "), "{refused}");
        // The next ids follow, and triggers and foreign keys are there again.
        target.execute(&insertion(&self.target, last + 1)).await;
        let orphan = insertion(&self.target, last + 2).replace(", 1, 'pending'", ", 77, 'pending'");
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
