//! The accounts: one with forms and a token, whose database others are copies of.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use crate::caller::Caller;
use crate::database::Database;
use crate::node::Node;
use crate::postgres_server::Postgres;
use crate::process::checked;
use crate::receiver::Receiver;
use crate::world::{FILES, PLAIN, PROGRAM, World};

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

impl World {
    /// One account with forms. On Postgres, `name` begins the names of databases.
    pub(crate) async fn with_forms(on: On<'_>, name: &str, receiver: &Receiver) -> anyhow::Result<Self> {
        let mut world = match on {
            On::Sqlite => Self::new(Path::new(PROGRAM), 1, FILES)?,
            On::Postgres(server) => {
                server.execute("postgres", &[&format!("CREATE DATABASE {name}_0")])?;
                Self::new(Path::new(PROGRAM), 1, [&server.url(&format!("{name}_")), ""])?
            }
        };
        world.configure(1, true, receiver)?;
        world.formgate(&["migrate"])?;
        world.create_token()?;
        world.database().await?.execute(&forms()).await?;
        Ok(world)
    }

    /// Writes a configuration with this many accounts.
    pub(crate) fn configure(&self, accounts: usize, delivers: bool, receiver: &Receiver) -> anyhow::Result<()> {
        let gateway = format!(
            "{PLAIN}[gateway.databases]\nmax_connections = {MAX_CONNECTIONS}\n\
             [gateway.webhooks]\nenabled = {delivers}\nallow_targets = [\"127.0.0.0/8\"]\nca_file = \"{}\"\n\
             per_tenant = {AT_ONCE}\n",
            receiver.authority().display()
        );
        self.write(&self.config(), &gateway, &self.tenants(accounts, "requests_per_minute = 100000\n"))
    }

    /// Writes a configuration for each of several nodes of a registry, and fills that with accounts.
    pub(crate) fn configure_nodes(
        &self,
        nodes: usize,
        registry: &str,
        accounts: usize,
        receiver: &Receiver,
    ) -> anyhow::Result<()> {
        for node in 0..nodes {
            let gateway = format!(
                "{PLAIN}registry = \"{registry}\"\nregistry_snapshot = \"snapshot-{node}.db\"\n\
                 [gateway.webhooks]\nallow_targets = [\"127.0.0.0/8\"]\nca_file = \"{}\"\n\
                 [gateway.databases]\nmax_connections = {}\n",
                receiver.authority().display(),
                (MAX_CONNECTIONS / nodes).max(2)
            );
            self.write(&self.config_of(node), &gateway, "")?;
        }
        let import = self.path("import.txt");
        fs::write(&import, self.tenants(accounts, ""))?;
        let mut command = Command::new(PROGRAM);
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
        let url = self.database_url(n);
        match url.strip_prefix("sqlite:") {
            Some(file) => Database::sqlite(&self.path(file)).await,
            None => Database::postgres(&url).await,
        }
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
