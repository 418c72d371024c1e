//! Notes which deletions a subscription can't be sent any more: the log keeps them for a time only, and a subscription can be
//! stopped for longer.

use jiff::Timestamp;

use super::Event;
use super::due::{EventsAbout, is_about};
use super::owner::FORMS;
use crate::store::engine::Transaction;
use crate::store::statement::{Sql, sql};
use crate::store::{FormReach, StoreError};

/// Notes with each subscription what it loses if the deletions before an instant are removed from the log.
pub(in crate::store) async fn note_lost_deletions(
    transaction: &mut Transaction,
    until: Timestamp,
) -> Result<(), StoreError> {
    let stopped = sql!(
        "SELECT id, form_id, position, done_beyond, {+forms_of_token}
         FROM subscriptions
         WHERE event = {event} AND position < (
           SELECT max(deleted_event) FROM submission_changes
           WHERE deleted AND shown_in = submission_id AND changed_at < {until})",
        forms_of_token = Sql::text(FORMS),
        event = Event::SubmissionDeleted.as_str(),
        until,
    );
    for subscription in transaction.fetch_all(stopped).await? {
        let (id, form): (i64, Option<i64>) = (subscription.get(0)?, subscription.get(1)?);
        let done_beyond: Vec<i64> = serde_json::from_str(&subscription.get::<String>(3)?).unwrap_or_default();
        let forms: Option<String> = subscription.get(4)?;
        let reach = FormReach::read(forms.as_deref())?;
        let count = sql!(
            "SELECT count(*), max(c.changed_at)
             FROM submission_changes c
             WHERE c.deleted AND c.shown_in = c.submission_id AND c.changed_at < {until}
               AND c.deleted_event > {position} AND c.deleted_event {not in done_beyond} AND {+is_about}",
            until,
            position = subscription.get::<i64>(2)?,
            done_beyond,
            is_about = is_about(&EventsAbout { event: Event::SubmissionDeleted, form, reach: &reach }),
        );
        let lost = transaction.connection().fetch_one(count).await?;
        let (count, newest): (i64, Option<Timestamp>) = (lost.get(0)?, lost.get(1)?);
        if count > 0 {
            let update = sql!(
                "UPDATE subscriptions SET lost_deletions = lost_deletions + {count}, lost_until = {newest} WHERE id = {id}",
                count,
                newest,
                id,
            );
            transaction.execute(update).await?;
        }
    }
    Ok(())
}
