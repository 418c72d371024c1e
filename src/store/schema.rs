//! The schema and its versions, built into the program.
//!
//! Each database has its own list of migrations, with the same numbers. This program needs them through [`NEEDED`],
//! except for [`FINISHING`], which remove what only nodes of an older version read. A released migration never changes: the
//! database stores a checksum of each, and a database with other checksums is refused.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use sqlx::SqlSafeStr;
use sqlx::migrate::{MigrateError, Migration, MigrationType};

use super::StoreError;
use super::engine::{Database, PooledConnection};
use super::statement::Dialect;

/// The last migration that this program needs in a database that it serves.
const NEEDED: i64 = 17;

/// The migrations that only remove what nodes of an older version read. They may be applied after later ones.
const FINISHING: [i64; 2] = [11, 14];

/// The newest schema that this program knows.
#[expect(clippy::cast_possible_wrap, reason = "the list is short")]
pub(crate) const NEWEST: i64 = POSTGRES.len() as i64;

const POSTGRES: [Script; 17] = [
    ("forms and submissions", include_str!("schema/postgres-1.sql")),
    ("subscriptions", include_str!("schema/postgres-2.sql")),
    ("counts", include_str!("schema/postgres-3.sql")),
    ("writers at once", include_str!("schema/postgres-4.sql")),
    ("members by one call", include_str!("schema/postgres-5.sql")),
    ("groups at once", include_str!("schema/postgres-6.sql")),
    ("cheaper group writes", include_str!("schema/postgres-7.sql")),
    ("a directory's first list", include_str!("schema/postgres-8.sql")),
    ("the identity of the database", include_str!("schema/postgres-9.sql")),
    ("derived by the program", include_str!("schema/postgres-10.sql")),
    ("no longer derived by triggers", include_str!("schema/postgres-11.sql")),
    ("totals", include_str!("schema/postgres-12.sql")),
    ("the change log", include_str!("schema/postgres-13.sql")),
    ("every change is numbered", include_str!("schema/postgres-14.sql")),
    ("the delivery of webhooks", include_str!("schema/postgres-15.sql")),
    ("the administration area", include_str!("schema/postgres-16.sql")),
    ("the overview of the administration area", include_str!("schema/postgres-17.sql")),
];
const SQLITE: [Script; 17] = [
    ("forms and submissions", include_str!("schema/sqlite-1.sql")),
    ("subscriptions", include_str!("schema/sqlite-2.sql")),
    ("counts", include_str!("schema/sqlite-3.sql")),
    ("writers at once", include_str!("schema/sqlite-4.sql")),
    ("members by one call", include_str!("schema/sqlite-5.sql")),
    ("groups at once", include_str!("schema/sqlite-6.sql")),
    ("cheaper group writes", include_str!("schema/sqlite-7.sql")),
    ("a directory's first list", include_str!("schema/sqlite-8.sql")),
    ("the identity of the database", include_str!("schema/sqlite-9.sql")),
    ("derived by the program", include_str!("schema/sqlite-10.sql")),
    ("no longer derived by triggers", include_str!("schema/sqlite-11.sql")),
    ("totals", include_str!("schema/sqlite-12.sql")),
    ("the change log", include_str!("schema/sqlite-13.sql")),
    ("every change is numbered", include_str!("schema/sqlite-14.sql")),
    ("the delivery of webhooks", include_str!("schema/sqlite-15.sql")),
    ("the administration area", include_str!("schema/sqlite-16.sql")),
    ("the overview of the administration area", include_str!("schema/sqlite-17.sql")),
];

/// How far a database is migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// To the version that this program needs, so that nodes of the previous version can continue; a new database to
    /// the newest version.
    Served,
    /// To the newest version, which nodes of an older version can't serve.
    Newest,
}

/// The beginning of an obsolete part of a migration, which is skipped: it creates the trigram index of a table that
/// migration 10 drops, and does not find the extension in a schema outside the search path. [`super::settle`] creates
/// the current index.
const OBSOLETE_INDEX: &str = "\n-- Trigrams make the keyword search independent of what is stored.";

/// Migrations exclude each other by a lock that ends with the transaction. (The migrator of sqlx uses a lock of the
/// session, which a pooler may give to other clients.)
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock(7310577365311121508)";

/// The table of sqlx's migrator, which created it until version 11 of formgate.
const MIGRATIONS_TABLE: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS _sqlx_migrations (version bigint PRIMARY KEY, description text NOT NULL, \
        installed_on timestamptz NOT NULL DEFAULT now(), success boolean NOT NULL, checksum bytea NOT NULL, \
        execution_time bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS _sqlx_migrations (version BIGINT PRIMARY KEY, description TEXT NOT NULL, \
        installed_on TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, success BOOLEAN NOT NULL, checksum BLOB NOT NULL, \
        execution_time BIGINT NOT NULL)",
];

/// Migrates a database. Each step is a transaction, and concurrent commands wait for each other. A newer schema is not
/// changed, so that nodes of the old version can still start while nodes are replaced one by one.
pub(crate) async fn migrate(database: &Database, reach: Reach) -> Result<(), StoreError> {
    let mut reader = database.reader().await?;
    let before = version(&mut reader).await?;
    let mut applied = if before == 0 { HashMap::new() } else { read_applied(&mut reader).await? };
    drop(reader);
    let scripts: &[Script] = match database.dialect() {
        Dialect::Postgres => &POSTGRES,
        Dialect::Sqlite => &SQLITE,
    };
    let is_wanted = |version| before == 0 || reach == Reach::Newest || !FINISHING.contains(&version);
    for (version, script) in (1..).zip(scripts).filter(|(version, _)| is_wanted(*version)) {
        apply_if_missing(database, version, script, &mut applied).await?;
    }
    Ok(())
}

/// Applies the scripts of a list of its own that a database lacks: for databases that are no tenant's.
///
/// # Errors
/// [`StoreError::SchemaNewer`] if it has more of them.
pub(super) async fn apply_list(database: &Database, scripts: &'static [Script]) -> Result<(), StoreError> {
    let mut reader = database.reader().await?;
    let mut applied =
        if has_migrations(&mut reader).await? { read_applied(&mut reader).await? } else { HashMap::new() };
    drop(reader);
    for (version, script) in (1..).zip(scripts) {
        apply_if_missing(database, version, script, &mut applied).await?;
    }
    let (found, known) = (applied.keys().max().copied(), i64::try_from(scripts.len()).unwrap_or(i64::MAX));
    match found.filter(|found| *found > known) {
        Some(found) => Err(StoreError::SchemaNewer { found, known }),
        None => Ok(()),
    }
}

/// The name and the text of a migration.
pub(super) type Script = (&'static str, &'static str);

async fn apply_if_missing(
    database: &Database,
    version: i64,
    (name, text): &Script,
    applied: &mut Applied,
) -> Result<(), StoreError> {
    let step = Migration::new(version, Cow::Borrowed(*name), MigrationType::Simple, text.into_sql_str(), false);
    if !is_applied(&step, applied)? {
        *applied = apply(database, &step, text).await?;
    }
    Ok(())
}

/// Creates the Postgres schema that a URL names, unless it exists, and what the schemas of a database share.
pub(super) async fn create_namespace(database: &Database, name: &str) -> Result<(), StoreError> {
    let mut transaction = database.begin_with(BEGIN, Duration::MAX, Instant::now()).await?;
    let mut sql = transaction.sql();
    sql.push("SELECT set_config('formgate.schema', ").bind(name).push(", true)");
    transaction.fetch_all(sql).await?;
    transaction.command(CREATE_NAMESPACE).await?;
    transaction.command(SHARE_EXTENSION).await?;
    Ok(transaction.commit().await?)
}

/// `CREATE SCHEMA` takes no bound values, so the name is passed as a setting.
const CREATE_NAMESPACE: &str = "DO $$ BEGIN \
    IF to_regnamespace(quote_ident(current_setting('formgate.schema'))) IS NULL THEN \
        EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I', current_setting('formgate.schema')); \
    END IF; END $$";

/// A database has an extension once. It is kept out of the tenants' schemas: dropping the one that has it would drop
/// the keyword indexes of all of them. If the role may not do that, the first migration creates it where it can.
const SHARE_EXTENSION: &str = "DO $$ BEGIN \
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_trgm' \
        AND extnamespace = to_regnamespace(quote_ident(current_setting('formgate.schema')))) THEN \
        ALTER EXTENSION pg_trgm SET SCHEMA public; \
    ELSE \
        CREATE EXTENSION IF NOT EXISTS pg_trgm SCHEMA public; \
    END IF; \
    EXCEPTION WHEN insufficient_privilege OR undefined_file OR feature_not_supported OR invalid_schema_name THEN NULL; \
    END $$";

/// The applied migrations by version: the checksum, and whether the migration was completed.
type Applied = HashMap<i64, (Vec<u8>, bool)>;

async fn read_applied(reader: &mut PooledConnection) -> Result<Applied, sqlx::Error> {
    let mut sql = reader.sql();
    sql.push("SELECT version, checksum, success FROM _sqlx_migrations");
    let rows = reader.fetch_all(sql).await?;
    rows.iter().map(|row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?)))).collect()
}

fn is_applied(step: &Migration, applied: &Applied) -> Result<bool, StoreError> {
    match applied.get(&step.version) {
        None => Ok(false),
        Some((_, false)) => Err(StoreError::Migration(MigrateError::Dirty(step.version))),
        Some((checksum, true)) if **checksum == *step.checksum => Ok(true),
        Some(_) => Err(StoreError::Migration(MigrateError::VersionMismatch(step.version))),
    }
}

/// Applies a step, unless another command has just done so. Returns the migrations that were applied before it.
async fn apply(database: &Database, step: &Migration, text: &'static str) -> Result<Applied, StoreError> {
    let began = Instant::now();
    let mut transaction = database.begin_with(BEGIN, Duration::MAX, began).await?;
    let [postgres, sqlite] = MIGRATIONS_TABLE;
    let table = if transaction.dialect() == Dialect::Postgres { postgres } else { sqlite };
    transaction.command(table).await?;
    let applied = read_applied(transaction.connection()).await?;
    if is_applied(step, &applied)? {
        transaction.roll_back().await?;
        return Ok(applied);
    }
    let failed = |error| StoreError::Migration(MigrateError::ExecuteMigration(error, step.version));
    let script = text.split_once(OBSOLETE_INDEX).map_or(text, |(script, _)| script);
    transaction.command(script).await.map_err(failed)?;
    let mut sql = transaction.sql();
    sql.push("INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (");
    sql.bind(step.version).push(", ").bind(&*step.description).push(", TRUE, ").bind(step.checksum.to_vec());
    sql.push(", ").bind(i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX)).push(")");
    transaction.execute(sql).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(applied)
}

/// Refuses a database that was not migrated to [`NEEDED`].
pub(crate) async fn require_served(reader: &mut PooledConnection) -> Result<(), StoreError> {
    let found = version(reader).await?;
    if found >= NEEDED {
        return Ok(());
    }
    let mut sql = reader.sql();
    sql.push("SELECT max(version) FROM _sqlx_migrations WHERE success");
    // Below its first migration a database has no such table.
    let last = if found == 0 { None } else { reader.fetch_one(sql).await?.get::<Option<i64>>(0)? };
    if last >= Some(NEEDED) { Ok(()) } else { Err(StoreError::SchemaOlder { found, wanted: NEEDED }) }
}

/// The version that a database is at: that of a newer program if it has one, otherwise the last migration before the
/// first one that it lacks; 0 before its first.
pub(crate) async fn version(reader: &mut PooledConnection) -> Result<i64, sqlx::Error> {
    if !has_migrations(reader).await? {
        return Ok(0);
    }
    let mut sql = reader.sql();
    sql.push("SELECT coalesce(max(m.version), 0) FROM _sqlx_migrations m WHERE m.success AND (m.version > ");
    sql.bind(NEWEST).push(" OR m.version = (SELECT count(*) FROM _sqlx_migrations b WHERE b.success ");
    sql.push("AND b.version <= m.version))");
    reader.fetch_one(sql).await?.get(0)
}

/// Whether a migration was ever applied.
pub(super) async fn has_migrations(reader: &mut PooledConnection) -> Result<bool, sqlx::Error> {
    let mut sql = reader.sql();
    sql.push_either(
        "SELECT to_regclass('_sqlx_migrations') IS NOT NULL",
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = '_sqlx_migrations')",
    );
    reader.fetch_one(sql).await?.get(0)
}
