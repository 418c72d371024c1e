//! Reads what should be derived from submissions (`wanted`), and what the search tables have (`stored`).

use std::collections::HashMap;

use super::content::{Content, ContentDigest};
use super::derived::{Derived, ListedSubmission, SearchDocument};
use crate::store::StoreError;
use crate::store::engine::PooledConnection;
use crate::store::statement::{Row, sql};

/// Derived rows by the submission's id. Nothing is derived from a submission that is missing here.
pub(super) type DerivedById = HashMap<i64, Derived>;

/// What submissions show, by id. Drafts and deleted submissions are missing here.
pub(super) type ContentById = HashMap<i64, Content>;

/// How many bytes of answers are derived from at once.
///
/// Larger: settling takes more memory, several times as much. Smaller: more statements.
const MAX_BYTES: i64 = 4 * 1024 * 1024;

/// How many submissions are derived from at once.
///
/// Larger: settling takes more memory. Smaller: more statements.
const MAX_SUBMISSIONS: usize = 1000;

/// Splits submissions into batches, in the given order.
pub(super) async fn batches(reader: &mut PooledConnection, ids: &[i64]) -> Result<Vec<Vec<i64>>, StoreError> {
    let sql = sql!(
        "SELECT submission_id, CAST(sum(octet_length(value)) AS bigint) FROM answers
         WHERE submission_id {in ids} GROUP BY submission_id",
        ids,
    );
    let mut bytes: HashMap<i64, i64> = HashMap::with_capacity(ids.len());
    for row in reader.fetch_all(sql).await? {
        bytes.insert(row.get(0)?, row.get(1)?);
    }
    let (mut batches, mut batch, mut sum) = (Vec::new(), Vec::new(), 0);
    for id in ids {
        sum += bytes.get(id).copied().unwrap_or(0);
        if !batch.is_empty() && (sum > MAX_BYTES || batch.len() == MAX_SUBMISSIONS) {
            sum = bytes.get(id).copied().unwrap_or(0);
            batches.push(std::mem::take(&mut batch));
        }
        batch.push(*id);
    }
    batches.push(batch);
    Ok(batches)
}

/// What should be derived from submissions, and what they show.
pub(super) async fn wanted(
    reader: &mut PooledConnection,
    ids: &[i64],
) -> Result<(DerivedById, ContentById), StoreError> {
    let mut all = DerivedById::with_capacity(ids.len());
    let mut digests: HashMap<i64, ContentDigest> = HashMap::with_capacity(ids.len());
    let mut shown_in: HashMap<i64, i64> = HashMap::with_capacity(ids.len());
    // A subquery per row looks up the parent: a join would be planned by statistics, which may be those of empty
    // tables.
    let sql = sql!(
        "SELECT s.id,
           CASE WHEN (SELECT f.graduated FROM submissions p JOIN forms f ON f.id = p.form_id WHERE p.id = s.parent_id)
             THEN s.parent_id ELSE s.id END,
           s.form_id, s.status, s.submitter_id, {instant s.created_at}, {instant s.updated_at}
         FROM submissions s WHERE NOT s.draft AND s.id {in ids}",
        ids,
    );
    for row in reader.fetch_all(sql).await? {
        let (id, shown): (i64, i64) = (row.get(0)?, row.get(1)?);
        shown_in.insert(id, shown);
        let listed = listed(&row, 2)?;
        let instants = [listed.created_at, listed.updated_at];
        digests.insert(id, ContentDigest::new(shown, listed.form, &listed.status, listed.submitter, instants));
        if shown == id {
            all.insert(id, Derived { listed: Some(listed), ..Derived::default() });
        }
    }
    let shown: Vec<i64> = shown_in.keys().copied().collect();
    if shown.is_empty() {
        return Ok((all, ContentById::new()));
    }

    let sql = sql!(
        "SELECT submission_id, element_id, value, CAST(files AS text), {instant updated_at} FROM answers
         WHERE submission_id {in shown} ORDER BY submission_id, element_id",
        shown = &shown,
    );
    reader
        .fetch_each(sql, &mut |row| {
            let (id, element): (i64, i64) = (row.get(0)?, row.get(1)?);
            let value = row.text(2)?;
            if let Some(shown_in) = shown_in.get(&id) {
                all.entry(id).or_default().add_answer(*shown_in, element, value);
            }
            if let Some(digest) = digests.get_mut(&id) {
                digest.add_answer(element, value, row.get::<Option<String>>(3)?.as_deref(), row.get(4)?);
            }
            Ok(())
        })
        .await?;
    all.values_mut().for_each(Derived::end_document);

    let sql = sql!(
        "SELECT submission_id, CAST(CASE WHEN shared THEN 1 ELSE 0 END AS bigint) AS kind, label_id AS key
         FROM submission_labels WHERE submission_id {in shown}
         UNION ALL SELECT submission_id, 2, user_id FROM submission_pending WHERE submission_id {in shown}
         UNION ALL SELECT submission_id, 3, user_id FROM submission_participants WHERE submission_id {in shown}
         UNION ALL SELECT submission_id, 4, flow_step_id FROM submission_flow_steps WHERE submission_id {in shown}
         ORDER BY 1, 2, 3",
        shown,
    );
    for row in reader.fetch_all(sql).await? {
        let (id, kind, key): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if kind <= 1
            && let Some(Derived { listed: Some(listed), labels, .. }) = all.get_mut(&id)
        {
            labels.insert((key, kind == 1, listed.updated_at));
        }
        if let Some(digest) = digests.get_mut(&id) {
            digest.add_match(kind, key);
        }
    }
    Ok((all, digests.into_iter().map(|(id, digest)| (id, digest.finish())).collect()))
}

/// What the search tables have for submissions.
pub(super) async fn stored(reader: &mut PooledConnection, ids: &[i64]) -> Result<DerivedById, StoreError> {
    let mut all = DerivedById::with_capacity(ids.len());
    let listed_submissions = sql!(
        "SELECT id, form_id, status, submitter_id, created_at, updated_at FROM listed_submissions WHERE id {in ids}",
        ids,
    );
    for row in reader.fetch_all(listed_submissions).await? {
        all.entry(row.get(0)?).or_default().listed = Some(listed(&row, 1)?);
    }
    let documents =
        sql!("SELECT submission_id, shown_in, document FROM listed_documents WHERE submission_id {in ids}", ids);
    for row in reader.fetch_all(documents).await? {
        all.entry(row.get(0)?).or_default().document =
            Some(SearchDocument { shown_in: row.get(1)?, text: row.get(2)? });
    }
    let terms = sql!("SELECT submission_id, shown_in, term FROM listed_terms WHERE submission_id {in ids}", ids);
    for row in reader.fetch_all(terms).await? {
        all.entry(row.get(0)?).or_default().terms.insert((row.get(1)?, row.get(2)?));
    }
    let labels = sql!(
        "SELECT submission_id, label_id, shared, updated_at FROM listed_by_label WHERE submission_id {in ids}",
        ids,
    );
    for row in reader.fetch_all(labels).await? {
        all.entry(row.get(0)?).or_default().labels.insert((row.get(1)?, row.get(2)?, row.get(3)?));
    }
    Ok(all)
}

fn listed(row: &Row, from: usize) -> Result<ListedSubmission, sqlx::Error> {
    Ok(ListedSubmission {
        form: row.get(from)?,
        status: row.get(from + 1)?,
        submitter: row.get(from + 2)?,
        created_at: row.get(from + 3)?,
        updated_at: row.get(from + 4)?,
    })
}
