//! The set of matches of a search that has no stored count.
//!
//! A keyword combined with other filters can be found from two sides: in the keyword index, or by scanning the
//! documents of the submissions that the other filters leave. Neither database can estimate which side is smaller:
//! SQLite has no statistics of its index, and those of Postgres fail for long documents. So the statement counts both
//! sides, but only so far that the counting is a fraction of the cost of the search. A common keyword then costs as
//! much as the other filters leave, and a rare one as much as it finds.

use super::column;
use super::conditions::{ids_of_hits, write_conditions, write_hits, write_in_document, write_keyword};
use super::covered_forms::ResolvedFilter;
use crate::store::filter::{Keyword, SubmissionFilter};
use crate::store::statement::{Dialect, Sql};

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
    /// The keyword or the other filters, whichever has fewer hits.
    CheaperSide,
    /// The planner decides; documents are scanned for the keyword, because the index does not cover them.
    ScanDocuments,
}

/// The keyword of a search that also has other filters.
pub(super) fn keyword_with_other_filters(filter: &SubmissionFilter) -> Option<&Keyword> {
    filter.search.as_ref().filter(|_| filter.narrows_by_more_than_a_keyword())
}

/// Adds the query whether a keyword is rare.
pub(super) fn write_is_rare(sql: &mut Sql, keyword: &Keyword) {
    sql.push("SELECT count(*) <= ").bind(RARE_HITS).push(" FROM (");
    write_hits(sql, keyword);
    sql.push(" LIMIT ").bind(RARE_HITS + 1).push(") AS hits");
}

/// Adds the common table expression `matched (id, at)` and those that it needs.
pub(super) fn write(sql: &mut Sql, resolved: &ResolvedFilter<'_>, plan: SearchPlan) {
    match (plan, &resolved.filter.search) {
        (SearchPlan::CheaperSide, Some(keyword)) => match sql.dialect() {
            Dialect::Postgres => write_on_postgres(sql, resolved, keyword),
            Dialect::Sqlite => write_on_sqlite(sql, resolved, keyword),
        },
        (SearchPlan::ScanDocuments, Some(keyword)) => {
            sql.push("matched (id, at) AS MATERIALIZED (");
            write_others(sql, resolved, "");
            sql.push(" AND s.id IN (SELECT shown_in FROM listed_documents WHERE ");
            write_in_document(sql, keyword);
            sql.push("))");
        }
        (_, keyword) => {
            sql.push("matched (id, at) AS MATERIALIZED (");
            write_others(sql, resolved, "");
            if let Some(keyword) = keyword {
                write_keyword(sql, keyword);
            }
            sql.push(")");
        }
    }
}

/// Postgres evaluates a materialized table only as far as it is read, and continues from there. So the same table is
/// counted and then read.
fn write_on_postgres(sql: &mut Sql, resolved: &ResolvedFilter<'_>, keyword: &Keyword) {
    sql.push("hits (id) AS MATERIALIZED (");
    write_hits(sql, keyword);
    sql.push("), others (id, at) AS MATERIALIZED (");
    write_others(sql, resolved, "");
    sql.push("), few (yes) AS MATERIALIZED (SELECT CASE");
    for (hits, others) in STEPS {
        write_step(sql, Branch::LookUp, hits, |sql| _ = sql.push("SELECT 1 FROM hits"));
        write_step(sql, Branch::Scan, others, |sql| _ = sql.push("SELECT 1 FROM others"));
    }
    sql.push(" ELSE false END), matched (id, at) AS MATERIALIZED (");
    sql.push("SELECT o.id, o.at FROM others o WHERE (SELECT yes FROM few) AND ");
    write_has_keyword(sql, "o.id", keyword);
    sql.push(" UNION ALL SELECT * FROM (");
    write_others(sql, resolved, "");
    sql.push(" AND s.id IN (")
        .push(ids_of_hits(Dialect::Postgres))
        .push(")) AS found WHERE NOT (SELECT yes FROM few))");
}

/// SQLite evaluates a materialized table completely, so `hits` is limited to what the first step needs, which is all
/// hits in most searches. A branch that may not be needed is joined after a one-row table that decides it.
fn write_on_sqlite(sql: &mut Sql, resolved: &ResolvedFilter<'_>, keyword: &Keyword) {
    let [(first, _), ..] = STEPS;
    sql.push("hits (id) AS MATERIALIZED (");
    write_hits(sql, keyword);
    sql.push(" LIMIT ").bind(first + 1);
    sql.push("), whole (yes) AS MATERIALIZED (SELECT count(*) <= ").bind(first);
    sql.push(" FROM hits), few (yes) AS MATERIALIZED (SELECT CASE");
    for (hits, others) in STEPS {
        write_step(sql, Branch::LookUp, hits, |sql| {
            if hits == first {
                sql.push("SELECT 1 FROM hits");
            } else {
                write_hits(sql, keyword);
            }
        });
        write_step(sql, Branch::Scan, others, |sql| write_others(sql, resolved, ""));
    }
    sql.push(" ELSE false END), matched (id, at) AS MATERIALIZED (");
    write_others(sql, resolved, "few CROSS JOIN ");
    sql.push(" AND few.yes AND ");
    write_has_keyword(sql, "s.id", keyword);
    sql.push(" UNION ALL ");
    write_others(sql, resolved, "whole CROSS JOIN ");
    sql.push(" AND whole.yes AND s.id IN (SELECT id FROM hits) UNION ALL ");
    write_others(sql, resolved, "whole CROSS JOIN few CROSS JOIN ");
    sql.push(" AND NOT (whole.yes OR few.yes)");
    write_keyword(sql, keyword);
    sql.push(")");
}

/// What a search does if one side is small.
#[derive(Clone, Copy)]
enum Branch {
    /// Looks up the keyword in the index.
    LookUp,
    /// Scans the documents that the other filters leave.
    Scan,
}

/// Adds a branch that is taken if a side has at most `few` rows.
fn write_step(sql: &mut Sql, branch: Branch, few: i64, write_side: impl FnOnce(&mut Sql)) {
    sql.push(" WHEN (SELECT count(*) <= ").bind(few).push(" FROM (");
    write_side(sql);
    sql.push(" LIMIT ").bind(few + 1).push(") AS first) THEN ");
    sql.push(match branch {
        Branch::LookUp => "false",
        Branch::Scan => "true",
    });
}

/// Adds the query of what all filters except the keyword leave, joined after the one-row tables in `behind`.
fn write_others(sql: &mut Sql, resolved: &ResolvedFilter<'_>, behind: &'static str) {
    sql.push("SELECT s.id, s.")
        .push(column(resolved.filter.sort_by))
        .push(" FROM ")
        .push(behind)
        .push("listed_submissions s WHERE ");
    write_conditions(sql, resolved);
}

/// Adds the condition that the document of a submission, or of a graduated child, contains a keyword.
fn write_has_keyword(sql: &mut Sql, id: &'static str, keyword: &Keyword) {
    sql.push("EXISTS (SELECT 1 FROM listed_documents WHERE shown_in = ").push(id).push(" AND ");
    write_in_document(sql, keyword);
    // OFFSET keeps Postgres from turning this into a join that first finds all documents with the keyword.
    sql.push(" LIMIT 1 OFFSET 0)");
}
