//! Moves the data of an account from one database to another, of either kind, while programs write to it.
//!
//! Nothing here decides when: [`crate::moving`] does. A move has these steps, each of which can be repeated after a crash:
//!
//! 1. [`Moving::prepare`] creates the tables of the target and takes their triggers and foreign keys away, so that rows can
//!    come in any order; then triggers in the source note what is written (`capture`).
//! 2. [`Moving::copy_some`] copies every table by its key, in short transactions. What changes behind it is noted.
//! 3. [`Moving::catch_up`] applies notes: deletes the noted rows from the target and inserts those that the source has, as
//!    one snapshot of the source shows them. After all notes, the target is that snapshot, and both sides are compared.
//! 4. [`Moving::approach`] and [`Moving::switch`] lock the source (`locking`); the latter applies the rest, compares, gives the
//!    target its triggers back and commits it.
//!    [`Locked::commit`] has the source refuse writes: before that commit the account is in the source, from then on in the
//!    target.
//! 5. [`Moving::finish`] removes what the move needed; [`Moving::undo`] does so after a move was given up.
//!
//! To a database that was restored from a backup of the account nothing is copied: `returning`.
//!
//! The steps are in `preparing`, `copying`, `ending` and here; `applying` writes rows to the target, `comparing` compares. `mark`
//! is the row in both databases that names the move and keeps a node out that lost its lease. `table` has the tables and their
//! statements, `value` converts types, `numbering` continues the numbers of ids, `refusing` is what the source says afterwards.

mod applying;
mod capture;
mod comparing;
mod copying;
mod ending;
mod error;
mod locking;
mod mark;
mod numbering;
mod preparing;
mod refusing;
mod returning;
mod table;
mod value;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use sqlx::AssertSqlSafe;

use self::applying::apply;
use self::capture::Note;
use self::comparing::{compare, compare_noted};
use self::copying::FIRST_ROWS;
pub use self::error::MoveError;
use self::error::busy;
pub use self::locking::Approached;
use self::mark::Role;
pub use self::mark::{NotThere, find_not_there};
pub use self::preparing::{TargetState, look_at_target};
pub(super) use self::returning::forget_moves;
use self::table::TABLES;
use super::audit::{self, Actor, AuditEntry};
use super::derived::settle;
use super::engine::{Database, DatabaseLocation, Transaction};
use super::schema::dressing;
use super::statement::Sql;
use super::{DatabaseIdentity, PhysicalId, StoreError};

/// How long it may take to compare all rows for that to be done while requests wait. Of an account for which it takes longer, the
/// rows are compared that changed since all of them were compared.
///
/// Larger: requests wait for longer. Smaller: for fewer accounts is what no trigger notes found in the last moment too.
const COMPARED_WITHIN: Duration = Duration::from_millis(300);

/// How many notes may be left when the source is locked.
///
/// Larger: requests wait for longer. Smaller: accounts with many writers are never caught up with.
const FEW: usize = 3_000;

/// How many notes may be left when requests begin to wait, and in how many rounds this is tried.
///
/// Larger: requests wait for longer. Smaller: more rounds.
const VERY_FEW: usize = 200;
const ROUNDS: u32 = 5;

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

/// How far the target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaughtUp {
    /// Much was written during the round: another one is needed.
    No,
    /// Little is left, and both sides were the same.
    Yes,
}

/// What the registry keeps about the database of an account.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Which database it is.
    pub physical_id: Option<PhysicalId>,
    /// Whether the account has subscriptions.
    pub has_subscriptions: bool,
}

/// Whether both sides are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparing {
    Yes,
    No,
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
    /// Notes that a failed attempt applied to the target.
    redone: Vec<Note>,
    /// The target has its triggers and foreign keys.
    is_dressed: bool,
    /// The target was restored from a backup of the account, and is not written but for decisions of people.
    is_return: bool,
    /// How long it took to compare all rows, if that was done after little had been written.
    compared_in: Option<Duration>,
    rows_at_once: u32,
}

/// The locked source, once the target has everything.
#[derive(Debug)]
pub struct Locked(Transaction);

impl Locked {
    /// Has the source refuse writes: from now on, the account is in the target.
    ///
    /// # Errors
    /// [`MoveError::Store`]. The commit may have succeeded even so: see [`Moving::has_left`].
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
            is_return: false,
            compared_in: None,
            rows_at_once: FIRST_ROWS,
        }
    }

    /// Closes both databases.
    pub async fn close(&self) {
        self.source.close().await;
        self.target.close().await;
    }

    /// Whether the account has left the source by this move. If it has not, no earlier holder of the lease has it leave: one
    /// that is about to is waited for.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn has_left(&self) -> Result<bool, MoveError> {
        let found = mark::find(&mut self.source.reader().await?).await?;
        if found.is_none_or(|found| found.id != self.mark.id) {
            return Ok(false);
        }
        let begin = "BEGIN; SET LOCAL lock_timeout = '3s'";
        let mut source = self.source.begin_with(begin, Duration::MAX, Instant::now()).await.map_err(busy)?;
        let role = mark::take_over(&mut source, &self.mark).await?;
        source.commit().await?;
        Ok(role == Role::Left)
    }

    /// What the target is, once the account is there.
    ///
    /// # Errors
    /// [`MoveError::Store`].
    pub async fn arrived(&self) -> Result<Arrived, MoveError> {
        let mut reader = self.target.reader().await?;
        let (_, physical_id) = DatabaseIdentity::read(&mut reader).await?;
        let row = reader.fetch_one(Sql::text("SELECT EXISTS (SELECT 1 FROM subscriptions)")).await?;
        Ok(Arrived { physical_id, has_subscriptions: row.get(0)? })
    }

    async fn begin_target(&self) -> Result<Transaction, MoveError> {
        // Tables that were empty a moment ago have no statistics.
        let begin = "BEGIN; SET LOCAL enable_seqscan = off";
        let mut transaction = self.target.begin_with(begin, Duration::MAX, Instant::now()).await?;
        mark::take(&mut transaction, &self.mark).await?;
        Ok(transaction)
    }

    /// Applies notes, as one snapshot of the source shows them. Once few are left, compares both sides.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn catch_up(&mut self) -> Result<CaughtUp, MoveError> {
        if self.is_return {
            return Ok(CaughtUp::Yes);
        }
        self.strip().await?;
        let is_little_unsettled = settle::settle_much(&self.source).await?;
        self.round(Comparing::Yes).await?;
        let is_same = self.compared_in.is_some() && self.whole.is_empty();
        Ok(if is_same && is_little_unsettled { CaughtUp::Yes } else { CaughtUp::No })
    }

    /// Applies what was written while both sides were compared, right before the source is locked.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn draw_near(&mut self) -> Result<(), MoveError> {
        if self.is_return {
            return Ok(());
        }
        for _ in 0..ROUNDS {
            if self.round(Comparing::No).await? < VERY_FEW {
                break;
            }
        }
        Ok(())
    }

    /// Applies notes. Returns how many.
    async fn round(&mut self, comparing: Comparing) -> Result<usize, MoveError> {
        let mut reader = self.source.reader().await?;
        reader.begin_reading().await?;
        let mut notes = capture::read(&mut reader).await?;
        let found = notes.len();
        let mut transaction = self.begin_target().await?;
        notes.append(&mut self.redone);
        let whole = std::mem::take(&mut self.whole);
        let open = apply(&mut reader, &mut transaction, &notes, &whole).await?;
        if comparing == Comparing::Yes {
            // All rows are read for that, so not before it is likely to be the last time.
            self.compared_in = None;
            if found < FEW {
                let began = Instant::now();
                let tables = TABLES.iter().filter(|table| table.has_key());
                self.whole = compare(&mut reader, transaction.connection(), tables).await?;
                self.compared_in = Some(began.elapsed());
            }
        }
        transaction.commit().await?;
        reader.end_transaction("COMMIT").await?;
        drop(reader);
        // Of these, rows are missing.
        notes.retain(|note| !open.contains(note.table.as_str()));
        if !notes.is_empty() {
            let mut transaction = self.source.begin().await?;
            mark::take(&mut transaction, &self.mark).await?;
            transaction.execute(capture::removal(&notes)).await?;
            transaction.commit().await?;
        }
        Ok(found)
    }

    /// Locks the source, applies the rest, compares both sides, and commits the target with its triggers and foreign keys. The
    /// audit log gets a row on both sides.
    ///
    /// # Errors
    /// [`MoveError`]; the source is as it was.
    pub async fn switch(&mut self, approached: Approached, by: &Actor, entry: AuditEntry) -> Result<Locked, MoveError> {
        let mut source = self.lock(approached).await?;
        mark::take(&mut source, &self.mark).await?;
        audit::append(&mut source, by, entry.clone(), Timestamp::now()).await?;
        if self.is_return {
            return self.switch_back(source, by, entry).await;
        }
        let notes = capture::read(source.connection()).await?;
        if notes.len() > 2 * FEW {
            return Err(MoveError::Busy("much was written in the last moment"));
        }
        let mut target = self.begin_target().await?;
        let keyless: BTreeSet<_> = TABLES.iter().filter(|table| !table.has_key()).map(|table| table.name).collect();
        apply(source.connection(), &mut target, &notes, &keyless).await?;
        let last = numbering::read(source.connection()).await?;
        numbering::write(&mut target, &last).await?;
        let differing = if self.compared_in.is_some_and(|time| time <= COMPARED_WITHIN) {
            compare(source.connection(), target.connection(), TABLES.iter()).await?
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
        self.leave(source).await
    }

    /// Has the locked source refuse writes once it is committed.
    async fn leave(&self, mut source: Transaction) -> Result<Locked, MoveError> {
        let refusal = refusing::beginning(source.dialect(), &self.mark.place);
        source.command(AssertSqlSafe(refusal)).await?;
        mark::leave(&mut source).await?;
        Ok(Locked(source))
    }
}
