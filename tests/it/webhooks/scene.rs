//! An account with two forms, whose webhooks go to receivers of the test.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::certificate;
use crate::support::client::{Client, operator_count};
use crate::support::database::Database;
use crate::support::dns::{DnsServer, Lookup};
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;
use crate::support::receiver::{HOST, Received, Receiver};

/// How long a delivery may take on a machine that others load heavily, after another node died.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// Two forms, the second a sub-form of the first, with an element each.
const FORMS: &str = "
    INSERT INTO forms (id, name, graduated, parent_id) VALUES (1, 'Leave', FALSE, NULL), (2, 'Sub-form', FALSE, 1),
      (3, 'Other', FALSE, NULL);
    INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (10, 1, 0, 'a', 'Reason', 'text'),
      (20, 2, 0, 'b', 'Reason', 'text'), (30, 3, 0, 'c', 'Reason', 'text');
";

pub(super) struct Scene {
    pub(super) site: Site,
    pub(super) nodes: Vec<Node>,
    pub(super) client: Client,
    pub(super) database: Database,
    engine: Engine,
    pub(super) dns: DnsServer,
}

impl Scene {
    pub(super) async fn new(engine: Engine) -> Self {
        Self::with(engine, |_| ()).await
    }

    /// With other keys of `[gateway.webhooks]`.
    pub(super) async fn with(engine: Engine, differ: impl FnOnce(&mut toml::Table)) -> Self {
        Self::built(engine, |site| site, differ).await
    }

    /// The same, with a site that is built differently.
    pub(super) async fn built(
        engine: Engine,
        build: impl FnOnce(Site) -> Site,
        differ: impl FnOnce(&mut toml::Table),
    ) -> Self {
        let dns = DnsServer::start().await;
        dns.answer(HOST, &[Lookup::of(&["127.0.0.1"])]);
        let site = build(Site::new().tenant("acme", engine).requests_per_minute(100_000));
        let mut webhooks = toml::Table::new();
        let authority = certificate::authority(site.folder()).display().to_string();
        webhooks.insert("ca_file".into(), authority.into());
        webhooks.insert("dns_servers".into(), vec![dns.address.to_string()].into());
        webhooks.insert("allow_targets".into(), vec!["127.0.0.0/8"].into());
        differ(&mut webhooks);
        let site = site.gateway("webhooks", webhooks).write();
        let database = Database::connect(site.database_url("acme")).await;
        database.execute(FORMS).await;
        let token = site.token("acme", "tests");
        let node = site.start();
        let client = node.client().to(&site.host("acme")).with(&token);
        Self { site, nodes: vec![node], client, database, engine, dns }
    }

    /// Subscribes a receiver. Returns the answer's `data`.
    pub(super) async fn subscribe(&self, receiver: &Receiver, event: &str, form: Option<&str>) -> Value {
        let body = json!({ "target_url": receiver.url("/hook"), "event": event, "form": form });
        let answer = self.client.post("/api/v1/subscribe").json(&body).send().await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["data"].clone()
    }

    /// An instant, in seconds after the first one.
    pub(super) fn at(&self, seconds: i64) -> String {
        match self.engine {
            Engine::Sqlite => format!("{}", (1_772_366_400 + seconds) * 1_000_000),
            _ => format!("to_timestamp({})", 1_772_366_400 + seconds),
        }
    }

    /// Inserts a submission of a form, with an answer.
    pub(super) async fn insert(&self, id: i64, form: i64, value: &str) {
        let at = self.at(id);
        let element = form * 10;
        self.database
            .execute(&format!(
                "INSERT INTO submissions (id, form_id, status, created_at, updated_at, draft) \
                 VALUES ({id}, {form}, 'pending', {at}, {at}, FALSE)"
            ))
            .await;
        self.database
            .execute(&format!(
                "INSERT INTO answers (submission_id, element_id, value, updated_at) VALUES ({id}, {element}, '{value}', {at})"
            ))
            .await;
    }

    pub(super) async fn execute(&self, statement: &str) {
        self.database.execute(statement).await;
    }

    /// The subscription as the API shows it.
    pub(super) async fn subscription(&self, id: &Value) -> Value {
        let path = format!("/api/v1/subscribe/{}", id.as_str().expect("an id"));
        self.client.get(&path).send().await.json()["data"].clone()
    }

    /// Starts one more node of the same accounts.
    pub(super) fn start_another_node(&mut self) {
        self.nodes.push(self.site.start());
    }

    /// On Postgres, writes are no longer counted. (The stamps of a file can't be turned off.)
    pub(super) async fn turn_hints_off(&self) {
        if self.engine != Engine::Sqlite {
            let name = self.database.text("SELECT current_database()::text").await;
            self.execute(&format!("ALTER DATABASE \"{name}\" SET track_counts = off")).await;
            self.execute("SET track_counts = off").await;
        }
    }

    /// The node with requests in flight: it has the lease.
    pub(super) async fn sending_node(&mut self) -> usize {
        let mut sent = Vec::new();
        for node in &mut self.nodes {
            sent.push(operator_count(node.operator_address(), "formgate_webhooks_in_flight").await);
        }
        sent.iter().position(|count| *count > 0).unwrap_or(0)
    }

    /// Waits until every event was accepted and every lease ended.
    pub(super) async fn wait_until_delivered(&self) {
        self.wait_for(
            "SELECT count(*) FROM subscriptions s, change_state WHERE leased_by IS NOT NULL OR EXISTS (SELECT 1 FROM intake) \
             OR EXISTS (SELECT 1 FROM webhook_events) OR (event = 'submission.created' AND position < \
             (SELECT coalesce(max(created_event), 0) FROM submission_changes)) OR (event = 'submission.updated' AND position < \
             (SELECT coalesce(max(updated_event), 0) FROM submission_changes))",
            0,
        )
        .await;
    }

    /// Waits until a query returns a number.
    pub(super) async fn wait_for(&self, query: &str, number: i64) {
        let began = Instant::now();
        loop {
            let [found] = self.database.integers(query).await;
            if found == number {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{query}: {found} instead of {number}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Has the node deliver nothing: what is due stays so.
pub(super) fn without_delivery(webhooks: &mut toml::Table) {
    webhooks.insert("enabled".into(), false.into());
}

/// Waits until a receiver has got as many requests as these, and returns them.
pub(super) async fn received(receiver: &Receiver, count: usize) -> Vec<Received> {
    let began = Instant::now();
    loop {
        let requests = receiver.requests();
        if requests.len() >= count {
            return requests;
        }
        assert!(began.elapsed() < LIMIT, "{} requests instead of {count}: {requests:?}", requests.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The body of a request.
pub(super) fn envelope(request: &Received) -> Value {
    serde_json::from_slice(&request.body).expect("JSON")
}

/// The types and submissions of requests, in their order.
pub(super) fn events(requests: &[Received]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    requests.iter().map(envelope).map(|event| (text(&event["type"]), text(&event["data"]["id"]))).collect()
}

/// The bodies of requests by their `webhook-id`, in the order of the attempts.
pub(super) fn by_id(requests: &[Received]) -> BTreeMap<String, Vec<Received>> {
    let mut by_id: BTreeMap<String, Vec<Received>> = BTreeMap::new();
    for request in requests {
        let id = request.headers["webhook-id"].to_str().expect("ASCII").to_owned();
        by_id.entry(id).or_default().push(request.clone());
    }
    by_id
}
