//! What a submission shows and what filters see of it, as digests: two of them differ if and only if a caller would notice.
//!
//! Of each digest 64 bits are kept. An accidental collision is less likely than a bit error in memory, and would hide one
//! change of one submission.

use jiff::Timestamp;
use sha2::{Digest, Sha256};

/// A submission that is no draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// The submission that shows it: itself, or its parent.
    pub(super) shown_in: i64,
    pub(super) form: i64,
    /// Of what the API shows.
    pub(super) shown: i64,
    /// Of what only filters see.
    pub(super) matched: i64,
}

/// Digests a submission, part by part.
#[derive(Debug)]
pub(super) struct ContentDigest {
    shown_in: i64,
    form: i64,
    shown: Sha256,
    matched: Sha256,
}

impl ContentDigest {
    pub(super) fn new(
        shown_in: i64,
        form: i64,
        status: &str,
        submitter: Option<i64>,
        [created_at, updated_at]: [Timestamp; 2],
    ) -> Self {
        let mut digest = Self { shown_in, form, shown: Sha256::new(), matched: Sha256::new() };
        digest.shown.update(form.to_le_bytes());
        for instant in [created_at, updated_at] {
            digest.shown.update(instant.as_microsecond().to_le_bytes());
        }
        update_with_text(&mut digest.shown, status);
        digest.matched.update(submitter.unwrap_or(0).to_le_bytes());
        digest
    }

    /// Adds an answer. Call in the order of the elements.
    pub(super) fn add_answer(&mut self, element: i64, value: &str, files: Option<&str>, updated_at: Timestamp) {
        for number in [element, updated_at.as_microsecond()] {
            self.shown.update(number.to_le_bytes());
        }
        update_with_text(&mut self.shown, value);
        update_with_text(&mut self.shown, files.unwrap_or_default());
    }

    /// Adds a row of another table that filters look into. Call in the order of the rows.
    pub(super) fn add_match(&mut self, kind: i64, key: i64) {
        for number in [kind, key] {
            self.matched.update(number.to_le_bytes());
        }
    }

    pub(super) fn finish(self) -> Content {
        let [shown, matched] = [self.shown, self.matched]
            .map(|digest| i64::from_le_bytes(*digest.finalize().first_chunk().expect("SHA-256 has 32 bytes")));
        Content { shown_in: self.shown_in, form: self.form, shown, matched }
    }
}

/// The length comes first, so that no two lists of texts have the same bytes.
fn update_with_text(digest: &mut Sha256, text: &str) {
    digest.update(text.len().to_le_bytes());
    digest.update(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(change: impl FnOnce(&mut ContentDigest)) -> Content {
        let mut digest = ContentDigest::new(1, 2, "pending", None, [Timestamp::UNIX_EPOCH; 2]);
        change(&mut digest);
        digest.finish()
    }

    #[test]
    fn what_is_shown_and_what_filters_see_have_digests_of_their_own() {
        let plain = content(|_| {});
        let answered = content(|digest| digest.add_answer(3, "a", None, Timestamp::UNIX_EPOCH));
        let labelled = content(|digest| digest.add_match(0, 3));
        assert!(plain.shown != answered.shown && plain.matched == answered.matched);
        assert!(plain.shown == labelled.shown && plain.matched != labelled.matched);
    }

    #[test]
    fn texts_do_not_run_into_each_other() {
        let answer = |value: &str, files| content(|digest| digest.add_answer(3, value, files, Timestamp::UNIX_EPOCH));
        assert_ne!(answer("ab", Some("c")), answer("a", Some("bc")));
        assert_eq!(answer("a", None), answer("a", Some("")));
    }
}
