//! Sends one signed request, and reports its outcome.
//!
//! Owns the request's headers and the limits on what a receiver can do with it. Whatever the receiver does, sending
//! ends within the time limit with an [`Attempt`]: an [`Answer`], whatever its status, or a [`SendError`].

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue, Request, StatusCode, response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;

use super::answer::{self, Answer, MAX_HEAD_BYTES, MAX_HEAD_FIELDS};
use super::connector::Connector;
use super::counted::{ConnectionCounter, ReceivedBytes};
use super::dialer::Dialer;
use super::error::{Phase, ProtocolFault, SendError, find_cause};
use super::guard::Guard;
use super::resolver::Resolver;
use super::settings::Settings;
use super::signature::{self, EventId, SigningSecret};
use super::target::Target;
use super::tls;
use crate::deadline;

/// The number of the attempt, from 1.
const ATTEMPT: HeaderName = HeaderName::from_static("formgate-attempt");

pub(super) const AGENT: &str = concat!("formgate/", env!("CARGO_PKG_VERSION"));

/// How long an idle connection is kept.
///
/// Larger: more of them are closed by the receiver just when they are used again. Smaller: receivers with an event
/// now and then pay for a handshake each time.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// How often an HTTP/2 connection is checked with a PING, and how long the answer may take.
///
/// Larger: requests go to connections that are dead. Smaller: more traffic on healthy ones.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_LIMIT: Duration = Duration::from_secs(10);

/// How much of a body HTTP/2 may send before it is read, per answer and per connection.
///
/// Larger: more memory for receivers that send without end. Smaller: long answers take more round trips.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Sends requests to receivers.
#[derive(Debug)]
pub struct Client {
    http: legacy::Client<Connector, Full<Bytes>>,
    pub(super) dialer: Arc<Dialer>,
    pub(super) timeout: Duration,
}

/// One event for one receiver.
#[derive(Clone, Debug)]
pub struct Message<'m> {
    /// The receiver.
    pub target: &'m Target,
    /// The event's id.
    pub id: &'m EventId,
    /// When it is sent.
    pub at: Timestamp,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The JSON body.
    pub body: Bytes,
    /// The secrets that sign: the current one, then the previous one while it is still valid.
    pub secrets: &'m [SigningSecret],
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The answer, whatever its status, or why there is none.
    pub outcome: Result<Answer, SendError>,
    /// How long it took.
    pub took: Duration,
}

impl Attempt {
    /// Whether the receiver accepted the event: any 2xx status.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.outcome.as_ref().is_ok_and(|answer| answer.status.is_success())
    }
}

impl Client {
    /// A client that connects to what the guard allows. Reads the system's certificate authorities and DNS servers,
    /// which blocks on files. Connections run on the Tokio runtime of the first request.
    #[must_use]
    pub fn new(settings: &Settings, guard: Arc<Guard>) -> Self {
        let tls = tls::config(&settings.authorities);
        let dialer = Arc::new(Dialer::new(Resolver::new(&settings.dns_servers), guard, tls));
        let counter = ConnectionCounter::new(2 * settings.in_flight as usize, settings.per_host as usize);
        // The rest is for the receiver's work.
        let connector = Connector::new(Arc::clone(&dialer), counter, settings.timeout * 2 / 3);
        let http = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIMIT)
            // As many as are used at once: with fewer, most of each wave of requests to a busy host would pay for a handshake.
            .pool_max_idle_per_host(settings.per_host as usize)
            .http1_max_buf_size(MAX_HEAD_BYTES)
            .http1_max_headers(MAX_HEAD_FIELDS)
            .http2_max_header_list_size(MAX_HEAD_BYTES.try_into().expect("it is small"))
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_LIMIT)
            .http2_keep_alive_while_idle(true)
            .build(connector);
        Self { http, dialer, timeout: settings.timeout }
    }

    /// Sends a message. Dropping the future cancels it.
    pub async fn send(&self, message: &Message<'_>) -> Attempt {
        self.send_within(self.timeout, message).await
    }

    /// Sends a message within a limit, if that is shorter than the client's own.
    pub(super) async fn send_within(&self, limit: Duration, message: &Message<'_>) -> Attempt {
        let began = Instant::now();
        let mut phase = Phase::Head;
        let exchange = self.exchange(message, &mut phase);
        let outcome = deadline::within(limit.min(self.timeout), deadline::ONCE_MORE, exchange).await;
        Attempt { outcome: outcome.unwrap_or(Err(SendError::Timeout(phase))), took: began.elapsed() }
    }

    async fn exchange(&self, message: &Message<'_>, phase: &mut Phase) -> Result<Answer, SendError> {
        let (head, body, connection) = self.open(request(message), phase).await?;
        let answer = answer::read(head.status, &head.headers, body, Timestamp::now()).await;
        answer.map_err(|error| fault_of(&error, Some(head.status), &connection))
    }

    /// Sends a request, and receives the head of its answer.
    pub(super) async fn open(
        &self,
        mut request: Request<Full<Bytes>>,
        phase: &mut Phase,
    ) -> Result<(response::Parts, Incoming, CaptureConnection), SendError> {
        let connection = capture_connection(&mut request);
        let response = self.http.request(request).await.map_err(|error| fault_of(&error, None, &connection))?;
        let (head, body) = response.into_parts();
        *phase = Phase::Body(head.status);
        if ReceivedBytes::of(&connection).is_some_and(|received| received.are_many())
            && let Some(connected) = &*connection.connection_metadata()
        {
            connected.poison();
        }
        Ok((head, body, connection))
    }
}

fn request(message: &Message<'_>) -> Request<Full<Bytes>> {
    let mut request = Request::post(message.target.uri().clone())
        .header(CONTENT_TYPE, "application/json")
        .header(USER_AGENT, AGENT)
        .header(ATTEMPT, HeaderValue::from(message.attempt))
        .body(Full::new(message.body.clone()))
        .expect("a target's URI and these headers are valid");
    signature::sign(request.headers_mut(), message.id, message.at, &message.body, message.secrets);
    request
}

/// The fault in an error of the client, before or after the head of an answer.
pub(super) fn fault_of(
    error: &(dyn Error + 'static),
    status: Option<StatusCode>,
    connection: &CaptureConnection,
) -> SendError {
    if let Some(error) = find_cause::<SendError>(error) {
        return *error;
    }
    if ReceivedBytes::of(connection).is_some_and(|received| received.are_too_many()) {
        return ProtocolFault::TooMuch.into();
    }
    let fault = match find_cause::<hyper::Error>(error) {
        Some(error) if error.is_parse_too_large() => ProtocolFault::HeadTooLarge,
        Some(error) if error.is_parse() => ProtocolFault::Malformed,
        _ => status.map_or(ProtocolFault::Closed, ProtocolFault::CutOff),
    };
    fault.into()
}
