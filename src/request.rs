//! The request path: every step of a request, once and in order. Start reading here.
//!
//! ```text
//! in flight → resolve tenant → verify token → admit (quota) → route → check scopes → read body → handle → respond
//! ```
//!
//! A request for the administration area leaves this order after the tenant is resolved ([`crate::administration`]).
//!
//! The order is a guarantee. An unauthenticated request can't find out which routes exist and can't spend the
//! account's budget. Every authenticated request counts against the budget, whatever its outcome. [`Gate`] decides
//! which requests pass, and [`api`] what a route answers. This module owns the order, how much memory and time a
//! request may take, and what every response carries.

mod body;
mod body_buffer;
mod coding;
mod conditional;
mod encoding;
mod in_flight;
mod noting;
mod read_by;
mod redirect;
mod respond;
mod scim;
mod streaming;
mod time_budget;
mod unread;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use futures_util::FutureExt;
use http::header::{HeaderValue, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, Response, StatusCode, request};
use hyper::body::{Body, Incoming};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::administration::{Administration, Area, MAX_FORM, Visit, WebhookTools, page_of_refusal};
use crate::api::{self, Call, IgnoredParameters};
use crate::config::RequestLimits;
use crate::domains::Domains;
use crate::endpoint::Matched;
use crate::error::Refusal;
use crate::gate::{Authority, Connection, Gate, Transport, check_form, check_method, check_size};
use crate::memory::{Memory, MemoryShare, RowMemory};
use crate::metrics::Metrics;
use crate::outbound::{Guard, TestRequests};
use crate::quota::{Budget, Interface, ReportUsage};
use crate::rare;
use crate::reply::{ContentType, Reply};
use crate::scim::reply_of_refusal;
use crate::seal::Seals;
use crate::store::DatabaseTime;
use crate::telemetry::{self, step};
use crate::tenant::{NoticedWrites, SubscriptionChanges, Tenant, Token};
pub(crate) use body::read_for as read_body;
pub(crate) use body_buffer::ReceivedBody;
use coding::Coding;
pub use in_flight::RequestsInFlight;
pub use noting::RequestLogSwitch;
use read_by::ReadBy;
use respond::RequestId;
pub use streaming::AnswerBody;
use time_budget::TimeBudget;

/// The path prefix of all routes of an account's API.
const API: &str = "/api/v1";

/// Takes the place of a route: the answer to a certificate authority.
const CHALLENGE: &str = "acme_challenge";

/// The name of no route.
const NO_ROUTE: &str = "none";

/// Takes every request from its parsed head to its response.
#[derive(Debug)]
pub struct Pipeline {
    /// Decides which requests pass.
    pub gate: Gate,
    /// How much a request may hold, and how long it may take.
    pub limits: RequestLimits,
    /// The value of `Strict-Transport-Security`, if responses have one.
    pub hsts: ArcSwapOption<HeaderValue>,
    /// The administration area.
    pub administration: Administration,
    /// The domains that get a certificate of their own: authorities verify them here.
    pub domains: Option<Arc<Domains>>,
    /// The requests being served.
    pub in_flight: RequestsInFlight,
    /// Cancelled when the gateway stops: requests that wait for something are answered then.
    pub stopping: CancellationToken,
    /// Memory held by request bodies and answers.
    pub memory: Arc<Memory>,
    /// Decides which targets subscriptions may have.
    pub targets: Arc<Guard>,
    /// Tests receivers.
    pub webhook_tests: TestRequests,
    /// Seals the secrets of subscriptions.
    pub seals: Seals,
    /// Takes that subscriptions changed.
    pub subscription_changes: SubscriptionChanges,
    /// Wakes requests that wait for a change.
    pub noticed_writes: Arc<NoticedWrites>,
    /// The log of each account's requests.
    pub request_log: RequestLogSwitch,
    /// The metrics.
    pub metrics: Metrics,
}

/// What is learned about a request, for the response's headers and the log.
#[derive(Debug, Default)]
struct RequestContext {
    tenant: Option<Arc<Tenant>>,
    token: Option<Arc<Token>>,
    budget: Option<Budget>,
    route: Option<&'static str>,
    /// What it is for, which decides whose budget it spends and reports.
    interface: Interface,
    /// The administration area, if the request is for it: it spends and reports no budget.
    area: Option<Area>,
    /// Query parameters that the route does not know.
    ignored: Option<IgnoredParameters>,
    /// Keys of the body that the route does not know.
    ignored_in_body: OnceLock<IgnoredParameters>,
    /// What remains of the budget, if it spent more than one request.
    spent: OnceLock<Budget>,
    /// The time that its statements took.
    database: DatabaseTime,
    /// The span from the token check on, if it is a different one.
    span: Option<Span>,
}

/// A request with a valid token.
struct Verified<'r> {
    tenant: Arc<Tenant>,
    token: Arc<Token>,
    authority: &'r Authority<'r>,
    /// Below [`API`], or below that of SCIM.
    path: &'r str,
    caller: Option<IpAddr>,
}

impl Pipeline {
    /// Serves one request. Never fails: a refusal is a response too.
    pub async fn serve(&self, connection: &Connection, request: Request<Incoming>) -> Response<AnswerBody> {
        let began = Instant::now();
        let (head, mut body) = request.into_parts();
        let id = RequestId::of(&head.headers);
        let interface = scim::interface_of(head.uri.path());
        let mut context = RequestContext { interface, ..RequestContext::default() };

        let span = telemetry::request_span(&head.headers, &head.method);
        let permit = self.in_flight.enter();
        let outcome = match permit {
            Some(_) => {
                let database = context.database.clone();
                let handling = pin!(self.handle(connection, &head, &mut body, &mut context));
                database.measure(contain(handling)).instrument(span.clone()).await
            }
            None => {
                context.area = self.administration.at(&head);
                Err(Refusal::Overloaded)
            }
        };
        let (reply, refusal) = match outcome {
            Ok(reply) => (reply, None),
            Err(refusal) => {
                let reply = match (&context.area, context.interface) {
                    (Some(area), _) => page_of_refusal(area, head.uri.path(), &refusal),
                    (None, Interface::Scim) => reply_of_refusal(&refusal),
                    (None, Interface::Api) => refusal.reply(),
                };
                (reply, Some(refusal))
            }
        };
        let reply = if context.area.is_none() { scim::with_type(reply, context.interface, &head) } else { reply };
        // Each of these inserts its names before the existing ones, so the query's come first.
        let ignored = [context.ignored_in_body.take(), context.ignored.take()];
        let reply = ignored.into_iter().flatten().fold(reply, |reply, ignored| ignored.add_to(reply));
        context.budget = context.spent.take().or(context.budget);
        if let (None, Some(tenant), None) = (context.budget, &context.tenant, &context.area) {
            context.budget = Some(self.gate.budget(tenant, context.interface).await);
        }
        let (status, rows) = (reply.status, reply.rows);
        let read_by = ReadBy::of(&reply, &head, &context);
        let mut response = respond::build(reply, &head, id, context.budget, self.limits.request, read_by).await;
        if let Some(hsts) = &*self.hsts.load()
            && connection.transport.is_protected()
        {
            response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, HeaderValue::clone(hsts));
        }
        let took = began.elapsed();
        self.metrics.requests.count(context.route.unwrap_or(NO_ROUTE), &head.method, status, took);
        if let Some(tenant) = &context.tenant {
            self.metrics.tenants.count(&tenant.meter, status, took);
        }
        let ended = noting::Ended { id: respond::id_of(&response), status, took, rows, refusal: refusal.as_ref() };
        self.request_log.note(connection, &head, &context, ended, &self.metrics.request_log);
        if let Some(tenant) = &context.tenant {
            tenant.write_behind_request();
        }
        let tenant = context.tenant.as_ref().map(|tenant| &*tenant.slug);
        telemetry::end_request(
            context.span.as_ref().unwrap_or(&span),
            context.route,
            status,
            tenant,
            respond::id_of(&response),
        );
        respond::log(connection, &head, &context, &mut response, refusal.as_ref(), took, &self.metrics.requests);
        // From here on the request only discards its unread body, which doesn't count as in flight.
        drop(permit);
        if !body.is_end_stream() {
            unread::settle(&head, body, &mut response).await;
        }
        response
    }

    async fn handle(
        &self,
        connection: &Connection,
        head: &request::Parts,
        body: &mut Incoming,
        context: &mut RequestContext,
    ) -> Result<Reply, Refusal> {
        check_form(head)?;
        let authority = Authority::of(head, &connection.authority)?;
        let tenant = self.gate.resolve(connection, &authority)?;
        if let Some(reply) = self.answer_authority(&authority, head).await {
            context.route = Some(CHALLENGE);
            return Ok(reply);
        }
        if let Transport::Redirect { https_port } = connection.transport {
            check_size(head, &self.limits)?;
            if self.administration.at(head).is_some_and(|area| area.is_link(head.uri.path())) {
                return Err(Refusal::UnknownPath);
            }
            context.route = Some(redirect::NAME);
            return redirect::to_https(&authority, https_port, head);
        }
        tenant.prefetch();
        context.tenant = Some(Arc::clone(&tenant));
        context.area = self.administration.at(head);
        check_size(head, &self.limits)?;
        check_method(&head.method)?;
        if let Some(area) = &context.area {
            let webhooks =
                WebhookTools { tests: &self.webhook_tests, seals: &self.seals, changes: &self.subscription_changes };
            let (tenant, authority, domains) = (&tenant, &authority, self.domains.as_deref());
            let rows = &RowMemory::new(MemoryShare::new(&self.memory, &tenant.memory));
            let logs_requests = self.request_log.is_on();
            let gate = &self.gate;
            let visit = Visit { gate, connection, tenant, authority, head, webhooks, domains, logs_requests, rows };
            return rare::boxed(|| self.administer(area, visit, body, &mut context.route)).await;
        }

        let path = scim::path_below(context.interface, head.uri.path()).ok_or(Refusal::UnknownPath)?;
        let mut time = TimeBudget::of(self.limits.request);
        // Steps are pinned here: passed by value, each would take its size again in every enclosing future.
        let token = time.run(pin!(self.gate.verify(connection, &tenant, head).instrument(step!("verify")))).await?;
        context.token = Some(Arc::clone(&token));
        context.span = telemetry::authenticated_span(&head.headers, &head.method);
        let span = context.span.clone();
        let verified = Verified { tenant, token, authority: &authority, path, caller: connection.caller };
        if context.interface == Interface::Scim {
            return rare::boxed(|| {
                let rest = self.provision(verified, head, body, time, context);
                rest.instrument(span.unwrap_or_else(Span::current))
            })
            .await;
        }
        let rest = pin!(self.handle_verified(verified, head, body, time, context));
        match span {
            Some(span) => rest.instrument(span).await,
            None => rest.await,
        }
    }

    /// The answer to an authority that verifies a host (RFC 8555, section 8.3), by any listener and without TLS.
    async fn answer_authority(&self, authority: &Authority<'_>, head: &request::Parts) -> Option<Reply> {
        let domains = self.domains.as_ref().filter(|_| [Method::GET, Method::HEAD].contains(&head.method))?;
        let answer = domains.http_response(authority.host(), head.uri.path()).await?;
        // The path is the stranger's, and so a part of the document is too.
        let reply = Reply::of_type(StatusCode::OK, ContentType::Octets, answer.into());
        Some(reply.with_header(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")))
    }

    /// The steps of a request for the administration area.
    async fn administer(
        &self,
        area: &Area,
        visit: Visit<'_>,
        body: &mut Incoming,
        name: &mut Option<&'static str>,
    ) -> Result<Reply, Refusal> {
        if let Some(reply) = area.redirect(&visit) {
            *name = Some(redirect::NAME);
            return Ok(reply);
        }
        let found = area.find(visit.head)?;
        *name = Some(found.endpoint.name);
        let share = MemoryShare::new(&self.memory, &visit.tenant.memory);
        let ReceivedBody { bytes, permit: _permit } = if found.endpoint.method == Method::POST && !body.is_end_stream()
        {
            body::read(&visit.head.headers, body, Coding::Identity, MAX_FORM, &self.limits, &share).await?
        } else {
            ReceivedBody::default()
        };
        let answering = area.answer(visit, found, bytes);
        let serving = async { respond::reserve(answering.await?, &share, visit.rows) };
        TimeBudget::of(self.limits.request).run(pin!(serving)).await
    }

    /// The steps after the token check.
    async fn handle_verified(
        &self,
        Verified { tenant, token, authority, path, caller }: Verified<'_>,
        head: &request::Parts,
        body: &mut Incoming,
        mut time: TimeBudget,
        context: &mut RequestContext,
    ) -> Result<Reply, Refusal> {
        let report = if api::reports_usage(path) { ReportUsage::Yes } else { ReportUsage::No };
        let of_api = (Interface::Api, report);
        let admitting = self.gate.admit(tenant, token, of_api, &mut context.budget).instrument(step!("admit"));
        let admitted = time.run(pin!(admitting)).await?;

        let found = api::ENDPOINTS.find(&head.method, path);
        admitted.note_use(found.as_ref().map_or(NO_ROUTE, |found| found.endpoint.name), caller);
        let Matched { endpoint, segments } = found?;
        context.route = Some(endpoint.name);
        self.gate.limits.require(admitted.token(), endpoint.handler.scopes)?;
        context.ignored = head.uri.query().map(|query| IgnoredParameters::from_query(query, endpoint.query));
        let share = MemoryShare::new(&self.memory, &admitted.tenant().memory);
        let (limit, limits) = (endpoint.body.limit(&self.limits), &self.limits);
        let ReceivedBody { bytes: body, permit: _permit } =
            body::read_for(endpoint.body, &head.headers, body, limit, limits, &share).await?;
        let rows = RowMemory::new(share.clone());
        let call = Call {
            segments,
            rows: &rows,
            origin: authority.origin(),
            is_head: head.method == Method::HEAD,
            query: head.uri.query().unwrap_or_default(),
            body,
            ignored: &context.ignored_in_body,
            quota: &self.gate.quota,
            spent: &context.spent,
            stopping: &self.stopping,
            targets: &self.targets,
            tests: &self.webhook_tests,
            seals: &self.seals,
            subscription_changes: &self.subscription_changes,
            noticed_writes: &self.noticed_writes,
        };
        time.set_limit(endpoint.time.of(&self.limits));
        let handling = (endpoint.handler.handler)(&admitted, call).instrument(step!("handle"));
        let serving = async {
            let reply = handling.await?;
            let reply = if endpoint.has_etag { conditional::answer(reply, &head.headers) } else { reply };
            respond::reserve(reply, &share, &rows)
        };
        time.run(pin!(serving)).await
    }
}

/// Turns a panic into a refusal, so that it fails only its own request, which still gets an answer.
async fn contain(handling: impl Future<Output = Result<Reply, Refusal>>) -> Result<Reply, Refusal> {
    // Requests share state only behind locks and atomics, which are consistent between any two statements.
    AssertUnwindSafe(handling).catch_unwind().await.unwrap_or_else(|panic| Err(Refusal::Panicked(text_of(&*panic))))
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().map(ToString::to_string).or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a text".to_owned())
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    async fn fail(with: impl FnOnce()) -> Refusal {
        let handling = async {
            tokio::task::yield_now().await;
            with();
            Err(Refusal::UnknownPath)
        };
        contain(handling).await.expect_err("a refusal")
    }

    #[tokio::test]
    async fn a_panic_becomes_a_response_that_does_not_reveal_it() {
        for (refusal, text) in [
            (fail(|| panic!("MARKER")).await, "MARKER"),
            (fail(|| panic!("{} {}", "MARKER", 7)).await, "MARKER 7"),
            (fail(|| std::panic::panic_any(7)).await, "a panic without a text"),
        ] {
            assert!(matches!(&refusal, Refusal::Panicked(cause) if cause == text), "{refusal:?}");
            let reply = refusal.reply();
            assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
            assert_eq!(&*reply.body, br#"{"message":"Server Error"}"#);
        }
    }

    #[tokio::test]
    async fn an_outcome_without_a_panic_is_unchanged() {
        assert!(matches!(fail(|| {}).await, Refusal::UnknownPath));
    }
}
