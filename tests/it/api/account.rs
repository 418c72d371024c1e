//! One account with data in it, served by nodes of its own.

use std::net::SocketAddr;

use serde_json::Value;

use crate::api::world::ZONE;
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, Tenant};
use crate::support::process::{Node, Output};

/// A running account with a world in it.
pub(crate) struct Account {
    /// Calls with a token of the account.
    pub(crate) client: Client,
    nodes: Vec<Node>,
    token: String,
    site: Site,
}

/// Serves the lines of an import.
pub(crate) fn account(engine: Engine, ndjson: &str) -> Account {
    account_with(engine, ndjson, |tenant| tenant)
}

/// The same, configured differently.
pub(crate) fn account_with(engine: Engine, ndjson: &str, differ: impl FnOnce(Tenant) -> Tenant) -> Account {
    account_on(Site::new().tenant_with("acme", engine, |tenant| differ(tenant.set("timezone", ZONE))), ndjson)
}

/// The same on a site whose tenant is `acme`.
pub(crate) fn account_on(site: Site, ndjson: &str) -> Account {
    let site = site.requests_per_minute(100_000).write();
    if !ndjson.is_empty() {
        site.import("acme", ndjson);
    }
    let token = site.token("acme", "tests");
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    Account { client, nodes: vec![node], token, site }
}

impl Account {
    /// The answer to a search that has no fault.
    pub(crate) async fn search(&self, query: &str, filter: &Value) -> Value {
        let answer = self.client.post(&format!("/api/v1/submission{query}")).json(filter).send().await;
        assert_eq!(answer.status, 200, "{filter}: {answer:?}");
        answer.json()
    }

    /// The token of the client.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// A new token that is limited to forms.
    pub(crate) fn token_within(&self, forms: &[i64]) -> String {
        let forms: Vec<String> = forms.iter().map(|form| format!("for_{form}")).collect();
        self.site.limited_token("acme", "limited", &["--forms", &forms.join(",")])
    }

    /// What the first node has logged so far.
    pub(crate) fn log(&mut self) -> String {
        self.nodes[0].log()
    }

    /// The sign-in address.
    pub(crate) fn host(&self) -> String {
        self.site.host("acme")
    }

    /// Where the client calls.
    pub(crate) fn address(&self) -> SocketAddr {
        self.nodes[0].address
    }

    /// Where the operator looks.
    pub(crate) fn operator(&mut self) -> SocketAddr {
        self.nodes[0].operator_address()
    }

    /// The URL of the account's database.
    pub(crate) fn database_url(&self) -> &str {
        self.site.database_url("acme")
    }

    /// Mends what is kept for searching, and tells what was wrong.
    pub(crate) fn reindex(&self) -> String {
        let done = self.site.run(&["reindex", "--tenant", "acme"], b"");
        assert_eq!(done.code, 0, "{done:?}");
        done.stdout
    }

    /// Imports lines.
    pub(crate) fn import(&self, ndjson: &str) {
        self.site.import("acme", ndjson);
    }

    /// Runs a command on the account's site.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.site.run(arguments, b"")
    }

    /// SQL on the account's database.
    pub(crate) async fn database(&self) -> Database {
        Database::connect(self.site.database_url("acme")).await
    }

    /// Starts one more node; the same calls on it.
    pub(crate) fn another_node(&mut self) -> Client {
        let node = self.site.start();
        let client = node.client().to(&self.site.host("acme")).with(&self.token);
        self.nodes.push(node);
        client
    }

    /// Has every node read its configuration again.
    pub(crate) fn reload(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.signal("HUP"));
    }

    /// Has every node stop, without waiting for it.
    pub(crate) fn stop(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.signal("TERM"));
    }

    /// Kills every node as a crash would, and starts one again.
    pub(crate) fn crash(&mut self) {
        for node in &mut self.nodes {
            node.kill();
        }
        self.nodes.clear();
        self.client = self.another_node();
    }
}
