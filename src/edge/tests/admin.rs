//! Tests of the operator's listener.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::soon;
use crate::edge::admin::{self, Admin, Readiness};
use crate::edge::bind;
use crate::metrics::Metrics;
use crate::systemd::InheritedSockets;

async fn start(metrics: Metrics, ready: Arc<AtomicBool>) -> (Admin, SocketAddr) {
    let listener = bind("127.0.0.1:0".parse().unwrap(), &mut InheritedSockets::default()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let readiness = move || {
        let ready = ready.load(Ordering::Relaxed);
        let state = if ready { "ok" } else { "draining" };
        Readiness { ready, parts: BTreeMap::from([("edge", state.to_owned())]), tenants: BTreeMap::new(), share: None }
    };
    (admin::serve(listener, metrics, Arc::new(readiness)), address)
}

/// Returns the head in lower case, and the body.
async fn ask(address: SocketAddr, method: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    soon(stream.read_to_string(&mut text)).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

fn parsed(body: &str) -> Value {
    serde_json::from_str(body).unwrap()
}

#[tokio::test]
async fn liveness_metrics_and_head_are_answered() {
    let metrics = Metrics::default();
    metrics.edge.handshakes.with_label_values(&["done"]).inc_by(3);
    let (_admin, address) = start(metrics, Arc::new(AtomicBool::new(true))).await;

    let (head, body) = ask(address, "GET", "/healthz").await;
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: application/json"), "{head}");
    assert_eq!(parsed(&body), json!({"status": "ok"}));

    let (head, body) = ask(address, "GET", "/metrics").await;
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("formgate_handshakes_total{result=\"done\"} 3"), "{body}");

    let (head, body) = ask(address, "HEAD", "/healthz").await;
    assert!(head.starts_with("http/1.1 200") && head.contains("content-length: 15"), "{head}");
    assert_eq!(body, "");
}

#[tokio::test]
async fn readiness_follows_its_parts() {
    let ready = Arc::new(AtomicBool::new(true));
    let (_admin, address) = start(Metrics::default(), Arc::clone(&ready)).await;
    let (head, body) = ask(address, "GET", "/readyz").await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(parsed(&body), json!({"ready": true, "parts": {"edge": "ok"}, "tenants": {}}));

    ready.store(false, Ordering::Relaxed);
    let (head, body) = ask(address, "GET", "/readyz?verbose").await;
    assert!(head.starts_with("http/1.1 503"), "{head}");
    assert_eq!(parsed(&body), json!({"ready": false, "parts": {"edge": "draining"}, "tenants": {}}));
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let (admin, address) = start(Metrics::default(), Arc::new(AtomicBool::new(true))).await;
    let (head, body) = ask(address, "GET", "/api/v1/me").await;
    assert!(head.starts_with("http/1.1 404"), "{head}");
    assert_eq!(parsed(&body), json!({"message": "Not found"}));

    let (head, body) = ask(address, "POST", "/metrics").await;
    assert!(head.starts_with("http/1.1 405") && head.contains("allow: get, head"), "{head}");
    assert_eq!(parsed(&body), json!({"message": "Method not allowed"}));

    drop(admin);
    soon(async { while TcpStream::connect(address).await.is_ok() {} }).await;
}
