//! The log has a reader that does not read, or reads slowly, and files that may not grow.

use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use crate::support::acme::Acme;
use crate::support::child::{self, free_port};
use crate::support::client::{Client, operator_count, operator_get};
use crate::support::fixture::{Engine, Site};
use crate::support::process::Writable::{Read, ReadSlowly, Unread};

/// How long a node may take to end: a second for the reader, and a busy machine.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How long anything may take that happens by itself.
const BY_ITSELF: Duration = Duration::from_secs(30);

/// Calls `acme` until lines of the log were dropped. Each call must be answered.
async fn call_until_lines_are_dropped(acme: &mut Acme) -> u64 {
    let admin = acme.node.operator_address();
    let caller = acme.caller();
    loop {
        call(&caller, 200).await;
        let dropped = operator_count(admin, "formgate_log_lines_dropped_total").await;
        if dropped > 0 {
            return dropped;
        }
    }
}

/// Calls an account some times, on several connections.
async fn call(caller: &Client, count: usize) {
    let calls = (0..count).map(|_| caller.get("/api/v1/me").send());
    let answers: Vec<_> = stream::iter(calls).buffer_unordered(8).collect().await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
}

#[tokio::test]
async fn serving_and_stopping_do_not_wait_for_a_log_that_nobody_reads() {
    let nowhere = format!("postgres://formgate@127.0.0.1:{}/globex", free_port());
    let site = Site::new()
        .tenant("acme", Engine::Sqlite)
        .tenant_with("globex", Engine::Sqlite, |tenant| tenant.set("database", nowhere))
        .requests_per_minute(100_000)
        .write();
    // Each request is a long line, so that the queue is full soon.
    let token = site.token("acme", &"🔧".repeat(255));
    let node = site.start();
    let mut acme = Acme { site, node, token };
    let admin = acme.node.operator_address();
    acme.node.leave_log_unread(true);
    let dropped = call_until_lines_are_dropped(&mut acme).await;
    // What logs a warning, and what others are served then.
    for _ in 0..3 {
        let globex = acme.stranger().to("globex.example.test").with(&acme.token);
        assert_eq!(globex.get("/api/v1/me").send().await.status, 503);
        assert_eq!(acme.caller().get("/api/v1/me").send().await.status, 200);
        assert_eq!(operator_get(admin, "/healthz").await.status, 200);
    }
    acme.node.leave_log_unread(false);
    let line = acme.node.wait_for_log(BY_ITSELF, |line| {
        line.contains("lines were dropped").then(|| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
    });
    let line = line.expect("the log says that lines are missing");
    assert!(line["total"].as_u64() >= Some(dropped), "{line}");
    for line in acme.node.log().lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "no line is broken: {line}");
    }
    acme.node.leave_log_unread(true);
    // More than a pipe takes.
    call(&acme.caller(), 400).await;
    acme.node.terminate();
    let ended = child::until(STOP_LIMIT, || (!child::is_alive(acme.node.id())).then_some(()));
    assert!(ended.is_some(), "SIGTERM does not end the node");
    acme.node.leave_log_unread(false);
    assert_eq!(acme.node.wait(STOP_LIMIT), 0);
}

/// A site whose configuration has so many faults that their report fits into no pipe.
fn site_with_many_faults() -> Site {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let mut config = std::fs::read_to_string(&site.config_path).expect("the site is written");
    for number in 0..1000 {
        write!(
            config,
            "\n[[tenant]]\nslug = \"{number}_\"\nname = \"N\"\naddress = \"-{number}\"\ndatabase = \"no:{number}\"\n"
        )
        .expect("memory takes everything");
    }
    std::fs::write(&site.config_path, config).expect("the site's folder can be written");
    site
}

#[test]
fn a_slow_reader_gets_the_whole_report_of_a_failure_and_a_start_that_failed_ends_without_a_reader() {
    let site = site_with_many_faults();
    let whole = site.run_into(&["migrate"], Read, Read);
    assert!(whole.code == 1 && whole.stderr.len() > 2 * 65_536, "{} bytes", whole.stderr.len());
    for command in ["migrate", "serve"] {
        // Reading takes three seconds. On a busy machine the reader may sleep through the one that its writer waits for it.
        let mut attempts = (0..5).map(|_| site.run_into(&[command], Read, ReadSlowly));
        let slow = attempts.find(|slow| slow.stderr.len() == whole.stderr.len()).expect("a slow reader gets all of it");
        assert_eq!(slow.code, 1, "{command}");
        assert_eq!(slow.stderr, whole.stderr, "{command}");
    }
    assert_eq!(site.run_into(&["serve"], Read, Unread).code, 1);
}

#[test]
fn a_limit_of_file_size_is_a_failure_that_says_so_and_not_a_signal() {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, super::support::fixture::Tenant::unmigrated).write();
    let mut command = Command::new("prlimit");
    command.args(["--fsize=4096:4096", env!("CARGO_BIN_EXE_formgate"), "migrate", "--config"]).arg(&site.config_path);
    let output = command.output().expect("prlimit is a part of util-linux");
    let said = String::from_utf8(output.stderr).expect("formgate writes UTF-8");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("limits the size of files"), "{said}");
}
