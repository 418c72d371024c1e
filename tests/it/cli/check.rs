//! `formgate check`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::child;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, Tenant, on_both_databases};
use crate::support::folder::{make_pipe, owner_of};
use crate::support::process::{formgate_held_by_permissions, formgate_in};

/// The line of the configuration that a text stands on, counted from 1.
fn line_of(site: &Site, text: &str) -> usize {
    let config = fs::read_to_string(&site.config_path).expect("the configuration was written");
    config.lines().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text:?} in:\n{config}")) + 1
}

/// `tenants.toml:7`, as a report begins the place of a fault.
fn place(site: &Site, text: &str) -> String {
    format!("{}:{}:", site.config_path.display(), line_of(site, text))
}

on_both_databases! {
    async fn a_valid_configuration_has_no_faults(engine: Engine) {
        let site = Site::new().tenant("acme", engine).tenant("globex", Engine::Sqlite).write();
        let output = site.run(&["check"], b"");
        assert_eq!(output.code, 0, "{output:?}");
        assert_eq!(output.stdout, format!("{}: no faults, 2 tenants\n", site.config_path.display()));
        assert_eq!(output.stderr, "");
    }

    async fn an_unmigrated_database_is_a_fault_with_the_command_that_fixes_it(engine: Engine) {
        let site = Site::new().tenant("acme", Engine::Sqlite).write();
        let site = site.tenant_with("globex", engine, Tenant::unmigrated).write();
        if engine == Engine::Sqlite {
            fs::write(site.folder().join("globex.db"), b"").expect("the site's folder can be written");
        }
        let output = site.run(&["check"], b"");
        assert_eq!(output.code, 1);
        assert!(output.stdout.contains("formgate migrate --tenant globex"), "{}", output.stdout);
        assert!(output.stdout.contains(&place(&site, r#"slug = "globex""#)), "{}", output.stdout);
        assert!(!output.stdout.contains("acme.db"), "{}", output.stdout);
        assert_eq!(output.stderr, "error: 1 fault\n");
    }
}

on_both_databases! {
    async fn rows_whose_foreign_keys_lead_nowhere_are_counted_by_a_deep_check(engine: Engine) {
        let site = Site::new().tenant("acme", engine).write();
        let database = Database::connect(site.database_url("acme")).await;
        let [off, on] = match engine {
            Engine::Sqlite => ["PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys = ON"],
            _ => ["ALTER TABLE elements DISABLE TRIGGER ALL", "ALTER TABLE elements ENABLE TRIGGER ALL"],
        };
        database.execute("INSERT INTO forms (id, name) VALUES (1, 'Leave')").await;
        for statement in [
            off,
            "INSERT INTO elements (id, form_id, position, gid, name, type) VALUES (10, 1, 0, 'a', 'A', 'text'), \
             (20, 7, 0, 'b', 'B', 'text'), (21, 7, 1, 'c', 'C', 'text'), (30, 8, 0, 'd', 'D', 'text')",
            on,
        ] {
            database.execute(statement).await;
        }
        let said = "warning: tenant `acme`: 3 rows of `elements` refer to rows of `forms` that do not exist";
        let deep = site.run(&["check", "--deep"], b"");
        assert!(deep.code == 0 && deep.stdout.matches("that do not exist").count() == 1, "{deep:?}");
        assert!(deep.stdout.contains(said), "{deep:?}");
        let plain = site.run(&["check"], b"");
        assert!(!plain.stdout.contains("do not exist"), "it reads no row: {plain:?}");
        database.execute("DELETE FROM elements WHERE form_id > 1").await;
        assert!(!site.run(&["check", "--deep"], b"").stdout.contains("do not exist"));
    }
}

/// A node refuses it, or serves without a snapshot.
#[test]
fn a_registry_or_a_snapshot_that_is_no_regular_file_is_a_fault() {
    for (key, value, what) in [
        ("registry", "sqlite:pipe.db", "the registry"),
        ("registry_snapshot", "pipe.db", "the snapshot"),
        ("registry_snapshot", "folder.db", "the snapshot"),
    ] {
        let site = Site::new().tenant("acme", Engine::Sqlite).gateway("registry", "sqlite:registry.db");
        let site = site.gateway(key, value).write();
        make_pipe(&site.folder().join("pipe.db"));
        fs::create_dir(site.folder().join("folder.db")).expect("the site's folder can be written");
        let output = site.run(&["check"], b"");
        let said = format!("the path of {what} leads to something that is not a regular file");
        assert!(output.code == 1 && output.stdout.contains(&said), "{key} = {value}: {output:?}");
        assert!(output.stdout.contains(&place(&site, &format!("{key} = "))), "{output:?}");
    }
}

#[test]
fn a_file_that_can_only_be_read_is_a_fault_with_its_path_its_owner_and_the_missing_right() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let file = site.folder().join("acme.db");
    fs::set_permissions(&file, Permissions::from_mode(0o440)).expect("it is ours");
    let output = formgate_held_by_permissions(&["check", "--config", site.config_path.to_str().expect("UTF-8")]);
    assert_eq!(output.code, 1, "{output:?}");
    let said = format!(
        "the SQLite file `{0}` can only be read: `{0}` belongs to {1} (mode 0440), and {1} may not write to it",
        file.display(),
        owner_of(&file)
    );
    assert!(output.stdout.contains(&said), "{output:?}");
}

#[test]
fn every_fault_of_the_configuration_is_listed_with_its_file_and_line() {
    let site = Site::new()
        .tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("timezone", "Europe/Pariss").set("colour", "red"))
        .tenant_with("globex", Engine::Sqlite, |tenant| tenant.set("requests_per_minute", 0).unmigrated())
        .tenant_with("initech", Engine::Sqlite, |tenant| tenant.set("address", "acme.example.test").unmigrated())
        .gateway("on_redis_failure", "hope")
        .write();
    let output = site.run(&["check"], b"");
    assert_eq!(output.code, 1);
    for text in ["Europe/Pariss", "colour", "requests_per_minute = 0", "on_redis_failure"] {
        let place = place(&site, text);
        assert!(output.stdout.contains(&place), "{text}: {place} in:\n{}", output.stdout);
    }
    assert!(output.stdout.contains("`acme.example.test` is claimed twice"), "{}", output.stdout);
    // The databases of tenants whose tables are whole are tried all the same: these two were never made.
    assert_eq!(output.stdout.matches("unable to open database file").count(), 2, "{}", output.stdout);
    assert_eq!(output.stderr, "error: 7 faults\n");
}

#[test]
fn every_database_that_does_not_answer_is_listed_without_its_secrets() {
    let nobody = child::free_port();
    let refused = format!("postgres://user:marker-7f3a@127.0.0.1:{nobody}/forms");
    let site = Site::new()
        .tenant_with("acme", Engine::Sqlite, |tenant| tenant.set("database", refused))
        .tenant("globex", Engine::Sqlite)
        .tenant_with("initech", Engine::Sqlite, |tenant| tenant.set("database", "sqlite:no/such/folder/initech.db"))
        .write();
    fs::write(site.folder().join("globex.db"), "no database, and long enough to be looked at".repeat(100))
        .expect("the site's folder can be written");
    let output = site.run(&["check"], b"");
    assert_eq!(output.code, 1);
    for slug in ["acme", "globex", "initech"] {
        let place = place(&site, &format!("slug = \"{slug}\""));
        assert!(output.stdout.contains(&place), "{place} in:\n{}", output.stdout);
    }
    assert!(output.stdout.to_lowercase().contains("connection refused"), "why is told:\n{}", output.stdout);
    assert!(!output.stdout.contains("marker-7f3a"), "{}", output.stdout);
    assert_eq!(output.stderr, "error: 3 faults\n");
}

#[test]
fn the_configuration_is_found_by_option_by_variable_and_by_name() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let elsewhere = site.folder().join("elsewhere");
    fs::create_dir(&elsewhere).expect("the site's folder can be written");
    let broken = elsewhere.join("broken.toml");
    fs::write(&broken, "nonsense").expect("the site's folder can be written");
    let path = site.config_path.as_os_str();
    let as_option = ["check", "--config", site.config_path.to_str().expect("UTF-8")];

    assert_eq!(formgate_in(site.folder(), None, &["check"]).code, 0, "tenants.toml of the folder");
    assert_eq!(formgate_in(&elsewhere, None, &["check"]).code, 1, "there is none in this folder");
    assert_eq!(formgate_in(&elsewhere, Some(("FORMGATE_CONFIG", path)), &["check"]).code, 0);
    assert_eq!(formgate_in(site.folder(), Some(("FORMGATE_CONFIG", broken.as_os_str())), &["check"]).code, 1);
    assert_eq!(formgate_in(&elsewhere, Some(("FORMGATE_CONFIG", broken.as_os_str())), &as_option).code, 0);
}

#[tokio::test]
async fn files_with_secrets_that_others_may_read_are_warned_about_and_are_no_fault() {
    let with_password = Engine::Postgres.database(Path::new(""), "").replace("postgres@", "postgres:marker-7f3a@");
    let site = Site::new()
        .tenant("acme", Engine::Sqlite)
        .tenant_with("globex", Engine::Postgres, |tenant| tenant.set("database", with_password))
        .write();
    let [database, log] = ["acme.db", "acme.db-wal"].map(|name| site.folder().join(name));
    let key = site.folder().join("certs/wildcard.example.test.key");
    // The log exists as long as a connection is open.
    let open = Database::connect(site.database_url("acme")).await;
    open.execute("CREATE TABLE of_a_product (id INTEGER)").await;
    let expose = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("the file is ours");
    let exposed = [&database, &log, &key, &site.config_path];
    for (path, mode) in exposed.iter().zip([0o644, 0o644, 0o644, 0o664]) {
        expose(path, mode);
    }
    let output = site.run(&["check"], b"");
    assert_eq!((output.code, output.stderr.as_str()), (0, ""));
    for path in exposed {
        assert!(output.stdout.contains(&format!("`{}`", path.display())), "{}:\n{}", path.display(), output.stdout);
    }
    assert_eq!(output.stdout.lines().filter(|line| line.starts_with("warning: ")).count(), 3, "{}", output.stdout);
    assert!(output.stdout.contains("no faults, 2 tenants"), "{}", output.stdout);
    assert!(!output.stdout.contains("marker-7f3a") && !output.stdout.contains("globex.db"), "{}", output.stdout);

    for path in exposed {
        expose(path, 0o640);
    }
    let output = site.run(&["check"], b"");
    assert_eq!(output.stdout, format!("{}: no faults, 2 tenants\n", site.config_path.display()));
    open.close().await;
}

#[test]
fn a_limit_of_open_files_that_is_too_low_for_the_configuration_is_warned_about() {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let config = site.config_path.to_str().expect("the temporary folder has a UTF-8 name");
    let check = ["--nofile=256:256", env!("CARGO_BIN_EXE_formgate"), "check", "--config", config];
    let output = Command::new("prlimit").args(check).output().expect("prlimit is a part of util-linux");
    let stdout = String::from_utf8(output.stdout).expect("formgate writes UTF-8");
    assert!(output.status.success() && stdout.contains("no faults, 1 tenant"), "{stdout}");
    assert!(stdout.contains("warning: `limits.connections` = 10000 is lowered to "), "{stdout}");
    assert!(stdout.contains("the limit of open files is 256"), "{stdout}");
}
