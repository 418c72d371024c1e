//! Releases events to the senders of webhooks.
//!
//! An event is due once its submission has not changed for the settle time, or has been changing for [`MAX_BURST`] times as
//! long. A change that is numbered before the event was released becomes part of it, and one that is numbered later is an event
//! of its own: the first one may have been sent. Settlers do both in a transaction, one at a time, so neither a clock nor a
//! paused process can come between them.
//!
//! Events are released in the order of their numbers, up to the first one that is not due. Accounts without a subscription
//! release none.

use std::time::Duration;

use super::numbering::MAX_BURST;
use crate::store::statement::{Sql, sql};

/// Which notes a settler has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// All that were committed. What is not due now will not change any more before it is.
    All,
    /// Not all of them: a submission may have changed since, and only events that are due whatever follows are released.
    Some,
}

/// A condition on a row of the change log: its event is not due. One that happened later than now is due: the clock was set
/// back.
fn is_open(settle: Duration, pause: Duration) -> Sql {
    sql!(
        "(changed_at > {clock - pause} AND changed_at <= {clock + settle} AND burst_at > {clock - burst})",
        pause,
        settle,
        burst = settle * MAX_BURST,
    )
}

/// A value for an UPDATE of `change_state`: up to which number events are released, if they were released up to `released`
/// and the last number is `last`.
pub(super) fn released(taken: Taken, settle: Duration, released: i64, last: i64) -> Sql {
    let pause = if taken == Taken::All { settle } else { settle * MAX_BURST };
    sql!(
        "CASE WHEN EXISTS (SELECT 1 FROM subscriptions WHERE state IN ('active', 'failing'))
           THEN coalesce(
             (SELECT min(seq) - 1 FROM (
                SELECT min(created_event) AS seq FROM submission_changes
                WHERE created_event > {released} AND {+created_is_open}
                UNION ALL SELECT min(updated_event) AS seq FROM submission_changes
                WHERE updated_event > {released} AND {+updated_is_open}
                UNION ALL SELECT min(deleted_event) AS seq FROM submission_changes
                WHERE deleted_event > {released} AND {+deleted_is_open}) AS not_due), {last})
           ELSE released_seq END",
        released,
        created_is_open = is_open(settle, pause),
        updated_is_open = is_open(settle, pause),
        deleted_is_open = is_open(settle, pause),
        last,
    )
}

/// A condition: a settler would release an event, unless one with a lower number is not due.
pub(in crate::store) fn may_release(settle: Duration) -> Sql {
    sql!(
        "(EXISTS (SELECT 1 FROM submission_changes, change_state
                  WHERE created_event > released_seq AND NOT {+created_is_open})
          OR EXISTS (SELECT 1 FROM submission_changes, change_state
                     WHERE updated_event > released_seq AND NOT {+updated_is_open})
          OR EXISTS (SELECT 1 FROM submission_changes, change_state
                     WHERE deleted_event > released_seq AND NOT {+deleted_is_open}))",
        created_is_open = is_open(settle, settle),
        updated_is_open = is_open(settle, settle),
        deleted_is_open = is_open(settle, settle),
    )
}
