//! A webhook receiver: a TLS server that does whatever a test says, and records every request.
//!
//! Over HTTP/1.1 an answer is a list of [`Act`]s, so it can be anything that bytes can be. Over HTTP/2 it is a status,
//! or again bytes that the test chose.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_rustls::server::TlsStream;

use super::{certificate, folder, tls_server};

/// The host that receivers have a certificate for.
pub(crate) const HOST: &str = "hooks.example.test";

/// The pause between two bytes of [`Act::Drip`].
const DRIP: Duration = Duration::from_millis(20);

/// A step of an answer. After the last one, the next request is read from the same connection.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Writes bytes.
    Send(Vec<u8>),
    /// Writes the same bytes again and again until the client is gone, and discards what the client sends.
    Flood(Vec<u8>),
    /// The same, but reads nothing, so that the client can't write.
    DeafFlood(Vec<u8>),
    /// The same, slowly, byte by byte.
    Drip(Vec<u8>),
    /// Writes nothing for a while.
    Pause(Duration),
    /// Writes nothing until the client is gone.
    Hang,
    /// Closes the connection.
    Close,
    /// Closes the connection without the end of TLS (close_notify).
    CutTls,
    /// Closes the connection with a reset.
    Reset,
}

impl Act {
    /// Writes a text.
    pub(crate) fn send(text: &str) -> Self {
        Self::Send(text.as_bytes().to_vec())
    }

    /// A complete answer without a body.
    pub(crate) fn status(status: u16) -> Vec<Self> {
        vec![Self::send(&format!("HTTP/1.1 {status} Whatever\r\nContent-Length: 0\r\n\r\n"))]
    }

    /// A complete answer with header lines and a body.
    pub(crate) fn answer(status: u16, lines: &[&str], body: &str) -> Vec<Self> {
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let length = body.len();
        vec![Self::send(&format!("HTTP/1.1 {status} Whatever\r\nContent-Length: {length}\r\n{lines}\r\n{body}"))]
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// The request line of HTTP/1.1; `HTTP/2` and the URI.
    pub(crate) line: String,
    /// The fields.
    pub(crate) headers: HeaderMap,
    /// The body.
    pub(crate) body: Bytes,
}

/// What a receiver saw.
#[derive(Debug, Default)]
struct Log {
    requests: Mutex<Vec<Received>>,
    connections: AtomicUsize,
    open: AtomicUsize,
    written: AtomicUsize,
    answering: AtomicUsize,
    most_at_once: AtomicUsize,
}

type Behavior = Arc<dyn Fn(usize, &Received) -> Vec<Act> + Send + Sync>;

#[derive(Clone)]
enum Speaks {
    /// Answers the n-th request over HTTP/1.1.
    Http1(Behavior),
    /// Answers every request over HTTP/2 with a status.
    Http2(StatusCode),
    /// Acts after the handshake, whatever it is sent, as HTTP/2 as far as TLS goes.
    RawHttp2(Vec<Act>),
}

/// Which certificate a receiver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// For [`HOST`], by the authority of the tests.
    Valid,
    /// That expired yesterday.
    Expired,
    /// That is valid from tomorrow on.
    Early,
    /// For another host.
    OfAnother,
    /// For clients only.
    OfClient,
    /// That it issued itself.
    SelfSigned,
}

/// A running receiver. It ends with the runtime of its test.
pub(crate) struct Receiver {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    log: Arc<Log>,
}

impl Receiver {
    /// Answers the n-th request, from 0, over HTTP/1.1.
    pub(crate) async fn start(behavior: impl Fn(usize) -> Vec<Act> + Send + Sync + 'static) -> Self {
        Self::deciding(move |nth, _| behavior(nth)).await
    }

    /// Answers the n-th request, from 0, by what it is.
    pub(crate) async fn deciding(behavior: impl Fn(usize, &Received) -> Vec<Act> + Send + Sync + 'static) -> Self {
        Self::listen("127.0.0.1:0", Identity::Valid, Speaks::Http1(Arc::new(behavior))).await
    }

    /// Answers every request over HTTP/1.1 alike.
    pub(crate) async fn always(acts: Vec<Act>) -> Self {
        Self::start(move |_| acts.clone()).await
    }

    /// The same, at an address.
    pub(crate) async fn always_at(address: &str, acts: Vec<Act>) -> Self {
        Self::listen(address, Identity::Valid, Speaks::Http1(Arc::new(move |_, _| acts.clone()))).await
    }

    /// Answers 204 if its certificate is accepted.
    pub(crate) async fn identified(identity: Identity) -> Self {
        Self::listen("127.0.0.1:0", identity, Speaks::Http1(Arc::new(|_, _| Act::status(204)))).await
    }

    /// Speaks HTTP/2 only.
    pub(crate) async fn http2(status: u16) -> Self {
        let status = StatusCode::from_u16(status).expect("a status");
        Self::listen("127.0.0.1:0", Identity::Valid, Speaks::Http2(status)).await
    }

    /// Selects HTTP/2, and then sends bytes.
    pub(crate) async fn raw_http2(acts: Vec<Act>) -> Self {
        Self::listen("127.0.0.1:0", Identity::Valid, Speaks::RawHttp2(acts)).await
    }

    /// The URL of a path here, by the name in the certificate.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://{HOST}:{}{path}", self.address.port())
    }

    /// Every request so far.
    pub(crate) fn requests(&self) -> Vec<Received> {
        self.log.requests.lock().expect("nothing panics with the lock").clone()
    }

    /// How many connections were accepted.
    pub(crate) fn connections(&self) -> usize {
        self.log.connections.load(Ordering::SeqCst)
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.log.open.load(Ordering::SeqCst)
    }

    /// The most requests that were being answered at once over HTTP/1.1.
    pub(crate) fn most_at_once(&self) -> usize {
        self.log.most_at_once.load(Ordering::SeqCst)
    }

    /// How many bytes the client took from floods and drips.
    pub(crate) fn written(&self) -> usize {
        self.log.written.load(Ordering::SeqCst)
    }

    async fn listen(address: &str, identity: Identity, speaks: Speaks) -> Self {
        let listener = TcpListener::bind(address).await.expect("the address is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let protocol: &[u8] = if matches!(speaks, Speaks::Http1(_)) { b"http/1.1" } else { b"h2" };
        let log = Arc::<Log>::default();
        let receiver = Self { address, log: Arc::clone(&log) };
        tls_server::accept(listener, presented(identity), &[protocol], move |handshake| {
            let (log, speaks) = (Arc::clone(&log), speaks.clone());
            log.connections.fetch_add(1, Ordering::SeqCst);
            log.open.fetch_add(1, Ordering::SeqCst);
            async move {
                if let Ok(stream) = handshake.await {
                    serve(stream, &speaks, &log).await;
                }
                log.open.fetch_sub(1, Ordering::SeqCst);
            }
        });
        receiver
    }
}

fn presented(identity: Identity) -> tls_server::Identity {
    let folder = folder::temporary("receiver");
    let issued = match identity {
        Identity::SelfSigned => {
            let key = KeyPair::generate().expect("keys can be made");
            let leaf = CertificateParams::new([HOST.to_owned()]).expect("a valid name").self_signed(&key);
            let (leaf, key) = (leaf.expect("signing works"), PrivateKeyDer::try_from(key.serialize_der()));
            return tls_server::Identity::Leaf(leaf.der().clone(), key.expect("a key"));
        }
        Identity::Expired => certificate::issue_for_days(folder.path(), &[HOST], -10..-1),
        Identity::Early => certificate::issue_for_days(folder.path(), &[HOST], 1..10),
        Identity::OfAnother => certificate::issue(folder.path(), &["other.example.test"]),
        Identity::OfClient => certificate::issue_for_client(folder.path(), &[HOST]),
        Identity::Valid => certificate::issue(folder.path(), &[HOST, "localhost"]),
    };
    issued.into()
}

async fn serve(mut stream: TlsStream<TcpStream>, speaks: &Speaks, log: &Arc<Log>) {
    match speaks {
        Speaks::Http1(behavior) => {
            let mut buffer = Vec::new();
            while let Some(request) = read_request(&mut stream, &mut buffer).await {
                let acts = {
                    let mut requests = log.requests.lock().expect("nothing panics with the lock");
                    let acts = behavior(requests.len(), &request);
                    requests.push(request);
                    acts
                };
                let at_once = log.answering.fetch_add(1, Ordering::SeqCst) + 1;
                log.most_at_once.fetch_max(at_once, Ordering::SeqCst);
                let goes_on = perform(&mut stream, acts, log).await;
                log.answering.fetch_sub(1, Ordering::SeqCst);
                if !goes_on {
                    return;
                }
            }
        }
        Speaks::RawHttp2(acts) => _ = perform(&mut stream, acts.clone(), log).await,
        Speaks::Http2(status) => {
            let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
                let (log, status) = (Arc::clone(log), *status);
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                    let received = Received { line: format!("HTTP/2 {}", head.uri), headers: head.headers, body };
                    log.requests.lock().expect("nothing panics with the lock").push(received);
                    let mut answer = Response::new(Full::new(Bytes::from("over HTTP/2")));
                    *answer.status_mut() = status;
                    Ok::<_, Infallible>(answer)
                }
            });
            let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = served.serve_connection(TokioIo::new(stream), service).await;
        }
    }
}

/// The next request of a connection; none if it ends.
async fn read_request(stream: &mut TlsStream<TcpStream>, buffer: &mut Vec<u8>) -> Option<Received> {
    let (head_length, line, headers) = loop {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut head = httparse::Request::new(&mut fields);
        if let httparse::Status::Complete(length) = head.parse(buffer).expect("formgate sends valid heads") {
            let line = format!("{} {}", head.method.unwrap_or_default(), head.path.unwrap_or_default());
            let headers = head.headers.iter().map(|field| {
                (field.name.parse().expect("a field name"), field.value.try_into().expect("a field value"))
            });
            break (length, line, headers.collect::<HeaderMap>());
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let length = headers.get("content-length").map_or(0, |length| length.to_str().unwrap().parse().unwrap());
    while buffer.len() < head_length + length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let rest = buffer.split_off(head_length + length);
    let body = Bytes::copy_from_slice(&buffer[head_length..]);
    *buffer = rest;
    Some(Received { line, headers, body })
}

/// Acts; `false` ends the connection.
async fn perform(stream: &mut TlsStream<TcpStream>, acts: Vec<Act>, log: &Log) -> bool {
    for act in acts {
        let done = match act {
            Act::Send(bytes) => write(stream, &bytes).await,
            Act::Flood(bytes) => {
                flood(stream, &bytes, log).await;
                false
            }
            Act::DeafFlood(bytes) => loop {
                if !write(stream, &bytes).await {
                    break false;
                }
                log.written.fetch_add(bytes.len(), Ordering::SeqCst);
            },
            Act::Drip(bytes) => loop {
                let at = log.written.fetch_add(1, Ordering::SeqCst) % bytes.len();
                if !write(stream, &bytes[at..=at]).await {
                    break false;
                }
                sleep(DRIP).await;
            },
            Act::Pause(duration) => {
                sleep(duration).await;
                true
            }
            Act::Hang => {
                let mut rest = Vec::new();
                let _ = stream.read_to_end(&mut rest).await;
                false
            }
            Act::Close => {
                let _ = stream.shutdown().await;
                false
            }
            Act::CutTls => false,
            Act::Reset => {
                stream.get_ref().0.set_zero_linger().expect("a TCP socket");
                false
            }
        };
        if !done {
            return false;
        }
    }
    true
}

/// Writes bytes until the client is gone, and discards what it sends meanwhile.
async fn flood(stream: &mut TlsStream<TcpStream>, bytes: &[u8], log: &Log) {
    let (mut reading, mut writing) = tokio::io::split(stream);
    let write = async {
        while writing.write_all(bytes).await.is_ok() && writing.flush().await.is_ok() {
            log.written.fetch_add(bytes.len(), Ordering::SeqCst);
        }
    };
    let mut sink = tokio::io::sink();
    tokio::select! {
        () = write => {}
        _ = tokio::io::copy(&mut reading, &mut sink) => {}
    }
}

async fn write(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) -> bool {
    stream.write_all(bytes).await.is_ok() && stream.flush().await.is_ok()
}
