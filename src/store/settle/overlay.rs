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
use crate::store::statement::{Dialect, JsonRows, JsonTimestamp, Sql, TableSpec, sql};

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

    /// A statement that reads the tables as they would be if they were settled.
    pub(in crate::store) fn statement(&self, dialect: Dialect, statement: Sql) -> Sql {
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
        let tables = [(SUBMISSIONS, submissions), (DOCUMENTS, documents), (TERMS, terms)];
        sql!(
            "WITH {+tables} SELECT * FROM ({+statement}) AS overlaid",
            tables = Sql::joined(tables.iter().map(|(table, rows)| self.table(table, rows)), ", "),
            statement,
        )
    }

    /// A table expression. Inside it, Postgres resolves the name to the real table; SQLite needs the schema.
    fn table(&self, table: &TableSpec, rows: &JsonRows) -> Sql {
        let [name, id] = [table.name, table.columns[0].0].map(Sql::text);
        sql!(
            "{+name} AS (
               SELECT {+columns} FROM {lite: main.}{+name} WHERE {+id} {not in ids}
               UNION ALL SELECT {+derived} FROM {+batch})",
            name,
            columns = table.column_names(),
            id,
            ids = &self.ids,
            derived = table.column_names(),
            batch = table.batch(rows),
        )
    }
}
