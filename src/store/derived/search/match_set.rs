//! The set of matches of a search that has no stored count.
//!
//! A keyword combined with other filters can be found from two sides: in the keyword index, or by scanning the
//! documents of the submissions that the other filters leave. Neither database can estimate which side is smaller:
//! SQLite has no statistics of its index, and those of Postgres fail for long documents. So the statement counts both
//! sides, but only so far that the counting is a fraction of the cost of the search. A common keyword then costs as
//! much as the other filters leave, and a rare one as much as it finds.

use super::column;
use super::conditions::{all_of, conditions, has_keyword, hits, is_in_document};
use super::covered_forms::ResolvedFilter;
use crate::store::filter::Keyword;
use crate::store::statement::{Dialect, Sql, sql};

/// A keyword with up to this many hits is rare, and is looked up in the index without comparing both sides. The
/// comparison takes a third to half a millisecond, about as much as a rare keyword.
///
/// Larger: more hits are counted once more than needed. Smaller: more searches pay for a comparison that saves
/// nothing.
const RARE_HITS: i64 = 2_000;

/// How far both sides are counted, alternating. If the keyword has no more hits than the first number, it is looked
/// up. If not, and the other filters leave no more submissions than the second number, these are scanned. If not, the
/// next step.
///
/// Larger first number: a common keyword costs more if the other filters leave next to nothing. Larger second number
/// relative to the first: scanning takes longer than looking up, because a hit costs a fraction of a scanned document.
const STEPS: [(i64, i64); 3] = [(20_000, 5_000), (80_000, 20_000), (320_000, 80_000)];

/// Which side of a search is read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchPlan {
    /// The planner decides; a keyword is looked up in the index.
    ByPlanner,
    /// The keyword or the other filters, whichever has fewer hits. Each database needs a statement of its own.
    CheaperSide(Dialect),
    /// The planner decides; documents are scanned for the keyword, because the index does not cover them.
    ScanDocuments,
}

/// The keyword of a search that also has other filters, or is limited to what its caller reaches.
pub(super) fn keyword_with_other_filters<'f>(resolved: &ResolvedFilter<'f>) -> Option<&'f Keyword> {
    let is_narrowed = !resolved.forms.are_all() || resolved.filter.narrows_by_more_than_a_keyword();
    resolved.filter.search.as_ref().filter(|_| is_narrowed)
}

/// Whether a keyword is rare.
pub(super) fn select_is_rare(keyword: &Keyword) -> Sql {
    sql!(
        "SELECT count(*) <= {rare} FROM ({+hits} LIMIT {limit}) AS hits",
        rare = RARE_HITS,
        hits = hits(keyword),
        limit = RARE_HITS + 1,
    )
}

/// The common table expression `matched (id, at)` and those that it needs.
pub(super) fn matched(resolved: &ResolvedFilter<'_>, plan: SearchPlan) -> Sql {
    let of_keyword = match (plan, &resolved.filter.search) {
        (SearchPlan::CheaperSide(Dialect::Postgres), Some(keyword)) => return matched_on_postgres(resolved, keyword),
        (SearchPlan::CheaperSide(Dialect::Sqlite), Some(keyword)) => return matched_on_sqlite(resolved, keyword),
        (SearchPlan::ScanDocuments, Some(keyword)) => Some(sql!(
            "s.id IN (SELECT shown_in FROM listed_documents WHERE {+is_in_document})",
            is_in_document = is_in_document(keyword),
        )),
        (_, keyword) => keyword.as_ref().map(has_keyword),
    };
    sql!(
        "matched (id, at) AS MATERIALIZED (SELECT s.id, s.{+column} FROM listed_submissions s WHERE {+conditions})",
        column = column(resolved.filter.sort_by),
        conditions = all_of(conditions(resolved).into_iter().chain(of_keyword)),
    )
}

/// Postgres evaluates a materialized table only as far as it is read, and continues from there. So the same table is
/// counted and then read. OFFSET keeps it from turning EXISTS into a join that first finds all documents with the keyword;
/// for the union, see [`has_keyword`].
fn matched_on_postgres(resolved: &ResolvedFilter<'_>, keyword: &Keyword) -> Sql {
    let steps = STEPS.into_iter().flat_map(|(hits, others)| {
        [
            step(Sql::text("SELECT 1 FROM hits"), hits, Branch::LookUp),
            step(Sql::text("SELECT 1 FROM others"), others, Branch::Scan),
        ]
    });
    sql!(
        "hits (id) AS MATERIALIZED ({+hits}),
         others (id, at) AS MATERIALIZED (SELECT s.id, s.{+column} FROM listed_submissions s WHERE {+of_others}),
         few (yes) AS MATERIALIZED (SELECT CASE {+steps} ELSE false END),
         matched (id, at) AS MATERIALIZED (
           SELECT o.id, o.at FROM others o
           WHERE (SELECT yes FROM few) AND EXISTS (
             SELECT 1 FROM listed_documents WHERE shown_in = o.id AND {+is_in_document} LIMIT 1 OFFSET 0)
           UNION ALL
           SELECT * FROM (
             SELECT s.id, s.{+column} FROM listed_submissions s
             WHERE {+conditions} AND s.id IN (SELECT id FROM hits UNION SELECT NULL)) AS found
           WHERE NOT (SELECT yes FROM few))",
        hits = hits(keyword),
        column = column(resolved.filter.sort_by),
        of_others = all_of(conditions(resolved)),
        steps = Sql::joined(steps, " "),
        is_in_document = is_in_document(keyword),
        conditions = all_of(conditions(resolved)),
    )
}

/// SQLite evaluates a materialized table completely, so `hits` is limited to what the first step needs, which is all
/// hits in most searches. A branch that may not be needed is joined after a one-row table that decides it.
fn matched_on_sqlite(resolved: &ResolvedFilter<'_>, keyword: &Keyword) -> Sql {
    let column = || column(resolved.filter.sort_by);
    let others = || all_of(conditions(resolved));
    let [(first, _), ..] = STEPS;
    let steps = STEPS.into_iter().flat_map(|(few_hits, few_others)| {
        let found = if few_hits == first { Sql::text("SELECT 1 FROM hits") } else { hits(keyword) };
        let left = sql!(
            "SELECT s.id, s.{+column} FROM listed_submissions s WHERE {+conditions}",
            column = column(),
            conditions = others(),
        );
        [step(found, few_hits, Branch::LookUp), step(left, few_others, Branch::Scan)]
    });
    sql!(
        "hits (id) AS MATERIALIZED ({+hits} LIMIT {limit}),
         whole (yes) AS MATERIALIZED (SELECT count(*) <= {first} FROM hits),
         few (yes) AS MATERIALIZED (SELECT CASE {+steps} ELSE false END),
         matched (id, at) AS MATERIALIZED (
           SELECT s.id, s.{+column} FROM few CROSS JOIN listed_submissions s
           WHERE {+scanned} AND few.yes AND EXISTS (
             SELECT 1 FROM listed_documents WHERE shown_in = s.id AND {+is_in_document} LIMIT 1 OFFSET 0)
           UNION ALL
           SELECT s.id, s.{+column} FROM whole CROSS JOIN listed_submissions s
           WHERE {+looked_up} AND whole.yes AND s.id IN (SELECT id FROM hits)
           UNION ALL
           SELECT s.id, s.{+column} FROM whole CROSS JOIN few CROSS JOIN listed_submissions s
           WHERE {+looked_up_beyond} AND NOT (whole.yes OR few.yes) AND {+has_keyword})",
        hits = hits(keyword),
        limit = first + 1,
        first,
        steps = Sql::joined(steps, " "),
        column = column(),
        scanned = others(),
        is_in_document = is_in_document(keyword),
        looked_up = others(),
        looked_up_beyond = others(),
        has_keyword = has_keyword(keyword),
    )
}

/// What a search does if one side is small.
#[derive(Clone, Copy)]
enum Branch {
    /// Looks up the keyword in the index.
    LookUp,
    /// Scans the documents that the other filters leave.
    Scan,
}

/// A branch that is taken if a side has at most `few` rows.
fn step(side: Sql, few: i64, branch: Branch) -> Sql {
    let branch = match branch {
        Branch::LookUp => "false",
        Branch::Scan => "true",
    };
    sql!(
        "WHEN (SELECT count(*) <= {few} FROM ({+side} LIMIT {limit}) AS first) THEN {+branch}",
        few,
        side,
        limit = few + 1,
        branch = Sql::text(branch),
    )
}
