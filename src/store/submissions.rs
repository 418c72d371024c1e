//! Submissions with everything that they show: one entry a field, their graduated children's after their own.

use std::collections::HashMap;

use jiff::Timestamp;

use super::database::Row;
use super::lent::Lent;
use super::search::LISTED;
use super::{Store, StoreError};

/// A submission as the API shows it.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The bare id.
    pub id: i64,
    /// As the database spells it.
    pub status: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// One entry a field of its form, in form order; then those of its graduated children, by their ids.
    pub entries: Vec<Answer>,
}

/// What stands in one field; an empty value where it was not answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The field's UUID.
    pub gid: String,
    /// The field's name.
    pub name: String,
    /// The field's type.
    pub kind: String,
    /// The value as stored.
    pub value: String,
    /// A JSON array of file details, for file answers.
    pub files: Option<String>,
    /// When the answer last changed; the submission's own where there is none.
    pub updated_at: Timestamp,
}

/// The columns of [`SubmissionRow`].
pub(super) const SUBMISSION_COLUMNS: &str = "s.id, s.status, s.created_at, s.updated_at";

/// A submission without its entries.
pub(super) struct SubmissionRow {
    id: i64,
    status: String,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl SubmissionRow {
    pub(super) fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self { id: row.get(0)?, status: row.get(1)?, created_at: row.get(2)?, updated_at: row.get(3)? })
    }
}

impl Store {
    /// One submission that is returned by itself: none for a draft, a graduated child and an unknown id.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_submission(&self, id: i64) -> Result<Option<Submission>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT ").push(SUBMISSION_COLUMNS).push(" FROM submissions s WHERE ").push(LISTED);
        sql.push(" AND s.id = ").bind(id);
        let Some(row) = reader.fetch_optional(sql).await? else { return Ok(None) };
        Ok(with_entries(&mut reader, vec![SubmissionRow::read(&row)?]).await?.pop())
    }
}

/// Adds the entries of all submissions of a page, with one statement.
pub(super) async fn with_entries(reader: &mut Lent, rows: Vec<SubmissionRow>) -> Result<Vec<Submission>, sqlx::Error> {
    let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
    let mut sql = reader.sql();
    sql.push("SELECT m.shown_in, e.gid, e.name, e.type, coalesce(a.value, ''), ");
    sql.push_either("a.files::text", "a.files").push(", coalesce(a.updated_at, m.updated_at) FROM (");
    sql.push("SELECT id, form_id, updated_at, id AS shown_in, 0 AS level FROM submissions WHERE id").in_ids(&ids);
    sql.push(" UNION ALL SELECT id, form_id, updated_at, child_of, 1 FROM submissions WHERE NOT draft AND child_of");
    sql.in_ids(&ids).push(") m JOIN elements e ON e.form_id = m.form_id");
    sql.push(" LEFT JOIN answers a ON a.submission_id = m.id AND a.element_id = e.id");
    sql.push(" ORDER BY m.level, m.id, e.position, e.id");

    let mut entries: HashMap<i64, Vec<Answer>> = HashMap::with_capacity(ids.len());
    for row in reader.fetch_all(sql).await? {
        entries.entry(row.get(0)?).or_default().push(Answer {
            gid: row.get(1)?,
            name: row.get(2)?,
            kind: row.get(3)?,
            value: row.get(4)?,
            files: row.get(5)?,
            updated_at: row.get(6)?,
        });
    }
    let with_entries = |row: SubmissionRow| Submission {
        entries: entries.remove(&row.id).unwrap_or_default(),
        id: row.id,
        status: row.status,
        created_at: row.created_at,
        updated_at: row.updated_at,
    };
    Ok(rows.into_iter().map(with_entries).collect())
}
