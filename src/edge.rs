//! Everything between a TCP socket and the gate.
//!
//! ```text
//! accept → (PROXY header) → handshake | plain → HTTP/1.1 | HTTP/2 → Gate::pass → close
//! ```
//!
//! Owns sockets, TLS, the time that a peer may take, and the stop without a lost request. Knows no tenant beyond the
//! names in [`Certificates`], and reads of requests only where they begin and end. The invariant: whatever a peer does or
//! leaves undone, its connection ends after a time that [`ConnectionLimits`] names, except while a handler works on a request of its.

mod accept;
mod activity;
mod addresses;
pub mod admin;
mod attendant;
mod certificates;
mod connection;
mod drain;
mod executor;
mod frames;
mod framing;
mod heads;
mod listener;
mod opening;
mod parting;
mod pass_through;
mod proxy;
mod socket;
#[cfg(test)]
mod tests;
mod tls;

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::sync::Semaphore;

pub use self::addresses::Addresses;
pub use self::certificates::{Certificates, Pace, Prepared, ServedCertificate};
pub use self::drain::{Drained, Serving};
pub use self::listener::{BindError, Listener, bind, listen};
use crate::config::ConnectionLimits;
use crate::gate::Connection;
use crate::metrics::Metrics;
use crate::request::Pipeline;

/// What answers the requests of a connection: the request pipeline, or a handler of a test's own.
pub trait Serve: Send + Sync + 'static {
    /// Answers one request. It never fails: a refusal is an answer too.
    fn serve(
        &self,
        connection: &Connection,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

impl Serve for Pipeline {
    async fn serve(&self, connection: &Connection, request: Request<Incoming>) -> Response<Full<Bytes>> {
        Self::serve(self, connection, request).await
    }
}

/// The parts that a connection meets before the request pipeline.
#[derive(Debug)]
pub struct Edge<S = Pipeline> {
    /// What a handshake serves.
    pub certificates: Arc<Certificates>,
    /// What answers.
    pub service: Arc<S>,
    /// How long and how much a peer may take.
    pub limits: ConnectionLimits,
    /// Where handshakes and connections are counted.
    pub metrics: Metrics,
    /// How many connections each address has.
    pub addresses: Arc<Addresses>,
}

impl<S: Serve> Edge<S> {
    /// Serves every connection of the listeners until [`Serving::drain`], or until the [`Serving`] is dropped.
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    #[must_use = "dropping it cuts every connection"]
    pub fn serve(self, listeners: Vec<Listener>) -> Serving {
        let addresses = listeners.iter().filter_map(|listener| listener.socket.local_addr().ok()).collect();
        let slots = Arc::new(Semaphore::new(self.limits.connections));
        let serving = Serving::new(addresses, Arc::clone(&slots), self.limits.connections);
        let edge = Arc::new(self);
        for listener in listeners {
            let lifecycle = serving.lifecycle();
            let every = accept::every(listener, Arc::clone(&edge), Arc::clone(&slots), lifecycle.clone());
            lifecycle.spawn(every);
        }
        serving
    }
}
