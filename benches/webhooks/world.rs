//! The accounts of a node, in a temporary folder: their configuration, forms, token and databases.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;
use tempfile::TempDir;

use crate::caller::Caller;
use crate::database::Database;
use crate::node::Node;
use crate::postgres_server::Postgres;
use crate::process::checked;
use crate::receiver::Receiver;

/// How many forms an account has. Each has a subscription in the parts that deliver a backlog.
pub(crate) const FORMS: usize = 16;

/// How many elements a form has; a submission answers each.
pub(crate) const ELEMENTS: usize = 8;

/// As many requests at once as all subscriptions together may make: 4 each by default.
pub(crate) const AT_ONCE: usize = 4 * FORMS;

/// Fewer than a Postgres server allows by default.
///
/// Larger: the server refuses the rest. Smaller: databases of idle tenants are opened again more often.
const MAX_CONNECTIONS: usize = 80;

/// Where databases are.
#[derive(Clone, Copy)]
pub(crate) enum On<'s> {
    Sqlite,
    Postgres(&'s Postgres),
}

impl On<'_> {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres(_) => "Postgres",
        }
    }
}

pub(crate) struct World {
    folder: TempDir,
    /// The URL of an account's database, before its number and after it.
    url: [String; 2],
    /// Valid for each account, since all are copies.
    token: String,
    authority: PathBuf,
}

impl World {
    /// One account with forms. On Postgres, `name` begins the names of databases.
    pub(crate) async fn make(on: On<'_>, name: &str, receiver: &Receiver) -> anyhow::Result<Self> {
        let url = match on {
            On::Sqlite => ["sqlite:data/t".to_owned(), ".db".to_owned()],
            On::Postgres(server) => {
                server.execute("postgres", &[&format!("CREATE DATABASE {name}_0")])?;
                [server.url(&format!("{name}_")), String::new()]
            }
        };
        let (folder, authority) = (tempfile::tempdir()?, receiver.authority());
        let mut world = Self { folder, url, token: String::new(), authority };
        // As in the example of a configuration: the folder of the configuration itself is watched for changes.
        fs::create_dir(world.path("data"))?;
        world.configure(1, true)?;
        world.formgate(&["migrate"])?;
        world.token = world.formgate(&["token", "create", "--tenant", "t0", "--name", "bench"])?;
        world.database().await?.execute(&forms()).await?;
        Ok(world)
    }

    /// Writes a configuration with this many accounts.
    pub(crate) fn configure(&self, accounts: usize, delivers: bool) -> anyhow::Result<()> {
        let mut text = format!(
            "[gateway]\nlisten = [{{ address = \"127.0.0.1:0\", tls = false }}]\nadmin_listen = \"127.0.0.1:0\"\n\
             [gateway.databases]\nmax_connections = {MAX_CONNECTIONS}\n\
             [gateway.webhooks]\nenabled = {delivers}\nallow_targets = [\"127.0.0.0/8\"]\nca_file = \"{}\"\n\
             per_tenant = {AT_ONCE}\n",
            self.authority.display()
        );
        let [before, after] = &self.url;
        for n in 0..accounts {
            write!(
                text,
                "[[tenant]]\nslug = \"t{n}\"\nname = \"Tenant {n}\"\naddress = \"t{n}.example.com\"\n\
                 database = \"{before}{n}{after}\"\nrequests_per_minute = 100000\n"
            )?;
        }
        Ok(fs::write(self.config(), text)?)
    }

    /// Writes a configuration for each of several nodes of a registry, and fills that with accounts.
    pub(crate) fn configure_nodes(&self, nodes: usize, registry: &str, accounts: usize) -> anyhow::Result<()> {
        for node in 0..nodes {
            let text = format!(
                "[gateway]\nlisten = [{{ address = \"127.0.0.1:0\", tls = false }}]\nadmin_listen = \"127.0.0.1:0\"\n\
                 registry = \"{registry}\"\nregistry_snapshot = \"snapshot-{node}.db\"\n\
                 [gateway.webhooks]\nallow_targets = [\"127.0.0.0/8\"]\nca_file = \"{}\"\n\
                 [gateway.databases]\nmax_connections = {}\n",
                self.authority.display(),
                (MAX_CONNECTIONS / nodes).max(2)
            );
            fs::write(self.config_of(node), text)?;
        }
        let [before, after] = &self.url;
        let mut text = String::new();
        for n in 0..accounts {
            write!(
                text,
                "[[tenant]]\nslug = \"t{n}\"\nname = \"Tenant {n}\"\naddress = \"t{n}.example.com\"\n\
                 database = \"{before}{n}{after}\"\n"
            )?;
        }
        let import = self.path("import.txt");
        fs::write(&import, text)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_formgate"));
        command.args(["tenant", "import"]).arg(import).arg("--config").arg(self.config_of(0));
        checked(&mut command).map(drop)
    }

    /// The configuration of one of several nodes.
    pub(crate) fn config_of(&self, node: usize) -> PathBuf {
        self.path(&format!("node-{node}.toml"))
    }

    /// Connects to the database of the first account.
    pub(crate) async fn database(&self) -> anyhow::Result<Database> {
        self.database_of(0).await
    }

    /// Connects to the database of an account.
    pub(crate) async fn database_of(&self, n: usize) -> anyhow::Result<Database> {
        let [before, after] = &self.url;
        match before.strip_prefix("sqlite:") {
            Some(before) => Database::sqlite(&self.path(&format!("{before}{n}{after}"))).await,
            None => Database::postgres(&format!("{before}{n}{after}")).await,
        }
    }

    /// The file of an account.
    pub(crate) fn file(&self, n: usize) -> PathBuf {
        self.path(&format!("data/t{n}.db"))
    }

    /// Subscribes the first account to the submissions of its first forms, each at a port of the receiver.
    pub(crate) async fn subscribe(&self, node: &Node, receiver: &Receiver, subscriptions: usize) -> anyhow::Result<()> {
        let mut caller = Caller::connect(node.address).await?;
        for (form, url) in (1..=subscriptions).zip(receiver.urls()) {
            let body = format!(r#"{{"target_url":"{url}","event":"submission.created","form":"for_{form}"}}"#);
            let status = caller.call(&self.request("POST /api/v1/subscribe", &body)).await?;
            ensure!(status == 201, "POST /subscribe answers {status}");
        }
        Ok(())
    }

    /// A request of the first account.
    pub(crate) fn request(&self, line: &str, body: &str) -> String {
        format!(
            "{line} HTTP/1.1\r\nhost: t0.example.com\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        )
    }

    fn formgate(&self, arguments: &[&str]) -> anyhow::Result<String> {
        checked(Command::new(env!("CARGO_BIN_EXE_formgate")).args(arguments).arg("--config").arg(self.config()))
    }

    /// The program that serves them.
    #[expect(clippy::unused_self, reason = "other worlds have programs of other versions")]
    pub(crate) fn program(&self) -> &'static str {
        env!("CARGO_BIN_EXE_formgate")
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

/// Statements that insert the forms, and their elements.
fn forms() -> String {
    let mut text = String::new();
    for form in 1..=FORMS {
        text.push_str(&format!("INSERT INTO forms (id, name) VALUES ({form}, 'Form {form}');"));
        for n in 1..=ELEMENTS {
            let id = form * 100 + n;
            text.push_str(&format!(
                "INSERT INTO elements (id, form_id, position, gid, name, type) \
                 VALUES ({id}, {form}, {n}, 'gid-{id}', 'Field {n}', 'text');"
            ));
        }
    }
    text
}
