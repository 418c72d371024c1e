//! A bare loop over the HTTP client that formgate sends with: the least that a delivery can cost.
//!
//! The loop is this program in a process of its own, so that its CPU is counted without that of the receivers. It sends one body
//! again and again over as many connections as formgate, without a database, a signature or a look at the target.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::Arguments;
use crate::accounts::{AT_ONCE, FORMS, On};
use crate::drain::{Backlog, Spent};
use crate::postgres_server::Postgres;
use crate::process::{Process, bound_to_us};
use crate::receiver::{Receiver, span};
use crate::rounds::Rounds;

/// The argument that makes this program the loop.
pub(crate) const ROLE: &str = "bare-loop";

/// How many times the CPU of the loop a delivery may cost.
const GOAL: f64 = 2.5;

/// What the loop sends, and where. It comes on standard input.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    urls: Vec<String>,
    authority: PathBuf,
    body: String,
    requests: usize,
}

pub(crate) async fn measure(server: &Postgres, arguments: &Arguments) -> anyhow::Result<()> {
    println!("\nown CPU of a delivery in µs, {} in each round", arguments.events);
    println!("{:<10} {:>10} {:>10} {:>10} {:>8}", "", "settling", "formgate", "bare loop", "ratio");
    for on in [On::Sqlite, On::Postgres(server)] {
        let (mut backlog, receiver) = (Backlog::make(on, "bare").await?, Receiver::start(FORMS).await?);
        let [mut settling, mut ours, mut bare] = [Rounds::default(), Rounds::default(), Rounds::default()];
        for _ in 0..arguments.rounds {
            let (spent, request) = backlog.deliver(arguments.events).await?;
            settling.push(spent.each(spent.settling));
            ours.push(spent.each(spent.own));
            let spent = send(&receiver, String::from_utf8(request.body)?, arguments.events).await?;
            bare.push(spent.each(spent.own));
        }
        let (name, ratio) = (on.name(), ours.ratio_to(&bare));
        let [settling, ours, bare] = [settling, ours, bare].map(|rounds| rounds.median());
        println!("{name:<10} {settling:>10.0} {ours:>10.0} {bare:>10.0} {ratio:>8.2} (goal: at most {GOAL})");
    }
    Ok(())
}

/// Runs the loop once.
async fn send(receiver: &Receiver, body: String, requests: usize) -> anyhow::Result<Spent> {
    let mut command = bound_to_us(std::env::current_exe()?, "KILL");
    command.arg(ROLE).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = Process::start(command, "KILL")?;
    let order = Order { urls: receiver.urls().collect(), authority: receiver.authority(), body, requests };
    let mut stdin = process.pipes().stdin.take().context("it is piped")?;
    let mut stdout = BufReader::new(process.pipes().stdout.take().context("it is piped")?);
    writeln!(stdin, "{}", serde_json::to_string(&order)?)?;
    expect_line(&mut stdout, "ready")?;
    let before = process.cpu()?;
    writeln!(stdin, "go")?;
    let arrivals = receiver.take(requests).await?;
    expect_line(&mut stdout, "done")?;
    let own = process.cpu()? - before;
    let none = Duration::ZERO;
    Ok(Spent { deliveries: requests, span: span(&arrivals), own, postgres: none, redis: none, settling: none })
}

fn expect_line(stdout: &mut BufReader<ChildStdout>, expected: &str) -> anyhow::Result<()> {
    let mut line = String::new();
    stdout.read_line(&mut line)?;
    ensure!(line.trim() == expected, "the bare loop prints {line:?} instead of {expected}");
    Ok(())
}

/// Is the loop.
#[expect(clippy::print_stdout, reason = "the bench waits for these lines")]
pub(crate) fn run() -> anyhow::Result<()> {
    let mut stdin = std::io::stdin().lock();
    let mut line = String::new();
    stdin.read_line(&mut line)?;
    let order: Order = serde_json::from_str(&line)?;
    // As many workers as there are cores, like the gateway.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let tls = tls(&order)?;
    println!("ready");
    stdin.read_line(&mut line)?;
    runtime.block_on(send_all(order, tls))?;
    println!("done");
    // It lives until its CPU was read.
    stdin.read_to_end(&mut Vec::new())?;
    Ok(())
}

fn tls(order: &Order) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&fs::read(&order.authority)?)?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

async fn send_all(order: Order, tls: ClientConfig) -> anyhow::Result<()> {
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_all_versions().build();
    let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build::<_, Full<Bytes>>(connector);
    let (sent, body) = (Arc::<AtomicUsize>::default(), Bytes::from(order.body));
    let mut senders = JoinSet::new();
    for n in 0..AT_ONCE {
        let uri: http::Uri = order.urls[n % order.urls.len()].parse()?;
        let (client, sent, body) = (client.clone(), Arc::clone(&sent), body.clone());
        senders.spawn(async move {
            while sent.fetch_add(1, Ordering::Relaxed) < order.requests {
                let request = Request::post(uri.clone()).header("content-type", "application/json");
                let response = client.request(request.body(Full::new(body.clone()))?).await?;
                ensure!(response.status() == 200, "the receiver answers {}", response.status());
                response.into_body().collect().await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = senders.join_next().await {
        ended??;
    }
    Ok(())
}
