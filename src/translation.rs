//! Texts in every language of the administration area, with places for values.
//!
//! Texts are data: TOML files with the same keys and places, one for each language, read into a type whose fields are the
//! keys. A test of each set holds its files to each other.

use std::fmt::{self, Display};
use std::ops::Deref;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::config::Language;

/// A text, possibly with places: names in braces.
#[derive(Debug, Deserialize)]
pub(crate) struct Text(String);

/// A text that depends on a number, as English and German do: one form for 1, one for all others.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counted {
    one: Text,
    many: Text,
}

/// The texts of every language.
#[derive(Debug)]
pub(crate) struct Translations<T>(Vec<(Language, T)>);

impl<T: DeserializeOwned> Translations<T> {
    /// Reads the file of each language, which a test has compared with the others.
    pub(crate) fn read(file_of: fn(Language) -> &'static str) -> Self {
        let read = |language| toml::from_str(file_of(language)).expect("a test reads every file");
        Self(Language::ALL.into_iter().map(|language| (language, read(language))).collect())
    }

    /// The texts in a language.
    pub(crate) fn of(&self, language: Language) -> &T {
        let found = self.0.iter().find(|(other, _)| *other == language);
        found.map(|(_, texts)| texts).expect("every language is read")
    }
}

impl Text {
    /// The words and the places (`{name}`) in their order, for a template that puts elements into places.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &str> {
        let halves = self.0.split_inclusive('}').flat_map(|piece| {
            let (words, place) = piece.split_at(piece.find('{').unwrap_or(piece.len()));
            [words, place]
        });
        halves.filter(|part| !part.is_empty())
    }

    /// The text with values in its places. What looks like a place in a value stays.
    pub(crate) fn fill(&self, values: &[(&str, &dyn Display)]) -> String {
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
    pub(crate) fn with(&self, name: &str, value: impl Display) -> String {
        self.fill(&[(name, &value)])
    }
}

impl Counted {
    /// The form for a number.
    pub(crate) fn of(&self, number: impl Display) -> &Text {
        if number.to_string() == "1" { &self.one } else { &self.many }
    }

    /// The form for a number, with that in its place.
    pub(crate) fn with(&self, number: impl Display) -> String {
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

/// Holds the files of a set of translations to each other: the same keys with the same places, and no empty text. Tables
/// whose name is in `own` may differ. Returns the number of texts in English.
#[cfg(test)]
#[track_caller]
pub(crate) fn assert_alike(file_of: fn(Language) -> &'static str, own: &[&str]) -> usize {
    use std::collections::{BTreeMap, BTreeSet};

    use toml::Value;

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
    let texts_of = |language| {
        let mut texts = BTreeMap::new();
        let mut file: toml::Table = file_of(language).parse().expect("the file is TOML");
        file.retain(|table, _| !own.contains(&table));
        collect("", &Value::Table(file), &mut texts);
        texts
    };
    let places_of = |text: &str| -> BTreeSet<String> {
        let text = Text(text.to_owned());
        text.parts().filter(|part| part.starts_with('{')).map(str::to_owned).collect()
    };
    let english = texts_of(Language::English);
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
    }
    english.len()
}

#[cfg(test)]
mod tests {
    use super::*;

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
