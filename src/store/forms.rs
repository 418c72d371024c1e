//! Forms and their fields.

use std::borrow::Cow;

use serde::Deserialize;

use super::statement::{Fields, ListRecord, MalformedRecord, Page, PageRequest, truth};
use super::totals::{CountedList, STALE, not_negative};
use super::{Store, StoreError};

/// A form as lists show it.
#[derive(Clone, Debug, Deserialize)]
pub struct FormSummary {
    /// The bare id.
    pub id: i64,
    /// The form's name.
    pub name: String,
    /// Whether submitters are anonymous.
    #[serde(deserialize_with = "truth")]
    pub anonymous: bool,
}

impl ListRecord<'_> for FormSummary {
    fn take(fields: &mut Fields<'_>) -> Result<Self, MalformedRecord> {
        Ok(Self { id: fields.integer()?, name: fields.text()?.into_owned(), anonymous: fields.truth()? })
    }
}

/// A form with its fields.
#[derive(Clone, Debug)]
pub struct Form {
    /// What lists show.
    pub summary: FormSummary,
    /// The fields in form order.
    pub elements: Vec<Element>,
}

/// A field of a form.
#[derive(Clone, Debug, Deserialize)]
pub struct Element {
    /// The numeric id, which keys of `terms` use.
    pub id: i64,
    /// The UUID.
    pub gid: String,
    /// The field's name.
    pub name: String,
    /// The field's type.
    pub kind: String,
}

impl ListRecord<'_> for Element {
    fn take(fields: &mut Fields<'_>) -> Result<Self, MalformedRecord> {
        let id = fields.integer()?;
        let mut text = || fields.text().map(Cow::into_owned);
        Ok(Self { id, gid: text()?, name: text()?, kind: text()? })
    }
}

/// The forms that are listed: those of the index `forms_listed`, which `listed_counts` counts.
const LISTED: &str = " FROM forms WHERE NOT disabled AND parent_id IS NULL";

impl Store {
    /// One page of the active top-level forms, by id.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_forms(&self, page: PageRequest) -> Result<Page<FormSummary>, StoreError> {
        let reader = self.database.reader().await?;
        let mut sql = reader.sql();
        let position = CountedList::Forms.write_skipped(&mut sql, page);
        sql.push("SELECT ");
        CountedList::Forms.write_total(&mut sql);
        sql.push(", ").push(STALE).push(", (").push_records(&["id", "name", "anonymous"]);
        sql.push(" FROM (SELECT id, name, anonymous").push(LISTED);
        position.write_condition(&mut sql, "id");
        sql.push(" ORDER BY id");
        position.write_limit(&mut sql);
        sql.push(") AS page)");
        let row = self.fetch_list(reader, sql).await?;
        Ok(Page { items: row.records(2)?, total: not_negative(row.get(0)?) })
    }

    /// One form by id, which may be disabled or a sub-form.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_form(&self, id: i64) -> Result<Option<Form>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT name, anonymous, (").push_records(&["id", "gid", "name", "type"]);
        sql.push(" FROM (SELECT * FROM elements WHERE form_id = forms.id ORDER BY position, id) AS e) FROM forms");
        sql.push(" WHERE id = ").bind(id);
        let rows = reader.fetch_all(sql).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let summary = FormSummary { id, name: row.get(0)?, anonymous: row.get(1)? };
        Ok(Some(Form { summary, elements: row.records(2)? }))
    }
}
