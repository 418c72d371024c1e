//! How often rows were written, by the counters of a Postgres server: one statement for all databases of a server, so
//! that noticing a write costs no connection for each.
//!
//! Only hints. A session reports its writes late, `track_counts` may be off, and a crash resets the counters.

use std::collections::HashMap;

use super::engine::CountedBy;
use super::{Store, StoreError};

impl Store {
    /// The number of rows written so far, by database or by schema. Those without a counter are left out.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`]; on SQLite there are no such counters.
    pub async fn writes(&self, by: &CountedBy, names: &[String]) -> Result<HashMap<String, i64>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        match by {
            CountedBy::Server(_) => {
                sql.push("SELECT datname::text, tup_inserted + tup_updated + tup_deleted FROM pg_stat_database ");
                sql.push("WHERE datname::text").in_texts(names);
            }
            // Every write to the data is noted in the first two tables, and what is to be sent again in the others.
            CountedBy::Database(..) => {
                sql.push("SELECT schemaname::text, sum(n_tup_ins + n_tup_upd)::bigint FROM pg_stat_all_tables ");
                sql.push(
                    "WHERE relname IN ('intake', 'form_notes', 'subscriptions', 'webhook_events') AND schemaname::text",
                );
                sql.in_texts(names).push(" GROUP BY schemaname");
            }
        }
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<_, sqlx::Error>>()?)
    }
}
