//! The accounts: copies of one migrated database with rows, in a temporary folder.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;

use crate::process::checked;

/// The program of this version.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_formgate");

/// The fewest files that a part of the bench keeps open.
pub(crate) const FEWEST_OPEN: usize = 3;

/// As much as an open file counts for.
const KIB: usize = 650;

/// How many submissions each account has.
pub(crate) const SUBMISSIONS: u64 = 100;

/// More requests a minute than an account is sent. The calls of the mix keep to 60 by themselves; the parts that call in turn
/// would measure refusals.
const BUDGET: u32 = 100_000;

pub(crate) struct World {
    /// That serves them, and that made their databases.
    program: PathBuf,
    pub(crate) accounts: usize,
    /// Valid for each account, since all are copies.
    pub(crate) token: String,
    /// The URL of an account's database, before its number and after it.
    url: [String; 2],
    folder: TempDir,
}

impl World {
    pub(crate) fn make(accounts: usize, program: &Path) -> anyhow::Result<Self> {
        let world = Self::by(program, accounts, ["sqlite:data/t", ".db"])?;
        for n in 1..accounts {
            fs::copy(world.file(0), world.file(n))?;
        }
        Ok(world)
    }

    /// Accounts whose URLs have these parts before and after their numbers. Only the first one has a database.
    pub(crate) fn with_first(accounts: usize, url: [&str; 2]) -> anyhow::Result<Self> {
        Self::by(Path::new(PROGRAM), accounts, url)
    }

    fn by(program: &Path, accounts: usize, url: [&str; 2]) -> anyhow::Result<Self> {
        let (token, url) = (String::new(), url.map(str::to_owned));
        let mut world = Self { program: program.to_owned(), accounts, token, url, folder: tempfile::tempdir()? };
        // As in the example of a configuration: the folder of the configuration itself is watched for changes.
        fs::create_dir(world.path("data"))?;
        world.write(1, FEWEST_OPEN)?;
        world.formgate(&["migrate"])?;
        fs::write(world.path("rows.ndjson"), rows())?;
        let rows = world.path("rows.ndjson");
        world.formgate(&["import", "--tenant", "t0", rows.to_str().expect("a plain name")])?;
        world.token = world.formgate(&["token", "create", "--tenant", "t0", "--name", "bench"])?;
        Ok(world)
    }

    /// The program that serves them.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The same accounts, with other URLs of their databases.
    pub(crate) fn with_urls(&self, url: [&str; 2]) -> anyhow::Result<Self> {
        let (token, url) = (self.token.clone(), url.map(str::to_owned));
        Ok(Self { program: self.program.clone(), accounts: self.accounts, token, url, folder: tempfile::tempdir()? })
    }

    /// Limits how many files, or connections to Postgres, are open at once.
    pub(crate) fn configure(&self, open: usize) -> anyhow::Result<()> {
        self.write(self.accounts, open)
    }

    fn write(&self, accounts: usize, open: usize) -> anyhow::Result<()> {
        let mib = (open * KIB).div_ceil(1024).max(1);
        let mut text = format!(
            "[gateway]\nlisten = [{{ address = \"127.0.0.1:0\", tls = false }}]\nadmin_listen = \"127.0.0.1:0\"\n\
             [gateway.databases]\nsqlite_mib = {mib}\nmax_connections = {open}\nmax_shared_connections = {open}\n"
        );
        for n in 0..accounts {
            let (host, [before, after]) = (host(n), &self.url);
            write!(
                text,
                "[[tenant]]\nslug = \"t{n}\"\nname = \"Tenant {n}\"\naddress = \"{host}\"\n\
                 database = \"{before}{n}{after}\"\nrequests_per_minute = {BUDGET}\n"
            )?;
        }
        Ok(fs::write(self.config(), text)?)
    }

    fn formgate(&self, arguments: &[&str]) -> anyhow::Result<String> {
        checked(Command::new(&self.program).args(arguments).arg("--config").arg(self.config()))
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path("tenants.toml")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The file of an account.
    pub(crate) fn file(&self, n: usize) -> PathBuf {
        self.path(&format!("data/t{n}.db"))
    }

    pub(crate) fn file_size(&self) -> anyhow::Result<u64> {
        Ok(fs::metadata(self.file(0))?.len())
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

pub(crate) fn host(n: usize) -> String {
    format!("t{n}.example.com")
}

/// A small account: users, forms with elements, a group, and submissions with answers.
fn rows() -> String {
    let mut lines = Vec::new();
    for id in 1..=20 {
        lines.push(
            json!({"type": "user", "id": id, "email": format!("u{id}@example.com"), "name": format!("User {id}")}),
        );
    }
    for form in 1..=5_u64 {
        let element = |n: u64| {
            let id = form * 100 + n;
            json!({"id": id, "gid": format!("gid-{id}"), "name": format!("Field {n}"), "type": "text"})
        };
        let elements: Vec<_> = (1..=8).map(element).collect();
        lines.push(
            json!({"type": "form", "id": form, "name": format!("Form {form}"), "anonymous": false, "disabled": false,
            "parent_id": null, "graduated": false, "elements": elements}),
        );
    }
    let members: Vec<u64> = (1..=10).collect();
    lines.push(json!({"type": "group", "id": 4, "name": "Managers", "external_id": null, "managed": false,
        "members": members}));
    for id in 1..=SUBMISSIONS {
        let (form, at) = (id % 5 + 1, format!("2024-05-01T13:{:02}:30.123456Z", id % 60));
        let answer = |n: u64| {
            json!({"element_id": form * 100 + n, "value": format!("Answer {n} of {id}, some words long"),
                "updated_at": at, "files": []})
        };
        let answers: Vec<_> = (1..=8).map(answer).collect();
        lines.push(json!({"type": "submission", "id": id, "form_id": form, "parent_id": null, "status": "pending",
            "draft": false, "submitter_id": id % 20 + 1, "created_at": at, "updated_at": at, "labels": [],
            "shared_labels": [], "pending_on": [], "participants": [], "flow_steps": [], "answers": answers}));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}
