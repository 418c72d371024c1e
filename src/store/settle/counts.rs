//! Recounts the listed submissions and corrects their counts in `listed_counts`.

use crate::store::StoreError;
use crate::store::engine::Transaction;

const RECOUNT_ON_POSTGRES: &str = "SELECT 'form' AS counted, form_id AS key, status, count(*) AS listed \
    FROM listed_submissions GROUP BY form_id, status \
    UNION ALL SELECT 'created', floor(extract(epoch FROM created_at) / 86400)::bigint, '', count(*) \
    FROM listed_submissions GROUP BY 2 \
    UNION ALL SELECT 'updated', floor(extract(epoch FROM updated_at) / 86400)::bigint, '', count(*) \
    FROM listed_submissions GROUP BY 2 \
    UNION ALL SELECT CASE WHEN shared THEN 'shared label' ELSE 'label' END, label_id, '', count(*) \
    FROM listed_by_label GROUP BY 1, 2";

/// A day has 86,400,000,000 microseconds; the remainder is made positive first, so that 1969 is counted too.
const RECOUNT_ON_SQLITE: &str = "SELECT 'form' AS counted, form_id AS key, status, count(*) AS listed \
    FROM listed_submissions GROUP BY form_id, status \
    UNION ALL SELECT 'created', \
    (created_at - (created_at % 86400000000 + 86400000000) % 86400000000) / 86400000000, '', count(*) \
    FROM listed_submissions GROUP BY 2 \
    UNION ALL SELECT 'updated', \
    (updated_at - (updated_at % 86400000000 + 86400000000) % 86400000000) / 86400000000, '', count(*) \
    FROM listed_submissions GROUP BY 2 \
    UNION ALL SELECT iif(shared, 'shared label', 'label'), label_id, '', count(*) FROM listed_by_label GROUP BY 1, 2";

/// The condition for the counts of submissions; [`crate::store::totals`] has the others.
const OF_SUBMISSIONS: &str = " WHERE counted IN ('form', 'created', 'updated', 'label', 'shared label')";

/// Deletes the counts of submissions.
pub(super) async fn delete(transaction: &mut Transaction) -> Result<(), StoreError> {
    let mut sql = transaction.sql();
    sql.push("DELETE FROM listed_counts").push(OF_SUBMISSIONS);
    transaction.execute(sql).await?;
    Ok(())
}

/// Corrects the counts. Returns how many were wrong.
pub(super) async fn repair(transaction: &mut Transaction) -> Result<u64, StoreError> {
    let mut sql = transaction.sql();
    sql.push("WITH recounted AS (").push_either(RECOUNT_ON_POSTGRES, RECOUNT_ON_SQLITE);
    sql.push("), stored AS (SELECT counted, key, status, listed FROM listed_counts").push(OF_SUBMISSIONS);
    sql.push(" AND listed <> 0) ");
    sql.push(
        "SELECT count(*) FROM (SELECT counted, key, status FROM (SELECT * FROM stored EXCEPT SELECT * FROM recounted) AS a ",
    );
    sql.push(
        "UNION SELECT counted, key, status FROM (SELECT * FROM recounted EXCEPT SELECT * FROM stored) AS b) AS wrong",
    );
    let wrong: i64 = transaction.fetch_all(sql).await?.first().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
    if wrong > 0 {
        delete(transaction).await?;
        let mut sql = transaction.sql();
        sql.push("INSERT INTO listed_counts (counted, key, status, listed) ");
        sql.push_either(RECOUNT_ON_POSTGRES, RECOUNT_ON_SQLITE);
        transaction.execute(sql).await?;
    }
    Ok(wrong.unsigned_abs())
}
