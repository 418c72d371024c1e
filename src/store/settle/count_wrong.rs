//! Counts wrong rows of the search tables without writing, for `formgate check --deep`.

use crate::store::{Store, StoreError, totals};

impl Store {
    /// How many submissions are listed wrongly, or have a document without answers or answers without a document, or
    /// are missing in the change log or listed there wrongly, plus one if the counts have a wrong sum, plus how many counts of forms, groups, users and members are wrong. Submissions in the intake are left out. The texts of documents are not
    /// compared; `reindex` does that.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_wrong(&self) -> Result<u64, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("WITH shown AS (SELECT s.id, CASE WHEN (SELECT f.graduated FROM submissions p ");
        sql.push(
            "JOIN forms f ON f.id = p.form_id WHERE p.id = s.parent_id) THEN s.parent_id ELSE s.id END AS shown_in, ",
        );
        sql.push("s.form_id, s.status, s.submitter_id, ").push_instant("s.created_at").push(" AS created_at, ");
        sql.push_instant("s.updated_at").push(" AS updated_at FROM submissions s WHERE NOT s.draft), ");
        sql.push("wanted AS (SELECT id, form_id, status, submitter_id, created_at, updated_at FROM shown WHERE shown_in = id), ");
        sql.push(
            "stored AS (SELECT id, form_id, status, submitter_id, created_at, updated_at FROM listed_submissions), ",
        );
        sql.push("wanted_documents AS (SELECT id, shown_in FROM shown s ");
        sql.push("WHERE EXISTS (SELECT 1 FROM answers a WHERE a.submission_id = s.id)), ");
        sql.push("stored_documents AS (SELECT submission_id AS id, shown_in FROM listed_documents), ");
        sql.push("wanted_log AS (SELECT id, form_id FROM wanted), ");
        sql.push("stored_log AS (SELECT submission_id AS id, form_id FROM submission_changes ");
        sql.push("WHERE shown_in = submission_id AND NOT deleted), ");
        sql.push("wrong (id) AS (SELECT id FROM (SELECT * FROM wanted EXCEPT SELECT * FROM stored) AS a ");
        sql.push("UNION SELECT id FROM (SELECT * FROM stored EXCEPT SELECT * FROM wanted) AS b ");
        sql.push("UNION SELECT id FROM (SELECT * FROM wanted_documents EXCEPT SELECT * FROM stored_documents) AS c ");
        sql.push("UNION SELECT id FROM (SELECT * FROM stored_documents EXCEPT SELECT * FROM wanted_documents) AS d ");
        sql.push("UNION SELECT id FROM (SELECT * FROM wanted_log EXCEPT SELECT * FROM stored_log) AS e ");
        sql.push("UNION SELECT id FROM (SELECT * FROM stored_log EXCEPT SELECT * FROM wanted_log) AS f) ");
        // Such notes affect submissions that they don't name.
        sql.push("SELECT CASE WHEN EXISTS (SELECT 1 FROM intake WHERE submission_id IS NULL OR children) THEN 0 ELSE ");
        sql.push("(SELECT count(*) FROM wrong WHERE id NOT IN (SELECT submission_id FROM intake)) + CASE WHEN ");
        sql.push("(SELECT coalesce(sum(listed), 0) FROM listed_counts WHERE counted = 'form') = (SELECT count(*) FROM stored) ");
        sql.push("THEN 0 ELSE 1 END END");
        let wrong: i64 = reader.fetch_one(sql).await?.get(0)?;
        let mut sql = reader.sql();
        totals::write_count_wrong(&mut sql);
        let totals: i64 = reader.fetch_one(sql).await?.get(0)?;
        Ok(wrong.unsigned_abs() + totals.unsigned_abs())
    }
}
