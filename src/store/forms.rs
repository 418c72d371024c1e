//! Forms and their fields.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;

use super::derived::totals::{CountedList, STALE, not_negative};
use super::statement::{
    Fields, ListRecord, MalformedRecord, Page, PageRequest, PageScan, SortDirection, Sql, sql, truth,
};
use super::{FormReach, Store, StoreError};

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

impl Store {
    /// One page of the active top-level forms, by id.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_forms(&self, page: PageRequest) -> Result<Page<FormSummary>, StoreError> {
        let mut reader = self.database.reader().await?;
        if let FormReach::Forms(reach) = self.reach() {
            // One without a parent is in reach only if it is named, so there are few.
            let sql = sql!(
                "SELECT (SELECT count(*) FROM forms WHERE NOT disabled AND parent_id IS NULL AND id {in reach}),
                   ({records: id, name, anonymous}
                    FROM (SELECT id, name, anonymous FROM forms
                          WHERE NOT disabled AND parent_id IS NULL AND id {in reach}
                          ORDER BY id{page scan}) AS page)",
                reach,
                scan = PageScan::forward(page, SortDirection::Ascending),
            );
            let row = reader.fetch_one(sql).await?;
            return Ok(Page { items: row.records(1)?, total: not_negative(row.get(0)?) });
        }
        let start = CountedList::Forms.start_of(page);
        let sql = sql!(
            "SELECT {+total}, {+stale},
               ({records: id, name, anonymous}
                FROM (SELECT id, name, anonymous FROM forms
                      WHERE NOT disabled AND parent_id IS NULL{+behind_skipped}
                      ORDER BY id{+limit}) AS page)
             {scans: all forms are counted if all counts may be wrong}",
            total = CountedList::Forms.total(),
            stale = Sql::text(STALE),
            behind_skipped = start.behind_skipped("id"),
            limit = start.limit(),
        );
        let row = self.fetch_list(reader, start.with_skipped(sql)).await?;
        Ok(Page { items: row.records(2)?, total: not_negative(row.get(0)?) })
    }

    /// The ids and names of all forms, by id: sub-forms and disabled ones too, but at most `most`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_all_form_names(&self, most: i64) -> Result<Vec<(i64, String)>, StoreError> {
        let mut reader = self.database.reader().await?;
        let rows = reader
            .fetch_all(sql!("SELECT id, name FROM forms ORDER BY id LIMIT {most} {scans: it ends after so many}", most))
            .await?;
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    /// The names of forms by id, as far as there are such forms.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_form_names(&self, ids: &[i64]) -> Result<HashMap<i64, String>, StoreError> {
        let mut reader = self.database.reader().await?;
        let rows = reader.fetch_all(sql!("SELECT id, name FROM forms WHERE id {in ids}", ids)).await?;
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    /// The names of the forms of submissions, by the submission's id, as far as there are such submissions.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_form_names_of(&self, submissions: &[i64]) -> Result<HashMap<i64, String>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT s.id, f.name FROM submissions s JOIN forms f ON f.id = s.form_id WHERE s.id {in submissions}",
            submissions,
        );
        let rows = reader.fetch_all(sql).await?;
        rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect()
    }

    /// One form by id, which may be disabled or a sub-form.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_form(&self, id: i64) -> Result<Option<Form>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT name, anonymous,
               ({records: id, gid, name, type}
                FROM (SELECT * FROM elements WHERE form_id = forms.id ORDER BY position, id) AS e)
             FROM forms WHERE id = {id}{+in_reach}",
            id,
            in_reach = self.reach().of_row("forms.id"),
        );
        let rows = reader.fetch_all(sql).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let summary = FormSummary { id, name: row.get(0)?, anonymous: row.get(1)? };
        Ok(Some(Form { summary, elements: row.records(2)? }))
    }
}
