//! Everything between a TCP socket and the gate.
//!
//! ```text
//! accept → (PROXY header) → handshake | plain → HTTP/1.1 | HTTP/2 → the steps of `request` → close
//! ```
//!
//! Owns sockets, TLS, the limits on a peer's time, and the drain, which loses no request. Knows tenants only as
//! names in [`Certificates`], and parses requests only far enough to find where they begin and end. Invariant:
//! whatever a peer does or fails to do, its connection is closed within a time set by [`ConnectionLimits`], unless
//! a handler is working on one of its requests.

mod accept;
mod activity;
mod addresses;
pub mod admin;
mod certificates;
mod connection;
mod drain;
mod driver;
mod executor;
mod first_settings;
mod frames;
mod framing;
mod goaway;
mod head_filter;
mod listener;
pub mod operator;
mod pass_through;
mod proxy;
mod slots;
mod socket;
#[cfg(test)]
mod tests;
mod tls;

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::sync::Semaphore;

pub use self::addresses::Addresses;
pub use self::certificates::{Certificates, CheckIntervals, PreparedCertificate, ServedCertificate};
pub use self::drain::{Drained, Serving};
pub use self::listener::{BindError, Listener, bind, listen};
use crate::config::ConnectionLimits;
use crate::gate::Connection;
use crate::metrics::Metrics;
use crate::request::{AnswerBody, Pipeline};

/// The service that answers the requests of a connection: the request pipeline, or a test's own handler.
pub trait Serve: Send + Sync + 'static {
    /// Answers one request. Infallible: a refusal is a response too.
    fn serve(
        &self,
        connection: &Connection,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<AnswerBody>> + Send;
}

impl Serve for Pipeline {
    async fn serve(&self, connection: &Connection, request: Request<Incoming>) -> Response<AnswerBody> {
        Self::serve(self, connection, request).await
    }
}

/// Everything that serving connections needs.
#[derive(Debug)]
pub struct Edge<S = Pipeline> {
    /// The certificates that handshakes serve.
    pub certificates: Arc<Certificates>,
    /// The service that answers requests.
    pub service: Arc<S>,
    /// The limits on a peer's time and bytes.
    pub limits: ConnectionLimits,
    /// The metrics of handshakes and connections.
    pub metrics: Metrics,
    /// The number of connections per client address.
    pub addresses: Arc<Addresses>,
}

impl<S: Serve> Edge<S> {
    /// Serves every connection of the listeners until [`Serving::drain`] is called or the [`Serving`] is dropped.
    ///
    /// # Panics
    /// If called outside a Tokio runtime.
    #[must_use = "dropping it cuts every connection"]
    pub fn serve(self, listeners: Vec<Listener>) -> Serving {
        let addresses = listeners.iter().filter_map(|listener| listener.socket.local_addr().ok()).collect();
        let permits = Arc::new(Semaphore::new(self.limits.connections));
        let serving = Serving::new(addresses, Arc::clone(&permits), self.limits.connections);
        let edge = Arc::new(self);
        for listener in listeners {
            let lifecycle = serving.lifecycle();
            let accepting = accept::accept_all(listener, Arc::clone(&edge), Arc::clone(&permits), lifecycle.clone());
            lifecycle.spawn(accepting);
        }
        serving
    }
}
