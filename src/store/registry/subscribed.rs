//! Which tenants have subscriptions of webhooks, as nodes have seen it.
//!
//! A node writes that a tenant has one before it creates it, so a subscription whose node dies is known to the others. That
//! a tenant has none is only written a while after the last time that one was about to be created.

use std::time::Duration;

use super::Registry;
use crate::store::StoreError;
use crate::store::engine::{Transaction, retry};
use crate::store::statement::{Dialect, Row, sql};

/// For how long after a subscription was about to be created nobody writes that there is none: no request takes as long.
///
/// Larger: a tenant that unsubscribed is watched for longer. Smaller: a subscription that takes long to be created is
/// forgotten.
const CREATING: Duration = Duration::from_secs(60);

/// One writer at a time, so that numbers are in the order of the commits. The number is arbitrary. SQLite has one writer anyway.
pub(super) const LOCK: &str =
    "SELECT pg_advisory_xact_lock(hashtextextended(coalesce(current_schema(), ''), 5120448092217339716))";

/// Whether a tenant has subscriptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribedTenant {
    /// The tenant.
    pub slug: String,
    /// A hash of where its database is.
    pub place: String,
    /// Whether it has any, of whatever state.
    pub is_subscribed: bool,
}

impl Registry {
    /// What changed after a number, and the number of each change, in their order.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn subscribed_after(&self, number: i64, limit: u32) -> Result<Vec<(i64, SubscribedTenant)>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT number, slug, place, is_subscribed FROM registry_subscribed
             WHERE number > {number}
             ORDER BY number LIMIT {limit}",
            number,
            limit,
        );
        let read = |row: &Row| {
            let tenant = SubscribedTenant { slug: row.get(1)?, place: row.get(2)?, is_subscribed: row.get(3)? };
            Ok((row.get(0)?, tenant))
        };
        Ok(reader.fetch_all(sql).await?.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Writes which tenants have subscriptions, and which have none. The latter is left out where one is perhaps being
    /// created.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn write_subscribed(&self, tenants: &[SubscribedTenant]) -> Result<(), StoreError> {
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            if transaction.dialect() == Dialect::Postgres {
                transaction.command(LOCK).await?;
            }
            let newest = sql!("SELECT coalesce(max(number), 0) FROM registry_subscribed");
            let newest: i64 = transaction.connection().fetch_one(newest).await?.get(0)?;
            for (tenant, number) in tenants.iter().zip(newest + 1..) {
                write(&mut transaction, tenant, number).await?;
            }
            Ok(transaction.commit().await?)
        })
        .await
    }
}

async fn write(transaction: &mut Transaction, tenant: &SubscribedTenant, number: i64) -> Result<(), sqlx::Error> {
    // An instant that is still ahead is from before the clock was set back.
    let sql = sql!(
        "INSERT INTO registry_subscribed AS known (slug, place, is_subscribed, number, changed_at)
         VALUES ({slug}, {place}, {is_subscribed}, {number}, {clock})
         ON CONFLICT (slug) DO UPDATE SET place = excluded.place, is_subscribed = excluded.is_subscribed,
           number = excluded.number, changed_at = excluded.changed_at
         WHERE excluded.is_subscribed OR NOT known.is_subscribed OR known.place <> excluded.place
           OR known.changed_at NOT BETWEEN {clock - creating} AND {clock + creating}",
        slug = &tenant.slug,
        place = &tenant.place,
        is_subscribed = tenant.is_subscribed,
        number,
        creating = CREATING,
    );
    transaction.execute(sql).await?;
    Ok(())
}
