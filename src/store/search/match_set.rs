//! The set of what a search matches, for searches whose total nothing keeps.
//!
//! A keyword beside other filters can be looked up from two sides: by the index of keywords, or in the documents of what the
//! other filters leave. No database knows beforehand which of them has less: SQLite keeps no figures of its index, and those
//! of Postgres end where documents are long. So both are counted, but only so far that what is counted in vain is a part of
//! what the search costs anyway. A common keyword costs what the other filters leave, a rare one what it finds.

use super::column;
use super::conditions::{ids_of_hits, write_conditions, write_hits, write_in_document, write_keyword};
use crate::store::filter::{Keyword, SubmissionFilter};
use crate::store::statement::{Dialect, Sql};

/// Up to so many hits a keyword is rare, and is looked up without more ado: the statement that begins at either side takes a
/// third to half a millisecond more than the one that does not, which is about what a rare keyword costs. More, and as many
/// are counted once more than needed; fewer, and more searches pay for a choice that is worth nothing to them.
const RARE_HITS: i64 = 2_000;

/// How far both sides are counted, in turns: where a keyword finds no more than the first number, it is looked up; else where
/// the other filters leave no more than the second, each of those is looked through; and so on. A larger first number is what a
/// common keyword costs where next to nothing is left to look through; a larger second one, beside the first, takes longer
/// to look through than to look up, since of what is looked up each costs a fraction.
const STEPS: [(i64, i64); 3] = [(20_000, 5_000), (80_000, 20_000), (320_000, 80_000)];

/// Where a search begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchPlan {
    /// Where the planner finds it best; a keyword is looked up.
    ByPlanner,
    /// By the keyword or by the other filters, whichever has less.
    CheaperSide,
    /// Where the planner finds it best, but no index has what the keyword finds.
    ScanDocuments,
}

/// The keyword of a search that can begin at either side.
pub(super) fn keyword_with_other_filters(filter: &SubmissionFilter) -> Option<&Keyword> {
    filter.search.as_ref().filter(|_| filter.narrows_by_more_than_a_keyword())
}

/// Adds the query of whether a keyword is rare.
pub(super) fn write_is_rare(sql: &mut Sql, keyword: &Keyword) {
    sql.push("SELECT count(*) <= ").bind(RARE_HITS).push(" FROM (");
    write_hits(sql, keyword);
    sql.push(" LIMIT ").bind(RARE_HITS + 1).push(") AS hits");
}

/// Adds `matched (id, at)`, and the tables that it is made of.
pub(super) fn write(sql: &mut Sql, filter: &SubmissionFilter, plan: SearchPlan) {
    match (plan, &filter.search) {
        (SearchPlan::CheaperSide, Some(keyword)) => match sql.dialect() {
            Dialect::Postgres => write_on_postgres(sql, filter, keyword),
            Dialect::Sqlite => write_on_sqlite(sql, filter, keyword),
        },
        (SearchPlan::ScanDocuments, Some(keyword)) => {
            sql.push("matched (id, at) AS MATERIALIZED (");
            write_others(sql, filter, "");
            sql.push(" AND s.id IN (SELECT shown_in FROM listed_documents WHERE ");
            write_in_document(sql, keyword);
            sql.push("))");
        }
        (_, keyword) => {
            sql.push("matched (id, at) AS MATERIALIZED (");
            write_others(sql, filter, "");
            if let Some(keyword) = keyword {
                write_keyword(sql, keyword);
            }
            sql.push(")");
        }
    }
}

/// A table that is made once is read here only as far as it is asked for, and goes on from there: so it is both what is counted
/// and what is found.
fn write_on_postgres(sql: &mut Sql, filter: &SubmissionFilter, keyword: &Keyword) {
    sql.push("hits (id) AS MATERIALIZED (");
    write_hits(sql, keyword);
    sql.push("), others (id, at) AS MATERIALIZED (");
    write_others(sql, filter, "");
    sql.push("), few (yes) AS MATERIALIZED (SELECT CASE");
    for (hits, others) in STEPS {
        write_step(sql, Branch::LookUp, hits, |sql| _ = sql.push("SELECT 1 FROM hits"));
        write_step(sql, Branch::Scan, others, |sql| _ = sql.push("SELECT 1 FROM others"));
    }
    sql.push(" ELSE false END), matched (id, at) AS MATERIALIZED (");
    sql.push("SELECT o.id, o.at FROM others o WHERE (SELECT yes FROM few) AND ");
    write_has_keyword(sql, "o.id", keyword);
    sql.push(" UNION ALL SELECT * FROM (");
    write_others(sql, filter, "");
    sql.push(" AND s.id IN (")
        .push(ids_of_hits(Dialect::Postgres))
        .push(")) AS found WHERE NOT (SELECT yes FROM few))");
}

/// A table is read whole here, and so holds no more than the first step asks for; in most searches that is all there is. What
/// is to be read only if a row says so is joined behind it.
fn write_on_sqlite(sql: &mut Sql, filter: &SubmissionFilter, keyword: &Keyword) {
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
        write_step(sql, Branch::Scan, others, |sql| write_others(sql, filter, ""));
    }
    sql.push(" ELSE false END), matched (id, at) AS MATERIALIZED (");
    write_others(sql, filter, "few CROSS JOIN ");
    sql.push(" AND few.yes AND ");
    write_has_keyword(sql, "s.id", keyword);
    sql.push(" UNION ALL ");
    write_others(sql, filter, "whole CROSS JOIN ");
    sql.push(" AND whole.yes AND s.id IN (SELECT id FROM hits) UNION ALL ");
    write_others(sql, filter, "whole CROSS JOIN few CROSS JOIN ");
    sql.push(" AND NOT (whole.yes OR few.yes)");
    write_keyword(sql, keyword);
    sql.push(")");
}

/// What is done where one side has few.
#[derive(Clone, Copy)]
enum Branch {
    /// The hits of the keyword are looked up among the others.
    LookUp,
    /// The others are looked through for the keyword.
    Scan,
}

/// Adds what is done where a side has no more than so many.
fn write_step(sql: &mut Sql, branch: Branch, few: i64, write_side: impl FnOnce(&mut Sql)) {
    sql.push(" WHEN (SELECT count(*) <= ").bind(few).push(" FROM (");
    write_side(sql);
    sql.push(" LIMIT ").bind(few + 1).push(") AS first) THEN ");
    sql.push(match branch {
        Branch::LookUp => "false",
        Branch::Scan => "true",
    });
}

/// Adds the query of what all filters but the keyword leave, joined behind tables of one row.
fn write_others(sql: &mut Sql, filter: &SubmissionFilter, behind: &'static str) {
    sql.push("SELECT s.id, s.")
        .push(column(filter.sort_by))
        .push(" FROM ")
        .push(behind)
        .push("listed_submissions s WHERE ");
    write_conditions(sql, filter);
}

/// Adds that a submission's document, or that of a graduated child, has a keyword.
fn write_has_keyword(sql: &mut Sql, id: &'static str, keyword: &Keyword) {
    sql.push("EXISTS (SELECT 1 FROM listed_documents WHERE shown_in = ").push(id).push(" AND ");
    write_in_document(sql, keyword);
    // For Postgres, an offset is what keeps it from finding all that have the keyword first, and each among them.
    sql.push(" LIMIT 1 OFFSET 0)");
}
