//! How often rows were written, by the counters of a Postgres server: one statement for all databases of a server, so
//! that noticing a write costs no connection for each.
//!
//! Each node asks for the tenants that it looks after, so a statement finds them by an index: its cost is that of its own names,
//! however many there are.
//!
//! Only hints. A session reports its writes late, `track_counts` may be off, and a crash resets the counters.

use std::collections::HashMap;

use super::engine::CountedBy;
use super::statement::{TextList, sql};
use super::{Store, StoreError};

impl Store {
    /// The number of rows written so far, by database or by schema. Those without a counter are left out.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`]; on SQLite there are no such counters.
    pub async fn writes(&self, by: &CountedBy, names: &[String]) -> Result<HashMap<String, i64>, StoreError> {
        let names: TextList = names.iter().collect();
        let sql = match by {
            CountedBy::Server(_) => sql!(
                "{pg: SELECT datname::text, tup_inserted + tup_updated + tup_deleted
                 FROM pg_stat_database
                 WHERE datname {in names}}",
                names,
            ),
            // Every write to the data is noted in the first two tables, and what is to be sent again in the others.
            CountedBy::Database(..) => sql!(
                "{pg: SELECT nspname::text, sum(pg_stat_get_tuples_inserted(c.oid) + pg_stat_get_tuples_updated(c.oid))::bigint
                 FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind = 'r'
                   AND c.relname IN ('intake', 'form_notes', 'subscriptions', 'webhook_events')
                 WHERE nspname {in names}
                 GROUP BY nspname}",
                names,
            ),
        };
        let mut reader = self.database.reader().await?;
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, sqlx::Error>>()?)
    }
}
