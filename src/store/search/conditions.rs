//! The conditions of a [`SubmissionFilter`] as SQL.
//!
//! A condition on rows of another table is an `IN (SELECT …)`, which lets the planner start from either side. Derived
//! rows of answers name the submission that shows them, so that a graduated child is found through its parent.

use std::collections::HashMap;

use super::covered_forms::ResolvedFilter;
use super::terms::write_terms;
use crate::store::filter::Keyword;
use crate::store::statement::{Dialect, Sql, UNINDEXED_END, length_is};

/// The length of a trigram, and so of the shortest text that a trigram index finds.
const TRIGRAM_LENGTH: usize = 3;

/// Adds the conditions on a listed submission `s`, except for the keyword.
pub(super) fn write_conditions(sql: &mut Sql, resolved: &ResolvedFilter<'_>) {
    let ResolvedFilter { filter, forms, .. } = resolved;
    sql.push("true");
    if !forms.are_all() {
        sql.push(" AND s.form_id IN ");
        forms.write(sql);
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

/// Adds the condition that a submission `s` shows an answer with the keyword.
pub(super) fn write_keyword(sql: &mut Sql, keyword: &Keyword) {
    // Materialized, so that Postgres doesn't read all documents in the order of the submissions instead.
    sql.push(" AND s.id IN (WITH hits (id) AS MATERIALIZED (");
    write_hits(sql, keyword);
    let ids = ids_of_hits(sql.dialect());
    sql.push(") ").push(ids).push(")");
}

/// The query of the ids in `hits (id)`. On Postgres it is a union, whose size is estimated from its parts. For the
/// table itself Postgres would assume 200 ids, and then look up each of a hundred thousand ids separately.
pub(super) fn ids_of_hits(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => "SELECT id FROM hits UNION SELECT NULL",
        Dialect::Sqlite => "SELECT id FROM hits",
    }
}

/// Whether a keyword is too short for trigrams.
pub(super) fn is_short(keyword: &Keyword) -> bool {
    keyword.as_str().chars().count() < TRIGRAM_LENGTH
}

/// Adds the query of the submissions that show an answer with a keyword. A submission may occur more than once.
pub(super) fn write_hits(sql: &mut Sql, keyword: &Keyword) {
    let text = keyword.as_str();
    match sql.dialect() {
        Dialect::Postgres => {
            sql.push("SELECT shown_in FROM listed_documents WHERE ");
            if is_short(keyword) {
                // Not LIKE, for which the planner would also scan all trigrams.
                sql.push("formgate_pairs(document) @@ ").bind(pair(text)).push("::tsquery AND ");
                write_in_document(sql, keyword);
            } else {
                let part = distinct_part(text);
                sql.push(length_is!("<>")).push(" AND document LIKE ").bind(format!("%{}%", escape_like(part)));
                write_rest(sql, keyword, part);
                // The index of pairs finds the long documents, which have no pairs there.
                sql.push(" UNION ALL SELECT shown_in FROM listed_documents WHERE ").push(length_is!("="));
                sql.push(" AND formgate_pairs(document) @@ 'long'::tsquery AND ");
                write_in_document(sql, keyword);
            }
        }
        Dialect::Sqlite => {
            // By id and not by a join: SQLite then reads only the head of each document.
            sql.push("SELECT shown_in FROM listed_documents WHERE submission_id IN (");
            if is_short(keyword) {
                write_short_keyword(sql, text);
            } else {
                let part = distinct_part(text);
                sql.push("SELECT rowid FROM listed_trigrams WHERE listed_trigrams MATCH ");
                sql.bind(format!("\"{}\"", part.replace('"', "\"\"")));
                write_rest(sql, keyword, part);
            }
            sql.push(" UNION ALL SELECT submission_id FROM listed_documents WHERE substr(document, -2) = ");
            sql.bind(UNINDEXED_END).push(" AND ");
            write_in_document(sql, keyword);
            sql.push(")");
        }
    }
}

/// Adds the condition that a document that contains `part` contains the whole keyword.
fn write_rest(sql: &mut Sql, keyword: &Keyword, part: &str) {
    if part != keyword.as_str() {
        sql.push(" AND ");
        write_in_document(sql, keyword);
    }
}

/// Adds the condition that a document contains a keyword, by scanning the document.
pub(super) fn write_in_document(sql: &mut Sql, keyword: &Keyword) {
    sql.push_either("strpos(document, ", "instr(document, ").bind(keyword.as_str()).push(") > 0");
}

/// Adds the query of documents with a keyword of two characters, which is a prefix of a trigram or the end of the
/// document.
fn write_short_keyword(sql: &mut Sql, keyword: &str) {
    let beyond = format!("{keyword}{}", char::MAX);
    sql.push("SELECT rowid FROM listed_trigrams WHERE listed_trigrams MATCH (");
    // If there is no such trigram, a phrase that matches nothing.
    sql.push(r#"SELECT coalesce(group_concat('"' || replace(term, '"', '""') || '"', ' OR '), '""')"#);
    sql.push(" FROM listed_trigram_terms WHERE term >= ").bind(keyword).push(" AND term < ").bind(beyond);
    sql.push(") UNION ALL SELECT submission_id FROM listed_documents WHERE substr(document, -2) = ").bind(keyword);
}

/// A keyword of two characters as a tsquery. It also matches all documents that are too long for the index.
fn pair(keyword: &str) -> String {
    format!("'{}' | long", keyword.replace('\\', r"\\").replace('\'', "''"))
}

/// The longest part of a keyword without a repeated trigram; for most keywords, all of it.
///
/// FTS5 compares the positions of every trigram of a phrase, and LIKE starts again at every character, so a keyword of
/// a thousand equal letters costs a thousand times the length of a text of that letter: ten seconds for half a
/// megabyte. While no trigram repeats, both cost at most a small multiple of the length of the text. A scan by `instr`
/// or `strpos` then checks the remaining documents.
fn distinct_part(keyword: &str) -> &str {
    let starts: Vec<usize> = keyword.char_indices().map(|(start, _)| start).chain([keyword.len()]).collect();
    let mut last_seen = HashMap::new();
    let (mut first, mut longest) = (0, 0..0);
    for (position, span) in starts.windows(TRIGRAM_LENGTH + 1).enumerate() {
        if let Some(before) = last_seen.insert(&keyword[span[0]..span[TRIGRAM_LENGTH]], position) {
            first = first.max(before + 1);
        }
        if position + 1 - first > longest.len() {
            longest = first..position + 1;
        }
    }
    &keyword[starts[longest.start]..starts[longest.end + TRIGRAM_LENGTH - 1]]
}

/// Escapes `%`, `_` and `\` for a LIKE pattern.
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
