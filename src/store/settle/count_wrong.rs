//! Counts wrong rows of the search tables without writing, for `formgate check --deep`.

use crate::store::statement::sql;
use crate::store::{Store, StoreError, totals};

impl Store {
    /// How many submissions are listed wrongly, or have a document without answers or answers without a document, or
    /// are missing in the change log or listed there wrongly, plus one if the counts have a wrong sum, plus how many
    /// counts of forms, groups, users and members are wrong. Submissions in the intake are left out. The texts of
    /// documents are not compared; `reindex` does that.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_wrong(&self) -> Result<u64, StoreError> {
        let mut reader = self.database.reader().await?;
        // Notes that name no submission, and those about children, affect submissions that they don't name.
        let sql = sql!(
            "WITH shown AS (
               SELECT s.id,
                 CASE WHEN (SELECT f.graduated FROM submissions p JOIN forms f ON f.id = p.form_id
                            WHERE p.id = s.parent_id) THEN s.parent_id ELSE s.id END AS shown_in,
                 s.form_id, s.status, s.submitter_id,
                 {instant s.created_at} AS created_at, {instant s.updated_at} AS updated_at
               FROM submissions s WHERE NOT s.draft),
             wanted AS (
               SELECT id, form_id, status, submitter_id, created_at, updated_at FROM shown WHERE shown_in = id),
             stored AS (SELECT id, form_id, status, submitter_id, created_at, updated_at FROM listed_submissions),
             wanted_documents AS (
               SELECT id, shown_in FROM shown s WHERE EXISTS (SELECT 1 FROM answers a WHERE a.submission_id = s.id)),
             stored_documents AS (SELECT submission_id AS id, shown_in FROM listed_documents),
             wanted_log AS (SELECT id, form_id FROM wanted),
             stored_log AS (
               SELECT submission_id AS id, form_id FROM submission_changes
               WHERE shown_in = submission_id AND NOT deleted),
             wrong (id) AS (
               SELECT id FROM (SELECT * FROM wanted EXCEPT SELECT * FROM stored) AS a
               UNION SELECT id FROM (SELECT * FROM stored EXCEPT SELECT * FROM wanted) AS b
               UNION SELECT id FROM (SELECT * FROM wanted_documents EXCEPT SELECT * FROM stored_documents) AS c
               UNION SELECT id FROM (SELECT * FROM stored_documents EXCEPT SELECT * FROM wanted_documents) AS d
               UNION SELECT id FROM (SELECT * FROM wanted_log EXCEPT SELECT * FROM stored_log) AS e
               UNION SELECT id FROM (SELECT * FROM stored_log EXCEPT SELECT * FROM wanted_log) AS f)
             SELECT CASE WHEN EXISTS (SELECT 1 FROM intake WHERE submission_id IS NULL OR children) THEN 0
               ELSE (SELECT count(*) FROM wrong WHERE id NOT IN (SELECT submission_id FROM intake))
                 + CASE WHEN (SELECT coalesce(sum(listed), 0) FROM listed_counts WHERE counted = 'form')
                     = (SELECT count(*) FROM stored) THEN 0 ELSE 1 END END
             {scans: compares everything}",
        );
        let wrong: i64 = reader.fetch_one(sql).await?.get(0)?;
        let totals: i64 = reader.fetch_one(totals::count_wrong()).await?.get(0)?;
        Ok(wrong.unsigned_abs() + totals.unsigned_abs())
    }
}
