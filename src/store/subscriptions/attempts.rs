//! Reads the delivery log. Senders write it with their progress ([`super::progress`]).

use std::time::Duration;

use super::{AttemptRecord, Event};
use crate::store::statement::{Page, PageRequest, Row, Sql};
use crate::store::{Store, StoreError};

impl AttemptRecord {
    fn read(row: &Row) -> Result<Option<Self>, sqlx::Error> {
        // That of a newer program.
        let Some(event) = Event::parse(&row.get::<String>(1)?) else { return Ok(None) };
        let took: i64 = row.get(5)?;
        Ok(Some(Self {
            event_id: row.get(0)?,
            event,
            submission: row.get(2)?,
            attempt: u32::try_from(row.get::<i64>(3)?).unwrap_or(u32::MAX),
            at: row.get(4)?,
            took: Duration::from_millis(took.max(0).unsigned_abs()),
            accepted: row.get(6)?,
            status: row.get::<Option<i64>>(7)?.and_then(|status| u16::try_from(status).ok()),
            error: row.get(8)?,
            response: row.get(9)?,
        }))
    }
}

impl Store {
    /// One page of the attempts of a subscription, the newest first; all, or only those that were `accepted` or not.
    /// None: there is no such subscription.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_attempts(
        &self,
        subscription: i64,
        accepted: Option<bool>,
        page: PageRequest,
    ) -> Result<Option<Page<AttemptRecord>>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT (SELECT count(*)");
        write_from(&mut sql, subscription, accepted);
        sql.push(") FROM subscriptions WHERE id = ").bind(subscription);
        let Some(row) = reader.fetch_optional(sql).await? else { return Ok(None) };
        let total: i64 = row.get(0)?;
        let mut sql = reader.sql();
        sql.push("SELECT event_id, event, submission_id, attempt, at, duration_ms, accepted, status, error, response");
        write_from(&mut sql, subscription, accepted);
        sql.push(" ORDER BY id DESC LIMIT ").bind(i64::from(page.size)).push(" OFFSET ").bind(page.offset());
        let rows = reader.fetch_all(sql).await?;
        let items = rows.iter().filter_map(|row| AttemptRecord::read(row).transpose()).collect::<Result<_, _>>()?;
        Ok(Some(Page { items, total: u64::try_from(total).expect("a count is not negative") }))
    }
}

fn write_from(sql: &mut Sql, subscription: i64, accepted: Option<bool>) {
    sql.push(" FROM webhook_attempts WHERE subscription_id = ").bind(subscription);
    if let Some(accepted) = accepted {
        sql.push(if accepted { " AND accepted" } else { " AND NOT accepted" });
    }
}
