//! On SQLite: finds other programs' objects in the file, and removes the file, or only our tables if there are such objects.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use sqlx::AssertSqlSafe;

use super::{ErasedDatabase, NotErasable};
use crate::store::engine::{BESIDE, Database, DatabaseLocation, PooledConnection, next_to};
use crate::store::schema;
use crate::store::statement::{Dialect, sql};

/// What the shadow tables of the only virtual table begin with.
const SHADOWS: &str = "listed_trigrams_";

/// What the tables begin with that Litestream adds to each file. They have nothing of the account.
const LITESTREAM: &str = "_litestream_";

/// Something in a SQLite file that is not ours.
pub(super) struct OtherObject {
    /// Its kind and name, if it needs one of our tables.
    pub(super) needs: Option<String>,
}

/// Lists the objects of a SQLite file that are neither formgate's tables nor part of them.
pub(super) async fn others(reader: &mut PooledConnection) -> Result<Vec<OtherObject>, NotErasable> {
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

pub(super) async fn erase(location: &DatabaseLocation, file: &Path) -> Result<ErasedDatabase, NotErasable> {
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
