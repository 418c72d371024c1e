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
use crate::store::statement::{Sql, answer_digest, sql};

/// How many terms get a condition of their own.
///
/// Larger: longer statements, and planning times that grow with the request. Smaller: two terms take up to twice as
/// long on SQLite.
const MAX_SEPARATE: usize = 2;

/// The conditions that a submission `s` has an answer of every term.
pub(super) fn conditions_of_terms(terms: &[Term]) -> Vec<Sql> {
    // Two keys can name the same element, so two terms can be equal.
    let wanted: BTreeSet<Vec<i64>> = terms.iter().map(digests).collect();
    if wanted.len() > MAX_SEPARATE {
        return vec![division(&wanted)];
    }
    let of_one =
        |digests: Vec<i64>| sql!("s.id IN (SELECT shown_in FROM listed_terms WHERE term {in digests})", digests);
    wanted.into_iter().map(of_one).collect()
}

/// The digests of a term's answers, in order.
fn digests(term: &Term) -> Vec<i64> {
    let element = term.element.expect("a search with a key that names no element finds nothing, and is not written");
    let digests: BTreeSet<i64> = term.answers.iter().map(|answer| answer_digest(element, answer)).collect();
    digests.into_iter().collect()
}

/// A relational division. Terms are numbered, because two of them can share answers.
fn division(terms: &BTreeSet<Vec<i64>>) -> Sql {
    let wanted: Vec<(i64, i64)> = (0_i64..)
        .zip(terms)
        .flat_map(|(number, digests)| digests.iter().map(move |digest| (number, *digest)))
        .collect();
    // CROSS JOIN keeps SQLite from scanning all stored terms for each wanted one. Postgres may reorder it.
    sql!(
        "s.id IN (
           SELECT t.shown_in
           FROM {pg: unnest({numbers}, {digests}) AS w (number, term)
                | lite: {rows wanted: number bigint, term bigint} AS w}
             CROSS JOIN listed_terms t
           WHERE t.term = w.term GROUP BY t.shown_in HAVING count(DISTINCT w.number) = {count})",
        numbers = wanted.iter().map(|(number, _)| *number).collect::<Vec<_>>(),
        digests = wanted.iter().map(|(_, digest)| *digest).collect::<Vec<_>>(),
        wanted = serde_json::to_string(&wanted).expect("numbers are JSON"),
        count = i64::try_from(terms.len()).expect("a body holds fewer terms"),
    )
}
