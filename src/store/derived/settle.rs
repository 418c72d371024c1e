//! Maintains the search tables, which are derived from the plain tables: which submissions are listed, their
//! documents, terms and labels, and the counts. *Settling* is bringing them up to date.
//!
//! Writers only append the ids of the submissions they change to the table `intake` (*notes*). A settler removes these
//! notes and derives from committed rows, in one transaction, one settler at a time per database. When the intake is
//! empty, the search tables are right. Each search checks that in its own statement; if there are notes, it settles
//! first and searches again. So everything committed before a request is in its answer.
//!
//! Triggers that derive in the writers' transactions were tried first. They could not see rows that other transactions
//! were changing, so they derived wrong rows, and writers paid two to twenty times the cost of a bare statement.
//!
//! A transaction that commits while a settler runs still has its notes in the intake. Whatever the settler read of it
//! is derived again later, which is idempotent.

mod content;
mod count_unnoticed;
mod count_wrong;
mod counts;
mod derived;
mod intake;
pub(in crate::store) mod keyword_indexes;
mod numbering;
mod options;
mod overlay;
mod placing;
mod reading;
mod release;
mod repair;
mod state;
mod writing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;

pub(in crate::store) use intake::is_settled;
pub(in crate::store) use overlay::Overlay;
pub(in crate::store) use placing::place_noted;

use super::{changes, totals};
use crate::metrics::DatabaseFailure;
use crate::store::engine::{Database, Transaction, is_row_security, retry};
use crate::store::statement::{Dialect, Sql};
use crate::store::{Store, StoreError, with_causes};
use intake::{NotedAt, Notes};
pub use numbering::Events;
pub(in crate::store) use numbering::MAX_BURST;
use numbering::Numbering;
use options::{AFTER_A_TIMEOUT, FOR_A_COMMAND, FOR_A_REQUEST, LOCK, SLICE, SettlerOptions};
use release::Taken;
pub(in crate::store) use release::may_release;
pub(in crate::store) use repair::repair;
use state::SettlerState;
pub(in crate::store) use writing::Differences;

/// How long a request waits for what was written before it to be derived. Then it is refused, and settling goes on.
///
/// Larger: callers wait longer during a bulk load and occupy connections. Smaller: more of them are refused.
const SETTLE_LIMIT: Duration = Duration::from_secs(3);

/// Moves the pending lists of the keyword indexes into the indexes, because each search reads these lists whole. If
/// this role does not own the indexes, the next vacuum does it.
const FLUSH_PENDING_LISTS: &str = "SELECT gin_clean_pending_list(oid) FROM pg_class \
    WHERE oid IN (to_regclass('listed_documents_trigrams'), to_regclass('listed_documents_pairs')) \
    AND pg_has_role(relowner, 'USAGE')";

/// Most of its time goes to the statistics of character pairs. Without them, a keyword of two characters that most
/// documents contain takes twice as long.
const ANALYZE: &str = "ANALYZE listed_submissions, listed_documents, listed_terms, listed_by_label, listed_counts";

/// After how many settled notes the intake of Postgres is vacuumed.
///
/// Larger: each search skips more dead rows, at about 100 ns each. Smaller: more vacuums.
const NOTES_PER_VACUUM: usize = 2_000;

/// The settlers of this node for one database. They run one at a time; a waiting settler holds no connection.
#[derive(Clone, Debug, Default)]
pub(in crate::store) struct Settler {
    lock: Arc<Mutex<()>>,
    recounting: Arc<Mutex<()>>,
    state: Arc<SettlerState>,
}

/// The outcome of settling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Settled {
    Yes,
    /// Nothing can be written to the database now. A search can use an [`Overlay`] instead.
    CannotWrite,
}

impl Settler {
    /// Begins a transaction that is the only one to settle, within the limits of a request.
    pub(in crate::store) async fn begin_for_a_request(database: &Database) -> Result<Transaction, StoreError> {
        begin(database, FOR_A_REQUEST).await
    }

    /// The same without limits.
    pub(in crate::store) async fn begin_for_a_command(database: &Database) -> Result<Transaction, StoreError> {
        begin(database, FOR_A_COMMAND).await
    }

    /// A permit to count lists again, unless this node does so already.
    pub(in crate::store) fn try_to_recount(&self) -> Option<OwnedMutexGuard<()>> {
        Arc::clone(&self.recounting).try_lock_owned().ok()
    }

    /// Counts a write. Returns whether it is one of every `writes`.
    pub(in crate::store) fn counts_to(&self, writes: usize) -> bool {
        (self.state.writes.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(writes)
    }
}

impl Store {
    /// Settles everything that was committed before this call.
    ///
    /// # Errors
    /// [`StoreError::Unsettled`] if that takes longer than [`SETTLE_LIMIT`]. Settling then continues in the
    /// background.
    pub(in crate::store) async fn settle(&self) -> Result<Settled, StoreError> {
        self.settle_if(|is_settled| !is_settled).await
    }

    /// Settles everything that was committed before this call, and releases the events that are due now.
    ///
    /// # Errors
    /// Those of [`Self::settle`].
    pub(in crate::store) async fn release_events(&self) -> Result<Settled, StoreError> {
        self.settle_if(|_| true).await
    }

    /// Settles if that is necessary, by whether the intake is empty.
    async fn settle_if(&self, is_necessary: impl FnOnce(bool) -> bool) -> Result<Settled, StoreError> {
        let state = &self.settler.state;
        if state.cannot_write() {
            return Ok(Settled::CannotWrite);
        }
        let requested_at = Instant::now();
        let deadline = requested_at + SETTLE_LIMIT;
        let lock = timeout(SETTLE_LIMIT, Arc::clone(&self.settler.lock).lock_owned()).await;
        let lock = lock.map_err(|_| StoreError::Unsettled)?;
        // The previous settler may have settled everything that matters here, or found that it can't write.
        if state.cannot_write() {
            return Ok(Settled::CannotWrite);
        }
        if state.is_settled_since(requested_at) {
            return Ok(Settled::Yes);
        }
        if !is_necessary(intake::is_empty(&mut self.database.reader().await?).await?) {
            return Ok(Settled::Yes);
        }
        let (database, shared) = (self.database.clone(), Arc::clone(state));
        // In a task, so that settling continues if the request gives up.
        let mut settling = tokio::spawn(async move {
            let _lock = lock;
            // Until all notes are taken that existed at the start: under a steady stream of writes the intake is never
            // empty.
            let mut options = FOR_A_REQUEST;
            let mut took_all: Option<Instant> = None;
            let settled = loop {
                let began = Instant::now();
                match settle_some(&database, options).await {
                    Ok(taken) => {
                        shared.taken.fetch_add(taken.notes, Ordering::AcqRel);
                        // What the notes of an earlier time affected indirectly was noted then, and has been taken by now. Later
                        // ones may affect others too: under a steady stream of new submissions, these go on for ever.
                        let began = took_all.filter(|_| !taken.is_all).unwrap_or(began);
                        if taken.is_all || taken.are_all && took_all.is_some() {
                            shared.note_settled(began);
                            break Ok(());
                        }
                        took_all = took_all.or(taken.are_all.then_some(began));
                    }
                    Err(error) if ran_out_of_time(&error) && options.limit != AFTER_A_TIMEOUT.limit => {
                        tracing::warn!("settling ran out of time; trying again with a longer limit");
                        options = AFTER_A_TIMEOUT;
                    }
                    Err(error) => break Err(error),
                }
            };
            shared.set_behind(false, database.metrics());
            if shared.taken.load(Ordering::Acquire) >= NOTES_PER_VACUUM {
                shared.taken.store(0, Ordering::Release);
                vacuum(&database).await;
                // The next time will do.
                if let Err(error) = changes::forget_old(&database).await {
                    tracing::debug!(cause = with_causes(&error), "old deletions are still in the change log");
                }
            }
            settled
        });
        match timeout(deadline.saturating_duration_since(Instant::now()), &mut settling).await {
            Ok(Ok(Ok(()))) => Ok(Settled::Yes),
            Ok(Ok(Err(error))) if prevents_writing(&error) => {
                state.note_cannot_write();
                Ok(Settled::CannotWrite)
            }
            Ok(Ok(Err(error))) => Err(error),
            // The runtime is shutting down.
            Ok(Err(_)) => Err(StoreError::Unsettled),
            Err(_) => {
                state.set_behind(true, self.database.metrics());
                if settling.is_finished() {
                    state.set_behind(false, self.database.metrics());
                }
                Err(StoreError::Unsettled)
            }
        }
    }

    /// Records in the metrics whether there are too many notes for an overlay.
    pub(in crate::store) fn note_overlay(&self, outcome: Result<Overlay, StoreError>) -> Result<Overlay, StoreError> {
        let is_behind = matches!(outcome, Err(StoreError::Unsettled));
        self.settler.state.set_behind(is_behind, self.database.metrics());
        outcome
    }

    /// Why searches are refused, while they are.
    #[must_use]
    pub fn backlog(&self) -> Option<String> {
        self.settler.state.is_behind.load(Ordering::Acquire).then(|| StoreError::Unsettled.to_string())
    }
}

/// Whether an error prevents writing but not reading.
fn prevents_writing(error: &StoreError) -> bool {
    match error {
        StoreError::Locked { .. } | StoreError::ReadOnly(_) => true,
        // Then reading fails too, and this is the cause.
        StoreError::Unavailable(error) if is_row_security(error) => false,
        StoreError::Unavailable(error) => {
            matches!(
                DatabaseFailure::of(error),
                Some(DatabaseFailure::ReadOnly | DatabaseFailure::Locked | DatabaseFailure::OutOfSpace)
            )
        }
        _ => false,
    }
}

/// Whether a statement took longer than it may.
pub(in crate::store) fn ran_out_of_time(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(error) if DatabaseFailure::of(error) == Some(DatabaseFailure::TimedOut))
}

/// Settles all that was committed before this call.
pub(in crate::store) async fn settle_all(database: &Database) -> Result<(), StoreError> {
    while !settle_some(database, FOR_A_COMMAND).await?.is_all {}
    place_noted(database).await?;
    vacuum(database).await;
    changes::forget_old(database).await
}

/// Settles some of what was committed, if it is much. Returns whether it is not.
pub(in crate::store) async fn settle_much(database: &Database) -> Result<bool, StoreError> {
    if !intake::is_long(&mut database.reader().await?).await? {
        return Ok(true);
    }
    settle_some(database, FOR_A_COMMAND).await?;
    Ok(false)
}

async fn begin(database: &Database, options: SettlerOptions) -> Result<Transaction, StoreError> {
    let limit = options.limit.duration(database.limits().statement);
    database.begin_with(options.begin, limit, Instant::now()).await
}

/// Creates missing keyword indexes, and gathers the planner's statistics of the search tables.
pub(in crate::store) async fn create_indexes(database: &Database) -> Result<(), StoreError> {
    let mut transaction = begin(database, FOR_A_COMMAND).await?;
    keyword_indexes::create_missing(&mut transaction).await?;
    if transaction.dialect() == Dialect::Postgres {
        transaction.execute(Sql::text(ANALYZE)).await?;
    }
    Ok(transaction.commit().await?)
}

/// Removes the dead rows that settled notes leave behind on Postgres, because each search reads them. If a transaction
/// may still see them, or another role owns the table, autovacuum does it later.
async fn vacuum(database: &Database) {
    if database.dialect() == Dialect::Postgres
        && let Ok(mut writer) = database.writer().await
        && let Err(error) = writer.vacuum("intake").await
    {
        tracing::debug!(cause = with_causes(&error), "the intake could not be vacuumed");
    }
}

/// How many notes were taken out of the intake.
#[derive(Clone, Copy, Debug)]
struct TakenNotes {
    notes: usize,
    /// Whether these were all notes that were committed at the start.
    are_all: bool,
    /// Whether nothing else is left either: they affect no submissions that they don't name.
    is_all: bool,
}

/// Takes some notes and derives from them, in a transaction of their own.
async fn settle_some(database: &Database, options: SettlerOptions) -> Result<TakenNotes, StoreError> {
    // A TRUNCATE of several tables locks them in its own order, so reads can be part of a deadlock.
    retry::run(|| async move {
        let began = Instant::now();
        let mut transaction = begin(database, options).await?;
        let taken = settle_in(&mut transaction, options.notes, Some(began + SLICE), Events::Sent).await?;
        transaction.commit().await?;
        database.metrics().settled(taken.notes, began.elapsed());
        Ok(taken)
    })
    .await
}

/// Takes notes and derives from them, in a transaction that is the only one to settle. After the instant `until`, puts
/// the others back.
async fn settle_in(
    transaction: &mut Transaction,
    max_notes: i64,
    until: Option<Instant>,
    events: Events,
) -> Result<TakenNotes, StoreError> {
    let mut numbering = Numbering::begin(transaction, events).await?;
    let notes = Notes::take(transaction, max_notes).await?;
    notes.note_others(transaction, &mut numbering).await?;
    let ids: Vec<i64> = notes.submissions.keys().copied().collect();
    let (_, derived) = derive(transaction, &ids, &notes.submissions, until, &mut numbering).await?;
    let left = &ids[derived..];
    notes.put_back(transaction, left).await?;
    let are_all_taken = i64::try_from(notes.taken).is_ok_and(|taken| taken < max_notes) && left.is_empty();
    numbering.end(transaction, if are_all_taken { Taken::All } else { Taken::Some }).await?;
    let is_all = are_all_taken && !notes.may_affect_others();
    Ok(TakenNotes { notes: notes.taken.saturating_sub(left.len()), are_all: are_all_taken, is_all })
}

/// Updates the search tables and the change log for the given submissions. `noted` has when a submission changed; those
/// missing there may not have. Begins with no further ones after the instant `until`. Returns how many were done.
async fn derive(
    transaction: &mut Transaction,
    ids: &[i64],
    noted: &BTreeMap<i64, NotedAt>,
    until: Option<Instant>,
    numbering: &mut Numbering,
) -> Result<(Differences, usize), StoreError> {
    let (mut differences, mut derived) = (Differences::default(), 0);
    if ids.is_empty() {
        return Ok((differences, 0));
    }
    for batch in reading::batches(transaction.connection(), ids).await? {
        let (wanted, contents) = reading::wanted(transaction.connection(), &batch).await?;
        let stored = reading::stored(transaction.connection(), &batch).await?;
        differences += writing::write(transaction, &batch, &wanted, &stored).await?;
        differences.changes += numbering.number(transaction, &batch, &contents, noted).await?;
        derived += batch.len();
        if until.is_some_and(|until| until <= Instant::now()) {
            break;
        }
    }
    Ok((differences, derived))
}

/// Settles within a transaction, including what the transaction itself has written.
pub(in crate::store) async fn settle_within(transaction: &mut Transaction, events: Events) -> Result<(), StoreError> {
    let is_postgres = transaction.dialect() == Dialect::Postgres;
    if is_postgres {
        transaction.execute(Sql::text(LOCK)).await?;
    }
    keyword_indexes::drop_if_empty(transaction).await?;
    // All notes at once: until the transaction ends, each further DELETE would read the rows deleted before.
    while settle_in(transaction, i64::MAX, None, events).await?.notes > 0 {}
    totals::recount_within(transaction).await?;
    keyword_indexes::create_missing(transaction).await?;
    if is_postgres {
        transaction.execute(Sql::text(FLUSH_PENDING_LISTS)).await?;
        transaction.execute(Sql::text(ANALYZE)).await?;
    }
    Ok(())
}
