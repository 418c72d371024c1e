//! Searches submissions: one page of matches, and the exact total.
//!
//! A search takes a fixed number of statements, however many submissions match: one for the total and the ids of the
//! page, and one for everything that the page shows; or a single one for both. A keyword combined with other filters
//! takes one more beforehand, and so do forms, for which [`covered_forms`] finds the sub-forms. The total and the ids come
//! from one of two places:
//!
//! - Searches by forms, statuses, days or one label, and those without filters, take the total from `listed_counts`
//!   and the page from an index in its order ([`CountedSearch`]). For later pages and for very many forms they read the
//!   total first, and then the page from the nearer end.
//! - All others materialize the set of matches once ([`match_set`]), count it and cut the page out of it. Their cost
//!   grows with the matches and not with the database. Given only a limit, a planner would scan everything in the
//!   page's order, hoping to find a page of matches early.

mod by_id;
pub(in crate::store) mod conditions;
mod counted;
mod covered_forms;
mod match_set;
mod scan_ahead;
mod terms;

use std::time::Instant;

use serde::Deserialize;

pub(super) use by_id::SearchById;
use conditions::is_short;
use counted::CountedSearch;
use covered_forms::ResolvedFilter;
pub(in crate::store) use covered_forms::with_sub_forms;
use match_set::SearchPlan;

use super::settle::{Overlay, Settled, is_settled};
use super::totals::not_negative;
use crate::store::engine::{PooledConnection, retry};
use crate::store::filter::{SortBy, SubmissionFilter};
use crate::store::statement::{
    Dialect, Fields, ListRecord, MalformedRecord, PageRequest, PageScan, Row, SortDirection, Sql, sql,
};
use crate::store::submissions::{self, FormFields, SubmissionRows, Submissions, read_submissions, select_rows};
use crate::store::{Store, StoreError};

/// The submissions of one page, and how many there are on all of them.
#[derive(Debug)]
pub struct SearchPage {
    /// At most [`PageRequest::size`].
    pub submissions: Submissions,
    /// The exact count over all pages.
    pub total: u64,
}

impl Store {
    /// One page of the submissions that match, with their answers.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn search(&self, filter: &SubmissionFilter, page: PageRequest) -> Result<SearchPage, StoreError> {
        if filter.terms.iter().any(|term| term.element.is_none()) {
            return Ok(SearchPage { submissions: Submissions::default(), total: 0 });
        }
        // A TRUNCATE of several tables locks them in its own order, so reads can be part of a deadlock.
        let found = retry::run(|| async move {
            let (found, is_settled) = self.search_once(filter, page).await?;
            if is_settled {
                return Ok(found);
            }
            match self.settle().await? {
                // Writes since then are not waited for.
                Settled::Yes => Ok(self.search_once(filter, page).await?.0),
                Settled::CannotWrite => self.search_with_overlay(filter, page).await,
            }
        })
        .await;
        if matches!(found, Err(StoreError::Unsettled)) {
            self.database.metrics().refused("behind");
        }
        found
    }

    /// Searches while nothing can be written to the search tables.
    async fn search_with_overlay(
        &self,
        filter: &SubmissionFilter,
        page: PageRequest,
    ) -> Result<SearchPage, StoreError> {
        let mut reader = self.database.reader().await?;
        reader.begin_reading().await?;
        let overlay = self.note_overlay(Overlay::read(&mut reader).await)?;
        let wanted = self.reach().narrowed_to(&mut reader, &filter.forms).await?;
        let resolved = ResolvedFilter::unresolved(filter, self.reach(), wanted);
        let search = select_page_with_total(None, &resolved, SearchPlan::ScanDocuments, page);
        let rows = reader.fetch_all(overlay.statement(reader.dialect(), search)).await?;
        let (ids, total) = ids_and_total(&rows)?;
        let submissions = read_submissions(&mut reader, ids, self.reach()).await?;
        reader.end_transaction("COMMIT").await?;
        Ok(SearchPage { submissions, total: not_negative(total.submissions) })
    }

    /// The result, and whether the search tables were up to date.
    async fn search_once(
        &self,
        filter: &SubmissionFilter,
        page: PageRequest,
    ) -> Result<(SearchPage, bool), StoreError> {
        let mut reader = self.database.reader().await?;
        let resolved = ResolvedFilter::resolve(&mut reader, filter, self.reach()).await?;
        let (ids, Total { submissions: total, is_settled }) = match CountedSearch::of(&resolved) {
            Some(counted) if page.offset() > 0 || counted.is_of_many_forms() => {
                page_after_total(&mut reader, &counted, &resolved, page).await?
            }
            Some(counted) if counted.reads_in_one_statement(reader.dialect()) => {
                return first_page(&mut reader, &counted, &resolved, page).await;
            }
            counted => page_with_total(&mut reader, counted.as_ref(), &resolved, page).await?,
        };
        let submissions = read_submissions(&mut reader, ids, self.reach()).await?;
        Ok((SearchPage { submissions, total: not_negative(total) }, is_settled && resolved.is_settled))
    }

    /// The database's query plan of a search, line by line.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn explain_search(
        &self,
        filter: &SubmissionFilter,
        page: PageRequest,
    ) -> Result<Vec<String>, StoreError> {
        let mut reader = self.database.reader().await?;
        let resolved = ResolvedFilter::resolve(&mut reader, filter, self.reach()).await?;
        let search = match CountedSearch::of(&resolved) {
            Some(counted) if page.offset() > 0 || counted.is_of_many_forms() => {
                let (_, scan) = scan_of(&mut reader, &counted, filter, page).await?;
                let Some(scan) = scan else { return Ok(Vec::new()) };
                select_page(&counted, filter, &scan)
            }
            Some(counted) if counted.reads_in_one_statement(reader.dialect()) => {
                select_first_page(&counted, &resolved, page)
            }
            counted => {
                let plan = choose_plan(&mut reader, &resolved).await?;
                select_page_with_total(counted.as_ref(), &resolved, plan, page)
            }
        };
        let sql = sql!("{pg: EXPLAIN | lite: EXPLAIN QUERY PLAN} {+search}", search);
        // SQLite's columns are id, parent, notused and detail.
        let column = if reader.dialect() == Dialect::Postgres { 0 } else { 3 };
        Ok(fetch(&mut reader, filter, sql).await?.iter().map(|row| row.get(column)).collect::<Result<_, _>>()?)
    }
}

/// Postgres assumes that every index hit is rechecked. For a keyword of two characters that nearly every document
/// contains, it therefore estimates the index to cost as much as a sequential scan. The scan costs a hundred times as
/// much, because it computes the bigrams of every document again. So the scan is disabled.
const BY_INDEX: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL enable_seqscan = off";

/// All rows of a search's statement.
async fn fetch(reader: &mut PooledConnection, filter: &SubmissionFilter, sql: Sql) -> Result<Vec<Row>, sqlx::Error> {
    if reader.dialect() == Dialect::Sqlite || !filter.search.as_ref().is_some_and(is_short) {
        return reader.fetch_all(sql).await;
    }
    reader.begin_transaction(BY_INDEX, Instant::now()).await?;
    let rows = reader.fetch_all(sql).await?;
    reader.end_transaction("COMMIT").await?;
    Ok(rows)
}

/// How many submissions match.
#[derive(Clone, Copy, Debug)]
struct Total {
    submissions: i64,
    /// Whether everything that was committed before is counted.
    is_settled: bool,
}

impl Total {
    /// Reads both from adjacent columns, as [`CountedSearch::total`] selects them. Counts that another program has
    /// changed may be below zero.
    fn of(row: &Row, column: usize) -> Result<Self, sqlx::Error> {
        Ok(Self { submissions: row.get::<i64>(column)?.max(0), is_settled: row.get(column + 1)? })
    }
}

/// The first page with everything that it shows, by one statement.
async fn first_page(
    reader: &mut PooledConnection,
    counted: &CountedSearch<'_>,
    resolved: &ResolvedFilter<'_>,
    page: PageRequest,
) -> Result<(SearchPage, bool), StoreError> {
    let filter = resolved.filter;
    let rows = SubmissionRows::fetch(reader, select_first_page(counted, resolved, page)).await?;
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let Total { submissions: total, is_settled } = Total::of(first, submissions::COLUMNS)?;
    let total = not_negative(total);
    let submissions = if rows.are_too_long() {
        let (ids, _) = page_with_total(reader, Some(counted), resolved, page).await?;
        Submissions::in_parts(ids)
    } else if first.get::<Option<i64>>(0)?.is_none() {
        Submissions::default()
    } else {
        Submissions::sorted(rows, filter.sort_by, filter.sort_direction)?
    };
    Ok((SearchPage { submissions, total }, is_settled))
}

async fn page_with_total(
    reader: &mut PooledConnection,
    counted: Option<&CountedSearch<'_>>,
    resolved: &ResolvedFilter<'_>,
    page: PageRequest,
) -> Result<(Vec<i64>, Total), StoreError> {
    let plan = choose_plan(reader, resolved).await?;
    let sql = select_page_with_total(counted, resolved, plan, page);
    ids_and_total(&fetch(reader, resolved.filter, sql).await?)
}

/// Reads the result of [`select_page_with_total`].
fn ids_and_total(rows: &[Row]) -> Result<(Vec<i64>, Total), StoreError> {
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let ids: Vec<IdRecord> = row.records(2)?;
    Ok((ids.iter().map(|entry| entry.id).collect(), Total::of(row, 0)?))
}

/// Chooses the plan of a search. Comparing both sides of a keyword takes a longer statement, which is not worth it for
/// a rare keyword.
async fn choose_plan(reader: &mut PooledConnection, resolved: &ResolvedFilter<'_>) -> Result<SearchPlan, StoreError> {
    let Some(keyword) = match_set::keyword_with_other_filters(resolved) else { return Ok(SearchPlan::ByPlanner) };
    let rows = fetch(reader, resolved.filter, match_set::select_is_rare(keyword)).await?;
    let is_rare: bool = rows.first().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
    Ok(if is_rare { SearchPlan::ByPlanner } else { SearchPlan::CheaperSide(reader.dialect()) })
}

/// An id in a list.
#[derive(Deserialize)]
struct IdRecord {
    id: i64,
}

impl ListRecord<'_> for IdRecord {
    fn take(fields: &mut Fields<'_>) -> Result<Self, MalformedRecord> {
        Ok(Self { id: fields.integer()? })
    }
}

/// Reads the total, and then the page from the nearer end.
async fn page_after_total(
    reader: &mut PooledConnection,
    counted: &CountedSearch<'_>,
    resolved: &ResolvedFilter<'_>,
    page: PageRequest,
) -> Result<(Vec<i64>, Total), StoreError> {
    let filter = resolved.filter;
    let (total, scan) = scan_of(reader, counted, filter, page).await?;
    let Some(scan) = scan else { return Ok((Vec::new(), total)) };
    if counted.is_of_many_forms()
        && let Some(ids) = scan_ahead::find_page(reader, resolved, &scan).await?
    {
        return Ok((ids, total));
    }
    let rows = reader.fetch_all(select_page(counted, filter, &scan)).await?;
    Ok((rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?, total))
}

/// The total, and how to read the page unless it is empty.
async fn scan_of(
    reader: &mut PooledConnection,
    counted: &CountedSearch<'_>,
    filter: &SubmissionFilter,
    page: PageRequest,
) -> Result<(Total, Option<PageScan>), StoreError> {
    let total = Total::of(&reader.fetch_one(counted.total()).await?, 0)?;
    let nearest = PageScan::from_nearest_end(page, total.submissions, filter.sort_direction);
    let Some(mut scan) = nearest else { return Ok((total, None)) };
    if let Some(sql) = counted.days_before(filter.sort_by, &scan) {
        let days = reader.fetch_one(sql).await?;
        scan.skip_days(days.get(0)?, days.get(1)?);
    }
    Ok((total, Some(scan)))
}

/// Everything that a page shows, unordered, and the total. Only the total if the page is empty.
fn select_first_page(counted: &CountedSearch<'_>, resolved: &ResolvedFilter<'_>, page: PageRequest) -> Sql {
    let filter = resolved.filter;
    sql!(
        "WITH found (total, is_settled) AS ({+found}), page (id, at) AS ({+page})
         SELECT shown.*, found.total, found.is_settled FROM found LEFT JOIN ({+page_rows}) AS shown ON true",
        found = counted.total(),
        page = counted.page(filter.sort_by, &PageScan::forward(page, filter.sort_direction)),
        page_rows = select_rows(FormFields::OncePerForm, resolved.reach, || {
            Sql::text("= ANY (ARRAY (SELECT id FROM page))")
        }),
    )
}

/// The total, and the ids of a page as a list in its order.
fn select_page_with_total(
    counted: Option<&CountedSearch<'_>>,
    resolved: &ResolvedFilter<'_>,
    plan: SearchPlan,
    page: PageRequest,
) -> Sql {
    let SubmissionFilter { sort_by, sort_direction, .. } = *resolved.filter;
    let scan = PageScan::forward(page, sort_direction);
    let order_of_page = order_by_position(sort_direction);
    if let Some(counted) = counted {
        return sql!(
            "WITH found (total, is_settled) AS ({+found}), page (id, at) AS ({+page})
             SELECT total, is_settled, ({records: id} FROM (SELECT id FROM page {+order_of_page}) AS page) FROM found",
            found = counted.total(),
            page = counted.page(sort_by, &scan),
            order_of_page,
        );
    }
    let sql = sql!(
        "WITH {+matched},
         found (total, is_settled) AS (SELECT count(*), {+is_settled} FROM matched),
         page (id, at) AS (SELECT id, at FROM matched {+order_of_page}{page scan})
         SELECT total, is_settled, ({records: id} FROM (SELECT id FROM page {+order_of_page}) AS page) FROM found
         {scans: a filter may leave all submissions}",
        matched = match_set::matched(resolved, plan),
        is_settled = is_settled(),
        order_of_page,
        scan,
    );
    sql.with_custom_plan()
}

/// The ids of a page, in its order.
fn select_page(counted: &CountedSearch<'_>, filter: &SubmissionFilter, scan: &PageScan) -> Sql {
    let sql = sql!(
        "SELECT id FROM ({+page}) AS page {+order_of_page}",
        page = counted.page(filter.sort_by, scan),
        order_of_page = order_by_position(filter.sort_direction),
    );
    sql.with_custom_plan()
}

/// The column of submissions that orders a page.
fn column(by: SortBy) -> Sql {
    Sql::text(match by {
        SortBy::CreatedAt => "created_at",
        SortBy::UpdatedAt => "updated_at",
    })
}

/// The order of a page: by timestamp, then by id.
fn order_by_position(direction: SortDirection) -> Sql {
    Sql::text(match direction {
        SortDirection::Ascending => "ORDER BY at, id",
        SortDirection::Descending => "ORDER BY at DESC, id DESC",
    })
}

#[cfg(test)]
mod tests;
