//! A real Prometheus that scrapes a node, and its `promtool`.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::child::{self, Child, GLANCE};
use super::client::operator_get;
use super::folder;

/// A server is up within 1 s on a quiet machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long a scrape may be waited for: they come once a second.
const SCRAPE_LIMIT: Duration = Duration::from_secs(30);

/// The `deploy` folder of the repository.
pub(crate) fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(path)
}

/// What `promtool check metrics` says of an exposition; nothing when it finds no fault.
pub(crate) fn lint(exposition: &str) -> String {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool is installed (Debian: apt-get install prometheus)");
    // Small enough for a pipe, so that the writing does not wait for the reading.
    child.stdin.take().expect("it is piped").write_all(exposition.as_bytes()).expect("promtool reads");
    let output = child.wait_with_output().expect("promtool ends");
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8(told).expect("promtool writes UTF-8");
    assert_eq!(output.status.success(), told.is_empty(), "{told}");
    told
}

/// A running Prometheus with the alerts of the repository; killed on drop.
pub(crate) struct Prometheus {
    address: SocketAddr,
    _server: Child,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts one that scrapes a node each second.
    pub(crate) async fn scraping(node: SocketAddr) -> Self {
        let folder = folder::temporary("prometheus");
        let settings = format!(
            "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: [{:?}]\n\
             scrape_configs:\n  - job_name: formgate\n    static_configs:\n      - targets: [{:?}]\n",
            deploy("prometheus/alerts.yml"),
            node.to_string(),
        );
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, settings).expect("a temporary folder can be written");
        let address = SocketAddr::from(([127, 0, 0, 1], child::free_port()));
        let mut command = child::bound_to_us("prometheus", "KILL", &[]);
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}")).arg("--log.level=warn").stdin(Stdio::null());
        let mut server = Child::spawn(command);
        let since = Instant::now();
        while !is_ready(address).await {
            assert!(server.exited().is_none(), "prometheus runs (Debian: apt-get install prometheus)");
            assert!(since.elapsed() < START_LIMIT, "prometheus is ready in time");
            tokio::time::sleep(GLANCE).await;
        }
        Self { address, _server: server, _folder: folder }
    }

    /// The values of a PromQL expression, once there are any.
    pub(crate) async fn query(&self, expression: &str) -> Vec<f64> {
        let since = Instant::now();
        loop {
            let encoded: String = form_urlencoded::byte_serialize(expression.as_bytes()).collect();
            let answer = self.get(&format!("/api/v1/query?query={encoded}")).await;
            let results = answer["data"]["result"].as_array().cloned().unwrap_or_default();
            if !results.is_empty() {
                let value = |result: &Value| result["value"][1].as_str().expect("a value").parse().expect("a number");
                return results.iter().map(value).collect();
            }
            assert!(since.elapsed() < SCRAPE_LIMIT, "{expression} has no result: {answer}");
            tokio::time::sleep(10 * GLANCE).await;
        }
    }

    /// Any answer of its API.
    pub(crate) async fn get(&self, path: &str) -> Value {
        operator_get(self.address, path).await.json()
    }
}

/// `operator_get` insists on a listener; this one asks whether there is one.
async fn is_ready(address: SocketAddr) -> bool {
    tokio::net::TcpStream::connect(address).await.is_ok() && operator_get(address, "/-/ready").await.status.is_success()
}
