//! Sends one signed request, and reports its outcome.
//!
//! Owns the request's headers and the limits on what a receiver can do with it. Whatever the receiver does, sending
//! ends within the time limit with an [`Attempt`]: an [`Answer`], whatever its status, or a [`SendError`]. Once there is a
//! status, nothing that follows it makes an error of the answer.
//!
//! A receiver may close a connection just when it is used again. Then the request is sent once more, on a new connection:
//! only if that fails too, the receiver fails.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;

use super::answer::{self, Answer, MAX_HEAD_BYTES, MAX_HEAD_FIELDS};
use super::connector::Connector;
use super::counted::{ConnectionCounter, Traffic};
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
    /// The same, with a new connection for each request.
    unpooled: legacy::Client<Connector, Full<Bytes>>,
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

/// Calls a function once a request may have been sent: also if the future of the request is dropped meanwhile.
#[derive(Debug)]
pub struct OnceSent<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> OnceSent<F> {
    /// Before the request is sent.
    #[must_use]
    pub fn new(call: F) -> Self {
        Self(Some(call))
    }

    /// The request ended like this.
    pub fn end(mut self, attempt: &Attempt) {
        if attempt.outcome.as_ref().is_err_and(|error| !error.may_have_been_sent()) {
            self.cancel();
        }
    }

    /// The request was not sent.
    pub fn cancel(&mut self) {
        self.0 = None;
    }
}

impl<F: FnOnce()> Drop for OnceSent<F> {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
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
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_LIMIT)
            // As many as are used at once: with fewer, most of each wave of requests to a busy host would pay for a handshake.
            .pool_max_idle_per_host(settings.per_host as usize)
            .http1_max_buf_size(MAX_HEAD_BYTES)
            .http1_max_headers(MAX_HEAD_FIELDS)
            // Small servers send such fields, and only the status matters.
            .http1_allow_spaces_after_header_name_in_responses(true)
            .http1_allow_obsolete_multiline_headers_in_responses(true)
            .http1_ignore_invalid_headers_in_responses(true)
            .http2_max_header_list_size(MAX_HEAD_BYTES.try_into().expect("it is small"))
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_LIMIT)
            .http2_keep_alive_while_idle(true);
        let http = builder.build(connector.clone());
        let unpooled = builder.pool_max_idle_per_host(0).build(connector);
        Self { http, unpooled, dialer, timeout: settings.timeout }
    }

    /// Sends a message. Dropping the future cancels it.
    pub async fn send(&self, message: &Message<'_>) -> Attempt {
        self.send_within(self.timeout, message).await
    }

    /// Sends a message within a limit, if that is shorter than the client's own.
    pub(super) async fn send_within(&self, limit: Duration, message: &Message<'_>) -> Attempt {
        let (began, limit) = (Instant::now(), limit.min(self.timeout));
        let mut phase = Phase::Head;
        let opened = deadline::within(limit, deadline::ONCE_MORE, self.open_for(message, &mut phase)).await;
        let outcome = match opened {
            None => Err(SendError::Timeout(phase)),
            Some(Err(error)) => Err(error),
            Some(Ok((head, body))) => {
                let rest = limit.saturating_sub(began.elapsed());
                Ok(answer::read(head.status, &head.headers, body, rest, Timestamp::now()).await)
            }
        };
        Attempt { outcome, took: began.elapsed() }
    }

    /// Sends a message, and receives the head of its answer.
    async fn open_for(
        &self,
        message: &Message<'_>,
        phase: &mut Phase,
    ) -> Result<(response::Parts, Incoming), SendError> {
        let mut first = request(message);
        let connection = capture_connection(&mut first);
        let opened = match exchange(&self.http, first, &connection, phase).await {
            Err(SendError::Protocol(ProtocolFault::Closed | ProtocolFault::Malformed))
                if Traffic::of(&connection).is_some_and(|traffic| traffic.was_answered()) =>
            {
                let mut again = request(message);
                let connection = capture_connection(&mut again);
                exchange(&self.unpooled, again, &connection, phase).await
            }
            opened => opened,
        };
        opened.map(Response::into_parts)
    }

    /// Sends a request, and receives the head of its answer.
    pub(super) async fn open(
        &self,
        mut request: Request<Full<Bytes>>,
        phase: &mut Phase,
    ) -> Result<(response::Parts, Incoming, CaptureConnection), SendError> {
        let connection = capture_connection(&mut request);
        let (head, body) = exchange(&self.http, request, &connection, phase).await?.into_parts();
        Ok((head, body, connection))
    }
}

async fn exchange(
    http: &legacy::Client<Connector, Full<Bytes>>,
    request: Request<Full<Bytes>>,
    connection: &CaptureConnection,
    phase: &mut Phase,
) -> Result<Response<Incoming>, SendError> {
    let response = http.request(request).await.map_err(|error| fault_of(&error, None, connection))?;
    *phase = Phase::Body(response.status().as_u16());
    if let Some(traffic) = Traffic::of(connection) {
        traffic.note_answer();
        if traffic.is_much()
            && let Some(connected) = &*connection.connection_metadata()
        {
            connected.poison();
        }
    }
    Ok(response)
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
    if Traffic::of(connection).is_some_and(|traffic| traffic.is_too_much()) {
        return ProtocolFault::TooMuch.into();
    }
    let fault = match find_cause::<hyper::Error>(error) {
        Some(error) if error.is_parse_too_large() => ProtocolFault::HeadTooLarge,
        Some(error) if error.is_parse() => ProtocolFault::Malformed,
        _ => status.map_or(ProtocolFault::Closed, |status| ProtocolFault::CutOff(status.as_u16())),
    };
    fault.into()
}
