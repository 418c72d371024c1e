//! The program of src/api/recipes.md that keeps a copy, as printed: rows and cursor are in step, whenever it is killed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::follower::all_submissions;
use crate::api::account::{Account, account};
use crate::api::submission::writers::{Writer, beginning};
use crate::support::certificate;
use crate::support::child::{Child, bound_to_us};
use crate::support::database::Database;
use crate::support::document::{block, python_that_finds_every_host_here};
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::folder;
use crate::support::process::python;

const GUIDE: &str = include_str!("../../../../src/api/recipes.md");

/// How long the program may take for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// How many transactions are written between two kills, and how often it is killed.
const WRITES: usize = 40;
const KILLS: usize = 8;

/// The program, its copy and what it says.
struct Copied {
    folder: TempDir,
    url: String,
    token: String,
    authority: PathBuf,
}

impl Copied {
    fn of(account: &Account) -> Self {
        let folder = folder::temporary("copied");
        fs::write(folder.path().join("follow.py"), block(GUIDE, "python", "CREATE TABLE IF NOT EXISTS submissions"))
            .unwrap();
        let url = format!("https://{}:{}/api/v1", account.host(), account.address().port());
        let authority = certificate::authority(folder.path());
        Self { folder, url, token: account.token().to_owned(), authority }
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = bound_to_us(python(), "KILL", &[]);
        command.args(["follow.py", "copy.db"]).args(options).current_dir(self.folder.path());
        command.env("API", &self.url).env("TOKEN", &self.token).env("SSL_CERT_FILE", &self.authority);
        command.env("PYTHONPATH", python_that_finds_every_host_here(self.folder.path()));
        let said = File::options().create(true).append(true).open(self.folder.path().join("said")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        command
    }

    fn start(&self) -> Child {
        Child::spawn(self.command(&[]))
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("said")).unwrap()
    }

    /// Brings the copy in step, and ends.
    fn run_once(&self) {
        let status = Child::spawn(self.command(&["--once"])).wait_at_most(LIMIT);
        assert!(status.is_some_and(|status| status.success()), "{status:?}: {}", self.said());
    }

    async fn open(&self) -> Database {
        Database::connect(&format!("sqlite:{}", self.folder.path().join("copy.db").display())).await
    }

    /// The submissions of the copy, by id.
    async fn rows(&self) -> BTreeMap<String, Value> {
        let copy = self.open().await;
        let bodies = copy.texts("SELECT body FROM submissions").await;
        copy.close().await;
        let bodies = bodies.iter().map(|body| serde_json::from_str::<Value>(body).unwrap());
        bodies.map(|body| (body["id"].as_str().unwrap().to_owned(), body)).collect()
    }
}

on_both_databases! {
    async fn a_program_that_is_killed_at_any_time_ends_with_what_the_writers_wrote(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        database.execute(&beginning(engine)).await;
        let copied = Copied::of(&account);
        let mut writer = Writer::new(engine, 7);
        for nth in 0..KILLS {
            let mut program = copied.start();
            for _ in 0..WRITES {
                writer.write(&database).await;
            }
            if nth == KILLS / 2 {
                let reset = account.run(&["changes", "reset", "--tenant", "acme"]);
                assert_eq!(reset.code, 0, "{reset:?}");
            }
            program.kill();
        }
        copied.run_once();
        assert_eq!(copied.rows().await, all_submissions(&account.client, &json!({})).await);
    }

    async fn a_copy_is_loaded_again_after_a_reset_and_has_its_rows_meanwhile(engine: Engine) {
        let account = account(engine, "");
        let database = account.database().await;
        database.execute(&beginning(engine)).await;
        let insert = |id: i64| {
            let at = database.in_hours(0);
            format!("INSERT INTO submissions (id, form_id, status, created_at, updated_at) VALUES ({id}, 1, 'pending', {at}, {at})")
        };
        for id in 1..=3 {
            database.execute(&insert(id)).await;
        }
        let copied = Copied::of(&account);
        copied.run_once();
        assert_eq!(copied.rows().await.len(), 3);
        // A deletion that no feed tells of any more.
        database.execute("DELETE FROM submissions WHERE id = 2").await;
        assert_eq!(account.run(&["changes", "reset", "--tenant", "acme"]).code, 0);
        database.execute(&insert(4)).await;
        // Every write of the load, in the order in which a reader of the copy could see them.
        let copy = copied.open().await;
        copy.execute(
            "CREATE TABLE seen (at INTEGER PRIMARY KEY, rows INTEGER, loading INTEGER);
             CREATE TRIGGER at_insert AFTER INSERT ON submissions BEGIN
               INSERT INTO seen (rows, loading) SELECT (SELECT count(*) FROM submissions), loading FROM state; END;",
        )
        .await;
        copied.run_once();
        let [fewest, rows] = copy.integers("SELECT min(rows), max(rows) FROM seen WHERE loading").await;
        copy.close().await;
        assert!(fewest >= 3 && rows == 4, "{fewest} to {rows}");
        let expected = all_submissions(&account.client, &json!({})).await;
        assert_eq!(expected.keys().collect::<Vec<_>>(), ["sub_1", "sub_3", "sub_4"]);
        assert_eq!(copied.rows().await, expected);
    }
}

#[tokio::test]
async fn a_copy_has_less_once_its_token_reaches_less() {
    let account = account(Engine::Sqlite, "");
    let database = account.database().await;
    database.execute(&beginning(Engine::Sqlite)).await;
    let at = database.in_hours(0);
    let columns = "id, form_id, status, created_at, updated_at";
    database.execute(&format!("INSERT INTO submissions ({columns}) VALUES (1, 1, 'pending', {at}, {at})")).await;
    let copied = Copied::of(&account);
    copied.run_once();
    assert_eq!(copied.rows().await.len(), 1);
    let narrowed = account.run(&["token", "change", "--tenant", "acme", "1", "--forms", "for_99"]);
    assert_eq!(narrowed.code, 0, "{narrowed:?}");
    let began = Instant::now();
    while !copied.rows().await.is_empty() {
        assert!(began.elapsed() < LIMIT, "{}", copied.said());
        copied.run_once();
    }
    let said = copied.said();
    assert!(said.contains("The cursor was made with another reach. Loading everything again."), "{said}");
    // What waiting does not help against is one line.
    let revoked = account.run(&["token", "revoke", "--tenant", "acme", "1"]);
    assert_eq!(revoked.code, 0, "{revoked:?}");
    while Child::spawn(copied.command(&["--once"])).wait_at_most(LIMIT).expect("it ends").success() {
        assert!(began.elapsed() < 2 * LIMIT, "{}", copied.said());
    }
    let said = copied.said();
    assert!(said.ends_with("401: Unauthenticated.\n") && !said.contains("Traceback"), "{said}");
}

#[tokio::test]
async fn a_second_program_on_the_same_copy_ends() {
    let account = account(Engine::Sqlite, "");
    let database = account.database().await;
    database.execute(&beginning(Engine::Sqlite)).await;
    let copied = Copied::of(&account);
    copied.run_once();
    let mut programs = [copied.start(), copied.start()];
    let mut writer = Writer::new(Engine::Sqlite, 3);
    let began = Instant::now();
    let ended = loop {
        writer.write(&database).await;
        if let Some(nth) = programs.iter_mut().position(|program| program.exited().is_some()) {
            break nth;
        }
        assert!(began.elapsed() < LIMIT, "both follow: {}", copied.said());
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!(copied.said().contains("another program follows into this file"), "{}", copied.said());
    assert!(programs[1 - ended].exited().is_none(), "the first one goes on");
}
