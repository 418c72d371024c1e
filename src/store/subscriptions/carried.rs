//! Takes the subscriptions of an account's present database to one that was restored from an earlier backup of it.
//!
//! They are as people left them: one that was deleted since does not come back, one that was created since stays, and so do
//! states and secrets. How far each has got is another matter: what was written before is not sent again.

use jiff::Timestamp;

use crate::store::StoreError;
use crate::store::engine::{PooledConnection, Transaction};
use crate::store::statement::{Argument, Row, Sql, sql};

/// What became of the subscriptions of a restored database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarriedSubscriptions {
    /// How many there are.
    pub all: usize,
    /// How many were deleted since the backup, and stay so.
    pub deleted: usize,
    /// How many are of a form that the backup does not have: they are gone.
    pub lost: usize,
}

/// The columns that are carried, in the order of [`StoredSubscription`].
const COLUMNS: &str = "id, target_url, event, form_id, secret, created_at, state, reason, previous_secret, previous_secret_until, \
    failures, failing_since, last_success_at, token_id, bound";

/// A row, without how far it has got.
struct StoredSubscription {
    id: i64,
    target_url: String,
    event: String,
    form: Option<i64>,
    secret: String,
    created_at: Timestamp,
    state: String,
    reason: Option<String>,
    previous_secret: Option<String>,
    previous_secret_until: Option<Timestamp>,
    failures: i64,
    failing_since: Option<Timestamp>,
    last_success_at: Option<Timestamp>,
    token: Option<i64>,
    bound: bool,
}

impl StoredSubscription {
    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            target_url: row.get(1)?,
            event: row.get(2)?,
            form: row.get(3)?,
            secret: row.get(4)?,
            created_at: row.get(5)?,
            state: row.get(6)?,
            reason: row.get(7)?,
            previous_secret: row.get(8)?,
            previous_secret_until: row.get(9)?,
            failures: row.get(10)?,
            failing_since: row.get(11)?,
            last_success_at: row.get(12)?,
            token: row.get(13)?,
            bound: row.get(14)?,
        })
    }
}

/// Takes the subscriptions of the present database to the restored one, which has its tokens already. How far they have got is
/// left to the caller.
pub(in crate::store) async fn carry_subscriptions(
    present: &mut PooledConnection,
    restored: &mut Transaction,
) -> Result<CarriedSubscriptions, StoreError> {
    let sql = sql!(
        "SELECT {+columns} FROM subscriptions ORDER BY id {scans: an account has few subscriptions}",
        columns = Sql::text(COLUMNS),
    );
    let rows = present.fetch_all(sql).await?;
    let all: Vec<StoredSubscription> = rows.iter().map(StoredSubscription::read).collect::<Result<_, _>>()?;
    let mut kept = Vec::new();
    for subscription in all {
        if exists(restored, &subscription).await? {
            kept.push(subscription);
        }
    }
    let mut carried = CarriedSubscriptions { all: kept.len(), lost: rows.len() - kept.len(), deleted: 0 };
    // Before others are inserted: one of them may have the target of one that was deleted. A connection that ignores foreign keys
    // deletes nothing of these by itself.
    let ids: Vec<i64> = kept.iter().map(|subscription| subscription.id).collect();
    for sql in [
        sql!(
            "DELETE FROM webhook_events WHERE subscription_id {not in ids} {scans: an account has few subscriptions}",
            ids = &ids,
        ),
        sql!("DELETE FROM webhook_attempts WHERE subscription_id {not in ids} {scans: the log is limited}", ids = &ids,),
    ] {
        restored.execute(sql).await?;
    }
    let delete =
        sql!("DELETE FROM subscriptions WHERE id {not in ids} {scans: an account has few subscriptions}", ids = &ids,);
    carried.deleted = usize::try_from(restored.execute(delete).await?).unwrap_or(usize::MAX);
    for subscription in &kept {
        write(restored, subscription).await?;
    }
    Ok(carried)
}

/// Whether the restored database has its form and its token. Without its token, it would be sent what that may not read.
async fn exists(restored: &mut Transaction, subscription: &StoredSubscription) -> Result<bool, sqlx::Error> {
    let sql = sql!(
        "SELECT ({form}{pg: ::bigint} IS NULL OR EXISTS (SELECT 1 FROM forms WHERE id = {form}{pg: ::bigint}))
           AND ({token}{pg: ::bigint} IS NULL OR EXISTS (SELECT 1 FROM tokens WHERE id = {token}{pg: ::bigint}))",
        form = subscription.form,
        token = subscription.token,
    );
    restored.connection().fetch_one(sql).await?.get(0)
}

async fn write(restored: &mut Transaction, subscription: &StoredSubscription) -> Result<(), StoreError> {
    let sql = sql!(
        "INSERT INTO subscriptions ({+columns})
         {pg: OVERRIDING SYSTEM VALUE}
         VALUES ({id}, {target_url}, {event}, {form}, {secret}, {created_at}, {state}, {reason}, {previous_secret},
           {previous_secret_until}, {failures}, {failing_since}, {last_success_at}, {token}, {bound})
         ON CONFLICT (id) DO UPDATE SET target_url = excluded.target_url, event = excluded.event,
           form_id = excluded.form_id, secret = excluded.secret, created_at = excluded.created_at, state = excluded.state,
           reason = excluded.reason, previous_secret = excluded.previous_secret,
           previous_secret_until = excluded.previous_secret_until, failures = excluded.failures,
           failing_since = excluded.failing_since, last_success_at = excluded.last_success_at,
           token_id = excluded.token_id, bound = excluded.bound",
        columns = Sql::text(COLUMNS),
        id = subscription.id,
        target_url = &subscription.target_url,
        event = &subscription.event,
        form = subscription.form,
        secret = Argument::Secret(subscription.secret.clone()),
        created_at = subscription.created_at,
        state = &subscription.state,
        reason = subscription.reason.clone(),
        previous_secret = subscription.previous_secret.clone().map_or(Argument::OptionalText(None), Argument::Secret),
        previous_secret_until = subscription.previous_secret_until,
        failures = subscription.failures,
        failing_since = subscription.failing_since,
        last_success_at = subscription.last_success_at,
        token = subscription.token,
        bound = subscription.bound,
    );
    restored.execute(sql).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::store::schema;

    /// How far a subscription has got.
    const PROGRESS: &str =
        "position, done_beyond, next_attempt_at, leased_by, leased_until, lost_deletions, lost_until";

    /// Whoever adds a column decides here what a restore does with it.
    #[test]
    fn every_column_is_carried_but_how_far_it_has_got() {
        let shape = schema::shapes().into_iter().find(|shape| shape.name == "subscriptions").expect("a table");
        let columns: BTreeSet<_> = shape.columns.iter().map(|(name, _)| *name).collect();
        assert_eq!(COLUMNS.split(", ").chain(PROGRESS.split(", ")).collect::<BTreeSet<_>>(), columns);
    }
}
