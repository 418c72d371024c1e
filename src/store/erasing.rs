//! Erases the database of an account: formgate's tables and the documented plain ones, never those of others.
//!
//! On Postgres, these are dropped in one transaction with the functions, and the schema if formgate created it and nothing is left
//! in it. On SQLite, the file is removed with the files next to it; if it has tables of others, they stay, and the rest of the file
//! is overwritten. Whatever of others needs our tables, such as a view, is named and refuses all of it.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use sqlx::AssertSqlSafe;
use tokio::time::timeout;

use super::engine::{BESIDE, Database, DatabaseLocation, PooledConnection, next_to};
use super::identity::DatabaseIdentity;
use super::statement::{Dialect, Sql, TextList, sql};
use super::{PhysicalId, StoreError, schema};

/// How long looking at a database may take.
///
/// Larger: a call whose database hangs takes longer. Smaller: a slow database can't be erased.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// How long dropping tables waits for programs that read or write them.
///
/// Larger: readers that come meanwhile wait behind it for longer. Smaller: the call has to be repeated while a program has a long
/// transaction.
const LOCK_WAIT: &str = "10s";

/// What the shadow tables of the only virtual table begin with.
const SHADOWS: &str = "listed_trigrams_";

/// What the tables begin with that Litestream adds to each file. They have nothing of the account.
const LITESTREAM: &str = "_litestream_";

/// Why a database is not erased.
#[derive(Debug, thiserror::Error)]
pub enum NotErasable {
    /// Something that is not formgate's needs its tables.
    #[error("what is not formgate's needs its tables: {}; drop that first", .0.join(", "))]
    Needed(Vec<String>),
    /// Its role may not drop the tables.
    #[error("the role of the database does not own the tables {}: only their owner may drop them", .0.join(", "))]
    NotOwned(Vec<String>),
    /// Its file is on another machine.
    #[error("the file `{file}` is not on this machine, and other nodes are live: erase it where it is")]
    NotHere {
        /// The file.
        file: String,
    },
    /// A file can't be removed.
    #[error("the file `{file}` can't be removed")]
    File {
        /// The file.
        file: String,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for NotErasable {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// What is in a database that is to be erased.
#[derive(Clone, Debug, Default)]
pub struct ErasableDatabase {
    /// Its identity; `None` if it has no tables of formgate.
    pub identity: Option<DatabaseIdentity>,
    /// Which one it is, on Postgres.
    pub physical_id: Option<PhysicalId>,
    /// Its tokens.
    pub tokens: Vec<i64>,
    /// The databases into which backups of it were restored.
    pub restored: BTreeSet<String>,
}

/// What was erased of a database, and what was not, in words.
#[derive(Clone, Debug, Default)]
pub struct ErasedDatabase {
    /// What was erased.
    pub erased: Vec<String>,
    /// What stays.
    pub kept: Vec<String>,
}

/// Looks whether a database can be erased. Changes nothing.
///
/// # Errors
/// [`NotErasable`].
pub async fn look_before_erasing(location: &DatabaseLocation) -> Result<ErasableDatabase, NotErasable> {
    if location.file().is_some_and(|file| file.try_exists().is_ok_and(|exists| !exists)) {
        return Ok(ErasableDatabase::default());
    }
    location.require_writable()?;
    let database = location.connect_for_maintenance();
    let looked = timeout(LOOK_LIMIT, look(&database)).await.unwrap_or_else(|_| Err(StoreError::timed_out().into()));
    database.close().await;
    looked
}

async fn look(database: &Database) -> Result<ErasableDatabase, NotErasable> {
    let mut reader = database.reader().await?;
    if !schema::is_of_tenant(&mut reader).await? {
        return Ok(ErasableDatabase::default());
    }
    let needed = match reader.dialect() {
        Dialect::Postgres => {
            refuse_not_owned(&mut reader).await?;
            needed_on_postgres(&mut reader).await?
        }
        Dialect::Sqlite => others(&mut reader).await?.into_iter().filter_map(|other| other.needs).collect(),
    };
    if !needed.is_empty() {
        return Err(NotErasable::Needed(needed));
    }
    let (identity, physical_id) = DatabaseIdentity::read(&mut reader).await?;
    let tokens = reader.fetch_all(sql!("SELECT id FROM tokens {scans: accounts are seldom erased}")).await?;
    let tokens = tokens.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    let sql =
        sql!("SELECT details FROM audit_log WHERE action = 'tenant.restored' {scans: accounts are seldom erased}");
    let details: Vec<String> = reader.fetch_all(sql).await?.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    let of = |details: &String| Some(serde_json::from_str::<Value>(details).ok()?["database"].as_str()?.to_owned());
    let restored = details.iter().filter_map(of).collect();
    Ok(ErasableDatabase { identity: Some(identity), physical_id, tokens, restored })
}

/// Erases a database. On Postgres, only if it is still the one that was looked at: with its tables gone, another account's may be
/// the next ones on the search path.
///
/// # Errors
/// [`NotErasable`]. Then either all of it is there, or the call can be repeated.
pub async fn erase(location: &DatabaseLocation, looked_at: Option<&str>) -> Result<ErasedDatabase, NotErasable> {
    if let Some(file) = location.file() {
        return erase_file(location, file).await;
    }
    let database = location.connect_for_maintenance();
    let erased = drop_on_postgres(&database, looked_at).await;
    database.close().await;
    erased
}

/// The tables of the schema that has ours.
const OURS: &str = "(SELECT relnamespace FROM pg_class WHERE oid = to_regclass('database_identity'))";

async fn refuse_not_owned(reader: &mut PooledConnection) -> Result<(), NotErasable> {
    let tables: TextList = schema::tables(Dialect::Postgres).collect();
    let sql = sql!(
        "{pg: SELECT relname::text FROM pg_class
         WHERE relnamespace = {+ours} AND relkind IN ('r', 'p') AND relname {in tables} AND NOT pg_has_role(relowner, 'USAGE')
         ORDER BY relname}",
        ours = Sql::text(OURS),
        tables,
    );
    let rows = reader.fetch_all(sql).await?;
    let not_owned: Vec<String> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    if not_owned.is_empty() { Ok(()) } else { Err(NotErasable::NotOwned(not_owned)) }
}

/// Views, foreign keys and tables of others that need our tables, and triggers of others that call our functions.
async fn needed_on_postgres(reader: &mut PooledConnection) -> Result<Vec<String>, NotErasable> {
    let tables: TextList = schema::tables(Dialect::Postgres).collect();
    let sql = sql!(
        "{pg: WITH ours AS MATERIALIZED (
           SELECT oid FROM pg_class
           WHERE relnamespace = {+ours} AND relkind IN ('r', 'p') AND relname {in tables}),
         functions AS MATERIALIZED (
           SELECT oid FROM pg_proc WHERE pronamespace = {+ours} AND starts_with(proname, 'formgate_'))
         SELECT pg_describe_object('pg_class'::regclass, ev_class, 0) AS needed
           FROM pg_depend JOIN pg_rewrite r ON classid = 'pg_rewrite'::regclass AND objid = r.oid
           WHERE (refclassid = 'pg_class'::regclass AND refobjid IN (SELECT oid FROM ours)
               OR refclassid = 'pg_proc'::regclass AND refobjid IN (SELECT oid FROM functions))
             AND ev_class NOT IN (SELECT oid FROM ours)
         UNION SELECT pg_describe_object('pg_constraint'::regclass, oid, 0) FROM pg_constraint
           WHERE contype = 'f' AND confrelid IN (SELECT oid FROM ours) AND conrelid NOT IN (SELECT oid FROM ours)
         UNION SELECT pg_describe_object('pg_class'::regclass, inhrelid, 0) FROM pg_inherits
           WHERE inhparent IN (SELECT oid FROM ours) AND inhrelid NOT IN (SELECT oid FROM ours)
         UNION SELECT pg_describe_object('pg_trigger'::regclass, oid, 0) FROM pg_trigger
           WHERE tgfoid IN (SELECT oid FROM functions) AND tgrelid NOT IN (SELECT oid FROM ours)
         ORDER BY needed}",
        ours = Sql::text(OURS),
        tables,
    );
    let rows = reader.fetch_all(sql).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
}

/// Drops our functions, and then the schema in the setting `formgate.schema` if formgate created it and nothing is left in it.
const DROP_REST: &str = "DO $$
DECLARE
  function regprocedure;
  namespace oid := current_setting('formgate.namespace')::oid;
BEGIN
  FOR function IN SELECT oid FROM pg_proc WHERE pronamespace = namespace AND starts_with(proname, 'formgate_') LOOP
    EXECUTE format('DROP ROUTINE %s', function);
  END LOOP;
  IF obj_description(namespace, 'pg_namespace') = 'Created by formgate'
    AND pg_has_role((SELECT nspowner FROM pg_namespace WHERE oid = namespace), 'USAGE')
    AND NOT EXISTS (SELECT FROM pg_depend
      WHERE refclassid = 'pg_namespace'::regclass AND refobjid = namespace AND deptype IN ('n', 'a')) THEN
    EXECUTE format('DROP SCHEMA %s', namespace::regnamespace);
    PERFORM set_config('formgate.namespace', '', true);
  END IF;
END
$$";

async fn drop_on_postgres(database: &Database, looked_at: Option<&str>) -> Result<ErasedDatabase, NotErasable> {
    let mut kept = vec![
        "the Postgres database itself and its role, which formgate did not create".to_owned(),
        "dead rows, the write-ahead log, replicas and backups of the Postgres server, until it removes them".to_owned(),
    ];
    let mut reader = database.reader().await?;
    let is_there = match looked_at {
        Some(looked_at) if schema::is_of_tenant(&mut reader).await? => {
            let (_, found) = DatabaseIdentity::read(&mut reader).await?;
            found.is_some_and(|found| found.to_string() == looked_at)
        }
        _ => false,
    };
    if !is_there {
        return Ok(ErasedDatabase { erased: Vec::new(), kept });
    }
    let sql = sql!(
        "{pg: SELECT oid::bigint, quote_ident(nspname) FROM pg_namespace WHERE oid = {+ours}}",
        ours = Sql::text(OURS),
    );
    let row = reader.fetch_one(sql).await?;
    let (oid, namespace): (i64, String) = (row.get(0)?, row.get(1)?);
    let wanted: TextList = schema::tables(Dialect::Postgres).collect();
    let sql = sql!(
        "{pg: SELECT relname::text FROM pg_class
         WHERE relnamespace = {+ours} AND relkind IN ('r', 'p') AND relname {in wanted} ORDER BY relname}",
        ours = Sql::text(OURS),
        wanted,
    );
    let rows = reader.fetch_all(sql).await?;
    let tables: Vec<String> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    drop(reader);
    let mut transaction = database.begin().await?;
    let sql = sql!(
        "{pg: SELECT set_config('lock_timeout', {wait}, true), set_config('formgate.namespace', {oid}, true)}",
        wait = LOCK_WAIT,
        oid = oid.to_string(),
    );
    transaction.fetch_all(sql).await?;
    // Names of our own, which need no quotes, but for the schema.
    let names: Vec<_> = tables.iter().map(|table| format!("{namespace}.{table}")).collect();
    let dropped = transaction.command(AssertSqlSafe(format!("DROP TABLE {}", names.join(", ")))).await;
    dropped.map_err(needed_or_other)?;
    transaction.command(DROP_REST).await.map_err(needed_or_other)?;
    let sql = sql!("{pg: SELECT current_setting('formgate.namespace') = ''}");
    let is_schema_dropped: bool = transaction.connection().fetch_one(sql).await?.get(0)?;
    transaction.commit().await?;
    let mut erased: Vec<_> = tables.into_iter().map(|table| format!("the table {table}")).collect();
    erased.push("the functions and triggers of formgate".to_owned());
    match is_schema_dropped {
        true => erased.push(format!("the schema {namespace}")),
        false => kept.push(format!("the schema {namespace}, and what is not formgate's in it")),
    }
    Ok(ErasedDatabase { erased, kept })
}

/// Something that depends on a table was created since the database was looked at.
fn needed_or_other(error: sqlx::Error) -> NotErasable {
    match error.as_database_error() {
        Some(cause) if cause.code().as_deref() == Some("2BP01") => {
            NotErasable::Needed(vec![cause.message().to_owned()])
        }
        _ => error.into(),
    }
}

/// Something in a SQLite file that is not ours.
struct OtherObject {
    /// Its kind and name, if it needs one of our tables.
    needs: Option<String>,
}

/// Lists the objects of a SQLite file that are neither formgate's tables nor part of them.
async fn others(reader: &mut PooledConnection) -> Result<Vec<OtherObject>, NotErasable> {
    let ours: BTreeSet<&str> = schema::tables(Dialect::Sqlite).collect();
    let sql = sql!("{lite: SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema ORDER BY name}");
    let mut others = Vec::new();
    for row in reader.fetch_all(sql).await? {
        let (kind, name, table, text): (String, String, String, String) =
            (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        if ours.contains(&*table)
            || table.starts_with(SHADOWS)
            || name.starts_with("sqlite_")
            || table.starts_with(LITESTREAM)
        {
            continue;
        }
        let lower = text.to_ascii_lowercase();
        let words: Vec<_> =
            lower.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
        let needs = match kind.as_str() {
            "table" => words.windows(2).any(|pair| pair[0] == "references" && ours.contains(pair[1])),
            // Of these, SQLite says only the text.
            _ => words.iter().any(|word| ours.contains(word)),
        };
        others.push(OtherObject { needs: needs.then(|| format!("{kind} {name}")) });
    }
    Ok(others)
}

async fn erase_file(location: &DatabaseLocation, file: &Path) -> Result<ErasedDatabase, NotErasable> {
    let mut report = ErasedDatabase::default();
    report.kept.push("backups and replicas of the file, such as those of Litestream".to_owned());
    let exists = file.try_exists().map_err(|cause| not_removed(file, cause))?;
    let beside = if exists { drop_if_beside_others(location).await? } else { None };
    if let Some(Overwritten(is_overwritten)) = beside {
        report.erased.extend(schema::tables(Dialect::Sqlite).map(|table| format!("the table {table}")));
        report.kept.push(format!("the tables of others in the file {}", file.display()));
        if !is_overwritten {
            report.kept.push(format!(
                "what the dropped tables had, in the file {} and its write-ahead log: a program such as Litestream reads them all the \
                 time; stop it, and run `VACUUM; PRAGMA wal_checkpoint(TRUNCATE)` there",
                file.display()
            ));
        }
        return Ok(report);
    }
    let path = file.to_owned();
    let removed = tokio::task::spawn_blocking(move || remove_files(&path)).await;
    let removed = removed.unwrap_or_else(|ended| std::panic::resume_unwind(ended.into_panic()))?;
    if removed.is_empty() {
        report.kept.push(format!("the file {} if another machine has it: this one does not", file.display()));
    }
    report.erased.extend(removed.into_iter().map(|file| format!("the file {file}")));
    Ok(report)
}

/// Whether what our tables had is in no file any more.
struct Overwritten(bool);

/// If a file has tables of others, drops ours and overwrites what they were.
async fn drop_if_beside_others(location: &DatabaseLocation) -> Result<Option<Overwritten>, NotErasable> {
    let database = location.connect_for_maintenance();
    let dropped = drop_beside_others(&database).await;
    database.close().await;
    dropped
}

async fn drop_beside_others(database: &Database) -> Result<Option<Overwritten>, NotErasable> {
    let mut writer = database.writer().await?;
    let others = others(&mut writer).await?;
    if others.is_empty() {
        return Ok(None);
    }
    let needed: Vec<_> = others.into_iter().filter_map(|other| other.needs).collect();
    if !needed.is_empty() {
        return Err(NotErasable::Needed(needed));
    }
    if schema::is_of_tenant(&mut writer).await? {
        let drops: String =
            schema::tables(Dialect::Sqlite).rev().map(|table| format!("DROP TABLE IF EXISTS {table};")).collect();
        // Without foreign keys, dropping a table does not look for rows that refer to it.
        let text = format!("PRAGMA foreign_keys = OFF; PRAGMA secure_delete = ON; BEGIN IMMEDIATE; {drops} COMMIT");
        writer.command(AssertSqlSafe(text)).await?;
    }
    // Also after a crash in between.
    writer.command("VACUUM").await?;
    drop(writer);
    Ok(Some(Overwritten(database.empty_log().await?)))
}

/// Removes a database with the files next to it, and returns those that there were. The database goes last, so that this can be
/// repeated after a crash. Its content goes first, since the file may have another name.
fn remove_files(database: &Path) -> Result<Vec<String>, NotErasable> {
    let mut removed = Vec::new();
    let target = fs::canonicalize(database).unwrap_or_else(|_| database.to_owned());
    let beside = BESIDE.map(|end| next_to(database, end));
    for file in beside.iter().map(|file| &**file).chain([&*target, database]) {
        match remove_file(file, file == target) {
            Ok(true) => removed.push(file.display().to_string()),
            Ok(false) => {}
            Err(cause) => return Err(not_removed(file, cause)),
        }
    }
    Ok(removed)
}

/// Returns whether there was a file.
fn remove_file(file: &Path, is_emptied: bool) -> io::Result<bool> {
    let emptied =
        if is_emptied { OpenOptions::new().write(true).open(file).and_then(|file| file.set_len(0)) } else { Ok(()) };
    match emptied.and_then(|()| fs::remove_file(file)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn not_removed(file: &Path, cause: io::Error) -> NotErasable {
    NotErasable::File { file: file.display().to_string(), cause }
}
