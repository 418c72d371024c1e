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
mod stored;

use std::fmt::{self, Display};
use std::ops::Deref;
use std::sync::LazyLock;

pub(super) use accept::preferred;
pub(super) use pages::*;
use serde::Deserialize;
pub(super) use stored::Words;

use crate::config::Language;

/// A text, possibly with places: names in braces.
#[derive(Debug, Deserialize)]
pub(super) struct Text(String);

/// A text that depends on a number, as English and German do: one form for 1, one for all others.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counted {
    one: Text,
    many: Text,
}

/// The texts of every language, read once.
static LANGUAGES: LazyLock<Vec<(Language, Texts)>> = LazyLock::new(|| {
    let read = |language| toml::from_str(file_of(language)).expect("a test reads every file");
    Language::ALL.into_iter().map(|language| (language, read(language))).collect()
});

fn file_of(language: Language) -> &'static str {
    match language {
        Language::English => include_str!("texts/en.toml"),
        Language::German => include_str!("texts/de.toml"),
    }
}

impl Texts {
    /// The texts in a language.
    pub(super) fn of(language: Language) -> &'static Self {
        let found = LANGUAGES.iter().find(|(other, _)| *other == language);
        found.map(|(_, texts)| texts).expect("every language is read")
    }
}

impl Text {
    /// The words and the places (`{name}`) in their order, for a template that puts elements into places.
    pub(super) fn parts(&self) -> impl Iterator<Item = &str> {
        let halves = self.0.split_inclusive('}').flat_map(|piece| {
            let (words, place) = piece.split_at(piece.find('{').unwrap_or(piece.len()));
            [words, place]
        });
        halves.filter(|part| !part.is_empty())
    }

    /// The text with values in its places. What looks like a place in a value stays.
    pub(super) fn fill(&self, values: &[(&str, &dyn Display)]) -> String {
        let mut filled = String::with_capacity(self.0.len());
        for part in self.parts() {
            let name = part.strip_prefix('{').and_then(|place| place.strip_suffix('}'));
            match values.iter().find(|(of, _)| Some(*of) == name) {
                Some((_, value)) => filled += &value.to_string(),
                None => filled += part,
            }
        }
        filled
    }

    /// The text with a value in its only place.
    pub(super) fn with(&self, name: &str, value: impl Display) -> String {
        self.fill(&[(name, &value)])
    }
}

impl Counted {
    /// The form for a number.
    pub(super) fn of(&self, number: impl Display) -> &Text {
        if number.to_string() == "1" { &self.one } else { &self.many }
    }

    /// The form for a number, with that in its place.
    pub(super) fn with(&self, number: impl Display) -> String {
        self.of(&number).with("number", number)
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use jiff::Timestamp;
    use jiff::tz::TimeZone;
    use toml::Value;

    use super::*;

    /// Every text of a file: its key, and what it says.
    fn texts_of(language: Language) -> BTreeMap<String, String> {
        fn collect(key: &str, value: &Value, texts: &mut BTreeMap<String, String>) {
            match value {
                Value::String(text) => drop(texts.insert(key.to_owned(), text.clone())),
                Value::Table(table) => {
                    table.iter().for_each(|(name, value)| collect(&format!("{key}.{name}"), value, texts));
                }
                Value::Array(list) => {
                    list.iter().enumerate().for_each(|(at, value)| collect(&format!("{key}.{at}"), value, texts));
                }
                other => panic!("{key} is no text: {other}"),
            }
        }
        let mut texts = BTreeMap::new();
        collect("", &Value::Table(file_of(language).parse().unwrap()), &mut texts);
        texts
    }

    fn places_of(text: &str) -> BTreeSet<String> {
        let text = Text(text.to_owned());
        text.parts().filter(|part| part.starts_with('{')).map(str::to_owned).collect()
    }

    #[test]
    fn every_language_has_the_same_keys_and_places_and_no_empty_text() {
        let english = texts_of(Language::English);
        assert!(english.len() > 200, "{}", english.len());
        for language in Language::ALL {
            let texts = texts_of(language);
            let keys = |texts: &BTreeMap<String, String>| texts.keys().cloned().collect::<BTreeSet<_>>();
            let (own, expected) = (keys(&texts), keys(&english));
            let difference: Vec<_> = own.symmetric_difference(&expected).collect();
            assert!(difference.is_empty(), "{language:?}: {difference:?}");
            for (key, text) in &texts {
                assert!(!text.trim().is_empty(), "{language:?} {key}");
                assert_eq!(places_of(text), places_of(&english[key]), "{language:?} {key}");
                for place in places_of(text) {
                    let name = place.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
                    let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase());
                    assert!(name.is_some_and(is_name), "{language:?} {key}: {place}");
                }
            }
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
            let shown = [&dates.moment, &dates.day, &dates.hour, &dates.minute].map(|format| {
                let shown = zoned.strftime(format.as_bytes()).to_string();
                assert!(!shown.contains('%'), "{language:?} {shown}");
                shown
            });
            let expected = match language {
                Language::English => ["5 Jul 2026, 00:05 CEST", "5 Jul", "5 Jul, 00:05", "00:05"],
                Language::German => ["5.7.2026, 00:05 CEST", "5.7.", "5.7., 00:05", "00:05"],
            };
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn a_place_takes_a_value_as_it_was_given() {
        let text = Text("{name}, of {account}: {name}".to_owned());
        assert_eq!(text.parts().collect::<Vec<_>>(), ["{name}", ", of ", "{account}", ": ", "{name}"]);
        let values: [(&str, &dyn Display); 2] = [("name", &"{account} <b>"), ("account", &7)];
        assert_eq!(text.fill(&values), "{account} <b>, of 7: {account} <b>");
        assert_eq!(text.with("account", "Acme"), "{name}, of Acme: {name}");
    }

    #[test]
    fn a_number_decides_the_form() {
        let counted = Counted { one: Text("{number} token".to_owned()), many: Text("{number} tokens".to_owned()) };
        let forms = [0_i64, 1, 2, 21].map(|number| counted.with(number));
        assert_eq!(forms, ["0 tokens", "1 token", "2 tokens", "21 tokens"]);
    }
}
