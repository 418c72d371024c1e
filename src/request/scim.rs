//! The steps of a SCIM request after the token check, in the order of those of the API.

use std::pin::pin;

use http::request;
use hyper::body::Incoming;
use tracing::Instrument;

use super::time_budget::TimeBudget;
use super::{API, NO_ROUTE, Pipeline, ReceivedBody, RequestContext, Verified, body, respond};
use crate::endpoint::Matched;
use crate::error::Refusal;
use crate::memory::{MemoryShare, RowMemory};
use crate::quota::{Interface, ReportUsage};
use crate::reply::Reply;
use crate::scim::{self, Call, ENDPOINTS, SCOPES};
use crate::telemetry::step;

/// What a request is for, by its path.
pub(super) fn interface_of(path: &str) -> Interface {
    if scim::path_below(path).is_some() { Interface::Scim } else { Interface::Api }
}

/// The path below that of the interface.
pub(super) fn path_below(interface: Interface, path: &str) -> Option<&str> {
    match interface {
        Interface::Api => path.strip_prefix(API).filter(|rest| rest.is_empty() || rest.starts_with('/')),
        Interface::Scim => scim::path_below(path),
    }
}

/// The reply in the type that the client takes.
pub(super) fn with_type(reply: Reply, interface: Interface, head: &request::Parts) -> Reply {
    match interface {
        Interface::Api => reply,
        Interface::Scim => Reply { content: scim::content_type(&head.headers), ..reply },
    }
}

impl Pipeline {
    /// Serves a request of a directory.
    pub(super) async fn provision(
        &self,
        Verified { tenant, token, authority, path, caller }: Verified<'_>,
        head: &request::Parts,
        body: &mut Incoming,
        mut time: TimeBudget,
        context: &mut RequestContext,
    ) -> Result<Reply, Refusal> {
        let of_scim = (Interface::Scim, ReportUsage::No);
        let admitting = self.gate.admit(tenant, token, of_scim, &mut context.budget).instrument(step!("admit"));
        let admitted = time.run(pin!(admitting)).await?;

        let found = ENDPOINTS.find(&head.method, path);
        admitted.note_use(found.as_ref().map_or(NO_ROUTE, |found| found.endpoint.name), caller);
        let Matched { endpoint, segments } = found?;
        context.route = Some(endpoint.name);
        self.gate.limits.require(admitted.token(), SCOPES)?;
        let share = MemoryShare::new(&self.memory, &admitted.tenant().memory);
        let (limit, limits) = (endpoint.body.limit(&self.limits), &self.limits);
        let ReceivedBody { bytes: body, permit: _permit } =
            body::read_for(endpoint.body, &head.headers, body, limit, limits, &share).await?;
        let rows = RowMemory::new(share.clone());
        let query = head.uri.query().unwrap_or_default();
        let origin = authority.origin();
        let call = Call { segments, origin, query, headers: &head.headers, body, rows: &rows };
        time.set_limit(endpoint.time.of(&self.limits));
        let handling = (endpoint.handler)(&admitted, call).instrument(step!("handle"));
        let serving = async { respond::reserve(handling.await?, &share, &rows) };
        time.run(pin!(serving)).await
    }
}
