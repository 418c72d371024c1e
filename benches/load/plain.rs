//! What a gateway in Rust cannot cost less than: hyper and rustls, a look at host and token, a static answer. With a
//! Redis it also asks the usual script, a sorted set an account; and it can remember a refusal until it ends.
//!
//! It does as little as possible, so it is a lower bound and not a design: no limits on callers, no metrics, no log,
//! accounts that never change. It is a process of its own that reads [`Plain`] from standard input and prints its address.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use redis::Script;
use redis::aio::MultiplexedConnection;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::account::Account;
use crate::process::{Process, bound_to_us};
use crate::site::Site;
use crate::target::Target;

/// The argument that makes this program plain hyper.
pub(crate) const ROLE: &str = "be-plain-hyper";

/// The usual window.
pub(crate) const SORTED_SET: &str = include_str!("sorted_set.lua");
static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SORTED_SET));

/// As long as what the gateway answers.
pub(crate) const ANSWER: &str = concat!(
    r#"{"message":"Welcome to Account a00000","account":{"id":"a00000","name":"Account a00000","timezone":"UTC"},"#,
    r#""usage":[{"token":"bench","requests":42}]}"#
);

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plain {
    pub(crate) certificate: PathBuf,
    pub(crate) private_key: PathBuf,
    pub(crate) accounts: Vec<Account>,
    /// Without one it limits nothing.
    pub(crate) window: Option<SortedSet>,
}

/// A window in Redis.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SortedSet {
    pub(crate) redis: String,
    pub(crate) limit: u32,
    pub(crate) milliseconds: u32,
    pub(crate) remembers_refusals: bool,
}

struct Served {
    accounts: HashMap<String, Known>,
    window: Option<(SortedSet, MultiplexedConnection)>,
}

struct Known {
    digest: [u8; 32],
    key: String,
    refused_until: Mutex<Option<Instant>>,
}

/// Starts it, with a window in Redis or without.
pub(crate) fn start(site: &Site, name: &'static str, window: Option<SortedSet>) -> anyhow::Result<Target> {
    let mut command = bound_to_us(std::env::current_exe()?, "KILL");
    command.arg(ROLE).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(command, "KILL")?;
    let (certificate, private_key) = (site.folder.certificate(), site.folder.private_key());
    let order = Plain { certificate, private_key, accounts: site.accounts.clone(), window };
    let mut stdin = process.pipes().stdin.take().context("it is piped")?;
    writeln!(stdin, "{}", serde_json::to_string(&order)?)?;
    let mut line = String::new();
    BufReader::new(process.pipes().stdout.take().context("it is piped")?).read_line(&mut line)?;
    let address = line.trim().parse().with_context(|| format!("{name} does not start"))?;
    Ok(Target { name, address, process, log: None })
}

/// Serves until it is killed.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    // As many workers as there are cores, like the gateway.
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(serde_json::from_str(&line)?))
}

#[expect(clippy::print_stdout, reason = "the bench reads the address there")]
async fn serve(plain: Plain) -> anyhow::Result<()> {
    let tls = acceptor(&plain.certificate, &plain.private_key)?;
    let known = |account: Account| {
        let (digest, key) = (Sha256::digest(&account.token).into(), format!("plain:{}", account.host));
        (account.host, Known { digest, key, refused_until: Mutex::default() })
    };
    let window = match plain.window {
        Some(window) => {
            let connection = redis::Client::open(window.redis.as_str())?.get_multiplexed_async_connection().await?;
            Some((window, connection))
        }
        None => None,
    };
    let served = Arc::new(Served { accounts: plain.accounts.into_iter().map(known).collect(), window });
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let (tls, served) = (tls.clone(), Arc::clone(&served));
        tokio::spawn(async move {
            // What becomes of a connection, its caller tells.
            let _ = connection(stream, &tls, served).await;
        });
    }
}

fn acceptor(certificate: &Path, private_key: &Path) -> anyhow::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config =
        config.with_no_client_auth().with_single_cert(chain, PrivateKeyDer::from_pem_file(private_key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn connection(stream: TcpStream, tls: &TlsAcceptor, served: Arc<Served>) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let stream = tls.accept(stream).await?;
    let is_http_2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let io = TokioIo::new(stream);
    let service = service_fn(move |request| answer(request, Arc::clone(&served)));
    if is_http_2 {
        http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await?;
    } else {
        http1::Builder::new().serve_connection(io, service).await?;
    }
    Ok(())
}

type Request = hyper::Request<Incoming>;
type Response = hyper::Response<Full<Bytes>>;

async fn answer(request: Request, served: Arc<Served>) -> Result<Response, Infallible> {
    let host = request.uri().host().or_else(|| request.headers().get("host")?.to_str().ok()).unwrap_or_default();
    let Some(account) = served.accounts.get(host) else { return Ok(respond(404, "{}", 0, 0)) };
    let token = request.headers().get("authorization").and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if token.is_none_or(|token| <[u8; 32]>::from(Sha256::digest(token)) != account.digest) {
        return Ok(respond(401, "{}", 0, 0));
    }
    Ok(match admit(account, &served).await {
        Ok((limit, remaining)) => respond(200, ANSWER, limit, remaining),
        Err(wait) => {
            let mut response = respond(429, r#"{"message":"Too Many Attempts."}"#, 0, 0);
            response.headers_mut().insert("retry-after", HeaderValue::from(wait.as_secs() + 1));
            response
        }
    })
}

/// Limit and what is left of it, or how long to wait.
async fn admit(account: &Known, served: &Served) -> Result<(u32, u32), Duration> {
    let Some((window, connection)) = &served.window else { return Ok((0, 0)) };
    let refused_until = || account.refused_until.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if let Some(until) = refused_until().filter(|until| window.remembers_refusals && *until > now) {
        return Err(until - now);
    }
    let mut invocation = SCRIPT.key(&account.key);
    invocation.arg(window.limit).arg(window.milliseconds).arg("spend").arg(1);
    let (admitted, remaining, wait, _): (bool, u32, u64, Vec<u8>) =
        invocation.invoke_async(&mut connection.clone()).await.expect("the bench's Redis answers");
    if admitted {
        return Ok((window.limit, remaining));
    }
    let wait = Duration::from_millis(wait);
    *refused_until() = Some(Instant::now() + wait);
    Err(wait)
}

fn respond(status: u16, body: &'static str, limit: u32, remaining: u32) -> Response {
    let mut response = Response::new(Full::new(Bytes::from_static(body.as_bytes())));
    *response.status_mut() = hyper::StatusCode::from_u16(status).expect("a status of this file");
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("x-ratelimit-limit", HeaderValue::from(limit));
    headers.insert("x-ratelimit-remaining", HeaderValue::from(remaining));
    response
}
