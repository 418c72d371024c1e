//! The `terms` of a search as SQL. The text never grows with the number of terms or answers.
//!
//! The usual search has one or two terms. Each gets a condition of its own, which Postgres plans by the frequency of
//! these answers. More terms are one relational division, because planning time grows with every condition: the
//! digests of all terms are bound as one table and joined with the stored ones, and a submission matches if it has a
//! hit for each term. Both forms read every hit of every term once.
//!
//! A term matches an answer of the submission or of a graduated child; two terms may match in two different children.

use std::collections::BTreeSet;

use crate::store::filter::Term;
use crate::store::statement::{Dialect, Sql, answer_digest};

/// How many terms get a condition of their own.
///
/// Larger: longer statements, and planning times that grow with the request. Smaller: two terms take up to twice as
/// long on SQLite.
const MAX_SEPARATE: usize = 2;

/// Adds the condition that a submission `s` has an answer of every term.
pub(super) fn write_terms(sql: &mut Sql, terms: &[Term]) {
    // Two keys can name the same element, so two terms can be equal.
    let wanted: BTreeSet<Vec<i64>> = terms.iter().map(digests).collect();
    if wanted.len() > MAX_SEPARATE {
        return write_division(sql, &wanted);
    }
    for digests in wanted {
        sql.push(" AND s.id IN (SELECT shown_in FROM listed_terms WHERE term").in_ids(&digests).push(")");
    }
}

/// The digests of a term's answers, in order.
fn digests(term: &Term) -> Vec<i64> {
    let element = term.element.expect("a search with a key that names no element finds nothing, and is not written");
    let digests: BTreeSet<i64> = term.answers.iter().map(|answer| answer_digest(element, answer)).collect();
    digests.into_iter().collect()
}

/// Adds a relational division. Terms are numbered, because two of them can share answers.
fn write_division(sql: &mut Sql, terms: &BTreeSet<Vec<i64>>) {
    let wanted: Vec<(i64, i64)> = (0_i64..)
        .zip(terms)
        .flat_map(|(number, digests)| digests.iter().map(move |digest| (number, *digest)))
        .collect();
    sql.push(" AND s.id IN (SELECT t.shown_in FROM ");
    match sql.dialect() {
        Dialect::Postgres => {
            sql.push("unnest(").bind(wanted.iter().map(|(number, _)| *number).collect::<Vec<_>>());
            sql.push(", ").bind(wanted.iter().map(|(_, digest)| *digest).collect::<Vec<_>>());
            sql.push(") AS w (number, term)");
        }
        Dialect::Sqlite => {
            let rows = serde_json::to_string(&wanted).expect("numbers are JSON");
            sql.push_rows(rows, &[("number", "bigint"), ("term", "bigint")]).push(" AS w");
        }
    }
    // CROSS JOIN keeps SQLite from scanning all stored terms for each wanted one. Postgres may reorder it.
    sql.push(" CROSS JOIN listed_terms t WHERE t.term = w.term GROUP BY t.shown_in HAVING count(DISTINCT w.number) = ");
    sql.bind(i64::try_from(terms.len()).expect("a body holds fewer terms")).push(")");
}
