//! Searches in the order of ids, which exports go through: some thousand ids at a time, each time from where the last ones
//! ended. A search that is narrowed to few submissions, or by a keyword, finds all matches for each of these pages, so pages
//! are long.

use super::conditions::{all_of, conditions, has_keyword, is_in_document, is_short};
use super::counted::CountedSearch;
use super::covered_forms::ResolvedFilter;
use crate::store::engine::PooledConnection;
use crate::store::filter::{Keyword, SubmissionFilter};
use crate::store::statement::{Dialect, Sql, sql};
use crate::store::{FormReach, StoreError};

/// A search whose forms are known, as of one instant.
#[derive(Debug)]
pub(in crate::store::derived) struct SearchById {
    /// All but the keyword.
    conditions: Vec<Sql>,
    keyword: Option<Keyword>,
    /// The stored count of all matches, if there is one.
    total: Option<Sql>,
}

impl SearchById {
    /// Finds the forms of a filter, which are in `reach`, among those that are followed. `only_form`: of this one without its
    /// sub-forms.
    pub(in crate::store::derived) async fn resolve(
        reader: &mut PooledConnection,
        filter: &SubmissionFilter,
        reach: &FormReach,
        followed: &FormReach,
        only_form: Option<i64>,
    ) -> Result<Self, StoreError> {
        if filter.terms.iter().any(|term| term.element.is_none()) {
            return Ok(Self { conditions: vec![Sql::text("false")], keyword: None, total: None });
        }
        let wanted = reach.narrowed_to(reader, &filter.forms).await?;
        let wanted = followed.and(reader, &wanted).await?;
        let resolved = ResolvedFilter::resolve(reader, filter, wanted).await?;
        let mut all = conditions(&resolved);
        all.extend(only_form.map(|form| sql!("s.form_id = {form}", form)));
        let total = CountedSearch::of(&resolved).filter(|_| only_form.is_none());
        let total = total.map(|counted| counted.total());
        Ok(Self { conditions: all, keyword: filter.search.clone(), total })
    }

    /// Whether Postgres has to be told not to scan ([`super::BY_INDEX`]).
    pub(in crate::store::derived) fn is_by_index_only(&self, dialect: Dialect) -> bool {
        dialect == Dialect::Postgres && self.keyword.as_ref().is_some_and(is_short)
    }

    /// The next matches, by id.
    pub(in crate::store::derived) fn page(&self, after: i64, limit: i64) -> Sql {
        let sql = sql!(
            "SELECT id FROM (SELECT s.id FROM listed_submissions s WHERE s.id > {after} AND {+conditions}
               ORDER BY s.id LIMIT {limit}) AS page
             ORDER BY id",
            after,
            conditions = self.all_conditions(),
            limit,
        );
        sql.with_custom_plan()
    }

    /// How many matches there are.
    pub(in crate::store::derived) fn count(&self, after: i64) -> Sql {
        match &self.total {
            Some(total) if after == 0 => total.clone(),
            _ => sql!(
                "SELECT count(*) FROM listed_submissions s WHERE s.id > {after} AND {+conditions}",
                after,
                conditions = self.all_conditions(),
            )
            .with_custom_plan(),
        }
    }

    /// The matches among some submissions, by id. None: all that are listed match.
    pub(in crate::store::derived) fn among(&self, ids: &[i64]) -> Option<Sql> {
        let of_keyword = self.keyword.as_ref().map(|keyword| {
            sql!(
                "EXISTS (SELECT 1 FROM listed_documents WHERE shown_in = s.id AND {+is_in_document} LIMIT 1 OFFSET 0)",
                is_in_document = is_in_document(keyword),
            )
        });
        if self.conditions.is_empty() && of_keyword.is_none() {
            return None;
        }
        let conditions = all_of(self.conditions.iter().cloned().chain(of_keyword));
        // SQLite assumes that a form has few submissions, and would read all of them for each list. In a CROSS JOIN, it begins
        // with the ids.
        Some(sql!(
            "SELECT s.id
             FROM {lite: json_each({ids}) AS wanted CROSS JOIN} listed_submissions s
             WHERE s.id = {pg: ANY({ids}) | lite: wanted.value} AND {+conditions}
             ORDER BY s.id",
            ids,
            conditions
        ))
    }

    fn all_conditions(&self) -> Sql {
        all_of(self.conditions.iter().cloned().chain(self.keyword.as_ref().map(has_keyword)))
    }
}
