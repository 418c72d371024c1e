//! The rows of the search tables that are derived from a submission, in memory.
//!
//! Computes documents, terms and counts from answers; reads and writes nothing.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::store::statement::{MAX_INDEXED, SEPARATOR, UNINDEXED_END, fold, searchable, term_digest};

/// After how many terms of a submission no further lines of its answers are terms, only whole answers: each term is a row,
/// and a text may have millions of lines.
///
/// Larger: after a long answer was written, searches of the account wait for longer than they may, at about 10 µs a line.
/// Smaller: an answer with very many choices does not match by each of them.
const MAX_TERMS: usize = 100_000;

/// How many bytes of the answers of a submission a document has. Keywords that are only in answers beyond are not found.
///
/// Larger: a submission could be longer than a row of either database may be, and settling takes more memory. Smaller:
/// less of a submission is searched.
const MAX_DOCUMENT: usize = 256 * 1024 * 1024;

/// The derived rows of one submission.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Derived {
    /// Its entry in the list, unless it is only shown inside its parent.
    pub(super) listed: Option<ListedSubmission>,
    /// The document of the keyword search: its answers, if it has any and they are shown.
    pub(super) document: Option<SearchDocument>,
    /// The submission that shows the answers, and the digests that the terms filter looks up.
    pub(super) terms: BTreeSet<(i64, i64)>,
    /// Label, whether it is shared, and the last change of the submission.
    pub(super) labels: BTreeSet<(i64, bool, Timestamp)>,
}

/// What is derived from a submission that is gone.
pub(super) static NOTHING: Derived =
    Derived { listed: None, document: None, terms: BTreeSet::new(), labels: BTreeSet::new() };

/// A submission's row in `listed_submissions`.
#[derive(Debug, PartialEq)]
pub(super) struct ListedSubmission {
    pub(super) form: i64,
    pub(super) status: String,
    pub(super) submitter: Option<i64>,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
}

/// The folded answers of a submission.
#[derive(Debug, PartialEq)]
pub(super) struct SearchDocument {
    /// The submission that shows them: itself, or its parent.
    pub(super) shown_in: i64,
    pub(super) text: String,
}

impl Derived {
    /// Adds an answer of a submission whose answers are shown. Call in the order of the elements.
    pub(super) fn add_answer(&mut self, shown_in: i64, element: i64, value: &str) {
        let folded = searchable(fold(value));
        for line in folded.split('\n') {
            if self.terms.len() >= MAX_TERMS {
                break;
            }
            self.terms.insert((shown_in, term_digest(element, line)));
        }
        self.terms.insert((shown_in, term_digest(element, &folded)));
        match &mut self.document {
            Some(document) if document.text.len().saturating_add(folded.len()) > MAX_DOCUMENT => {}
            Some(document) => {
                document.text.push(SEPARATOR);
                document.text.push_str(&folded);
            }
            None => self.document = Some(SearchDocument { shown_in, text: folded }),
        }
    }

    /// Marks a document that is too long for an index. Call after the last answer.
    pub(super) fn end_document(&mut self) {
        if let Some(document) = &mut self.document
            && document.text.len() > MAX_INDEXED
        {
            document.text.push_str(UNINDEXED_END);
        }
    }

    /// The counts that include it: what is counted, its key and status.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, i64, &str)> {
        let of_listed = self.listed.iter().flat_map(|listed| {
            [
                ("form", listed.form, &*listed.status),
                ("created", day(listed.created_at), ""),
                ("updated", day(listed.updated_at), ""),
            ]
        });
        let of_labels =
            self.labels.iter().map(|(label, shared, _)| (if *shared { "shared label" } else { "label" }, *label, ""));
        of_listed.chain(of_labels)
    }
}

/// Days since 1970-01-01 in UTC.
fn day(instant: Timestamp) -> i64 {
    instant.as_microsecond().div_euclid(86_400_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_joins_the_answers_in_order_and_the_terms_are_their_lines() {
        let mut derived = Derived::default();
        derived.add_answer(7, 1, "ΟΔΥΣ");
        derived.add_answer(7, 2, "Red\nBlue");
        derived.add_answer(7, 3, "a\u{fdd0}b");
        let document = derived.document.as_ref().unwrap();
        assert_eq!((document.shown_in, &*document.text), (7, "οδυσ\u{fdd0}red\nblue\u{fdd0}a\u{fffd}b"));
        let terms: BTreeSet<_> = [(1, "οδυσ"), (2, "red\nblue"), (2, "red"), (2, "blue"), (3, "a\u{fffd}b")]
            .map(|(element, text)| (7, term_digest(element, text)))
            .into();
        assert_eq!(derived.terms, terms);
        assert_ne!(term_digest(1, "red"), term_digest(2, "red"));
    }

    #[test]
    fn an_answer_of_very_many_lines_is_a_term_but_not_each_of_its_lines() {
        let mut derived = Derived::default();
        let lines: Vec<String> = (0..=MAX_TERMS).map(|line| line.to_string()).collect();
        let answer = lines.join("\n");
        derived.add_answer(7, 1, &answer);
        derived.add_answer(7, 2, "a\nb");
        let has = |element, text: &str| derived.terms.contains(&(7, term_digest(element, text)));
        assert!(has(1, &answer) && has(1, "0") && has(1, &lines[MAX_TERMS - 1]) && has(2, "a\nb"));
        assert!(!has(1, &lines[MAX_TERMS]) && !has(2, "a"));
    }

    #[test]
    fn a_document_that_is_too_long_for_the_index_is_marked() {
        for (bytes, is_marked) in [(MAX_INDEXED, false), (MAX_INDEXED + 1, true)] {
            let mut derived = Derived::default();
            derived.add_answer(7, 1, &"a".repeat(bytes));
            derived.end_document();
            assert_eq!(derived.document.unwrap().text.ends_with(UNINDEXED_END), is_marked, "{bytes}");
        }
    }

    #[test]
    fn days_before_1970_are_whole_too() {
        for (instant, expected) in
            [("1970-01-01T00:00:00Z", 0), ("1969-12-31T23:59:59.999999Z", -1), ("2026-02-28T12:00:00Z", 20_512)]
        {
            assert_eq!(day(instant.parse().unwrap()), expected, "{instant}");
        }
    }
}
