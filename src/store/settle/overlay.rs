//! Searching without settling, for databases that can't be written to now: a standby, a read-only database, a SQLite file
//! whose write lock another program holds.
//!
//! The rows of the submissions in the intake are derived for the one search and sent with its statement. Common table
//! expressions with the names of the derived tables combine them with the stored rows of all other submissions. Such a
//! search reads far more than others.

use serde_json::json;

use super::derived::Derived;
use super::intake;
use super::reading::{self, All};
use crate::store::StoreError;
use crate::store::lent::Lent;
use crate::store::rows::{Instant, Rows};
use crate::store::sql::{Dialect, Sql};

/// How many submissions are laid over the tables.
///
/// Larger: searches on a standby or during a long transaction send more with each statement. Smaller: more of them are
/// refused.
const MOST: i64 = 5_000;

/// What is derived of the submissions that are noted.
#[derive(Debug)]
pub(in crate::store) struct Overlay {
    ids: Vec<i64>,
    derived: All,
}

impl Overlay {
    /// Reads the intake and derives from it, in a transaction that sees one state of the database.
    ///
    /// # Errors
    /// [`StoreError::Unsettled`] where too much is noted.
    pub(in crate::store) async fn read(reader: &mut Lent) -> Result<Self, StoreError> {
        let ids = intake::noted(reader, MOST + 1).await?;
        if i64::try_from(ids.len()).is_ok_and(|count| count > MOST) {
            return Err(StoreError::Unsettled);
        }
        let derived = reading::wanted(reader, &ids).await?;
        Ok(Self { ids, derived })
    }

    /// Adds a statement that reads the tables as they would be if they were settled.
    pub(in crate::store) fn write(&self, sql: &mut Sql, write_statement: impl FnOnce(&mut Sql)) {
        let dialect = sql.dialect();
        let (mut submissions, mut documents, mut terms) = (Rows::new(), Rows::new(), Rows::new());
        for (id, Derived { listed, document, terms: digests, .. }) in &self.derived {
            if let Some(listed) = listed {
                let [created, updated] =
                    [listed.created_at, listed.updated_at].map(|instant| Instant::new(instant, dialect));
                submissions.push(&(id, listed.form, &listed.status, listed.submitter, created, updated));
            }
            if let Some(document) = document {
                documents.push(&(id, document.shown_in, &document.text));
            }
            digests.iter().for_each(|(shown_in, term)| terms.push(&(term, shown_in, id)));
        }
        // Within the expression, Postgres takes the name for the real table. SQLite needs the schema.
        sql.push("WITH listed_submissions AS (SELECT id, form_id, status, submitter_id, created_at, updated_at FROM ");
        sql.push_either("", "main.").push("listed_submissions WHERE ");
        self.write_rest(sql, "id", &submissions, &SUBMISSIONS);
        sql.push("), listed_documents AS (SELECT submission_id, shown_in, document FROM ");
        sql.push_either("", "main.").push("listed_documents WHERE ");
        self.write_rest(sql, "submission_id", &documents, &DOCUMENTS);
        sql.push("), listed_terms AS (SELECT term, shown_in, submission_id FROM ");
        sql.push_either("", "main.").push("listed_terms WHERE ");
        self.write_rest(sql, "submission_id", &terms, &TERMS);
        sql.push(") SELECT * FROM (");
        write_statement(sql);
        sql.push(") AS overlaid");
    }

    fn write_rest(&self, sql: &mut Sql, id: &'static str, rows: &Rows, columns: &[(&'static str, &'static str)]) {
        match sql.dialect() {
            Dialect::Postgres => sql.push(id).push(" <> ALL (").bind(self.ids.clone()).push(")"),
            Dialect::Sqlite => {
                let ids = json!(self.ids).to_string();
                sql.push(id).push(" NOT IN (SELECT value FROM json_each(").bind(ids).push("))")
            }
        };
        sql.push(" UNION ALL SELECT ");
        for (at, (column, _)) in columns.iter().enumerate() {
            sql.push(if at == 0 { "" } else { ", " }).push(column);
        }
        sql.push(" FROM ").push_rows(rows.text(), columns).push(" AS noted");
    }
}

const SUBMISSIONS: [(&str, &str); 6] = [
    ("id", "bigint"),
    ("form_id", "bigint"),
    ("status", "text"),
    ("submitter_id", "bigint"),
    ("created_at", "timestamptz"),
    ("updated_at", "timestamptz"),
];
const DOCUMENTS: [(&str, &str); 3] = [("submission_id", "bigint"), ("shown_in", "bigint"), ("document", "text")];
const TERMS: [(&str, &str); 3] = [("term", "bigint"), ("shown_in", "bigint"), ("submission_id", "bigint")];
