//! A file system does not answer: only what is on it fails, changes are taken all the same, and the node ends.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::acme::Acme;
use crate::support::child;
use crate::support::fixture::{Engine, Site};
use crate::support::hanging::HangingFolder;

/// How long anything may take that waits for a file once, on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// How long another account may take: a part of the time for which a file is waited for.
const AT_ONCE: Duration = Duration::from_secs(3);

/// Changes the configuration, and waits until it is taken or refused. Returns whether it is taken.
fn change(acme: &mut Acme) -> bool {
    let outcomes = |acme: &mut Acme| {
        let outcomes = ["the configuration is reloaded", "invalid configuration ignored"];
        outcomes.map(|outcome| acme.node.count_lines(outcome))
    };
    let before = outcomes(acme);
    let config = fs::read_to_string(&acme.site.config_path).expect("it was written") + "\n# a change\n";
    let draft = acme.site.config_path.with_extension("draft");
    fs::write(&draft, config).and_then(|()| fs::rename(&draft, &acme.site.config_path)).expect("it can be written");
    let after = child::until(SOON, || Some(outcomes(acme)).filter(|after| *after != before));
    after.expect("the reload goes on")[0] > before[0]
}

/// A node that serves `acme`, and a `globex` whose file is on a file system that does not answer, and then a folder of
/// certificates that does not answer either.
fn hanging() -> (Acme, String, [HangingFolder; 2]) {
    let site = Site::new().tenant("acme", Engine::Sqlite);
    let data = site.folder().join("data");
    fs::create_dir(&data).expect("the site's folder can be written");
    let database = Engine::Sqlite.database(&data, "globex");
    let site = site.tenant_with("globex", Engine::Sqlite, |tenant| tenant.set("database", database));
    let site = site.requests_per_minute(100_000).write();
    let [token, of_globex] = ["acme", "globex"].map(|slug| site.token(slug, "tests"));
    let held = HangingFolder::over(&data);
    let node = site.start();
    let held_too = HangingFolder::over(&site.folder().join("certs"));
    (Acme { site, node, token }, of_globex, [held, held_too])
}

#[tokio::test]
async fn a_file_system_that_does_not_answer_stops_neither_other_accounts_nor_reloads() {
    let (mut acme, token, held) = hanging();
    let globex = acme.stranger().to("globex.example.test").with(&token);
    let mut asking = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let call = globex.get("/api/v1/form").fresh();
        asking.spawn(async move { call.send().await.status.as_u16() });
    }
    for _ in 0..20 {
        let began = Instant::now();
        assert_eq!(acme.caller().get("/api/v1/form").fresh().send().await.status, 200);
        assert!(began.elapsed() < AT_ONCE, "another account waited {:?}", began.elapsed());
    }
    assert_eq!(asking.join_all().await, [503; 8], "its file can't be read");
    for _ in 0..2 {
        change(&mut acme);
    }
    drop(held);
    assert!(change(&mut acme), "the files are back: {}", acme.node.log());
    let mended = Instant::now();
    while globex.get("/api/v1/form").send().await.status != 200 {
        assert!(mended.elapsed() < SOON, "the account is not served again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    acme.stop().await;
}

#[tokio::test]
async fn a_node_ends_although_a_file_system_does_not_answer() {
    let (mut acme, token, _held) = hanging();
    let globex = acme.stranger().to("globex.example.test").with(&token);
    assert_eq!(globex.get("/api/v1/form").send().await.status, 503);
    acme.node.signal("HUP");
    assert_eq!(acme.node.stop(SOON).await, 0);
}
