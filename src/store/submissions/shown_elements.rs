//! The elements whose answers a caller reads: all, or those that it named.
//!
//! The limit is a part of the statements, like [the reach](crate::store::reach): other answers are not read. Without elements,
//! neither answers nor graduated children are.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use crate::store::statement::{Sql, sql};
use crate::store::{Store, StoreError};

/// The elements of which submissions show their answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShownElements {
    /// All.
    #[default]
    All,
    /// These, of whatever form.
    Only(Arc<[i64]>),
}

impl ShownElements {
    /// Only these.
    #[must_use]
    pub fn of(elements: impl IntoIterator<Item = i64>) -> Self {
        Self::Only(elements.into_iter().collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Whether the answers of an element are.
    #[must_use]
    pub fn contain(&self, element: i64) -> bool {
        match self {
            Self::All => true,
            Self::Only(elements) => elements.binary_search(&element).is_ok(),
        }
    }

    /// Whether no answer is read.
    #[must_use]
    pub fn are_none(&self) -> bool {
        matches!(self, Self::Only(elements) if elements.is_empty())
    }

    /// The condition that the element in a column is one of them, behind others. Nothing if all are.
    pub(super) fn of_row(&self, element: &'static str) -> Sql {
        let Self::Only(elements) = self else { return Sql::default() };
        sql!(" AND {+element} {in unsized elements}", element = Sql::text(element), elements)
    }
}

impl Store {
    /// The same store for a caller that reads the answers of these elements.
    #[must_use]
    pub fn showing(mut self, elements: &ShownElements) -> Self {
        self.caller.elements = elements.clone();
        self
    }

    /// Whose answers its caller reads.
    pub(super) fn elements(&self) -> &ShownElements {
        &self.caller.elements
    }

    /// Those of `elements` that exist, in forms that are in reach.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn known_elements(&self, elements: &[i64]) -> Result<HashSet<i64>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT e.id FROM elements e WHERE e.id {in unsized elements}{+in_reach}",
            elements,
            in_reach = self.reach().of_row("e.form_id"),
        );
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect::<Result<_, sqlx::Error>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FormFields, select_rows};
    use super::*;
    use crate::store::reach::Caller;

    #[test]
    fn a_statement_reads_the_answers_of_the_elements_that_are_named_and_none_without_any() {
        let texts = |elements| {
            let caller = Caller { elements, ..Caller::default() };
            let sql = select_rows(FormFields::OncePerForm, &caller, || sql!("= {id}", id = 1_i64));
            [sql.clone().into_postgres().unwrap().0, sql.into_sqlite().unwrap().0]
        };
        for (all, [some, none]) in texts(ShownElements::All)
            .iter()
            .zip(std::iter::zip(texts(ShownElements::of([2, 1])), texts(ShownElements::of([]))).map(<[_; 2]>::from))
        {
            for (table, of_all, of_some) in [("FROM answers", 1, 1), ("FROM elements", 1, 1), ("f.graduated", 2, 2)] {
                let count = |text: &str| text.matches(table).count();
                assert_eq!((count(all), count(&some)), (of_all, of_some), "{table} in {some}");
            }
            assert!(some.contains("AND element_id ") && some.contains("AND e.id "), "{some}");
            assert!(!none.contains("FROM answers") && !none.contains("FROM elements"), "{none}");
            assert_eq!(none.matches("f.graduated").count(), 1, "children are not read: {none}");
        }
        assert_eq!(ShownElements::of([2, 1, 2]), ShownElements::Only([1, 2].into()));
    }
}
