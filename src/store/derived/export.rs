//! Exports: all submissions that match, or what changed since a cursor, by id, and a point of the change log from which the
//! feed goes on.
//!
//! An export is read in *turns*: transactions that see one instant each and last some seconds at most, so that none holds back
//! VACUUM or a checkpoint of the WAL. The point is the end of the log in the first turn. What a later turn reads is newer than
//! the point, or as new; whatever changes meanwhile has a number behind it, so the feed repeats it.
//!
//! As in the feed, nothing is read that shows something without a number: if that was taken back before it got one, the
//! reader would never learn of it. Such a submission is read again once it has one.

mod reading;

use super::changes::{Joined, changed_since};
use super::search::with_sub_forms;
use super::settle::{Settled, place_noted};
use crate::store::derived::totals::not_negative;
use crate::store::engine::{AsStoreError, retry};
use crate::store::filter::SubmissionFilter;
use crate::store::statement::{Row, sql};
use crate::store::{ChangeCursor, LostCursor, Store, StoreError};
pub use reading::{ExportBatch, ExportRead, ExportReader, ExportRow};
use reading::{Turn, TurnScope};

/// How often an export begins again since forms are moved.
///
/// Larger: a request takes longer while forms are moved all the time. Smaller: more of them are refused.
const MAX_TRIES: usize = 5;

/// What an export has.
#[derive(Clone, Debug, Default)]
pub struct ExportRequest {
    /// Only submissions of this form and of its sub-forms. The cursors are those of this form.
    pub form: Option<i64>,
    /// Without its sub-forms.
    pub is_form_alone: bool,
    /// What they match. Its order does not count.
    pub filter: SubmissionFilter,
    /// Only what changed since then, and what no longer matches.
    pub since: Option<ChangeCursor>,
    /// Only ids beyond this one.
    pub after: i64,
    /// The cursor of the export that this one resumes.
    pub as_of: Option<ChangeCursor>,
}

impl ExportRequest {
    /// The form that it is limited to, without sub-forms.
    fn only_form(&self) -> Option<i64> {
        self.form.filter(|_| self.is_form_alone)
    }
}

/// How much an export would have now.
#[derive(Clone, Debug)]
pub struct ExportCount {
    /// Submissions and deletions.
    pub rows: u64,
    /// Where the feed would go on.
    pub cursor: ChangeCursor,
}

/// An element, as a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportColumn {
    /// Its number.
    pub element: i64,
    /// Its form.
    pub form: i64,
    /// Its UUID.
    pub gid: String,
    /// Its name. Several may have the same.
    pub name: String,
    /// Its type.
    pub kind: String,
    /// Whether it is of a form of graduated children.
    pub is_of_child: bool,
}

/// Why an export can't begin.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The database fails.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A cursor leads nowhere.
    #[error("a cursor of the export is lost: {0:?}")]
    Lost(LostCursor),
}

impl AsStoreError for ExportError {
    fn as_store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Store(error) => Some(error),
            Self::Lost(_) => None,
        }
    }
}

impl Store {
    /// Counts what an export would have.
    ///
    /// # Errors
    /// [`ExportError::Lost`]; [`StoreError::Unsettled`] if what was committed before can't be numbered in time;
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_export(&self, request: &ExportRequest) -> Result<ExportCount, ExportError> {
        let (mut turn, cursor) = self.begin_export(request).await?;
        let rows = self.count_in(&mut turn, request).await?;
        turn.end().await?;
        Ok(ExportCount { rows, cursor: request.as_of.clone().unwrap_or(cursor) })
    }

    async fn count_in(&self, turn: &mut Turn, request: &ExportRequest) -> Result<u64, StoreError> {
        let sql = match &request.since {
            None => turn.scope.search.count(request.after),
            Some(since) => sql!(
                "SELECT count(*) FROM ({+changed}) AS changed {scans: all may have changed since a cursor}",
                changed = changed_since(since, &turn.scope.followed, request.only_form(), request.after),
            ),
        };
        Ok(not_negative(turn.reader.fetch_one(sql).await?.get(0)?))
    }

    /// Begins an export: reads its point of the log.
    ///
    /// # Errors
    /// Those of [`Self::count_export`].
    pub async fn export(&self, request: ExportRequest) -> Result<ExportReader, ExportError> {
        let (turn, cursor) = self.begin_export(&request).await?;
        Ok(ExportReader::new(self.clone(), request, cursor, turn))
    }

    /// The elements of a form, and of the forms of its graduated children: of its sub-forms, and of others that a child is of.
    /// `None` if there is no such form.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_export_columns(&self, form: i64) -> Result<Option<Vec<ExportColumn>>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT graduated FROM forms WHERE id = {form}{+in_reach}",
            form,
            in_reach = self.reach().of_row("forms.id"),
        );
        let Some(row) = reader.fetch_optional(sql).await? else { return Ok(None) };
        let is_graduated: bool = row.get(0)?;
        let column = |row: &Row, is_of_child| -> Result<ExportColumn, sqlx::Error> {
            let (element, form) = (row.get(0)?, row.get(1)?);
            let (gid, name, kind) = (row.get(2)?, row.get(3)?, row.get(4)?);
            Ok(ExportColumn { element, form, gid, name, kind, is_of_child })
        };
        let sql = sql!(
            "SELECT id, form_id, gid, name, type FROM elements WHERE form_id = {form} ORDER BY position, id",
            form
        );
        let own = reader.fetch_all(sql).await?;
        let mut columns: Vec<ExportColumn> = own.iter().map(|row| column(row, false)).collect::<Result<_, _>>()?;
        if is_graduated {
            let sql = sql!(
                "SELECT id, form_id, gid, name, type FROM elements
                 WHERE form_id <> {form} AND form_id IN (
                   SELECT id FROM {+with_sub_forms} AS wanted
                   UNION
                   SELECT c.form_id FROM listed_submissions p JOIN submissions c ON c.parent_id = p.id
                   WHERE p.form_id = {form} AND c.parent_id IS NOT NULL)
                 ORDER BY form_id, position, id
                 {scans: all children, once for an export of a form that has some}",
                form,
                with_sub_forms = with_sub_forms(&[form]),
            );
            for row in reader.fetch_all(sql).await? {
                columns.push(column(&row, true)?);
            }
        }
        Ok(Some(columns))
    }

    /// Begins the first turn: one that sees everything that was committed before this call.
    async fn begin_export(&self, request: &ExportRequest) -> Result<(Turn, ChangeCursor), ExportError> {
        retry::run(|| async move {
            let (begun, is_numbered) = self.try_to_begin(request).await?;
            if let (Some(begun), true) = (begun, is_numbered) {
                return Ok(begun);
            }
            for _ in 0..MAX_TRIES {
                // Numbers can't be given while nothing can be written.
                if self.settle().await? == Settled::CannotWrite {
                    return Err(StoreError::Unsettled.into());
                }
                if !self.follows_all(request.form.as_slice()) {
                    place_noted(&self.database).await?;
                }
                // Writes since then are not waited for.
                if let (Some(begun), _) = self.try_to_begin(request).await? {
                    return Ok(begun);
                }
            }
            Err(StoreError::Unsettled.into())
        })
        .await
    }

    /// A turn, and whether everything that was committed before has a number. None if forms may have been moved.
    async fn try_to_begin(&self, request: &ExportRequest) -> Result<(Option<(Turn, ChangeCursor)>, bool), ExportError> {
        let mut reader = self.database.reader().await?;
        reader.begin_reading().await.map_err(StoreError::from)?;
        let cursors = request.since.iter().chain(&request.as_of);
        match self.join_changes(&mut reader, request.form.as_slice(), cursors).await? {
            Joined::Lost(lost) => Err(ExportError::Lost(lost)),
            Joined::FormsMoved => Ok((None, false)),
            Joined::At { cursor, followed, is_numbered } => {
                let scope = TurnScope::resolve(&mut reader, request, self.reach(), followed).await?;
                Ok((Some((Turn::new(reader, scope, is_numbered), cursor)), is_numbered))
            }
        }
    }
}
