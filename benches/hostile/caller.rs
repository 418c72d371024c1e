//! Connections, and the normal traffic on them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::gateway::{HOST, Reach};

/// How many connections of each protocol normal traffic uses.
const CONNECTIONS: usize = 8;

/// A TCP connection from one of the loopback addresses.
pub(crate) async fn dial(gateway: &Reach, from: &str) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(from.parse()?)?;
    let stream = socket.connect(gateway.address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The same with TLS.
pub(crate) async fn shake(gateway: &Reach, from: &str, alpn: &[u8]) -> anyhow::Result<TlsStream<TcpStream>> {
    let mut tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(Arc::clone(&gateway.roots))
        .with_no_client_auth();
    tls.alpn_protocols = vec![alpn.to_vec()];
    let stream = dial(gateway, from).await?;
    Ok(TlsConnector::from(Arc::new(tls)).connect(ServerName::try_from(HOST)?, stream).await?)
}

/// What normal traffic met.
pub(crate) struct Met {
    pub(crate) p99: Duration,
    /// Requests without an answer of 200.
    pub(crate) failed: usize,
}

enum Sender {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl Sender {
    async fn open(gateway: &Reach, is_http_2: bool) -> anyhow::Result<Self> {
        let alpn = if is_http_2 { b"h2".as_slice() } else { b"http/1.1" };
        let io = TokioIo::new(shake(gateway, "127.0.0.1:0", alpn).await?);
        Ok(if is_http_2 {
            let (sender, driver) = http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(driver);
            Self::Http2(sender)
        } else {
            let (sender, driver) = http1::handshake(io).await?;
            tokio::spawn(driver);
            Self::Http1(sender)
        })
    }

    async fn call(&mut self, token: &str) -> anyhow::Result<bool> {
        let request = Request::get(match self {
            Self::Http1(_) => "/api/v1/me".to_owned(),
            Self::Http2(_) => format!("https://{HOST}/api/v1/me"),
        });
        let request = request.header("host", HOST).header("authorization", format!("Bearer {token}"));
        let request = request.body(Empty::new())?;
        let response = match self {
            Self::Http1(sender) => sender.send_request(request).await?,
            Self::Http2(sender) => sender.send_request(request).await?,
        };
        let status = response.status();
        response.into_body().collect().await?;
        Ok(status == 200)
    }
}

/// Calls at a fixed rate for a while.
pub(crate) async fn measure(gateway: &Reach, rate: u32, phase: Duration) -> anyhow::Result<Met> {
    let workers = 2 * CONNECTIONS;
    let mut senders = Vec::new();
    for at in 0..workers {
        let mut sender = Sender::open(gateway, at % 2 == 0).await?;
        sender.call(&gateway.token).await?;
        senders.push(sender);
    }
    let began = Instant::now();
    let tasks = senders.into_iter().enumerate().map(|(at, mut sender)| {
        let token = gateway.token.clone();
        tokio::spawn(async move {
            let (mut latencies, mut failed) = (Vec::new(), 0);
            for turn in (at..).step_by(workers) {
                let due = began + Duration::from_secs(1) * u32::try_from(turn).expect("a few seconds") / rate;
                if due >= began + phase {
                    break;
                }
                sleep_until(due).await;
                match sender.call(&token).await {
                    Ok(true) => latencies.push(due.elapsed()),
                    Ok(false) | Err(_) => failed += 1,
                }
            }
            (latencies, failed)
        })
    });
    let (mut latencies, mut failed) = (Vec::new(), 0);
    for task in tasks.collect::<Vec<_>>() {
        let (some, lost) = task.await?;
        latencies.extend(some);
        failed += lost;
    }
    latencies.sort_unstable();
    let p99 = latencies.get(latencies.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(phase);
    Ok(Met { p99, failed })
}
