//! The schema and its versions, built into the program.
//!
//! One list of migrations a database, the same numbers in both; [`SERVED`] is the one that this program serves from. Those
//! after it take away what only nodes of an older version read. A released migration never changes: sqlx keeps a checksum
//! of each and refuses a database whose past differs.

use std::borrow::Cow;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{Connection, SqlSafeStr};

use super::StoreError;
use super::lent::Lent;
use super::session::Session;

/// The oldest schema that this program serves from.
pub(crate) const SERVED: i64 = 10;

/// The newest schema that this program knows.
#[expect(clippy::cast_possible_wrap, reason = "the list is short")]
pub(crate) const NEWEST: i64 = POSTGRES.len() as i64;

const POSTGRES: [(&str, &str); 11] = [
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
];
const SQLITE: [(&str, &str); 11] = [
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
];

fn migrator(scripts: &'static [(&'static str, &'static str)], through: usize) -> Migrator {
    let migrations = (1..).zip(&scripts[..through]).map(|(version, &(name, text))| {
        Migration::new(version, Cow::Borrowed(name), MigrationType::Simple, text.into_sql_str(), false)
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    // A node of the old version may start again beside a newer schema while nodes are replaced one by one.
    migrator.set_ignore_missing(true);
    migrator
}

/// How far a database is migrated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// As far as this program needs, so that nodes of the version before can go on; a new database as far as it goes.
    Served,
    /// As far as it goes: no node of an older version can serve any more.
    Newest,
}

/// Migrates a database; each step is a transaction, and commands that do it at once wait for each other.
pub(crate) async fn migrate(writer: &mut Lent, reach: Reach) -> Result<(), sqlx::migrate::MigrateError> {
    let is_new = version(writer).await? == 0;
    let through =
        if is_new || reach == Reach::Newest { POSTGRES.len() } else { usize::try_from(SERVED).expect("it is small") };
    match writer.session() {
        Session::Postgres(connection) => migrator(&POSTGRES, through).run(connection).await,
        Session::Sqlite { connection, .. } => {
            // On Postgres sqlx holds a lock of its own; here the write lock of the file is one, over all steps at once.
            let mut all = connection.begin_with("BEGIN IMMEDIATE").await?;
            migrator(&SQLITE, through).run(&mut *all).await?;
            Ok(all.commit().await?)
        }
    }
}

/// Refuses a database that was not migrated to [`SERVED`].
pub(crate) async fn require_served(reader: &mut Lent) -> Result<(), StoreError> {
    let found = version(reader).await?;
    if found < SERVED { Err(StoreError::SchemaOlder { found, wanted: SERVED }) } else { Ok(()) }
}

/// The version that a database is at; 0 before its first migration.
pub(crate) async fn version(reader: &mut Lent) -> Result<i64, sqlx::Error> {
    let mut sql = reader.sql();
    sql.push_either(
        "SELECT to_regclass('_sqlx_migrations') IS NOT NULL",
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = '_sqlx_migrations')",
    );
    if !reader.fetch_one(sql).await?.get::<bool>(0)? {
        return Ok(0);
    }
    let mut sql = reader.sql();
    sql.push("SELECT coalesce(max(version), 0) FROM _sqlx_migrations WHERE success");
    reader.fetch_one(sql).await?.get(0)
}
