//! Serves the operator API: HTTP/1.1 over a socket in the file system, or TCP.
//!
//! Owns the sockets and the limits of a request; [`crate::operator`] answers. Heads are read more strictly than those
//! of clients, since no old program calls here. There is no TLS: TCP is for a loopback
//! address, or for a network that only the operator's own programs reach.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Request, Response, StatusCode, Version, request};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::accept::Acceptor;
use super::activity::Activity;
use super::framing::Framing;
use super::head_filter::HeadFilter;
use super::slots::{Busy, Slot, Slots};
use crate::config::{ConnectionLimits, OperatorAddress, RequestLimits};
use crate::endpoint::BodyKind;
use crate::error::Refusal;
use crate::gate::HeadFault;
use crate::operator::{self, Caller, MAX_BODY, MAX_UPLOAD, OperatorApi, Transport, Upload, upload_limits};
use crate::reply::Reply;
use crate::request::{ReceivedBody, UploadError, discard, read_body, receive_file};
use crate::rights;

/// The maximum number of open connections for each address.
///
/// Larger: callers of this API can use up the file descriptors of other clients. Smaller: waiting callers lock others out.
pub const CONNECTIONS: usize = 64;

/// How long a connection may take for a head, including the time between two requests, and how long it may leave a
/// response unread.
///
/// Larger: forgotten connections hold descriptors for longer. Smaller: callers reconnect more often.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// The mode of the socket: its owner and its group are the operator.
const SOCKET_MODE: u32 = 0o660;

/// The pause after `accept` failed: out of descriptors.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// An address can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("the operator API can't listen on {address}")]
pub struct OperatorBindError {
    address: OperatorAddress,
    #[source]
    cause: io::Error,
}

/// An open socket of the operator API.
#[derive(Debug)]
pub enum OperatorListener {
    /// In the file system; removed when this is dropped.
    Unix(UnixListener, SocketFile),
    /// TCP.
    Tcp(TcpListener),
}

impl OperatorListener {
    /// Its address, if it is one of TCP.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Unix(..) => None,
            Self::Tcp(listener) => listener.local_addr().ok(),
        }
    }
}

impl std::fmt::Display for OperatorListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(_, SocketFile(path)) => write!(f, "unix:{}", path.display()),
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => write!(f, "{address}"),
                Err(_) => f.write_str("unknown"),
            },
        }
    }
}

/// The file of a socket.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Someone may have removed it already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Opens the sockets of the operator API.
///
/// # Errors
/// The first address that fails.
pub async fn listen(addresses: &[OperatorAddress]) -> Result<Vec<OperatorListener>, OperatorBindError> {
    let mut listeners = Vec::with_capacity(addresses.len());
    for address in addresses {
        let bound = match address {
            OperatorAddress::Unix(path) => bind(path).await,
            OperatorAddress::Tcp(address) => TcpListener::bind(address).await.map(OperatorListener::Tcp),
        };
        listeners.push(bound.map_err(|cause| OperatorBindError { address: address.clone(), cause })?);
    }
    Ok(listeners)
}

/// Opens a socket in the file system. A file that a dead process left behind is replaced.
async fn bind(path: &Path) -> io::Result<OperatorListener> {
    if path.symlink_metadata().is_ok_and(|file| file.file_type().is_socket()) {
        if UnixStream::connect(path).await.is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process serves this socket"));
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let file = SocketFile(path.to_owned());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(OperatorListener::Unix(listener, file))
}

/// Serves the operator API until the handles are dropped.
///
/// # Panics
/// Outside of a Tokio runtime.
#[must_use = "dropping them ends the listeners"]
pub fn serve(listeners: Vec<OperatorListener>, api: &Arc<OperatorApi>) -> Vec<AbortOnDropHandle<()>> {
    let serve = |listener| AbortOnDropHandle::new(tokio::spawn(accept_all(listener, Arc::clone(api))));
    listeners.into_iter().map(serve).collect()
}

async fn accept_all(listener: OperatorListener, api: Arc<OperatorApi>) {
    let mut slots = Slots::new(CONNECTIONS);
    match listener {
        OperatorListener::Unix(listener, _file) => loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let user =
                        stream.peer_cred().map_or_else(|_| "unknown".to_owned(), |peer| rights::user(peer.uid()));
                    slots.room().await;
                    slots.serve(|slot| connection(stream, Transport::Socket { user }, Arc::clone(&api), slot));
                }
                Err(_) => sleep(RETRY_PAUSE).await,
            }
        },
        OperatorListener::Tcp(listener) => {
            let mut acceptor = Acceptor::new(listener, IDLE_TIMEOUT);
            loop {
                let (stream, from) = acceptor.next().await;
                let transport = Transport::Tcp { from: from.ip() };
                slots.room().await;
                slots.serve(|slot| connection(stream, transport, Arc::clone(&api), slot));
            }
        }
    }
}

async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    transport: Transport,
    api: Arc<OperatorApi>,
    slot: Arc<Slot>,
) {
    let limits = ConnectionLimits::default();
    let framing = Framing::new(limits.head_bytes).without_bare_line_feeds();
    // hyper has the timeouts.
    let stream = HeadFilter::new(stream, Activity::new(Instant::now(), limits), framing);
    let refused = stream.refused();
    let served_slot = Arc::clone(&slot);
    let service = service_fn(move |mut request: Request<Incoming>| {
        refused.mark(&mut request);
        let (api, transport, slot) = (Arc::clone(&api), transport.clone(), Arc::clone(&served_slot));
        async move {
            let busy = slot.begin();
            let (caller, head, body, upload) = match read(request, &transport, &api, &busy).await {
                Ok(whole) => whole,
                Err(refused) => return Ok::<_, Infallible>(respond(refused)),
            };
            // A task of its own: a change that was begun is finished although the caller has gone.
            let answering = tokio::spawn(async move {
                let ReceivedBody { bytes, permit: _permit } = body;
                respond(api.answer(&caller, &head, bytes, upload).await)
            });
            Ok(answering.await.unwrap_or_else(|_| failed()))
        }
    });
    let mut settings = http1::Builder::new();
    settings.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT);
    let connection = settings.serve_connection(TokioIo::new(stream), service);
    let served = slot.drive(connection, http1::Connection::graceful_shutdown).await;
    if let Err(error) = served {
        tracing::debug!(reason = &error as &dyn std::error::Error, "connection of the operator API failed");
    }
}

/// Who calls, and the whole request.
async fn read(
    request: Request<Incoming>,
    transport: &Transport,
    api: &OperatorApi,
    busy: &Busy,
) -> Result<(Caller, request::Parts, ReceivedBody, Option<Upload>), Reply> {
    let (head, mut body) = request.into_parts();
    if let Some(fault) = head.extensions.get::<HeadFault>() {
        return Err(Refusal::from(*fault).reply());
    }
    let hosts = head.headers.get_all(HOST).iter().count();
    // RFC 9112, section 3.2.
    if hosts > 1 || hosts == 0 && head.version == Version::HTTP_11 {
        return Err(Refusal::from(HeadFault::Malformed).reply());
    }
    // Before the body is read, so that a caller without a token occupies no memory.
    let caller = api.identify(transport, &head).await?;
    let upload = match api.begin_upload(&caller, &head).await {
        Ok(None) => None,
        Ok(Some(upload)) => Some(upload),
        Err(refused) => return Err(without_upload(refused, &head, body).await),
    };
    if body.is_end_stream() {
        return Ok((caller, head, ReceivedBody::default(), upload));
    }
    if let Some(upload) = upload {
        // It has time to send, and its connection is not taken from it for others.
        let received = match upload.file() {
            Ok(file) => receive_file(&head.headers, &mut body, file, MAX_UPLOAD, &upload_limits()).await,
            Err(error) => Err(UploadError::File(error)),
        };
        let refused = match received {
            Ok(()) => return Ok((caller, head, ReceivedBody::default(), Some(upload))),
            Err(UploadError::File(error)) => Upload::not_kept(error),
            Err(UploadError::Refused(refusal)) => refusal.reply(),
        };
        // The next import need not wait for the rest of this body.
        drop(upload);
        return Err(without_upload(refused, &head, body).await);
    }
    let kind = operator::ENDPOINTS.find(&head.method, head.uri.path()).map_or(BodyKind::None, |it| it.endpoint.body);
    busy.read_on();
    let body = read_body(kind, &head.headers, &mut body, MAX_BODY, &RequestLimits::default(), &api.memory).await;
    let body = body.map_err(|refusal| refusal.reply())?;
    busy.answer();
    Ok((caller, head, body, None))
}

/// A refusal of a large body, some of which may still come: the connection ends with it.
async fn without_upload(refused: Reply, head: &request::Parts, body: Incoming) -> Reply {
    discard(head, body).await;
    refused.with_header(CONNECTION, HeaderValue::from_static("close"))
}

/// A panic, which the runtime has logged.
fn failed() -> Response<Full<Bytes>> {
    respond(Reply::json(StatusCode::INTERNAL_SERVER_ERROR, &json!({ "message": "Server Error" })))
}

fn respond(reply: Reply) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(reply.body));
    *response.status_mut() = reply.status;
    *response.headers_mut() = reply.headers;
    response.headers_mut().insert(CONTENT_TYPE, reply.content.header());
    // Answers may hold tokens and passwords.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
