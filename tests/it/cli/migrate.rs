//! `formgate migrate`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::child;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, Tenant, on_all_databases, on_both_databases};

/// `acme: from version 0 to 7`: the newest version.
fn newest(stdout: &str) -> u32 {
    let version = stdout.trim_end().rsplit(' ').next().expect("a split has a last part");
    version.parse().unwrap_or_else(|_| panic!("no version at the end: {stdout:?}"))
}

on_all_databases! {
    async fn a_database_is_brought_to_the_newest_schema_once(engine: Engine) {
        let site = Site::new().tenant_with("acme", engine, Tenant::unmigrated).write();
        let first = site.run(&["migrate"], b"");
        let newest = newest(&first.stdout);
        assert!(newest >= 1);
        assert_eq!(first.stdout, format!("acme: from version 0 to {newest}\n"));
        let second = site.run(&["migrate"], b"");
        assert_eq!((second.code, second.stdout), (0, format!("acme: at version {newest}\n")));
        assert_eq!(second.stderr, "", "standard error is for faults");
    }

    async fn migrations_at_once_wait_for_each_other(engine: Engine) {
        let site = Site::new().tenant_with("acme", engine, Tenant::unmigrated).write();
        let site = &site;
        let outputs: Vec<_> = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..3).map(|_| scope.spawn(move || site.run(&["migrate"], b""))).collect();
            runs.into_iter().map(|run| run.join().expect("a command does not panic")).collect()
        });
        assert!(outputs.iter().all(|output| output.code == 0), "{outputs:?}");
        assert_eq!(site.run(&["check"], b"").code, 0);
    }
}

#[test]
fn a_single_tenant_can_be_migrated() {
    let site = Site::new()
        .tenant_with("acme", Engine::Sqlite, Tenant::unmigrated)
        .tenant_with("globex", Engine::Sqlite, Tenant::unmigrated)
        .write();
    let output = site.run(&["migrate", "--tenant", "globex"], b"");
    assert_eq!(output.code, 0, "{output:?}");
    assert!(output.stdout.starts_with("globex: from version 0 to "), "{}", output.stdout);
    assert_eq!(output.stdout.lines().count(), 1);
    assert!(!site.folder().join("acme.db").exists(), "the other was not touched");
}

#[test]
fn an_unknown_tenant_is_answered_with_those_that_there_are() {
    let site = Site::new().tenant("acme", Engine::Sqlite).tenant("globex", Engine::Sqlite).write();
    let output = site.run(&["migrate", "--tenant", "initech"], b"");
    assert_eq!((output.code, output.stdout.as_str()), (1, ""));
    assert_eq!(output.stderr, "error: there is no tenant `initech`; there are: acme, globex\n");
}

#[test]
fn the_trouble_of_one_tenant_is_its_own() {
    let refused = format!("postgres://user:marker-7f3a@127.0.0.1:{}/forms", child::free_port());
    let site = Site::new()
        .tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", refused))
        .tenant_with("globex", Engine::Sqlite, Tenant::unmigrated)
        .write();
    let output = site.run(&["migrate"], b"");
    assert_eq!(output.code, 1);
    assert!(output.stdout.starts_with("globex: from version 0 to "), "{}", output.stdout);
    assert!(output.stderr.contains("tenant `acme`") && output.stderr.contains("1 of 2 tenants"), "{}", output.stderr);
    assert!(output.stderr.to_lowercase().contains("connection refused"), "why is told: {}", output.stderr);
    assert!(!output.stderr.contains("marker-7f3a"), "{}", output.stderr);
}

/// They hold all answers and the digests of tokens. SQLite gives its log and its shared memory the mode of the file.
#[tokio::test]
async fn a_sqlite_file_and_its_folder_are_created_for_their_owner_only() {
    let site = Site::new();
    let folder = site.folder().join("data/acme");
    let url = format!("sqlite:{}", folder.join("acme.db").display());
    let site = site.tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", url)).write();
    assert_eq!(site.run(&["migrate"], b"").code, 0);
    site.import("acme", r#"{"type":"user","id":7,"email":"ana@example.com","name":"Ana"}"#);
    let token = site.token("acme", "tests");
    let node = site.start();
    let group = serde_json::json!({"name": "Staff", "members": []});
    let caller = node.client().to(&site.host("acme")).with(&token);
    assert_eq!(caller.put("/api/v1/group").json(&group).send().await.status, 201);
    for (file, expected) in [("", 0o700), ("acme.db", 0o600), ("acme.db-wal", 0o600), ("acme.db-shm", 0o600)] {
        assert_eq!(mode(&folder.join(file)), expected, "{file:?}");
    }
    assert_eq!(mode(&site.folder().join("data")), 0o700);
}

#[test]
fn a_sqlite_file_that_exists_keeps_its_mode() {
    let site = Site::new().tenant_with("acme", Engine::Sqlite, Tenant::unmigrated).write();
    let file = site.folder().join("acme.db");
    fs::write(&file, "").expect("the site's folder can be written");
    fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("the file is ours");
    assert_eq!(site.run(&["migrate"], b"").code, 0);
    assert_eq!(mode(&file), 0o640);
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("it is there").permissions().mode() & 0o777
}

#[test]
fn many_tenants_are_migrated_at_once_and_printed_in_their_order() {
    let slugs: Vec<_> = (0..24).map(|number| format!("t{number:02}")).collect();
    let refused = format!("postgres://user@127.0.0.1:{}/forms", child::free_port());
    let site = slugs.iter().fold(Site::new(), |site, slug| match slug.as_str() {
        "t03" => site.tenant_with(slug, Engine::Sqlite, |tenant| tenant.set("database", refused.clone())),
        _ => site.tenant_with(slug, Engine::Sqlite, Tenant::unmigrated),
    });
    let site = site.write();
    let printed =
        |output: &str| output.lines().filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect::<Vec<_>>();
    let expected: Vec<_> = slugs.iter().filter(|slug| *slug != "t03").cloned().collect();
    for (jobs, what) in [("8", "from version 0 to "), ("1", "at version "), ("256", "at version ")] {
        let output = site.run(&["migrate", "--jobs", jobs], b"");
        assert_eq!((output.code, printed(&output.stdout)), (1, expected.clone()), "{output:?}");
        assert!(output.stdout.lines().all(|line| line.contains(what)), "{what}: {}", output.stdout);
        assert!(
            output.stderr.contains("tenant `t03`") && output.stderr.contains("1 of 24 tenants"),
            "{}",
            output.stderr
        );
    }
    assert_eq!(site.run(&["migrate", "--jobs", "0"], b"").code, 2);
}

on_both_databases! {
    async fn a_database_that_is_up_to_date_is_only_looked_at(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let writer = Database::connect(site.database_url("acme")).await;
        // Nothing else can write, and no statistics can be gathered.
        writer
            .execute(match engine {
                Engine::Sqlite => "BEGIN IMMEDIATE",
                _ => "BEGIN; LOCK TABLE listed_documents IN SHARE UPDATE EXCLUSIVE MODE",
            })
            .await;
        let output = site.run(&["migrate"], b"");
        assert!(output.code == 0 && output.stdout.starts_with("acme: at version "), "{output:?}");
        writer.execute("ROLLBACK").await;
        writer.close().await;
    }
}
