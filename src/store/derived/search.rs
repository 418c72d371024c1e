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
//!
//! A page is found by its number, or [`behind`] the last submission of the page before: then all pages cost the same.

mod behind;
mod by_id;
pub(in crate::store) mod conditions;
mod counted;
mod covered_forms;
mod match_set;
mod scan_ahead;
mod terms;

use std::time::Instant;

use jiff::Timestamp;
use serde::Deserialize;

use behind::is_row_behind;
pub(super) use by_id::SearchById;
use conditions::{all_of, is_short};
use counted::CountedSearch;
use covered_forms::ResolvedFilter;
pub(in crate::store) use covered_forms::with_sub_forms;
use match_set::SearchPlan;

use super::settle::{Overlay, Settled, is_settled};
use super::totals::not_negative;
use crate::store::engine::{PooledConnection, retry};
use crate::store::filter::{SortBy, SubmissionFilter};
use crate::store::reach::Caller;
use crate::store::statement::{
    Dialect, Fields, ListRecord, MalformedRecord, PageRequest, PageScan, PageStart, Position, Row, SortDirection, Sql,
    sql,
};
use crate::store::submissions::{self, FormFields, SubmissionRows, Submissions, read_submissions, select_rows};
use crate::store::{Store, StoreError};

/// The submissions of one page, and how many there are on all of them.
#[derive(Debug)]
pub struct SearchPage {
    /// At most as many as the size of the page.
    pub submissions: Submissions,
    /// The exact count over all pages.
    pub total: u64,
    /// The last of them, if it is a page by position and there are more behind it.
    pub next: Option<Position>,
}

impl Store {
    /// One page of the submissions that match, with their answers.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn search(
        &self,
        filter: &SubmissionFilter,
        start: impl Into<PageStart>,
    ) -> Result<SearchPage, StoreError> {
        let start = start.into();
        if filter.terms.iter().any(|term| term.element.is_none()) {
            return Ok(SearchPage { submissions: Submissions::default(), total: 0, next: None });
        }
        // A TRUNCATE of several tables locks them in its own order, so reads can be part of a deadlock.
        let found = retry::run(|| async move {
            let (found, is_settled) = self.search_once(filter, start).await?;
            if is_settled {
                return Ok(found);
            }
            match self.settle().await? {
                // Writes since then are not waited for.
                Settled::Yes => Ok(self.search_once(filter, start).await?.0),
                Settled::CannotWrite => self.search_with_overlay(filter, start).await,
            }
        })
        .await;
        if matches!(found, Err(StoreError::Unsettled)) {
            self.database.metrics().refused("behind");
        }
        found
    }

    /// Searches while nothing can be written to the search tables.
    async fn search_with_overlay(&self, filter: &SubmissionFilter, start: PageStart) -> Result<SearchPage, StoreError> {
        let mut reader = self.database.reader().await?;
        reader.begin_reading().await?;
        let overlay = self.note_overlay(Overlay::read(&mut reader).await)?;
        let wanted = self.reach().narrowed_to(&mut reader, &filter.forms).await?;
        let resolved = ResolvedFilter::unresolved(filter, wanted);
        let search = select_page_with_total(None, &resolved, SearchPlan::ScanDocuments, start);
        let rows = reader.fetch_all(overlay.statement(reader.dialect(), search)).await?;
        let (found, total) = found_and_total(&rows)?;
        let found = self.read_found(&mut reader, start, found, total).await?;
        reader.end_transaction("COMMIT").await?;
        Ok(found)
    }

    /// The result, and whether the search tables were up to date.
    async fn search_once(&self, filter: &SubmissionFilter, start: PageStart) -> Result<(SearchPage, bool), StoreError> {
        let mut reader = self.database.reader().await?;
        let wanted = self.reach().narrowed_to(&mut reader, &filter.forms).await?;
        let resolved = ResolvedFilter::resolve(&mut reader, filter, wanted).await?;
        let (found, total) = match (CountedSearch::of(&resolved), start) {
            (Some(counted), _) if start.offset() > 0 || counted.is_of_many_forms() => {
                page_after_total(&mut reader, &counted, &resolved, start).await?
            }
            (Some(counted), PageStart::Number(page)) if counted.reads_in_one_statement(reader.dialect()) => {
                return first_page(&mut reader, &counted, &resolved, page, &self.caller).await;
            }
            (counted, _) => page_with_total(&mut reader, counted.as_ref(), &resolved, start).await?,
        };
        let is_settled = total.is_settled && resolved.is_settled;
        Ok((self.read_found(&mut reader, start, found, total).await?, is_settled))
    }

    /// The submissions that were found for a page, which may be one more than it has.
    async fn read_found(
        &self,
        reader: &mut PooledConnection,
        start: PageStart,
        mut found: Vec<Position>,
        total: Total,
    ) -> Result<SearchPage, StoreError> {
        let mut next = None;
        if let PageStart::Behind { size, .. } = start
            && found.len() > size as usize
        {
            found.truncate(size as usize);
            next = found.last().copied();
        }
        let ids = found.iter().map(|position| position.id).collect();
        let submissions = read_submissions(reader, ids, &self.caller).await?;
        Ok(SearchPage { submissions, total: not_negative(total.submissions), next })
    }

    /// The database's query plan of a search, line by line.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn explain_search(
        &self,
        filter: &SubmissionFilter,
        start: impl Into<PageStart>,
    ) -> Result<Vec<String>, StoreError> {
        let start = start.into();
        let mut reader = self.database.reader().await?;
        let wanted = self.reach().narrowed_to(&mut reader, &filter.forms).await?;
        let resolved = ResolvedFilter::resolve(&mut reader, filter, wanted).await?;
        let search = match (CountedSearch::of(&resolved), start) {
            (Some(counted), _) if start.offset() > 0 || counted.is_of_many_forms() => {
                let (_, scan) = scan_of(&mut reader, &counted, filter, start).await?;
                let Some(scan) = scan else { return Ok(Vec::new()) };
                select_page(&counted, filter, &scan)
            }
            (Some(counted), PageStart::Number(page)) if counted.reads_in_one_statement(reader.dialect()) => {
                select_first_page(&counted, &resolved, page, &self.caller)
            }
            (counted, _) => {
                let plan = choose_plan(&mut reader, &resolved).await?;
                select_page_with_total(counted.as_ref(), &resolved, plan, start)
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
    caller: &Caller,
) -> Result<(SearchPage, bool), StoreError> {
    let filter = resolved.filter;
    let rows = SubmissionRows::fetch(reader, select_first_page(counted, resolved, page, caller)).await?;
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let Total { submissions: total, is_settled } = Total::of(first, submissions::COLUMNS)?;
    let total = not_negative(total);
    let submissions = if rows.are_too_long() {
        let (found, _) = page_with_total(reader, Some(counted), resolved, page.into()).await?;
        Submissions::in_parts(found.into_iter().map(|position| position.id).collect())
    } else if first.get::<Option<i64>>(0)?.is_none() {
        Submissions::default()
    } else {
        Submissions::sorted(rows, filter.sort_by, filter.sort_direction)?
    };
    Ok((SearchPage { submissions, total, next: None }, is_settled))
}

async fn page_with_total(
    reader: &mut PooledConnection,
    counted: Option<&CountedSearch<'_>>,
    resolved: &ResolvedFilter<'_>,
    start: PageStart,
) -> Result<(Vec<Position>, Total), StoreError> {
    let plan = choose_plan(reader, resolved).await?;
    let sql = select_page_with_total(counted, resolved, plan, start);
    found_and_total(&fetch(reader, resolved.filter, sql).await?)
}

/// Reads the result of [`select_page_with_total`].
fn found_and_total(rows: &[Row]) -> Result<(Vec<Position>, Total), StoreError> {
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let position = |PositionRecord { id, at }| {
        let at = Timestamp::from_microsecond(at).map_err(|error| sqlx::Error::Decode(error.into()))?;
        Ok(Position { at, id })
    };
    let found: Vec<PositionRecord> = row.records(2)?;
    Ok((found.into_iter().map(position).collect::<Result<_, sqlx::Error>>()?, Total::of(row, 0)?))
}

/// Chooses the plan of a search. Comparing both sides of a keyword takes a longer statement, which is not worth it for
/// a rare keyword.
async fn choose_plan(reader: &mut PooledConnection, resolved: &ResolvedFilter<'_>) -> Result<SearchPlan, StoreError> {
    let Some(keyword) = match_set::keyword_with_other_filters(resolved) else { return Ok(SearchPlan::ByPlanner) };
    let rows = fetch(reader, resolved.filter, match_set::select_is_rare(keyword)).await?;
    let is_rare: bool = rows.first().ok_or(sqlx::Error::RowNotFound)?.get(0)?;
    Ok(if is_rare { SearchPlan::ByPlanner } else { SearchPlan::CheaperSide(reader.dialect()) })
}

/// A position in a list, in microseconds since 1970.
#[derive(Deserialize)]
struct PositionRecord {
    id: i64,
    at: i64,
}

impl ListRecord<'_> for PositionRecord {
    fn take(fields: &mut Fields<'_>) -> Result<Self, MalformedRecord> {
        Ok(Self { id: fields.integer()?, at: fields.instant()? })
    }
}

/// Reads the total, and then the page, from the nearer end if it has a number.
async fn page_after_total(
    reader: &mut PooledConnection,
    counted: &CountedSearch<'_>,
    resolved: &ResolvedFilter<'_>,
    start: PageStart,
) -> Result<(Vec<Position>, Total), StoreError> {
    let filter = resolved.filter;
    let (total, scan) = scan_of(reader, counted, filter, start).await?;
    let Some(scan) = scan else { return Ok((Vec::new(), total)) };
    if counted.is_of_many_forms()
        && let Some(found) = scan_ahead::find_page(reader, resolved, &scan).await?
    {
        return Ok((found, total));
    }
    let rows = reader.fetch_all(select_page(counted, filter, &scan)).await?;
    let position = |row: &Row| Ok(Position { id: row.get(0)?, at: row.get(1)? });
    Ok((rows.iter().map(position).collect::<Result<_, sqlx::Error>>()?, total))
}

/// The total, and how to read the page unless it is empty.
async fn scan_of(
    reader: &mut PooledConnection,
    counted: &CountedSearch<'_>,
    filter: &SubmissionFilter,
    start: PageStart,
) -> Result<(Total, Option<PageScan>), StoreError> {
    let total = Total::of(&reader.fetch_one(counted.total()).await?, 0)?;
    let PageStart::Number(page) = start else { return Ok((total, Some(start.scan(filter.sort_direction)))) };
    let nearest = PageScan::from_nearest_end(page, total.submissions, filter.sort_direction);
    let Some(mut scan) = nearest else { return Ok((total, None)) };
    if let Some(sql) = counted.days_before(filter.sort_by, &scan) {
        let days = reader.fetch_one(sql).await?;
        scan.skip_days(days.get(0)?, days.get(1)?);
    }
    Ok((total, Some(scan)))
}

/// Everything that a page shows, unordered, and the total. Only the total if the page is empty.
fn select_first_page(
    counted: &CountedSearch<'_>,
    resolved: &ResolvedFilter<'_>,
    page: PageRequest,
    caller: &Caller,
) -> Sql {
    let filter = resolved.filter;
    sql!(
        "WITH found (total, is_settled) AS ({+found}), page (id, at) AS ({+page})
         SELECT shown.*, found.total, found.is_settled FROM found LEFT JOIN ({+page_rows}) AS shown ON true",
        found = counted.total(),
        page = counted.page(filter.sort_by, &PageScan::forward(page, filter.sort_direction)),
        page_rows =
            select_rows(FormFields::OncePerForm, caller, || { Sql::text("= ANY (ARRAY (SELECT id FROM page))") }),
    )
}

/// The total, and the positions of a page as a list in its order.
fn select_page_with_total(
    counted: Option<&CountedSearch<'_>>,
    resolved: &ResolvedFilter<'_>,
    plan: SearchPlan,
    start: PageStart,
) -> Sql {
    let SubmissionFilter { sort_by, sort_direction, .. } = *resolved.filter;
    let scan = start.scan(sort_direction);
    let order_of_page = order_by_position(sort_direction);
    if let Some(counted) = counted {
        return sql!(
            "WITH found (total, is_settled) AS ({+found}), page (id, at) AS ({+page})
             SELECT total, is_settled, ({records: id, at} FROM (SELECT id, at FROM page {+order_of_page}) AS page)
             FROM found",
            found = counted.total(),
            page = counted.page(sort_by, &scan),
            order_of_page,
        );
    }
    let sql = sql!(
        "WITH {+matched},
         found (total, is_settled) AS (SELECT count(*), {+is_settled} FROM matched),
         page (id, at) AS (SELECT id, at FROM matched WHERE {+is_behind} {+order_of_page}{page scan})
         SELECT total, is_settled, ({records: id, at} FROM (SELECT id, at FROM page {+order_of_page}) AS page) FROM found
         {scans: a filter may leave all submissions}",
        matched = match_set::matched(resolved, plan),
        is_settled = is_settled(),
        is_behind = all_of(is_row_behind("at, id", &scan)),
        order_of_page,
        scan,
    );
    sql.with_custom_plan()
}

/// The ids and the instants of a page, in its order.
fn select_page(counted: &CountedSearch<'_>, filter: &SubmissionFilter, scan: &PageScan) -> Sql {
    let sql = sql!(
        "SELECT id, at FROM ({+page}) AS page {+order_of_page}",
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
