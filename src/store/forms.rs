//! Forms and their fields.

use super::page::{Page, PageRequest};
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
        sql.push("SELECT count(*) FROM forms WHERE NOT disabled AND parent_id IS NULL");
        let total: i64 = reader.fetch_one(sql).await?.get(0)?;

        let mut sql = reader.sql();
        sql.push("SELECT id, name, anonymous FROM forms WHERE NOT disabled AND parent_id IS NULL ORDER BY id LIMIT ");
        sql.bind(i64::from(page.size)).push(" OFFSET ").bind(page.offset());
        let rows = reader.fetch_all(sql).await?;
        let items = rows
            .iter()
            .map(|row| Ok(FormSummary { id: row.get(0)?, name: row.get(1)?, anonymous: row.get(2)? }))
            .collect::<Result<_, sqlx::Error>>()?;
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
