//! `formgate demo`: what it prints works as it is pasted, and what it keeps and removes.

mod documented;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::child::{self, Child};
use crate::support::folder;
use crate::support::process::formgate;

/// How long a demo may take until it serves: a debug build on a loaded machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A running demo; killed on drop.
struct Demo {
    child: Child,
    /// What it printed until it served, to the last line.
    printed: String,
    /// Everything that it printed so far.
    output: Arc<Mutex<String>>,
}

impl Demo {
    /// Starts a demo on a free port, whose temporary folder, if it makes one, is made in `temporary`.
    fn start(arguments: &[&str], temporary: &Path) -> Self {
        let log = temporary.join("log");
        let mut command = child::bound_to_us(env!("CARGO_BIN_EXE_formgate"), "KILL", &[]);
        command.args(["demo", "--listen", "127.0.0.1:0"]).args(arguments).env("TMPDIR", temporary);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log).expect("a new file"));
        let mut child = Child::spawn(command);
        let output = Arc::<Mutex<String>>::default();
        collect(child.pipes().stdout.take().expect("standard output is piped"), Arc::clone(&output));
        let done = child::until(START_LIMIT, || {
            let printed = output.lock().expect("collecting does not panic").clone();
            (printed.contains("Ctrl-C stops") && printed.ends_with('\n') || child.exited().is_some()).then_some(printed)
        });
        let printed = done.filter(|printed| !printed.is_empty());
        let printed = printed.unwrap_or_else(|| panic!("no demo:\n{}", fs::read_to_string(log).unwrap_or_default()));
        Self { child, printed, output }
    }

    /// Waits for a printed block that begins and is as it should be.
    fn wait_for(&self, begin: &str, is_it: impl Fn(&str) -> bool) -> String {
        let found = child::until(START_LIMIT, || {
            let output = self.output.lock().expect("collecting does not panic").clone();
            let blocks: Vec<&str> = output.split("\n\n").collect();
            // The last one may not be complete yet.
            let (_, complete) = blocks.split_last()?;
            complete.iter().find(|block| block.starts_with(begin) && is_it(block)).map(|block| (*block).to_owned())
        });
        found.unwrap_or_else(|| panic!("no {begin}:\n{}", self.output.lock().expect("collecting does not panic")))
    }

    /// The commands by what stands above them.
    fn calls(&self) -> BTreeMap<&str, &str> {
        let blocks = self.printed.split("\n\n").filter_map(|block| block.strip_prefix("# "));
        blocks.map(|block| block.split_once('\n').expect("a command below what it does")).collect()
    }

    /// The command below a text that begins so.
    fn call(&self, about: &str) -> &str {
        let calls = self.calls();
        let found = calls.iter().find(|(text, _)| text.starts_with(about));
        found.unwrap_or_else(|| panic!("no call `{about}` in\n{}", self.printed)).1
    }

    /// Acme's token.
    fn token(&self) -> &str {
        self.printed.lines().find_map(|line| line.trim().strip_prefix("token ")).expect("Acme's is first")
    }

    /// Asks it to stop, and waits.
    fn stop(self) {
        self.stop_with("INT");
    }

    fn stop_with(mut self, signal: &str) {
        self.child.signal(signal);
        let status = self.child.wait_at_most(Duration::from_secs(60)).expect("a demo stops when it is told to");
        assert!(status.success());
    }
}

fn collect(mut pipe: impl Read + Send + 'static, into: Arc<Mutex<String>>) {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        let mut bytes = Vec::new();
        while let Ok(read @ 1..) = pipe.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..read]);
            *into.lock().expect("reading does not panic") = String::from_utf8_lossy(&bytes).into_owned();
        }
    });
}

/// What a command prints when it is pasted into a shell.
fn paste(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().expect("there is a shell");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}\n{errors}");
    String::from_utf8(output.stdout).expect("formgate answers in UTF-8")
}

fn paste_for_json(command: &str) -> Value {
    let output = paste(command);
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {command}\n{output}"))
}

fn change_log(database: &Path) -> String {
    let read = ["-header", "SELECT * FROM submission_changes; SELECT * FROM change_state; SELECT * FROM subscriptions"];
    let output = Command::new("sqlite3").arg(database).args(read).output().expect("sqlite3 is installed");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn ids(answer: &Value) -> Vec<&str> {
    let items = answer["data"].as_array().expect("a list");
    items.iter().map(|item| item["id"].as_str().expect("an id")).collect()
}

#[test]
fn every_printed_call_works_as_pasted() {
    let temporary = folder::temporary("demo");
    let dir = temporary.path().join("it's a demo");
    let demo = Demo::start(&["--dir", dir.to_str().unwrap()], temporary.path());
    assert_eq!(demo.calls().len(), 12, "each is tried here:\n{}", demo.printed);
    for (file, expected) in [("", 0o700), ("acme.db", 0o600), ("globex.db", 0o600), ("certificate.key", 0o600)] {
        let mode = dir.join(file).metadata().expect("the demo keeps it").permissions().mode() & 0o777;
        assert_eq!(mode, expected, "{file:?}");
    }

    let me = paste(demo.call("Whose token is it?")).to_lowercase();
    for expected in [" 200", "x-ratelimit-limit: 600", "x-ratelimit-remaining: 599", "welcome to acme"] {
        assert!(me.contains(expected), "{expected}:\n{me}");
    }
    assert_eq!(ids(&paste_for_json(demo.call("The active forms"))), ["for_1", "for_2", "for_4", "for_5"]);
    assert_eq!(paste_for_json(demo.call("One form"))["data"]["elements"][0]["name"], "Kind of leave");

    let waiting = paste_for_json(demo.call("Submissions that wait"));
    let statuses = waiting["data"].as_array().unwrap().iter().map(|item| item["status"].as_str().unwrap());
    assert!(statuses.clone().count() > 10);
    assert!(statuses.into_iter().all(|status| ["pending", "info", "escalate"].contains(&status)));

    let zurich = paste_for_json(demo.call("A keyword"));
    assert!(ids(&zurich).contains(&"sub_2007"), "by what a child submission says: {zurich}");
    let second = paste_for_json(demo.call("The second page"));
    assert_eq!((&second["meta"]["from"], &second["meta"]["last_page"]), (&json!(21), &json!(3)));

    let report = paste_for_json(demo.call("An expense report"));
    let elements = report["data"]["allElements"].as_array().unwrap();
    assert!(elements.iter().any(|element| element["value"] == "Hotel Limmatblick, Zürich"), "{report}");

    let finance = paste_for_json(demo.call("A group as a directory has it"));
    assert_eq!(finance["members"], json!({"attached": 1, "detached": 1, "created": 1}));

    assert_eq!(paste_for_json(demo.call("Acme's token at Globex")), json!({"message": "Unauthenticated."}));
    let counted = paste(demo.call("More calls"));
    let counted: Vec<Vec<&str>> = counted.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(counted, [["60", "200"], ["5", "429"]]);

    assert_eq!(paste(demo.call("A change by SQL")), "");
    let webhook = demo.wait_for("A webhook arrived:", |block| block.contains("sub_2009"));
    assert!(webhook.contains("webhook-signature: v1,") && webhook.contains("formgate-attempt: 1"), "{webhook}");
    let json = webhook.lines().find_map(|line| line.trim().strip_prefix('{')).expect("the body");
    let event: Value = serde_json::from_str(&format!("{{{json}")).expect("JSON");
    let acme = (&json!("submission.updated"), &json!("acme"));
    assert_eq!((&event["type"], &event["account"]), acme, "{webhook}\n{}", change_log(&dir.join("acme.db")));
    assert_eq!(event["data"]["status"], "approved");

    let added = paste_for_json(demo.call("A further account"));
    let token = added["token"]["token"].as_str().expect("its first token");
    let initech = demo.call("Whose token is it?").replace("acme.localhost", "initech.localhost");
    let initech = paste(&initech.replace(demo.token(), token));
    assert!(initech.contains("Welcome to Initech"), "{initech}");

    let link =
        demo.printed.lines().find_map(|line| line.strip_prefix("Sign-in link")).expect("where to sign in").trim();
    let origin = link.split_once("/admin/").expect("a link into the area").0;
    let curl = "curl -s -k -o /dev/null -w '%{http_code} %{redirect_url}'";
    assert_eq!(paste(&format!("{curl} {link}")), "200 ");
    let button = format!("{curl} -H 'Origin: {origin}' -d '' {link}");
    assert_eq!(paste(&button), format!("303 {origin}/admin"));
    assert_eq!(paste(&button), "404 ", "a link works once");

    let metrics = demo.printed.lines().find_map(|line| line.strip_prefix("Metrics")).expect("where metrics are");
    let metrics = paste(&format!("curl -sf {}", metrics.trim()));
    assert!(metrics.contains("formgate_rate_decisions_total{by=\"embedded\",decision=\"refused\"} 5"), "{metrics}");
    demo.stop();
}

#[test]
fn a_second_demo_in_the_folder_keeps_data_certificate_and_tokens_that_are_accepted() {
    let temporary = folder::temporary("demo");
    let dir = temporary.path().join("demo");
    let start = || Demo::start(&["--dir", dir.to_str().unwrap()], temporary.path());
    let certificate = || fs::read(dir.join("certificate.pem")).expect("a demo has a certificate");
    let config = dir.join("tenants.toml");

    let demo = start();
    let token = demo.token().to_owned();
    let refused = formgate(&["demo", "--listen", "127.0.0.1:0", "--dir", dir.to_str().unwrap()]);
    assert!(refused.code == 1 && refused.stderr.contains("another demo runs in"), "{}", refused.stderr);
    demo.stop();
    let first = certificate();
    let changed = fs::read_to_string(&config).unwrap().replace("\"Acme\"", "\"Acme & Sons\"");
    fs::write(&config, changed).unwrap();

    let demo = start();
    assert_eq!((certificate(), demo.token()), (first, &*token));
    assert!(paste(demo.call("Whose token is it?")).contains("Welcome to Acme & Sons"));
    let changed = fs::read_to_string(&config).unwrap().replace("\"Acme & Sons\"", "\"Acme & Daughters\"");
    fs::write(&config, changed).unwrap();
    let is_reloaded = || paste(demo.call("Whose token is it?")).contains("Welcome to Acme & Daughters").then_some(());
    child::until(START_LIMIT, is_reloaded).expect("a change that is saved is served");
    demo.stop();
    let config = config.to_str().unwrap();
    let tokens = formgate(&["token", "list", "--config", config, "--tenant", "globex", "--json"]);
    let tokens: Value = serde_json::from_str(&tokens.stdout).expect("a list in JSON");
    assert_eq!(tokens.as_array().map(Vec::len), Some(1));
    let revoked = formgate(&["token", "revoke", "--config", config, "--tenant", "acme", "1"]);
    assert_eq!(revoked.code, 0, "{}", revoked.stderr);
    let demo = start();
    assert_ne!(demo.token(), token, "one that is revoked is replaced");
    assert!(paste(demo.call("Whose token is it?")).contains("Welcome to Acme & Daughters"));
    demo.stop();
    assert_eq!(formgate(&["check", "--config", config]).code, 0);
}

#[test]
fn a_demo_without_a_folder_leaves_nothing_behind() {
    let temporary = folder::temporary("demo");
    let demo = Demo::start(&[], temporary.path());
    assert!(demo.printed.contains(&format!("{}/formgate-demo-", temporary.path().display())), "{}", demo.printed);
    let made = fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir());
    assert_eq!(made.expect("its folder").metadata().unwrap().permissions().mode() & 0o777, 0o700);
    // As a terminal sends it when it is closed.
    demo.stop_with("HUP");
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["log"]);
}

#[test]
fn a_folder_that_is_not_a_demo_is_refused_and_left_unchanged() {
    for name in ["tenants.toml", "diary.txt"] {
        let folder = folder::temporary("demo");
        fs::write(folder.path().join(name), "dear diary").unwrap();
        let refused = formgate(&["demo", "--dir", folder.path().to_str().unwrap()]);
        assert_eq!((refused.code, refused.stdout.as_str()), (1, ""));
        assert!(refused.stderr.contains("name another folder with --dir"), "{}", refused.stderr);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_port_in_use_is_reported_with_the_option_that_changes_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = formgate(&["demo", "--listen", &address]);
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""));
    for expected in [address.as_str(), "in use", "choose another address with --listen"] {
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
}
