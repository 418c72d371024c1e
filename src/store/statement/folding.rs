//! Case folding for comparing keywords, answers and e-mail addresses.
//!
//! Stored texts and texts that a client sends are both folded here, so that they are equal if and only if one should
//! match the other. Postgres's `lower` depends on its locale, and SQLite's handles only ASCII.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

/// Joins the answers of a document. It is a noncharacter (Unicode 23.7), which texts should not contain.
/// [`searchable`] replaces it by U+FFFD in answers and keywords, so that no keyword matches across two answers.
pub(in crate::store) const SEPARATOR: char = '\u{fdd0}';

/// How many bytes a document has that the keyword index contains: the index has an entry for each of its characters, or on
/// Postgres for each distinct trigram. Longer ones are scanned by every keyword search. [`length_is`] contains the number after it.
///
/// Larger: after a long answer was written, searches of the account wait for longer than they may. Smaller: more documents
/// are scanned, at some milliseconds per megabyte.
pub(in crate::store) const MAX_INDEXED: usize = 4 * 1024 * 1024;

/// The condition that a document is in the trigram index of Postgres, or is not. Its length is compared in this form,
/// because the planner guesses that most rows differ from a value, but that a third exceed one. Reading the length does
/// not read the document.
macro_rules! length_is {
    ($operator:literal) => {
        concat!("least(octet_length(document), 4194305) ", $operator, " 4194305")
    };
}
pub(in crate::store) use length_is;

/// Ends a document that is too long for the keyword index, and is scanned instead. No keyword matches it, because it
/// begins with [`SEPARATOR`] and keywords have at least two characters.
pub(in crate::store) const UNINDEXED_END: &str = "\u{fdd0}\u{fdd1}";

/// Converts a text to lower case, for all of Unicode.
///
/// Each character is folded independently, so that a substring folds to a substring: `str::to_lowercase` maps a
/// capital sigma at the end of a word to another letter than within it. Here both small sigmas are the same.
#[must_use]
pub fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    text.chars().flat_map(char::to_lowercase).map(|letter| if letter == 'ς' { 'σ' } else { letter }).collect()
}

/// Like [`fold`], without copying a text that is already folded.
#[must_use]
pub(in crate::store) fn folded(text: &str) -> Cow<'_, str> {
    // Without an early exit, so that the compiler can vectorize it.
    let changes = text.bytes().fold(false, |changes, byte| changes | !byte.is_ascii() | byte.is_ascii_uppercase());
    if changes { Cow::Owned(fold(text)) } else { Cow::Borrowed(text) }
}

/// A folded text as it appears in documents.
pub(in crate::store) fn searchable(folded: String) -> String {
    if folded.contains(SEPARATOR) { folded.replace(SEPARATOR, "\u{fffd}") } else { folded }
}

/// The digest by which the terms filter looks up a folded answer, or a line of it: 64 bits of SHA-256. An accidental
/// collision in a database is less likely than a bit error in memory, and would only add a wrong hit.
pub(in crate::store) fn term_digest(element: i64, folded: &str) -> i64 {
    let digest = Sha256::new().chain_update(element.to_le_bytes()).chain_update(folded).finalize();
    i64::from_le_bytes(*digest.first_chunk().expect("SHA-256 has 32 bytes"))
}

/// The digest of an answer as a client sends it.
pub(in crate::store) fn answer_digest(element: i64, answer: &str) -> i64 {
    term_digest(element, &searchable(fold(answer)))
}
