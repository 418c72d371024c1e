//! Forms and their fields.

use super::filter::SortDirection;
use super::page::{Page, PageRequest, Reading};
use super::{Store, StoreError};

/// A form as lists show it.
#[derive(Clone, Debug)]
pub struct FormSummary {
    /// The bare id.
    pub id: i64,
    /// The form's name.
    pub name: String,
    /// Whether submitters stay unknown.
    pub anonymous: bool,
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
#[derive(Clone, Debug)]
pub struct Element {
    /// The numeric id, as keys of `terms` take it.
    pub id: i64,
    /// The UUID.
    pub gid: String,
    /// The field's name.
    pub name: String,
    /// The field's type.
    pub kind: String,
}

impl Store {
    /// One page of the active forms that are no sub-forms, by id.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_forms(&self, page: PageRequest) -> Result<Page<FormSummary>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("WITH listed AS (SELECT id, name, anonymous FROM forms WHERE NOT disabled AND parent_id IS NULL), ");
        sql.push("page AS (SELECT id, name, anonymous FROM listed ORDER BY id");
        sql.limit(&Reading::from_the_start(page, SortDirection::Ascending));
        sql.push(") SELECT (SELECT count(*) FROM listed), page.id, page.name, page.anonymous ");
        // Without any form on the page, there is the count alone.
        sql.push("FROM (SELECT 1) AS one LEFT JOIN page ON true ORDER BY page.id");
        let rows = reader.fetch_all(sql).await?;
        let total: i64 = rows.first().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
        let mut items = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(id) = row.get::<Option<i64>>(1)? {
                items.push(FormSummary { id, name: row.get(2)?, anonymous: row.get(3)? });
            }
        }
        Ok(Page { items, total: u64::try_from(total).expect("a count is not negative") })
    }

    /// One form by id, a disabled one and a sub-form too.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_form(&self, id: i64) -> Result<Option<Form>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT f.name, f.anonymous, e.id, e.gid, e.name, e.type FROM forms f LEFT JOIN elements e ON e.form_id = f.id");
        sql.push(" WHERE f.id = ").bind(id).push(" ORDER BY e.position, e.id");
        let rows = reader.fetch_all(sql).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let summary = FormSummary { id, name: first.get(0)?, anonymous: first.get(1)? };
        let mut elements = Vec::with_capacity(rows.len());
        for row in &rows {
            // A form without fields is one row without an element.
            if let Some(id) = row.get::<Option<i64>>(2)? {
                elements.push(Element { id, gid: row.get(3)?, name: row.get(4)?, kind: row.get(5)? });
            }
        }
        Ok(Some(Form { summary, elements }))
    }
}
