//! `formgate migrate`.

use crate::support::child;
use crate::support::fixture::{Engine, Site, on_both_databases};

/// `acme: from version 0 to 7`: the newest version.
fn newest(stdout: &str) -> u32 {
    let version = stdout.trim_end().rsplit(' ').next().expect("a split has a last part");
    version.parse().unwrap_or_else(|_| panic!("no version at the end: {stdout:?}"))
}

on_both_databases! {
    async fn a_database_is_brought_to_the_newest_schema_once(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let first = site.run(&["migrate"], b"");
        let newest = newest(&first.stdout);
        assert!(newest >= 1);
        assert_eq!(first.stdout, format!("acme: from version 0 to {newest}\n"));
        let second = site.run(&["migrate"], b"");
        assert_eq!((second.code, second.stdout), (0, format!("acme: at version {newest}\n")));
        assert_eq!(second.stderr, "", "standard error is for faults");
    }

    async fn migrations_at_once_wait_for_each_other(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
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
fn one_tenant_is_migrated_alone() {
    let site = Site::new().tenant("acme", Engine::Sqlite).tenant("globex", Engine::Sqlite).write();
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
        .tenant("globex", Engine::Sqlite)
        .write();
    let output = site.run(&["migrate"], b"");
    assert_eq!(output.code, 1);
    assert!(output.stdout.starts_with("globex: from version 0 to "), "{}", output.stdout);
    assert!(output.stderr.contains("tenant `acme`") && output.stderr.contains("1 of 2 tenants"), "{}", output.stderr);
    assert!(output.stderr.to_lowercase().contains("connection refused"), "why is told: {}", output.stderr);
    assert!(!output.stderr.contains("marker-7f3a"), "{}", output.stderr);
}
