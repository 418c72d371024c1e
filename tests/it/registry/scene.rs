//! Nodes that follow one registry, each with an operator socket and a snapshot of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UnixStream;
use toml::Table;

use crate::support::certificate;
use crate::support::client::{Client, Unanswered, operator_get};
use crate::support::database::Database;
use crate::support::description::{Described, OPERATOR};
use crate::support::fixture::Engine;
use crate::support::folder;
use crate::support::process::{self, Node, Output};

/// How long a change may take until a node serves it, on a machine that others load heavily.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// The folder of the nodes, and where their registry is.
pub(crate) struct Scene {
    folder: TempDir,
    engine: Engine,
    pub(crate) registry_url: String,
    gateway: Table,
    /// The `[[tenant]]` tables of the files, as text.
    files: String,
    /// The databases of the tenants.
    databases: Mutex<BTreeMap<String, String>>,
}

/// An answer of the operator API.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Scene {
    pub(crate) fn new(engine: Engine) -> Self {
        let folder = folder::temporary("registry");
        let registry_url = engine.empty_database(folder.path(), "registry");
        let names = ["*.example.test", "*.acme.test"];
        let issued = certificate::issue(&folder.path().join("certs"), &names);
        let mut tls = Table::new();
        tls.insert("certificate".into(), issued.certificate.display().to_string().into());
        tls.insert("private_key".into(), issued.private_key.display().to_string().into());
        let mut gateway = Table::new();
        gateway.insert("listen".into(), vec!["127.0.0.1:0"].into());
        gateway.insert("admin_listen".into(), "127.0.0.1:0".into());
        gateway.insert("registry".into(), registry_url.clone().into());
        gateway.insert("administration".into(), Table::new().into());
        gateway.insert("tls".into(), tls.into());
        Self { folder, engine, registry_url, gateway, files: String::new(), databases: Mutex::default() }
    }

    /// Sets a key of the `[gateway]` table.
    pub(crate) fn gateway(mut self, key: &str, value: impl Into<toml::Value>) -> Self {
        self.gateway.insert(key.into(), value.into());
        self
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn socket(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("{node}.sock"))
    }

    pub(crate) fn snapshot(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("{node}-snapshot.db"))
    }

    /// The configuration of a node.
    pub(crate) fn config(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("{node}.toml"))
    }

    /// Replaces the tenants of the files, on every node whose configuration was written.
    pub(crate) fn write_files(&mut self, tenants: &str, nodes: usize) {
        tenants.clone_into(&mut self.files);
        (0..nodes).for_each(|node| self.write(node));
    }

    /// Writes the configuration of a node, in one step.
    pub(crate) fn write(&self, node: usize) {
        let mut gateway = self.gateway.clone();
        let mut operator = Table::new();
        let socket = format!("unix:{}", self.socket(node).display());
        operator.insert("listen".into(), vec![socket, "127.0.0.1:0".to_owned()].into());
        gateway.insert("operator".into(), operator.into());
        gateway.insert("registry_snapshot".into(), self.snapshot(node).display().to_string().into());
        let mut root = Table::new();
        root.insert("gateway".into(), gateway.into());
        let draft = self.config(node).with_extension("draft");
        fs::write(&draft, format!("{root}\n{}", self.files)).unwrap();
        fs::rename(&draft, self.config(node)).unwrap();
    }

    pub(crate) fn start(&self, node: usize) -> Node {
        self.write(node);
        Node::spawn(&self.config(node))
    }

    /// Starts a node with more in its environment.
    pub(crate) fn start_in(&self, node: usize, environment: &[(&str, &str)]) -> Node {
        self.write(node);
        Node::spawn_in(&self.config(node), environment)
    }

    /// How many tenants the snapshot of a node has, and up to which revision.
    pub(crate) async fn kept(&self, node: usize) -> [i64; 2] {
        let snapshot = Database::connect(&format!("sqlite:{}", self.snapshot(node).display())).await;
        let counts = "SELECT (SELECT count(*) FROM registry_tenants), revision FROM registry_head";
        let kept = snapshot.integers(counts).await;
        snapshot.close().await;
        kept
    }

    /// Runs a command with the configuration of the first node.
    pub(crate) fn run(&self, command: &[&str]) -> Output {
        self.run_in(command, &[])
    }

    /// The same with more in its environment.
    pub(crate) fn run_in(&self, command: &[&str], environment: &[(&str, &str)]) -> Output {
        if !self.config(0).exists() {
            self.write(0);
        }
        let config = self.config(0).display().to_string();
        process::formgate_with_environment(&[command, &["--config", &config]].concat(), environment)
    }

    pub(crate) fn succeed(&self, command: &[&str]) -> String {
        let output = self.run(command);
        assert_eq!(output.code, 0, "{command:?}: {}{}", output.stdout, output.stderr);
        output.stdout
    }

    /// The database of a tenant.
    fn database(&self, slug: &str) -> String {
        let mut databases = self.databases.lock().unwrap();
        let new = || self.engine.empty_database(self.folder.path(), slug);
        databases.entry(slug.to_owned()).or_insert_with(new).clone()
    }

    /// The object of a tenant with a database of its own.
    pub(crate) fn tenant(&self, slug: &str) -> Value {
        json!({
            "name": slug.to_uppercase(),
            "address": format!("{slug}.example.test"),
            "database": self.database(slug),
            "timezone": "UTC",
        })
    }

    /// The same as the text of a file.
    pub(crate) fn text(&self, slug: &str) -> String {
        let database = self.database(slug);
        format!(
            "[[tenant]]\nslug = \"{slug}\"\nname = \"{}\"\naddress = \"{slug}.example.test\"\n\
             database = \"{database}\"\ntimezone = \"UTC\"\n",
            slug.to_uppercase()
        )
    }

    /// Calls the operator API of a node.
    pub(crate) async fn call(&self, node: usize, method: Method, target: &str, body: Option<&Value>) -> Answer {
        self.call_with(node, method, target, body, &[]).await
    }

    /// The same with headers.
    pub(crate) async fn call_with(
        &self,
        node: usize,
        method: Method,
        target: &str,
        body: Option<&Value>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let bytes = body.map(ToString::to_string).unwrap_or_default();
        self.send(node, method, target, bytes, headers).await.expect("an answer")
    }

    /// Sends bytes; None if the connection broke.
    pub(crate) async fn send(
        &self,
        node: usize,
        method: Method,
        target: &str,
        body: impl Into<Bytes>,
        headers: &[(&str, &str)],
    ) -> Option<Answer> {
        let stream = UnixStream::connect(self.socket(node)).await.ok()?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        let driving = tokio::spawn(connection);
        let mut request = Request::builder().method(method.clone()).uri(target).header("host", "operator");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let response = tokio::time::timeout(LIMIT, sender.send_request(request)).await.ok()?.ok()?;
        let (head, body) = response.into_parts();
        let body = body.collect().await.ok()?.to_bytes();
        driving.abort();
        let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).expect("JSON") };
        for instant in instants(&body) {
            assert_eq!(
                instant.len(),
                "2026-11-27T11:35:03.064360Z".len(),
                "{method} {target}: {instant} has six digits"
            );
        }
        let described = Described { status: head.status, headers: &head.headers, body: &|| body.clone() };
        if let Some(deviation) = OPERATOR.deviation(&method, target, &described) {
            panic!("{method} {target}: {deviation}, but: {} {:?} {body}", head.status, head.headers);
        }
        Some(Answer { status: head.status, headers: head.headers, body })
    }

    /// Whether a node has made the tables of its snapshot.
    async fn has_snapshot(&self, node: usize) -> bool {
        if !self.snapshot(node).exists() {
            return false;
        }
        let snapshot = Database::connect(&format!("sqlite:{}", self.snapshot(node).display())).await;
        let [tables] = snapshot.integers("SELECT count(*) FROM sqlite_master WHERE name = 'registry_head'").await;
        snapshot.close().await;
        tables == 1
    }

    /// Waits until the snapshot of a node has this number of tenants.
    pub(crate) async fn keeps(&self, node: usize, tenants: i64) {
        let began = Instant::now();
        while !self.has_snapshot(node).await || self.kept(node).await[0] != tenants {
            assert!(began.elapsed() < LIMIT, "the snapshot lacks tenants");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Adds a tenant that is there already. Returns a new token.
    pub(crate) async fn add_again(&self, node: usize, slug: &str) -> String {
        let target = format!("/v1/tenants/{slug}?migrate=1&token=again");
        let answer = self.call(node, Method::PUT, &target, Some(&self.tenant(slug))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["token"]["token"].as_str().expect("a token").to_owned()
    }

    /// Adds a tenant through a node, served by every node. Returns a token.
    pub(crate) async fn add(&self, node: usize, slug: &str) -> String {
        let target = format!("/v1/tenants/{slug}?migrate=1&wait=60&token=tests");
        let answer = self.call(node, Method::PUT, &target, Some(&self.tenant(slug))).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.body["token"]["token"].as_str().expect("a token").to_owned()
    }
}

/// The status of `GET /me` of a tenant at a node; 404 if the handshake ends because no tenant has the name.
/// Every instant in an answer.
fn instants(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) if text.ends_with('Z') && text.parse::<jiff::Timestamp>().is_ok() => vec![text],
        Value::Array(items) => items.iter().flat_map(instants).collect(),
        Value::Object(entries) => entries.values().flat_map(instants).collect(),
        _ => Vec::new(),
    }
}

pub(crate) async fn me(node: &Node, slug: &str, token: &str) -> u16 {
    match client(node, slug, token).get("/api/v1/me").try_send().await {
        Ok(answer) => answer.status.as_u16(),
        Err(Unanswered::Unconnected(error)) if error.to_string().contains("UnrecognisedName") => 404,
        Err(other) => panic!("{other}"),
    }
}

pub(crate) fn client(node: &Node, slug: &str, token: &str) -> Client {
    node.client().to(&format!("{slug}.example.test")).with(token)
}

/// Waits until `/readyz` of a node has this about the registry.
pub(crate) async fn readiness_becomes(node: &mut Node, state: &str) {
    readiness(node, |found| found == state).await;
}

/// Waits until what `/readyz` of a node has about the registry begins with a text.
pub(crate) async fn readiness_begins(node: &mut Node, state: &str) {
    readiness(node, |found| found.starts_with(state)).await;
}

async fn readiness(node: &mut Node, is_meant: impl Fn(&str) -> bool) {
    let began = Instant::now();
    loop {
        let ready: Value = operator_get(node.operator_address(), "/readyz").await.json();
        if ready["parts"]["registry"].as_str().is_some_and(&is_meant) {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{ready}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until a node answers with a status.
pub(crate) async fn me_becomes(node: &Node, slug: &str, token: &str, status: u16) {
    let began = Instant::now();
    loop {
        let found = me(node, slug, token).await;
        if found == status {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{slug}: {found} instead of {status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
