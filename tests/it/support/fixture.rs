//! A site: a configuration in a folder of its own, with certificates and databases for its tenants.
//!
//! Each tenant has a database of its own, at the newest schema. Sites share only servers, so their tests run side by side.
//!
//! ```ignore
//! let site = Site::new().tenant("acme", Engine::Sqlite).requests_per_minute(1000).write();
//! site.import("acme", r#"{"type":"user","id":7,"email":"ana@example.com","name":"Ana"}"#);
//! let token = site.token("acme", "tests");
//! let node = site.start();
//! let answer = node.client().get("/api/v1/me").host(&site.host("acme")).token(&token).send().await;
//! ```

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use formgate::store::DatabaseLocation;
use tempfile::TempDir;
use tokio::task::spawn_blocking;
use toml::{Table, Value};

use super::certificate::{self, Issued};
use super::database::Database;
use super::folder;
use super::library;
use super::pgbouncer::PgBouncer;
use super::postgres::{Postgres, Version};
use super::process::{self, Node, Output, Writable};
use super::redis::Redis;

/// What tells formgate that a PgBouncer gives each transaction a connection.
const TRANSACTION_MODE: &str = "?pooler=transaction";

/// The domain under which every tenant has its sign-in address.
const SIGN_IN_DOMAIN: &str = "example.test";

/// Where a tenant's data is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// A file in the site's folder.
    Sqlite,
    /// A database on the server of the test process.
    Postgres,
    /// A Postgres database that is had in another way.
    PostgresOn(Server),
}

/// Postgres, had in another way than most tests have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// On a server of another version.
    Version(Version),
    /// Through a PgBouncer in transaction mode.
    Pooled,
    /// In a schema of a database that other tenants use too.
    Schema,
}

impl Engine {
    /// The URL of a new database without tables. A SQLite file is in the folder once something creates it.
    pub(crate) fn empty_database(self, folder: &Path, name: &str) -> String {
        match self {
            Self::Sqlite => format!("sqlite:{}", sqlite_file(folder, name).display()),
            Self::Postgres => Postgres::database(),
            Self::PostgresOn(Server::Version(version)) => Postgres::of_version(version).new_database(),
            Self::PostgresOn(Server::Schema) => Postgres::new_schema(),
            Self::PostgresOn(Server::Pooled) => PgBouncer::shared().url(&Postgres::database(), TRANSACTION_MODE),
        }
    }

    /// The URL of a new database at the newest schema.
    pub(crate) fn database(self, folder: &Path, name: &str) -> String {
        match self {
            Self::Sqlite => {
                library::copy_file(library::migrated_file(), &sqlite_file(folder, name));
                self.empty_database(folder, name)
            }
            Self::Postgres => Postgres::shared().new_migrated_database(),
            Self::PostgresOn(Server::Version(version)) => Postgres::of_version(version).new_migrated_database(),
            Self::PostgresOn(Server::Schema) => {
                let url = Postgres::new_schema();
                migrate(&url);
                url
            }
            Self::PostgresOn(Server::Pooled) => {
                PgBouncer::shared().url(&Postgres::shared().new_migrated_database(), TRANSACTION_MODE)
            }
        }
    }

    /// The URL of a copy of a database that nothing has open, for tests that would all fill one alike.
    pub(crate) fn copy(self, url: &str, folder: &Path, name: &str) -> String {
        match (self, url.split_once(':')) {
            (Self::Sqlite, Some(("sqlite", file))) => {
                library::copy_file(Path::new(file), &sqlite_file(folder, name));
                self.empty_database(folder, name)
            }
            (Self::Postgres, _) => Postgres::shared().copy(url.rsplit_once('/').expect("a URL has a path").1),
            _ => panic!("{self:?} has no copies of {url}"),
        }
    }
}

/// Brings the database of an absolute URL to the newest schema, as the role in it.
pub(crate) fn migrate(url: &str) {
    library::migrate(&library::location(url, Path::new("/")));
}

fn sqlite_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.db"))
}

/// Makes two tests of one text: `NAME::sqlite` and `NAME::postgres`.
macro_rules! on_both_databases {
    ($($(#[$meta:meta])* async fn $name:ident($engine:ident: Engine) $body:block)+) => {$(
        $(#[$meta])*
        async fn $name($engine: $crate::support::fixture::Engine) $body

        mod $name {
            use $crate::support::fixture::Engine;

            #[tokio::test]
            async fn sqlite() {
                super::$name(Engine::Sqlite).await;
            }

            #[tokio::test]
            async fn postgres() {
                super::$name(Engine::Postgres).await;
            }
        }
    )+};
}
pub(crate) use on_both_databases;

/// The same, and four more: `NAME::postgres_17`, `NAME::postgres_18`, `NAME::pooled` and `NAME::schema`.
macro_rules! on_all_databases {
    ($($(#[$meta:meta])* async fn $name:ident($engine:ident: Engine) $body:block)+) => {$(
        $(#[$meta])*
        async fn $name($engine: $crate::support::fixture::Engine) $body

        mod $name {
            use $crate::support::fixture::{Engine, Server};
            use $crate::support::postgres::Version;

            #[tokio::test]
            async fn sqlite() {
                super::$name(Engine::Sqlite).await;
            }

            #[tokio::test]
            async fn postgres() {
                super::$name(Engine::Postgres).await;
            }

            #[tokio::test]
            async fn postgres_17() {
                super::$name(Engine::PostgresOn(Server::Version(Version::V17))).await;
            }

            #[tokio::test]
            async fn postgres_18() {
                super::$name(Engine::PostgresOn(Server::Version(Version::V18))).await;
            }

            #[tokio::test]
            async fn pooled() {
                super::$name(Engine::PostgresOn(Server::Pooled)).await;
            }

            #[tokio::test]
            async fn schema() {
                super::$name(Engine::PostgresOn(Server::Schema)).await;
            }
        }
    )+};
}
pub(crate) use on_all_databases;

/// A configuration and what belongs to it; its folder is removed on drop.
pub(crate) struct Site {
    /// The `tenants.toml`, once [`Site::write`] has written it.
    pub(crate) config_path: PathBuf,
    folder: TempDir,
    gateway: Table,
    tenants: Vec<Tenant>,
}

impl Site {
    /// A site without tenants, listening on ports of the system's choice.
    pub(crate) fn new() -> Self {
        let folder = folder::temporary("site");
        let mut gateway = Table::new();
        gateway.insert("listen".into(), vec!["127.0.0.1:0"].into());
        gateway.insert("admin_listen".into(), "127.0.0.1:0".into());
        let wildcard = certificate::issue(&folder.path().join("certs"), &[&format!("*.{SIGN_IN_DOMAIN}")]);
        gateway.insert("tls".into(), as_table(&wildcard));
        Self { config_path: folder.path().join("tenants.toml"), folder, gateway, tenants: Vec::new() }
    }

    /// Makes callers take the certificate of the sign-in addresses from the beginning of a day to that of another, counted
    /// from today.
    pub(crate) fn certificate_for_days(self, days: Range<i32>) -> Self {
        let names = format!("*.{SIGN_IN_DOMAIN}");
        let issued = certificate::issue_for_days(&self.folder.path().join("certs"), &[&names], days);
        self.gateway("tls", as_table(&issued))
    }

    /// Adds a tenant with a new database at the newest schema.
    pub(crate) fn tenant(self, slug: &str, engine: Engine) -> Self {
        self.tenant_with(slug, engine, |tenant| tenant)
    }

    /// Adds a tenant that is not like the others.
    pub(crate) fn tenant_with(mut self, slug: &str, engine: Engine, differ: impl FnOnce(Tenant) -> Tenant) -> Self {
        let plain = Tenant { table: Table::new(), domains: Vec::new(), is_migrated: true }
            .set("slug", slug)
            .set("name", display_name(slug))
            .set("address", self.host(slug));
        let mut tenant = differ(plain);
        if !tenant.table.contains_key("database") {
            let create = if tenant.is_migrated { Engine::database } else { Engine::empty_database };
            tenant = tenant.set("database", create(engine, self.folder.path(), slug));
        }
        self.tenants.push(tenant);
        self
    }

    /// Limits every tenant added so far.
    pub(crate) fn requests_per_minute(mut self, limit: u32) -> Self {
        for tenant in &mut self.tenants {
            tenant.table.insert("requests_per_minute".into(), i64::from(limit).into());
        }
        self
    }

    /// Keeps the windows in a Redis.
    pub(crate) fn redis(self, redis: &Redis) -> Self {
        self.gateway("redis", redis.url())
    }

    /// Shortens the window of the rate limit.
    pub(crate) fn window_seconds(self, seconds: u32) -> Self {
        self.gateway("window_seconds", i64::from(seconds))
    }

    /// Sets any key of the `[gateway]` table.
    pub(crate) fn gateway(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.gateway.insert(key.into(), value.into());
        self
    }

    /// Sets a key of `[gateway.databases]`.
    pub(crate) fn databases(mut self, key: &str, value: i64) -> Self {
        let table = self.gateway.entry("databases").or_insert_with(|| Table::new().into());
        table.as_table_mut().expect("it was made a table").insert(key.into(), value.into());
        self
    }

    /// Has certificates obtained, of which there is no need: those of the site cover every host.
    pub(crate) fn obtaining_certificates(self) -> Self {
        let registry = format!("sqlite:{}", self.folder.path().join("registry.db").display());
        let domains = toml::toml! { addresses = ["127.0.0.1"] };
        let acme = toml::toml! {
            contact = ["it@example.test"]
            accept_terms = true
            seal_keys = ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
        };
        self.gateway("registry", registry).gateway("domains", domains).gateway("acme", acme)
    }

    /// Writes the configuration in one step, so that a running node never reads half of it; again after a change.
    pub(crate) fn write(self) -> Self {
        let mut root = Table::new();
        root.insert("gateway".into(), self.gateway.clone().into());
        let tenants: Vec<Value> = self.tenants.iter().map(|tenant| tenant.as_written(self.folder.path())).collect();
        root.insert("tenant".into(), tenants.into());
        let draft = self.config_path.with_extension("draft");
        fs::write(&draft, root.to_string()).expect("the site's folder can be written");
        fs::rename(&draft, &self.config_path).expect("the site's folder can be written");
        self
    }

    /// The folder that holds everything.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The sign-in address of a tenant.
    pub(crate) fn host(&self, slug: &str) -> String {
        format!("{slug}.{SIGN_IN_DOMAIN}")
    }

    /// The URL of a tenant's database.
    pub(crate) fn database_url(&self, slug: &str) -> &str {
        let tenant = self.tenants.iter().find(|tenant| tenant.table["slug"].as_str() == Some(slug));
        tenant.expect("the site has the tenant").database_url()
    }

    fn location(&self, slug: &str) -> DatabaseLocation {
        library::location(self.database_url(slug), self.folder())
    }

    /// Where a tenant's window is in Redis; its database is migrated.
    pub(crate) async fn window_key(&self, slug: &str) -> String {
        let database = Database::connect(self.database_url(slug)).await;
        let identity = database.text("SELECT id FROM database_identity").await;
        database.close().await;
        format!("formgate:window:{{{slug}}}:{identity}")
    }

    /// Creates a token with limits, by the command.
    pub(crate) fn limited_token(&self, slug: &str, name: &str, limits: &[&str]) -> String {
        let output = self.run(&[&["token", "create", "--tenant", slug, "--name", name], limits].concat(), b"");
        assert_eq!(output.code, 0, "{}", output.stderr);
        output.stdout.trim_end().to_owned()
    }

    /// Brings every database to the newest schema, for tenants with databases of the test's own.
    pub(crate) fn migrate(&self) {
        for tenant in &self.tenants {
            library::migrate(&library::location(tenant.database_url(), self.folder()));
        }
    }

    /// Loads NDJSON into a tenant's database.
    pub(crate) fn import(&self, slug: &str, ndjson: &str) {
        library::import(&self.location(slug), ndjson);
    }

    /// Creates a token.
    pub(crate) fn token(&self, slug: &str, name: &str) -> String {
        library::create_token(&self.location(slug), name)
    }

    /// Starts a node; several may serve one site.
    pub(crate) fn start(&self) -> Node {
        Node::spawn(&self.config_path)
    }

    /// Runs any command on this site, with or without success.
    pub(crate) fn run(&self, command: &[&str], input: &[u8]) -> Output {
        let config = self.config_path.to_str().expect("the temporary folder has a UTF-8 name");
        process::formgate_with_input(&[command, &["--config", config]].concat(), input)
    }

    /// Runs any command in a thread, so that servers of the test answer it.
    pub(crate) async fn run_in_thread(&self, command: &[&str]) -> Output {
        let config = self.config_path.to_str().expect("the temporary folder has a UTF-8 name");
        let arguments: Vec<String> = command.iter().chain(&["--config", config]).map(ToString::to_string).collect();
        spawn_blocking(move || process::formgate(&arguments)).await.expect("the command ends")
    }

    /// Runs any command whose output goes where the test says.
    pub(crate) fn run_into(&self, command: &[&str], stdout: Writable, stderr: Writable) -> Output {
        let config = self.config_path.to_str().expect("the temporary folder has a UTF-8 name");
        process::formgate_into(&[command, &["--config", config]].concat(), stdout, stderr)
    }
}

/// A `[[tenant]]` table in the making.
pub(crate) struct Tenant {
    table: Table,
    domains: Vec<String>,
    is_migrated: bool,
}

impl Tenant {
    /// Gives the tenant a database without tables.
    pub(crate) fn unmigrated(mut self) -> Self {
        self.is_migrated = false;
        self
    }

    /// Adds a custom domain with a certificate of its own.
    pub(crate) fn domain(mut self, name: &str) -> Self {
        self.domains.push(name.to_owned());
        self
    }

    /// Sets any key of the table.
    pub(crate) fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.table.insert(key.into(), value.into());
        self
    }

    fn database_url(&self) -> &str {
        self.table["database"].as_str().expect("each tenant is given a URL")
    }

    fn as_written(&self, folder: &Path) -> Value {
        let mut table = self.table.clone();
        if !self.domains.is_empty() {
            let issue = |name: &String| {
                let issued = certificate::issue(&folder.join("certs"), &[name]);
                (name.clone(), as_table(&issued))
            };
            table.insert("domains".into(), self.domains.clone().into());
            table.insert("tls".into(), Value::Table(self.domains.iter().map(issue).collect()));
        }
        table.into()
    }
}

/// The account name that callers read: `acme` is `Acme`.
fn display_name(slug: &str) -> String {
    let (first, rest) = slug.split_at(1);
    first.to_uppercase() + rest
}

fn as_table(issued: &Issued) -> Value {
    let path = |path: &Path| Value::from(path.to_str().expect("the temporary folder has a UTF-8 name"));
    let pairs = [("certificate", path(&issued.certificate)), ("private_key", path(&issued.private_key))];
    Value::Table(pairs.map(|(key, value)| (key.to_owned(), value)).into_iter().collect())
}
