//! The operator API: accounts and their domains come and go by calls of the operator's own product, which also looks after their
//! tokens and sessions.
//!
//! Owns its routes, its callers and its responses. A change is checked by the code that checks files
//! ([`crate::registry::editing`]), written to the registry, and served by every node that follows it. Tenants of files
//! can only be read here.
//!
//! - [`ENDPOINTS`]: every endpoint on one page.
//! - `caller`: who calls, over a socket or with a token.
//! - A file a resource; `refusal` has the responses to refused calls.

mod batch;
mod body;
mod caller;
mod changes;
mod credentials;
mod domains;
mod erasing;
mod import;
mod limits;
mod moves;
mod nodes;
mod refusal;
mod sessions;
mod tenants;
mod tokens;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, request};
use tokio::time::{Instant, sleep};

use self::refusal::OperatorRefusal;
use crate::config::GatewayConfig;
use crate::domains::Domains;
use crate::endpoint::{BodyKind, Endpoint, Endpoints, Matched, Segments, endpoint};
use crate::memory::MemoryShare;
use crate::registry::Following;
use crate::registry::editing::Editor;
use crate::reply::Reply;
use crate::shared::announce::TokenChangeAnnouncer;
use crate::shares::{Share, Shares};
use crate::store::Registry;
use crate::tenant::Directory;
pub use caller::{Caller, TOKEN_PREFIX, Transport};
pub(crate) use import::Upload;
pub use import::{Imports, MAX_UPLOAD, upload_limits};

/// The largest body of a request, in bytes.
///
/// Larger: a caller occupies more memory. Smaller: batches of thousands of tenants have to be divided.
pub const MAX_BODY: usize = 8 * 1024 * 1024;

/// How many calls of one caller, a token or a system user, may wait at once: a quarter of the connections of an address.
///
/// Larger: a caller whose calls wait locks the others out. Smaller: its calls are refused sooner.
pub const WAITS_OF_A_CALLER: usize = 16;

/// How many calls may wait at once. A caller may wait with no more than are left, so that the next one finds some.
///
/// Larger: calls that wait lock the others out. Smaller: fewer callers can wait.
pub const WAITS: usize = 48;

/// How long a call waits for its share before it uses the database of a tenant, and how often it checks.
///
/// Larger: calls that wait for one hold the connections of other callers for longer. Smaller: of many accounts that sign up at
/// once, some are refused although each takes a moment only.
const SHARE_WAIT: Duration = Duration::from_secs(2);
const SHARE_INTERVAL: Duration = Duration::from_millis(20);

/// What carries out a call.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    writes_to_registry: bool,
    run: for<'a> fn(&'a Call<'a>) -> BoxFuture<'a, Result<Reply, OperatorRefusal>>,
}

macro_rules! reading {
    ($handler:path) => {
        Operation { writes_to_registry: false, run: |call| Box::pin($handler(call)) }
    };
}

macro_rules! writing {
    ($handler:path) => {
        Operation { writes_to_registry: true, run: |call| Box::pin($handler(call)) }
    };
}

/// Every endpoint.
pub static ENDPOINTS: Endpoints<Operation> = Endpoints::new(&TABLE);

static TABLE: [Endpoint<Operation>; 28] = [
    endpoint!(GET "" "/v1/tenants", reading!(tenants::list)).query(&["after", "limit"]),
    endpoint!(GET "" "/v1/tenants/{slug}", reading!(tenants::read)),
    endpoint!(PUT "" "/v1/tenants/{slug}", writing!(tenants::put))
        .query(&["migrate", "wait", "token", "link"])
        .body(BodyKind::Ordinary),
    endpoint!(DELETE "" "/v1/tenants/{slug}", writing!(tenants::remove)).query(&["erase", "wait"]),
    endpoint!(POST "" "/v1/tenants/{slug}/tokens", reading!(credentials::create_token)).body(BodyKind::Ordinary),
    endpoint!(POST "" "/v1/tenants/{slug}/import", reading!(import::load)).query(&["quiet"]).body(BodyKind::File),
    endpoint!(GET "" "/v1/tenants/{slug}/tokens", reading!(tokens::list)).query(&["after", "limit", "state"]),
    endpoint!(PATCH "" "/v1/tenants/{slug}/tokens/{id}", reading!(tokens::change)).body(BodyKind::Ordinary),
    endpoint!(DELETE "" "/v1/tenants/{slug}/tokens/{id}", reading!(tokens::revoke)),
    endpoint!(GET "" "/v1/tenants/{slug}/usage", reading!(usage::list)).query(&["since", "until"]),
    endpoint!(GET "" "/v1/tenants/{slug}/sessions", reading!(sessions::list)),
    endpoint!(DELETE "" "/v1/tenants/{slug}/sessions", reading!(sessions::end_all)),
    endpoint!(DELETE "" "/v1/tenants/{slug}/sessions/{id}", reading!(sessions::end_one)),
    endpoint!(POST "" "/v1/tenants/{slug}/links", reading!(credentials::create_link)).body(BodyKind::Ordinary),
    endpoint!(GET "" "/v1/tenants/{slug}/domains", reading!(domains::list_of_tenant))
        .query(&["after", "limit", "state"]),
    endpoint!(GET "" "/v1/tenants/{slug}/domains/{host}", reading!(domains::read)),
    endpoint!(PUT "" "/v1/tenants/{slug}/domains/{host}", writing!(domains::put)).query(&["wait"]),
    endpoint!(DELETE "" "/v1/tenants/{slug}/domains/{host}", writing!(domains::remove)).query(&["wait"]),
    endpoint!(POST "" "/v1/tenants/{slug}/move", writing!(moves::begin)).body(BodyKind::Ordinary),
    endpoint!(GET "" "/v1/moves", reading!(moves::list)),
    endpoint!(GET "" "/v1/moves/{id}", reading!(moves::read)),
    endpoint!(DELETE "" "/v1/moves/{id}", writing!(moves::cancel)),
    endpoint!(GET "" "/v1/domains", reading!(domains::list)).query(&["after", "limit", "state", "tenant"]),
    endpoint!(GET "" "/v1/domains/ask", reading!(domains::ask)).query(&["domain"]),
    endpoint!(POST "" "/v1/domains/{host}/check", writing!(domains::check)).query(&["tenant", "wait"]),
    endpoint!(POST "" "/v1/batch", writing!(batch::run)).query(&["migrate", "wait"]).body(BodyKind::Ordinary),
    endpoint!(GET "" "/v1/changes", reading!(changes::list)).query(&["after", "limit", "wait"]),
    endpoint!(GET "" "/v1/nodes", reading!(nodes::list)),
];

/// The operator API of one node.
#[derive(Debug)]
pub struct OperatorApi {
    /// The registry, if there is one.
    pub following: Option<Arc<Following>>,
    /// The tenants that are served.
    pub directory: Arc<ArcSwap<Directory>>,
    /// The `[gateway]` table that is served.
    pub gateway: Arc<ArcSwap<GatewayConfig>>,
    /// The domains, if `[gateway.domains]` is configured.
    pub domains: Option<Arc<Domains>>,
    /// The calls that wait for a change, for nodes or for the check of a domain, by their callers.
    pub waits: Shares,
    /// What bodies may hold of the memory of the node.
    pub memory: MemoryShare,
    /// The accounts that data is being imported into.
    pub imports: Imports,
    /// Announces changed tokens to the other nodes, if Redis is configured.
    pub announcer: Option<Arc<TokenChangeAnnouncer>>,
}

impl OperatorApi {
    /// Who calls. First, so that a caller without a token learns nothing about routes.
    ///
    /// # Errors
    /// The response to an unknown caller.
    pub async fn identify(&self, transport: &Transport, head: &request::Parts) -> Result<Caller, Reply> {
        caller::identify(self, transport, head).await.map_err(OperatorRefusal::reply)
    }

    /// Opens the file for a large body. `None` if the endpoint reads none.
    ///
    /// # Errors
    /// The response to a request whose body is not read.
    pub(crate) async fn begin_upload(&self, caller: &Caller, head: &request::Parts) -> Result<Option<Upload>, Reply> {
        let Ok(Matched { endpoint, segments }) = ENDPOINTS.find(&head.method, head.uri.path()) else { return Ok(None) };
        if endpoint.body != BodyKind::File {
            return Ok(None);
        }
        let body = Bytes::new();
        let call = Call { api: self, caller, head, body: &body, upload: None, segments, known: endpoint.query };
        import::begin(&call).await.map(Some).map_err(OperatorRefusal::reply)
    }

    /// Answers a request whose body was read, into a file if it is an upload.
    pub(crate) async fn answer(
        &self,
        caller: &Caller,
        head: &request::Parts,
        body: Bytes,
        upload: Option<Upload>,
    ) -> Reply {
        match self.try_to_answer(caller, head, &body, upload.as_ref()).await {
            Ok(reply) => reply,
            Err(refusal) => refusal.reply(),
        }
    }

    async fn try_to_answer(
        &self,
        caller: &Caller,
        head: &request::Parts,
        body: &Bytes,
        upload: Option<&Upload>,
    ) -> Result<Reply, OperatorRefusal> {
        let Matched { endpoint, segments } = ENDPOINTS.find(&head.method, head.uri.path())?;
        let is_only_read = self.following.as_ref().is_some_and(|following| !following.config().is_written);
        if is_only_read && endpoint.handler.writes_to_registry {
            return Err(OperatorRefusal::Drill);
        }
        let call = Call { api: self, caller, head, body, upload, segments, known: endpoint.query };
        (endpoint.handler.run)(&call).await
    }

    fn following(&self) -> Result<&Following, OperatorRefusal> {
        self.following.as_deref().ok_or(OperatorRefusal::NoRegistry)
    }

    fn domains(&self) -> Result<&Domains, OperatorRefusal> {
        self.domains.as_deref().ok_or(OperatorRefusal::NoDomains)
    }

    async fn registry(&self) -> Result<&Registry, OperatorRefusal> {
        Ok(self.following()?.registry().await?)
    }

    /// Announces that a tenant's tokens changed.
    async fn announce_tokens(&self, slug: &str) {
        if let Some(tenant) = self.directory.load().tenant(slug) {
            tenant.tokens.changed();
        }
        if let Some(announcer) = &self.announcer {
            announcer.announce(slug).await;
        }
    }
}

/// A request of a known caller.
struct Call<'c> {
    api: &'c OperatorApi,
    caller: &'c Caller,
    head: &'c request::Parts,
    body: &'c Bytes,
    upload: Option<&'c Upload>,
    segments: Segments<'c>,
    /// The query parameters that the endpoint knows.
    known: &'static [&'static str],
}

impl Call<'_> {
    /// The tenant in the path.
    fn slug(&self) -> &str {
        self.segments.get("slug")
    }

    /// The number in the path; `None` if it is none.
    fn id(&self) -> Option<i64> {
        self.segments.get("id").parse().ok().filter(|id| *id > 0)
    }

    /// The host in the path.
    fn host(&self) -> &str {
        self.segments.get("host")
    }

    /// Does something with what changes are checked against.
    async fn with_editor<R>(&self, doing: impl FnOnce(&Editor<'_>) -> R) -> Result<R, OperatorRefusal> {
        let following = self.api.following()?;
        let (files, gateway) = (following.files().await, self.api.gateway.load_full());
        let editor = Editor { gateway: &gateway, config: following.config(), files: &files };
        // Certificates are read.
        Ok(tokio::task::block_in_place(|| doing(&editor)))
    }

    fn is_head(&self) -> bool {
        self.head.method == Method::HEAD
    }

    /// How long a call that was carried out waits for what follows from it, and its share of the waiting calls. One for
    /// which there is no room only looks.
    fn begin_to_wait(&self, wait: Duration) -> (Duration, Option<Share<'_>>) {
        let share = (!wait.is_zero()).then(|| self.api.waits.begin(&self.caller.name)).flatten();
        (if share.is_some() { wait } else { Duration::ZERO }, share)
    }

    /// The share of the waiting calls of one that uses the database of a tenant, which may hang. Waits for a moment until
    /// there is room.
    ///
    /// # Errors
    /// [`OperatorRefusal::TooManyWait`].
    async fn begin_to_use_database(&self) -> Result<Share<'_>, OperatorRefusal> {
        let deadline = Instant::now() + SHARE_WAIT;
        loop {
            if let Some(share) = self.api.waits.begin(&self.caller.name) {
                return Ok(share);
            }
            if Instant::now() >= deadline {
                return Err(OperatorRefusal::TooManyWait);
            }
            sleep(SHARE_INTERVAL).await;
        }
    }
}
