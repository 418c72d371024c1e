//! A test client: TLS as a test requests it, and both HTTP versions.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::fixture::Fixture;

/// Longer than anything that a test waits for, so that the test fails instead of hanging.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Fails a test that waits in vain.
pub(super) async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(PATIENCE, what).await.expect("what a test waits for happens soon")
}

/// The handshake of a client.
#[derive(Clone, Copy)]
pub(super) struct Hello<'a> {
    pub(super) name: &'a str,
    /// Whether the ClientHello contains the name.
    pub(super) sni: bool,
    pub(super) alpn: &'a [&'a str],
    /// Bytes that are sent before the handshake.
    pub(super) header: &'a [u8],
}

impl<'a> Hello<'a> {
    pub(super) fn to(name: &'a str) -> Self {
        Self { name, sni: true, alpn: &["http/1.1"], header: b"" }
    }

    pub(super) fn offering(self, alpn: &'a [&'a str]) -> Self {
        Self { alpn, ..self }
    }

    pub(super) fn without_sni(self) -> Self {
        Self { sni: false, ..self }
    }

    pub(super) fn after(self, header: &'a [u8]) -> Self {
        Self { header, ..self }
    }

    pub(super) async fn shake(self, fixture: &Fixture) -> io::Result<TlsStream<TcpStream>> {
        let mut stream = TcpStream::connect(fixture.address).await?;
        stream.write_all(self.header).await?;
        self.shake_on(stream, Arc::clone(&fixture.roots)).await
    }

    /// Performs the handshake on an existing connection.
    pub(super) async fn shake_on(
        self,
        stream: TcpStream,
        roots: Arc<RootCertStore>,
    ) -> io::Result<TlsStream<TcpStream>> {
        let mut tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.enable_sni = self.sni;
        tls.alpn_protocols = self.alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let name = ServerName::try_from(self.name.to_owned()).unwrap();
        soon(TlsConnector::from(Arc::new(tls)).connect(name, stream)).await
    }
}

/// A connection for requests in either version.
pub(super) enum Caller {
    Http1(http1::SendRequest<Empty<Bytes>>, JoinHandle<hyper::Result<()>>),
    Http2(http2::SendRequest<Empty<Bytes>>, JoinHandle<hyper::Result<()>>),
}

pub(super) const BOTH: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

impl Caller {
    pub(super) async fn connect(fixture: &Fixture, version: Version) -> Self {
        let alpn = if version == Version::HTTP_2 { "h2" } else { "http/1.1" };
        let io = TokioIo::new(Hello::to("acme.example.com").offering(&[alpn]).shake(fixture).await.unwrap());
        if version == Version::HTTP_2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            Self::Http2(sender, tokio::spawn(connection))
        } else {
            let (sender, connection) = http1::handshake(io).await.unwrap();
            Self::Http1(sender, tokio::spawn(connection))
        }
    }

    /// Sends a GET; the returned future is the response.
    pub(super) fn send(&mut self, path: &str) -> impl Future<Output = hyper::Result<(Response<()>, String)>> + 'static {
        let response = self.request(path);
        async move {
            let (head, body) = soon(response).await.unwrap()?.into_parts();
            let body = soon(body.collect()).await?.to_bytes();
            Ok((Response::from_parts(head, ()), String::from_utf8(body.to_vec()).unwrap()))
        }
    }

    /// Sends a GET and reads only the head of the response.
    pub(super) async fn hold(&mut self, path: &str) -> Response<Incoming> {
        soon(self.request(path)).await.unwrap().unwrap()
    }

    fn request(&mut self, path: &str) -> JoinHandle<hyper::Result<Response<Incoming>>> {
        let request = Request::get(format!("https://acme.example.com{path}"));
        let request = request.header("host", "acme.example.com").body(Empty::new()).unwrap();
        match self {
            Self::Http1(sender, _) => tokio::spawn(sender.send_request(request)),
            Self::Http2(sender, _) => tokio::spawn(sender.send_request(request)),
        }
    }

    /// Waits until the gateway has closed the connection.
    pub(super) async fn closed(self) {
        let (Self::Http1(_, driver) | Self::Http2(_, driver)) = &self;
        while !driver.is_finished() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Sends the text unchanged and reads to the end.
pub(super) async fn exchange(stream: &mut TlsStream<TcpStream>, text: &str) -> String {
    stream.write_all(text.as_bytes()).await.unwrap();
    read_to_end(stream).await
}

/// Everything that arrives until the gateway closes the connection, with or without an error.
pub(super) async fn read_to_end(stream: &mut TlsStream<TcpStream>) -> String {
    let mut text = Vec::new();
    let _ = soon(stream.read_to_end(&mut text)).await;
    String::from_utf8(text).unwrap()
}
