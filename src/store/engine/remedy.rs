//! Advice to the operator for each error of a tenant's database.
//!
//! Every command and the log take their advice from here, so that it never differs. Advice names the command to run,
//! the right to grant or the key to change. What went wrong is the text of the error ([`crate::store::with_causes`]).
//! Never quotes a password.

mod sqlite;

use std::io::{self, ErrorKind};

use sqlx::migrate::MigrateError;
use sqlx::postgres::PgDatabaseError;

use super::error::StoreError;
use super::failure::{is_publication, is_row_security};
use super::location::DatabaseLocation;
use super::pooler::is_lost_statement;
use crate::store::schema::PLAIN_TABLES;

/// The remedy for an error of the tenant `slug`, whose database is at `location`. Blocks on reading the metadata of
/// SQLite files.
#[must_use]
pub fn remedy(error: &StoreError, location: &DatabaseLocation, slug: &str) -> String {
    match error {
        StoreError::SchemaOlder { .. } => {
            format!("run `formgate migrate --tenant {slug}`; a running node serves the tenant as soon as that is done")
        }
        StoreError::SchemaNewer { .. } => "run the newest version of formgate on every node".to_owned(),
        StoreError::SchemaUnreleased => of_unreleased(location, slug),
        StoreError::Folder { folder, .. } => match location.file().and_then(|file| sqlite::of_path(file, slug)) {
            Some(remedy) => remedy,
            None => format!("create `{}`, or let the user that runs formgate create it", folder.display()),
        },
        StoreError::Resting
        | StoreError::Busy
        | StoreError::Unsettled
        | StoreError::GroupDeleted
        | StoreError::MemorySpent(_) => "try again in a moment: the database works, but it is busy".to_owned(),
        StoreError::OfDrill => "start the node without `--drill`".to_owned(),
        StoreError::OfAnotherTenant { .. } => OWN_DATABASE.to_owned(),
        StoreError::OfOtherKind { .. } => "give each tenant, and the registry, a database of its own".to_owned(),
        StoreError::Locked { .. } => {
            "wait until the other program has ended its transaction, or end that program".to_owned()
        }
        StoreError::ReadOnly(_) => {
            let remedy = location.file().and_then(|file| sqlite::of_path(file, slug));
            remedy.unwrap_or_else(|| "free space on the file system of the file".to_owned())
        }
        StoreError::RowLost => format!("run `formgate reindex --tenant {slug}`, or restore a backup"),
        StoreError::Migration(error) => of_migration(error, location, slug),
        StoreError::Unavailable(error) | StoreError::Statement(error) => of_driver(error, location, slug),
    }
}

/// What to do where two tenants have one database.
pub(crate) const OWN_DATABASE: &str = "give each tenant a database or a `schema` of its own";

fn of_unreleased(location: &DatabaseLocation, slug: &str) -> String {
    let (dump, new, load) = match location.file() {
        None => (
            format!("dump its plain tables (pg_dump --data-only -t {})", PLAIN_TABLES.replace(", ", " -t ")),
            "create a new database",
            "load the dump".to_owned(),
        ),
        Some(_) => (
            "keep the file".to_owned(),
            "choose a new file",
            format!("copy the plain tables by ATTACH and INSERT … SELECT ({PLAIN_TABLES})"),
        ),
    };
    format!(
        "{dump}, {new}, name it in `database` of the tenant `{slug}`, run `formgate migrate --tenant {slug}`, and {load}: \
         `Databases of unreleased versions` in src/store/README.md has the commands. Tokens, subscriptions and the audit log \
         are in no plain table: create new tokens, subscribe again, and keep the old database for its audit log"
    )
}

fn of_migration(error: &MigrateError, location: &DatabaseLocation, slug: &str) -> String {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => of_driver(error, location, slug),
        MigrateError::VersionMismatch(_) => {
            "another build of formgate migrated this database: use that build, or restore a backup".to_owned()
        }
        _ => otherwise(slug),
    }
}

fn of_driver(error: &sqlx::Error, location: &DatabaseLocation, slug: &str) -> String {
    if let Some(file) = location.file() {
        return sqlite::of_error(error, file, slug).unwrap_or_else(|| otherwise(slug));
    }
    match error {
        _ if is_row_security(error) => ROW_SECURITY.to_owned(),
        _ if is_publication(error) => {
            format!("run `formgate reindex --tenant {slug}`; if that does not help, {PUBLICATION}")
        }
        sqlx::Error::Database(database) => {
            let known = database.try_downcast_ref().and_then(|error| of_postgres(error, slug));
            known.unwrap_or_else(|| otherwise(slug))
        }
        sqlx::Error::Io(error) => of_connection(error, location, slug),
        sqlx::Error::Tls(_) => {
            format!(
                "correct the parameters of `database` of the tenant `{slug}`: `sslmode=disable` is for a server without TLS, and `sslrootcert` names the file of the authority that signed the server's certificate"
            )
        }
        _ => otherwise(slug),
    }
}

/// The remedy by SQLSTATE (Postgres manual, appendix A).
fn of_postgres(error: &PgDatabaseError, slug: &str) -> Option<String> {
    let key = format!("`database` of the tenant `{slug}`");
    Some(match error.code() {
        "28P01" => format!(
            "correct the user or the password in {key}, or set the password in Postgres: ALTER ROLE … PASSWORD '…'"
        ),
        "28000" => format!(
            "let the role in: it needs LOGIN and a line in pg_hba.conf for this host and database; or correct {key}"
        ),
        "3D000" => {
            format!("create the database, then run `formgate migrate --tenant {slug}`; or correct its name in {key}")
        }
        "3F000" => format!("create the schema and let the role create in it, or correct `search_path` in {key}"),
        _ if error.message().contains("pg_trgm") || error.message().contains("gin_trgm_ops") => {
            format!("{PG_TRGM} `formgate migrate --tenant {slug}`")
        }
        "42501" => format!(
            "grant the role of {key} what it lacks; to migrate, it owns formgate's tables and has CREATE on their schema"
        ),
        "42P01" | "42703" => {
            format!("tables are missing or altered: correct `search_path` in {key}, or restore a backup")
        }
        code if is_lost_statement(code) => {
            format!("the server is behind a pooler in transaction mode: write `pooler=transaction` in {key}")
        }
        _ if error.message().contains("statement pooling mode") => {
            "set `pool_mode` of the pooler to transaction or session: writes are transactions".to_owned()
        }
        "22P05" | "22021" => {
            "create the database with the encoding UTF8: createdb --encoding=UTF8 --template=template0 NAME".to_owned()
        }
        "53300" => {
            "raise `max_connections` of Postgres, or lower that of `[gateway.databases]` on every node".to_owned()
        }
        "53100" => "free space on the disk of the Postgres server".to_owned(),
        "57P03" => "wait: Postgres is starting or recovering".to_owned(),
        "25006" => format!("this server takes no writes: name the primary in {key}"),
        "55P03" | "57014" => "wait until other transactions have ended, then try again".to_owned(),
        _ => return None,
    })
}

/// How to install the extension that keyword searches need. A command follows.
pub(in crate::store) const PG_TRGM: &str = "install the package of Postgres's contrib modules, run CREATE EXTENSION pg_trgm in this database as a superuser, then";

/// What to do where a publication makes Postgres refuse writes.
pub(in crate::store) const PUBLICATION: &str = "publish these tables without a list of columns and without a filter (ALTER PUBLICATION … SET TABLE), or inserts only (ALTER PUBLICATION … SET (publish = 'insert'))";

/// What to do where a policy could hide rows from the role that serves.
pub(in crate::store) const ROW_SECURITY: &str = "switch it off for these tables (ALTER TABLE … DISABLE ROW LEVEL SECURITY), or serve with the role that owns them or one with BYPASSRLS: a part of the rows would look like deletions";

/// The remedy for a connection that could not be opened, or broke.
fn of_connection(error: &io::Error, location: &DatabaseLocation, slug: &str) -> String {
    let server = location.server_address();
    if error.to_string().contains("target_session_attrs") {
        return format!("name a server of that kind in `database` of the tenant `{slug}`, or correct the parameter");
    }
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
            format!("nothing listens at {server}: start Postgres, or correct `database` of the tenant `{slug}`")
        }
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => format!(
            "{server} does not answer: check the address in `database` of the tenant `{slug}`, and firewalls in between"
        ),
        ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe => {
            format!("{server} closes the connection: look into its log, and check that it is Postgres")
        }
        _ if error.to_string().contains("lookup address") => {
            format!("the name in {server} can't be resolved: correct `database` of the tenant `{slug}`, or the DNS")
        }
        _ => otherwise(slug),
    }
}

fn otherwise(slug: &str) -> String {
    format!(
        "repair the database, or correct `database` of the tenant `{slug}`; a running node tries again every second"
    )
}
