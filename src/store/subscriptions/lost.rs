//! Notes which deletions a subscription can't be sent any more: the log keeps them for a time only, and a subscription can be
//! stopped for longer.

use jiff::Timestamp;

use super::Event;
use super::due::write_within;
use crate::store::StoreError;
use crate::store::engine::Transaction;

/// Notes with each subscription what it loses if the deletions before an instant are removed from the log.
pub(in crate::store) async fn note_lost_deletions(
    transaction: &mut Transaction,
    until: Timestamp,
) -> Result<(), StoreError> {
    let mut sql = transaction.sql();
    sql.push("SELECT id, form_id, position, done_beyond FROM subscriptions WHERE event = ");
    sql.bind(Event::SubmissionDeleted.as_str()).push(" AND position < (SELECT max(deleted_event) ");
    sql.push("FROM submission_changes WHERE deleted AND shown_in = submission_id AND changed_at < ").bind(until);
    sql.push(")");
    for subscription in transaction.fetch_all(sql).await? {
        let (id, form): (i64, Option<i64>) = (subscription.get(0)?, subscription.get(1)?);
        let done_beyond: Vec<i64> = serde_json::from_str(&subscription.get::<String>(3)?).unwrap_or_default();
        let mut sql = transaction.sql();
        sql.push("SELECT count(*), max(c.changed_at) FROM submission_changes c WHERE c.deleted ");
        sql.push("AND c.shown_in = c.submission_id AND c.changed_at < ").bind(until).push(" AND c.deleted_event > ");
        sql.bind(subscription.get::<i64>(2)?).push(" AND c.deleted_event").not_in_ids(&done_beyond);
        write_within(&mut sql, Event::SubmissionDeleted, form);
        let Some(lost) = transaction.fetch_all(sql).await?.pop() else { continue };
        let (count, newest): (i64, Option<Timestamp>) = (lost.get(0)?, lost.get(1)?);
        if count > 0 {
            let mut sql = transaction.sql();
            sql.push("UPDATE subscriptions SET lost_deletions = lost_deletions + ").bind(count);
            sql.push(", lost_until = ").bind(newest).push(" WHERE id = ").bind(id);
            transaction.execute(sql).await?;
        }
    }
    Ok(())
}
