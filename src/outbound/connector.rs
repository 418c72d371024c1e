//! What the HTTP client opens its connections with: a guarded TCP connection, and TLS on it, within a time limit.
//!
//! The client of hyper-util keeps idle connections and repeats a request on a fresh connection only if nothing of it
//! was sent; hyper-rustls adds TLS and reports to the client which HTTP version ALPN selected. Neither of them knows
//! which addresses are safe: hyper-util's own connector resolves a name and connects to whatever it finds. Hence this
//! one. reqwest would bring redirects, cookies, proxies and decompression, all of which would have to be switched off.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use tower_service::Service;

use super::counted::{ConnectionCounter, CountedStream};
use super::dialer::Dialer;
use super::error::{DnsFault, Phase, SendError, TlsFault};
use super::target::Target;
use crate::deadline;

type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, SendError>> + Send>>;

/// Opens TLS connections.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    tls: HttpsConnector<TcpConnector>,
    /// For a connection. The client may finish opening one that no request waits for any more.
    limit: Duration,
}

/// Opens TCP connections.
#[derive(Clone, Debug)]
pub(super) struct TcpConnector {
    dialer: Arc<Dialer>,
    counter: Arc<ConnectionCounter>,
}

impl Connector {
    pub(super) fn new(dialer: Arc<Dialer>, counter: Arc<ConnectionCounter>, limit: Duration) -> Self {
        let config = dialer.tls();
        let mut tls = HttpsConnector::from((TcpConnector { dialer, counter }, config));
        tls.enforce_https();
        Self { tls, limit }
    }
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<CountedStream>>;
    type Error = SendError;
    type Future = Connecting<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, origin: Uri) -> Self::Future {
        let connecting = self.tls.call(origin);
        let limit = self.limit;
        Box::pin(async move {
            let connected = deadline::within(limit, deadline::ONCE_MORE, connecting).await;
            connected.ok_or(SendError::Timeout(Phase::Connection))?.map_err(|error| fault_of(&*error))
        })
    }
}

impl Service<Uri> for TcpConnector {
    type Response = TokioIo<CountedStream>;
    type Error = SendError;
    type Future = Connecting<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, origin: Uri) -> Self::Future {
        let Self { dialer, counter } = self.clone();
        Box::pin(async move {
            let target = Target::origin_of(&origin).map_err(|_| DnsFault::UnknownName)?;
            Ok(TokioIo::new(counter.count(dialer.dial(&target).await?)))
        })
    }
}

/// The fault of the TCP connector, if it has one; every other error is of TLS.
fn fault_of(error: &(dyn Error + Send + Sync + 'static)) -> SendError {
    match error.downcast_ref::<SendError>() {
        Some(error) => *error,
        None => TlsFault::of(error).into(),
    }
}
