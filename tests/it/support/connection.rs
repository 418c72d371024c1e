//! TLS connections of the test client, and what is spoken on them.
//!
//! Owns the handshake with a chosen server name and protocol. Knows nothing of answers: a broken connection is an error
//! here, and the caller decides whether the test expected it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificate;

/// What is agreed on in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

impl Protocol {
    fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// A connection that takes requests.
#[derive(Debug)]
pub(crate) enum Connection {
    /// One request at a time.
    Http1(http1::SendRequest<Full<Bytes>>),
    /// Many requests at a time, over clones.
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Connection {
    /// Connects, and drives the connection in the background of the running test.
    pub(crate) async fn open(address: SocketAddr, server_name: &str, protocol: Protocol) -> io::Result<Self> {
        let stream = TokioIo::new(handshake(address, server_name, protocol).await?);
        match protocol {
            Protocol::Http1 => {
                let (sender, driver) = http1::handshake(stream).await.map_err(io::Error::other)?;
                tokio::spawn(driver);
                Ok(Self::Http1(sender))
            }
            Protocol::Http2 => {
                let (sender, driver) =
                    http2::handshake(TokioExecutor::new(), stream).await.map_err(io::Error::other)?;
                tokio::spawn(driver);
                Ok(Self::Http2(sender))
            }
        }
    }

    /// Waits until a request can be sent; an error when the connection is closed.
    pub(crate) async fn ready(&mut self) -> hyper::Result<()> {
        match self {
            Self::Http1(sender) => sender.ready().await,
            Self::Http2(sender) => sender.ready().await,
        }
    }

    /// The same connection for another request at the same time, where the protocol has that.
    pub(crate) fn share(&self) -> Option<Self> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(sender) => Some(Self::Http2(sender.clone())),
        }
    }

    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => sender.send_request(request).await,
            Self::Http2(sender) => sender.send_request(request).await,
        }
    }
}

/// Whether a ClientHello says which server it looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerNameIndication {
    /// It does, as everybody does today.
    Sent,
    /// It does not; the certificate is verified against the name all the same.
    Withheld,
}

/// Makes a TLS connection on which the server agreed to the protocol. It fails when the certificate that it serves is not
/// of the test's authority or not for the name.
pub(crate) async fn handshake(
    address: SocketAddr,
    server_name: &str,
    protocol: Protocol,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = shake(address, server_name, ServerNameIndication::Sent, &[protocol.alpn()]).await?;
    match stream.get_ref().1.alpn_protocol() {
        Some(agreed) if agreed == protocol.alpn() => Ok(stream),
        agreed => Err(io::Error::other(format!("wanted {protocol:?}, the server agreed to {agreed:?}"))),
    }
}

/// Makes a TLS connection that offers any protocols, or none.
pub(crate) async fn shake(
    address: SocketAddr,
    server_name: &str,
    indication: ServerNameIndication,
    protocols: &[&[u8]],
) -> io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    shake_on(tcp, server_name, indication, protocols).await
}

/// The same on a connection that was made before.
pub(crate) async fn shake_on(
    tcp: TcpStream,
    server_name: &str,
    indication: ServerNameIndication,
    protocols: &[&[u8]],
) -> io::Result<TlsStream<TcpStream>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_root_certificates(certificate::trust())
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.enable_sni = indication == ServerNameIndication::Sent;
    let name = ServerName::try_from(server_name.to_owned()).expect("a server name is a DNS name");
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

/// How long [`raw`] waits for an answer to begin, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long [`raw`] waits for more: a server that keeps the connection open says nothing for longer than this.
const SILENCE: Duration = Duration::from_secs(1);

/// Writes bytes as they are, malformed ones too, on an HTTP/1.1 connection, and reads until the server closes it or
/// falls silent after it has said something.
pub(crate) async fn raw(address: SocketAddr, server_name: &str, bytes: &[u8]) -> Vec<u8> {
    let stream = handshake(address, server_name, Protocol::Http1).await.expect("the server takes connections");
    exchange_within(stream, bytes, PATIENCE, SILENCE).await
}

/// Writes bytes on a stream, and reads until the server closes it or has been silent for so long.
pub(crate) async fn exchange(stream: impl AsyncRead + AsyncWrite, bytes: &[u8], silence: Duration) -> Vec<u8> {
    exchange_within(stream, bytes, silence, silence).await
}

/// The same with a limit for the first bytes, and one for the time between others.
async fn exchange_within(
    stream: impl AsyncRead + AsyncWrite,
    bytes: &[u8],
    first: Duration,
    silence: Duration,
) -> Vec<u8> {
    let (mut reading, mut writing) = tokio::io::split(stream);
    let mut answer = Vec::new();
    let write = async {
        // A server that has read enough to refuse may close before the end of it.
        let _ = writing.write_all(bytes).await;
        let _ = writing.flush().await;
    };
    let read = async {
        let mut limit = first;
        while let Ok(Ok(1..)) = timeout(limit, reading.read_buf(&mut answer)).await {
            limit = silence;
        }
    };
    tokio::join!(write, read);
    answer
}
