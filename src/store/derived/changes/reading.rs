//! Reads a page of the log, in a transaction that sees one instant of the database.

use std::collections::{BTreeSet, HashSet};

use super::stamps::{LogMark, stamp_of};
use super::{Change, ChangeCursor, ChangeKind, ChangePage, ChangesFrom};
use crate::store::derived::search::with_sub_forms;
use crate::store::derived::settle::is_settled;
use crate::store::engine::PooledConnection;
use crate::store::reach::Caller;
use crate::store::statement::{Row, Sql, sql};
use crate::store::submissions::read_submissions;
use crate::store::{FormReach, StoreError};

/// Of how many forms, sub-forms included, the changes are looked up one form after the other.
///
/// Larger: as many lookups for each page. Smaller: the changes of all forms are read to find those of a few.
const MAX_LOOKED_UP: usize = 64;

/// How many changes are read to find those of more forms than [`MAX_LOOKED_UP`].
///
/// Larger: a page takes longer. Smaller: a reader of rare forms gets more empty pages.
const MAX_READ: i64 = 20_000;

/// The state of a log.
pub(super) struct LogState {
    pub(super) epoch: String,
    /// Its end.
    pub(super) last: LogMark,
    /// The last number of a deletion that is no longer kept.
    pub(super) forgotten: i64,
    /// Stamps of settlings with a lower last number are no longer kept.
    pub(super) unstamped: i64,
    /// The stamp that the number that a reader has seen has now.
    pub(super) stamp_of_seen: i64,
    /// Whether a form was inserted, moved or deleted after that number.
    pub(super) has_placements: bool,
    /// Whether everything that was committed before has a number.
    pub(super) is_numbered: bool,
    /// Whether forms were noted that may have been moved: then it is not known which forms are read.
    pub(super) has_form_notes: bool,
}

/// A row of the log.
struct LogEntry {
    seq: i64,
    change: Change,
}

impl LogState {
    pub(super) async fn read(reader: &mut PooledConnection, from: &ChangesFrom) -> Result<Self, sqlx::Error> {
        let seen = if let ChangesFrom::Cursor(cursor) = from { cursor.seen.seq } else { 0 };
        let sql = sql!(
            "SELECT epoch, last_seq, {+stamp_of_last}, forgotten_seq, unstamped_seq, {+stamp_of_seen},
               EXISTS (SELECT 1 FROM form_placements WHERE seq > {seen}), {+is_settled},
               EXISTS (SELECT 1 FROM form_notes)
             FROM change_state",
            stamp_of_last = stamp_of(Sql::text("last_seq")),
            stamp_of_seen = stamp_of(sql!("{seen}", seen)),
            seen,
            is_settled = is_settled(),
        );
        let row = reader.fetch_one(sql).await?;
        Ok(Self {
            epoch: row.get(0)?,
            last: LogMark { seq: row.get(1)?, stamp: row.get(2)? },
            forgotten: row.get(3)?,
            unstamped: row.get(4)?,
            stamp_of_seen: row.get(5)?,
            has_placements: row.get(6)?,
            is_numbered: row.get(7)?,
            has_form_notes: row.get(8)?,
        })
    }
}

/// The page after a cursor, of the forms that are followed: those that the caller reaches, or some of these.
pub(super) async fn read_page(
    reader: &mut PooledConnection,
    mut cursor: ChangeCursor,
    state: &LogState,
    followed: &FormReach,
    caller: &Caller,
    limit: u32,
) -> Result<ChangePage, StoreError> {
    // One more than is returned shows whether there is more.
    let (wanted, before) = (i64::from(limit) + 1, cursor.position);
    let (mut entries, read_to) = match followed {
        FormReach::All => {
            (read_entries(reader, entries_after(&cursor, Sql::default(), wanted), &cursor).await?, state.last.seq)
        }
        FormReach::Forms(forms) => entries_of_forms(reader, &cursor, state, forms, wanted).await?,
    };
    let mut has_more = read_to < state.last.seq;
    if entries.len() > limit as usize {
        entries.truncate(limit as usize);
        has_more = true;
        cursor.position = entries.last().map_or(cursor.position, |entry| entry.seq);
    } else {
        cursor.position = read_to;
    }
    if !state.is_numbered {
        let unnumbered = unnumbered_among(reader, &entries).await?;
        if let Some(at) = entries.iter().position(|entry| unnumbered.contains(&entry.change.submission)) {
            has_more = true;
            cursor.position = if at == 0 { before } else { entries[at - 1].seq };
            entries.truncate(at);
        }
    }
    let changes: Vec<Change> = entries.into_iter().map(|entry| entry.change).collect();
    let listed = changes.iter().filter(|change| change.kind != ChangeKind::Deleted).map(|change| change.submission);
    let submissions = read_submissions(reader, listed.collect(), caller).await?;
    if !has_more {
        cursor.base = cursor.position;
    }
    Ok(ChangePage { changes, submissions, cursor, has_more })
}

/// Those of the listed submissions that may show something that has no number yet. If it were returned, and taken back
/// before it gets one, the reader would never learn that.
async fn unnumbered_among(reader: &mut PooledConnection, entries: &[LogEntry]) -> Result<HashSet<i64>, StoreError> {
    let listed = entries.iter().filter(|entry| entry.change.kind != ChangeKind::Deleted);
    let ids: Vec<i64> = listed.map(|entry| entry.change.submission).collect();
    unnumbered_of(reader, ids).await
}

/// The same of any submissions.
pub(in crate::store::derived) async fn unnumbered_of(
    reader: &mut PooledConnection,
    ids: Vec<i64>,
) -> Result<HashSet<i64>, StoreError> {
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    // Noted submissions, the parents that show them, those that showed them, children that may be shown elsewhere now, and
    // NULL if there is a note about a form, or everything.
    let sql = sql!(
        "SELECT submission_id FROM intake WHERE submission_id {in ids}
         UNION
         SELECT s.parent_id FROM intake n JOIN submissions s ON s.id = n.submission_id WHERE s.parent_id {in ids}
         UNION
         SELECT c.shown_in FROM intake n JOIN submission_changes c ON c.submission_id = n.submission_id
         WHERE c.shown_in {in ids}
         UNION
         SELECT s.id FROM intake n JOIN submissions s ON s.parent_id = n.submission_id
         WHERE n.children AND s.id {in ids}
         UNION
         SELECT NULL FROM intake WHERE submission_id IS NULL",
        ids = &ids,
    );
    let rows = reader.fetch_all(sql).await?;
    let found: HashSet<Option<i64>> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    Ok(if found.contains(&None) { ids.into_iter().collect() } else { found.into_iter().flatten().collect() })
}

/// The entries of some forms and their sub-forms, and up to which number the log was read.
async fn entries_of_forms(
    reader: &mut PooledConnection,
    cursor: &ChangeCursor,
    state: &LogState,
    forms: &[i64],
    wanted: i64,
) -> Result<(Vec<LogEntry>, i64), StoreError> {
    let sql = sql!(
        "SELECT id FROM {+with_sub_forms} AS wanted LIMIT {limit}",
        with_sub_forms = with_sub_forms(forms),
        limit = MAX_LOOKED_UP as i64 + 1,
    );
    let rows = reader.fetch_all(sql).await?;
    let mut all: Vec<i64> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    let (mut entries, mut read_to) = (Vec::new(), state.last.seq);
    if all.len() <= MAX_LOOKED_UP {
        // Forms that were deleted have no submissions, and may have had some.
        all.extend(forms);
        let all: Vec<i64> = all.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        if cursor.position < state.last.seq {
            for form in &all {
                let sql = entries_after(cursor, sql!(" AND form_id = {form}", form = *form), wanted);
                entries.extend(read_entries(reader, sql, cursor).await?);
            }
            let within = || sql!("{in all}", all = &all);
            entries.extend(read_moves(reader, cursor, read_to, wanted, within).await?);
            mark_entered(reader, cursor, &mut entries, within).await?;
        }
    } else {
        let sql = sql!(
            "SELECT max(seq), count(*)
             FROM (SELECT seq FROM submission_changes WHERE seq > {position} ORDER BY seq LIMIT {limit}) AS next",
            position = cursor.position,
            limit = MAX_READ,
        );
        let row = reader.fetch_one(sql).await?;
        if row.get::<i64>(1)? == MAX_READ {
            read_to = row.get::<Option<i64>>(0)?.unwrap_or(state.last.seq);
        }
        // One that was deleted has no submissions, and may have had some.
        let within = || {
            sql!(
                "IN (SELECT id FROM {+with_sub_forms} AS wanted
                   UNION SELECT {pg: unnest({forms}::bigint[]) | lite: value FROM json_each({forms})})",
                with_sub_forms = with_sub_forms(forms),
                forms,
            )
        };
        let of_forms = sql!(" AND seq <= {read_to} AND form_id {+within}", read_to, within = within());
        entries.extend(read_entries(reader, entries_after(cursor, of_forms, wanted), cursor).await?);
        entries.extend(read_moves(reader, cursor, read_to, wanted, within).await?);
        mark_entered(reader, cursor, &mut entries, within).await?;
    }
    entries.sort_unstable_by_key(|entry| entry.seq);
    entries.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
    Ok((entries, read_to))
}

/// The submissions that left the forms for others. `within` is the condition on a form. One that left several of them
/// in turn is read once, by its last move.
async fn read_moves(
    reader: &mut PooledConnection,
    cursor: &ChangeCursor,
    read_to: i64,
    wanted: i64,
    within: impl Fn() -> Sql,
) -> Result<Vec<LogEntry>, StoreError> {
    let sql = sql!(
        "SELECT m.submission_id, m.form_id, m.seq, m.seq, TRUE, m.changed_at FROM submission_moves m
         WHERE m.seq > {after} AND m.seq <= {read_to} AND m.form_id {+was_within}
           AND NOT EXISTS (
             SELECT 1 FROM submission_changes c WHERE c.submission_id = m.submission_id AND c.form_id {+is_within})
           AND NOT EXISTS (
             SELECT 1 FROM submission_moves l
             WHERE l.submission_id = m.submission_id AND l.seq > m.seq AND l.form_id {+was_within_later})
         ORDER BY m.seq LIMIT {wanted}",
        after = cursor.position.max(cursor.began),
        read_to,
        was_within = within(),
        is_within = within(),
        was_within_later = within(),
        wanted,
    );
    read_entries(reader, sql, cursor).await
}

/// Makes those entries created that came into the forms from others since the reader was at the end of the log.
async fn mark_entered(
    reader: &mut PooledConnection,
    cursor: &ChangeCursor,
    entries: &mut [LogEntry],
    within: impl Fn() -> Sql,
) -> Result<(), StoreError> {
    let updated = entries.iter().filter(|entry| entry.change.kind == ChangeKind::Updated);
    let ids: Vec<i64> = updated.map(|entry| entry.change.submission).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let sql = sql!(
        "SELECT m.submission_id FROM submission_moves m
         WHERE m.seq > {base} AND m.submission_id {in ids} AND NOT (m.form_id {+within})",
        base = cursor.base,
        ids,
        within = within(),
    );
    let rows = reader.fetch_all(sql).await?;
    let entered: HashSet<i64> = rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    for entry in entries {
        if entry.change.kind == ChangeKind::Updated && entered.contains(&entry.change.submission) {
            entry.change.kind = ChangeKind::Created;
        }
    }
    Ok(())
}

/// The entries after a cursor, under further conditions. Of what was deleted before it began, a reader has seen nothing.
fn entries_after(cursor: &ChangeCursor, further: Sql, wanted: i64) -> Sql {
    sql!(
        "SELECT submission_id, form_id, seq, listed_seq, deleted, changed_at FROM submission_changes
         WHERE seq > {position} AND (NOT deleted OR seq > {began}){+further}
         ORDER BY seq LIMIT {wanted}",
        position = cursor.position,
        began = cursor.began,
        further,
        wanted,
    )
}

async fn read_entries(
    reader: &mut PooledConnection,
    sql: Sql,
    cursor: &ChangeCursor,
) -> Result<Vec<LogEntry>, StoreError> {
    let rows = reader.fetch_all(sql).await?;
    let entry = |row: &Row| {
        let kind = if row.get(4)? {
            ChangeKind::Deleted
        } else if row.get::<Option<i64>>(3)?.is_some_and(|listed| listed > cursor.base) {
            ChangeKind::Created
        } else {
            ChangeKind::Updated
        };
        let change = Change { submission: row.get(0)?, form: row.get(1)?, kind, changed_at: row.get(5)? };
        Ok(LogEntry { seq: row.get(2)?, change })
    };
    Ok(rows.iter().map(entry).collect::<Result<_, sqlx::Error>>()?)
}
