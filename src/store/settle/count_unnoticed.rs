//! Counts changes that the change log does not know of, for `formgate check --deep`.
//!
//! Reads every submission and compares its digests with those that the log had when formgate last looked, in batches that
//! each see one instant. Writes nothing; `reindex` gives such changes a number.

use std::collections::HashSet;

use super::reading::{batches, wanted};
use crate::store::engine::PooledConnection;
use crate::store::statement::sql;
use crate::store::{Store, StoreError};

/// How many submissions are compared as of one instant.
///
/// Larger: a transaction that keeps old rows from being vacuumed takes longer. Smaller: more statements.
const BATCH: i64 = 500;

impl Store {
    /// How many submissions show something else than the change log noticed, or what only filters see of them differs.
    /// Submissions in the intake are left out, and those of which the log has no digest because an older version listed
    /// them.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_unnoticed(&self) -> Result<u64, StoreError> {
        let (mut unnoticed, mut last) = (0, 0);
        loop {
            let mut reader = self.database.reader().await?;
            reader.begin_reading().await?;
            let known = known_after(&mut reader, last).await?;
            let Some((end, ..)) = known.last().copied() else {
                reader.end_transaction("COMMIT").await?;
                return Ok(unnoticed);
            };
            let ids: Vec<i64> = known.iter().map(|(id, ..)| *id).collect();
            let mut differing = HashSet::new();
            for batch in batches(&mut reader, &ids).await? {
                let (_, contents) = wanted(&mut reader, &batch).await?;
                let batch: HashSet<i64> = batch.into_iter().collect();
                let differs = |(id, shown, matched): &&(i64, i64, i64)| {
                    batch.contains(id)
                        && contents.get(id).is_some_and(|now| (now.shown, now.matched) != (*shown, *matched))
                };
                differing.extend(known.iter().filter(differs).map(|(id, ..)| *id));
            }
            let noted = noted_among(&mut reader, &differing).await?;
            reader.end_transaction("COMMIT").await?;
            unnoticed += (differing.len() - noted) as u64;
            last = end;
        }
    }
}

/// The next entries of the log by the id of the submission, and their digests.
async fn known_after(reader: &mut PooledConnection, last: i64) -> Result<Vec<(i64, i64, i64)>, StoreError> {
    let sql = sql!(
        "SELECT submission_id, shown, matched FROM submission_changes
         WHERE NOT deleted AND shown IS NOT NULL AND matched IS NOT NULL AND submission_id > {last}
         ORDER BY submission_id LIMIT {batch}",
        last,
        batch = BATCH,
    );
    let rows = reader.fetch_all(sql).await?;
    Ok(rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).collect::<Result<_, sqlx::Error>>()?)
}

/// How many of the submissions are noted in the intake, by themselves or by a note that names no submission.
async fn noted_among(reader: &mut PooledConnection, submissions: &HashSet<i64>) -> Result<usize, StoreError> {
    if submissions.is_empty() {
        return Ok(0);
    }
    let ids: Vec<i64> = submissions.iter().copied().collect();
    let sql = sql!(
        "SELECT CASE WHEN EXISTS (SELECT 1 FROM intake WHERE submission_id IS NULL) THEN NULL
           ELSE (SELECT count(DISTINCT submission_id) FROM intake WHERE submission_id {in ids}) END",
        ids = &ids,
    );
    let noted: Option<i64> = reader.fetch_one(sql).await?.get(0)?;
    Ok(noted.map_or(ids.len(), |noted| usize::try_from(noted).unwrap_or(ids.len())))
}
