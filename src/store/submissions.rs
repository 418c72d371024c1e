//! Submissions with everything that they show: one entry per field, followed by the entries of graduated children.
//!
//! Texts are borrowed from the rows, so that they are not copied between the driver and the response. A row has a
//! submission with its answers as a list, and the first row of each form also has the form's fields; they are combined
//! here. That costs half as much as a join, in the database and even more so in the driver.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use jiff::Timestamp;
use serde::Deserialize;

use super::engine::PooledConnection;
use super::filter::SortBy;
use super::statement::{Fields, ListRecord, MalformedRecord, Row, SortDirection, Sql};
use super::{Store, StoreError};

/// A submission as the API shows it.
#[derive(Clone, Debug)]
pub struct Submission<'r> {
    /// The bare id.
    pub id: i64,
    /// As the database spells it.
    pub status: &'r str,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// One entry per field of its form, in form order; then those of its graduated children, by id.
    pub entries: Vec<Answer<'r>>,
}

/// A field of a form.
#[derive(Clone, Debug, Deserialize)]
pub struct Field<'r> {
    id: i64,
    /// Its UUID.
    #[serde(borrow)]
    pub gid: Cow<'r, str>,
    /// Its name.
    #[serde(borrow)]
    pub name: Cow<'r, str>,
    /// Its type.
    #[serde(borrow)]
    pub kind: Cow<'r, str>,
}

impl<'r> ListRecord<'r> for Field<'r> {
    fn take(fields: &mut Fields<'r>) -> Result<Self, MalformedRecord> {
        Ok(Self { id: fields.integer()?, gid: fields.text()?, name: fields.text()?, kind: fields.text()? })
    }
}

/// The entry of one field. The value is empty if the field was not answered.
#[derive(Clone, Debug)]
pub struct Answer<'r> {
    /// The index of the field in [`SubmissionsView::fields`].
    pub field: usize,
    /// The value as stored.
    pub value: Cow<'r, str>,
    /// A JSON array of file details, for file answers.
    pub files: Option<Cow<'r, str>>,
    /// When the answer last changed, or the submission if there is no answer.
    pub updated_at: Timestamp,
}

/// Submissions, and the fields of all their forms.
#[derive(Clone, Debug)]
pub struct SubmissionsView<'r> {
    /// Each field once, however many submissions of its form there are.
    pub fields: Vec<Field<'r>>,
    /// In the requested order.
    pub submissions: Vec<Submission<'r>>,
}

/// A stored answer: the field's id, the value, file details, and when it last changed, in microseconds since 1970.
#[derive(Deserialize)]
struct StoredAnswer<'r>(i64, #[serde(borrow)] Cow<'r, str>, #[serde(borrow)] Option<Cow<'r, str>>, i64);

impl<'r> ListRecord<'r> for StoredAnswer<'r> {
    fn take(fields: &mut Fields<'r>) -> Result<Self, MalformedRecord> {
        Ok(Self(fields.integer()?, fields.text()?, fields.optional_text()?, fields.instant()?))
    }
}

/// The rows of submissions, one each, in the requested order, with graduated children after their parents.
#[derive(Debug, Default)]
pub struct Submissions {
    rows: Vec<Row>,
}

/// The columns of a row, as [`write_rows`] selects them.
const ID: usize = 0;
const PARENT: usize = 1;
const FORM: usize = 2;
const STATUS: usize = 3;
const CREATED_AT: usize = 4;
const UPDATED_AT: usize = 5;
const FIELDS: usize = 6;
const ANSWERS: usize = 7;
/// The number of columns.
pub(super) const COLUMNS: usize = 8;

impl Submissions {
    /// Sorts rows in the order of a page.
    pub(super) fn sorted(rows: Vec<Row>, by: SortBy, direction: SortDirection) -> Result<Self, sqlx::Error> {
        let column = match by {
            SortBy::CreatedAt => CREATED_AT,
            SortBy::UpdatedAt => UPDATED_AT,
        };
        let mut positions: Vec<(Timestamp, i64)> = Vec::with_capacity(rows.len());
        for row in &rows {
            if row.get::<Option<i64>>(PARENT)?.is_none() {
                positions.push((row.get(column)?, row.get(ID)?));
            }
        }
        positions.sort_unstable();
        if direction == SortDirection::Descending {
            positions.reverse();
        }
        let ids: Vec<i64> = positions.into_iter().map(|(_, id)| id).collect();
        Ok(Self { rows: in_order(&ids, rows)? })
    }

    /// Combines the rows into submissions.
    ///
    /// # Errors
    /// [`StoreError::Statement`] if a column has a value that the schema does not allow.
    pub fn read(&self) -> Result<SubmissionsView<'_>, StoreError> {
        let mut fields: Vec<Field<'_>> = Vec::new();
        let mut forms: HashMap<i64, Range<usize>> = HashMap::new();
        for row in &self.rows {
            let before = fields.len();
            fields.extend(row.records::<Field<'_>>(FIELDS)?);
            if fields.len() > before {
                forms.insert(row.get(FORM)?, before..fields.len());
            }
        }
        let mut submissions: Vec<Submission<'_>> = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let updated_at = row.get(UPDATED_AT)?;
            match row.get::<Option<i64>>(PARENT)? {
                None => {
                    let (id, status, created_at) = (row.get(ID)?, row.text(STATUS)?, row.get(CREATED_AT)?);
                    submissions.push(Submission { id, status, created_at, updated_at, entries: Vec::new() });
                }
                // A parent that is a draft is not returned, and neither are its children.
                Some(parent) if submissions.last().is_none_or(|last| last.id != parent) => continue,
                Some(_) => {}
            }
            if let (Some(shown_in), Some(form)) = (submissions.last_mut(), forms.get(&row.get(FORM)?)) {
                let positions = form.clone().zip(&fields[form.clone()]);
                add_entries(&mut shown_in.entries, positions, row.records(ANSWERS)?, updated_at)?;
            }
        }
        Ok(SubmissionsView { fields, submissions })
    }
}

/// Adds an entry per field; `fields` has the index of each field.
fn add_entries<'f, 'r: 'f>(
    entries: &mut Vec<Answer<'r>>,
    fields: impl ExactSizeIterator<Item = (usize, &'f Field<'r>)>,
    mut answers: Vec<StoredAnswer<'r>>,
    updated_at: Timestamp,
) -> Result<(), StoreError> {
    answers.sort_unstable_by_key(|answers| answers.0);
    entries.reserve(fields.len());
    for (field, Field { id, .. }) in fields {
        let (value, files, updated_at) = match answers.binary_search_by_key(id, |answers| answers.0) {
            Ok(at) => {
                let StoredAnswer(_, value, files, at) = &mut answers[at];
                let at = Timestamp::from_microsecond(*at).map_err(|error| sqlx::Error::Decode(error.into()))?;
                (std::mem::take(value), files.take(), at)
            }
            Err(_) => (Cow::default(), None, updated_at),
        };
        entries.push(Answer { field, value, files, updated_at });
    }
    Ok(())
}

impl Store {
    /// A submission with everything that it shows, by one statement. Empty if it is unknown, a draft or a graduated
    /// child; the latter are not returned by themselves.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn submission(&self, id: i64) -> Result<Submissions, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        write_rows(&mut sql, FormFields::EveryRow, |sql| {
            sql.push(" = ").bind(id);
        });
        Ok(Submissions { rows: in_order(&[id], reader.fetch_all(sql).await?)? })
    }
}

/// Submissions by id, in the order of the ids, without those that are not returned by themselves.
pub(super) async fn read_submissions(reader: &mut PooledConnection, ids: Vec<i64>) -> Result<Submissions, StoreError> {
    if ids.is_empty() {
        return Ok(Submissions::default());
    }
    let mut sql = reader.sql();
    write_rows(&mut sql, FormFields::OncePerForm, |sql| {
        sql.in_ids_with_generic_plan(&ids);
    });
    Ok(Submissions { rows: in_order(&ids, reader.fetch_all(sql).await?)? })
}

/// Which rows have the fields of their form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormFields {
    /// The first row of each form.
    OncePerForm,
    /// All rows. For one submission, which has few children, this costs less than finding the first row of each form.
    EveryRow,
}

/// Adds the query of the rows of [`Submissions`], with [`COLUMNS`] columns. `among` adds the condition on the ids.
pub(super) fn write_rows(sql: &mut Sql, fields: FormFields, among: impl Fn(&mut Sql)) {
    sql.push("SELECT m.id, m.child_of, m.form_id, m.status, m.created_at, m.updated_at, ");
    let once = fields == FormFields::OncePerForm;
    sql.push(if once { "CASE WHEN row_number() OVER (PARTITION BY m.form_id) = 1 THEN (" } else { "(" });
    sql.push_records(&["id", "gid", "name", "type"]);
    sql.push(" FROM (SELECT e.id, e.gid, e.name, e.type FROM elements e WHERE e.form_id = m.form_id ");
    sql.push("ORDER BY e.position, e.id) AS fields)").push(if once { " END" } else { "" }).push(" AS fields, (");
    sql.push_records(&["a.element_id", "a.value", "CAST(a.files AS text)", "a.updated_at"]);
    sql.push(" FROM (SELECT element_id, value, files, ").push_instant("updated_at");
    sql.push(" AS updated_at FROM answers WHERE submission_id = m.id) AS a) AS answers FROM (");
    // A scalar subquery is not evaluated if there is no parent, and Postgres does not turn it into a join.
    write_head(sql, "CAST(NULL AS bigint)");
    sql.push(" FROM submissions m WHERE NOT m.draft AND NOT coalesce((SELECT f.graduated FROM submissions p ");
    sql.push("JOIN forms f ON f.id = p.form_id WHERE p.id = m.parent_id), false) AND m.id");
    among(sql);
    sql.push(" UNION ALL ");
    write_head(sql, "m.parent_id");
    sql.push(" FROM submissions p JOIN forms f ON f.id = p.form_id CROSS JOIN submissions m ");
    sql.push("WHERE f.graduated AND m.parent_id = p.id AND NOT m.draft AND p.id");
    among(sql);
    sql.push(") AS m");
}

fn write_head(sql: &mut Sql, child_of: &'static str) {
    sql.push("SELECT m.id, ").push(child_of).push(" AS child_of, m.form_id, m.status, ").push_instant("m.created_at");
    sql.push(" AS created_at, ").push_instant("m.updated_at").push(" AS updated_at");
}

/// The rows in the order of the ids; children after their parents, by their own ids.
fn in_order(ids: &[i64], rows: Vec<Row>) -> Result<Vec<Row>, sqlx::Error> {
    let positions: HashMap<i64, usize> = ids.iter().copied().zip(0..).collect();
    let mut sorted = Vec::with_capacity(rows.len());
    for row in rows {
        let (id, child_of): (i64, Option<i64>) = (row.get(ID)?, row.get(PARENT)?);
        sorted.push(((positions.get(&child_of.unwrap_or(id)).copied(), child_of.is_some(), id), row));
    }
    sorted.sort_unstable_by_key(|(position, _)| *position);
    Ok(sorted.into_iter().map(|(_, row)| row).collect())
}
