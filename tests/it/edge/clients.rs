//! The clients that people use lose no answer: http.client, requests, httpx, Node, Go and curl.
//!
//! Each program below `clients/` counts the statuses that it got, and lists what it lost. A request counts as lost where
//! the program sees an error; what its library retries by itself does not.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;

use crate::support::acme::Acme;
use crate::support::child::{Child, bound_to_us};
use crate::support::client::operator_count;
use crate::support::fixture::{Engine, Site};
use crate::support::process::{Node, python};

/// How long a program may take: Go is compiled first, and the machine may be loaded.
const LIMIT: Duration = Duration::from_secs(180);

/// How long a stop may take.
const STOP: Duration = Duration::from_secs(30);

const PYTHON: &str = "client.py";
const GO: &str = "client.go";
const NODE: &str = "client.mjs";

/// What a program saw.
#[derive(Debug, Deserialize)]
struct Outcome {
    statuses: BTreeMap<String, usize>,
    lost: Vec<String>,
}

impl Outcome {
    fn answered(&self) -> usize {
        self.statuses.values().sum()
    }

    fn assert_nothing_lost(&self, program: &str) {
        assert!(self.lost.is_empty(), "{program} lost {} of {}: {:#?}", self.lost.len(), self.answered(), self.lost);
    }
}

/// A program that runs.
struct Program {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    output: [JoinHandle<String>; 2],
}

impl Program {
    fn start(name: &'static str, mode: &str, address: SocketAddr, host: &str, token: &str) -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/edge/clients").join(name);
        let mut command = match name {
            PYTHON => bound_to_us(python(), "KILL", &[]),
            GO => bound_to_us("go", "KILL", &[]),
            _ => bound_to_us("node", "KILL", &[]),
        };
        if name == GO {
            command.arg("run").env("GOCACHE", tools().join("go"));
        }
        command.arg(file).args([mode, &address.port().to_string(), host, token]);
        Self::spawn(name, command)
    }

    fn spawn(name: &'static str, mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Child::spawn(command);
        let pipes = child.pipes();
        let input = pipes.stdin.take();
        let output = [read(pipes.stdout.take().expect("it is piped")), read(pipes.stderr.take().expect("it is piped"))];
        Self { name, child, input, output }
    }

    /// Gives the program its input, and waits for its end.
    async fn finish_text(mut self, input: String) -> String {
        let finish = move || {
            let mut pipe = self.input.take().expect("it is taken once");
            // A program that failed reads nothing.
            let _ = pipe.write_all(input.as_bytes());
            drop(pipe);
            let status = self.child.wait_at_most(LIMIT);
            self.child.kill();
            let [output, errors] = self.output.map(|output| output.join().expect("reading does not panic"));
            assert!(status.is_some_and(|status| status.success()), "{}: {status:?}: {errors}", self.name);
            output
        };
        spawn_blocking(finish).await.expect("the program succeeds")
    }

    async fn finish(self, input: &Value) -> Outcome {
        let output = self.finish_text(input.to_string()).await;
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
    }
}

fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).expect("programs write UTF-8");
        text
    })
}

fn tools() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/clients")
}

/// Requests whose answers need no body: method, path, bytes of the body, token, and how often each is sent. The last two
/// are too large to be drained.
fn early(token: &str) -> Value {
    json!([
        ["POST", "/submission", 20, token, 20],
        ["POST", "/submission", 20, "bad", 20],
        ["POST", "/nowhere", 20, token, 20],
        ["DELETE", "/submission", 20, token, 20],
        ["PUT", "/group", 60_000, "bad", 20],
        ["PUT", "/group", 700_000, token, 20],
        ["PUT", "/group", 16_000_000, token, 2],
    ])
}

/// The programs of [`a_restart_under_load_loses_no_request_of_any_client_over_http_2`] call one tenant each, so that the
/// metrics of the node tell their requests apart.
const TENANTS: [&str; 3] = ["acme", "globex", "initech"];

/// How many requests that makes, and how many of them are too large.
const EARLY: (usize, u64) = (122, 22);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_come_before_the_body_reach_every_client_over_http_1() {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(3);
    let mut acme = Acme::of(site);
    let operator = acme.node.operator_address();
    let cases = early(&acme.token);
    let (all, large) = EARLY;
    for program in [PYTHON, GO, NODE] {
        let before = operator_count(operator, "formgate_connections_accepted_total").await;
        let outcome = Program::start(program, "early", acme.node.address, &acme.host(), &acme.token);
        let outcome = outcome.finish(&cases).await;
        outcome.assert_nothing_lost(program);
        assert_eq!(outcome.answered(), all, "{program}: {outcome:?}");
        let opened = operator_count(operator, "formgate_connections_accepted_total").await - before;
        // One for each large body, one for each library, and a few for a machine that stood still for a second.
        assert!(opened <= large + 10, "{program} opened {opened} connections");
    }
    for case in cases.as_array().expect("it is one") {
        let statuses = curl(&acme, case).await;
        assert_eq!(statuses.len(), 5, "{case}: {statuses:?}");
        assert!(statuses.iter().all(|status| ["401", "404", "429"].contains(&status.as_str())), "{case}: {statuses:?}");
    }
}

/// What curl says of five requests on as few connections as it can.
async fn curl(acme: &Acme, case: &Value) -> Vec<String> {
    let text = |at: usize| case[at].as_str().expect("a text");
    let (host, port) = (acme.host(), acme.node.address.port());
    let mut command = bound_to_us("curl", "KILL", &[]);
    let resolve = format!("{host}:{port}:127.0.0.1");
    command.args(["--silent", "--insecure", "--http1.1", "--max-time", "60", "--write-out", "%{http_code}\\n"]);
    command.args(["--resolve", &resolve, "--request", text(0), "--data-binary", "@-", "--header"]);
    command.arg(format!("Authorization: Bearer {}", text(3)));
    for _ in 0..5 {
        command.args(["--output", "/dev/null"]).arg(format!("https://{host}:{port}/api/v1{}", text(1)));
    }
    let body = "x".repeat(usize::try_from(case[2].as_u64().expect("a number")).expect("a small one"));
    Program::spawn("curl", command).finish_text(body).await.lines().map(str::to_owned).collect()
}

fn limits(limits: &str) -> toml::Table {
    limits.parse().expect("TOML")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_connection_loses_no_request_of_any_client_over_http_2() {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(100_000);
    let mut acme = Acme::of(site.gateway("limits", limits("connection_requests = 10")));
    let operator = acme.node.operator_address();
    for (program, all) in [(PYTHON, 200), (GO, 300), (NODE, 300)] {
        let before = operator_count(operator, "formgate_connections_ended_total{reason=\"age\"}").await;
        let outcome = Program::start(program, "end", acme.node.address, &acme.host(), &acme.token);
        let outcome = outcome.finish(&Value::Null).await;
        outcome.assert_nothing_lost(program);
        assert_eq!(outcome.statuses, BTreeMap::from([("200".to_owned(), all)]), "{program}");
        let ended = operator_count(operator, "formgate_connections_ended_total{reason=\"age\"}").await - before;
        assert!(ended >= 9, "{program} had only {ended} connections");
    }
    for parallel in [false, true] {
        let (host, port) = (acme.host(), acme.node.address.port());
        let mut command = bound_to_us("curl", "KILL", &[]);
        command.args(["--silent", "--insecure", "--http2", "--max-time", "60", "--write-out", "%{http_code}\\n"]);
        command.args(["--resolve", &format!("{host}:{port}:127.0.0.1"), "--header"]);
        command.arg(format!("Authorization: Bearer {}", acme.token));
        if parallel {
            command.args(["--parallel", "--parallel-max", "4"]);
        }
        for _ in 0..50 {
            command.args(["--output", "/dev/null"]).arg(format!("https://{host}:{port}/api/v1/me"));
        }
        let statuses = Program::spawn("curl", command).finish_text(String::new()).await;
        assert_eq!(statuses, "200\n".repeat(50), "parallel: {parallel}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_under_load_loses_no_request_of_any_client_over_http_2() {
    let sockets = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("there are free ports"));
    let [callers, operator] = sockets.each_ref().map(|socket| socket.local_addr().expect("it is bound"));
    let site = TENANTS.iter().fold(Site::new(), |site, tenant| site.tenant(tenant, Engine::Sqlite));
    let site = site.requests_per_minute(100_000).gateway("listen", vec![callers.to_string()]);
    let site = site.gateway("admin_listen", operator.to_string()).write();
    let start = |sockets: [TcpListener; 2], config: PathBuf| {
        spawn_blocking(move || Node::spawn_on(&config, sockets.each_ref(), &[]))
    };
    let cloned = || sockets.each_ref().map(|socket| socket.try_clone().expect("it can be cloned"));
    let mut node = start(cloned(), site.config_path.clone()).await.expect("it starts");
    let programs: Vec<Program> = [PYTHON, GO, NODE]
        .into_iter()
        .zip(TENANTS)
        .map(|(name, tenant)| Program::start(name, "steady", callers, &site.host(tenant), &site.token(tenant, "tests")))
        .collect();
    for _ in 0..2 {
        until_all_were_answered(operator).await;
        assert_eq!(node.stop(STOP).await, 0);
        // No process serves now, and connections wait in systemd's socket.
        let waiting = TcpStream::connect(callers).await.expect("systemd's socket accepts connections");
        node = start(cloned(), site.config_path.clone()).await.expect("it starts");
        drop(waiting);
    }
    until_all_were_answered(operator).await;
    for program in programs {
        let name = program.name;
        let outcome = program.finish(&Value::Null).await;
        outcome.assert_nothing_lost(name);
        assert!(outcome.answered() > 20, "{name}: {outcome:?}");
    }
}

/// Waits until the node has answered ten requests of each program, and holds a connection of each: the one in Python
/// has two.
async fn until_all_were_answered(operator: SocketAddr) {
    let since = Instant::now();
    for tenant in TENANTS {
        let series = format!("formgate_tenant_requests_total{{class=\"2xx\",tenant=\"{tenant}\"}}");
        while operator_count(operator, &series).await < 10 {
            assert!(since.elapsed() < LIMIT, "the client of {tenant} is missing");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    while operator_count(operator, "formgate_connections_open{protocol=\"h2\"}").await < 4 {
        assert!(since.elapsed() < LIMIT, "a client is missing");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
