//! The accounts of a node, in a temporary folder: their configuration, their databases, and the commands that create them.
//!
//! Each bench adds what its accounts are: their rows, and the keys of their configuration.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::process::checked;

/// The program of this version.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_formgate");

/// Keys of `[gateway]` for callers without TLS.
pub(crate) const PLAIN: &str = "listen = [{ address = \"127.0.0.1:0\", tls = false }]\n";

/// The URL of an account's SQLite file, before its number and after it.
pub(crate) const FILES: [&str; 2] = ["sqlite:data/t", ".db"];

pub(crate) struct World {
    /// The program that serves the accounts, and that created their databases.
    pub(crate) program: PathBuf,
    pub(crate) accounts: usize,
    /// The URL of an account's database, before its number and after it.
    pub(crate) url: [String; 2],
    /// Valid for each account, since all are copies of the first.
    pub(crate) token: String,
    folder: TempDir,
}

impl World {
    /// Accounts without databases and configuration.
    pub(crate) fn new(program: &Path, accounts: usize, url: [&str; 2]) -> anyhow::Result<Self> {
        let (token, url) = (String::new(), url.map(str::to_owned));
        let world = Self { program: program.to_owned(), accounts, url, token, folder: tempfile::tempdir()? };
        // As in the example of a configuration: the folder of the configuration itself is watched for changes.
        fs::create_dir(world.path("data"))?;
        Ok(world)
    }

    /// Writes a configuration: keys and tables of the gateway, and tables of tenants.
    pub(crate) fn write(&self, file: &Path, gateway: &str, tenants: &str) -> anyhow::Result<()> {
        let draft = self.path("draft");
        fs::write(&draft, format!("[gateway]\nadmin_listen = \"127.0.0.1:0\"\n{gateway}{tenants}"))?;
        Ok(fs::rename(draft, file)?)
    }

    /// The tables of the first accounts, with these keys in each.
    pub(crate) fn tenants(&self, accounts: usize, keys: &str) -> String {
        let mut text = String::new();
        for n in 0..accounts {
            let (host, database) = (host(n), self.database_url(n));
            write!(
                text,
                "[[tenant]]\nslug = \"t{n}\"\nname = \"Tenant {n}\"\naddress = \"{host}\"\ndatabase = \"{database}\"\n{keys}"
            )
            .expect("a string takes all");
        }
        text
    }

    /// Copies the SQLite file of the first account to that of another one, while no node serves it. The log of a node that
    /// ended may still be there.
    pub(crate) fn copy_first_to(&self, n: usize) -> anyhow::Result<()> {
        for suffix in ["", "-wal"] {
            let [from, to] = [0, n].map(|n| self.path(&format!("data/t{n}.db{suffix}")));
            if from.exists() {
                fs::copy(from, to)?;
            }
        }
        Ok(())
    }

    /// Runs a command with the configuration. Returns what it prints.
    pub(crate) fn formgate(&self, arguments: &[&str]) -> anyhow::Result<String> {
        checked(Command::new(&self.program).args(arguments).arg("--config").arg(self.config()))
    }

    /// Creates a token of the first account.
    pub(crate) fn create_token(&mut self) -> anyhow::Result<()> {
        self.token = self.formgate(&["token", "create", "--tenant", "t0", "--name", "bench"])?;
        Ok(())
    }

    pub(crate) fn database_url(&self, n: usize) -> String {
        let [before, after] = &self.url;
        format!("{before}{n}{after}")
    }

    /// The SQLite file of an account.
    pub(crate) fn file(&self, n: usize) -> PathBuf {
        self.path(&format!("data/t{n}.db"))
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path("tenants.toml")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

pub(crate) fn host(n: usize) -> String {
    format!("t{n}.example.com")
}
