//! One connection, from the accepted socket to its close.
//!
//! Owns the way of a connection (who connects, TLS or none, HTTP/1.1 or HTTP/2) and the choice of hyper's settings. Its
//! end is [`Attendant`]'s, content of requests and responses the gate's.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::Either;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::activity::Activity;
use super::attendant::Attendant;
use super::drain::Lifecycle;
use super::executor::{Http2Executor, Poller};
use super::frames::Frames;
use super::heads::Heads;
use super::proxy::{self, BadHeader};
use super::socket::Socket;
use super::tls::{self, Protocol, Secured};
use super::{Edge, Serve};
use crate::config::ConnectionLimits;
use crate::config::{ListenConfig, ListenProtocol};
use crate::gate::{Connection, FirstAuthority, Transport};

/// Serves one accepted socket until it is closed.
pub(super) async fn serve<S: Serve>(
    mut stream: TcpStream,
    peer: SocketAddr,
    entry: Arc<ListenConfig>,
    edge: Arc<Edge<S>>,
    lifecycle: Lifecycle,
) {
    let accepted = Instant::now();
    // A stop does not wait for what is not asked soon.
    let too_late = lifecycle.last_call(accepted + edge.limits.last_call);
    let identified = tokio::select! {
        biased;
        () = too_late => None,
        client = identify(&mut stream, peer, &entry, &edge) => client,
    };
    let Some((client, caller)) = identified else { return };
    let slot = caller.map(|caller| edge.addresses.enter(caller));
    if matches!(slot, Some(None)) {
        edge.metrics.edge.connections_refused.with_label_values(&["address"]).inc();
        return;
    }
    let arrival = Arrival { client, caller, accepted, edge: &edge, lifecycle: &lifecycle };
    match entry.protocol {
        ListenProtocol::Tls => arrival.serve_tls(stream).await,
        ListenProtocol::Http1 => arrival.serve_plain(stream, Transport::Balancer).await,
        ListenProtocol::Http2 => arrival.serve_plain_http2(stream).await,
        ListenProtocol::Redirect { https_port } => {
            arrival.serve_plain(stream, Transport::Redirect { https_port }).await;
        }
    }
}

/// Who connects: the peer, or whom a balancer names; and the caller's address, where that is not a balancer's. Nothing for
/// a balancer that names nobody in time.
async fn identify<S>(
    stream: &mut TcpStream,
    peer: SocketAddr,
    entry: &ListenConfig,
    edge: &Edge<S>,
) -> Option<(SocketAddr, Option<IpAddr>)> {
    // A listener on `[::]` sees IPv4 peers as IPv6 ones; it is one address to limits, logs and balancers' networks.
    let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    if !proxy::is_expected(peer.ip(), &entry.proxies) {
        let is_balancer = matches!(entry.protocol, ListenProtocol::Http1 | ListenProtocol::Http2);
        return Some((peer, (!is_balancer).then_some(peer.ip())));
    }
    let named = timeout(edge.limits.handshake, proxy::read_client(stream, peer)).await;
    match named.unwrap_or(Err(BadHeader::TimedOut)) {
        Ok(client) => {
            let client = SocketAddr::new(client.ip().to_canonical(), client.port());
            // Without a name for the caller, it is the balancer that connects, as for a health check.
            Some((client, (client != peer).then_some(client.ip())))
        }
        Err(refused) => {
            edge.metrics.edge.connections_refused.with_label_values(&["proxy"]).inc();
            tracing::debug!(%peer, reason = &refused as &dyn std::error::Error, "a balancer's connection is refused");
            None
        }
    }
}

/// A connection whose caller is known, and nothing more.
struct Arrival<'a, S> {
    client: SocketAddr,
    caller: Option<IpAddr>,
    accepted: Instant,
    edge: &'a Edge<S>,
    lifecycle: &'a Lifecycle,
}

impl<'a, S: Serve> Arrival<'a, S> {
    async fn serve_tls(self, stream: TcpStream) {
        let (client, edge) = (self.client, self.edge);
        let activity = Activity::new(self.accepted, self.edge.limits);
        let socket = Socket::new(stream, Arc::clone(&activity), edge.limits);
        // Boxed, as the conversation is: an idle connection keeps no place for what was needed once.
        let shaking = Box::pin(tls::shake(socket, &edge.certificates, self.time_left()));
        let Some(shaken) = self.unless_too_late(shaking).await else { return };
        edge.metrics.edge.handshakes.with_label_values(&[result(&shaken)]).inc();
        match shaken {
            Ok(Secured { stream, names, protocol }) => {
                edge.metrics.edge.handshake_duration.observe(self.accepted.elapsed().as_secs_f64());
                self.converse(stream, protocol, Transport::Tls(names), &activity).await;
            }
            Err(refused) => {
                tracing::debug!(%client, reason = &refused as &dyn std::error::Error, "handshake refused");
            }
        }
    }

    async fn serve_plain(self, stream: TcpStream, transport: Transport) {
        let activity = Activity::new(self.accepted, self.edge.limits);
        let socket = Socket::new(stream, Arc::clone(&activity), self.edge.limits);
        self.converse(socket, Protocol::Http1, transport, &activity).await;
    }

    async fn serve_plain_http2(self, stream: TcpStream) {
        // hyper would wait for the preface without end.
        let begun = async { timeout(self.time_left(), stream.peek(&mut [0])).await };
        if !matches!(self.unless_too_late(begun).await, Some(Ok(Ok(1)))) {
            return;
        }
        let activity = Activity::new(self.accepted, self.edge.limits);
        let socket = Socket::new(stream, Arc::clone(&activity), self.edge.limits);
        self.converse(socket, Protocol::Http2, Transport::Balancer, &activity).await;
    }

    /// What is left of the time until the connection must be ready for requests.
    fn time_left(&self) -> Duration {
        self.edge.limits.handshake.saturating_sub(self.accepted.elapsed())
    }

    /// What comes of it, or nothing when a stop does not wait for it any more.
    async fn unless_too_late<T>(&self, what: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.lifecycle.last_call(self.accepted + self.edge.limits.last_call) => None,
            outcome = what => Some(outcome),
        }
    }

    /// Answers the requests on a stream that is ready for them. No `async fn`: its future would keep a place for the
    /// stream, which is hyper's from here on.
    fn converse<IO>(
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
        let open = Open::new(edge.metrics.edge.connections_open.with_label_values(&[label]));
        let conversation = Arc::new(Conversation {
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
        let attendant = Attendant { activity: Arc::clone(activity), metrics: &edge.metrics.edge, lifecycle };
        let attended = match protocol {
            Protocol::Http1 => {
                let heads = Heads::new(stream, Arc::clone(activity), edge.limits.head_bytes);
                let refused = heads.refused();
                let answer = service_fn(move |mut request| {
                    refused.mark(&mut request);
                    Arc::clone(&conversation).answer(request)
                });
                let connection = http1_settings(&edge.limits).serve_connection(TokioIo::new(heads), answer);
                let say_goodbye = http1::Connection::graceful_shutdown;
                Either::Left(attendant.attend(Poller::new(None), Box::pin(connection), say_goodbye))
            }
            Protocol::Http2 => {
                let executor = Http2Executor::default();
                let poller = Poller::new(Some(executor.clone()));
                let frames = Frames::new(stream, Arc::clone(activity), edge.limits.resets);
                // Boxed: on its way to [`Http2Executor`], each is moved several times.
                let answer = service_fn(move |request| Box::pin(Arc::clone(&conversation).answer(request)));
                let connection = http2_settings(&edge.limits, executor).serve_connection(TokioIo::new(frames), answer);
                // `Frames` says it.
                let say_goodbye = |_: Pin<&mut _>| {};
                Either::Right(attendant.attend(poller, Box::pin(connection), say_goodbye))
            }
        };
        attended.map(move |ended| {
            drop(open);
            if let Err(error) = ended {
                let reason = &error as &dyn std::error::Error;
                tracing::debug!(%client, protocol = label, reason, "connection failed");
            }
        })
    }
}

/// What the requests of a connection share.
struct Conversation<S> {
    connection: Connection,
    service: Arc<S>,
    activity: Arc<Activity>,
    lifecycle: Lifecycle,
}

impl<S: Serve> Conversation<S> {
    /// Answers a request, which counts from now on and not only once it is polled.
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Full<Bytes>>, Infallible>> {
        let handling = self.activity.handle();
        async move {
            // HTTP/2 is told by a GOAWAY.
            let speaks_of_closing = request.version() <= Version::HTTP_11;
            let mut response = self.service.serve(&self.connection, request).await;
            if speaks_of_closing && (handling.is_last() || self.lifecycle.is_draining()) {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            drop(handling);
            Ok(response)
        }
    }
}

/// How much of the next request is read beside a head of the largest size.
///
/// Larger: a connection buffers more. Smaller: hyper may find its buffer full before a head that is to pass is whole.
const BESIDE_A_HEAD: usize = 8 * 1024;

fn http1_settings(limits: &ConnectionLimits) -> http1::Builder {
    let mut settings = http1::Builder::new();
    settings
        .timer(TokioTimer::new())
        // `Activity` keeps this time: hyper's clock also runs between two requests.
        .header_read_timeout(None)
        .max_headers(ConnectionLimits::HEAD_FIELDS)
        .max_buf_size(limits.head_bytes + BESIDE_A_HEAD)
        // A caller that closes its half is gone, and its handler is dropped: a search that nobody waits for ends.
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

fn result<IO>(shaken: &Result<Secured<IO>, tls::Refused>) -> &'static str {
    match shaken {
        Ok(_) => "done",
        Err(tls::Refused::UnknownName) => "unknown_name",
        Err(tls::Refused::TimedOut) => "timeout",
        Err(tls::Refused::Failed(_)) => "failed",
    }
}

fn label(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http1 => "http/1.1",
        Protocol::Http2 => "h2",
    }
}

/// Counts an open connection for as long as it lives.
struct Open(IntGauge);

impl Open {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}
