//! `formgate serve`: what keeps it from starting, and what only keeps one tenant from being served.

use std::fs;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;

use crate::support::acme::Acme;
use crate::support::answer::Answer;
use crate::support::child;
use crate::support::client::{Call, Client};
use crate::support::fixture::{Engine, Site, Tenant, on_both_databases};

/// A broken tenant must not cost its callers more than this.
const QUICKLY: Duration = Duration::from_secs(1);

/// How long anything may take that happens by itself, on a busy machine.
const BY_ITSELF: Duration = Duration::from_secs(30);

/// A token of the right shape; which one does not matter where no database can be asked.
fn some_token() -> String {
    formgate::tenant::token::PresentedToken::generate().expose().to_owned()
}

async fn globex(acme: &Acme, token: &str) -> Answer {
    globex_at_once(acme, token, 1).await.pop().expect("an answer")
}

/// So many requests at once, and as many to the other tenant: what these take is the machine's.
async fn globex_at_once(acme: &Acme, token: &str, count: usize) -> Vec<Answer> {
    let began = Instant::now();
    let timed = async |call: Call| (call.send().await, began.elapsed());
    let globex = acme.node.client().to(&acme.site.host("globex")).with(token);
    let ask = |client: &Client| join_all((0..count).map(|_| timed(client.get("/api/v1/me"))).collect::<Vec<_>>());
    let (answers, others) = tokio::join!(ask(&globex), ask(&acme.caller()));
    let slowest = |answers: &[(Answer, Duration)]| answers.iter().map(|(_, took)| *took).max().expect("answers");
    let (took, other) = (slowest(&answers), slowest(&others));
    assert!(took < QUICKLY + other, "answered after {took:?}; the other tenant after {other:?}");
    answers.into_iter().map(|(answer, _)| answer).collect()
}

fn is_unavailable(answer: &Answer) {
    assert_eq!((answer.status.as_u16(), answer.json()), (503, json!({"message": "Service Unavailable"})));
    assert!(answer.number("retry-after") >= Some(1), "{answer:?}");
}

async fn acme_is_served(acme: &Acme) {
    assert_eq!(acme.caller().get("/api/v1/me").send().await.status, 200, "the other tenant does not notice");
}

on_both_databases! {
    async fn a_tenant_whose_schema_is_older_is_refused_until_it_is_migrated(engine: Engine) {
        let mut acme = beside_globex(engine);
        let token = some_token();
        is_unavailable(&globex(&acme, &token).await);
        acme_is_served(&acme).await;
        let mend = "formgate migrate --tenant globex";
        let line = acme.node.wait_for_log(BY_ITSELF, |line| line.contains(mend).then(|| line.to_owned()));
        assert!(line.expect("the log says what mends it").contains(r#""level":"ERROR""#));
        assert_eq!(acme.stranger().to("globex.example.test").get("/api/v1/me").send().await.status, 401, "without a token the database is not asked");

        assert_eq!(acme.site.run(&["migrate", "--tenant", "globex"], b"").code, 0);
        let token = acme.site.token("globex", "tests");
        let mended = Instant::now();
        while globex(&acme, &token).await.status != 200 {
            assert!(mended.elapsed() < BY_ITSELF, "still refused");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        acme_is_served(&acme).await;
        let log = acme.stop().await;
        assert_eq!(log.lines().filter(|line| line.contains(mend)).count(), 1, "it is said once:\n{log}");
    }
}

/// A node that serves `acme`, and a `globex` whose database is there and empty.
fn beside_globex(engine: Engine) -> Acme {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let token = site.token("acme", "tests");
    let site = site.tenant_with("globex", engine, Tenant::unmigrated).requests_per_minute(100_000).write();
    if engine == Engine::Sqlite {
        fs::write(site.folder().join("globex.db"), b"").expect("the site's folder can be written");
    }
    let node = site.start();
    Acme { site, node, token }
}

/// A node that serves `acme`, and a `globex` whose database is not there.
fn without_database_of_globex(database: &str) -> Acme {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let token = site.token("acme", "tests");
    let site = site.tenant_with("globex", Engine::Sqlite, |tenant| tenant.set("database", database));
    let site = site.requests_per_minute(100_000).write();
    let node = site.start();
    Acme { site, node, token }
}

#[tokio::test]
async fn the_number_of_worker_threads_is_the_configured_one() {
    // Threads for blocking work have the same name; an idle node has few of them.
    for (threads, expected) in [(1, 1..16), (16, 16..32)] {
        let acme = Acme::of(Site::new().tenant("acme", Engine::Sqlite).gateway("threads", threads));
        assert_eq!(acme.caller().get("/api/v1/me").send().await.status, 200);
        let found = child::until(BY_ITSELF, || Some(runtime_threads(acme.node.id())).filter(|n| expected.contains(n)));
        assert!(found.is_some(), "threads = {threads}, but {} threads", runtime_threads(acme.node.id()));
    }
}

/// The threads of a process that Tokio named.
fn runtime_threads(process: u32) -> usize {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let name = |thread: std::io::Result<fs::DirEntry>| fs::read_to_string(thread.ok()?.path().join("comm")).ok();
    threads.filter_map(name).filter(|name| name.starts_with("tokio-")).count()
}

#[tokio::test]
async fn a_database_that_does_not_answer_affects_only_its_tenant() {
    let refused = format!("postgres://user:marker-7f3a@127.0.0.1:{}/forms", child::free_port());
    for database in [refused.as_str(), "sqlite:no/such/folder/globex.db"] {
        let mut acme = without_database_of_globex(database);
        let token = some_token();
        for _ in 0..3 {
            is_unavailable(&globex(&acme, &token).await);
            acme_is_served(&acme).await;
        }
        globex_at_once(&acme, &token, 20).await.iter().for_each(is_unavailable);
        let log = acme.stop().await;
        assert!(log.contains("the tenant's database can't be used") && log.contains(r#""tenant":"globex""#), "{log}");
        assert!(!log.contains("marker-7f3a"), "{log}");
    }
}

#[tokio::test]
async fn a_database_that_recovers_is_used_again() {
    let acme = without_database_of_globex("sqlite:later/globex.db");
    is_unavailable(&globex(&acme, &some_token()).await);
    fs::create_dir(acme.site.folder().join("later")).expect("the site's folder can be written");
    assert_eq!(acme.site.run(&["migrate", "--tenant", "globex"], b"").code, 0);
    let token = acme.site.token("globex", "tests");
    let mended = Instant::now();
    while globex(&acme, &token).await.status != 200 {
        assert!(mended.elapsed() < BY_ITSELF, "still refused");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn a_failure_to_start_is_reported_and_exits_with_1() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there are free ports");
    let address = taken.local_addr().expect("a bound socket has an address").to_string();
    for (key, value) in [("listen", toml::Value::from(vec![address.clone()])), ("admin_listen", address.clone().into())]
    {
        let site = Site::new().tenant("acme", Engine::Sqlite).gateway(key, value).write();
        let output = site.run(&["serve"], b"");
        assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{key}");
        assert!(output.stderr.contains(&format!("can't listen on {address}")), "{key}: {}", output.stderr);
    }
    let site = Site::new().tenant("acme", Engine::Sqlite).gateway("nonsense", 1).write();
    let output = site.run(&["serve"], b"");
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    assert!(output.stderr.contains("unknown key `nonsense`"), "{}", output.stderr);
}
