//! Callers without a token: each answer is a 401, for which no database is asked.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certified::Certified;
use crate::node;

/// Handshakes at once, enough to keep both sides busy.
const AT_ONCE: usize = 8;

pub(crate) struct Caller {
    tls: TlsConnector,
    log: PathBuf,
}

impl Caller {
    pub(crate) fn new(world: &Certified) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(world.authority.der().clone())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self { tls: TlsConnector::from(Arc::new(config)), log: world.folder().join("log") })
    }

    pub(crate) async fn connect(&self, host: &str) -> anyhow::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(node::address(&self.log, "listening")?).await?;
        stream.set_nodelay(true)?;
        Ok(self.tls.connect(ServerName::try_from(host.to_owned())?, stream).await?)
    }

    /// A handshake and a request.
    pub(crate) async fn ask(&self, host: &str) -> anyhow::Result<()> {
        let mut stream = self.connect(host).await?;
        self.exchange(&mut stream, host).await
    }

    /// A request on a connection.
    pub(crate) async fn exchange(&self, stream: &mut TlsStream<TcpStream>, host: &str) -> anyhow::Result<()> {
        stream.write_all(format!("GET /api/v1/me HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes()).await?;
        let mut answer = vec![0; 4096];
        let mut length = 0;
        while !answer[..length].ends_with(b"}") {
            let some = stream.read(&mut answer[length..]).await?;
            anyhow::ensure!(some > 0, "the connection was closed");
            length += some;
        }
        anyhow::ensure!(answer.starts_with(b"HTTP/1.1 401"), "another answer");
        Ok(())
    }
}

/// How many handshakes a second succeed, to some of the hosts in turn.
pub(crate) async fn handshakes_a_second(
    caller: &Arc<Caller>,
    world: &Arc<Certified>,
    among: usize,
    time: Duration,
) -> anyhow::Result<f64> {
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let shake = || {
        let (caller, world, next) = (Arc::clone(caller), Arc::clone(world), Arc::clone(&next));
        tokio::spawn(async move {
            let mut done = 0_u32;
            while began.elapsed() < time {
                // A step that meets every host, far from the one before.
                let n = next.fetch_add(1, Ordering::Relaxed) * 7919 % among;
                caller.connect(&world.host(n)).await.with_context(|| world.host(n))?;
                done += 1;
            }
            anyhow::Ok(done)
        })
    };
    let mut done = 0;
    for shaking in (0..AT_ONCE).map(|_| shake()).collect::<Vec<_>>() {
        done += shaking.await??;
    }
    Ok(f64::from(done) / began.elapsed().as_secs_f64())
}
