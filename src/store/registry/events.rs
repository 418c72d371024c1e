//! What happens to domains without a call of the operator API, and the change feed, which has that and what became of tenants.

use std::time::Duration;

use jiff::Timestamp;

use super::domains::DomainRecord;
use super::stamps::{RegistryMark, has_history, head_stamp};
use super::{Registry, RegistryRow};
use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::{Row, sql};

/// For how long events are kept.
///
/// Larger: the table grows with the number of domains. Smaller: a product that was away for longer misses them.
pub(super) const KEPT: Duration = Duration::from_hours(30 * 24);

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

/// What a reader finds that has read everything up to a mark.
#[derive(Clone, Debug)]
pub struct Feed {
    /// Where the registry is.
    pub head: RegistryMark,
    /// Whether the registry has the history of the reader's mark.
    pub has_history: bool,
    /// The first rows of tenants that changed since, in the order of their revisions.
    pub tenants: Vec<RegistryRow>,
    /// The first events since.
    pub events: Vec<RegistryEvent>,
}

impl Registry {
    /// What a reader finds that has read everything up to a mark, on one connection: a registry that takes the place of this
    /// one meanwhile has another. Without a stamp, its history is not compared.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn feed(&self, after: i64, stamp: Option<i64>, limit: u32) -> Result<Feed, StoreError> {
        let mut reader = self.database.reader().await?;
        let has_history = match stamp {
            Some(stamp) => has_history(RegistryMark { revision: after, stamp }),
            None => sql!("registry_head.revision >= {after}", after),
        };
        // First: two statements may see different revisions, and what one of them missed must not be passed over.
        let sql = sql!(
            "SELECT registry_head.revision, {+head_stamp}, {+has_history} FROM registry_head",
            head_stamp = head_stamp(),
            has_history,
        );
        let row = reader.fetch_one(sql).await?;
        let head = RegistryMark { revision: row.get(0)?, stamp: row.get(1)? };
        let mut feed = Feed { head, has_history: row.get(2)?, tenants: Vec::new(), events: Vec::new() };
        if !feed.has_history || head.revision <= after {
            return Ok(feed);
        }
        let sql = RegistryRow::select_changed(after, head.revision, limit);
        feed.tenants = reader.fetch_all(sql).await?.iter().map(RegistryRow::read).collect::<Result<_, _>>()?;
        let sql = sql!(
            "SELECT revision, kind, slug, host, detail, at FROM registry_events
             WHERE revision > {after} AND revision <= {until}
             ORDER BY revision LIMIT {limit}",
            after,
            until = head.revision,
            limit,
        );
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
        feed.events = reader.fetch_all(sql).await?.iter().map(read).collect::<Result<_, sqlx::Error>>()?;
        Ok(feed)
    }

    /// Removes the events that are no longer kept.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn forget_old_events(&self) -> Result<(), StoreError> {
        // A subquery, which Postgres evaluates once and can look up in the index.
        let sql = sql!("DELETE FROM registry_events WHERE at < (SELECT {clock - kept})", kept = KEPT);
        self.database.execute(sql).await?;
        Ok(())
    }
}

/// Adds an event.
pub(super) async fn append(
    transaction: &mut Transaction,
    revision: i64,
    domain: &DomainRecord,
    event: &DomainEvent,
) -> Result<(), sqlx::Error> {
    let sql = sql!(
        "INSERT INTO registry_events (revision, kind, slug, host, detail, at)
         VALUES ({revision}, {kind}, {slug}, {host}, {detail}, {clock})",
        revision,
        kind = event.kind,
        slug = &domain.slug,
        host = &domain.host,
        detail = &event.detail,
    );
    transaction.execute(sql).await?;
    Ok(())
}
