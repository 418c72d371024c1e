//! Submissions with everything that they show: one entry per field, followed by the entries of graduated children.
//!
//! Texts are borrowed from the rows, so that they are not copied between the driver and the response. A row has a
//! submission with its answers as a list, and the first row of each form also has the form's fields; they are combined
//! here. That costs half as much as a join, in the database and even more so in the driver.
//!
//! Rows are read whole up to [`MAX_BYTES`] together. A longer list of submissions is read again, in [`parts`]: nearly
//! all lists are short, and measuring each one first would cost them a statement.

mod parts;
mod shown_elements;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use jiff::Timestamp;
use serde::Deserialize;

use super::engine::PooledConnection;
use super::filter::SortBy;
use super::reach::Caller;
use super::statement::{Fields, ListRecord, MalformedRecord, Row, SortDirection, Sql, sql};
use super::{FormReach, Store, StoreError};

pub use parts::{SubmissionPart, SubmissionReader};
pub use shown_elements::ShownElements;

/// A submission as the API shows it.
#[derive(Clone, Debug)]
pub struct Submission<'r> {
    /// The bare id.
    pub id: i64,
    /// Its form.
    pub form: i64,
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
    /// The number of the element.
    pub id: i64,
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
/// SQLite leaves out a value that is too long to be read with others.
#[derive(Debug, Deserialize)]
struct StoredAnswer<'r>(i64, #[serde(borrow)] Option<Cow<'r, str>>, #[serde(borrow)] Option<Cow<'r, str>>, i64);

impl StoredAnswer<'_> {
    fn into_owned(self) -> StoredAnswer<'static> {
        let owned = |text: Option<Cow<'_, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        StoredAnswer(self.0, owned(self.1), owned(self.2), self.3)
    }
}

impl<'r> ListRecord<'r> for StoredAnswer<'r> {
    fn take(fields: &mut Fields<'r>) -> Result<Self, MalformedRecord> {
        Ok(Self(fields.integer()?, fields.optional_text()?, fields.optional_text()?, fields.instant()?))
    }
}

/// The rows of submissions, one each, in the requested order, with graduated children after their parents.
#[derive(Debug, Default)]
pub struct Submissions {
    rows: SubmissionRows,
    /// The submissions, in the requested order.
    ids: Vec<i64>,
}

/// How many bytes of rows are read whole.
///
/// Larger: an answer holds more memory. Smaller: more answers are read in parts, by more statements.
const MAX_BYTES: usize = 1024 * 1024;

/// [`MAX_BYTES`] as text of a statement: the most bytes of the answers in one row.
const MAX_ROW_BYTES: &str = "1048576";

/// The longest value on SQLite that is read with others, in bytes: it builds the whole list before it can measure it.
///
/// Larger: the list takes more memory before it is left out. Smaller: more lists with one long value are read again.
const MAX_TEXT: &str = "262144";

/// How many entries submissions have that are read whole. As JSON, more than these exceed `MAX_BYTES`, too.
///
/// Larger: an answer holds more memory. Smaller: some answers are streamed that would be short enough.
const MAX_ENTRIES: usize = 11_000;

/// Rows of submissions.
#[derive(Debug, Default)]
pub(super) struct SubmissionRows {
    all: Vec<Row>,
    /// How many bytes they have.
    bytes: usize,
    /// There were too many bytes: of the rows only the first is here, without its answers.
    are_too_long: bool,
}

impl SubmissionRows {
    /// All rows of a statement, unless they are too long.
    pub(super) async fn fetch(reader: &mut PooledConnection, sql: Sql) -> Result<Self, sqlx::Error> {
        let (mut rows, mut bytes, held) = (Self::default(), 0_usize, reader.rows());
        let mut each = |row: Row| {
            let row_bytes = row.bytes();
            bytes = bytes.saturating_add(row_bytes);
            rows.are_too_long |= bytes > MAX_BYTES || (row.is_null(ANSWERS)? && !row.is_null(ID)?);
            if rows.are_too_long {
                rows.all.truncate(1);
            }
            if !rows.are_too_long || rows.all.is_empty() {
                held.hold(row_bytes)?;
                rows.bytes += row_bytes;
                rows.all.push(row);
            }
            Ok(())
        };
        reader.fetch_each(sql, &mut each).await?;
        Ok(rows)
    }

    /// The first row.
    pub(super) fn first(&self) -> Option<&Row> {
        self.all.first()
    }

    /// Whether only the first row is here.
    pub(super) fn are_too_long(&self) -> bool {
        self.are_too_long
    }
}

/// [`COLUMNS`] columns of a submission `m` for a caller that reads no answers. NULL would say that they are too long.
const WITHOUT_ANSWERS: &str =
    "m.id, m.child_of, m.form_id, m.status, m.created_at, m.updated_at, NULL AS fields, '' AS answers";

/// The columns of a row, as [`select_rows`] selects them.
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
    pub(super) fn sorted(rows: SubmissionRows, by: SortBy, direction: SortDirection) -> Result<Self, sqlx::Error> {
        let column = match by {
            SortBy::CreatedAt => CREATED_AT,
            SortBy::UpdatedAt => UPDATED_AT,
        };
        let mut positions: Vec<(Timestamp, i64)> = Vec::with_capacity(rows.all.len());
        for row in &rows.all {
            if row.get::<Option<i64>>(PARENT)?.is_none() {
                positions.push((row.get(column)?, row.get(ID)?));
            }
        }
        positions.sort_unstable();
        if direction == SortDirection::Descending {
            positions.reverse();
        }
        let ids: Vec<i64> = positions.into_iter().map(|(_, id)| id).collect();
        Self::in_order(ids, rows)
    }

    /// Submissions that are to be read in parts.
    pub(super) fn in_parts(ids: Vec<i64>) -> Self {
        Self { rows: SubmissionRows { are_too_long: true, ..SubmissionRows::default() }, ids }
    }

    /// The rows in the order of ids.
    fn in_order(ids: Vec<i64>, rows: SubmissionRows) -> Result<Self, sqlx::Error> {
        let SubmissionRows { all, bytes, are_too_long } = rows;
        let all = if are_too_long { Vec::new() } else { in_order(&ids, all)? };
        Ok(Self { rows: SubmissionRows { all, bytes, are_too_long }, ids })
    }

    /// The submissions, in the requested order, for [`Store::read_in_parts`].
    #[must_use]
    pub fn ids(&self) -> &[i64] {
        &self.ids
    }

    /// How many bytes the rows have.
    pub(super) fn bytes(&self) -> usize {
        self.rows.bytes
    }

    /// Combines the rows into submissions. None if they are to be read in parts.
    ///
    /// # Errors
    /// [`StoreError::Statement`] if a column has a value that the schema does not allow.
    pub fn read(&self) -> Result<Option<SubmissionsView<'_>>, StoreError> {
        if self.rows.are_too_long {
            return Ok(None);
        }
        let (rows, mut entries) = (&self.rows.all, 0);
        let mut fields: Vec<Field<'_>> = Vec::new();
        let mut forms: HashMap<i64, Range<usize>> = HashMap::new();
        for row in rows {
            let before = fields.len();
            fields.extend(row.records::<Field<'_>>(FIELDS)?);
            if fields.len() > before {
                forms.insert(row.get(FORM)?, before..fields.len());
            }
        }
        let mut submissions: Vec<Submission<'_>> = Vec::with_capacity(rows.len());
        for row in rows {
            let updated_at = row.get(UPDATED_AT)?;
            match row.get::<Option<i64>>(PARENT)? {
                None => {
                    let (id, form) = (row.get(ID)?, row.get(FORM)?);
                    let (status, created_at) = (row.text(STATUS)?, row.get(CREATED_AT)?);
                    submissions.push(Submission { id, form, status, created_at, updated_at, entries: Vec::new() });
                }
                // A parent that is a draft is not returned, and neither are its children.
                Some(parent) if submissions.last().is_none_or(|last| last.id != parent) => continue,
                Some(_) => {}
            }
            if let (Some(shown_in), Some(form)) = (submissions.last_mut(), forms.get(&row.get(FORM)?)) {
                entries += form.len();
                let answers: Vec<StoredAnswer<'_>> = row.records(ANSWERS)?;
                if entries > MAX_ENTRIES || answers.iter().any(|answer| answer.1.is_none()) {
                    return Ok(None);
                }
                let positions = form.clone().zip(&fields[form.clone()]);
                add_entries(&mut shown_in.entries, positions, answers, updated_at)?;
            }
        }
        Ok(Some(SubmissionsView { fields, submissions }))
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
        let stored = answers.binary_search_by_key(id, |answers| answers.0).ok();
        let stored = stored.map(|at| {
            let StoredAnswer(id, value, files, at) = &mut answers[at];
            StoredAnswer(*id, value.take(), files.take(), *at)
        });
        entries.push(answer_of(field, stored, updated_at)?);
    }
    Ok(())
}

/// The entry of a field, answered or not.
fn answer_of<'r>(
    field: usize,
    stored: Option<StoredAnswer<'r>>,
    submission_updated_at: Timestamp,
) -> Result<Answer<'r>, StoreError> {
    let Some(StoredAnswer(_, value, files, at)) = stored else {
        return Ok(Answer { field, value: Cow::default(), files: None, updated_at: submission_updated_at });
    };
    let updated_at = Timestamp::from_microsecond(at).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Answer { field, value: value.unwrap_or_default(), files, updated_at })
}

impl Store {
    /// A submission with everything that it shows, by one statement. Empty if it is unknown, a draft or a graduated
    /// child; the latter are not returned by themselves.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn submission(&self, id: i64) -> Result<Submissions, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = select_rows(FormFields::EveryRow, &self.caller, || sql!("= {id}", id));
        Ok(Submissions::in_order(vec![id], SubmissionRows::fetch(&mut reader, sql).await?)?)
    }
}

/// Submissions by id, in the order of the ids, without those that are not returned by themselves or out of reach.
pub(super) async fn read_submissions(
    reader: &mut PooledConnection,
    ids: Vec<i64>,
    caller: &Caller,
) -> Result<Submissions, StoreError> {
    if ids.is_empty() {
        return Ok(Submissions::default());
    }
    let sql = select_rows(FormFields::OncePerForm, caller, || sql!("{in unsized ids}", ids = &ids));
    Ok(Submissions::in_order(ids, SubmissionRows::fetch(reader, sql).await?)?)
}

/// Which rows have the fields of their form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormFields {
    /// The first row of each form.
    OncePerForm,
    /// All rows. For one submission, which has few children, this costs less than finding the first row of each form.
    EveryRow,
    /// None.
    Unread,
}

/// The rows of [`Submissions`], with [`COLUMNS`] columns. `among` is the condition on the ids.
pub(super) fn select_rows(fields: FormFields, caller: &Caller, among: impl Fn() -> Sql) -> Sql {
    let Caller { reach, elements, .. } = caller;
    let children = || {
        sql!(
            " UNION ALL
              SELECT m.id, m.parent_id AS child_of, m.form_id, m.status, {instant m.created_at} AS created_at,
                {instant m.updated_at} AS updated_at
              FROM submissions p JOIN forms f ON f.id = p.form_id CROSS JOIN submissions m
              WHERE f.graduated AND m.parent_id = p.id AND NOT m.draft AND p.id {+among}{+in_reach}",
            among = among(),
            in_reach = reach.of_row("p.form_id"),
        )
    };
    sql!(
        "SELECT {+columns} FROM ({+shown}{+children}) AS m",
        columns = columns(fields, elements, MAX_ROW_BYTES),
        shown = shown(among(), reach),
        // They only add answers.
        children = if elements.are_none() { Sql::default() } else { children() },
    )
}

/// [`COLUMNS`] columns of a submission `m`. The answers are NULL if they have more than `max_bytes` bytes.
fn columns(fields: FormFields, elements: &ShownElements, max_bytes: &'static str) -> Sql {
    if elements.are_none() {
        return Sql::text(WITHOUT_ANSWERS);
    }
    sql!(
        "m.id, m.child_of, m.form_id, m.status, m.created_at, m.updated_at, {+fields} AS fields,
         (SELECT CASE
            WHEN coalesce(sum(octet_length(a.value)), 0) + coalesce(sum(octet_length(a.files)), 0) <= {+max_bytes} THEN
              {pg: ROW (array_agg(a.element_id), array_agg(a.value), array_agg(a.files), array_agg(a.updated_at))
              | lite: json_group_array(json_array(a.element_id,
                  CASE WHEN octet_length(a.value) <= {+max_text} THEN a.value END, a.files, a.updated_at))} END
          FROM (SELECT element_id, value, CAST(files AS text) AS files, {instant updated_at} AS updated_at
                FROM answers WHERE submission_id = m.id{+in_elements}) AS a) AS answers",
        fields = fields.of_form(elements),
        in_elements = elements.of_row("element_id"),
        max_bytes = Sql::text(max_bytes),
        max_text = Sql::text(MAX_TEXT),
    )
}

impl FormFields {
    /// The list of the fields of the form of a submission `m`.
    fn of_form(self, elements: &ShownElements) -> Sql {
        let fields = sql!(
            "({records: id, gid, name, type}
              FROM (SELECT e.id, e.gid, e.name, e.type FROM elements e WHERE e.form_id = m.form_id{+in_elements}
                    ORDER BY e.position, e.id) AS fields)",
            in_elements = elements.of_row("e.id"),
        );
        match self {
            Self::OncePerForm => {
                sql!("CASE WHEN row_number() OVER (PARTITION BY m.form_id) = 1 THEN {+fields} END", fields)
            }
            Self::EveryRow => fields,
            Self::Unread => Sql::text("NULL"),
        }
    }
}

/// Submissions that are returned by themselves, and in reach. `among` is the condition on the ids.
pub(super) fn shown(among: Sql, reach: &FormReach) -> Sql {
    // A scalar subquery is not evaluated if there is no parent, and Postgres does not turn it into a join.
    sql!(
        "SELECT m.id, CAST(NULL AS bigint) AS child_of, m.form_id, m.status, {instant m.created_at} AS created_at,
           {instant m.updated_at} AS updated_at
         FROM submissions m
         WHERE NOT m.draft AND NOT coalesce((SELECT f.graduated FROM submissions p JOIN forms f ON f.id = p.form_id
             WHERE p.id = m.parent_id), false)
           AND m.id {+among}{+in_reach}",
        among,
        in_reach = reach.of_row("m.form_id"),
    )
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
