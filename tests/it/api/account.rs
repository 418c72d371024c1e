//! One account with data in it, served by a node of its own.

use serde_json::Value;

use crate::api::world::ZONE;
use crate::support::client::Client;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;

/// A running account with a world in it.
pub(crate) struct Account {
    /// Calls with a token of the account.
    pub(crate) client: Client,
    _node: Node,
    _site: Site,
}

/// Serves the lines of an import.
pub(crate) fn account(engine: Engine, ndjson: &str) -> Account {
    let site = Site::new()
        .tenant_with("acme", engine, |tenant| tenant.set("timezone", ZONE))
        .requests_per_minute(100_000)
        .write();
    site.migrate();
    site.import("acme", ndjson);
    let token = site.token("acme", "tests");
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    Account { client, _node: node, _site: site }
}

impl Account {
    /// The answer to a search that has no fault.
    pub(crate) async fn search(&self, query: &str, filter: &Value) -> Value {
        let answer = self.client.post(&format!("/api/v1/submission{query}")).json(filter).send().await;
        assert_eq!(answer.status, 200, "{filter}: {answer:?}");
        answer.json()
    }
}
