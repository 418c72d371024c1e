//! `formgate export`: files that are complete or not there, past the budget.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::api::world::{World, ZONE};
use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::process::Writable::{Full, Read};

fn site(engine: Engine) -> Site {
    Site::new().tenant_with("acme", engine, |tenant| tenant.set("timezone", ZONE)).requests_per_minute(5).write()
}

fn export<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["export", "--tenant", "acme"], arguments].concat()
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("it is there");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

on_both_databases! {
    async fn an_export_is_that_of_the_api_and_spends_nothing(engine: Engine) {
        let site = site(engine);
        let world = World::new(93, 10, 200);
        site.import("acme", &world.ndjson());
        let folder = site.folder().join("exports");
        fs::create_dir(&folder).unwrap();
        let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let token = site.token("acme", "tests");
        let node = site.start();
        let client = node.client().to(&site.host("acme")).with(&token);
        let answer = client.get("/api/v1/submission/export?format=ndjson").send().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let of_api: Vec<Value> = answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap()).collect();
        let rows = of_api.len() - 1;
        assert!(rows > 20, "{rows}");

        for _ in 0..10 {
            let printed = site.run(&export(&["--format", "ndjson"]), b"");
            assert_eq!(printed.code, 0, "{}", printed.stderr);
            let lines: Vec<Value> = printed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(lines[..rows], of_api[..rows]);
            assert!(printed.stderr.starts_with(&format!("{rows} submissions; ")), "{}", printed.stderr);
        }
        let left = client.get("/api/v1/me").send().await.number("x-ratelimit-remaining");
        assert_eq!(left, Some(3), "only the test's own calls are spent");

        let form = of_api_form(&client).await;
        for (format, name) in [("csv", "one.csv"), ("parquet", "one.parquet")] {
            let path = file(name);
            // What was there stays until there is something to replace it.
            fs::write(&path, "before").unwrap();
            let written = site.run(&export(&["--format", format, "--form", &form, "-o", &path]), b"");
            assert_eq!((written.code, written.stderr.as_str()), (0, ""), "{}", written.stdout);
            let bytes = fs::read(&path).unwrap();
            assert!(bytes.starts_with(if format == "csv" { b"id,s" } else { b"PAR1" }), "{format}");
            let cursor = written.stdout.trim_end().rsplit_once("cursor=").expect("a cursor").1.to_owned();
            let after = client.get(&format!("/api/v1/submission/changes?cursor={cursor}&forms={form}")).send().await;
            assert_eq!((after.status.as_u16(), after.json()["data"].as_array().map(Vec::len)), (200, Some(0)), "{after:?}");
        }
        assert_eq!(names(&folder), ["one.csv", "one.parquet"]);
        let audit = site.run(&["audit", "list", "--tenant", "acme"], b"");
        assert_eq!(audit.stdout.matches("export").count(), 12, "{}", audit.stdout);
    }

    async fn a_failed_export_leaves_no_file_and_keeps_the_one_before(engine: Engine) {
        let site = site(engine);
        let element = json!({"id": 11, "gid": "g", "name": "Text", "type": "text"});
        let mut lines = format!("{}\n", json!({"type": "form", "id": 1, "name": "F", "elements": [element]}));
        for id in 1..=300 {
            let submission = json!({"type": "submission", "id": id, "form_id": 1, "status": "pending",
                "created_at": "2026-03-01T12:00:00Z", "updated_at": "2026-03-01T12:00:00Z",
                "answers": [{"element_id": 11, "value": "x"}]});
            lines += &format!("{submission}\n");
        }
        site.import("acme", &lines);
        let database = Database::connect(site.database_url("acme")).await;
        let long = if engine == Engine::Sqlite { "hex(zeroblob(13000000))" } else { "repeat('x', 26000000)" };
        database.execute(&format!("UPDATE answers SET value = {long} WHERE submission_id = 300")).await;
        database.close().await;
        // What searches know of so long a text takes longer than an export waits.
        assert_eq!(site.run(&["reindex", "--tenant", "acme"], b"").code, 0);
        let folder = site.folder().join("exports");
        fs::create_dir(&folder).unwrap();
        let [before, new] = ["before.csv", "new.csv"].map(|name| folder.join(name).to_str().unwrap().to_owned());
        fs::write(&before, "before").unwrap();
        for path in [&before, &new] {
            let failed = site.run(&export(&["--format", "csv", "--form", "1", "--output", path]), b"");
            assert_eq!((failed.code, failed.stdout.as_str()), (1, ""), "{}", failed.stderr);
            assert!(failed.stderr.contains("sub_300 is too long for this format"), "{}", failed.stderr);
        }
        assert_eq!((names(&folder), fs::read_to_string(&before).unwrap()), (vec!["before.csv".to_owned()], "before".to_owned()));
        fs::write(&new, "secret").unwrap();
        fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
        let whole = site.run(&export(&["--format", "ndjson", "-o", &new]), b"");
        assert_eq!(whole.code, 0, "{}", whole.stderr);
        assert_eq!(fs::read_to_string(&new).unwrap().lines().count(), 301);
        assert_eq!(fs::metadata(&new).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

/// The id of a form that has submissions.
async fn of_api_form(client: &Client) -> String {
    let forms = client.get("/api/v1/form").send().await.json();
    forms["data"][0]["id"].as_str().expect("a form").to_owned()
}

#[test]
fn wrong_usage_is_told_from_failed_work() {
    let site = site(Engine::Sqlite);
    for arguments in [
        &["--format", "xlsx"][..],
        &["--format", "csv"],
        &["--format", "parquet"],
        &["--format", "csv", "--form", "x"],
        &[],
    ] {
        assert_eq!(site.run(&export(arguments), b"").code, 2, "{arguments:?}");
    }
    let missing = site.run(&export(&["--format", "csv", "--form", "for_7"]), b"");
    assert_eq!((missing.code, missing.stdout.as_str()), (1, ""));
    assert!(missing.stderr.contains("tenant `acme` has no form for_7"), "{}", missing.stderr);
    let nowhere = site.run(&export(&["--format", "ndjson", "-o", "/nowhere/file"]), b"");
    assert_eq!(nowhere.code, 1);
    assert!(nowhere.stderr.contains("can't write `/nowhere/file`"), "{}", nowhere.stderr);
    let full = site.run_into(&export(&["--format", "ndjson"]), Full, Read);
    assert_eq!(full.code, 1);
    assert!(full.stderr.contains("standard output can't be written: No space left on device"), "{}", full.stderr);
    let device = site.run(&export(&["--format", "ndjson", "-o", "/dev/null"]), b"");
    assert_eq!((device.code, device.stderr.as_str()), (0, ""));
    assert!(!Path::new("/dev/null").is_file());
}
