//! What exports need of the log: a point from which the feed goes on, and what changed since another one.
//!
//! The point is the end of the log in the snapshot that the first rows are read in, so what is read then or later is at least
//! that new.

use super::reading::LogState;
use super::{ChangeCursor, ChangesFrom, LostCursor, form_tree, lost, start};
use crate::store::derived::search::with_sub_forms;
use crate::store::engine::PooledConnection;
use crate::store::statement::{Sql, sql};
use crate::store::{FormReach, Store, StoreError};

/// Where a reader joins the feed.
pub(in crate::store::derived) enum Joined {
    /// At the end of the log.
    At {
        cursor: ChangeCursor,
        /// What it follows: all of its reach, or the part in the forms that it names.
        followed: FormReach,
        /// Whether everything that was committed before has a number.
        is_numbered: bool,
    },
    /// One of its cursors leads nowhere.
    Lost(LostCursor),
    /// Forms may have been moved, so it is not known yet which ones it follows.
    FormsMoved,
}

impl Store {
    /// Joins the feed of some forms at the end of the log, in a transaction that sees one instant. `cursors` are those that the
    /// reader has.
    pub(in crate::store::derived) async fn join_changes(
        &self,
        reader: &mut PooledConnection,
        forms: &[i64],
        cursors: impl Iterator<Item = &ChangeCursor> + Send,
    ) -> Result<Joined, StoreError> {
        let state = LogState::read(reader, &ChangesFrom::Now).await?;
        if !self.follows_all(forms) && state.has_form_notes {
            return Ok(Joined::FormsMoved);
        }
        let followed = self.reach().narrowed_to(reader, forms).await?;
        for cursor in cursors {
            let state = LogState::read(reader, &ChangesFrom::Cursor(cursor.clone())).await?;
            if let Some(lost) = lost(cursor, &state) {
                return Ok(Joined::Lost(lost));
            }
            if self.follows_others(reader, (cursor, &state), forms, &followed).await? {
                return Ok(Joined::Lost(LostCursor::Reset));
            }
        }
        Ok(Joined::At { cursor: start(&ChangesFrom::Now, &state), followed, is_numbered: state.is_numbered })
    }

    /// Whether a reader of some forms, who follows `followed` now, followed other ones when it got a cursor.
    pub(super) async fn follows_others(
        &self,
        reader: &mut PooledConnection,
        (cursor, state): (&ChangeCursor, &LogState),
        forms: &[i64],
        followed: &FormReach,
    ) -> Result<bool, StoreError> {
        let FormReach::Forms(read) = followed else { return Ok(false) };
        if !state.has_placements {
            return Ok(false);
        }
        let limits = [Some(forms).filter(|forms| !forms.is_empty()), self.reach().forms()];
        let limits: Vec<&[i64]> = limits.into_iter().flatten().collect();
        form_tree::has_changed(reader, &limits, read, cursor.seen.seq, cursor.position).await
    }
}

/// The ids beyond `after` of the submissions that changed since a cursor, with those that were deleted or left the forms.
/// `only_form`: of this one without its sub-forms.
pub(in crate::store::derived) fn changed_since(
    cursor: &ChangeCursor,
    followed: &FormReach,
    only_form: Option<i64>,
    after: i64,
) -> Sql {
    let of_log = |further: Sql| {
        sql!(
            "SELECT c.submission_id AS id FROM submission_changes c
             WHERE c.seq > {position} AND (NOT c.deleted OR c.seq > {began}) AND c.submission_id > {after}{+further}",
            position = cursor.position,
            began = cursor.began,
            after,
            further,
        )
    };
    let FormReach::Forms(forms) = followed else { return of_log(Sql::default()) };
    let within = || match only_form {
        Some(form) => {
            let forms: Vec<i64> = forms.iter().copied().filter(|followed| *followed == form).collect();
            sql!("{in forms}", forms)
        }
        None => sql!(
            "IN (SELECT id FROM {+with_sub_forms} AS wanted
               UNION SELECT {pg: unnest({forms}::bigint[]) | lite: value FROM json_each({forms})})",
            with_sub_forms = with_sub_forms(forms),
            forms,
        ),
    };
    sql!(
        "{+changed}
         UNION
         SELECT m.submission_id FROM submission_moves m
         WHERE m.seq > {moved_after} AND m.submission_id > {after} AND m.form_id {+was_within}",
        changed = of_log(sql!(" AND c.form_id {+within}", within = within())),
        moved_after = cursor.position.max(cursor.began),
        after,
        was_within = within(),
    )
}
