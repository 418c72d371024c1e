//! The conditions of a [`SubmissionFilter`] as SQL.
//!
//! A condition on rows of another table is an `IN (SELECT …)`, which lets the planner start from either side. Derived
//! rows of answers name the submission that shows them, so that a graduated child is found through its parent.

use std::collections::HashMap;

use jiff::Timestamp;

use super::covered_forms::ResolvedFilter;
use super::terms::conditions_of_terms;
use crate::store::filter::{Keyword, Status};
use crate::store::statement::{Sql, TextList, UNINDEXED_END, length_is, sql};

/// The length of a trigram, and so of the shortest text that a trigram index finds.
const TRIGRAM_LENGTH: usize = 3;

/// The condition that a submission has one of some ids.
type OfIds = fn(&[i64]) -> Sql;

/// The conditions on a listed submission `s`, except for the keyword.
pub(super) fn conditions(resolved: &ResolvedFilter<'_>) -> Vec<Sql> {
    let ResolvedFilter { filter, forms, .. } = resolved;
    let of_ids: [(&[i64], OfIds); 6] = [
        (&filter.submitters, |ids| sql!("s.submitter_id {in ids}", ids)),
        (&filter.pending, |ids| {
            sql!("s.id IN (SELECT submission_id FROM submission_pending WHERE user_id {in ids})", ids)
        }),
        (&filter.participants, |ids| {
            sql!("s.id IN (SELECT submission_id FROM submission_participants WHERE user_id {in ids})", ids)
        }),
        (&filter.labels, |ids| {
            sql!("s.id IN (SELECT submission_id FROM submission_labels WHERE label_id {in ids} AND NOT shared)", ids)
        }),
        (&filter.shared_labels, |ids| {
            sql!("s.id IN (SELECT submission_id FROM submission_labels WHERE label_id {in ids} AND shared)", ids)
        }),
        (&filter.flows, |ids| {
            sql!("s.id IN (SELECT submission_id FROM submission_flow_steps WHERE flow_step_id {in ids})", ids)
        }),
    ];
    let mut conditions = Vec::new();
    conditions.extend(forms.table().map(|forms| sql!("s.form_id IN {+forms}", forms)));
    conditions.extend(has_status(Sql::text("s.status"), &filter.statuses));
    conditions.extend(of_ids.iter().filter(|(ids, _)| !ids.is_empty()).map(|(ids, condition)| condition(ids)));
    conditions.extend(was_created_in(filter.start, filter.end));
    conditions.extend(conditions_of_terms(&filter.terms));
    conditions
}

/// Several conditions as one.
pub(super) fn all_of(conditions: impl IntoIterator<Item = Sql>) -> Sql {
    let mut conditions = conditions.into_iter().peekable();
    if conditions.peek().is_none() { Sql::text("true") } else { Sql::joined(conditions, " AND ") }
}

/// The condition on a status. None if all are wanted.
pub(super) fn has_status(status: Sql, wanted: &[Status]) -> Option<Sql> {
    (!wanted.is_empty()).then(|| sql!("{+status} {in wanted}", status, wanted = texts(wanted)))
}

/// Statuses as the database spells them.
pub(super) fn texts(statuses: &[Status]) -> TextList {
    statuses.iter().map(|status| status.as_str()).collect()
}

/// The conditions that a submission `s` was created in a span, both ends included.
pub(super) fn was_created_in(start: Option<Timestamp>, end: Option<Timestamp>) -> impl Iterator<Item = Sql> {
    let start = start.map(|start| sql!("s.created_at >= {start}", start));
    let end = end.map(|end| sql!("s.created_at <= {end}", end));
    start.into_iter().chain(end)
}

/// The condition that a submission `s` shows an answer with the keyword.
pub(super) fn has_keyword(keyword: &Keyword) -> Sql {
    // Materialized, so that Postgres doesn't read all documents in the order of the submissions instead. It estimates the
    // size of a union from its parts. For the table itself it would assume 200 ids, and then look up each of a hundred
    // thousand ids separately.
    sql!(
        "s.id IN (WITH hits (id) AS MATERIALIZED ({+hits}) SELECT id FROM hits{pg:  UNION SELECT NULL})",
        hits = hits(keyword),
    )
}

/// Whether a keyword is too short for trigrams.
pub(super) fn is_short(keyword: &Keyword) -> bool {
    keyword.as_str().chars().count() < TRIGRAM_LENGTH
}

/// The submissions that show an answer with a keyword. A submission may occur more than once.
pub(super) fn hits(keyword: &Keyword) -> Sql {
    if is_short(keyword) { hits_of_short(keyword) } else { hits_of_long(keyword) }
}

/// A keyword of two characters is a pair, or a prefix of a trigram or the end of the document. On Postgres, pairs are not
/// found by LIKE, for which the planner would also scan all trigrams. SQLite looks up documents by id and not by a join: it
/// then reads only the head of each. If there is no trigram, it looks for a phrase that matches nothing.
fn hits_of_short(keyword: &Keyword) -> Sql {
    let text = keyword.as_str();
    sql!(
        r#"{pg:
           SELECT shown_in FROM listed_documents
           WHERE formgate_pairs(document) @@ {pair}::tsquery AND strpos(document, {keyword}) > 0
         | lite:
           SELECT shown_in FROM listed_documents WHERE submission_id IN (
             SELECT rowid FROM listed_trigrams WHERE listed_trigrams MATCH (
               SELECT coalesce(group_concat('"' || replace(term, '"', '""') || '"', ' OR '), '""')
               FROM listed_trigram_terms WHERE term >= {keyword} AND term < {beyond})
             UNION ALL
             SELECT submission_id FROM listed_documents WHERE substr(document, -2) = {keyword}
             UNION ALL
             SELECT submission_id FROM listed_documents
             WHERE substr(document, -2) = {unindexed_end} AND instr(document, {keyword}) > 0)}"#,
        pair = pair(text),
        keyword = text,
        beyond = format!("{text}{}", char::MAX),
        unindexed_end = UNINDEXED_END,
    )
}

/// The index finds the documents with a part of the keyword, and all that are too long for it: on Postgres, these have no
/// pairs in the index of pairs.
fn hits_of_long(keyword: &Keyword) -> Sql {
    let text = keyword.as_str();
    let part = distinct_part(text);
    // That a document with this part has the whole keyword.
    let rest = if part == text { Sql::default() } else { sql!(" AND {+it}", it = is_in_document(keyword)) };
    sql!(
        "{pg:
           SELECT shown_in FROM listed_documents WHERE {+is_indexed} AND document LIKE {pattern}{+rest}
           UNION ALL
           SELECT shown_in FROM listed_documents
           WHERE {+is_long} AND formgate_pairs(document) @@ 'long'::tsquery AND strpos(document, {keyword}) > 0
         | lite:
           SELECT shown_in FROM listed_documents WHERE submission_id IN (
             SELECT rowid FROM listed_trigrams WHERE listed_trigrams MATCH {phrase}{+rest}
             UNION ALL
             SELECT submission_id FROM listed_documents
             WHERE substr(document, -2) = {unindexed_end} AND instr(document, {keyword}) > 0)}",
        is_indexed = Sql::text(length_is!("<>")),
        pattern = format!("%{}%", escape_like(part)),
        rest,
        is_long = Sql::text(length_is!("=")),
        keyword = text,
        phrase = format!("\"{}\"", part.replace('"', "\"\"")),
        unindexed_end = UNINDEXED_END,
    )
}

/// The condition that a document contains a keyword, by scanning the document.
pub(super) fn is_in_document(keyword: &Keyword) -> Sql {
    sql!("{pg: strpos | lite: instr}(document, {keyword}) > 0", keyword = keyword.as_str())
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
