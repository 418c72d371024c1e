//! Where a tenant's database is. The module `opening` opens it.
//!
//! The text form is the configuration's `database`: `postgres://…` or `sqlite:path`. Never prints a password.

pub(super) mod opening;
mod postgres_url;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

use super::error::StoreError;
use super::pooler::Pooler;
use super::postgres::PostgresServer;
use super::session_source::Omitted;
use super::write_access::ReadOnlyFile;
use crate::owner_only;

/// A parsed `database` of the configuration.
#[derive(Clone)]
pub struct DatabaseLocation {
    kind: DatabaseKind,
    /// As written in the configuration. Two locations are equal only if their texts are, password included.
    text: SecretString,
    omitted: Omitted,
    /// Of the host and port of a Postgres server.
    server_hash: Option<u64>,
}

impl PartialEq for DatabaseLocation {
    fn eq(&self, other: &Self) -> bool {
        let has_same_text = self.text.expose_secret() == other.text.expose_secret() && self.file() == other.file();
        has_same_text && (self.omitted == other.omitted || self.connects_as(other))
    }
}

/// The host and port in the identity of a database on Postgres. None for a socket.
fn host_in(identity: &str) -> Option<&str> {
    let host = identity.strip_prefix("postgres ")?.split('/').next()?;
    (!host.is_empty()).then_some(host)
}

#[derive(Clone)]
enum DatabaseKind {
    /// Parsed at the first connection: most tenants are quiet, and the driver's options are large.
    Postgres(OnceLock<Arc<PostgresServer>>),
    Sqlite(Box<Path>),
}

/// What counts the writes to a Postgres database.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CountedBy {
    /// The server at an address, for each of its databases.
    Server(String),
    /// A database of the server at an address, for each of its schemas.
    Database(String, String),
}

/// The text names no database.
#[derive(Debug, thiserror::Error)]
pub enum InvalidLocation {
    /// It begins with neither scheme.
    #[error("expected `postgres://…` or `sqlite:path`")]
    UnknownScheme,
    /// The SQLite path is empty, or asks for a database in memory, which would lose everything at every stop.
    #[error("expected the path of a file after `sqlite:`")]
    NoFile,
    /// A Postgres URL that leaves its user or host to the environment, where it may not.
    #[error("a URL without a user or a host")]
    LacksUserOrHost,
    /// What follows `postgres://` is no connection URL.
    #[error("not a Postgres URL")]
    NotAUrl,
    /// A libpq URL with several hosts.
    #[error("several hosts are not supported: name one, such as that of a proxy that follows the primary")]
    SeveralHosts,
    /// An unknown parameter of the Postgres URL, which the driver would ignore.
    #[error("parameter {number} is unknown; there are: {}", postgres_url::SUPPORTED.join(", "))]
    UnknownParameter {
        /// Its position in the URL, counted from 1. Its name may be a part of a password.
        number: usize,
    },
    /// A parameter that libpq or a provider defines, and that would be ignored here.
    #[error("`{name}` is not supported: {remedy}")]
    UnsupportedParameter {
        /// Its name.
        name: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// A known parameter of the Postgres URL with an invalid value.
    #[error("`{name}`: expected {expected}")]
    InvalidParameter {
        /// As the driver knows it.
        name: &'static str,
        /// A description of valid values.
        expected: &'static str,
    },
}

impl DatabaseLocation {
    /// Reads `postgres://…`, `postgresql://…`, `sqlite:path` or `sqlite://path`; a relative path starts at `folder`.
    ///
    /// # Errors
    /// [`InvalidLocation`] says what was expected; it never repeats the text.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, InvalidLocation> {
        Self::read(text, folder, Omitted::FromEnvironment)
    }

    /// The same for a URL that whoever may write it must not complete with secrets of this node: what it omits is never
    /// taken from the environment, the user of the process or a password file. `PGOPTIONS`, `PGSSLCERT` and `PGSSLKEY`,
    /// which the driver can't be kept from, must not be set.
    ///
    /// # Errors
    /// As [`Self::parse`], and [`InvalidLocation::LacksUserOrHost`].
    pub fn parse_without_environment(text: &str, folder: &Path) -> Result<Self, InvalidLocation> {
        Self::read(text, folder, Omitted::Fixed)
    }

    fn read(text: &str, folder: &Path, omitted: Omitted) -> Result<Self, InvalidLocation> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            let identity = match postgres_url::plain_identity(text, omitted) {
                Some(identity) => identity,
                None => postgres_url::parse(text, omitted)?.identity(),
            };
            let server_hash = host_in(&identity).map(|host| {
                let digest = Sha256::digest(host);
                u64::from_be_bytes(*digest.first_chunk().expect("a digest has 32 bytes"))
            });
            let kind = DatabaseKind::Postgres(OnceLock::new());
            return Ok(Self { kind, text: text.into(), omitted, server_hash });
        }
        let path = text.strip_prefix("sqlite:").ok_or(InvalidLocation::UnknownScheme)?;
        let path = path.strip_prefix("//").unwrap_or(path);
        if path.is_empty() || path.contains(":memory:") || path.contains('?') || path.contains('\0') {
            return Err(InvalidLocation::NoFile);
        }
        let kind = DatabaseKind::Sqlite(folder.join(path).into());
        Ok(Self { kind, text: text.into(), omitted, server_hash: None })
    }

    /// A text that is equal for two locations if and only if they name the same database.
    #[must_use]
    pub fn identity(&self) -> String {
        match &self.kind {
            DatabaseKind::Postgres(server) => postgres_url::plain_identity(self.text.expose_secret(), self.omitted)
                .unwrap_or_else(|| self.server(server).identity()),
            DatabaseKind::Sqlite(path) => format!("sqlite {}", path.display()),
        }
    }

    /// Whether it is the URL of a Postgres server.
    #[must_use]
    pub fn is_postgres(&self) -> bool {
        matches!(self.kind, DatabaseKind::Postgres(_))
    }

    /// Whether the environment makes no difference between two locations with one text.
    fn connects_as(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (DatabaseKind::Postgres(one), DatabaseKind::Postgres(two)) => self.server(one).is_same(other.server(two)),
            _ => true,
        }
    }

    fn server<'s>(&self, server: &'s OnceLock<Arc<PostgresServer>>) -> &'s Arc<PostgresServer> {
        server.get_or_init(|| {
            let parsed = postgres_url::parse(self.text.expose_secret(), self.omitted);
            parsed.expect("the text was checked when it was read").into()
        })
    }

    /// The Postgres schema that the URL names, if it names one.
    pub(in crate::store) fn schema(&self) -> Option<&str> {
        match &self.kind {
            DatabaseKind::Postgres(server) => self.server(server).schema(),
            DatabaseKind::Sqlite(_) => None,
        }
    }

    /// The address of the Postgres server, or its socket, for messages. Empty for a SQLite file.
    #[must_use]
    pub fn server_address(&self) -> String {
        let DatabaseKind::Postgres(server) = &self.kind else { return String::new() };
        self.server(server).address()
    }

    /// The host and port of a Postgres server. None for a socket or a SQLite file.
    #[must_use]
    pub fn host(&self) -> Option<String> {
        host_in(&self.identity()).map(ToOwned::to_owned)
    }

    /// A hash of the host and port of a Postgres server, the same in every process. None for a socket or a SQLite file.
    #[must_use]
    pub fn server_hash(&self) -> Option<u64> {
        self.server_hash
    }

    /// Whose counters of writes include those of this database: a Postgres server, or, for a schema of a database, that
    /// database. None for a SQLite file.
    #[must_use]
    pub fn counted_by(&self) -> Option<CountedBy> {
        let DatabaseKind::Postgres(server) = &self.kind else { return None };
        let server = self.server(server);
        let options = server.options();
        // Servers with a socket differ by the port.
        let address = format!("{} {}", server.address(), options.get_port());
        Some(match server.schema() {
            Some(_) => {
                CountedBy::Database(address, options.get_database().unwrap_or(options.get_username()).to_owned())
            }
            None => CountedBy::Server(address),
        })
    }

    /// The pooler that was detected and that the URL does not mention.
    #[must_use]
    pub fn detected_pooler(&self) -> Option<Pooler> {
        match &self.kind {
            DatabaseKind::Postgres(server) => server.get().and_then(|server| server.detected()),
            DatabaseKind::Sqlite(_) => None,
        }
    }

    /// The file of a SQLite database.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match &self.kind {
            DatabaseKind::Postgres(_) => None,
            DatabaseKind::Sqlite(path) => Some(path),
        }
    }

    /// Checks that this process has the right to write to a SQLite file, by the file's mode and owner.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`].
    pub fn require_writable(&self) -> Result<(), StoreError> {
        match self.file().and_then(ReadOnlyFile::without_right) {
            Some(file) => Err(StoreError::ReadOnly(file)),
            None => Ok(()),
        }
    }

    /// Creates a missing SQLite file and its folder, readable only by their owner; SQLite itself would create a file
    /// that every user can read. Blocks on the file system.
    pub(in crate::store) fn create_file(&self) -> Result<(), StoreError> {
        let Some(file) = self.file() else { return Ok(()) };
        if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            let failed = |cause| StoreError::Folder { folder: folder.to_owned(), cause };
            owner_only::create_folder(folder).map_err(failed)?;
        }
        owner_only::create_file(file).map_err(|cause| StoreError::Unavailable(sqlx::Error::Io(cause)))
    }
}

impl fmt::Debug for DatabaseLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.identity())
    }
}
