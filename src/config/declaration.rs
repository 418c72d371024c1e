//! The declaration of a configuration key: written once, next to the function that reads it.
//!
//! A declaration is a row of [`keys!`]: name, type, default, and one line of documentation. The functions of
//! [`super::table`] take a [`Key`], so a key that is not declared can't be read, and a test finds those that are declared and
//! not read. From the declarations come the reports of types, ranges and unknown keys, what reports may show, which changes
//! need a restart, the tables of `deploy/configuration.md`, and the schema that `formgate config schema` prints.
//!
//! Knows no table: `include` has the keys of a file, and all others are reached from there.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// The keys of a table, in the order of the documentation.
pub(super) type Keys = &'static [&'static Key];

/// A key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) default: Default,
    /// A line of Markdown, with links that start at `deploy/`.
    pub(super) about: &'static str,
    pub(super) shown: Shown,
    /// Whether a change of it waits for a restart.
    pub(super) needs_restart: bool,
    /// Whether it takes variables in tenants of the registry too. In files, every string does.
    pub(super) takes_variables_in_registry: bool,
    /// How to get a value, for the report of a missing one.
    pub(super) help: Option<&'static str>,
}

/// The type of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Boolean,
    Integer {
        least: u32,
        most: u32,
    },
    String,
    /// One of these strings.
    Choice(&'static [&'static str]),
    Strings,
    /// An array of these strings.
    Choices(&'static [&'static str]),
    /// An array of strings, and of tables with these keys.
    StringsOrTables(Keys),
    Table(Keys),
    /// An array of tables: `[[key]]`.
    Tables(Keys),
    /// A table of tables whose names the operator chooses; in the documentation they are called by this word.
    NamedTables(&'static str, Keys),
}

/// What holds without the key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Default {
    /// It has to be there; an array needs an entry.
    Required,
    /// A value, written as in TOML.
    Value(&'static str),
    /// Words about it.
    Words(&'static str),
}

/// What a report may show of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// All of it, unless it is a URL that may hold a password.
    Plain,
    /// Nothing: it may contain a password.
    Hidden,
    /// Nothing: it is a secret.
    Secret,
}

const fn key(kind: Kind) -> Key {
    Key {
        name: "",
        kind,
        default: Default::Required,
        about: "",
        shown: Shown::Plain,
        needs_restart: false,
        takes_variables_in_registry: false,
        help: None,
    }
}

pub(super) const fn boolean() -> Key {
    key(Kind::Boolean)
}

pub(super) const fn integer(range: RangeInclusive<u32>) -> Key {
    key(Kind::Integer { least: *range.start(), most: *range.end() })
}

pub(super) const fn string() -> Key {
    key(Kind::String)
}

pub(super) const fn choice(values: &'static [&'static str]) -> Key {
    key(Kind::Choice(values))
}

pub(super) const fn strings() -> Key {
    key(Kind::Strings)
}

pub(super) const fn choices(values: &'static [&'static str]) -> Key {
    key(Kind::Choices(values))
}

pub(super) const fn strings_or_tables(keys: Keys) -> Key {
    key(Kind::StringsOrTables(keys))
}

pub(super) const fn table(keys: Keys) -> Key {
    key(Kind::Table(keys))
}

pub(super) const fn tables(keys: Keys) -> Key {
    key(Kind::Tables(keys))
}

pub(super) const fn named_tables(word: &'static str, keys: Keys) -> Key {
    key(Kind::NamedTables(word, keys))
}

impl Key {
    /// The value without the key, as TOML writes it.
    pub(super) const fn default(self, value: &'static str) -> Self {
        Self { default: Default::Value(value), ..self }
    }

    /// Words about what holds without the key.
    pub(super) const fn without(self, words: &'static str) -> Self {
        Self { default: Default::Words(words), ..self }
    }

    pub(super) const fn needs_restart(self) -> Self {
        Self { needs_restart: true, ..self }
    }

    pub(super) const fn hidden(self) -> Self {
        Self { shown: Shown::Hidden, ..self }
    }

    pub(super) const fn secret(self) -> Self {
        Self { shown: Shown::Secret, ..self }
    }

    pub(super) const fn with_variables_in_registry(self) -> Self {
        Self { takes_variables_in_registry: true, ..self }
    }

    pub(super) const fn help(self, help: &'static str) -> Self {
        Self { help: Some(help), ..self }
    }

    pub(super) fn is_required(&self) -> bool {
        matches!(self.default, Default::Required)
    }

    /// The default, if it is a value: a string without its quotes, everything else as TOML writes it.
    pub(super) fn default_value(&self) -> Option<&'static str> {
        let Default::Value(value) = self.default else { return None };
        Some(value.trim_matches('"'))
    }

    /// The keys of the table or tables that its value is.
    pub(super) fn keys(&self) -> Option<Keys> {
        match self.kind {
            Kind::Table(keys) | Kind::Tables(keys) | Kind::StringsOrTables(keys) | Kind::NamedTables(_, keys) => {
                Some(keys)
            }
            _ => None,
        }
    }
}

/// A table below another one.
#[derive(Debug)]
pub(super) struct Place {
    /// The names that lead to it: `gateway.acme.ca`. Empty at the top of a file.
    pub(super) path: String,
    /// The key that it is the value of.
    pub(super) of: Option<&'static Key>,
    pub(super) keys: Keys,
}

/// Every table below a table, itself included, in the order of the keys.
pub(super) fn places(root: Keys) -> Vec<Place> {
    fn add(place: Place, found: &mut Vec<Place>) {
        let (path, keys) = (place.path.clone(), place.keys);
        found.push(place);
        for (key, below) in keys.iter().filter_map(|key| Some((key, key.keys()?))) {
            let path = if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) };
            let path = match key.kind {
                Kind::NamedTables(word, _) => format!("{path}.\"{word}\""),
                _ => path,
            };
            add(Place { path, of: Some(key), keys: below }, found);
        }
    }
    let mut found = Vec::new();
    add(Place { path: String::new(), of: None, keys: root }, &mut found);
    found
}

impl Place {
    /// How an operator begins the table.
    pub(super) fn header(&self) -> String {
        let Self { path, of, .. } = self;
        match of.map(|key| key.kind) {
            None => "the top of the file, above every header".to_owned(),
            Some(Kind::StringsOrTables(_)) => format!("an entry of `{}`", path.rsplit('.').next().unwrap_or(path)),
            Some(Kind::Tables(_)) => format!("`[[{path}]]`"),
            Some(_) => format!("`[{path}]`"),
        }
    }
}

/// The headers of the tables that have a key of this name.
pub(super) fn homes_of(root: Keys, name: &str) -> Vec<String> {
    places(root).iter().filter(|place| place.keys.iter().any(|key| key.name == name)).map(Place::header).collect()
}

/// The header of a table that is the value of a key.
pub(super) fn header_of(root: Keys, key: &Key) -> String {
    let is_it = |place: &Place| place.of.is_some_and(|of| std::ptr::eq(of, key));
    places(root).iter().find(|place| is_it(place)).map(Place::header).unwrap_or_default()
}

/// The names that lead to a key: `tls.cache_mib`.
pub(super) fn path_of(root: Keys, key: &Key) -> String {
    let has = |place: &Place| place.keys.iter().any(|known| std::ptr::eq(*known, key));
    let path = places(root).into_iter().find(has).map(|place| place.path).unwrap_or_default();
    if path.is_empty() { key.name.to_owned() } else { format!("{path}.{}", key.name) }
}

/// The names of the keys of values, of which every declaration has a property. Names, since a value may be below the wrong
/// header.
pub(super) fn names(root: Keys, has: impl Fn(&Key) -> bool) -> BTreeSet<&'static str> {
    let keys: Vec<_> =
        places(root).iter().flat_map(|place| place.keys).filter(|key| key.keys().is_none()).copied().collect();
    let lacking: BTreeSet<_> = keys.iter().filter(|key| !has(key)).map(|key| key.name).collect();
    keys.iter().map(|key| key.name).filter(|name| !lacking.contains(name)).collect()
}

/// Declares the keys of a table in a module: each as a static of its name, and `KEYS`, which is all of them.
macro_rules! keys {
    ($module:ident: $($(#[$limits:meta])* $name:ident = $key:expr, $about:expr;)*) => {
        #[expect(non_upper_case_globals, reason = "a key has the name that operators write")]
        pub(super) mod $module {
            #[allow(unused_imports, reason = "some tables refer to nothing of their file")]
            use super::*;
            #[allow(unused_imports, reason = "no table has keys of every type")]
            use crate::config::declaration::{
                Key, Keys, boolean, choice, choices, integer, named_tables, string, strings, strings_or_tables, table,
                tables,
            };

            pub(in crate::config) static KEYS: Keys = &[$(&$name),*];

            $($(#[$limits])* pub(in crate::config) static $name: Key = Key { name: stringify!($name), about: $about, ..$key };)*
        }
    };
}
pub(super) use keys;
