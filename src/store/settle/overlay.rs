//! Searches without settling, for databases that can't be written to now: a standby, a read-only database, or a SQLite
//! file whose write lock another program holds.
//!
//! The rows of the submissions in the intake are derived for this one search and sent with its statement. Common table
//! expressions with the names of the search tables combine them with the stored rows of all other submissions. Such a
//! search reads far more than others.

use super::derived::Derived;
use super::intake;
use super::reading::{self, DerivedById};
use super::writing::{DOCUMENTS, SUBMISSIONS, TERMS};
use crate::store::StoreError;
use crate::store::engine::PooledConnection;
use crate::store::statement::{JsonRows, JsonTimestamp, Sql};

/// The most submissions of an overlay.
///
/// Larger: searches on a standby or during a long transaction send more with each statement. Smaller: more of them are
/// refused.
const MAX_NOTED: i64 = 5_000;

/// The derived rows of the submissions in the intake.
#[derive(Debug)]
pub(in crate::store) struct Overlay {
    ids: Vec<i64>,
    derived: DerivedById,
}

impl Overlay {
    /// Reads the intake and derives from it. The transaction must see one snapshot of the database.
    ///
    /// # Errors
    /// [`StoreError::Unsettled`] if there are too many notes.
    pub(in crate::store) async fn read(reader: &mut PooledConnection) -> Result<Self, StoreError> {
        let ids = intake::noted(reader, MAX_NOTED + 1).await?;
        if i64::try_from(ids.len()).is_ok_and(|count| count > MAX_NOTED) {
            return Err(StoreError::Unsettled);
        }
        let (derived, _) = reading::wanted(reader, &ids).await?;
        Ok(Self { ids, derived })
    }

    /// Adds a statement that reads the tables as they would be if they were settled.
    pub(in crate::store) fn write(&self, sql: &mut Sql, write_statement: impl FnOnce(&mut Sql)) {
        let dialect = sql.dialect();
        let (mut submissions, mut documents, mut terms) = (JsonRows::new(), JsonRows::new(), JsonRows::new());
        for (id, Derived { listed, document, terms: digests, .. }) in &self.derived {
            if let Some(listed) = listed {
                let [created, updated] =
                    [listed.created_at, listed.updated_at].map(|instant| JsonTimestamp::new(instant, dialect));
                submissions.push(&(id, listed.form, &listed.status, listed.submitter, created, updated));
            }
            if let Some(document) = document {
                documents.push(&(id, document.shown_in, &document.text));
            }
            digests.iter().for_each(|(shown_in, term)| terms.push(&(id, shown_in, term)));
        }
        for (at, (table, rows)) in
            [(SUBMISSIONS, submissions), (DOCUMENTS, documents), (TERMS, terms)].into_iter().enumerate()
        {
            sql.push(if at == 0 { "WITH " } else { ", " }).push(table.name).push(" AS (SELECT ");
            table.push_column_names(sql);
            // Inside the expression, Postgres resolves the name to the real table. SQLite needs the schema.
            sql.push(" FROM ").push_either("", "main.").push(table.name).push(" WHERE ").push(table.columns[0].0);
            sql.not_in_ids(&self.ids);
            sql.push(" UNION ALL SELECT ");
            table.push_column_names(sql);
            sql.push(" FROM ");
            table.push_batch(sql, &rows);
            sql.push(")");
        }
        sql.push(" SELECT * FROM (");
        write_statement(sql);
        sql.push(") AS overlaid");
    }
}
