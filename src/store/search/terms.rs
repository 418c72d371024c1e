//! The `terms` of a search as SQL. The text never grows with the number of terms or answers.
//!
//! The usual search has one or two terms. Each gets a condition of its own, which Postgres plans by how common these answers
//! are. More terms are one relational division, because planning grows with every condition: the answers of all terms are
//! bound as one table, joined with what is stored, and a submission matches if it has a hit for each term. Both read every
//! hit of every term once.
//!
//! A term matches an answer of the submission or of a graduated child; two terms may match in two different children.

use super::conditions::write_shown;
use crate::store::Texts;
use crate::store::filter::Term;
use crate::store::sql::{Dialect, Sql};

/// How many terms get a condition of their own. Larger: longer statements, and planning times that grow with what a caller
/// sends. Smaller: two terms take up to twice as long on SQLite.
const SEPARATE: usize = 2;

/// How much of an answer the terms index holds; the rest is compared with the row.
const INDEXED_PREFIX: usize = 64;

/// Adds that a submission `s` has an answer of every term.
pub(super) fn write_terms(sql: &mut Sql, terms: &[Term]) {
    if terms.len() <= SEPARATE {
        terms.iter().for_each(|term| write_separately(sql, term));
    } else {
        write_division(sql, terms);
    }
}

fn element(term: &Term) -> i64 {
    term.element.expect("a search with a key that names no element finds nothing, and is not written")
}

fn write_separately(sql: &mut Sql, term: &Term) {
    let element = element(term);
    let prefixes = || term.answers.iter().map(|answer| answer.chars().take(INDEXED_PREFIX).collect::<String>());
    write_shown(sql, |sql| {
        sql.push("SELECT submission_id FROM answers WHERE element_id = ").bind(element);
        sql.push_either(" AND left(folded, 64)", " AND substr(folded, 1, 64)").in_texts(prefixes());
        sql.push(" AND folded").in_texts(&term.answers);
        sql.push(" UNION ALL SELECT submission_id FROM answer_lines WHERE element_id = ").bind(element);
        sql.push_either(" AND left(line, 64)", " AND substr(line, 1, 64)").in_texts(prefixes());
        sql.push(" AND line").in_texts(&term.answers);
    });
}

fn write_division(sql: &mut Sql, terms: &[Term]) {
    sql.push(" AND s.id IN (WITH wanted (term, element, answer) AS MATERIALIZED (SELECT term, element, answer FROM ");
    write_wanted(sql, terms);
    // A CROSS JOIN keeps SQLite from reading all answers for each of the wanted ones. Postgres is free to reorder it.
    sql.push("), hits (term, id) AS MATERIALIZED (");
    sql.push("SELECT w.term, a.submission_id FROM wanted w CROSS JOIN answers a WHERE a.element_id = w.element");
    sql.push_either(
        " AND left(a.folded, 64) = left(w.answer, 64)",
        " AND substr(a.folded, 1, 64) = substr(w.answer, 1, 64)",
    );
    sql.push(" AND a.folded = w.answer UNION ALL ");
    sql.push("SELECT w.term, l.submission_id FROM wanted w CROSS JOIN answer_lines l WHERE l.element_id = w.element");
    sql.push_either(
        " AND left(l.line, 64) = left(w.answer, 64)",
        " AND substr(l.line, 1, 64) = substr(w.answer, 1, 64)",
    );
    sql.push(" AND l.line = w.answer) SELECT id FROM (SELECT term, id FROM hits UNION ALL ");
    sql.push("SELECT hits.term, m.child_of FROM hits CROSS JOIN submissions m ");
    sql.push("WHERE m.id = hits.id AND m.child_of IS NOT NULL AND NOT m.draft) AS shown ");
    sql.push("GROUP BY id HAVING count(DISTINCT term) = ");
    sql.bind(i64::try_from(terms.len()).expect("a body holds fewer terms")).push(")");
}

/// Adds the answers of all terms as a table `(term, element, answer)`. A term is known by its place in the list, because two
/// keys can name one element.
fn write_wanted(sql: &mut Sql, terms: &[Term]) {
    let wanted = || {
        (0_i64..)
            .zip(terms)
            .flat_map(|(place, term)| term.answers.iter().map(move |answer| (place, element(term), answer)))
    };
    match sql.dialect() {
        Dialect::Postgres => {
            sql.push("unnest(").bind(wanted().map(|(place, ..)| place).collect::<Vec<_>>());
            sql.push(", ").bind(wanted().map(|(_, element, _)| element).collect::<Vec<_>>());
            sql.push(", ").bind(wanted().map(|(.., answer)| answer).collect::<Texts>());
            sql.push(") AS w (term, element, answer)");
        }
        Dialect::Sqlite => {
            let rows = serde_json::to_string(&wanted().collect::<Vec<_>>()).expect("numbers and texts are JSON");
            sql.push_rows(rows, &[("term", "bigint"), ("element", "bigint"), ("answer", "text")]).push(" AS w");
        }
    }
}
