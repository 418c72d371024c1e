//! Reads an export batch by batch. Between two turns it holds no connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::ExportRequest;
use crate::store::derived::changes::{changed_since, unnumbered_of};
use crate::store::derived::search::SearchById;
use crate::store::derived::settle::{Settled, is_settled};
use crate::store::engine::{PooledConnection, retry};
use crate::store::statement::{Sql, sql};
use crate::store::submissions::{SubmissionPart, SubmissionReader, read_submissions};
use crate::store::{ChangeCursor, FormReach, Store, StoreError, Submission, Submissions, SubmissionsView};

/// After how long no further statement begins in a turn. With the last one, a turn takes five seconds at most, unless the
/// database is slow.
///
/// Larger: dead rows and the WAL are kept for longer. Smaller: more exports are not of one instant.
const LONGEST_TURN: Duration = Duration::from_secs(4);

/// How many ids are found at once.
///
/// Larger: they take more memory, 8 bytes each. Smaller: a search by a keyword or of few submissions finds its matches more
/// often.
const IDS: i64 = 100_000;

/// How many submissions a batch has at most, and how many bytes of rows it is meant to have.
///
/// Larger: a batch takes more memory, and the other requests of a thread wait for longer. Smaller: more statements.
const MAX_BATCH: usize = 500;
const BATCH_BYTES: usize = 256 * 1024;

/// How many submissions the first batch has.
///
/// Larger: if they are long, more of it is read in vain. Smaller: more statements until it is known how long they are.
const FIRST_BATCH: usize = 50;

/// How long a submission is waited for that is written again whenever it has got its number.
///
/// Larger: a part of the export takes longer. Smaller: more exports are cut off by a program that writes all the time.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often a batch is read that collides with another transaction.
const MAX_FAILURES: u32 = 3;

/// What a turn sees.
#[derive(Debug)]
pub(super) struct TurnScope {
    /// Forms that are in reach and asked for.
    pub(super) followed: FormReach,
    pub(super) search: SearchById,
}

impl TurnScope {
    pub(super) async fn resolve(
        reader: &mut PooledConnection,
        request: &ExportRequest,
        reach: &FormReach,
        followed: FormReach,
    ) -> Result<Self, StoreError> {
        let search = SearchById::resolve(reader, &request.filter, reach, &followed, request.only_form()).await?;
        if search.is_by_index_only(reader.dialect()) {
            reader.command("SET LOCAL enable_seqscan = off").await?;
        }
        Ok(Self { followed, search })
    }
}

/// A transaction that sees one instant.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) reader: PooledConnection,
    pub(super) scope: TurnScope,
    /// Whether everything that it sees has a number.
    is_numbered: bool,
    began: Instant,
}

impl Turn {
    pub(super) fn new(reader: PooledConnection, scope: TurnScope, is_numbered: bool) -> Self {
        Self { reader, scope, is_numbered, began: Instant::now() }
    }

    async fn begin(store: &Store, request: &ExportRequest) -> Result<Self, StoreError> {
        let mut reader = store.database.reader().await?;
        reader.begin_reading().await?;
        let is_numbered = reader.fetch_one(sql!("SELECT {+is_settled}", is_settled = is_settled())).await?.get(0)?;
        let followed = store.reach().narrowed_to(&mut reader, request.form.as_slice()).await?;
        let scope = TurnScope::resolve(&mut reader, request, store.reach(), followed).await?;
        Ok(Self::new(reader, scope, is_numbered))
    }

    pub(super) async fn end(mut self) -> Result<(), StoreError> {
        Ok(self.reader.end_transaction("COMMIT").await?)
    }
}

/// Reads an export.
#[derive(Debug)]
pub struct ExportReader {
    store: Store,
    request: ExportRequest,
    cursor: ChangeCursor,
    turn: Option<Turn>,
    turns: u32,
    /// Ids that were found and not read yet.
    ahead: VecDeque<i64>,
    /// In which turn they were found.
    found_in: u32,
    /// Up to which id was looked for.
    found_to: i64,
    is_all_found: bool,
    /// How many submissions the next batch has at most.
    batch: usize,
    /// The submission that is read in parts.
    long: Option<SubmissionReader>,
    /// Whether one was: parts are of several instants.
    has_parts: bool,
}

/// Submissions that follow each other in an export.
#[derive(Debug)]
pub struct ExportBatch {
    /// What was looked at, by id.
    ids: Vec<i64>,
    /// Those of them that match.
    pub submissions: Submissions,
    /// Whether the others are told.
    tells_deletions: bool,
}

/// A row of an export.
#[derive(Clone, Copy, Debug)]
pub enum ExportRow<'v> {
    /// A submission.
    Submission(&'v Submission<'v>),
    /// One that changed and no longer matches, or is gone.
    Deletion(i64),
}

/// What [`ExportReader::next`] reads.
#[derive(Debug)]
pub enum ExportRead {
    /// Some submissions.
    Batch(ExportBatch),
    /// A part of one that is too long to be read whole.
    Part(SubmissionPart),
}

/// What one try reads.
enum Tried {
    Read(ExportRead),
    /// The first submission shows something without a number.
    Unnumbered,
    End,
}

impl ExportBatch {
    /// Its rows. `shown` has the submissions.
    pub fn rows<'v>(&self, shown: &'v SubmissionsView<'v>) -> impl Iterator<Item = ExportRow<'v>> {
        let mut submissions = shown.submissions.iter().peekable();
        self.ids.iter().filter_map(move |id| match submissions.next_if(|submission| submission.id == *id) {
            Some(submission) => Some(ExportRow::Submission(submission)),
            None => self.tells_deletions.then_some(ExportRow::Deletion(*id)),
        })
    }
}

impl ExportReader {
    pub(super) fn new(store: Store, request: ExportRequest, cursor: ChangeCursor, turn: Turn) -> Self {
        Self {
            store,
            cursor: request.as_of.clone().unwrap_or(cursor),
            found_to: request.after,
            request,
            turn: Some(turn),
            turns: 1,
            ahead: VecDeque::new(),
            found_in: 0,
            is_all_found: false,
            batch: FIRST_BATCH,
            long: None,
            has_parts: false,
        }
    }

    /// Where the feed goes on.
    #[must_use]
    pub fn cursor(&self) -> &ChangeCursor {
        &self.cursor
    }

    /// Whether everything so far is of one instant.
    #[must_use]
    pub fn is_of_one_instant(&self) -> bool {
        self.turns == 1 && !self.has_parts
    }

    /// Ends the turn, so that no connection is held while nothing is read.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn pause(&mut self) -> Result<(), StoreError> {
        match self.turn.take() {
            Some(turn) => turn.end().await,
            None => Ok(()),
        }
    }

    /// The next submissions, or a part of one; None behind the last one.
    ///
    /// # Errors
    /// [`StoreError::Unsettled`] if a submission is written all the time; [`StoreError::Unavailable`],
    /// [`StoreError::Statement`], [`StoreError::MemorySpent`].
    pub async fn next(&mut self) -> Result<Option<ExportRead>, StoreError> {
        // The batch before is written by now.
        self.store.database.release_rows();
        let (began, mut failures) = (Instant::now(), 0);
        loop {
            match self.try_next().await {
                Ok(Tried::Read(read)) => return Ok(Some(read)),
                Ok(Tried::End) => {
                    self.pause().await?;
                    return Ok(None);
                }
                Ok(Tried::Unnumbered) => {
                    self.pause().await?;
                    if began.elapsed() > PATIENCE || self.store.settle().await? == Settled::CannotWrite {
                        return Err(StoreError::Unsettled);
                    }
                }
                // What was read before is not read again.
                Err(error) if failures < MAX_FAILURES && retry::is_collision(&error) => {
                    self.turn = None;
                    failures += 1;
                    tokio::time::sleep(retry::pause(failures)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes back a batch that is too long to be read whole: it is read in smaller ones, and a single submission in parts.
    pub fn put_back(&mut self, batch: ExportBatch) {
        let ids = batch.ids;
        self.batch = (ids.len() / 4).max(1);
        if let [id] = ids[..] {
            (self.long, self.has_parts) = (Some(self.store.read_in_parts([id])), true);
        } else {
            ids.into_iter().rev().for_each(|id| self.ahead.push_front(id));
        }
    }

    async fn try_next(&mut self) -> Result<Tried, StoreError> {
        if let Some(long) = &mut self.long {
            // It takes connections of its own.
            if let Some(turn) = self.turn.take() {
                turn.end().await?;
            }
            if let Some(part) = long.next().await? {
                return Ok(Tried::Read(ExportRead::Part(part)));
            }
            self.long = None;
        }
        if self.ahead.is_empty() && self.is_all_found {
            return Ok(Tried::End);
        }
        let mut turn = match self.turn.take() {
            Some(turn) if turn.began.elapsed() < LONGEST_TURN => turn,
            other => {
                if let Some(turn) = other {
                    turn.end().await?;
                }
                self.turns += 1;
                Turn::begin(&self.store, &self.request).await?
            }
        };
        let tried = self.read_in(&mut turn).await;
        if tried.is_ok() {
            self.turn = Some(turn);
        }
        tried
    }

    async fn read_in(&mut self, turn: &mut Turn) -> Result<Tried, StoreError> {
        if self.ahead.is_empty() && !self.is_all_found {
            self.find_ids(turn).await?;
        }
        let mut ids: Vec<i64> = self.ahead.iter().take(self.batch).copied().collect();
        if ids.is_empty() {
            return Ok(Tried::End);
        }
        if !turn.is_numbered {
            let unnumbered = unnumbered_of(&mut turn.reader, ids.clone()).await?;
            if let Some(at) = ids.iter().position(|id| unnumbered.contains(id)) {
                ids.truncate(at);
            }
            if ids.is_empty() {
                return Ok(Tried::Unnumbered);
            }
        }
        let tells_deletions = self.request.since.is_some();
        let is_known_to_match = self.found_in == self.turns && !tells_deletions;
        let matching = match turn.scope.search.among(&ids).filter(|_| !is_known_to_match) {
            None => ids.clone(),
            Some(sql) => ids_of(&mut turn.reader, sql).await?,
        };
        let submissions = read_submissions(&mut turn.reader, matching, &self.store.caller).await?;
        if let Some(bytes) = submissions.bytes().checked_div(ids.len()).filter(|bytes| *bytes > 0) {
            // Not many more at once, since the next ones may be longer.
            self.batch = (BATCH_BYTES / bytes).clamp(1, MAX_BATCH).min(2 * ids.len().max(FIRST_BATCH));
        }
        self.ahead.drain(..ids.len());
        Ok(Tried::Read(ExportRead::Batch(ExportBatch { ids, submissions, tells_deletions })))
    }

    /// Finds ids beyond those that were found before.
    async fn find_ids(&mut self, turn: &mut Turn) -> Result<(), StoreError> {
        let (scope, after) = (&turn.scope, self.found_to);
        let sql = match &self.request.since {
            None => scope.search.page(after, IDS),
            Some(since) => sql!(
                "SELECT id FROM ({+changed}) AS changed ORDER BY id LIMIT {limit} {scans: all may have changed since a cursor}",
                changed = changed_since(since, &scope.followed, self.request.only_form(), after),
                limit = IDS,
            ),
        };
        let ids = ids_of(&mut turn.reader, sql).await?;
        self.is_all_found = i64::try_from(ids.len()).is_ok_and(|found| found < IDS);
        self.found_to = ids.last().copied().unwrap_or(after);
        self.found_in = self.turns;
        self.ahead = ids.into();
        Ok(())
    }
}

/// The ids that a statement finds.
async fn ids_of(reader: &mut PooledConnection, sql: Sql) -> Result<Vec<i64>, StoreError> {
    let mut ids = Vec::new();
    reader
        .fetch_each(sql, &mut |row| {
            ids.push(row.get(0)?);
            Ok(())
        })
        .await?;
    Ok(ids)
}
