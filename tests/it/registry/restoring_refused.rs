//! Which restores are refused, with which words, and what is printed for a tenant of a file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use http::Method;
use jiff::Timestamp;

use super::scene::{LIMIT, Scene};
use crate::support::database::Database;
use crate::support::fixture::{Engine, migrate};
use crate::support::litestream::{Litestream, path_with_litestream};
use crate::support::process::Output;

/// A tenant in a file of a folder of accounts, which Litestream replicates.
async fn replicated() -> (Scene, Litestream) {
    let scene = Scene::new(Engine::Sqlite);
    let file = scene.folder().join("accounts/acme.db");
    let mut tenant = scene.tenant("acme");
    tenant["database"] = format!("sqlite:{}", file.display()).into();
    let node = scene.start(0);
    let added = scene.call(0, Method::PUT, "/v1/tenants/acme?migrate=1&wait=60", Some(&tenant)).await;
    assert_eq!(added.status, 201, "{added:?}");
    drop(node);
    let litestream = Litestream::replicating(&scene.folder().join("accounts"), &scene.folder().join("litestream"));
    litestream.wait_for(&file);
    (scene, litestream)
}

fn restore(scene: &Scene, options: &[&str]) -> Output {
    let path = path_with_litestream();
    let command = [&["tenant", "restore", "acme"][..], options].concat();
    scene.run_in(&command, &[("PATH", path.to_str().expect("UTF-8"))])
}

fn refused(scene: &Scene, options: &[&str], code: i32, words: &str) {
    let output = restore(scene, options);
    assert_eq!(output.code, code, "{options:?}: {}{}", output.stdout, output.stderr);
    assert!(output.stderr.contains(words), "{options:?}: {} instead of {words}", output.stderr);
    assert_eq!(output.stdout, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_replica_does_not_have_is_named() {
    let (scene, litestream) = replicated().await;
    let (config, now) = (litestream.config(), Timestamp::now().to_string());
    let new = format!("sqlite:{}", scene.folder().join("new.db").display());
    let of = |at: &str, to: &str, config: &str, code, words: &str| {
        refused(&scene, &["--at", at, "--as", to, "--litestream-config", config], code, words);
    };
    of("last tuesday", &new, &config, 2, "an instant is an RFC 3339 date-time");
    of("2999-01-01T00:00:00Z", &new, &config, 2, "in the future");
    of("2020-01-01T00:00:00Z", &new, &config, 1, "begins at 20");
    of(&now, &new, "/nowhere/litestream.yml", 1, "can't read /nowhere/litestream.yml");
    of(&now, "postgres://somebody@127.0.0.1/nothing", &config, 1, "is in a SQLite file");
    of(&now, "mysql://x", &config, 1, "not the address of a database");
    let file = scene.folder().join("accounts/acme.db");
    of(&now, &format!("sqlite:{}", file.display()), &config, 1, "exists already");
    let other = scene.folder().join("other.yml");
    let write = |text: &str| fs::write(&other, text).expect("a file can be written");
    let shown = other.display().to_string();
    write("dbs: [{dir: /srv/nothing, pattern: '*.db', replica: {type: file, path: /srv/backup}}]");
    of(&now, &new, &shown, 1, "has no entry in `dbs`");
    write("a text");
    of(&now, &new, &shown, 1, "is not Litestream's");
    let nowhere = scene.folder().join("nowhere");
    write(&format!("dbs: [{{path: {}, replica: {{type: file, path: {}}}}}]", file.display(), nowhere.display()));
    of(&now, &new, &shown, 1, "has no backup of");
    // Where the machine has none.
    let output = scene.run(&["tenant", "restore", "acme", "--at", &now, "--as", &new, "--litestream-config", &config]);
    assert!(
        output.code == 1 && output.stderr.contains("there is no program `litestream` in the PATH"),
        "{}",
        output.stderr
    );
    let unknown = scene.run(&["tenant", "restore", "nobody", "--at", &now, "--as", &new]);
    assert!(unknown.code == 1 && unknown.stderr.contains("no tenant `nobody`"), "{}", unknown.stderr);
    assert!(!scene.folder().join("new.db").exists(), "a refused restore leaves nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_the_database_has_a_backup_of_the_account() {
    let scene = Scene::new(Engine::Postgres);
    let _node = scene.start(0);
    scene.add(0, "acme").await;
    let url = scene.tenant("acme")["database"].as_str().expect("a URL").to_owned();
    let at = Timestamp::now().to_string();
    let of = |to: &str, words: &str| refused(&scene, &["--at", &at, "--as", to], 1, words);
    of(&Engine::Postgres.empty_database(scene.folder(), "empty"), "has no tables of an account");
    of(&Engine::Postgres.database(scene.folder(), "other"), "another account");
    of(&url, "present database");
    of("sqlite:new.db", "is on Postgres");
    // What is refused is not changed: the account's own is not marked.
    let database = Database::connect(&url).await;
    let marks = "SELECT count(*) FROM pg_class WHERE relname = 'formgate_restored'";
    assert_eq!(database.integers(marks).await, [0]);
    assert_eq!(database.integers("SELECT count(*) FROM audit_log WHERE action = 'tenant.restored'").await, [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_of_a_file_is_pointed_to_the_restored_database_by_its_operator() {
    let mut scene = Scene::new(Engine::Sqlite);
    let accounts = scene.folder().join("accounts");
    let file = accounts.join("acme.db");
    fs::create_dir_all(&accounts).expect("a folder can be made");
    let text = scene.text("acme");
    let old = scene.tenant("acme")["database"].as_str().expect("a URL").to_owned();
    let text = text.replace(&old, &format!("sqlite:{}", file.display()));
    scene.write_files(&text, 1);
    migrate(&format!("sqlite:{}", file.display()));
    let litestream = Litestream::replicating(&accounts, &scene.folder().join("litestream"));
    litestream.wait_for(&file);
    let new = accounts.join("restored.db");
    let to = format!("sqlite:{}", new.display());
    let (config, since, mut tries) = (litestream.config(), Instant::now(), 0);
    // Only an instant up to the second of the last write in the replica is taken.
    let printed = loop {
        tries += 1;
        let product = Database::connect(&format!("sqlite:{}", file.display())).await;
        product.execute(&format!("INSERT INTO users (email) VALUES ('user{tries}@acme.example')")).await;
        product.close().await;
        let at = Timestamp::now().to_string();
        let done = restore(&scene, &["--at", &at, "--as", &to, "--litestream-config", &config]);
        if done.code == 0 {
            break done.stdout;
        }
        assert!(since.elapsed() < LIMIT, "{}", done.stderr);
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(printed.contains(&format!("next: write `database = \"{to}\"` in ")), "{printed}");
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode();
    assert_eq!(mode(&new), mode(&file), "others can't read it");
    scene.write_files(&text.replace("acme.db", "restored.db"), 1);
    let checked = scene.run(&["check"]);
    assert_eq!(checked.code, 0, "{}{}", checked.stdout, checked.stderr);
}
