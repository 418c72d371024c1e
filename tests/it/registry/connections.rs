//! Connections of the operator API: many of them at once, and what is read of their heads.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::Method;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::scene::Scene;
use crate::support::client::operator_get;
use crate::support::fixture::Engine;
use crate::support::process::Node;

/// How long everything may take here; a connection may be without a request for longer.
pub(super) const SOON: Duration = Duration::from_secs(40);

/// Where a node serves the operator API over TCP.
pub(super) fn operator_tcp(node: &mut Node) -> SocketAddr {
    let address = node.log().lines().find_map(|line| {
        let (_, rest) = line.split_once("operator API is served\",\"address\":\"127.0.0.1:")?;
        rest.split_once('"')?.0.parse::<u16>().ok()
    });
    SocketAddr::from(([127, 0, 0, 1], address.expect("it is logged")))
}

/// The status of a request over TCP.
pub(super) async fn ask(address: SocketAddr, token: &str, target: &str) -> u16 {
    call_over_tcp(address, token, "GET", target, "").await
}

/// The same for any method and body.
pub(super) async fn call_over_tcp(
    address: SocketAddr,
    token: impl AsRef<str>,
    method: &str,
    target: impl AsRef<str>,
    body: impl AsRef<str>,
) -> u16 {
    let (token, target, body) = (token.as_ref(), target.as_ref(), body.as_ref());
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    std::str::from_utf8(&line[9..]).unwrap().parse().unwrap()
}

pub(super) fn operator_token(scene: &Scene, name: &str) -> String {
    scene.succeed(&["operator-token", "create", "--name", name]).trim_end().to_owned()
}

#[tokio::test]
async fn connections_without_a_request_lock_nobody_out() {
    const HALF: &[u8] = b"GET /v1/nodes HTTP/1.1\r\nhost: x\r\n";
    let scene = Scene::new(Engine::Sqlite);
    let mut node = scene.start(0);
    let (tcp, metrics) = (operator_tcp(&mut node), node.operator_address());
    let token = operator_token(&scene, "tests");
    let mut held: (Vec<UnixStream>, Vec<TcpStream>) = Default::default();
    for _ in 0..100 {
        let mut stream = UnixStream::connect(scene.socket(0)).await.unwrap();
        stream.write_all(HALF).await.ok();
        held.0.push(stream);
        for address in [tcp, metrics] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(HALF).await.ok();
            held.1.push(stream);
        }
    }
    let answers = async {
        assert_eq!(scene.call(0, Method::GET, "/v1/nodes", None).await.status, 200);
        assert_eq!(ask(tcp, &token, "/v1/nodes").await, 200);
        assert_eq!(operator_get(metrics, "/metrics").await.status, 200);
    };
    timeout(SOON, answers).await.expect("each is answered");
    drop(held);
}

/// The statuses of requests that are sent on so many connections at once, before any response is read.
async fn ask_at_once<S>(count: usize, request: &str, connect: impl AsyncFn() -> std::io::Result<S>) -> Vec<u16>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let asking: FuturesUnordered<_> = (0..count)
        .map(|_| async {
            let mut stream = connect().await.expect("a connection");
            stream.write_all(request.as_bytes()).await.expect("it is read");
            let mut line = [0; 12];
            stream.read_exact(&mut line).await.expect("a whole request is answered");
            std::str::from_utf8(&line[9..]).unwrap().parse::<u16>().unwrap()
        })
        .collect();
    timeout(SOON, asking.collect()).await.expect("each is answered")
}

#[tokio::test]
async fn whole_requests_are_answered_however_many_connections_they_come_on_at_once() {
    const COUNT: usize = 300;
    let scene = Scene::new(Engine::Sqlite);
    let mut node = scene.start(0);
    let (tcp, metrics) = (operator_tcp(&mut node), node.operator_address());
    let token = format!("authorization: Bearer {}\r\n", operator_token(&scene, "tests"));
    let body = json!({ "name": "x" }).to_string();
    for (request, expected) in [
        ("GET /v1/nodes HTTP/1.1\r\nhost: x\r\nTOKEN\r\n".to_owned(), 200),
        (
            format!(
                "POST /v1/tenants/none/tokens HTTP/1.1\r\nhost: x\r\nTOKENcontent-length: {}\r\n\r\n{body}",
                body.len()
            ),
            404,
        ),
    ] {
        let [without, with] = ["", &*token].map(|token| request.replace("TOKEN", token));
        let socket = ask_at_once(COUNT, &without, async || UnixStream::connect(scene.socket(0)).await);
        let tcp = ask_at_once(COUNT, &with, async || TcpStream::connect(tcp).await);
        assert_eq!(tokio::join!(socket, tcp), (vec![expected; COUNT], vec![expected; COUNT]), "{request}");
    }
    let health = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    assert_eq!(ask_at_once(COUNT, health, async || TcpStream::connect(metrics).await).await, [200; COUNT]);
}

#[tokio::test]
async fn a_request_of_http_1_1_names_its_host() {
    let scene = Scene::new(Engine::Sqlite);
    let mut node = scene.start(0);
    let tcp = operator_tcp(&mut node);
    let token = operator_token(&scene, "tests");
    for (version, host, expected) in [
        ("1.1", "", 400),
        ("1.1", "host: x\r\nhost: x\r\n", 400),
        ("1.1", "host: x\r\n", 200),
        ("1.1", "host:\r\n", 200),
        ("1.0", "", 200),
        ("1.0", "host: x\r\n", 200),
        ("1.0", "host: x\r\nhost: x\r\n", 400),
    ] {
        let head = format!("GET /v1/nodes HTTP/{version}\r\n{host}authorization: Bearer {token}\r\n\r\n");
        let socket = ask_at_once(1, &head, async || UnixStream::connect(scene.socket(0)).await);
        let tcp = ask_at_once(1, &head, async || TcpStream::connect(tcp).await);
        assert_eq!(tokio::join!(socket, tcp), (vec![expected], vec![expected]), "{head:?}");
    }
}

#[tokio::test]
async fn calls_whose_body_does_not_come_lock_nobody_out() {
    /// Shorter than a body may take.
    const SOON: Duration = Duration::from_secs(25);
    let scene = Scene::new(Engine::Sqlite);
    let mut node = scene.start(0);
    let tcp = operator_tcp(&mut node);
    let [half, other] = ["half", "other"].map(|name| operator_token(&scene, name));
    for body in
        ["content-length: 100\r\n\r\n", "content-length: 100\r\n\r\n{", "transfer-encoding: chunked\r\n\r\n5\r\n{"]
    {
        let head = format!("PUT /v1/tenants/x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {half}\r\n{body}");
        let mut held: (Vec<UnixStream>, Vec<TcpStream>) = Default::default();
        for _ in 0..100 {
            let mut stream = UnixStream::connect(scene.socket(0)).await.unwrap();
            stream.write_all(head.as_bytes()).await.ok();
            held.0.push(stream);
            let mut stream = TcpStream::connect(tcp).await.unwrap();
            stream.write_all(head.as_bytes()).await.ok();
            held.1.push(stream);
        }
        let answers = async {
            assert_eq!(scene.call(0, Method::GET, "/v1/nodes", None).await.status, 200);
            assert_eq!(ask(tcp, &other, "/v1/nodes").await, 200);
            let mut line = [0; 12];
            held.1.last_mut().unwrap().read_exact(&mut line).await.unwrap();
            assert_eq!(&line, b"HTTP/1.1 408");
        };
        timeout(SOON, answers).await.unwrap_or_else(|_| panic!("each is answered: {body:?}"));
    }
}

#[tokio::test]
async fn a_caller_that_waits_for_changes_locks_nobody_out() {
    let scene = Scene::new(Engine::Sqlite);
    let mut node = scene.start(0);
    let tcp = operator_tcp(&mut node);
    let [waiting, other] = ["waiting", "other"].map(|name| operator_token(&scene, name));
    let head = scene.call(0, Method::GET, "/v1/changes", None).await.body["meta"]["revision"].clone();
    let target = format!("/v1/changes?after={head}&wait=60");
    let asked: FuturesUnordered<_> = (0..64).map(|_| ask(tcp, &waiting, &target)).collect();
    let answers = async {
        // All but a share of them are refused, and the others wait.
        let refused: Vec<u16> = asked.take(48).collect().await;
        assert_eq!(refused, [429; 48]);
        assert_eq!(ask(tcp, &other, "/v1/nodes").await, 200);
        assert_eq!(scene.call(0, Method::GET, "/v1/nodes", None).await.status, 200);
    };
    timeout(SOON, answers).await.expect("each is answered");
}
