//! What happens to domains without a call of the operator API: for its change feed.

use std::time::Duration;

use jiff::Timestamp;

use super::Registry;
use super::domains::DomainRecord;
use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::Row;

/// For how long events are kept.
///
/// Larger: the table grows with the number of domains. Smaller: a product that was away for longer misses them.
const KEPT: Duration = Duration::from_hours(30 * 24);

/// What happened to a domain.
#[derive(Clone, Debug)]
pub struct DomainEvent {
    /// `domain.live`, `domain.failing` or `certificate.renewal_late`.
    pub kind: &'static str,
    /// A JSON object.
    pub detail: String,
}

/// An event of the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryEvent {
    /// Its number among all changes.
    pub revision: i64,
    /// `domain.live`, `domain.failing` or `certificate.renewal_late`.
    pub kind: String,
    /// The tenant.
    pub slug: String,
    /// The host.
    pub host: String,
    /// A JSON object.
    pub detail: String,
    /// When it happened.
    pub at: Timestamp,
}

impl Registry {
    /// The events after a revision.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn events_after(&self, revision: i64, limit: u32) -> Result<Vec<RegistryEvent>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT revision, kind, slug, host, detail, at FROM registry_events WHERE revision > ").bind(revision);
        sql.push(" ORDER BY revision LIMIT ").bind(i64::from(limit));
        let read = |row: &Row| {
            Ok(RegistryEvent {
                revision: row.get(0)?,
                kind: row.get(1)?,
                slug: row.get(2)?,
                host: row.get(3)?,
                detail: row.get(4)?,
                at: row.get(5)?,
            })
        };
        Ok(reader.fetch_all(sql).await?.iter().map(read).collect::<Result<_, sqlx::Error>>()?)
    }
}

/// Adds an event, and forgets old ones.
pub(super) async fn append(
    transaction: &mut Transaction,
    revision: i64,
    domain: &DomainRecord,
    event: &DomainEvent,
) -> Result<(), sqlx::Error> {
    let mut sql = transaction.sql();
    sql.push("INSERT INTO registry_events (revision, kind, slug, host, detail, at) VALUES (").bind(revision);
    sql.push(", ").bind(event.kind).push(", ").bind(domain.slug.as_str()).push(", ").bind(domain.host.as_str());
    sql.push(", ").bind(event.detail.as_str()).push(", ").push_now_plus(Duration::ZERO).push(")");
    transaction.execute(sql).await?;
    let mut sql = transaction.sql();
    sql.push("DELETE FROM registry_events WHERE at < ").push_now_minus(KEPT);
    transaction.execute(sql).await?;
    Ok(())
}
