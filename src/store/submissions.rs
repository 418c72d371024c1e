//! Submissions with everything that they show: one entry a field, their graduated children's after their own.
//!
//! What is shown is borrowed from the rows, so that an answer's text goes from the driver's memory straight to who writes
//! it.

use jiff::Timestamp;

use super::database::Row;
use super::lent::Lent;
use super::{Store, StoreError};

/// A submission as the API shows it.
#[derive(Clone, Debug)]
pub struct Submission<'r> {
    /// The bare id.
    pub id: i64,
    /// As the database spells it.
    pub status: &'r str,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// One entry a field of its form, in form order; then those of its graduated children, by their ids.
    pub entries: Vec<Answer<'r>>,
}

/// What stands in one field; an empty value where it was not answered.
#[derive(Clone, Debug)]
pub struct Answer<'r> {
    /// The field's UUID.
    pub gid: &'r str,
    /// The field's name.
    pub name: &'r str,
    /// The field's type.
    pub kind: &'r str,
    /// The value as stored.
    pub value: &'r str,
    /// A JSON array of file details, for file answers.
    pub files: Option<&'r str>,
    /// When the answer last changed; the submission's own where there is none.
    pub updated_at: Timestamp,
}

/// Submissions as the database tells them: a row an entry, each with the submission that it stands in.
#[derive(Debug, Default)]
pub struct Submissions {
    rows: Vec<Row>,
}

impl Submissions {
    /// The submissions, in the order in which they were asked for.
    ///
    /// # Errors
    /// [`StoreError::Statement`] where the database has what no column of the schema takes.
    pub fn read(&self) -> Result<Vec<Submission<'_>>, StoreError> {
        let mut submissions: Vec<Submission<'_>> = Vec::new();
        for row in &self.rows {
            let (id, is_child): (i64, bool) = (row.get(0)?, row.get(1)?);
            let updated_at = row.get(4)?;
            if !is_child && submissions.last().is_none_or(|last| last.id != id) {
                let (status, created_at) = (row.text(2)?, row.get(3)?);
                submissions.push(Submission { id, status, created_at, updated_at, entries: Vec::new() });
            }
            // A form without fields is one row without an entry.
            if let (Some(shown_in), Some(gid)) = (submissions.last_mut(), row.optional_text(5)?) {
                shown_in.entries.push(Answer {
                    gid,
                    name: row.text(6)?,
                    kind: row.text(7)?,
                    value: row.optional_text(8)?.unwrap_or_default(),
                    files: row.optional_text(9)?,
                    updated_at: row.get::<Option<Timestamp>>(10)?.unwrap_or(updated_at),
                });
            }
        }
        Ok(submissions)
    }
}

impl Store {
    /// Submissions by id, in the order of the ids and with all that they show: one statement. Leaves out drafts, graduated
    /// children and unknown ids, which are not returned by themselves.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn submissions(&self, ids: &[i64]) -> Result<Submissions, StoreError> {
        read_submissions(&mut self.database.reader().await?, ids.to_vec()).await
    }
}

/// The same over a connection that is lent already.
pub(super) async fn read_submissions(reader: &mut Lent, ids: Vec<i64>) -> Result<Submissions, StoreError> {
    if ids.is_empty() {
        return Ok(Submissions::default());
    }
    let mut sql = reader.sql();
    sql.push("WITH shown AS MATERIALIZED (SELECT p.place, s.id, s.form_id, s.status, s.created_at, s.updated_at FROM ");
    sql.push_either("unnest(", "(SELECT key AS place, value AS id FROM json_each(").bind(ids);
    sql.push_either(") WITH ORDINALITY AS p (id, place)", ")) AS p");
    sql.push(" CROSS JOIN submissions s WHERE s.id = p.id AND NOT s.draft AND s.child_of IS NULL), ");
    sql.push("member AS MATERIALIZED (SELECT place, false AS is_child, id, form_id, status, created_at, updated_at FROM shown ");
    sql.push("UNION ALL SELECT p.place, true, c.id, c.form_id, c.status, c.created_at, c.updated_at ");
    sql.push("FROM shown p CROSS JOIN submissions c WHERE c.child_of = p.id AND NOT c.draft), ");
    // All answers of a submission stand together: read as one range and not one by one.
    sql.push("given AS MATERIALIZED (SELECT a.submission_id, a.element_id, a.value, a.files, a.updated_at ");
    sql.push("FROM member m CROSS JOIN answers a WHERE a.submission_id = m.id) ");
    sql.push("SELECT m.id, m.is_child, m.status, m.created_at, m.updated_at, e.gid, e.name, e.type, g.value, ");
    sql.push_either("g.files::text", "g.files").push(", g.updated_at FROM member m ");
    sql.push("LEFT JOIN elements e ON e.form_id = m.form_id ");
    sql.push("LEFT JOIN given g ON g.submission_id = m.id AND g.element_id = e.id ");
    sql.push("ORDER BY m.place, m.is_child, m.id, e.position, e.id");
    Ok(Submissions { rows: reader.fetch_all(sql).await? })
}

impl Row {
    /// The text of a column, where it stands.
    fn text(&self, column: usize) -> Result<&str, sqlx::Error> {
        match self {
            Self::Postgres(row) => sqlx::Row::try_get(row, column),
            Self::Sqlite(row) => sqlx::Row::try_get(row, column),
        }
    }

    /// The text of a column, where there is one.
    fn optional_text(&self, column: usize) -> Result<Option<&str>, sqlx::Error> {
        match self {
            Self::Postgres(row) => sqlx::Row::try_get(row, column),
            Self::Sqlite(row) => sqlx::Row::try_get(row, column),
        }
    }
}
