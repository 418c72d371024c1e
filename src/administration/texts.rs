//! What pages say, in every language that there is.
//!
//! To add a language, write a file in `texts/` with the keys of `en.toml`, and add a variant to [`Language`]: the
//! compiler then asks for its tag and its file. A test compares the files, and another opens every page.
//!
//! A text is data: it contains no HTML, and templates escape it. A key is a field, so that a misspelt one does not
//! compile, and one that no page uses is a warning. Sentences are whole, with places for the values, since
//! languages order words differently.

mod accept;
mod pages;
mod reasons;

use std::sync::LazyLock;

pub(super) use accept::preferred;
pub(super) use pages::*;

use crate::config::Language;
use crate::translation::Translations;
pub(super) use crate::translation::{Counted, Text};

/// The texts of every language, read once.
static TRANSLATIONS: LazyLock<Translations<Texts>> = LazyLock::new(|| Translations::read(file_of));

fn file_of(language: Language) -> &'static str {
    match language {
        Language::English => include_str!("texts/en.toml"),
        Language::German => include_str!("texts/de.toml"),
    }
}

impl Texts {
    /// The texts in a language.
    pub(super) fn of(language: Language) -> &'static Self {
        TRANSLATIONS.of(language)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::translation::assert_alike;

    #[test]
    fn every_language_has_the_same_keys_and_places_and_no_empty_text() {
        // The reasons of webhooks have a table in other languages than English.
        assert!(assert_alike(file_of, &["reasons"]) > 200);
        for language in Language::ALL {
            // All of it is read, and nothing else is there.
            assert!(!Texts::of(language).frame.skip.is_empty());
        }
    }

    #[test]
    fn every_language_can_write_an_instant() {
        let at: Timestamp = "2026-07-04T22:05:59Z".parse().unwrap();
        for language in Language::ALL {
            let dates = &Texts::of(language).dates;
            let zoned = at.to_zoned(TimeZone::get("Europe/Berlin").unwrap());
            let shown = [&dates.moment, &dates.second, &dates.day, &dates.hour, &dates.minute].map(|format| {
                let shown = zoned.strftime(format.as_bytes()).to_string();
                assert!(!shown.contains('%'), "{language:?} {shown}");
                shown
            });
            let expected = match language {
                Language::English => {
                    ["5 Jul 2026, 00:05 CEST", "5 Jul 2026, 00:05:59 CEST", "5 Jul", "5 Jul, 00:05", "00:05"]
                }
                Language::German => ["5.7.2026, 00:05 CEST", "5.7.2026, 00:05:59 CEST", "5.7.", "5.7., 00:05", "00:05"],
            };
            assert_eq!(shown, expected);
        }
    }
}
