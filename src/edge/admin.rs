//! The operator's listener: `/metrics`, `/healthz` and `/readyz` over plain HTTP/1.1.
//!
//! Owns no state: liveness checks nothing, readiness reports what other modules already know, and metrics are
//! encoded on request. Reads only the method and path of a request, and no tenant's data passes here.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::accept::Acceptor;
use super::slots::Slots;
use crate::metrics::Metrics;

/// The maximum number of open connections.
///
/// Larger: clients of this port can use up the file descriptors of other clients. Smaller: two scrapers and a few
/// probes that keep their connections open lock an operator out.
pub const CONNECTIONS: usize = 64;

/// How long a connection may take for a head, including the time between two requests, and how long it may leave a
/// response unread.
///
/// Larger: forgotten connections hold descriptors for longer. Smaller: a scraper that polls every 30 s reconnects each
/// time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether the gateway should receive traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Whether it should. A part may be faulty while the gateway still serves.
    pub ready: bool,
    /// The state of each part in a few words (`ok`, `draining`), without secrets.
    pub parts: BTreeMap<&'static str, String>,
    /// The tenants that can't be fully served, and why.
    pub tenants: BTreeMap<String, Vec<String>>,
    /// The share of this node in the work for the tenants of a registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
}

/// The work for the tenants of a registry that is this node's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// How many tenants it looks after.
    pub keeper: usize,
    /// Of how many it is the deputy.
    pub deputy: usize,
    /// Between how many nodes the tenants are divided, this one included.
    pub nodes: usize,
}

/// Returns the current readiness without waiting for anything.
pub type ReadinessFn = Arc<dyn Fn() -> Readiness + Send + Sync>;

/// The running listener; dropping it closes the listener and its connections.
#[derive(Debug)]
#[must_use = "dropping it ends the listener"]
pub struct Admin {
    _accepting: AbortOnDropHandle<()>,
}

/// Serves the listener until the [`Admin`] is dropped. Drop it after the drain, so that an operator can watch the
/// drain.
///
/// # Panics
/// If called outside a Tokio runtime.
pub fn serve(listener: TcpListener, metrics: Metrics, readiness: ReadinessFn) -> Admin {
    let accepting = tokio::spawn(accept_all(listener, metrics, readiness));
    Admin { _accepting: AbortOnDropHandle::new(accepting) }
}

async fn accept_all(listener: TcpListener, metrics: Metrics, readiness: ReadinessFn) {
    let mut acceptor = Acceptor::new(listener, IDLE_TIMEOUT);
    let mut slots = Slots::new(CONNECTIONS);
    loop {
        let (stream, _) = acceptor.next().await;
        slots.room().await;
        let (metrics, readiness) = (metrics.clone(), Arc::clone(&readiness));
        slots.serve(|slot| async move {
            let served_slot = Arc::clone(&slot);
            let service = service_fn(move |request| {
                let _busy = served_slot.begin();
                let response = answer(&request, &metrics, &readiness);
                async { Ok::<_, Infallible>(response) }
            });
            let mut settings = http1::Builder::new();
            settings.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT);
            let connection = settings.serve_connection(TokioIo::new(stream), service);
            if let Err(error) = slot.drive(connection, http1::Connection::graceful_shutdown).await {
                tracing::debug!(reason = &error as &dyn std::error::Error, "admin connection failed");
            }
        });
    }
}

/// Answers a request. hyper omits the body for HEAD.
fn answer<B>(request: &Request<B>, metrics: &Metrics, readiness: &ReadinessFn) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if !matches!(path, "/healthz" | "/readyz" | "/metrics") {
        return json(StatusCode::NOT_FOUND, &json!({"message": "Not found"}));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refusal = json(StatusCode::METHOD_NOT_ALLOWED, &json!({"message": "Method not allowed"}));
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match path {
        "/metrics" => {
            metrics.ready.set(readiness().ready.into());
            respond(StatusCode::OK, "text/plain; version=0.0.4", metrics.encode())
        }
        "/readyz" => {
            let readiness = readiness();
            let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            json(status, &readiness)
        }
        _ => json(StatusCode::OK, &json!({"status": "ok"})),
    }
}

fn json(status: StatusCode, body: &impl Serialize) -> Response<Full<Bytes>> {
    respond(status, "application/json", serde_json::to_vec(body).expect("text and booleans are always JSON"))
}

fn respond(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    // A probe through a proxy must not get a cached response.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
