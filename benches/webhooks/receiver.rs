//! Receivers of webhooks: TLS servers on ports of this process that speak HTTP/1.1, keep connections, and answer 200 at
//! once.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// The most header fields of a request.
const MAX_FIELDS: usize = 32;

/// How long no request may arrive before the bench gives up.
///
/// Larger: a fault is reported later. Smaller: a loaded machine looks like a fault.
const QUIET_LIMIT: Duration = Duration::from_secs(60);

/// A request that was read whole.
pub(crate) struct Arrival {
    /// When its first bytes were read.
    pub(crate) at: Instant,
    pub(crate) body: Vec<u8>,
}

pub(crate) struct Receiver {
    pub(crate) ports: Vec<u16>,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    folder: TempDir,
}

impl Receiver {
    /// Listens on free ports.
    pub(crate) async fn start(ports: usize) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        fs::write(folder.path().join("authority.pem"), issued.cert.pem())?;
        let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], key)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let mut receiver = Self { ports: Vec::new(), arrivals: Arc::default(), folder };
        for _ in 0..ports {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            receiver.ports.push(listener.local_addr()?.port());
            tokio::spawn(accept(listener, acceptor.clone(), Arc::clone(&receiver.arrivals)));
        }
        Ok(receiver)
    }

    /// Its certificate, which it issued itself.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    pub(crate) fn urls(&self) -> impl Iterator<Item = String> {
        self.ports.iter().map(|port| format!("https://127.0.0.1:{port}/hook"))
    }

    /// Waits until as many requests have arrived, and takes them.
    pub(crate) async fn take(&self, count: usize) -> anyhow::Result<Vec<Arrival>> {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            let now = self.lock().len();
            if now >= count {
                return Ok(std::mem::take(&mut *self.lock()));
            }
            if now > seen {
                (seen, since) = (now, Instant::now());
            }
            ensure!(since.elapsed() < QUIET_LIMIT, "{now} of {count} requests, and none for {QUIET_LIMIT:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// From the first request to the last.
pub(crate) fn span(arrivals: &[Arrival]) -> Duration {
    let at = || arrivals.iter().map(|arrival| arrival.at);
    at().max().zip(at().min()).map_or(Duration::ZERO, |(last, first)| last - first)
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, arrivals: Arc<Mutex<Vec<Arrival>>>) {
    while let Ok((tcp, _)) = listener.accept().await {
        let (acceptor, arrivals) = (acceptor.clone(), Arc::clone(&arrivals));
        // A client that closes its connection is no fault.
        tokio::spawn(async move { serve(tcp, &acceptor, &arrivals).await.ok() });
    }
}

async fn serve(tcp: TcpStream, acceptor: &TlsAcceptor, arrivals: &Mutex<Vec<Arrival>>) -> anyhow::Result<()> {
    tcp.set_nodelay(true)?;
    let mut stream = acceptor.accept(tcp).await?;
    let mut buffer = Vec::with_capacity(8 * 1024);
    loop {
        ensure!(stream.read_buf(&mut buffer).await? > 0, "the client is gone");
        let at = Instant::now();
        let (head, length) = loop {
            if let Some(found) = parse(&buffer)? {
                break found;
            }
            ensure!(stream.read_buf(&mut buffer).await? > 0, "the client is gone");
        };
        while buffer.len() < head + length {
            ensure!(stream.read_buf(&mut buffer).await? > 0, "the client is gone");
        }
        // The client waits for the answer, so nothing follows the body.
        let body = buffer[head..head + length].to_vec();
        buffer.clear();
        arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(Arrival { at, body });
        stream.write_all(ANSWER).await?;
        stream.flush().await?;
    }
}

/// The lengths of a complete head, and of the body.
fn parse(buffer: &[u8]) -> anyhow::Result<Option<(usize, usize)>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let httparse::Status::Complete(head) = request.parse(buffer)? else { return Ok(None) };
    let length = request.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length = std::str::from_utf8(length.context("a body has a length")?.value)?.parse()?;
    Ok(Some((head, length)))
}
