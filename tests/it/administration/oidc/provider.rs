//! A real provider: the package oidc-provider from npm, in a process of its own, and a person with curl.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use crate::support::child::{Child, bound_to_us, free_port};
use crate::support::{certificate, folder};

/// How long it may take to start.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A sign-in needs three.
const MAX_REDIRECTS: usize = 10;

/// A provider that is not running yet, or not any more.
pub(super) struct Provider {
    pub(super) port: u16,
    pub(super) folder: TempDir,
    running: Option<Child>,
}

impl Provider {
    pub(super) fn new() -> Self {
        let folder = folder::temporary("provider");
        certificate::issue(folder.path(), &["localhost"]);
        Self { port: free_port(), folder, running: None }
    }

    pub(super) fn issuer(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Where the authority of its certificate is.
    pub(super) fn authority(&self) -> PathBuf {
        certificate::authority(self.folder.path())
    }

    /// Starts it with new keys, and ends the one before.
    pub(super) fn start(&mut self, method: &str, redirects: &[String]) {
        self.stop();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = bound_to_us("node", "KILL", &[]);
        command.arg(root.join("tests/it/administration/oidc/provider.mjs"));
        command.arg(root.join("target/clients/node")).arg(self.port.to_string());
        command.arg(self.folder.path().join("localhost.pem")).arg(self.folder.path().join("localhost.key"));
        command.arg(method).args(redirects).stdout(Stdio::piped());
        let mut child = Child::spawn(command);
        let output = BufReader::new(child.pipes().stdout.take().expect("it was piped"));
        let (ready, started) = mpsc::channel();
        thread::spawn(move || ready.send(output.lines().map_while(Result::ok).any(|line| line == "listening")));
        assert_eq!(started.recv_timeout(START_LIMIT), Ok(true), "the provider did not start; tests/run installs it");
        self.running = Some(child);
    }

    pub(super) fn stop(&mut self) {
        self.running = None;
    }

    /// Sets who signs in next.
    pub(super) async fn person(&self, claims: &Value) {
        let query = form_urlencoded::Serializer::new(String::new()).append_pair("claims", &claims.to_string()).finish();
        let url = format!("{}/test/person?{query}", self.issuer());
        assert_eq!(self.curl(vec![url], "%{http_code}").await, "200");
    }

    /// Signs in, and returns the query that the provider sends the browser back with.
    pub(super) async fn sign_in(&self, url: &str) -> String {
        let jar = folder::temporary("jar");
        let cookies = jar.path().join("cookies").display().to_string();
        let mut url = url.to_owned();
        for _ in 0..MAX_REDIRECTS {
            if !url.starts_with(&self.issuer()) {
                break;
            }
            let arguments = ["-b", &cookies, "-c", &cookies, &url].map(str::to_owned).to_vec();
            url = self.curl(arguments, "%{redirect_url}").await;
        }
        let (_, query) = url.split_once("/admin/callback?").unwrap_or_else(|| panic!("the provider refused: {url}"));
        query.to_owned()
    }

    async fn curl(&self, arguments: Vec<String>, shown: &'static str) -> String {
        let authority = self.authority();
        let done = spawn_blocking(move || {
            let mut command = Command::new("curl");
            command.args(["-s", "-S", "-o", "/dev/null", "-m", "20", "-w", shown, "--cacert"]).arg(authority);
            command.args(arguments).output().expect("tests/run installs curl")
        });
        let output = done.await.expect("curl ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("an address is ASCII")
    }
}
