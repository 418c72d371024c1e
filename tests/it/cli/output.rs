//! Where a command's output can't be written: a full disk, a reader that went away.

use crate::support::database::Database;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Writable::{Abandoned, Full, Read};

const FORM: &str = r#"{"type": "form", "id": 1, "name": "A form"}"#;

/// A site with a form in a file to import.
fn site() -> (Site, String) {
    let site = Site::new().tenant("acme", Engine::Sqlite).write();
    let file = site.folder().join("one.ndjson");
    std::fs::write(&file, FORM).expect("the site's folder can be written");
    let file = file.to_str().expect("the temporary folder has a UTF-8 name").to_owned();
    (site, file)
}

#[tokio::test]
async fn an_unwritable_result_is_a_failure_and_reports_that_the_work_is_done() {
    let (site, file) = site();
    for (command, done) in [
        (&["check"][..], ""),
        (&["explain", &site.host("acme")], ""),
        (&["token", "list", "--tenant", "acme"], ""),
        (&["migrate"], "the tenants are migrated: "),
        (&["import", "--tenant", "acme", &file], &format!("{file}: loaded: ")),
        (&["reindex", "--tenant", "acme"], "the search tables are rebuilt: "),
    ] {
        let output = site.run_into(command, Full, Read);
        let said = format!("error: {done}standard output can't be written: No space left on device (os error 28)\n");
        assert_eq!((output.code, output.stderr), (1, said), "{command:?}");
    }
    let database = Database::connect(site.database_url("acme")).await;
    assert_eq!(database.integers("SELECT count(*) FROM forms").await, [1], "what was told to be loaded is");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let (site, file) = site();
    for command in [
        &["check"][..],
        &["explain", &site.host("acme")],
        &["token", "list", "--tenant", "acme"],
        &["migrate"],
        &["import", "--tenant", "acme", &file],
        &["reindex", "--tenant", "acme"],
    ] {
        let output = site.run_into(command, Abandoned, Read);
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{command:?}");
    }
}

#[test]
fn the_exit_code_is_the_same_without_a_reader_of_standard_error() {
    let (site, file) = site();
    site.token("acme", "x");
    for lost in [Full, Abandoned] {
        for (command, code) in [
            (&["token", "revoke", "--tenant", "acme", "1"][..], 0),
            (&["token", "revoke", "--tenant", "acme", "2"], 1),
            (&["import", "--tenant", "acme", "--keep-going", "/dev/null"], 0),
            (&["import", "--tenant", "acme", "/nowhere"], 1),
            (&["migrate", "--tenant", "globex"], 1),
        ] {
            let output = site.run_into(command, Read, lost);
            assert_eq!(output.code, code, "{command:?}: {}", output.stdout);
        }
    }
    std::fs::write(&file, "no JSON\n").expect("the site's folder can be written");
    assert_eq!(site.run_into(&["import", "--tenant", "acme", "--keep-going", &file], Read, Abandoned).code, 1);
}
