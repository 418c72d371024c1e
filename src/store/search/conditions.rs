//! The conditions of a [`SubmissionFilter`] as SQL.
//!
//! A condition on a list of rows elsewhere is an `IN (SELECT …)`, which lets the planner start from either side. What is
//! derived of answers names the submission that shows them, so that a graduated child is found through its parent.

use std::collections::HashMap;

use super::terms::write_terms;
use crate::store::filter::{Keyword, SubmissionFilter};
use crate::store::statement::{Dialect, Sql};

/// The shortest text that trigrams can find.
const TRIGRAM_LENGTH: usize = 3;

/// Adds what a listed submission `s` must have to be found, the keyword apart.
pub(super) fn write_conditions(sql: &mut Sql, filter: &SubmissionFilter) {
    sql.push("true");
    if !filter.forms.is_empty() {
        sql.push(" AND s.form_id IN ");
        write_forms(sql, &filter.forms);
    }
    if !filter.statuses.is_empty() {
        sql.push(" AND s.status").in_texts(filter.statuses.iter().map(|status| status.as_str()));
    }
    if !filter.submitters.is_empty() {
        sql.push(" AND s.submitter_id").in_ids(&filter.submitters);
    }
    let related: [(&[i64], &str, &str); 5] = [
        (&filter.pending, "SELECT submission_id FROM submission_pending WHERE user_id", ""),
        (&filter.participants, "SELECT submission_id FROM submission_participants WHERE user_id", ""),
        (&filter.labels, "SELECT submission_id FROM submission_labels WHERE label_id", " AND NOT shared"),
        (&filter.shared_labels, "SELECT submission_id FROM submission_labels WHERE label_id", " AND shared"),
        (&filter.flows, "SELECT submission_id FROM submission_flow_steps WHERE flow_step_id", ""),
    ];
    for (ids, select, and) in related {
        if !ids.is_empty() {
            sql.push(" AND s.id IN (").push(select).in_ids(ids).push(and).push(")");
        }
    }
    if let Some(start) = filter.start {
        sql.push(" AND s.created_at >= ").bind(start);
    }
    if let Some(end) = filter.end {
        sql.push(" AND s.created_at <= ").bind(end);
    }
    write_terms(sql, &filter.terms);
}

/// Adds that a submission `s` shows an answer with the keyword.
pub(super) fn write_keyword(sql: &mut Sql, keyword: &Keyword) {
    // A table of its own, so that Postgres doesn't read all documents in the order of the submissions instead.
    sql.push(" AND s.id IN (WITH hits (id) AS MATERIALIZED (");
    write_hits(sql, keyword);
    let ids = ids_of_hits(sql.dialect());
    sql.push(") ").push(ids).push(")");
}

/// The query of the ids in `hits (id)`. For Postgres it is a union, which it expects to have as many ids as its parts; of the
/// table alone it expects 200, and then looks up each of a hundred thousand by itself.
pub(super) fn ids_of_hits(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => "SELECT id FROM hits UNION SELECT NULL",
        Dialect::Sqlite => "SELECT id FROM hits",
    }
}

/// Adds the ids of forms and of their sub-forms, as a table of one column `id`.
pub(super) fn write_forms(sql: &mut Sql, forms: &[i64]) {
    sql.push("(WITH RECURSIVE wanted (id) AS (SELECT id FROM forms WHERE id").in_ids(forms);
    sql.push(" UNION SELECT f.id FROM forms f JOIN wanted ON f.parent_id = wanted.id) SELECT id FROM wanted)");
}

/// Whether a keyword is too short for trigrams.
pub(super) fn is_short(keyword: &Keyword) -> bool {
    keyword.as_str().chars().count() < TRIGRAM_LENGTH
}

/// Adds the query of the submissions that show an answer with a keyword; one of them may come more than once.
pub(super) fn write_hits(sql: &mut Sql, keyword: &Keyword) {
    let text = keyword.as_str();
    match sql.dialect() {
        Dialect::Postgres => {
            sql.push("SELECT shown_in FROM listed_documents WHERE ");
            if is_short(keyword) {
                // And not LIKE, for which the planner would go through all trigrams besides.
                sql.push("formgate_pairs(document) @@ ").bind(pair(text)).push("::tsquery AND ");
                write_in_document(sql, keyword);
            } else {
                let part = distinct_part(text);
                sql.push("document LIKE ").bind(format!("%{}%", escape_like(part)));
                write_rest(sql, keyword, part);
            }
        }
        Dialect::Sqlite => {
            // By their ids and not by a join: SQLite then reads of a document no more than its head.
            sql.push("SELECT shown_in FROM listed_documents WHERE submission_id IN (");
            if is_short(keyword) {
                write_short_keyword(sql, text);
            } else {
                let part = distinct_part(text);
                sql.push("SELECT rowid FROM listed_trigrams WHERE listed_trigrams MATCH ");
                sql.bind(format!("\"{}\"", part.replace('"', "\"\"")));
                write_rest(sql, keyword, part);
            }
            sql.push(")");
        }
    }
}

/// Adds that a document that has a part of the keyword has all of it.
fn write_rest(sql: &mut Sql, keyword: &Keyword, part: &str) {
    if part != keyword.as_str() {
        sql.push(" AND ");
        write_in_document(sql, keyword);
    }
}

/// Adds that a document has a keyword, which is looked for from its beginning to its end.
pub(super) fn write_in_document(sql: &mut Sql, keyword: &Keyword) {
    sql.push_either("strpos(document, ", "instr(document, ").bind(keyword.as_str()).push(") > 0");
}

/// Adds the documents with a keyword of two characters, which begins some trigrams of the index or ends the document.
fn write_short_keyword(sql: &mut Sql, keyword: &str) {
    let beyond = format!("{keyword}{}", char::MAX);
    sql.push("SELECT rowid FROM listed_trigrams WHERE listed_trigrams MATCH (");
    // Without any such trigram, the phrase that nothing matches.
    sql.push(r#"SELECT coalesce(group_concat('"' || replace(term, '"', '""') || '"', ' OR '), '""')"#);
    sql.push(" FROM listed_trigram_terms WHERE term >= ").bind(keyword).push(" AND term < ").bind(beyond);
    sql.push(") UNION ALL SELECT submission_id FROM listed_documents WHERE substr(document, -2) = ").bind(keyword);
}

/// A keyword of two characters as a tsquery. Documents that are too long for the index are among what it finds.
fn pair(keyword: &str) -> String {
    format!("'{}' | long", keyword.replace('\\', r"\\").replace('\'', "''"))
}

/// The longest part of a keyword that has no trigram twice: of most keywords, all of it.
///
/// FTS5 compares the positions of every trigram of a phrase, and LIKE starts again at every character, so a keyword of a
/// thousand equal letters costs a thousand times the length of a text of that letter: ten seconds for half a megabyte. While no
/// trigram repeats, both cost at most a small multiple of the length of the text. A scan by `instr` or `strpos` then checks
/// the few documents that are left.
fn distinct_part(keyword: &str) -> &str {
    let starts: Vec<usize> = keyword.char_indices().map(|(start, _)| start).chain([keyword.len()]).collect();
    let mut last_seen = HashMap::new();
    let (mut first, mut longest) = (0, 0..0);
    for (place, span) in starts.windows(TRIGRAM_LENGTH + 1).enumerate() {
        if let Some(before) = last_seen.insert(&keyword[span[0]..span[TRIGRAM_LENGTH]], place) {
            first = first.max(before + 1);
        }
        if place + 1 - first > longest.len() {
            longest = first..place + 1;
        }
    }
    &keyword[starts[longest.start]..starts[longest.end + TRIGRAM_LENGTH - 1]]
}

/// Makes `%`, `_` and `\` ordinary characters of a LIKE pattern.
fn escape_like(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_that_an_index_looks_up_has_no_trigram_twice() {
        for (keyword, part) in [
            ("abc", "abc"),
            ("rare jq answer", "rare jq answer"),
            ("aaa", "aaa"),
            ("aaaaaaaaaa", "aaa"),
            ("abababab", "abab"),
            ("aaaaaword", "aaaword"),
            ("wordaaaaa", "wordaaa"),
            ("the cat the dog", "e cat the dog"),
            ("\u{e4}\u{e4}\u{e4}\u{e4}\u{f6}", "\u{e4}\u{e4}\u{e4}\u{f6}"),
        ] {
            assert_eq!(distinct_part(keyword), part, "{keyword}");
        }
        let long = "ab".repeat(500) + "c";
        assert_eq!(distinct_part(&long), "ababc");
    }
}
