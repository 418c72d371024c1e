//! The program of src/api/recipes.md that syncs groups, as printed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{everything, members, write};
use crate::api::account::{Account, account, account_with};
use crate::support::certificate;
use crate::support::database::Database;
use crate::support::document::{block, python_that_finds_every_host_here};
use crate::support::fixture::{Engine, Site, on_both_databases};
use crate::support::folder;
use crate::support::process::python;

const GUIDE: &str = include_str!("../../../../src/api/recipes.md");

const PEOPLE: &str = "group_id,group,email,name\n\
    hr-7,Staff,ana@x.example,Ana\nhr-7,Staff,ben@x.example,\nhr-7,Staff,\"cleo@x.example\",\"Cleo, M.\"\n\
    hr-8,Payroll,ana@x.example,Ana\n";

/// The program for an account, and its folder.
struct Sync {
    folder: TempDir,
    url: String,
    token: String,
    authority: PathBuf,
}

/// What a run left behind.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    printed: String,
    said: String,
}

impl Sync {
    fn of(account: &Account) -> Self {
        Self::at(&account.host(), account.address().port(), account.token())
    }

    fn at(host: &str, port: u16, token: &str) -> Self {
        let folder = folder::temporary("sync");
        fs::write(folder.path().join("sync.py"), block(GUIDE, "python", "def read_file")).unwrap();
        let authority = certificate::authority(folder.path());
        Self { folder, url: format!("https://{host}:{port}/api/v1"), token: token.to_owned(), authority }
    }

    fn run(&self, people: &str, options: &[&str]) -> Run {
        fs::write(self.folder.path().join("people.csv"), people).unwrap();
        let mut command = Command::new(python());
        command.args(["sync.py", "people.csv", "--prefix", "hr-"]).args(options).current_dir(self.folder.path());
        command.env("API", &self.url).env("TOKEN", &self.token).env("SSL_CERT_FILE", &self.authority);
        command.env("PYTHONPATH", python_that_finds_every_host_here(self.folder.path()));
        let output = command.output().expect("there is a Python");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Run { code: output.status.code(), printed: text(output.stdout), said: text(output.stderr) }
    }
}

/// The names and numbers of members of the groups with an external id.
async fn managed(account: &Account) -> Vec<(String, u64)> {
    let groups = everything(&account.client).await;
    let managed = groups.iter().filter(|group| group["external_id"] != Value::Null);
    managed
        .map(|group| (group["name"].as_str().unwrap().to_owned(), group["members_count"].as_u64().unwrap()))
        .collect()
}

fn pairs<const N: usize>(expected: [(&str, u64); N]) -> Vec<(String, u64)> {
    expected.map(|(name, count)| (name.to_owned(), count)).to_vec()
}

on_both_databases! {
    async fn a_sync_prints_first_and_writes_if_it_is_asked_to(engine: Engine) {
        let account = account(engine, "");
        let client = &account.client;
        write(client, &json!({"name": "Others", "external_id": "it-1", "members": members(["zoe@x.example"])})).await;
        write(client, &json!({"name": "Staff", "members": members(["ana@x.example", "old@x.example"])})).await;
        let sync = Sync::of(&account);
        let before = everything(client).await;
        let printed = sync.run(PEOPLE, &["--share", "0.5"]);
        assert_eq!((printed.code, everything(client).await), (Some(0), before), "{printed:?}");
        assert_eq!(
            printed.printed,
            "Staff: 3 members\n  + ben@x.example\n  + cleo@x.example\n  - old@x.example\nPayroll: new group, 1 members\n  + ana@x.example\n"
        );
        let written = sync.run(&format!("\u{feff}{}", PEOPLE.replace('\n', "\r\n")), &["--write", "--share", "0.5"]);
        assert!(written.code == Some(0) && written.printed.ends_with("written: 2 groups; deleted: 0\n"), "{written:?}");
        assert_eq!(managed(&account).await, pairs([("Others", 1), ("Staff", 3), ("Payroll", 1)]));
        let again = sync.run(PEOPLE, &["--write"]);
        assert!(again.code == Some(0) && !again.printed.contains("  "), "{again:?}");
        let without_payroll = PEOPLE.lines().filter(|line| !line.contains("hr-8")).map(|line| format!("{line}\n")).collect::<String>();
        let refused = sync.run(&without_payroll, &["--write"]);
        assert!(refused.code == Some(1) && refused.printed.contains("Payroll: deleted, - 1 members"), "{refused:?}");
        assert!(refused.said.contains("refused: 1 of 4 memberships would go"), "{refused:?}");
        assert_eq!(managed(&account).await.len(), 3);
        assert_eq!(sync.run(&without_payroll, &["--write", "--share", "0.25"]).code, Some(0));
        assert_eq!(managed(&account).await, pairs([("Others", 1), ("Staff", 3)]));
    }

    async fn a_file_that_is_wrong_anywhere_changes_nothing(engine: Engine) {
        let account = account(engine, "");
        let sync = Sync::of(&account);
        assert_eq!(sync.run(PEOPLE, &["--write"]).code, Some(0));
        let before = everything(&account.client).await;
        for (people, reason) in [
            (String::new(), "the first line has to be"),
            ("group_id,group,email,name\n".to_owned(), "nobody is in it"),
            (PEOPLE.replace("group_id", "id"), "the first line has to be"),
            (format!("{PEOPLE}it-1,Others,x@x.example,X\n"), "not a member"),
            (format!("{PEOPLE}hr-9,New,,X\n"), "not a member"),
            (format!("{PEOPLE}hr-8,Another name,x@x.example,X\n"), "hr-8 has two names"),
            (format!("{PEOPLE}hr-9,New,a b@x,X\n"), "422"),
            ("group_id,group,email,name\nhr-7,Staff,ana@x.example,Ana\n".to_owned(), "refused: 3 of 4"),
        ] {
            let run = sync.run(&people, &["--write"]);
            assert!(run.code == Some(1) && run.said.contains(reason), "{reason}: {run:?}");
            assert_eq!(everything(&account.client).await, before, "{reason}");
        }
    }

    async fn the_guard_of_the_operator_refuses_what_the_share_allows(engine: Engine) {
        let guard = toml::Table::from_iter([("max_detached_percent".to_owned(), toml::Value::from(30))]);
        let account = account_with(engine, "", |tenant| tenant.set("group_guard", guard));
        let sync = Sync::of(&account);
        assert_eq!(sync.run(PEOPLE, &["--write"]).code, Some(0));
        let fewer = PEOPLE.replace("hr-7,Staff,ben@x.example,\n", "");
        let printed = sync.run(&fewer, &["--share", "1"]);
        assert!(printed.code == Some(0) && printed.printed.contains("  - ben@x.example"), "{printed:?}");
        let refused = sync.run(&fewer, &["--share", "1", "--write"]);
        assert!(refused.code == Some(1) && refused.said.contains("422"), "{refused:?}");
        assert_eq!(managed(&account).await, pairs([("Staff", 3), ("Payroll", 1)]));
    }
}

#[tokio::test]
async fn a_sync_waits_for_the_budget() {
    let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(3).window_seconds(2).write();
    let token = site.token("acme", "tests");
    let node = site.start();
    let sync = Sync::at(&site.host("acme"), node.address.port(), &token);
    let rows: String = (10..20).map(|nth| format!("hr-{nth},Group {nth},ana@x.example,Ana\n")).collect();
    let written = sync.run(&format!("group_id,group,email,name\n{rows}"), &["--write"]);
    assert!(written.code == Some(0) && written.said.contains("429"), "{written:?}");
    let database = Database::connect(site.database_url("acme")).await;
    assert_eq!(database.integers("SELECT count(*) FROM groups WHERE external_id LIKE 'hr-%'").await, [10]);
    database.close().await;
}
