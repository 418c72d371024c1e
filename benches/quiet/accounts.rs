//! The accounts: copies of one migrated database with rows.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::world::{FILES, PLAIN, PROGRAM, World};

/// The fewest files that a part of the bench keeps open.
pub(crate) const FEWEST_OPEN: usize = 3;

/// As much as an open file counts for.
const KIB: usize = 650;

/// How many submissions each account has.
pub(crate) const SUBMISSIONS: u64 = 100;

/// More requests a minute than an account is sent. The calls of the mix keep to 60 by themselves; the parts that call in turn
/// would measure refusals.
const BUDGET: u32 = 100_000;

impl World {
    /// Accounts with a SQLite file each.
    pub(crate) fn of_files(accounts: usize, program: &Path) -> anyhow::Result<Self> {
        let world = Self::by(program, accounts, FILES)?;
        for n in 1..accounts {
            world.copy_first_to(n)?;
        }
        Ok(world)
    }

    /// Accounts whose URLs have these parts before and after their numbers. Only the first one has a database.
    pub(crate) fn with_first(accounts: usize, url: [&str; 2]) -> anyhow::Result<Self> {
        Self::by(Path::new(PROGRAM), accounts, url)
    }

    fn by(program: &Path, accounts: usize, url: [&str; 2]) -> anyhow::Result<Self> {
        let mut world = Self::new(program, accounts, url)?;
        world.configure_first(1, FEWEST_OPEN)?;
        world.formgate(&["migrate"])?;
        fs::write(world.path("rows.ndjson"), rows())?;
        let rows = world.path("rows.ndjson");
        world.formgate(&["import", "--tenant", "t0", rows.to_str().expect("a plain name")])?;
        world.create_token()?;
        Ok(world)
    }

    /// The same accounts, with other URLs of their databases.
    pub(crate) fn with_urls(&self, url: [&str; 2]) -> anyhow::Result<Self> {
        let mut world = Self::new(&self.program, self.accounts, url)?;
        world.token.clone_from(&self.token);
        Ok(world)
    }

    /// Limits how many files, or connections to Postgres, are open at once.
    pub(crate) fn configure(&self, open: usize) -> anyhow::Result<()> {
        self.configure_first(self.accounts, open)
    }

    fn configure_first(&self, accounts: usize, open: usize) -> anyhow::Result<()> {
        let mib = (open * KIB).div_ceil(1024).max(1);
        let gateway = format!(
            "{PLAIN}[gateway.databases]\nsqlite_mib = {mib}\nmax_connections = {open}\nmax_shared_connections = {open}\n"
        );
        self.write(&self.config(), &gateway, &self.tenants(accounts, &format!("requests_per_minute = {BUDGET}\n")))
    }

    pub(crate) fn file_size(&self) -> anyhow::Result<u64> {
        Ok(fs::metadata(self.file(0))?.len())
    }
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
