//! The commonest site: an account `acme` with a token, behind one node.

use std::time::Duration;

use super::answer::Answer;
use super::client::Client;
use super::connection::raw;
use super::fixture::{Engine, Site};
use super::process::Node;

/// How long a stop without requests in flight may take.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A site that is served, and a token of its `acme`.
pub(crate) struct Acme {
    /// The configuration and its databases.
    pub(crate) site: Site,
    /// What serves it.
    pub(crate) node: Node,
    /// A token of the account.
    pub(crate) token: String,
}

impl Acme {
    /// `acme` alone, with a budget that no test spends.
    pub(crate) fn start() -> Self {
        Self::of(Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000))
    }

    /// A site that has `acme` among its tenants; all of them are migrated.
    pub(crate) fn of(site: Site) -> Self {
        let site = site.write();
        let token = site.token("acme", "tests");
        let node = site.start();
        Self { site, node, token }
    }

    /// The account's host.
    pub(crate) fn host(&self) -> String {
        self.site.host("acme")
    }

    /// A caller of the account, without a token.
    pub(crate) fn stranger(&self) -> Client {
        self.node.client().to(&self.host())
    }

    /// A caller of the account, with its token.
    pub(crate) fn caller(&self) -> Client {
        self.stranger().with(&self.token)
    }

    /// The answer to a request as it is, over HTTP/1.1. One that lets the server close afterwards is answered sooner.
    pub(crate) async fn raw(&self, request: impl AsRef<[u8]>) -> Answer {
        let request = request.as_ref();
        let bytes = raw(self.node.address, &self.host(), request).await;
        Answer::read(&bytes).unwrap_or_else(|| {
            panic!("{:?}: {:?}", String::from_utf8_lossy(request), String::from_utf8_lossy(&bytes));
        })
    }

    /// Stops the node in good order; its whole log.
    pub(crate) async fn stop(&mut self) -> String {
        assert_eq!(self.node.stop(STOP_LIMIT).await, 0, "a normal stop");
        self.node.log()
    }
}
