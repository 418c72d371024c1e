//! Recounts the listed submissions and corrects their counts in `listed_counts`.

use crate::store::StoreError;
use crate::store::engine::Transaction;
use crate::store::statement::{Sql, sql};

/// The counts of all listed submissions. On SQLite a day has 86,400,000,000 microseconds; the remainder is made positive
/// first, so that 1969 is counted too.
fn recounted() -> Sql {
    sql!(
        "SELECT 'form' AS counted, form_id AS key, status, count(*) AS listed
         FROM listed_submissions GROUP BY form_id, status
         UNION ALL SELECT 'created',
           {pg: floor(extract(epoch FROM created_at) / 86400)::bigint
           | lite: (created_at - (created_at % 86400000000 + 86400000000) % 86400000000) / 86400000000}, '', count(*)
         FROM listed_submissions GROUP BY 2
         UNION ALL SELECT 'updated',
           {pg: floor(extract(epoch FROM updated_at) / 86400)::bigint
           | lite: (updated_at - (updated_at % 86400000000 + 86400000000) % 86400000000) / 86400000000}, '', count(*)
         FROM listed_submissions GROUP BY 2
         UNION ALL SELECT CASE WHEN shared THEN 'shared label' ELSE 'label' END, label_id, '', count(*)
         FROM listed_by_label GROUP BY 1, 2
         {scans: counts everything}",
    )
}

/// The condition for the counts of submissions; [`crate::store::totals`] has the others.
fn is_of_submissions() -> Sql {
    Sql::text("counted IN ('form', 'created', 'updated', 'label', 'shared label')")
}

/// Deletes the counts of submissions.
pub(super) async fn delete(transaction: &mut Transaction) -> Result<(), StoreError> {
    let sql = sql!("DELETE FROM listed_counts WHERE {+is_of_submissions}", is_of_submissions = is_of_submissions());
    transaction.execute(sql).await?;
    Ok(())
}

/// Corrects the counts. Returns how many were wrong.
pub(super) async fn repair(transaction: &mut Transaction) -> Result<u64, StoreError> {
    let sql = sql!(
        "WITH recounted AS ({+recounted}),
         stored AS (
           SELECT counted, key, status, listed FROM listed_counts WHERE {+is_of_submissions} AND listed <> 0)
         SELECT count(*) FROM (
           SELECT counted, key, status FROM (SELECT * FROM stored EXCEPT SELECT * FROM recounted) AS a
           UNION SELECT counted, key, status FROM (SELECT * FROM recounted EXCEPT SELECT * FROM stored) AS b) AS wrong",
        recounted = recounted(),
        is_of_submissions = is_of_submissions(),
    );
    let wrong: i64 = transaction.fetch_all(sql).await?.first().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
    if wrong > 0 {
        delete(transaction).await?;
        let sql =
            sql!("INSERT INTO listed_counts (counted, key, status, listed) {+recounted}", recounted = recounted());
        transaction.execute(sql).await?;
    }
    Ok(wrong.unsigned_abs())
}
