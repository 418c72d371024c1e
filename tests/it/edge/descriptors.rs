//! A node that has no file descriptor left.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::support::acme::Acme;
use crate::support::client::operator_get;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;
use crate::support::redis::Redis;

/// The clock ticks of processor time that a process has used (proc(5), `utime` and `stime`); a hundred are a second.
fn ticks(id: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).expect("the node runs");
    let (_, fields) = stat.rsplit_once(')').expect("the name ends");
    fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
}

/// How many descriptors a process has open.
fn open_files(id: u32) -> usize {
    fs::read_dir(format!("/proc/{id}/fd")).expect("the node runs").count()
}

async fn connections_more_than_enough(address: SocketAddr) -> Vec<TcpStream> {
    let mut connections = Vec::new();
    for _ in 0..16 {
        connections.push(TcpStream::connect(address).await.expect("the queue has room"));
    }
    connections
}

#[tokio::test]
async fn a_node_out_of_descriptors_does_not_spin_and_recovers() {
    let mut acme = Acme::start();
    let caller = acme.caller();
    assert_eq!(caller.get("/api/v1/me").send().await.status, 200);
    let id = acme.node.id();
    let limit = open_files(id) + 8;
    let option = format!("--nofile={limit}:");
    let done = Command::new("prlimit").args(["--pid", &id.to_string(), &option]).status();
    assert!(done.expect("prlimit is a part of util-linux").success());

    let silent = connections_more_than_enough(acme.node.address).await;
    let failing = |log: &str| log.contains("accepting fails").then_some(());
    assert!(acme.node.wait_for_log(Duration::from_secs(30), failing).is_some(), "it runs out of descriptors");
    let before = ticks(id);
    // What is measured, not a wait: a node that spins uses all of a second. A loaded machine gives it less, never more.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(ticks(id) - before < 50, "it spins");

    drop(silent);
    assert_eq!(caller.get("/api/v1/me").send().await.status, 200);
    let silent = connections_more_than_enough(acme.node.address).await;
    until(async || open_files(id) >= limit).await;
    drop(silent);
    assert_eq!(caller.get("/api/v1/me").send().await.status, 200);
    assert_eq!(acme.node.log().matches("accepting fails").count(), 1, "it is told once a minute");
}

#[tokio::test]
async fn a_node_opens_more_files_than_a_shell_grants_at_first() {
    const FEW: u32 = 64;
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let token = site.token("acme", "tests");
    let node = Node::spawn_with_few_files(&site.config_path, FEW);
    let mut acme = Acme { site, node, token };
    let mut connections = Vec::new();
    for _ in 0..FEW {
        connections.push(TcpStream::connect(acme.node.address).await.expect("the queue has room"));
    }
    assert_eq!(acme.caller().get("/api/v1/me").send().await.status, 200);
    assert!(!acme.node.log().contains("accepting fails"), "{}", acme.node.log());
}

/// Neither Redis nor the database is connected to any more when the request comes.
#[tokio::test]
async fn clients_that_hold_all_connections_leave_descriptors_for_redis_and_databases() {
    const SILENT: usize = 600;
    let redis = Redis::start();
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(1000).redis(&redis);
    let site = site.gateway("redis_timeout_ms", 5000).gateway("on_redis_failure", "deny").databases("idle_seconds", 1);
    let site = site.write();
    let token = site.token("acme", "tests");
    let mut node = Node::spawn_with_at_most_files(&site.config_path, 256);
    let lowered = node.log();
    assert!(lowered.contains("`limits.connections` = 10000 is lowered to "), "{lowered}");
    assert!(lowered.contains("the limit of open files is 256"), "{lowered}");
    let caller = node.client().to(&site.host("acme")).with(&token);
    assert_eq!(caller.get("/api/v1/form").send().await.status, 200);

    let files = format!("/proc/{}/fd", node.id());
    let is_open = || {
        let links = fs::read_dir(&files).expect("the node runs").flatten();
        links.filter_map(|link| fs::read_link(link.path()).ok()).any(|file| file.to_string_lossy().contains("acme.db"))
    };
    until(async || !is_open()).await;
    let silent: Vec<_> = (0..SILENT).map(|_| TcpStream::connect(node.address)).collect();
    let silent: Vec<_> = futures_util::future::join_all(silent).await.into_iter().flatten().collect();
    assert!(silent.len() > SILENT / 2, "the queue takes most of them");
    let operator = node.operator_address();
    until(async || {
        let metrics = operator_get(operator, "/metrics").await;
        let metrics = String::from_utf8(metrics.body).expect("text");
        !metrics.contains(r#"formgate_connections_refused_total{reason="address"} 0"#)
    })
    .await;
    assert!(redis.run::<u32>(&["CLIENT", "KILL", "TYPE", "normal"]) > 0);
    until(async || caller.get("/api/v1/form").try_send().await.is_ok_and(|answer| answer.status == 200)).await;
    assert!(!node.log().contains("accepting fails"), "{}", node.log());
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(20), "it does not come about");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
