//! A node that has no file descriptor left.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::support::acme::Acme;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;

/// The clock ticks of processor time that a process has used (proc(5), `utime` and `stime`); a hundred are a second.
fn ticks(id: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).expect("the node runs");
    let (_, fields) = stat.rsplit_once(')').expect("the name ends");
    fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
}

async fn connections_more_than_enough(address: SocketAddr) -> Vec<TcpStream> {
    let mut connections = Vec::new();
    for _ in 0..16 {
        connections.push(TcpStream::connect(address).await.expect("the queue has room"));
    }
    connections
}

#[tokio::test]
async fn a_node_out_of_descriptors_does_not_spin_and_goes_on_when_there_are_some() {
    let mut acme = Acme::start();
    let caller = acme.caller();
    assert_eq!(caller.get("/api/v1/me").send().await.status, 200);
    let id = acme.node.id();
    let open = fs::read_dir(format!("/proc/{id}/fd")).expect("the node runs").count();
    let limit = format!("--nofile={}:", open + 8);
    let done = Command::new("prlimit").args(["--pid", &id.to_string(), &limit]).status();
    assert!(done.expect("prlimit is a part of util-linux").success());

    let silent = connections_more_than_enough(acme.node.address).await;
    let failing = |log: &str| log.contains("accepting fails").then_some(());
    assert!(acme.node.wait_for_log(Duration::from_secs(10), failing).is_some(), "it runs out of descriptors");
    let before = ticks(id);
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Who spins takes all of a second.
    assert!(ticks(id) - before < 50, "it spins");

    drop(silent);
    assert_eq!(caller.get("/api/v1/me").send().await.status, 200);
    let silent = connections_more_than_enough(acme.node.address).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(silent);
    assert_eq!(caller.get("/api/v1/me").send().await.status, 200);
    assert_eq!(acme.node.log().matches("accepting fails").count(), 1, "it is told once a minute");
}

#[tokio::test]
async fn a_node_opens_more_files_than_a_shell_grants_at_first() {
    const FEW: u32 = 64;
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    site.migrate();
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
