//! What breaks is one tenant alone, is refused at once, and heals without anybody's help.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::scene::{BY_ITSELF, PATIENCE, Scene};
use crate::support::client::{operator_get, wait_for_count};
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, Tenant, on_both_databases};
use crate::support::folder::owner_of;
use crate::support::postgres::Postgres;

/// What the log says when the database breaks.
const BROKEN: &str = r#""message":"the tenant's database can't be used""#;

/// What it says when it works again.
const BACK: &str = "the tenant's database is back";

/// A scene on a server of its own.
fn on_own_server() -> (Postgres, Scene) {
    let server = Postgres::start();
    let url = server.new_migrated_database();
    let scene = Scene::with(Site::new(), Engine::Sqlite, |tenant| tenant.set("database", url));
    (server, scene)
}

fn file_of(site: &Site) -> PathBuf {
    PathBuf::from(site.database_url("acme").strip_prefix("sqlite:").expect("a file"))
}

#[tokio::test]
async fn a_server_that_dies_and_is_started_again() {
    let (mut server, mut scene) = on_own_server();
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    server.crash();
    scene.is_refused().await;
    assert_eq!(scene.count("formgate_database_breakers_open").await, 1);
    server.recover();
    scene.comes_back().await;
    assert_eq!(scene.count("formgate_database_breakers_open").await, 0);
    assert_eq!(scene.count("formgate_database_breaker_trips_total").await, 1);
    assert_eq!((scene.said(BROKEN), scene.said(BACK)), (1, 1), "one line each, however many requests");
}

#[tokio::test]
async fn a_server_that_hangs() {
    let (mut server, mut scene) = on_own_server();
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    scene.wait_until_use_is_stored().await;
    // The connection is idle for so long that it is asked whether it works, and not given a statement, which would take its
    // whole limit.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    server.hang(true);
    scene.is_refused().await;
    server.hang(false);
    scene.comes_back().await;
    assert_eq!((scene.said(BROKEN), scene.said(BACK)), (1, 1));
}

#[tokio::test]
async fn a_server_that_is_down_when_the_node_starts() {
    let mut server = Postgres::start();
    let url = server.new_migrated_database();
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", url));
    let site = site.tenant("globex", Engine::Sqlite).requests_per_minute(100_000).write();
    site.migrate();
    let token = site.token("acme", "tests");
    server.crash();
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    assert_eq!(client.get("/api/v1/form").send().await.status, 503);
    server.recover();
    let scene = Scene::of(site, node);
    scene.comes_back().await;
}

#[tokio::test]
async fn a_database_that_is_not_there_yet() {
    let server = Postgres::start();
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", server.url("late")));
    let site = site.tenant("globex", Engine::Sqlite).requests_per_minute(100_000).write();
    let node = site.start();
    let stranger = formgate::tenant::token::PresentedToken::generate();
    let client = node.client().to(&site.host("acme")).with(stranger.expose());
    assert_eq!(client.get("/api/v1/form").send().await.status, 503);
    server.execute("CREATE DATABASE late");
    site.migrate();
    Scene::of(site, node).comes_back().await;
}

#[tokio::test]
async fn connections_that_the_server_ends_are_not_noticed() {
    let mut scene = Scene::on(Engine::Postgres);
    let operator = Database::connect(scene.site.database_url("acme")).await;
    for _ in 0..10 {
        assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
        assert_eq!(scene.write().await, 201);
        operator
            .execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            .await;
    }
    assert_eq!(scene.said(BROKEN), 0);
}

/// Puts something in the place of a tenant's file, and the file back.
async fn replaced(break_it: impl FnOnce(&Path)) {
    let site = Site::new().tenant("acme", Engine::Sqlite).tenant("globex", Engine::Sqlite);
    let site = site.requests_per_minute(100_000).write();
    let (file, token) = (file_of(&site), site.token("acme", "tests"));
    let kept = file.with_extension("kept");
    fs::rename(&file, &kept).unwrap();
    break_it(&file);
    let node = site.start();
    let client = node.client().to(&site.host("acme")).with(&token);
    for _ in 0..5 {
        assert_eq!(client.get("/api/v1/form").send().await.status, 503);
    }
    if file.is_dir() {
        fs::remove_dir(&file).unwrap();
    }
    fs::rename(&kept, &file).unwrap();
    Scene::of(site, node).comes_back().await;
}

#[tokio::test]
async fn a_file_that_is_missing() {
    replaced(|_| {}).await;
}

#[tokio::test]
async fn a_folder_in_the_place_of_the_file() {
    replaced(|file| fs::create_dir(file).unwrap()).await;
}

#[tokio::test]
async fn a_file_that_is_no_database() {
    replaced(|file| fs::write(file, "no database, but long enough to have a header of one".repeat(100)).unwrap()).await;
}

#[tokio::test]
async fn a_file_that_another_process_has_locked() {
    let site = Site::new().databases("idle_seconds", 1);
    let mut scene = Scene::with(site, Engine::Sqlite, |tenant| tenant);
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    // In WAL mode only one who is there first can lock the others out: the node lets go of its connections by itself.
    let open = r#"formgate_database_connections{database="sqlite",state="open"}"#;
    wait_for_count(scene.node.operator_address(), open, 0).await;
    let other = Database::connect(scene.site.database_url("acme")).await;
    other.execute("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; CREATE TABLE held (n); COMMIT").await;
    scene.is_refused().await;
    other.close().await;
    scene.comes_back().await;
}

#[tokio::test]
async fn a_disk_that_is_full_keeps_writes_out_and_not_reads() {
    let site = Site::new().tenant("acme", Engine::Sqlite).tenant("globex", Engine::Sqlite);
    let site = site.requests_per_minute(100_000).write();
    let node = crate::support::process::Node::spawn(&site.config_path);
    let scene = Scene::of(site, node);
    assert_eq!(scene.write().await, 201);
    // The limit is the process's: whatever is to be opened is open before.
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    scene.others_are_served().await;
    let limit_files = |bytes: &str| {
        let id = scene.node.id().to_string();
        let done = Command::new("prlimit").args(["--pid", &id, &format!("--fsize={bytes}")]).status();
        assert!(done.expect("prlimit is a part of util-linux").success());
    };
    limit_files("4096:unlimited");
    assert_eq!(scene.write().await, 503);
    for _ in 0..5 {
        assert_eq!(scene.ask_within(PATIENCE).await.status, 200, "what is there can be read");
    }
    scene.others_are_served().await;
    limit_files("unlimited:unlimited");
    assert_eq!(scene.write().await, 201);
}

/// SQLite's shared memory can't be created then, which readers need too.
#[tokio::test]
async fn a_disk_that_is_full_when_a_file_is_opened_keeps_writes_out_and_not_reads() {
    // Webhooks would open the files before the disk is full.
    let no_webhooks = toml::Table::from_iter([("enabled".to_owned(), false.into())]);
    let site = Site::new().tenant("acme", Engine::Sqlite).tenant("globex", Engine::Sqlite);
    let site = site.gateway("webhooks", no_webhooks).requests_per_minute(100_000).write();
    let tokens = ["acme", "globex"].map(|slug| site.token(slug, "before"));
    let mut node = crate::support::process::Node::spawn(&site.config_path);
    let limit_files = |bytes: &str| {
        let done =
            Command::new("prlimit").args(["--pid", &node.id().to_string(), &format!("--fsize={bytes}")]).status();
        assert!(done.expect("prlimit is a part of util-linux").success());
    };
    limit_files("4096:unlimited");
    let acme = node.client().to(&site.host("acme")).with(&tokens[0]);
    let globex = node.client().to(&site.host("globex")).with(&tokens[1]);
    let group = json!({"name": "Staff"});
    for _ in 0..5 {
        assert_eq!(acme.get("/api/v1/form").send().await.status, 200, "{}", node.log());
        assert_eq!(acme.post("/api/v1/submission").json(&json!({})).send().await.status, 200);
        assert_eq!(acme.put("/api/v1/group").json(&group).send().await.status, 503);
        assert_eq!(globex.get("/api/v1/form").send().await.status, 200);
    }
    limit_files("unlimited:unlimited");
    let mended = Instant::now();
    while acme.put("/api/v1/group").json(&group).send().await.status != 201 {
        assert!(mended.elapsed() < BY_ITSELF, "writes are still refused");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(node.log().contains("can only be read"), "{}", node.log());
}

/// Takes the right to write from a file or a folder, or gives it back.
fn let_write(path: &Path, may: bool) {
    let mode = if path.is_dir() { 0o555 } else { 0o444 } | if may { 0o200 } else { 0 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A tenant whose file stands in a folder of its own, and that folder.
fn in_own_folder() -> (Site, PathBuf) {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", "sqlite:own/acme.db"));
    let site = site.tenant("globex", Engine::Sqlite).requests_per_minute(100_000);
    let site = site.databases("sqlite_idle_seconds", 1).write();
    site.migrate();
    let folder = site.folder().join("own");
    (site, folder)
}

#[tokio::test]
async fn a_file_that_may_not_be_written_keeps_writes_out_and_not_reads() {
    let (site, folder) = in_own_folder();
    let file = folder.join("acme.db");
    site.token("acme", "tests");
    let node = crate::support::process::Node::spawn_held_by_permissions(&site.config_path);
    let mut scene = Scene::of(site, node);
    // The inspection opens the file: with a connection from before, the node could still write. Idle ones are closed.
    let began = Instant::now();
    while scene.count(r#"formgate_task_last_success_timestamp_seconds{task="databases"}"#).await == 0 {
        assert!(began.elapsed() < BY_ITSELF, "no inspection ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let_write(&file, false);
    while scene.count(r#"formgate_database_connections{database="sqlite",state="open"}"#).await > 0 {
        assert!(began.elapsed() < BY_ITSELF, "an idle connection is kept");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..3 {
        for _ in 0..4 {
            assert_eq!(scene.write().await, 503);
        }
        assert_eq!(scene.ask_within(PATIENCE).await.status, 200, "what is there can be read");
        scene.others_are_served().await;
    }
    assert!(scene.said("readonly database") > 0, "{}", scene.node.log());
    let said = format!("the SQLite file `{0}` can only be read: `{0}` belongs to ", file.display());
    assert!(scene.said(&said) > 0, "{}", scene.node.log());
    assert!(scene.count(r#"formgate_database_failures_total{reason="read_only"}"#).await > 0);
    let_write(&file, true);
    let mended = Instant::now();
    while scene.write().await != 201 {
        assert!(mended.elapsed() < BY_ITSELF, "writes are still refused");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_folder_that_may_not_be_written() {
    let (site, folder) = in_own_folder();
    let token = site.token("acme", "tests");
    let_write(&folder, false);
    let node = crate::support::process::Node::spawn_held_by_permissions(&site.config_path);
    let client = node.client().to(&site.host("acme")).with(&token);
    // What SQLite needs next to the file can't be created there.
    for _ in 0..5 {
        assert_eq!(client.get("/api/v1/form").send().await.status, 200);
        assert_eq!(client.post("/api/v1/submission").json(&json!({})).send().await.status, 200);
        let written = client.put("/api/v1/group").json(&json!({"name": "Staff"})).send().await;
        assert_eq!((written.status.as_u16(), written.number("retry-after")), (503, Some(1)));
    }
    let_write(&folder, true);
    let mut scene = Scene::of(site, node);
    let said = format!(
        "the SQLite file `{0}/acme.db` can only be read: `{0}` belongs to {1} (mode 0555), and {1} may not create the log of SQLite in it",
        folder.display(),
        owner_of(&folder)
    );
    assert!(scene.said(&said) > 0, "{said}: {}", scene.node.log());
    assert_eq!(scene.count("formgate_database_breaker_trips_total").await, 0);
    scene.comes_back().await;
    let_write(&folder, false);
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200, "what is open stays open");
    let_write(&folder, true);
}

#[tokio::test]
async fn a_password_that_is_wrong() {
    let server = Postgres::start();
    server.execute("CREATE ROLE keeper SUPERUSER LOGIN PASSWORD 'marker-right'");
    server.demand_password_of("keeper");
    let url = server.new_migrated_database().replace("postgres@", "keeper:marker-right@");
    let mut scene = Scene::with(Site::new(), Engine::Sqlite, |tenant| tenant.set("database", url));
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    server.execute("ALTER ROLE keeper PASSWORD 'marker-other'");
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'keeper'");
    scene.is_refused().await;

    let operator = scene.node.operator_address();
    let readiness = operator_get(operator, "/readyz").await;
    let fault = readiness.json()["tenants"]["acme"][0].as_str().expect("what is wrong").to_owned();
    assert_eq!(readiness.status, 200, "the node serves others");
    let explained = scene.site.run(&["explain", "acme.example.test"], b"");
    assert_eq!(explained.code, 1);
    let metrics = scene.count(r#"formgate_database_failures_total{reason="unreachable"}"#).await;
    assert!(metrics > 0, "it is counted");
    let told = [scene.node.log(), fault, explained.stdout + &explained.stderr];
    for told in &told {
        assert!(told.contains("password authentication failed"), "{told}");
        assert!(!told.contains("marker-"), "{told}");
    }
    server.execute("ALTER ROLE keeper PASSWORD 'marker-right'");
    scene.comes_back().await;
    assert_eq!((scene.said(BROKEN), scene.said(BACK)), (1, 1));
}

#[tokio::test]
async fn a_server_without_room_keeps_writes_out_and_not_reads() {
    let scene = Scene::on(Engine::Postgres);
    let operator = Database::connect(scene.site.database_url("acme")).await;
    operator
        .execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$; \
             CREATE TRIGGER full_disk BEFORE INSERT ON groups EXECUTE FUNCTION full_disk()",
        )
        .await;
    assert_eq!(scene.write().await, 503);
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    operator.execute("DROP TRIGGER full_disk ON groups").await;
    assert_eq!(scene.write().await, 201);
}

#[tokio::test]
async fn a_server_that_takes_no_writes_for_a_while() {
    let (server, scene) = on_own_server();
    let database = Database::connect(&server.url("postgres")).await;
    server.execute("ALTER SYSTEM SET default_transaction_read_only = on");
    server.execute("SELECT pg_reload_conf()");
    wait_until_it_is_default(&database, "on").await;
    assert_eq!(scene.write().await, 503);
    assert_eq!(scene.ask_within(PATIENCE).await.status, 200);
    server.execute("ALTER SYSTEM RESET default_transaction_read_only");
    server.execute("SELECT pg_reload_conf()");
    wait_until_it_is_default(&database, "off").await;
    assert_eq!(scene.write().await, 201);
}

/// Waits until a session that was open before has taken up that transactions are read-only, or no longer are.
async fn wait_until_it_is_default(database: &Database, read_only: &str) {
    let began = Instant::now();
    while database.text("SHOW default_transaction_read_only").await != read_only {
        assert!(began.elapsed() < BY_ITSELF, "the server does not reload its settings");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

on_both_databases! {
    /// The failing statement is not tried for ever, and the tenants are told apart.
    async fn a_schema_that_is_too_old(engine: Engine) {
        let site = Site::new().tenant_with("acme", engine, Tenant::unmigrated).tenant("globex", Engine::Sqlite);
        let site = site.requests_per_minute(100_000).write();
        let node = site.start();
        let stranger = formgate::tenant::token::PresentedToken::generate();
        let client = node.client().to(&site.host("acme")).with(stranger.expose());
        assert_eq!(client.get("/api/v1/form").send().await.status, 503);
        site.migrate();
        Scene::of(site, node).comes_back().await;
    }
}
