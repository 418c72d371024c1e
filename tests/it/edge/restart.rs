//! Nodes that are restarted while callers go on asking: none of them notices.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;

use crate::support::child::free_port;
use crate::support::client::Client;
use crate::support::fixture::{Engine, Site};
use crate::support::load::{Load, Seen};
use crate::support::process::{Node, formgate_on};
use crate::support::redis::Redis;

/// How many callers ask at once.
const CALLERS: usize = 12;

/// How long a stop may take: the delay, the last call and a debug build's own pace.
const STOP: Duration = Duration::from_secs(30);

fn assert_none_lost(seen: &Seen) {
    assert!(seen.failures.is_empty(), "{} of {}: {:#?}", seen.failures.len(), seen.answered, seen.failures);
}

/// A node, and whether it says that it should be given requests: what a balancer knows of it.
#[derive(Clone)]
struct Watched {
    client: Client,
    ready: Arc<AtomicBool>,
}

impl Watched {
    /// Asks for the readiness several times a second, as a balancer does.
    fn new(address: SocketAddr, operator: SocketAddr) -> Self {
        let watched = Self { client: Client::new(address), ready: Arc::default() };
        let ready = Arc::clone(&watched.ready);
        tokio::spawn(async move {
            loop {
                ready.store(is_ready(operator).await.unwrap_or(false), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        watched
    }
}

async fn is_ready(operator: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(operator).await?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text.starts_with("HTTP/1.1 200"))
}

/// Waits until something holds.
async fn until(holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < STOP, "it never came to pass");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_restarted_one_after_the_other_lose_no_request() {
    let redis = Redis::start();
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000).redis(&redis);
    let site = site.gateway("shutdown_delay_seconds", 1).write();
    let token = site.token("acme", "tests");
    // Ports that a restarted node has again.
    let configs = [1, 2].map(|n| {
        let ports = [free_port(), free_port()];
        let text = fs::read_to_string(&site.config_path).expect("it was written");
        let text = ports.iter().fold(text, |text, port| text.replacen("127.0.0.1:0", &format!("127.0.0.1:{port}"), 1));
        let path = site.folder().join(format!("node-{n}.toml"));
        fs::write(&path, text).expect("the site's folder can be written");
        path
    });
    let mut nodes = configs.each_ref().map(|config| Node::spawn(config));
    let watched = nodes.each_mut().map(|node| Watched::new(node.address, node.operator_address()));
    until(|| watched.iter().all(|node| node.ready.load(Ordering::Relaxed))).await;

    let (turn, host) = (Arc::<AtomicUsize>::default(), site.host("acme"));
    let load = Load::start(CALLERS, {
        let watched = watched.clone();
        move || {
            let ready: Vec<_> = watched.iter().filter(|node| node.ready.load(Ordering::Relaxed)).collect();
            let chosen = ready[turn.fetch_add(1, Ordering::Relaxed) % ready.len()];
            chosen.client.to(&host).with(&token)
        }
    });
    // A node that is not restarted: what its callers wait is the machine's.
    let other = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000).write();
    let (other_token, other_node) = (other.token("acme", "tests"), other.start());
    let other_client = other_node.client().to(&other.host("acme")).with(&other_token);
    let undisturbed = Load::start(3, move || other_client.clone());
    until(|| load.answered() > 50).await;
    for ((node, config), watched) in nodes.iter_mut().zip(&configs).zip(&watched) {
        assert_eq!(node.stop(STOP).await, 0);
        until(|| !watched.ready.load(Ordering::Relaxed)).await;
        let before = load.answered();
        until(|| load.answered() > before + 50).await;
        let config = config.clone();
        *node = spawn_blocking(move || Node::spawn(&config)).await.expect("it starts");
        until(|| watched.ready.load(Ordering::Relaxed)).await;
        let before = load.answered();
        until(|| load.answered() > before + 50).await;
    }
    let (seen, undisturbed) = (load.finish().await, undisturbed.finish().await);
    assert_none_lost(&seen);
    let limit = Duration::from_secs(5) + undisturbed.longest;
    assert!(seen.longest < limit, "nobody waits for a restart: {:?}, and not {limit:?}", seen.longest);
}

/// A site at addresses of systemd's sockets, and the sockets that listen there.
fn site_on_sockets() -> (Site, [TcpListener; 2]) {
    let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("there are free ports"));
    let [callers, operator] = sockets.each_ref().map(|socket| socket.local_addr().expect("it is bound").to_string());
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000);
    let site = site.gateway("listen", vec![callers]).gateway("admin_listen", operator).write();
    (site, sockets)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_on_a_systemd_socket_is_restarted_without_a_refused_connection() {
    let (site, [callers, operator]) = site_on_sockets();
    let (token, host) = (site.token("acme", "tests"), site.host("acme"));
    let mut node = Node::spawn_on(&site.config_path, [&operator, &callers], &[]);
    let address = callers.local_addr().expect("it is bound");
    assert_eq!((node.address, node.operator_address()), (address, operator.local_addr().expect("it is bound")));
    let client = Client::new(address).to(&host).with(&token);
    let load = Load::start(CALLERS, move || client.clone());
    for _ in 0..3 {
        let before = load.answered();
        until(|| load.answered() > before + 50).await;
        assert_eq!(node.stop(STOP).await, 0);
        // No process serves now, and whoever connects waits.
        let waiting = TcpStream::connect(address).await.expect("systemd's socket accepts connections");
        let (config, sockets) = (site.config_path.clone(), [&operator, &callers].map(|it| it.try_clone().unwrap()));
        let start = move || Node::spawn_on(&config, sockets.each_ref(), &[]);
        node = spawn_blocking(start).await.expect("it starts");
        drop(waiting);
    }
    let before = load.answered();
    until(|| load.answered() > before + 50).await;
    assert_none_lost(&load.finish().await);
}

/// The notice by which systemd knows that a node is alive.
const SIGN_OF_LIFE: &str = "WATCHDOG=1\n";

/// Where a node tells how it is.
fn notices(folder: &Path) -> (UnixDatagram, String) {
    let path = folder.join("notify.sock");
    let socket = UnixDatagram::bind(&path).expect("the site's folder can be written");
    socket.set_read_timeout(Some(STOP)).expect("a timeout can be set");
    (socket, path.to_str().expect("the temporary folder has a UTF-8 name").to_owned())
}

/// The next notice that is no sign of life.
fn next(socket: &UnixDatagram) -> Vec<String> {
    loop {
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes).expect("a notice in time");
        let text = std::str::from_utf8(&bytes[..length]).expect("text");
        if text != SIGN_OF_LIFE {
            return text.lines().map(str::to_owned).collect();
        }
    }
}

#[tokio::test]
async fn systemd_is_notified_when_a_node_serves_reloads_and_stops() {
    let (site, [callers, operator]) = site_on_sockets();
    let (socket, path) = notices(site.folder());
    let mut node = Node::spawn_on(&site.config_path, [&callers, &operator], &[("NOTIFY_SOCKET", &path)]);
    assert_eq!(next(&socket), ["READY=1", "STATUS=serving 1 tenants"]);
    assert!(
        is_ready(operator.local_addr().expect("it is bound")).await.expect("an answer"),
        "it serves when it says so"
    );

    node.signal("HUP");
    let reloading = next(&socket);
    let [first, clock] = reloading.as_slice() else { panic!("{reloading:?}") };
    assert_eq!(first, "RELOADING=1");
    let micros: u64 = clock.strip_prefix("MONOTONIC_USEC=").expect("the clock").parse().expect("a number");
    let uptime = fs::read_to_string("/proc/uptime").expect("Linux tells it");
    let now: f64 = uptime.split(' ').next().and_then(|seconds| seconds.parse().ok()).expect("seconds");
    assert!((now - Duration::from_micros(micros).as_secs_f64()).abs() < 30.0, "{micros} µs, now {now} s");
    assert_eq!(next(&socket), ["READY=1", "STATUS=serving 1 tenants"]);

    let sound = fs::read_to_string(&site.config_path).expect("it was written");
    fs::write(&site.config_path, format!("{sound}\n[nonsense]\n")).expect("the site's folder can be written");
    assert_eq!(next(&socket)[0], "RELOADING=1");
    assert_eq!(next(&socket), ["READY=1", "STATUS=serving 1 tenants; a changed configuration was refused"]);

    node.terminate();
    assert_eq!(next(&socket)[0], "STOPPING=1");
    assert_eq!(node.wait(STOP), 0);
}

#[test]
fn a_watchdog_gets_its_signs_of_life_also_during_a_stop() {
    let (site, [callers, operator]) = site_on_sockets();
    let (socket, path) = notices(site.folder());
    let config = fs::read_to_string(&site.config_path).expect("it was written");
    let config = config.replace("[gateway]", "[gateway]\nshutdown_delay_seconds = 2");
    fs::write(&site.config_path, config).expect("the site's folder can be written");
    let environment = [("NOTIFY_SOCKET", path.as_str()), ("WATCHDOG_USEC", "200000")];
    let mut node = Node::spawn_on(&site.config_path, [&callers, &operator], &environment);
    let notice = || {
        let mut bytes = [0; 1024];
        let length = socket.recv(&mut bytes).expect("a notice in time");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    // One every 100 ms, and the fewest that a busy machine may leave at least once.
    let is_regular = || {
        let (since, mut signs) = (Instant::now(), 0);
        while since.elapsed() < Duration::from_millis(500) {
            signs += usize::from(notice() == SIGN_OF_LIFE);
        }
        signs >= 3
    };
    assert!((0..20).any(|_| is_regular()));
    node.terminate();
    while !notice().starts_with("STOPPING=1\n") {}
    for _ in 0..3 {
        assert_eq!(notice(), SIGN_OF_LIFE);
    }
    // A node waits until there is room for its notices.
    drop(socket);
    assert_eq!(node.wait(STOP), 0);
}

#[test]
fn an_unclaimed_socket_is_reported_in_plain_words() {
    let (site, [callers, operator]) = site_on_sockets();
    let other = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
    let output = formgate_on(&site.config_path, [&callers, &other]);
    drop(operator);
    let address = other.local_addr().expect("it is bound");
    assert_eq!(output.code, 1);
    let message = format!("systemd passes a socket at {address}, but no entry of `listen` and no `admin_listen`");
    assert!(output.stderr.contains(&message), "{}", output.stderr);
}
