//! The one way in which texts are compared: keywords, answers and e-mail addresses.
//!
//! What the database stores folded and what a caller sends folded are equal exactly when a search is meant to find one by
//! the other, so both go through here. Postgres' own `lower` depends on its locale, and SQLite's knows only ASCII.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

/// Joins the answers of a document. No text is meant to hold this code point (a noncharacter, Unicode 23.7): where one does,
/// [`searchable`] makes it U+FFFD, in answers as in keywords, so that no keyword matches across two answers.
pub(in crate::store) const SEPARATOR: char = '\u{fdd0}';

/// Lower case for all of Unicode: the one way in which keywords, answers and e-mail addresses are compared.
///
/// One character at a time, so that a part of a text folds to a part of what the whole folds to: `str::to_lowercase` makes a
/// capital sigma another letter at the end of a word than within it. The two small sigmas are one here.
#[must_use]
pub fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    text.chars().flat_map(char::to_lowercase).map(|letter| if letter == 'ς' { 'σ' } else { letter }).collect()
}

/// The same, where most texts are what it makes of them.
#[must_use]
pub(in crate::store) fn folded(text: &str) -> Cow<'_, str> {
    // All of it is looked at, so that it can be many bytes at a time.
    let changes = text.bytes().fold(false, |changes, byte| changes | !byte.is_ascii() | byte.is_ascii_uppercase());
    if changes { Cow::Owned(fold(text)) } else { Cow::Borrowed(text) }
}

/// A folded text as documents contain it.
pub(in crate::store) fn searchable(folded: &str) -> String {
    folded.replace(SEPARATOR, "\u{fffd}")
}

/// A folded answer, or a line of it, as the terms filter looks it up: 64 bits of SHA-256. That two texts of one database
/// meet by chance is less likely than a wrong bit in memory; and who writes two that meet has them found for each other.
pub(in crate::store) fn term_digest(element: i64, folded: &str) -> i64 {
    let digest = Sha256::new().chain_update(element.to_le_bytes()).chain_update(folded).finalize();
    i64::from_le_bytes(*digest.first_chunk().expect("SHA-256 has 32 bytes"))
}

/// The term of an answer as a caller sends it.
pub(in crate::store) fn answer_digest(element: i64, answer: &str) -> i64 {
    term_digest(element, &searchable(&folded(answer)))
}
