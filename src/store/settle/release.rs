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
use crate::store::statement::Sql;

/// The columns of the change log with the numbers of events.
const EVENTS: [&str; 3] = ["created_event", "updated_event", "deleted_event"];

/// Which notes a settler has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// All that were committed. What is not due now will not change any more before it is.
    All,
    /// Not all of them: a submission may have changed since, and only events that are due whatever follows are released.
    Some,
}

/// Adds a condition on a row of the change log: its event is not due. One that happened later than now is due: the clock was set
/// back.
fn write_is_open(sql: &mut Sql, settle: Duration, pause: Duration) {
    sql.push("(changed_at > ").push_now_minus(pause).push(" AND changed_at <= ").push_now_plus(settle);
    sql.push(" AND burst_at > ").push_now_minus(settle * MAX_BURST).push(")");
}

/// Adds an expression for an UPDATE of `change_state`: up to which number events are released, if they were released up to
/// `released` and the last number is `last`.
pub(super) fn write_released(sql: &mut Sql, taken: Taken, settle: Duration, released: i64, last: i64) {
    let pause = if taken == Taken::All { settle } else { settle * MAX_BURST };
    sql.push(
        "CASE WHEN EXISTS (SELECT 1 FROM subscriptions WHERE state IN ('active', 'failing')) THEN coalesce((SELECT ",
    );
    sql.push("min(seq) - 1 FROM (");
    for (at, column) in EVENTS.into_iter().enumerate() {
        sql.push(if at > 0 { " UNION ALL SELECT min(" } else { "SELECT min(" }).push(column);
        sql.push(") AS seq FROM submission_changes WHERE ").push(column).push(" > ").bind(released).push(" AND ");
        write_is_open(sql, settle, pause);
    }
    sql.push(") AS not_due), ").bind(last).push(") ELSE released_seq END");
}

/// Adds an expression: whether a settler would release an event, unless one with a lower number is not due.
pub(in crate::store) fn write_may_release(sql: &mut Sql, settle: Duration) {
    for (at, column) in EVENTS.into_iter().enumerate() {
        sql.push(if at > 0 { " OR " } else { "(" });
        sql.push("EXISTS (SELECT 1 FROM submission_changes, change_state WHERE ").push(column);
        sql.push(" > released_seq AND NOT ");
        write_is_open(sql, settle, settle);
        sql.push(")");
    }
    sql.push(")");
}
