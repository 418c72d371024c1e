//! What all databases together may cost: connections are counted across tenants, and what is idle makes room.

use std::collections::HashSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::future::join_all;

use super::scene::{BY_ITSELF, PATIENCE, Scene};
use crate::support::client::{Client, operator_count, wait_for_count};
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, migrate};
use crate::support::postgres::Postgres;

const OPEN_POSTGRES: &str = r#"formgate_database_connections{database="postgres",state="open"}"#;
const OPEN_SQLITE: &str = r#"formgate_database_connections{database="sqlite",state="open"}"#;
const IDLE_SQLITE: &str = r#"formgate_database_connections{database="sqlite",state="idle"}"#;

/// The connections of a process to a port of this machine, as the kernel counts them. The server counts processes, which need
/// a moment to end after their connections, and on a busy machine a longer one.
fn connections(process: u32, port: u16) -> usize {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap();
    let port = format!(":{port:04X}");
    let to_port = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields[2].ends_with(&port) && fields[3] == ESTABLISHED).then(|| format!("socket:[{}]", fields[9]))
    });
    let to_port: HashSet<String> = to_port.collect();
    // A file may be closed while they are listed.
    let files = fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let names = files.filter_map(|file| fs::read_link(file.path()).ok()?.into_os_string().into_string().ok());
    names.filter(|name| to_port.contains(name)).count()
}

#[tokio::test]
async fn many_tenants_at_once_never_have_more_connections_than_the_cap() {
    const TENANTS: usize = 12;
    const CAP: u64 = 5;
    /// So few looks would prove little.
    const LOOKS: usize = 20;
    let server = Postgres::start();
    let slugs: Vec<String> = (0..TENANTS).map(|n| format!("t{n}")).collect();
    let site = Site::new().databases("max_connections", CAP as i64).databases("wait_ms", 20_000);
    let site = slugs.iter().fold(site, |site, slug| {
        site.tenant_with(slug, Engine::Sqlite, |tenant| tenant.set("database", server.new_database()))
    });
    let site = site.requests_per_minute(100_000).write();
    site.migrate();
    let mut node = site.start();
    let client = |slug: &String| node.client().to(&site.host(slug)).with(&site.token(slug, "tests"));
    let clients: Vec<Client> = slugs.iter().map(client).collect();
    let (node_id, operator) = (node.id(), node.operator_address());

    let (done, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    let callers = async {
        let calls = clients.iter().flat_map(|client| [client; 3]).map(async |client: &Client| {
            let mut calls = 0;
            while calls < 12 || looks.load(Ordering::Relaxed) <= LOOKS {
                assert_eq!(client.get("/api/v1/form").send().await.status, 200);
                calls += 1;
            }
        });
        join_all(calls).await;
        done.store(true, Ordering::Relaxed);
    };
    let watch = async {
        let (mut most, mut gauge) = (0, 0);
        while !done.load(Ordering::Relaxed) {
            let open = connections(node_id, server.port());
            (most, gauge) = (most.max(open), gauge.max(operator_count(operator, OPEN_POSTGRES).await));
            looks.fetch_add(1, Ordering::Relaxed);
        }
        (most, gauge)
    };
    let ((), (most, gauge)) = tokio::join!(callers, watch);
    assert_eq!(gauge, CAP, "by our count");
    // One that is being closed may still be there when another one takes its place, and one that is opened while they are
    // listed is not counted.
    assert!((1..=CAP as usize + 1).contains(&most), "{most} by the kernel's count");
}

#[tokio::test]
async fn a_thousand_tenants_one_after_another_stay_within_the_connection_limit() {
    const TENANTS: usize = 1000;
    /// As many as 13 MiB are for, at 650 KiB each.
    const CAP: u64 = 20;
    /// A quarter of them may be closing, each with a thread of its own and one that waits for it.
    const CLOSING: u64 = 5;
    /// The runtime's threads for files: those that look at a commit, a log, a certificate.
    const FILES: u64 = 3;
    /// As many databases are opened at once after the start, to find out which have subscriptions.
    const SURVEYED: u64 = 16;
    let site = Site::new().tenant("t0", Engine::Sqlite).write();
    let token = site.token("t0", "tests");
    let file = site.database_url("t0").strip_prefix("sqlite:").unwrap().to_owned();
    let site = site.databases("sqlite_mib", 13).databases("sqlite_idle_seconds", 1);
    let site = (1..TENANTS).fold(site, |site, n| {
        let copy = site.folder().join(format!("t{n}.db"));
        fs::copy(&file, &copy).unwrap();
        let url = format!("sqlite:{}", copy.display());
        site.tenant_with(&format!("t{n}"), Engine::Sqlite, |tenant| tenant.set("database", url))
    });
    let site = site.requests_per_minute(100_000).write();
    let mut node = site.start();
    let operator = node.operator_address();
    let threads = |node: u32| {
        let status = fs::read_to_string(format!("/proc/{node}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Threads:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    let before = threads(node.id());
    let client = node.client().with(&token);
    for n in 0..TENANTS {
        // One connection for all: they share a certificate.
        let answer = client.get("/api/v1/form").host(&site.host(&format!("t{n}"))).server_name(&site.host("t0"));
        assert_eq!(answer.send().await.status, 200, "t{n}");
        if n % 50 == 49 {
            assert!(operator_count(operator, OPEN_SQLITE).await <= CAP);
            let (now, most) = (threads(node.id()), before + CAP + 2 * CLOSING + FILES + SURVEYED);
            assert!(now <= most, "{now} threads of {most}");
        }
    }
    wait_for_count(operator, OPEN_SQLITE, 0).await;
    assert_eq!(operator_count(operator, IDLE_SQLITE).await, 0);
}

#[tokio::test]
async fn a_server_that_takes_few_connections_serves_by_those() {
    let server = Postgres::start();
    let url = server.new_database();
    server.execute("CREATE ROLE few LOGIN CONNECTION LIMIT 2");
    let database = Database::connect(&url).await;
    let few = url.replace("postgres@", "few@");
    database.execute("GRANT CREATE, USAGE ON SCHEMA public TO few").await;
    let name = url.rsplit('/').next().unwrap();
    server.execute(&format!("ALTER DATABASE {name} OWNER TO few"));
    migrate(&few);
    // Twenty that take turns may take a busy machine longer than a request waits.
    let site = Site::new().databases("wait_ms", 20_000);
    let mut scene = Scene::with(site, Engine::Sqlite, |tenant| tenant.set("database", few));
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    for _ in 0..5 {
        let answers = join_all((0..20).map(|_| scene.ask_within(BY_ITSELF))).await;
        assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    }
    let refused = scene.count(r#"formgate_database_failures_total{reason="full"}"#).await;
    assert!((1..=30).contains(&refused), "{refused} tries to connect: a storm, or none");
    assert_eq!(scene.count("formgate_database_breaker_trips_total").await, 0);
}
