//! One connection, from the accepted socket to its close.
//!
//! Owns the steps of a connection (the client's address, TLS or plain, HTTP/1.1 or HTTP/2) and hyper's settings.
//! [`ConnectionDriver`] ends connections, and the gate owns the content of requests and responses.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Either;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::activity::Activity;
use super::drain::Lifecycle;
use super::driver::ConnectionDriver;
use super::executor::{Http2Executor, Poller};
use super::frames::Frames;
use super::framing::Framing;
use super::head_filter::HeadFilter;
use super::proxy::{self, BadHeader};
use super::socket::Socket;
use super::tls::{self, Protocol, TlsConnection};
use super::{Edge, Serve};
use crate::config::ConnectionLimits;
use crate::config::{ListenConfig, ListenProtocol};
use crate::gate::{Connection, FirstAuthority, Transport};
use crate::rare;
use crate::request::AnswerBody;

/// Serves one accepted socket until it is closed.
pub(super) async fn serve<S: Serve>(
    mut stream: TcpStream,
    peer: SocketAddr,
    entry: Arc<ListenConfig>,
    edge: Arc<Edge<S>>,
    lifecycle: Lifecycle,
) {
    let accepted = Instant::now();
    // A drain does not wait for a client that sends no request soon.
    let too_late = lifecycle.drain_grace_over(accepted + edge.limits.drain_grace);
    let identified = tokio::select! {
        biased;
        () = too_late => None,
        client = identify(&mut stream, peer, &entry, &edge) => client,
    };
    let Some((client, caller)) = identified else { return };
    let permit = caller.map(|caller| edge.addresses.enter(caller));
    if matches!(permit, Some(None)) {
        edge.metrics.edge.connections_refused.with_label_values(&["address"]).inc();
        return;
    }
    let accepted_connection = AcceptedConnection { client, caller, accepted, edge: &edge, lifecycle: &lifecycle };
    match entry.protocol {
        ListenProtocol::Tls => accepted_connection.serve_tls(stream).await,
        ListenProtocol::Http1 => accepted_connection.serve_plain(stream, Transport::Balancer).await,
        ListenProtocol::Http2 => accepted_connection.serve_plain_http2(stream).await,
        ListenProtocol::Redirect { https_port } => {
            accepted_connection.serve_plain(stream, Transport::Redirect { https_port }).await;
        }
    }
}

/// Returns the client's address (the peer's, or the one that a balancer names), and the address that limits apply
/// to, unless that is a balancer's. Returns nothing if a balancer sends no valid header in time.
async fn identify<S>(
    stream: &mut TcpStream,
    peer: SocketAddr,
    entry: &ListenConfig,
    edge: &Edge<S>,
) -> Option<(SocketAddr, Option<IpAddr>)> {
    // A listener on `[::]` sees IPv4 peers as IPv6 ones. Limits, logs and the networks of balancers need one form.
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    if !proxy::is_expected(peer.ip(), &entry.proxies) {
        let is_balancer = matches!(entry.protocol, ListenProtocol::Http1 | ListenProtocol::Http2);
        return Some((peer, (!is_balancer).then_some(peer.ip())));
    }
    let named = timeout(edge.limits.handshake, proxy::read_client(stream, peer)).await;
    match named.unwrap_or(Err(BadHeader::TimedOut)) {
        Ok(client) => {
            let client = SocketAddr::new(client.ip().to_canonical(), client.port());
            // If the header names no client, the balancer itself connects, as for a health check.
            Some((client, (client != peer).then_some(client.ip())))
        }
        Err(refused) => {
            edge.metrics.edge.connections_refused.with_label_values(&["proxy"]).inc();
            tracing::debug!(%peer, reason = &refused as &dyn std::error::Error, "a balancer's connection is refused");
            None
        }
    }
}

/// A connection of which only the client's address is known.
struct AcceptedConnection<'a, S> {
    client: SocketAddr,
    caller: Option<IpAddr>,
    accepted: Instant,
    edge: &'a Edge<S>,
    lifecycle: &'a Lifecycle,
}

impl<'a, S: Serve> AcceptedConnection<'a, S> {
    async fn serve_tls(self, stream: TcpStream) {
        let (client, edge) = (self.client, self.edge);
        let activity = Activity::new(self.accepted, self.edge.limits);
        let socket = Socket::new(stream, Arc::clone(&activity), edge.limits);
        // An idle connection keeps no space for its handshake.
        let handshake = rare::boxed(|| tls::handshake(socket, &edge.certificates, self.time_left()));
        let Some(handshake) = self.before_drain_ends(handshake).await else { return };
        edge.metrics.edge.handshakes.with_label_values(&[result(&handshake)]).inc();
        match handshake {
            Ok(TlsConnection { stream, names, protocol }) => {
                edge.metrics.edge.handshake_duration.observe(self.accepted.elapsed().as_secs_f64());
                self.serve_http(stream, protocol, Transport::Tls(names), &activity).await;
            }
            Err(refused) => {
                tracing::debug!(%client, reason = &refused as &dyn std::error::Error, "handshake refused");
            }
        }
    }

    async fn serve_plain(self, stream: TcpStream, transport: Transport) {
        let activity = Activity::new(self.accepted, self.edge.limits);
        let socket = Socket::new(stream, Arc::clone(&activity), self.edge.limits);
        self.serve_http(socket, Protocol::Http1, transport, &activity).await;
    }

    async fn serve_plain_http2(self, stream: TcpStream) {
        // hyper would wait for the preface forever.
        let begun = async { timeout(self.time_left(), stream.peek(&mut [0])).await };
        if !matches!(self.before_drain_ends(begun).await, Some(Ok(Ok(1)))) {
            return;
        }
        let activity = Activity::new(self.accepted, self.edge.limits);
        let socket = Socket::new(stream, Arc::clone(&activity), self.edge.limits);
        self.serve_http(socket, Protocol::Http2, Transport::Balancer, &activity).await;
    }

    /// The time left until the connection must be ready for requests.
    fn time_left(&self) -> Duration {
        self.edge.limits.handshake.saturating_sub(self.accepted.elapsed())
    }

    /// Awaits the output, or returns nothing once a drain no longer waits for it.
    async fn before_drain_ends<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.lifecycle.drain_grace_over(self.accepted + self.edge.limits.drain_grace) => None,
            outcome = what => Some(outcome),
        }
    }

    /// Answers the requests on a stream that is ready for them. Not an `async fn`: its future would keep space for
    /// the stream, which hyper owns from here on.
    fn serve_http<IO>(
        self,
        stream: IO,
        protocol: Protocol,
        transport: Transport,
        activity: &Arc<Activity>,
    ) -> impl Future<Output = ()>
    where
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self { client, caller, edge, lifecycle, .. } = self;
        let label = label(protocol);
        let open = OpenConnection::new(edge.metrics.edge.connections_open.with_label_values(&[label]));
        let http = Arc::new(HttpService {
            connection: Connection {
                client: client.to_string().into(),
                caller,
                transport,
                authority: FirstAuthority::default(),
            },
            service: Arc::clone(&edge.service),
            activity: Arc::clone(activity),
            lifecycle: lifecycle.clone(),
        });
        let driver = ConnectionDriver { activity: Arc::clone(activity), metrics: &edge.metrics.edge, lifecycle };
        let driven = match protocol {
            Protocol::Http1 => {
                let stream = HeadFilter::new(stream, Arc::clone(activity), Framing::new(edge.limits.head_bytes));
                let refused = stream.refused();
                let answer = service_fn(move |mut request| {
                    refused.mark(&mut request);
                    Arc::clone(&http).answer(request)
                });
                let connection = http1_settings(&edge.limits).serve_connection(TokioIo::new(stream), answer);
                let shut_down = http1::Connection::graceful_shutdown;
                Either::Left(driver.drive(Poller::new(None), Box::pin(connection), shut_down))
            }
            Protocol::Http2 => {
                let executor = Http2Executor::default();
                let poller = Poller::new(Some(executor.clone()));
                let frames = Frames::new(stream, Arc::clone(activity), edge.limits.resets);
                // Boxed: each is moved several times before [`Http2Executor`] stores it.
                let answer = service_fn(move |request| Box::pin(Arc::clone(&http).answer(request)));
                let connection = http2_settings(&edge.limits, executor).serve_connection(TokioIo::new(frames), answer);
                // `Frames` sends the GOAWAY.
                let shut_down = |_: Pin<&mut _>| {};
                Either::Right(driver.drive(poller, Box::pin(connection), shut_down))
            }
        };
        driven.map(move |ended| {
            drop(open);
            if let Err(error) = ended {
                let reason = &error as &dyn std::error::Error;
                tracing::debug!(%client, protocol = label, reason, "connection failed");
            }
        })
    }
}

/// What the requests of a connection share.
struct HttpService<S> {
    connection: Connection,
    service: Arc<S>,
    activity: Arc<Activity>,
    lifecycle: Lifecycle,
}

impl<S: Serve> HttpService<S> {
    /// Answers a request, which counts as being handled from this call on, not from its first poll.
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<AnswerBody>, Infallible>> {
        let handling = self.activity.begin_request();
        async move {
            // HTTP/2 has the GOAWAY for this.
            let is_http1 = request.version() <= Version::HTTP_11;
            let mut response = self.service.serve(&self.connection, request).await;
            if is_http1 && (handling.is_last() || self.lifecycle.is_draining()) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            drop(handling);
            Ok(response)
        }
    }
}

/// How many bytes hyper may buffer beyond a head of the maximum size.
///
/// Larger: a connection buffers more. Smaller: hyper may find its buffer full before an allowed head is complete.
const BUFFER_BEYOND_HEAD: usize = 8 * 1024;

fn http1_settings(limits: &ConnectionLimits) -> http1::Builder {
    let mut settings = http1::Builder::new();
    settings
        .timer(TokioTimer::new())
        // `Activity` enforces this timeout: hyper's also runs between two requests.
        .header_read_timeout(None)
        .max_headers(ConnectionLimits::HEAD_FIELDS)
        .max_buf_size(limits.head_bytes + BUFFER_BEYOND_HEAD)
        // A client that closes its half is gone. Its handler is dropped, so that an abandoned search ends.
        .half_close(false);
    settings
}

fn http2_settings(limits: &ConnectionLimits, executor: Http2Executor) -> http2::Builder<Http2Executor> {
    let mut settings = http2::Builder::new(executor);
    settings
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(ConnectionLimits::STREAM_WINDOW)
        .initial_connection_window_size(ConnectionLimits::CONNECTION_WINDOW)
        .keep_alive_interval(ConnectionLimits::PING_EVERY)
        .keep_alive_timeout(ConnectionLimits::PING_ANSWER);
    settings
}

fn result<IO>(handshake: &Result<TlsConnection<IO>, tls::HandshakeError>) -> &'static str {
    match handshake {
        Ok(_) => "done",
        Err(tls::HandshakeError::UnknownName) => "unknown_name",
        Err(tls::HandshakeError::Verified) => "verified",
        Err(tls::HandshakeError::TimedOut) => "timeout",
        Err(tls::HandshakeError::Failed(_)) => "failed",
    }
}

fn label(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http1 => "http/1.1",
        Protocol::Http2 => "h2",
    }
}

/// Counts an open connection for as long as it lives.
struct OpenConnection(IntGauge);

impl OpenConnection {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
