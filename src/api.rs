//! The API: the table of endpoints on one page, and one file per resource.
//!
//! Every handler takes an [`Admitted`], so none runs for a request that did not pass the gate. Knows neither sockets
//! nor SQL: a handler reads a [`Call`] and queries the tenant's store.

mod body;
mod changes;
mod dedup;
pub mod export;
mod filter;
mod forms;
mod groups;
mod id;
mod ignored;
mod json;
mod me;
mod members;
mod openapi;
mod page;
mod query;
mod reader;
mod requests;
mod submissions;
mod subscriptions;
mod time;
mod values;

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::endpoint::{BodyKind, Endpoint, Endpoints, Segments, TimeLimit, endpoint};
use crate::error::Refusal;
use crate::gate::{Admitted, Origin};
use crate::memory::RowMemory;
use crate::outbound::{Guard, TestRequests};
use crate::quota::{Budget, Quota};
use crate::reply::Reply;
use crate::seal::Seals;
use crate::store::{Scope, Store};
use crate::tenant::{NoticedWrites, SubscriptionChanges};

pub use ignored::IgnoredParameters;
pub use openapi::description;
pub use requests::RequestJson;
pub use submissions::{Envelope, EnvelopeBody, ShownSubmissions};
pub use subscriptions::new_secret;
pub use subscriptions::shown::{
    delivery_json, parse_form_id, parse_replay_start, parse_submission_id, parse_subscription_id, subscription_json,
};
pub use subscriptions::test::{EnvelopeOrigin, NoteRead, Untested, attempt_record, send_test};
pub use time::{parse_range_end, parse_range_start};

/// The part of a request that handlers read.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// What the path has in the places of the endpoint's.
    pub segments: Segments<'a>,
    /// The origin that the client used, for links.
    pub origin: Origin<'a>,
    /// Whether it is a HEAD request, which gets the headers alone.
    pub is_head: bool,
    /// The query string, still percent-encoded.
    pub query: &'a str,
    /// The complete body.
    pub body: Bytes,
    /// Where the rows that it reads are counted.
    pub rows: &'a RowMemory,
    /// Set to the unknown names in the body, for the response header, whether or not the body has faults.
    pub ignored: &'a OnceLock<IgnoredParameters>,
    /// The budgets, for what costs more than one request.
    pub quota: &'a Quota,
    /// Set to what remains of the budget if it did.
    pub spent: &'a OnceLock<Budget>,
    /// Cancelled when the gateway stops: a request that waits for something is answered then.
    pub stopping: &'a CancellationToken,
    /// Decides which targets subscriptions may have.
    pub targets: &'a Guard,
    /// Tests receivers.
    pub tests: &'a TestRequests,
    /// Seals the secrets of subscriptions.
    pub seals: &'a Seals,
    /// Takes that subscriptions changed.
    pub subscription_changes: &'a SubscriptionChanges,
    /// Wakes requests that wait for a change.
    pub noticed_writes: &'a Arc<NoticedWrites>,
}

impl<'a> Call<'a> {
    /// The tenant's open database, as far as the token reaches, which counts the rows of this request.
    async fn store(&self, admitted: &Admitted) -> Result<Store, Refusal> {
        let store = admitted.tenant().database.store().await;
        let store = store.map_err(|error| Refusal::DatabaseUnavailable(Arc::new(error)))?;
        let token = admitted.token();
        Ok(store.counting(self.rows).of_token(token.id, token.reach()))
    }

    /// The id in the path, as written there.
    fn id(&self) -> &'a str {
        self.segments.get("id")
    }
}

/// Carries out a request that passed the gate. Boxed, so that not every request future is as large as the largest.
pub type Handler = for<'a> fn(&'a Admitted, Call<'a>) -> BoxFuture<'a, Result<Reply, Refusal>>;

/// What an endpoint does, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct Action {
    /// The scopes that a token needs, all of them. The refusal names the first one that it lacks.
    pub scopes: &'static [Scope],
    /// Carries the request out.
    pub handler: Handler,
}

/// An action for tokens with some scopes.
const fn by(scopes: &'static [Scope], handler: Handler) -> Action {
    Action { scopes, handler }
}

macro_rules! get {
    ($path:literal, $scopes:expr, $handler:path) => {
        endpoint!(GET "" $path, by($scopes, |admitted, call| Box::pin(async move { $handler(admitted, &call).await })))
    };
}

macro_rules! post {
    ($path:literal, $scopes:expr, $handler:path) => {
        endpoint!(POST "" $path, by($scopes, |admitted, call| Box::pin(async move { $handler(admitted, &call).await })))
    };
}

macro_rules! delete {
    ($path:literal, $scopes:expr, $handler:path) => {
        endpoint!(DELETE "" $path, by($scopes, |admitted, call| Box::pin(async move { $handler(admitted, &call).await })))
    };
}

const ANY: &[Scope] = &[];
const FORMS: &[Scope] = &[Scope::FormsRead];
const SUBMISSIONS: &[Scope] = &[Scope::SubmissionsRead];
const GROUPS: &[Scope] = &[Scope::GroupsRead];
const WRITE_GROUPS: &[Scope] = &[Scope::GroupsWrite];
const WEBHOOKS: &[Scope] = &[Scope::WebhooksManage];
/// What shows the whole account.
const ALL: &[Scope] = &[Scope::All];
/// What shows or sends submissions.
const WEBHOOKS_AND_SUBMISSIONS: &[Scope] = &[Scope::WebhooksManage, Scope::SubmissionsRead];

/// The parameters of an export.
const EXPORT: &[&str] = &["format", "form", "since", "after", "as_of", "excel", "raw", "fields"];

/// Every endpoint; paths are relative to `/api/v1`. Query parameters that an endpoint does not know are ignored, and listed
/// in a response header.
pub static ENDPOINTS: Endpoints<Action> = Endpoints::new(&TABLE);

static TABLE: [Endpoint<Action>; 29] = [
    endpoint!(GET "" "/me", by(ANY, |admitted, _| Box::pin(me::show(admitted)))),
    endpoint!(GET "" "/openapi.json", by(ANY, |admitted, call| Box::pin(async move { Ok(openapi::show(admitted, &call)) })))
        .with_etag(),
    get!("/form", FORMS, forms::list).query(&["page"]).with_etag(),
    get!("/form/{id}", FORMS, forms::show).with_etag(),
    post!("/submission", SUBMISSIONS, submissions::search)
        .query(&["page", "cursor", "limit", "fields"])
        .body(BodyKind::Ordinary),
    get!("/submission/changes", SUBMISSIONS, changes::list)
        .query(&["cursor", "limit", "forms", "wait", "fields"])
        .time(TimeLimit::Waiting(changes::MAX_WAIT)),
    get!("/submission/export", SUBMISSIONS, export::export).query(EXPORT),
    post!("/submission/export", SUBMISSIONS, export::export).query(EXPORT).body(BodyKind::Ordinary),
    get!("/submission/{id}", SUBMISSIONS, submissions::show).query(&["fields"]).with_etag(),
    get!("/submission/{id}/readers", ALL, submissions::readers::list),
    get!("/group", GROUPS, groups::list).query(&["managed", "external_id", "page"]),
    endpoint!(PUT "" "/group", by(WRITE_GROUPS, |admitted, call| Box::pin(groups::write(admitted, call))))
        .query(&["dry_run", "confirm", "report"])
        .body(BodyKind::Group)
        .time(TimeLimit::Group),
    get!("/group/{id}", GROUPS, groups::show).query(&["page"]).with_etag(),
    delete!("/group/{id}", WRITE_GROUPS, groups::delete),
    post!("/group/{id}/managed_by", WRITE_GROUPS, groups::managing::give).body(BodyKind::Ordinary),
    post!("/group/{id}/held", WRITE_GROUPS, groups::managing::decide).body(BodyKind::Ordinary),
    get!("/request", ALL, requests::list).query(&["token", "status", "since", "cursor", "limit"]),
    get!("/subscribe", WEBHOOKS, subscriptions::list).query(&["page"]),
    post!("/subscribe", WEBHOOKS_AND_SUBMISSIONS, subscriptions::subscribe).body(BodyKind::Ordinary),
    get!("/subscribe/sample", WEBHOOKS_AND_SUBMISSIONS, subscriptions::test::sample).query(&["event", "form"]),
    get!("/subscribe/{id}", WEBHOOKS, subscriptions::show),
    delete!("/subscribe/{id}", WEBHOOKS, subscriptions::delete),
    post!("/subscribe/{id}/pause", WEBHOOKS, subscriptions::managing::pause),
    post!("/subscribe/{id}/resume", WEBHOOKS, subscriptions::managing::resume),
    post!("/subscribe/{id}/rotate", WEBHOOKS, subscriptions::managing::rotate).body(BodyKind::Ordinary),
    post!("/subscribe/{id}/replay", WEBHOOKS_AND_SUBMISSIONS, subscriptions::replay::replay).body(BodyKind::Ordinary),
    get!("/subscribe/{id}/deliveries", WEBHOOKS_AND_SUBMISSIONS, subscriptions::deliveries::list)
        .query(&["status", "page"]),
    post!("/subscribe/{id}/test", WEBHOOKS_AND_SUBMISSIONS, subscriptions::test::test),
    post!("/unsubscribe", WEBHOOKS, subscriptions::unsubscribe).body(BodyKind::Ordinary),
];

/// Whether the endpoint at a path reports usage by token. It is needed before admission, so that Redis returns usage
/// in the same round trip.
#[must_use]
pub fn reports_usage(path: &str) -> bool {
    path.strip_suffix('/').unwrap_or(path) == "/me"
}
