//! What bodies and answers hold: bounded in bytes for each tenant and for the node, and given back.

use std::fs;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use toml::Table;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::client::{Client, operator_count};
use crate::support::connection::{Protocol, handshake};
use crate::support::fixture::{Engine, Site, on_both_databases};

const SEARCH: &str = "/api/v1/submission";
const OK: &[u8; 12] = b"HTTP/1.1 200";
const MIB: usize = 1024 * 1024;

/// `acme` and `globex`, which share a node with little memory.
fn limited(engine: Engine, limits: &str) -> (Acme, Client) {
    let limits: Table = limits.parse().expect("TOML");
    let site = Site::new().gateway("limits", limits).tenant("acme", engine).tenant("globex", engine);
    let acme = Acme::of(site.requests_per_minute(100_000));
    let token = acme.site.token("globex", "tests");
    let globex = acme.node.client().to(&acme.site.host("globex")).with(&token);
    (acme, globex)
}

async fn reserved(acme: &mut Acme) -> usize {
    let bytes = operator_count(acme.node.operator_address(), "formgate_memory_reserved_bytes").await;
    usize::try_from(bytes).expect("less than memory")
}

async fn wait_until_reserved(acme: &mut Acme, what: &str, is_so: impl Fn(usize) -> bool) {
    let began = Instant::now();
    loop {
        let bytes = reserved(acme).await;
        if is_so(bytes) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{bytes} bytes are reserved, not {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Begins a request on a connection of its own, and neither sends more nor reads.
async fn begin(acme: &Acme, head: &str) -> TlsStream<TcpStream> {
    let mut stream = handshake(acme.node.address, &acme.host(), Protocol::Http1).await.expect("a connection");
    let head = format!(
        "{head}\r\nHost: acme.example.test\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        acme.token
    );
    stream.write_all(head.as_bytes()).await.expect("a fresh connection");
    stream.flush().await.expect("a fresh connection");
    stream
}

/// Begins a search whose body is declared as 1 MiB, and stops after `sent` bytes of it.
async fn begin_body(acme: &Acme, sent: usize) -> TlsStream<TcpStream> {
    let mut stream = begin(acme, &format!("POST {SEARCH} HTTP/1.1\r\nContent-Length: {MIB}")).await;
    stream.write_all(&vec![b' '; sent]).await.expect("it is read");
    stream.flush().await.expect("it is read");
    stream
}

/// Begins a request and reads no more of its answer than the status: by then it is built and what it was made of is
/// given back.
async fn begin_to_read(acme: &Acme, head: &str) -> TlsStream<TcpStream> {
    let mut stream = begin(acme, head).await;
    let mut status = [0; OK.len()];
    stream.read_exact(&mut status).await.expect("an answer");
    assert_eq!(status, *OK, "{}", String::from_utf8_lossy(&status));
    stream
}

async fn refused(acme: &mut Acme, reason: &str) -> u64 {
    let series = format!("formgate_requests_refused_total{{reason=\"{reason}\"}}");
    operator_count(acme.node.operator_address(), &series).await
}

#[tokio::test]
async fn a_body_is_refused_while_the_others_of_its_tenant_hold_its_share() {
    let (mut acme, globex) = limited(Engine::Sqlite, "memory_bytes = 9437184\nmemory_bytes_per_tenant = 5242880");
    let search = |caller: &Client| caller.post(SEARCH).fresh().body(vec![b' '; MIB]).send();
    let mut held = begin_body(&acme, MIB - 1).await;
    wait_until_reserved(&mut acme, "4 MiB", |bytes| bytes == 4 * MIB).await;
    let answer = search(&acme.caller()).await;
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, Some("1")), "{answer:?}");
    assert_eq!(answer.json(), json!({"message": "Service Unavailable"}));
    assert_eq!(refused(&mut acme, "tenant_memory").await, 1);
    assert_eq!(search(&globex).await.status, 200, "another tenant has a share of its own");
    assert_eq!(acme.caller().post(SEARCH).body("{}").send().await.status, 200, "a small body takes none");
    held.write_all(b" ").await.expect("it is read");
    held.flush().await.expect("it is read");
    let mut bytes = Vec::new();
    held.read_to_end(&mut bytes).await.expect("an answer and the end");
    assert_eq!(Answer::read(&bytes).expect("an answer").status, 200);
    wait_until_reserved(&mut acme, "none", |bytes| bytes == 0).await;
    assert_eq!(search(&acme.caller()).await.status, 200);
}

#[tokio::test]
async fn the_bodies_of_all_tenants_share_the_memory_of_the_node() {
    let (mut acme, globex) = limited(Engine::Sqlite, "memory_bytes = 5242880");
    let held = begin_body(&acme, MIB - 1).await;
    wait_until_reserved(&mut acme, "4 MiB", |bytes| bytes == 4 * MIB).await;
    assert_eq!(globex.post(SEARCH).fresh().body(vec![b' '; MIB]).send().await.status, 503);
    assert_eq!(refused(&mut acme, "memory").await, 1);
    drop(held);
    wait_until_reserved(&mut acme, "none", |bytes| bytes == 0).await;
    assert_eq!(globex.post(SEARCH).fresh().body(vec![b' '; MIB]).send().await.status, 200);
}

#[tokio::test]
async fn bodies_that_are_declared_and_not_sent_hold_nothing_that_others_need() {
    let (mut acme, globex) = limited(Engine::Sqlite, "memory_bytes = 9437184\nmemory_bytes_per_tenant = 6291456");
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(begin_body(&acme, 8 * 1024).await);
    }
    let search = |caller: &Client| caller.post(SEARCH).fresh().body(vec![b' '; MIB]).send();
    for caller in [&acme.caller(), &globex] {
        assert_eq!(search(caller).await.status, 200);
    }
    wait_until_reserved(&mut acme, "none", |bytes| bytes == 0).await;
    drop(held);
}

#[tokio::test]
async fn a_body_that_runs_out_of_memory_half_way_is_refused_and_releases_its_reservation() {
    let (mut acme, _) = limited(Engine::Sqlite, "memory_bytes_per_tenant = 6291456");
    let mut first = begin_body(&acme, MIB / 2).await;
    wait_until_reserved(&mut acme, "2 MiB", |bytes| bytes == 2 * MIB).await;
    let mut second = begin_body(&acme, MIB - 1).await;
    wait_until_reserved(&mut acme, "6 MiB", |bytes| bytes == 6 * MIB).await;
    first.write_all(&vec![b' '; MIB / 2]).await.expect("it is read");
    first.flush().await.expect("it is read");
    let mut bytes = Vec::new();
    first.read_to_end(&mut bytes).await.expect("an answer and the end");
    let answer = Answer::read(&bytes).expect("an answer");
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, Some("1")), "{answer:?}");
    assert_eq!(refused(&mut acme, "tenant_memory").await, 1);
    wait_until_reserved(&mut acme, "4 MiB", |bytes| bytes == 4 * MIB).await;
    second.write_all(b" ").await.expect("it is read");
    second.flush().await.expect("it is read");
    bytes.clear();
    second.read_to_end(&mut bytes).await.expect("an answer and the end");
    assert_eq!(Answer::read(&bytes).expect("an answer").status, 200);
    wait_until_reserved(&mut acme, "none", |bytes| bytes == 0).await;
}

/// The most memory that a node had so far.
fn peak(acme: &Acme) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", acme.node.id())).expect("the node runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says so");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

on_both_databases! {
    async fn many_bodies_at_once_cost_a_few_times_their_bytes_whatever_they_have(engine: Engine) {
        let (acme, _) = limited(engine, "");
        let zeros = format!("[{}0]", "0,".repeat(MIB / 2));
        let objects = format!("[{}{{}}]", "{\"\":0},".repeat(MIB / 7));
        assert_eq!(acme.caller().put("/api/v1/group").body(r#"{"name": "G", "members": []}"#).send().await.status, 201);
        for (body, status) in [
            (format!(r#"{{"name": "G", "unknown": {zeros}}}"#), 200),
            (format!(r#"{{"name": "G", "unknown": {objects}}}"#), 200),
            (format!(r#"{{"name": {zeros}}}"#), 422),
            (format!(r#"{{"name": "G", "members": [{{"email": "a@x.example", "more": {objects}}}]}}"#), 200),
            (format!(r#"{{"name": "G", "members": [{{"email": "a@x.example", "name": "{}"}}]}}"#, "n".repeat(MIB)), 422),
        ] {
            let before = peak(&acme);
            let (call, body) = (|body: &String| acme.caller().put("/api/v1/group").body(body.clone()).send(), &body);
            for answer in join_all((0..8).map(|_| call(body))).await {
                assert_eq!(answer.status, status);
            }
            // The kernel sums up the resident pages of threads late, so that even the most may sink a little.
            let grown = peak(&acme).saturating_sub(before);
            assert!(grown < 48 * MIB, "{} MiB more for 8 bodies of 1 MiB", grown / MIB);
        }
    }

    async fn unread_responses_are_bounded_and_their_memory_is_released(engine: Engine) {
        let (mut acme, globex) = limited(engine, "memory_bytes_per_tenant = 5242880\nwrite_seconds = 600");
        // 2,100 users with names of 8 KiB: an answer of 16 MiB, far more than sockets hold.
        let name = "n".repeat(8 * 1024);
        let user = |id: usize| json!({"type": "user", "id": id, "email": format!("u{id}@x.example"), "name": name});
        acme.site.import("acme", &(1..=2_100).map(|id| format!("{}\n", user(id))).collect::<String>());
        let groups: Value = acme.caller().get("/api/v1/group").send().await.json();
        let path = format!("/api/v1/group/{}", groups["data"][0]["id"].as_str().expect("the built-in group"));

        let (mut readers, before) = (Vec::new(), peak(&acme));
        for count in 1..=2 {
            readers.push(begin_to_read(&acme, &format!("GET {path} HTTP/1.1")).await);
            // The same for an answer of any length: what is read and written at once.
            wait_until_reserved(&mut acme, "the answers", |bytes| bytes == count * 2 * MIB).await;
        }
        let refused = acme.caller().get(&path).fresh().send().await;
        assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (503, Some("1")));
        assert_eq!(acme.caller().get("/api/v1/me").send().await.status, 200);
        assert_eq!(globex.get("/api/v1/group").send().await.status, 200);

        let mut whole = OK.to_vec();
        readers.remove(0).read_to_end(&mut whole).await.expect("the whole answer");
        assert!(whole.ends_with(b"\r\n0\r\n\r\n") && whole.len() > 16 * MIB, "{}", whole.len());
        let members = whole.windows(8).filter(|eight| eight == b"\"email\":").count();
        assert_eq!(members, 2_100);
        // Others may be streamed while one more is not read.
        wait_until_reserved(&mut acme, "the one that is not read", |bytes| bytes == 2 * MIB).await;
        assert_eq!(acme.caller().get(&path).fresh().send().await.status, 200, "there is room for another one");
        drop(readers);
        wait_until_reserved(&mut acme, "none", |bytes| bytes == 0).await;
        assert_eq!(acme.caller().get(&path).fresh().send().await.status, 200);
        let grown = peak(&acme).saturating_sub(before);
        assert!(grown < 32 * MIB, "{} MiB more for five answers of 16 MiB", grown / MIB);
    }
}
