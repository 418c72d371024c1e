//! The caller: HTTPS to one address, with any host, server name, protocol and token.
//!
//! It checks every answer against the rules that hold for all ([`Answer::fault`]) and against the description of the API
//! ([`description::deviation`]), and panics with the whole answer when one is broken. Connections are kept and used again, as callers do; they belong to the test that made the client.
//!
//! ```ignore
//! let caller = Client::new(node.address).to("acme.example.test").with(&token);
//! let answer = caller.post("/api/v1/submission").json(&json!({"statuses": ["pending"]})).send().await;
//! ```

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Uri, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::Serialize;

use super::answer::Answer;
use super::connection::{Connection, Protocol};
use super::description;

/// Nothing takes this long, in a debug build on a loaded machine either; a hanging request fails its test by name.
const LIMIT: Duration = Duration::from_secs(30);

/// Where requests go and what they carry if the single call does not say otherwise. Clones share their connections.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    address: SocketAddr,
    host: Option<String>,
    token: Option<String>,
    protocol: Protocol,
    idle: Arc<Idle>,
}

/// The connections that a request can use at once. An HTTP/2 connection is always among them.
type Idle = Mutex<HashMap<Key, Vec<Connection>>>;

/// What was said in the handshake: the server name and the protocol.
type Key = (String, Protocol);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    /// No connection, or no agreement in the handshake.
    #[error("can't connect: {0}")]
    Unconnected(#[from] io::Error),
    /// The connection broke before the answer was whole.
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
    /// Nothing came in time.
    #[error("no answer within {LIMIT:?}")]
    Silent,
}

impl Client {
    /// A client of the server at an address, speaking HTTP/1.1.
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, host: None, token: None, protocol: Protocol::Http1, idle: Arc::default() }
    }

    /// The same client, calling a host.
    pub(crate) fn to(&self, host: &str) -> Self {
        Self { host: Some(host.to_owned()), ..self.clone() }
    }

    /// The same client, with a token.
    pub(crate) fn with(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// The same client, speaking another protocol.
    pub(crate) fn over(&self, protocol: Protocol) -> Self {
        Self { protocol, ..self.clone() }
    }

    /// A GET of a path with its query.
    pub(crate) fn get(&self, path: &str) -> Call {
        self.method(Method::GET, path)
    }

    /// A HEAD.
    pub(crate) fn head(&self, path: &str) -> Call {
        self.method(Method::HEAD, path)
    }

    /// A POST.
    pub(crate) fn post(&self, path: &str) -> Call {
        self.method(Method::POST, path)
    }

    /// A PUT.
    pub(crate) fn put(&self, path: &str) -> Call {
        self.method(Method::PUT, path)
    }

    /// A DELETE.
    pub(crate) fn delete(&self, path: &str) -> Call {
        self.method(Method::DELETE, path)
    }

    /// Any method.
    pub(crate) fn method(&self, method: Method, path: &str) -> Call {
        Call {
            client: self.clone(),
            method,
            path: path.to_owned(),
            server_name: None,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            fresh: false,
        }
    }
}

/// A request in the making.
#[derive(Debug)]
pub(crate) struct Call {
    client: Client,
    method: Method,
    path: String,
    server_name: Option<String>,
    headers: HeaderMap,
    body: Bytes,
    fresh: bool,
}

impl Call {
    /// Calls a host: `Host` or `:authority`, and the server name of the handshake unless that is set too.
    pub(crate) fn host(mut self, host: &str) -> Self {
        self.client = self.client.to(host);
        self
    }

    /// Speaks a protocol.
    pub(crate) fn over(mut self, protocol: Protocol) -> Self {
        self.client = self.client.over(protocol);
        self
    }

    /// Asks for another server name in the handshake than the host's.
    pub(crate) fn server_name(mut self, name: &str) -> Self {
        self.server_name = Some(name.to_owned());
        self
    }

    /// Adds a header; the same name twice sends it twice.
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().expect("a header's name");
        self.headers.append(name, HeaderValue::from_str(value).expect("a header's text"));
        self
    }

    /// Sends a value as JSON.
    pub(crate) fn json(self, value: &impl Serialize) -> Self {
        self.header("content-type", "application/json")
            .body(serde_json::to_vec(value).expect("the value has a JSON form"))
    }

    /// Sends bytes as they are.
    pub(crate) fn body(mut self, bytes: impl Into<Bytes>) -> Self {
        self.body = bytes.into();
        self
    }

    /// Makes a connection for this call alone.
    pub(crate) fn fresh(mut self) -> Self {
        self.fresh = true;
        self
    }

    /// The answer, checked. Panics when there is none, or when it breaks a rule that holds for all.
    pub(crate) async fn send(self) -> Answer {
        let what = format!("{} {}", self.method, self.path);
        self.try_send().await.unwrap_or_else(|unanswered| panic!("{what}: {unanswered}"))
    }

    /// The answer, checked like that of [`Self::send`], or why there is none.
    pub(crate) async fn try_send(self) -> Result<Answer, Unanswered> {
        let answer = tokio::time::timeout(LIMIT, self.exchange()).await.map_err(|_| Unanswered::Silent)??;
        if let Some(rule) = answer.fault(&self.method) {
            panic!("{} {}: {rule}, but: {answer:?}", self.method, self.path);
        }
        if let Some(deviation) = description::deviation(&self.method, &self.path, &answer) {
            panic!("{} {}: {deviation}, but: {answer:?}", self.method, self.path);
        }
        Ok(answer)
    }

    /// The answer as it begins, on a connection of its own.
    pub(crate) async fn begin(self) -> Response<Incoming> {
        let name = self.name_in_handshake();
        let connection = Connection::open(self.client.address, &name, self.client.protocol).await;
        let mut connection = connection.expect("a connection");
        connection.ready().await.expect("a connection");
        connection.send(self.request()).await.expect("an answer")
    }

    async fn exchange(&self) -> Result<Answer, Unanswered> {
        let request = self.request();
        let key = (self.name_in_handshake(), self.client.protocol);
        while let Some(kept) = self.kept(&key) {
            match self.converse(&key, kept, request.clone()).await {
                Err(Unanswered::Broken(error)) if was_not_taken(&error) => {}
                answered => return answered,
            }
        }
        let connection = Connection::open(self.client.address, &key.0, key.1).await?;
        self.converse(&key, connection, request).await
    }

    /// One request and its answer. Others may use an HTTP/2 connection meanwhile, an HTTP/1.1 connection after.
    async fn converse(
        &self,
        key: &Key,
        mut on: Connection,
        request: Request<Full<Bytes>>,
    ) -> Result<Answer, Unanswered> {
        on.ready().await?;
        let shared = on.share();
        let is_shared = shared.is_some();
        self.keep(key, shared);
        let (head, body) = on.send(request).await?.into_parts();
        let body = body.collect().await?.to_bytes().into();
        self.keep(key, (!is_shared).then_some(on));
        Ok(Answer { status: head.status, headers: head.headers, body })
    }

    fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.clone();
        let uri = match self.client.protocol {
            Protocol::Http1 => {
                let host = HeaderValue::from_str(self.host_name()).expect("a host's text");
                request.headers_mut().insert(HOST, host);
                self.path.clone()
            }
            Protocol::Http2 => {
                *request.version_mut() = Version::HTTP_2;
                format!("https://{}{}", self.host_name(), self.path)
            }
        };
        *request.uri_mut() = uri.parse::<Uri>().expect("an encoded path");
        if let Some(token) = &self.client.token {
            let value = HeaderValue::from_str(&format!("Bearer {token}")).expect("a token's text");
            request.headers_mut().entry(AUTHORIZATION).or_insert(value);
        }
        request
    }

    fn host_name(&self) -> &str {
        self.client.host.as_deref().expect("a call needs a host")
    }

    fn name_in_handshake(&self) -> String {
        let host = || self.host_name().split(':').next().expect("a split has a first part").to_owned();
        self.server_name.clone().unwrap_or_else(host)
    }

    fn kept(&self, key: &Key) -> Option<Connection> {
        let mut idle = self.client.idle.lock().expect("nothing panics under the lock");
        if self.fresh { None } else { idle.get_mut(key)?.pop() }
    }

    fn keep(&self, key: &Key, connection: Option<Connection>) {
        if let Some(connection) = connection.filter(|_| !self.fresh) {
            let mut idle = self.client.idle.lock().expect("nothing panics under the lock");
            idle.entry(key.clone()).or_default().push(connection);
        }
    }
}

/// Whether the server closed the connection before a byte of the request was written, or said that it did not take it:
/// every HTTP client sends such a request again (RFC 9113, sections 6.8 and 8.7).
fn was_not_taken(error: &hyper::Error) -> bool {
    let goodbye = std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    let said_goodbye = |error: &h2::Error| error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    error.is_canceled() || error.is_closed() || goodbye.is_some_and(said_goodbye)
}

/// The value of one series of the operator's metrics, such as `formgate_connections_accepted_total`; 0 when it is not
/// there yet. Labels stand in the order of their names.
pub(crate) async fn operator_count(address: SocketAddr, series: &str) -> u64 {
    let answer = operator_get(address, "/metrics").await;
    let text = String::from_utf8(answer.body).expect("metrics are UTF-8");
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().expect("a counter is a number"))
}

/// Waits until a series of the metrics has a value, for longer than anything takes that happens in the background.
pub(crate) async fn wait_for_count(address: SocketAddr, series: &str, value: u64) {
    let since = Instant::now();
    loop {
        let found = operator_count(address, series).await;
        if found == value {
            return;
        }
        assert!(since.elapsed() < LIMIT, "{series} is {found} and not {value}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A plain HTTP answer of the operator's listener, to which the rules for callers do not apply.
pub(crate) async fn operator_get(address: SocketAddr, path: &str) -> Answer {
    let stream = tokio::net::TcpStream::connect(address).await.expect("the operator's listener takes connections");
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("no handshake");
    tokio::spawn(driver);
    let request = Request::get(path).header(HOST, address.to_string()).body(Full::<Bytes>::default());
    let (head, body) = sender.send_request(request.expect("a valid path")).await.expect("an answer").into_parts();
    let body = body.collect().await.expect("a whole body").to_bytes().into();
    Answer { status: head.status, headers: head.headers, body }
}
