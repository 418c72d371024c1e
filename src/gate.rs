//! The way of a request, once and in order. Read this first.
//!
//! ```text
//! a place → resolve tenant → /api/v1 → verify token → admit (quota) → route and method → read body → handle → respond
//! ```
//!
//! The order is a promise: an unauthenticated request learns nothing about which routes exist and can't spend the
//! account's budget, and all that passed the token check spends one request, whatever becomes of it. Passing yields
//! [`Admitted`], which only this module can make and every handler asks for, so that a handler that nobody authenticated
//! does not compile.

mod allowance;
mod bad_tokens;
mod body;
mod budget;
mod coding;
mod encoding;
mod head;
mod in_flight;
mod inflow;
mod network;
mod redirect;
mod respond;
mod unread;
mod verify;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{HeaderValue, STRICT_TRANSPORT_SECURITY};
use http::{Method, Request, Response, request};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use jiff::Timestamp;
use tracing::{Instrument, Span};

use crate::api::{self, Call};
use crate::config::RequestLimits;
use crate::error::Refusal;
use crate::host::CertificateNames;
use crate::memory::{Memory, MemoryShare};
use crate::metrics::Metrics;
use crate::quota::{Budget, Quota, Telling, Usage};
use crate::reply::Reply;
use crate::store::Spent;
use crate::telemetry::{self, step};
use crate::tenant::{Directory, Tenant, Token, TokenVerifier, Turn};
use allowance::Allowance;
pub use bad_tokens::BadTokens;
use coding::Announced;
use head::Authority;
pub use head::{FirstAuthority, HeadFault, Origin};
pub use in_flight::InFlight;
use inflow::Received;
pub use network::network_of;
use respond::RequestId;

/// What the edge knows of the connection that a request came on.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Where the caller connected from, or the balancer that does not say so, as the log shows it: `IP:PORT`.
    pub client: Box<str>,
    /// The caller's address, where it is known: what limits by address count.
    pub caller: Option<IpAddr>,
    /// How it is protected on its way.
    pub transport: Transport,
    /// Whom its requests are for, mostly.
    pub authority: FirstAuthority,
}

/// How a connection is protected, which decides what may be asked on it.
#[derive(Clone, Debug)]
pub enum Transport {
    /// By TLS that ends here, with a certificate of these names.
    Tls(Arc<CertificateNames>),
    /// By a balancer before us, which chose a certificate that we don't know.
    Balancer,
    /// Not at all: callers are told where to go instead.
    Redirect {
        /// The port of the addresses they are sent to.
        https_port: u16,
    },
}

impl Transport {
    /// Whether the client meets HTTPS: browsers must not be sent `Strict-Transport-Security` over anything else (RFC 6797,
    /// section 7.2). To a client, the balancer's TLS is the gateway's.
    fn is_protected(&self) -> bool {
        match self {
            Self::Tls(_) | Self::Balancer => true,
            Self::Redirect { .. } => false,
        }
    }
}

/// Where everything of an account's API stands.
const API: &str = "/api/v1";

/// A request that passed the gate: whose it is.
#[derive(Debug)]
pub struct Admitted {
    tenant: Arc<Tenant>,
    token: Arc<Token>,
    usage: Option<Usage>,
    /// Its place among the tenant's requests in flight.
    _turn: Turn,
}

impl Admitted {
    /// The tenant whose account this is.
    #[must_use]
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// The token that it came with.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Who used the account's budget, where the path tells it ([`api::tells_usage`]).
    #[must_use]
    pub fn usage(&self) -> Option<&Usage> {
        self.usage.as_ref()
    }
}

/// A request whose token was found good.
struct Verified<'r> {
    tenant: Arc<Tenant>,
    token: Arc<Token>,
    authority: &'r Authority<'r>,
    /// Behind [`API`].
    path: &'r str,
}

/// What became known of a request on its way, for the answer's headers and the log.
#[derive(Debug, Default)]
struct Trail {
    tenant: Option<Arc<Tenant>>,
    token: Option<Arc<Token>>,
    budget: Option<Budget>,
    route: Option<&'static str>,
    /// Query parameters that the route does not know.
    ignored: Option<api::Ignored>,
    /// The same of the body's keys.
    ignored_in_body: OnceLock<api::Ignored>,
    /// What its statements took.
    database: Spent,
    /// Its span from the token check on, where that is another one.
    span: Option<Span>,
}

/// The gate that every request passes.
#[derive(Debug)]
pub struct Gate {
    /// The tenants.
    pub directory: Arc<ArcSwap<Directory>>,
    /// Their budgets.
    pub quota: Quota,
    /// Their tokens.
    pub tokens: TokenVerifier,
    /// How much a request may hold, and how long it may take.
    pub limits: RequestLimits,
    /// The value of `Strict-Transport-Security`, if responses have one.
    pub hsts: ArcSwapOption<HeaderValue>,
    /// The requests that are worked on.
    pub in_flight: InFlight,
    /// What bodies and answers hold.
    pub memory: Arc<Memory>,
    /// The addresses that try tokens.
    pub bad_tokens: BadTokens,
    /// What is counted.
    pub metrics: Metrics,
}

impl Gate {
    /// Leads one request through all steps. Never fails: a refusal is an answer too.
    pub async fn pass(&self, connection: &Connection, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let began = Instant::now();
        let (head, mut body) = request.into_parts();
        let id = RequestId::of(&head.headers);
        let mut trail = Trail::default();

        let span = telemetry::request_span(&head.headers, &head.method);
        let place = self.in_flight.enter();
        let outcome = match place {
            Some(_) => {
                let database = trail.database.clone();
                let way = pin!(self.lead(connection, &head, &mut body, &mut trail));
                database.measure(contain(way)).instrument(span.clone()).await
            }
            None => Err(Refusal::Overloaded),
        };
        let (reply, refusal) = match outcome {
            Ok(reply) => (reply, None),
            Err(refusal) => (refusal.reply(), Some(refusal)),
        };
        // Each names its own before those that are named: the query's come first.
        let ignored = [trail.ignored_in_body.take(), trail.ignored.take()];
        let reply = ignored.into_iter().flatten().fold(reply, |reply, ignored| ignored.name_in(reply));
        if let (None, Some(tenant)) = (trail.budget, &trail.tenant) {
            trail.budget = Some(self.look(tenant).await);
        }
        let status = reply.status;
        let mut response = respond::dress(reply, &head, id, trail.budget).await;
        if let Some(hsts) = &*self.hsts.load()
            && connection.transport.is_protected()
        {
            response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, HeaderValue::clone(hsts));
        }
        let took = began.elapsed();
        self.metrics.requests.count(trail.route.unwrap_or("none"), &head.method, status, took);
        if let Some(tenant) = &trail.tenant {
            self.metrics.tenants.count(&tenant.meter, status, took);
        }
        let tenant = trail.tenant.as_ref().map(|tenant| &*tenant.slug);
        telemetry::end_request(
            trail.span.as_ref().unwrap_or(&span),
            trail.route,
            status,
            tenant,
            respond::id_of(&response),
        );
        respond::log(connection, &head, &trail, &response, refusal.as_ref(), took);
        // From here on the request only discards its unread body, which takes no place among those in flight.
        drop(place);
        if !body.is_end_stream() {
            unread::settle(&head, body, &mut response).await;
        }
        response
    }

    async fn lead(
        &self,
        connection: &Connection,
        head: &request::Parts,
        body: &mut Incoming,
        trail: &mut Trail,
    ) -> Result<Reply, Refusal> {
        head::check_form(head)?;
        let authority = Authority::of(head, &connection.authority)?;
        let tenant = self.resolve(connection, &authority)?;
        if let Transport::Redirect { https_port } = connection.transport {
            head::check_size(head, &self.limits)?;
            trail.route = Some(redirect::NAME);
            return redirect::to_https(&authority, https_port, head);
        }
        tenant.prefetch();
        trail.tenant = Some(Arc::clone(&tenant));
        head::check_size(head, &self.limits)?;
        head::check_method(&head.method)?;

        let path = head.uri.path().strip_prefix(API).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let path = path.ok_or(Refusal::UnknownPath)?;
        let mut allowance = Allowance::of(self.limits.request);
        // A step is pinned where it stands: handed on by value, it would take its place again in each future around it.
        let token = allowance.spend(pin!(self.verify(connection, &tenant, head).instrument(step!("verify")))).await?;
        trail.token = Some(Arc::clone(&token));
        trail.span = telemetry::authenticated_span(&head.headers, &head.method);
        let span = trail.span.clone();
        let rest =
            pin!(self.serve(Verified { tenant, token, authority: &authority, path }, head, body, allowance, trail));
        match span {
            Some(span) => rest.instrument(span).await,
            None => rest.await,
        }
    }

    /// The steps from the token check on.
    async fn serve(
        &self,
        Verified { tenant, token, authority, path }: Verified<'_>,
        head: &request::Parts,
        body: &mut Incoming,
        mut allowance: Allowance,
        trail: &mut Trail,
    ) -> Result<Reply, Refusal> {
        let telling = if api::tells_usage(path) { Telling::Usage } else { Telling::Nothing };
        let admitting = self.admit(&tenant, &token, telling, trail).instrument(step!("admit"));
        let (budget, usage) = allowance.spend(pin!(admitting)).await?;
        trail.budget = Some(budget);
        tenant.tokens.last_used.note(&token, Timestamp::now());
        let turn = tenant.in_flight.enter().ok_or_else(|| {
            tenant.database.refuse_in_flight();
            Refusal::TenantBusy
        })?;
        let admitted = Admitted { tenant, token, usage, _turn: turn };

        // HEAD works wherever GET does; the answer's body is left out when it is sent.
        let method = if head.method == Method::HEAD { &Method::GET } else { &head.method };
        let route = api::route(method, path)?;
        trail.route = Some(route.name());
        trail.ignored = head.uri.query().map(|query| route.ignored(query));
        let has_body = route.takes_body() && !body.is_end_stream();
        let announced = if has_body { Announced::of(&head.headers)? } else { Announced::JSON };
        let share = MemoryShare::new(&self.memory, &admitted.tenant.memory);
        let (limit, limits) = (route.body_limit(&self.limits), &self.limits);
        let Received { bytes: body, permit: _permit } =
            body::read(&head.headers, body, announced.coding, limit, limits, &share).await?;
        announced.check(&body)?;
        let call = Call {
            origin: authority.origin(),
            query: head.uri.query().unwrap_or_default(),
            body,
            ignored: &trail.ignored_in_body,
        };
        allowance.change(route.time_limit(&self.limits));
        let handling = api::handle(&admitted, route, call).instrument(step!("handle"));
        let serving = share.clone().serve(async { respond::hold(handling.await?, &share) });
        allowance.spend(pin!(serving)).await
    }

    fn resolve(&self, connection: &Connection, authority: &Authority<'_>) -> Result<Arc<Tenant>, Refusal> {
        // By the certificate and not by the SNI: wildcards and coalesced HTTP/2 connections are honest traffic.
        if let Transport::Tls(names) = &connection.transport
            && !names.covers(authority.host())
        {
            return Err(Refusal::Misdirected);
        }
        self.directory.load().resolve(authority.host()).cloned().ok_or(Refusal::UnknownAccount)
    }
}

/// Turns a panic on the way into a refusal: it costs its own request alone, and that is answered.
async fn contain(way: impl Future<Output = Result<Reply, Refusal>>) -> Result<Reply, Refusal> {
    // What the way shares with other requests is behind locks and atomics that are whole between any two statements.
    AssertUnwindSafe(way).catch_unwind().await.unwrap_or_else(|panic| Err(Refusal::Panicked(text_of(&*panic))))
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
        let way = async {
            tokio::task::yield_now().await;
            with();
            Err(Refusal::UnknownPath)
        };
        contain(way).await.expect_err("a refusal")
    }

    #[tokio::test]
    async fn a_panic_becomes_an_answer_that_does_not_tell_of_it() {
        for (refusal, text) in [
            (fail(|| panic!("MARKER")).await, "MARKER"),
            (fail(|| panic!("{} {}", "MARKER", 7)).await, "MARKER 7"),
            (fail(|| std::panic::panic_any(7)).await, "a panic without a text"),
        ] {
            assert!(matches!(&refusal, Refusal::Panicked(told) if told == text), "{refusal:?}");
            let reply = refusal.reply();
            assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
            assert_eq!(&*reply.body, br#"{"message":"Server Error"}"#);
        }
    }

    #[tokio::test]
    async fn what_does_not_panic_is_left_as_it_is() {
        assert!(matches!(fail(|| {}).await, Refusal::UnknownPath));
    }
}
