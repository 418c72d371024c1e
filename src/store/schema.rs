//! The schema as numbered migrations, built into the program.
//!
//! A migration has a script for each kind of database. A node serves a database that has every migration of
//! [`MIGRATIONS`] except for finishing ones, which remove what only nodes of an older version read; later migrations do
//! not matter, so that nodes can be replaced one by one.
//!
//! A database stores a checksum of each script that was applied, and one with another checksum is refused. Until the first
//! release, the first script is edited in place. So a database of an earlier edit is refused too
//! ([`StoreError::SchemaUnreleased`]), and its plain tables are loaded into a new one.

mod catalog;
mod differences;
mod moved;
mod objects;
mod orphans;

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha384};
use sqlx::migrate::MigrateError;

pub use self::catalog::read_catalog;
pub(super) use self::differences::{SchemaDifference, differences};
pub use self::differences::{SchemaDifferences, SchemaRepair, repair_schema};
pub(super) use self::moved::{TableShape, dressing, numbered, shapes, stripping, validating};
pub use self::orphans::{Orphans, count_orphans};
use super::StoreError;
use super::engine::{Database, PooledConnection};
use super::statement::{Dialect, sql};

/// The migrations of a tenant's database, numbered from 1.
pub static MIGRATIONS: [Migration; 1] =
    [Migration::new(OF_TENANT, include_str!("schema/postgres.sql"), include_str!("schema/sqlite.sql"))];

/// The names of the first migrations, which distinguish the two kinds of databases.
const OF_TENANT: &str = "the first schema";
pub(super) const OF_REGISTRY: &str = "the registry";

/// The tables that forms products write, in an order that their foreign keys allow.
pub(super) const PLAIN_TABLES: &str = "users, forms, elements, labels, groups, group_members, flow_steps, \
    flow_step_groups, submissions, answers, submission_labels, submission_pending, submission_participants, \
    submission_flow_steps";

/// The tables of a tenant's database, each after those that it refers to.
pub(super) fn tables(dialect: Dialect) -> impl DoubleEndedIterator<Item = &'static str> {
    let expected = objects::expected(dialect).iter().filter(|object| object.kind == objects::ObjectKind::Table);
    std::iter::once(MIGRATIONS_NAME).chain(expected.map(|object| object.name))
}

/// The columns of formgate's own tables that have text, by table.
#[cfg(test)]
pub(super) fn own_text_columns(dialect: Dialect) -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_text = |state: &str| ["text", "TEXT", "json"].iter().any(|kind| state.starts_with(kind));
    objects::own_columns(dialect).filter(move |column| is_text(&column.state)).map(|column| (column.table, column.name))
}

/// The tables of formgate's own that have a column.
#[cfg(test)]
pub(super) fn own_columns(dialect: Dialect, name: &'static str) -> impl Iterator<Item = &'static str> {
    objects::own_columns(dialect).filter(move |column| column.name == name).map(|column| column.table)
}

/// The statement that creates a trigger of the schema on SQLite.
pub(super) fn sqlite_trigger(name: &str) -> Option<String> {
    let trigger = objects::expected(Dialect::Sqlite).iter().find(|object| object.name == name)?;
    trigger.restoring(None, Dialect::Sqlite)
}

/// Whether formgate created the tables of a tenant in a database.
pub(super) async fn is_of_tenant(reader: &mut PooledConnection) -> Result<bool, sqlx::Error> {
    Ok(read_applied(reader).await?.get(&1).is_some_and(|(_, _, name)| name == OF_TENANT))
}

/// A step of the schema.
#[derive(Clone, Debug)]
pub struct Migration {
    name: &'static str,
    postgres: &'static str,
    sqlite: &'static str,
    is_finishing: bool,
    /// Computed once, since every opening of a database compares one.
    checksums: OnceLock<[Checksum; 2]>,
}

/// SHA-384 of a script.
type Checksum = [u8; 48];

impl Migration {
    /// A migration that a node needs in a database that it serves.
    #[must_use]
    pub const fn new(name: &'static str, postgres: &'static str, sqlite: &'static str) -> Self {
        Self { name, postgres, sqlite, is_finishing: false, checksums: OnceLock::new() }
    }

    /// A migration that only removes what nodes of an older version read. It may be applied after later ones.
    #[must_use]
    pub const fn finishing(name: &'static str, postgres: &'static str, sqlite: &'static str) -> Self {
        Self { name, postgres, sqlite, is_finishing: true, checksums: OnceLock::new() }
    }

    fn script(&self, dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Postgres => self.postgres,
            Dialect::Sqlite => self.sqlite,
        }
    }

    fn checksum(&self, dialect: Dialect) -> &Checksum {
        let checksums = || [self.postgres, self.sqlite].map(|script| Sha384::digest(script).into());
        let [postgres, sqlite] = self.checksums.get_or_init(checksums);
        match dialect {
            Dialect::Postgres => postgres,
            Dialect::Sqlite => sqlite,
        }
    }
}

/// How far a database is migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To the version that this program needs, so that nodes of the previous version can continue; a new database to
    /// the newest version.
    Served,
    /// To the newest version, which nodes of an older version can't serve.
    Newest,
}

/// Migrations exclude each other by a lock that ends with the transaction. (The migrator of sqlx uses a lock of the
/// session, which a pooler may give to other clients.)
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock(7310577365311121508)";

const MIGRATIONS_NAME: &str = "_sqlx_migrations";

/// The table that sqlx's migrator would create.
const MIGRATIONS_TABLE: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS _sqlx_migrations (version bigint PRIMARY KEY, description text NOT NULL, \
        installed_on timestamptz NOT NULL DEFAULT now(), success boolean NOT NULL, checksum bytea NOT NULL, \
        execution_time bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS _sqlx_migrations (version BIGINT PRIMARY KEY, description TEXT NOT NULL, \
        installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, checksum BLOB NOT NULL, \
        execution_time BIGINT NOT NULL)",
];

/// Migrates a database, after creating the Postgres schema that its URL names. Each step is a transaction, and concurrent
/// commands wait for each other. A newer schema is not changed, so that nodes of the old version can still start while
/// nodes are replaced one by one. Returns the versions before and after.
pub(super) async fn migrate(
    database: &Database,
    namespace: Option<&str>,
    migrations: &[Migration],
    reach: Reach,
) -> Result<(i64, i64), StoreError> {
    let mut applied = read_applied(&mut database.writer().await?).await?;
    refuse_unreleased(&applied, migrations, database.dialect())?;
    let before = version_of(&applied, migrations);
    if let Some(name) = namespace {
        create_namespace(database, name).await?;
    }
    for (version, migration) in (1..).zip(migrations) {
        let is_wanted = before == 0 || reach == Reach::Newest || !migration.is_finishing;
        if is_wanted && !is_applied(version, migration, database.dialect(), &applied)? {
            applied = apply(database, version, migration).await?;
        }
    }
    Ok((before, version_of(&applied, migrations)))
}

/// Creates the Postgres schema that a URL names, unless it exists, and what the schemas of a database share.
async fn create_namespace(database: &Database, name: &str) -> Result<(), StoreError> {
    let mut transaction = database.begin_with(BEGIN, Duration::MAX, Instant::now()).await?;
    transaction.fetch_all(sql!("{pg: SELECT set_config('formgate.schema', {name}, true)}", name)).await?;
    transaction.command(CREATE_NAMESPACE).await?;
    transaction.command(SHARE_EXTENSION).await?;
    Ok(transaction.commit().await?)
}

/// `CREATE SCHEMA` takes no bound values, so the name is passed as a setting. The comment says that formgate may drop it again.
const CREATE_NAMESPACE: &str = "DO $$ BEGIN \
    IF to_regnamespace(quote_ident(current_setting('formgate.schema'))) IS NULL THEN \
        EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I', current_setting('formgate.schema')); \
        EXECUTE format('COMMENT ON SCHEMA %I IS %L', current_setting('formgate.schema'), 'Created by formgate'); \
    END IF; END $$";

/// A database has an extension once. It is kept out of the tenants' schemas: dropping the one that has it would drop
/// the keyword indexes of all of them. If the role may not do that, the first keyword index creates it where it can.
const SHARE_EXTENSION: &str = "DO $$ BEGIN \
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_trgm' \
        AND extnamespace = to_regnamespace(quote_ident(current_setting('formgate.schema')))) THEN \
        ALTER EXTENSION pg_trgm SET SCHEMA public; \
    ELSE \
        CREATE EXTENSION IF NOT EXISTS pg_trgm SCHEMA public; \
    END IF; \
    EXCEPTION WHEN insufficient_privilege OR undefined_file OR feature_not_supported OR invalid_schema_name THEN NULL; \
    END $$";

/// The migrations that a database has, by version: the checksum, whether the migration was completed, and its name.
type Applied = BTreeMap<i64, (Vec<u8>, bool, String)>;

async fn read_applied(reader: &mut PooledConnection) -> Result<Applied, sqlx::Error> {
    if !has_migrations(reader).await? {
        return Ok(Applied::new());
    }
    let rows = reader.fetch_all(sql!("SELECT version, checksum, success, description FROM _sqlx_migrations")).await?;
    rows.iter().map(|row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?, row.get(3)?)))).collect()
}

fn is_applied(version: i64, migration: &Migration, dialect: Dialect, applied: &Applied) -> Result<bool, StoreError> {
    match applied.get(&version) {
        None => Ok(false),
        Some((_, false, _)) => Err(StoreError::Migration(MigrateError::Dirty(version))),
        Some((checksum, true, _)) if checksum == migration.checksum(dialect) => Ok(true),
        Some(_) => Err(StoreError::Migration(MigrateError::VersionMismatch(version))),
    }
}

/// Refuses a database that another edit of the first script created, or that of the registry.
fn refuse_unreleased(applied: &Applied, migrations: &[Migration], dialect: Dialect) -> Result<(), StoreError> {
    match (applied.get(&1), migrations.first()) {
        (Some((checksum, true, name)), Some(first)) if checksum != first.checksum(dialect) => {
            Err(match name.as_str() {
                OF_REGISTRY if first.name != OF_REGISTRY => StoreError::OfOtherKind { found: "the registry" },
                OF_TENANT if first.name != OF_TENANT => StoreError::OfOtherKind { found: "a tenant" },
                _ => StoreError::SchemaUnreleased,
            })
        }
        _ => Ok(()),
    }
}

/// Applies a migration, unless another command has just done so. Returns those that the database has now.
async fn apply(database: &Database, version: i64, migration: &Migration) -> Result<Applied, StoreError> {
    let began = Instant::now();
    let dialect = database.dialect();
    let mut transaction = database.begin_with(BEGIN, Duration::MAX, began).await?;
    let [postgres, sqlite] = MIGRATIONS_TABLE;
    transaction.command(if dialect == Dialect::Postgres { postgres } else { sqlite }).await?;
    let mut applied = read_applied(transaction.connection()).await?;
    if is_applied(version, migration, dialect, &applied)? {
        transaction.roll_back().await?;
        return Ok(applied);
    }
    let failed = |error| StoreError::Migration(MigrateError::ExecuteMigration(error, version));
    transaction.command(migration.script(dialect)).await.map_err(failed)?;
    let checksum = migration.checksum(dialect).to_vec();
    let sql = sql!(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES ({version}, {name}, TRUE, {checksum}, {nanoseconds})",
        version,
        name = migration.name,
        checksum = checksum.clone(),
        nanoseconds = i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX),
    );
    transaction.execute(sql).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    applied.insert(version, (checksum, true, migration.name.to_owned()));
    Ok(applied)
}

/// Refuses a database that this program does not serve.
pub(crate) async fn require_served(reader: &mut PooledConnection) -> Result<(), StoreError> {
    require(reader, &MIGRATIONS).await.map(drop)
}

/// Refuses a database that lacks migrations. Returns its version.
pub(super) async fn require(reader: &mut PooledConnection, migrations: &[Migration]) -> Result<i64, StoreError> {
    let applied = read_applied(reader).await?;
    refuse_unreleased(&applied, migrations, reader.dialect())?;
    let needed = (1..).zip(migrations).filter(|(_, migration)| !migration.is_finishing).map(|(version, _)| version);
    let wanted = needed.last().unwrap_or(0);
    let found = version_of(&applied, migrations);
    if completed(&applied).any(|version| version >= wanted) {
        return Ok(found);
    }
    Err(StoreError::SchemaOlder { found, wanted })
}

/// The version that a tenant's database is at.
pub(crate) async fn version(reader: &mut PooledConnection) -> Result<i64, sqlx::Error> {
    Ok(version_of(&read_applied(reader).await?, &MIGRATIONS))
}

/// How far a database is migrated by migrations.
pub(super) struct Progress {
    /// The version that it is at.
    pub(super) found: i64,
    /// The names of the finishing migrations that wait, although nodes of this version serve it.
    pub(super) unfinished: Vec<&'static str>,
}

pub(super) async fn progress(reader: &mut PooledConnection, migrations: &[Migration]) -> Result<Progress, sqlx::Error> {
    let applied = read_applied(reader).await?;
    let found = version_of(&applied, migrations);
    let waits = |(version, migration): &(i64, &Migration)| migration.is_finishing && !applied.contains_key(version);
    // A newer program has finished them, or never had them.
    let waiting = (1..).zip(migrations).filter(|_| found <= newest(migrations)).filter(waits);
    Ok(Progress { found, unfinished: waiting.map(|(_, migration)| migration.name).collect() })
}

/// That of a newer program if the database has one, otherwise the last migration before the first one that it lacks; 0
/// before its first.
fn version_of(applied: &Applied, migrations: &[Migration]) -> i64 {
    let last = completed(applied).last().unwrap_or(0);
    if last > newest(migrations) {
        return last;
    }
    let in_a_row = (1..).zip(completed(applied)).take_while(|(expected, version)| expected == version);
    in_a_row.last().map_or(0, |(version, _)| version)
}

/// The version of a database with all of these migrations.
#[expect(clippy::cast_possible_wrap, reason = "the lists are short")]
pub(crate) fn newest(migrations: &[Migration]) -> i64 {
    migrations.len() as i64
}

/// The versions of the migrations that were completed.
fn completed(applied: &Applied) -> impl DoubleEndedIterator<Item = i64> {
    applied.iter().filter(|(_, (_, success, _))| *success).map(|(version, _)| *version)
}

/// Whether a migration was ever applied.
pub(super) async fn has_migrations(reader: &mut PooledConnection) -> Result<bool, sqlx::Error> {
    let sql = sql!(
        "SELECT {pg: to_regclass('_sqlx_migrations') IS NOT NULL
                | lite: EXISTS (SELECT 1 FROM sqlite_schema WHERE name = '_sqlx_migrations')}",
    );
    reader.fetch_one(sql).await?.get(0)
}
