//! Moves the data of an account from one database to another, of either kind, while programs write to it.
//!
//! Nothing here decides when: [`crate::moving`] does. A move has these steps, each of which can be repeated after a crash:
//!
//! 1. [`Moving::prepare`] creates the tables of the target and takes their triggers and foreign keys away, so that rows can
//!    come in any order; then triggers in the source note what is written (`capture`).
//! 2. [`Moving::copy_some`] copies every table by its key, in short transactions. What changes behind it is noted.
//! 3. [`Moving::catch_up`] applies notes: deletes the noted rows from the target and inserts those that the source has, as
//!    one snapshot of the source shows them. After all notes, the target is that snapshot, and both sides are compared.
//! 4. [`Moving::switch`] locks the source, applies the rest, compares, gives the target its triggers back and commits it.
//!    [`Locked::commit`] has the source refuse writes: before that commit the account is in the source, from then on in the
//!    target.
//! 5. [`Moving::finish`] removes what the move needed; [`Moving::undo`] does so for one that is given up.
//!
//! `mark` is the row in both databases that names the move and keeps a node out that lost its lease. `table` has the tables
//! and their statements, `value` converts types, `numbering` continues the numbers of ids, `refusing` is what the source says
//! afterwards.

mod capture;
mod mark;
mod numbering;
mod refusing;
mod table;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value as Json;
use sqlx::AssertSqlSafe;

use self::capture::Note;
use self::mark::Role;
use self::table::{MovedTable, TABLES, TableDigest, Values, bound};
use self::value::Value;
use super::audit::{self, Actor, AuditEntry};
use super::derived::settle::{self, keyword_indexes};
use super::engine::{Database, DatabaseLocation, PooledConnection, Transaction, is_denied};
use super::schema::{PLAIN_TABLES, dressing, stripping, validating};
use super::statement::{Dialect, Sql};
use super::{DatabaseIdentity, Reach, StoreError, migrate, schema, with_causes};
use crate::metrics::DatabaseFailure;

/// How many rows are copied at once at first, and at most. The number doubles while they are short.
///
/// Larger: rows with long texts take more memory. Smaller: more round trips.
const FIRST_ROWS: u32 = 50;
const MOST_ROWS: u32 = 2_000;

/// Rows that are shorter than this together are followed by twice as many.
const SHORT: usize = 512 * 1024;

/// How many rows are looked up by their keys at once.
///
/// Larger: rows with long texts take more memory. Smaller: more round trips while requests wait.
const KEYS_AT_ONCE: usize = 200;

/// Up to how many rows an account is compared as a whole while its requests wait. Of a larger one, the rows are compared that
/// changed since all of it was compared.
///
/// Larger: requests wait for longer. Smaller: for fewer accounts is what no trigger notes found in the last moment too.
const COMPARED_AT_ONCE: u64 = 20_000;

/// How many notes may be left when the source is locked.
///
/// Larger: requests wait for longer. Smaller: accounts with many writers are never caught up with.
const FEW: usize = 3_000;

/// Which move it is.
#[derive(Clone, Debug)]
pub struct MoveMark {
    /// Its number in the registry.
    pub id: i64,
    /// That of the lease.
    pub fence: i64,
    /// The identity that is stored in the account's database.
    pub identity: String,
    /// Where the account goes, for people: without a password.
    pub place: String,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// A database could not be used. A later try may succeed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another node has the move.
    #[error("another node carries the move out")]
    Lost,
    /// The source is locked by others, or too much was written in the last moment. A later try may succeed.
    #[error("{0}")]
    Busy(&'static str),
    /// A row can't be in the target.
    #[error("Postgres can't have the row {key} of `{table}`: {what}")]
    Unfit {
        /// The table.
        table: &'static str,
        /// The key, as a JSON array.
        key: String,
        /// Why not.
        what: &'static str,
    },
    /// The role may not create triggers.
    #[error(
        "the role of the account's database has to own its tables, to note what is written while they are copied: {0}"
    )]
    Denied(String),
    /// The target is not empty.
    #[error("the target has rows that no earlier move of this account left")]
    TargetInUse,
}

impl From<sqlx::Error> for MoveError {
    fn from(error: sqlx::Error) -> Self {
        if is_denied(&error) {
            return Self::Denied(with_causes(&error));
        }
        match DatabaseFailure::of(&error) {
            Some(DatabaseFailure::Locked) => Self::Busy("another program locks a table"),
            Some(DatabaseFailure::Collision) => Self::Busy("another transaction was in the way"),
            _ => Self::Store(error.into()),
        }
    }
}

impl MoveError {
    /// Whether the move can never succeed.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Self::Unfit { .. } | Self::Denied(_) | Self::TargetInUse => true,
            Self::Lost | Self::Busy(_) => false,
            Self::Store(error) => matches!(
                error,
                StoreError::Statement(_)
                    | StoreError::ReadOnly(_)
                    | StoreError::Folder { .. }
                    | StoreError::OfOtherKind { .. }
                    | StoreError::SchemaNewer { .. }
                    | StoreError::SchemaUnreleased
            ),
        }
    }
}

/// What a database has that an account is to be moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// Nothing of an account.
    Empty,
    /// What an earlier move of this account left.
    Left,
    /// Something else.
    InUse,
}

/// How far the target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaughtUp {
    /// Much was written meanwhile: again.
    No,
    /// Little is left, and both sides were the same.
    Yes,
}

/// A move between two databases.
#[derive(Debug)]
pub struct Moving {
    source: Database,
    target: Database,
    target_location: DatabaseLocation,
    mark: MoveMark,
    /// The tables that are copied whole in the next round, since they differed.
    whole: BTreeSet<&'static str>,
    /// What was applied to the target while the source was locked in vain.
    redone: Vec<Note>,
    /// The target has its triggers and foreign keys.
    is_dressed: bool,
    /// How many rows both sides had when they were compared.
    rows: u64,
    rows_at_once: u32,
}

/// The locked source, once the target has everything.
#[derive(Debug)]
pub struct Locked(Transaction);

impl Locked {
    /// Has the source refuse writes: from now on, the account is in the target.
    ///
    /// # Errors
    /// [`MoveError::Store`]. The commit may have been made nevertheless: see [`Moving::has_left`].
    pub async fn commit(self) -> Result<(), MoveError> {
        Ok(self.0.commit().await.map_err(StoreError::from)?)
    }
}

impl Moving {
    /// Opens nothing yet.
    #[must_use]
    pub fn new(source: &DatabaseLocation, target: &DatabaseLocation, mark: MoveMark) -> Self {
        Self {
            source: source.connect_to_move_from(),
            target: target.connect_to_move_to(),
            target_location: target.clone(),
            mark,
            whole: BTreeSet::new(),
            redone: Vec::new(),
            // Of an earlier try, perhaps.
            is_dressed: true,
            rows: 0,
            rows_at_once: FIRST_ROWS,
        }
    }

    /// Closes both databases.
    pub async fn close(&self) {
        self.source.close().await;
        self.target.close().await;
    }

    /// Whether the account has left the source by this move.
    ///
    /// # Errors
    /// [`MoveError::Store`].
    pub async fn has_left(&self) -> Result<bool, MoveError> {
        let found = mark::find(&mut self.source.reader().await?).await?;
        Ok(found.is_some_and(|found| found.id == self.mark.id && found.role == Role::Left))
    }

    /// Prepares both sides. What an earlier move left in the target is removed.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn prepare(&mut self) -> Result<(), MoveError> {
        self.target_location.create_file()?;
        let found = mark::find(&mut self.target.reader().await?).await?;
        let is_ours = found.as_ref().is_some_and(|found| found.identity == self.mark.identity);
        if is_ours {
            // Otherwise the migration could not write.
            let mut transaction = self.target.begin().await?;
            transaction.command(AssertSqlSafe(refusing::ending(self.target.dialect()))).await?;
            transaction.commit().await?;
        } else if target_state(&mut self.target.reader().await?, &self.mark.identity).await? == TargetState::InUse {
            return Err(MoveError::TargetInUse);
        }
        if !found.is_some_and(|found| is_ours && found.id == self.mark.id && found.role == Role::Target) {
            migrate(&self.target_location, Reach::Served).await?;
            self.empty_target().await?;
        }
        self.strip().await?;
        let found = mark::find(&mut self.source.reader().await?).await?;
        if found.is_none_or(|found| found.id != self.mark.id) {
            let mut transaction = self.source.begin().await?;
            mark::put(&mut transaction, &self.mark, Role::Source).await?;
            transaction.commit().await?;
        }
        capture::begin(&self.source).await
    }

    async fn empty_target(&mut self) -> Result<(), MoveError> {
        let dialect = self.target.dialect();
        let mut transaction = self.target.begin().await?;
        transaction.command(AssertSqlSafe(stripping(dialect))).await?;
        // Of a move from here.
        transaction.command(AssertSqlSafe(capture::ending(dialect))).await?;
        match dialect {
            Dialect::Postgres => {
                let names: Vec<_> = TABLES.iter().map(|table| table.name).collect();
                transaction.command(AssertSqlSafe(format!("TRUNCATE {}", names.join(", ")))).await?;
            }
            Dialect::Sqlite => {
                transaction.command("INSERT INTO listed_trigrams (listed_trigrams) VALUES ('delete-all')").await?;
                for table in &*TABLES {
                    transaction.execute(table.delete_all(dialect)).await?;
                }
            }
        }
        keyword_indexes::drop_if_empty(&mut transaction).await?;
        mark::put(&mut transaction, &self.mark, Role::Target).await?;
        transaction.command("DROP TABLE IF EXISTS formgate_move_tables").await?;
        let progress =
            "CREATE TABLE formgate_move_tables (relation text PRIMARY KEY, after_key text, is_copied boolean)";
        transaction.command(progress).await?;
        Ok(transaction.commit().await?)
    }

    /// Takes the triggers and foreign keys of the target away.
    async fn strip(&mut self) -> Result<(), MoveError> {
        if self.is_dressed {
            let mut transaction = self.begin_target().await?;
            transaction.command(AssertSqlSafe(stripping(self.target.dialect()))).await?;
            transaction.commit().await?;
            self.is_dressed = false;
        }
        Ok(())
    }

    async fn begin_target(&self) -> Result<Transaction, MoveError> {
        // Tables that were empty a moment ago have no statistics.
        let begin = "BEGIN; SET LOCAL enable_seqscan = off";
        let mut transaction = self.target.begin_with(begin, Duration::MAX, Instant::now()).await?;
        mark::take(&mut transaction, &self.mark).await?;
        Ok(transaction)
    }

    /// Copies some rows. Returns whether all tables are copied.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn copy_some(&mut self) -> Result<bool, MoveError> {
        let Some((table, after)) = self.next_table().await? else { return Ok(true) };
        let limit = self.rows_at_once;
        let mut reader = self.source.reader().await?;
        let sql = table.select_after(reader.dialect(), after.as_deref(), limit);
        let (rows, bytes) = read_rows(&mut reader, table, sql).await?;
        drop(reader);
        let dialect = self.target.dialect();
        let mut transaction = self.begin_target().await?;
        for insert in table.inserts(dialect, &rows)? {
            transaction.execute(insert).await?;
        }
        let is_last = rows.len() < limit as usize;
        if is_last && table.name == DOCUMENTS && dialect == Dialect::Sqlite {
            transaction.command(REBUILD).await?;
        }
        let last = rows.last().map(|row| noted(&table.key_of(row)));
        note_progress(&mut transaction, table.name, last, is_last).await?;
        transaction.commit().await?;
        self.rows_at_once = if bytes < SHORT { (limit * 2).min(MOST_ROWS) } else { (limit / 2).max(FIRST_ROWS) };
        Ok(false)
    }

    /// The first table that is not copied, and the key of its last row that is.
    async fn next_table(&self) -> Result<Option<(&'static MovedTable, Option<Vec<Value>>)>, MoveError> {
        let mut reader = self.target.reader().await?;
        let rows =
            reader.fetch_all(Sql::text("SELECT relation, after_key, is_copied FROM formgate_move_tables")).await?;
        let mut begun: BTreeMap<String, (Option<String>, bool)> = BTreeMap::new();
        for row in &rows {
            begun.insert(row.get(0)?, (row.get(1)?, row.get(2)?));
        }
        let mut open = TABLES.iter().filter(|table| table.has_key());
        let next = open.find(|table| begun.get(table.name).is_none_or(|(_, is_copied)| !is_copied));
        Ok(next.map(|table| {
            let after = begun.get(table.name).and_then(|(after, _)| table.key_of_note(after.as_deref()?));
            (table, after)
        }))
    }

    /// Creates the indexes that are faster to create than to fill, and gathers statistics.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn index(&self) -> Result<(), MoveError> {
        settle::create_indexes(&self.target).await?;
        if self.target.dialect() == Dialect::Postgres {
            let names: Vec<_> = TABLES.iter().map(|table| table.name).collect();
            let mut transaction = self.target.begin().await?;
            transaction.command(AssertSqlSafe(format!("ANALYZE {}", names.join(", ")))).await?;
            transaction.commit().await?;
        }
        Ok(())
    }

    /// Applies notes, as one snapshot of the source shows them. Once few are left, derives from what was written to the source,
    /// and compares both sides.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn catch_up(&mut self) -> Result<CaughtUp, MoveError> {
        self.strip().await?;
        let mut reader = self.source.reader().await?;
        reader.begin_reading().await?;
        let mut notes = capture::read(&mut reader).await?;
        let are_all = notes.len() < capture::NOTES_AT_ONCE as usize;
        let are_few = are_all && notes.len() < FEW;
        let mut transaction = self.begin_target().await?;
        notes.append(&mut self.redone);
        let whole = std::mem::take(&mut self.whole);
        let open = apply(&mut reader, &mut transaction, &notes, &whole).await?;
        // All rows are read for that, so not before it is likely to be the last time.
        if are_few {
            let tables = TABLES.iter().filter(|table| table.has_key());
            (self.whole, self.rows) = compare(&mut reader, transaction.connection(), tables).await?;
        }
        let is_same = are_few && self.whole.is_empty();
        transaction.commit().await?;
        reader.end_transaction("COMMIT").await?;
        drop(reader);
        notes.retain(|note| !open.contains(note.table.as_str()));
        if !notes.is_empty() {
            let mut transaction = self.source.begin().await?;
            mark::take(&mut transaction, &self.mark).await?;
            transaction.execute(capture::removal(&notes)).await?;
            transaction.commit().await?;
        }
        Ok(if is_same { CaughtUp::Yes } else { CaughtUp::No })
    }

    /// Derives from what was written to the source, so that little is left to do while it is locked.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn settle(&self) -> Result<(), MoveError> {
        Ok(settle::settle_all(&self.source).await?)
    }

    /// Locks the source, applies the rest, compares both sides, and commits the target with its triggers and foreign keys. The
    /// audit log gets a row on both sides.
    ///
    /// # Errors
    /// [`MoveError`]; the source is as it was.
    pub async fn switch(&mut self, by: &Actor, entry: AuditEntry) -> Result<Locked, MoveError> {
        let begin = "BEGIN; SET LOCAL lock_timeout = '1s'";
        let mut source = self.source.begin_with(begin, Duration::MAX, Instant::now()).await.map_err(busy)?;
        if source.dialect() == Dialect::Postgres {
            // In the order in which programs write them, so that none waits for this and has this wait for it.
            let ours =
                TABLES.iter().map(|table| table.name).filter(|name| !PLAIN_TABLES.split(", ").any(|it| it == *name));
            let names: Vec<_> = [PLAIN_TABLES].into_iter().chain(ours).collect();
            source.command(AssertSqlSafe(format!("LOCK TABLE {} IN EXCLUSIVE MODE", names.join(", ")))).await?;
        }
        mark::take(&mut source, &self.mark).await?;
        audit::append(&mut source, by, entry, Timestamp::now()).await?;
        let notes = capture::read(source.connection()).await?;
        if notes.len() > 2 * FEW {
            return Err(MoveError::Busy("much was written in the last moment"));
        }
        let mut target = self.begin_target().await?;
        let keyless: BTreeSet<_> = TABLES.iter().filter(|table| !table.has_key()).map(|table| table.name).collect();
        apply(source.connection(), &mut target, &notes, &keyless).await?;
        let last = numbering::read(source.connection()).await?;
        numbering::write(&mut target, &last).await?;
        let differing = if self.rows <= COMPARED_AT_ONCE {
            compare(source.connection(), target.connection(), TABLES.iter()).await?.0
        } else {
            compare_noted(source.connection(), &mut target, &notes).await?
        };
        if !differing.is_empty() {
            self.whole = differing.into_iter().filter(|name| !keyless.contains(name)).collect();
            return Err(MoveError::Busy("both sides differed"));
        }
        target.command(AssertSqlSafe(dressing(target.dialect()))).await?;
        self.is_dressed = true;
        self.redone = notes;
        target.commit().await?;
        let refusal = refusing::beginning(source.dialect(), &self.mark.place);
        source.command(AssertSqlSafe(refusal)).await?;
        mark::leave(&mut source).await?;
        Ok(Locked(source))
    }

    /// Removes what the move needed, after the account has left the source. That the foreign keys of Postgres hold is checked.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn finish(&self) -> Result<(), MoveError> {
        if self.target.dialect() == Dialect::Postgres {
            for statement in validating() {
                let mut transaction = self.target.begin().await?;
                transaction.command(AssertSqlSafe(statement)).await?;
                transaction.commit().await?;
            }
        }
        let mut transaction = self.target.begin().await?;
        transaction.command("DROP TABLE IF EXISTS formgate_move; DROP TABLE IF EXISTS formgate_move_tables").await?;
        transaction.commit().await?;
        self.end_notes("").await
    }

    /// Removes what the move needed from the source, which keeps the account. The target is left as it is, and may be the
    /// target of a later move of the account.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn undo(&self) -> Result<(), MoveError> {
        self.end_notes("DROP TABLE IF EXISTS formgate_move").await
    }

    async fn end_notes(&self, further: &str) -> Result<(), MoveError> {
        let dialect = self.source.dialect();
        let ending = format!("{}{further}", capture::ending(dialect));
        match dialect {
            Dialect::Sqlite => {
                let mut transaction = self.source.begin().await?;
                transaction.command(AssertSqlSafe(ending)).await?;
                transaction.commit().await?;
            }
            // Each by itself: dropping a trigger waits for readers, and others behind it.
            Dialect::Postgres => {
                for statement in ending.split(";\n").filter(|statement| !statement.trim().is_empty()) {
                    let begin = "BEGIN; SET LOCAL lock_timeout = '1s'";
                    let mut transaction = self.source.begin_with(begin, Duration::MAX, Instant::now()).await?;
                    transaction.command(AssertSqlSafe(statement.to_owned())).await?;
                    transaction.commit().await?;
                }
            }
        }
        Ok(())
    }
}

/// That another program has the lock.
fn busy(error: StoreError) -> MoveError {
    match error {
        StoreError::Locked { .. } => MoveError::Busy("another program locks the file"),
        other => other.into(),
    }
}

/// What a database has that an account with this identity is to be moved to.
///
/// # Errors
/// [`StoreError`] if it can't be opened.
pub async fn look_at_target(
    location: &DatabaseLocation,
    identity: &DatabaseIdentity,
) -> Result<TargetState, StoreError> {
    if location.file().is_some_and(|file| !file.exists()) {
        return Ok(TargetState::Empty);
    }
    let database = location.connect_for_maintenance();
    let looked = async { target_state(&mut database.reader().await?, identity.as_str()).await };
    let looked = looked.await;
    database.close().await;
    match looked {
        Ok(state) => Ok(state),
        Err(MoveError::Store(error)) => Err(error),
        Err(_) => Err(StoreError::Busy),
    }
}

async fn target_state(reader: &mut PooledConnection, identity: &str) -> Result<TargetState, MoveError> {
    if let Some(found) = mark::find(reader).await? {
        return Ok(if found.identity == identity { TargetState::Left } else { TargetState::InUse });
    }
    if !schema::has_migrations(reader).await? {
        return Ok(TargetState::Empty);
    }
    schema::require_served(reader).await?;
    let filled = Sql::text(
        "SELECT EXISTS (SELECT 1 FROM users) OR EXISTS (SELECT 1 FROM forms) OR EXISTS (SELECT 1 FROM labels) \
         OR EXISTS (SELECT 1 FROM groups WHERE NOT built_in) OR EXISTS (SELECT 1 FROM tokens) \
         OR EXISTS (SELECT 1 FROM audit_log) OR EXISTS (SELECT 1 FROM subscriptions) OR EXISTS (SELECT 1 FROM admin_links)",
    );
    let is_filled: bool = reader.fetch_one(filled).await?.get(0)?;
    Ok(if is_filled { TargetState::InUse } else { TargetState::Empty })
}

/// The table that SQLite's keyword index is of.
const DOCUMENTS: &str = "listed_documents";
const REBUILD: &str = "INSERT INTO listed_trigrams (listed_trigrams) VALUES ('rebuild')";

/// A key as triggers note it.
fn noted(key: &[Value]) -> String {
    key.iter().map(Value::noted).collect::<Json>().to_string()
}

/// Rows, and how many bytes they have.
async fn read_rows(
    reader: &mut PooledConnection,
    table: &MovedTable,
    sql: Sql,
) -> Result<(Vec<Values>, usize), MoveError> {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    reader
        .fetch_each(sql, &mut |row| {
            bytes += row.bytes();
            rows.push(table.read(&row)?);
            Ok(())
        })
        .await?;
    Ok((rows, bytes))
}

async fn note_progress(
    transaction: &mut Transaction,
    table: &'static str,
    after: Option<String>,
    is_copied: bool,
) -> Result<(), MoveError> {
    let sql = [
        Sql::text("INSERT INTO formgate_move_tables AS known (relation, after_key, is_copied) VALUES ("),
        Sql::joined([bound(table), bound(after), bound(is_copied)], ", "),
        Sql::text(
            ") ON CONFLICT (relation) DO UPDATE SET after_key = coalesce(excluded.after_key, known.after_key), \
             is_copied = excluded.is_copied",
        ),
    ];
    transaction.execute(Sql::joined(sql, "")).await?;
    Ok(())
}

/// The keys that notes have of each table; none: the whole table.
fn by_table(notes: &[Note]) -> BTreeMap<&str, Option<BTreeSet<&str>>> {
    let mut noted: BTreeMap<&str, Option<BTreeSet<&str>>> = BTreeMap::new();
    for note in notes {
        let keys = noted.entry(&note.table).or_insert_with(|| Some(BTreeSet::new()));
        match (keys.as_mut(), &note.key) {
            (Some(keys), Some(key)) => _ = keys.insert(key),
            _ => *keys = None,
        }
    }
    noted
}

fn keys_of(table: &MovedTable, noted: &BTreeSet<&str>) -> Vec<Vec<Value>> {
    noted.iter().filter_map(|key| table.key_of_note(key)).collect()
}

/// Makes the noted rows of the target those that the reader sees, and all rows of the tables in `whole`. Returns the tables with
/// rows that could not be inserted yet.
async fn apply(
    reader: &mut PooledConnection,
    target: &mut Transaction,
    notes: &[Note],
    whole: &BTreeSet<&'static str>,
) -> Result<BTreeSet<&'static str>, MoveError> {
    let (noted, mut open) = (by_table(notes), BTreeSet::new());
    for table in &*TABLES {
        let keys = match noted.get(table.name) {
            _ if whole.contains(table.name) => None,
            None => continue,
            Some(keys) => keys.as_ref(),
        };
        let is_complete = match keys {
            None => replace(reader, target, table).await?,
            Some(keys) => replace_among(reader, target, table, &keys_of(table, keys)).await?,
        };
        if !is_complete {
            open.insert(table.name);
        }
    }
    Ok(open)
}

/// Replaces all rows of a table. Returns whether all were inserted.
async fn replace(
    reader: &mut PooledConnection,
    target: &mut Transaction,
    table: &MovedTable,
) -> Result<bool, MoveError> {
    let (from, to) = (reader.dialect(), target.dialect());
    target.execute(table.delete_all(to)).await?;
    let mut is_complete = true;
    if table.has_key() {
        let mut after: Option<Vec<Value>> = None;
        loop {
            let sql = table.select_after(from, after.as_deref(), FIRST_ROWS * 4);
            let (rows, _) = read_rows(reader, table, sql).await?;
            is_complete &= insert(target, table, &rows).await?;
            match rows.last() {
                Some(last) if rows.len() == FIRST_ROWS as usize * 4 => after = Some(table.key_of(last)),
                _ => break,
            }
        }
    } else {
        let (rows, _) = read_rows(reader, table, table.select_all(from)).await?;
        is_complete = insert(target, table, &rows).await?;
    }
    if table.name == DOCUMENTS && to == Dialect::Sqlite {
        target.command(REBUILD).await?;
    }
    Ok(is_complete)
}

/// Replaces the rows with some keys. All are deleted before any is inserted: two may have exchanged what only one may have.
async fn replace_among(
    reader: &mut PooledConnection,
    target: &mut Transaction,
    table: &MovedTable,
    keys: &[Vec<Value>],
) -> Result<bool, MoveError> {
    let (from, to) = (reader.dialect(), target.dialect());
    let is_indexed = table.name == DOCUMENTS && to == Dialect::Sqlite;
    for keys in keys.chunks(KEYS_AT_ONCE) {
        if is_indexed {
            // The index has no texts: it needs those that it was made of.
            let (rows, _) = read_rows(target.connection(), table, table.select_among(to, keys)).await?;
            index(
                target,
                table,
                &rows,
                "INSERT INTO listed_trigrams (listed_trigrams, rowid, document) VALUES ('delete', ",
            )
            .await?;
        }
        target.execute(table.delete_among(to, keys)).await?;
    }
    let mut is_complete = true;
    for keys in keys.chunks(KEYS_AT_ONCE) {
        let (rows, _) = read_rows(reader, table, table.select_among(from, keys)).await?;
        is_complete &= insert(target, table, &rows).await?;
        if is_indexed {
            index(target, table, &rows, "INSERT INTO listed_trigrams (rowid, document) VALUES (").await?;
        }
    }
    Ok(is_complete)
}

/// Writes documents to SQLite's keyword index.
async fn index(
    target: &mut Transaction,
    table: &MovedTable,
    rows: &[Values],
    statement: &'static str,
) -> Result<(), MoveError> {
    let document = table.columns.iter().position(|column| column.name == "document").expect("the table has documents");
    for row in rows {
        let values = [row[table.key[0]].argument(), row[document].argument()].map(bound);
        let mut sql = Sql::text(statement);
        sql.append(Sql::joined(values, ", ")).append(Sql::text(")"));
        target.execute(sql).await?;
    }
    Ok(())
}

/// Inserts rows. Returns whether none conflicts with another one that is there.
async fn insert(target: &mut Transaction, table: &MovedTable, rows: &[Values]) -> Result<bool, MoveError> {
    let mut inserted = 0;
    for sql in table.inserts(target.dialect(), rows)? {
        inserted += target.execute(sql).await?;
    }
    Ok(inserted == rows.len() as u64)
}

async fn digest(reader: &mut PooledConnection, table: &MovedTable, sql: Sql) -> Result<TableDigest, MoveError> {
    let mut digest = TableDigest::default();
    reader
        .fetch_each(sql, &mut |row| {
            table.add(&mut digest, &table.read(&row)?);
            Ok(())
        })
        .await?;
    Ok(digest)
}

/// The tables that differ, and how many rows there are.
async fn compare(
    source: &mut PooledConnection,
    target: &mut PooledConnection,
    tables: impl Iterator<Item = &'static MovedTable>,
) -> Result<(BTreeSet<&'static str>, u64), MoveError> {
    let (mut differing, mut rows) = (BTreeSet::new(), 0);
    for table in tables {
        let of_source = digest(source, table, table.select_all(source.dialect())).await?;
        if of_source != digest(target, table, table.select_all(target.dialect())).await? {
            differing.insert(table.name);
        }
        rows += of_source.rows;
    }
    Ok((differing, rows))
}

/// The tables of which noted rows differ.
async fn compare_noted(
    source: &mut PooledConnection,
    target: &mut Transaction,
    notes: &[Note],
) -> Result<BTreeSet<&'static str>, MoveError> {
    let (noted, mut differing) = (by_table(notes), BTreeSet::new());
    for table in &*TABLES {
        let Some(Some(keys)) = noted.get(table.name) else { continue };
        for keys in keys_of(table, keys).chunks(KEYS_AT_ONCE) {
            let of_source = digest(source, table, table.select_among(source.dialect(), keys)).await?;
            let sql = table.select_among(target.dialect(), keys);
            if of_source != digest(target.connection(), table, sql).await? {
                differing.insert(table.name);
            }
        }
    }
    Ok(differing)
}
