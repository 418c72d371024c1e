//! The TOML as written: reads values from tables by key, each with its span.
//!
//! Owns types, ranges, `${NAME}` and unknown keys, by the declarations of the keys; the meaning of values is checked
//! elsewhere. serde stops at the first fault, so the document is walked by hand: a reader takes the keys it knows, faults are
//! reported as they are found, and [`TableReader::finish`] reports the remaining keys as unknown. A faulty value reads as
//! `None` or as its default. That is sound because no configuration is built once a fault is reported.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::context::LoadContext;
use super::declaration::{self, Key, Keys, Kind};
use super::problem::Problem;
use super::secret::{self, ExpansionError};
use super::source::{SourceFile, SourceSpan};

/// A string with its variables expanded. Has no `Debug`, since it may be a secret.
pub(super) struct StringValue {
    pub(super) value: String,
    pub(super) span: SourceSpan,
    /// Whether it contains a value from the environment.
    pub(super) from_environment: bool,
}

/// An item of an array of strings and tables.
pub(super) enum StringOrTable<'r, 't> {
    String(StringValue),
    Table(TableReader<'r, 't>),
}

/// A table from which values are taken one by one.
pub(super) struct TableReader<'r, 't> {
    context: &'r LoadContext<'r>,
    source: Arc<SourceFile>,
    /// The header, or all of an inline table.
    span: SourceSpan,
    values: DeTable<'t>,
    keys: Keys,
}

impl<'r, 't> TableReader<'r, 't> {
    /// The root table of a file.
    pub(super) fn root(context: &'r LoadContext<'r>, source: &Arc<SourceFile>, document: DeTable<'t>) -> Self {
        let span = SourceSpan::new(source, 0..0);
        Self { context, source: Arc::clone(source), span, values: document, keys: source.keys() }
    }

    /// A table in no file, of which every key has its default.
    pub(super) fn empty(context: &'r LoadContext<'r>, keys: Keys) -> Self {
        Self::root(context, &SourceFile::new(Path::new(""), 0, String::new(), keys), DeTable::new())
    }

    pub(super) fn context(&self) -> &'r LoadContext<'r> {
        self.context
    }

    pub(super) fn span(&self) -> &SourceSpan {
        &self.span
    }

    /// A string.
    pub(super) fn string(&mut self, key: &'static Key) -> Option<StringValue> {
        self.require(key);
        let value = self.take(key)?;
        self.read_string(key, value)
    }

    /// One of the strings that the key has. A report of another one has this title.
    pub(super) fn choice(&mut self, key: &'static Key, title: &str) -> Option<&'static str> {
        let text = self.string(key)?;
        self.choose(key, &text, title)
    }

    /// An array of the strings that the key has.
    pub(super) fn choices(&mut self, key: &'static Key, title: &str) -> Vec<&'static str> {
        let texts = self.strings(key);
        texts.iter().filter_map(|text| self.choose(key, text, title)).collect()
    }

    /// An array of strings; a missing one is empty.
    pub(super) fn strings(&mut self, key: &'static Key) -> Vec<StringValue> {
        self.require_items(key);
        let Some((span, value)) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            self.context.report(Problem::at(&span, "expected an array of strings").label(found(&value)));
            return Vec::new();
        };
        items.into_iter().filter_map(|item| self.read_string(key, self.with_span(key, item))).collect()
    }

    /// An array of strings and tables.
    pub(super) fn strings_or_tables(&mut self, key: &'static Key) -> Vec<StringOrTable<'r, 't>> {
        self.require_items(key);
        let Some((span, value)) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            self.context.report(Problem::at(&span, "expected an array of strings or tables").label(found(&value)));
            return Vec::new();
        };
        let read = |item| match self.with_span(key, item) {
            table @ (_, DeValue::Table(_)) => self.read_table(key, table).map(StringOrTable::Table),
            text @ (_, DeValue::String(_)) => self.read_string(key, text).map(StringOrTable::String),
            (span, other) => {
                self.context.report(Problem::at(&span, "expected a string or a table").label(found(&other)));
                None
            }
        };
        items.into_iter().filter_map(read).collect()
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, key: &'static Key) -> bool {
        self.given_boolean(key).unwrap_or_else(|| key.default_value() == Some("true"))
    }

    /// The same, and `None` if it is missing.
    pub(super) fn given_boolean(&mut self, key: &'static Key) -> Option<bool> {
        let (span, value) = self.take(key)?;
        let read = value.as_bool();
        if read.is_none() {
            self.context.report(Problem::at(&span, "expected `true` or `false`").label(found(&value)));
        }
        read
    }

    /// An integer within the range of the key.
    pub(super) fn integer(&mut self, key: &'static Key) -> u32 {
        self.require(key);
        let default = || key.default_value().and_then(|value| value.parse().ok()).unwrap_or_default();
        self.given_integer(key).unwrap_or_else(default)
    }

    /// The same, and `None` if it is missing.
    pub(super) fn given_integer(&mut self, key: &'static Key) -> Option<u32> {
        let Kind::Integer { least, most } = key.kind else { panic!("`{}` is declared as something else", key.name) };
        let (span, value) = self.take(key)?;
        let DeValue::Integer(integer) = &value else {
            self.context.report(Problem::at(&span, "expected an integer").label(found(&value)));
            return None;
        };
        let value = i64::from_str_radix(integer.as_str(), integer.radix()).ok().and_then(|n| u32::try_from(n).ok());
        let value = value.filter(|n| (least..=most).contains(n));
        if value.is_none() {
            self.context.report(Problem::at(&span, format!("`{}` must be from {least} to {most}", key.name)));
        }
        value
    }

    /// A duration in the unit that the name of the key ends with.
    pub(super) fn duration(&mut self, key: &'static Key) -> Duration {
        let value = u64::from(self.integer(key));
        match key.name.rsplit('_').next() {
            Some("ms") => Duration::from_millis(value),
            Some("seconds") => Duration::from_secs(value),
            Some("minutes") => Duration::from_mins(value),
            Some("hours") => Duration::from_hours(value),
            _ => panic!("`{}` has no unit of time", key.name),
        }
    }

    /// An optional table.
    pub(super) fn table(&mut self, key: &'static Key) -> Option<TableReader<'r, 't>> {
        if key.is_required() && !self.contains(key) {
            self.context.report(Problem::at(&self.span, format!("missing table `{}`", key.name)));
        }
        let value = self.take(key)?;
        if let (span, DeValue::Array(_)) = &value {
            let problem = Problem::at(span, "expected a table").label("found an array of tables");
            let help = format!("there is only one: write `{}` with one pair of brackets", key.name);
            self.context.report(problem.help(help));
            return None;
        }
        self.read_table(key, value)
    }

    /// A table, or one of which every key has its default.
    pub(super) fn table_or_defaults(&mut self, key: &'static Key) -> TableReader<'r, 't> {
        let keys = key.keys().expect("it is declared as a table");
        self.table(key).unwrap_or_else(|| Self::empty(self.context, keys))
    }

    /// An array of tables: `[[key]]`.
    pub(super) fn tables(&mut self, key: &'static Key) -> Vec<TableReader<'r, 't>> {
        let Some((span, value)) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            let problem = Problem::at(&span, "expected an array of tables").label(found(&value));
            let header = declaration::header_of(self.source.keys(), key);
            let help = format!("write {header}, with two pairs of brackets, for each {}", key.name);
            self.context.report(problem.help(help));
            return Vec::new();
        };
        items.into_iter().filter_map(|item| self.read_table(key, self.with_span(key, item))).collect()
    }

    /// The tables below a key whose names the operator chooses, with these names.
    pub(super) fn named_tables(&mut self, key: &'static Key) -> Vec<(StringValue, TableReader<'r, 't>)> {
        let Some(Self { context, source, values, .. }) = self.table(key) else { return Vec::new() };
        let read = |(name, value): (Spanned<_>, Spanned<DeValue<'t>>)| {
            let span = SourceSpan::new(&source, name.span());
            let value_span = SourceSpan::new(&source, value.span());
            if !value.get_ref().is_table() {
                let problem = Problem::at(&value_span, "expected a table").label(found(value.get_ref()));
                let header = declaration::header_of(source.keys(), key);
                context.report(problem.help(format!("the keys here are hosts, each with a table: {header}")));
                return None;
            }
            let table = read_table(context, &source, key, (value_span, value.into_inner()))?;
            Some((StringValue { value: String::from(name.into_inner()), span, from_environment: false }, table))
        };
        values.into_iter().filter_map(read).collect()
    }

    /// Reports a key that is not allowed here.
    pub(super) fn refuse(&mut self, key: &'static Key, title: &str) {
        if let Some((key, _)) = self.values.remove_entry(key.name) {
            self.context.report(Problem::at(&SourceSpan::new(&self.source, key.span()), title));
        }
    }

    /// The span of a key, whatever its value.
    pub(super) fn span_of(&self, key: &Key) -> Option<SourceSpan> {
        let (key, _) = self.values.get_key_value(key.name)?;
        Some(SourceSpan::new(&self.source, key.span()))
    }

    /// Whether a key is present, whatever its value.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.values.contains_key(key.name)
    }

    /// Reports the keys that were not taken.
    pub(super) fn finish(self) {
        let known: Vec<_> = self.keys.iter().map(|key| key.name).collect();
        for (key, value) in &self.values {
            let name = key.get_ref();
            let span = SourceSpan::new(&self.source, key.span());
            let problem = Problem::at(&span, format!("unknown key `{name}`"));
            let homes = declaration::homes_of(self.source.keys(), name).join(" or ");
            self.context.report(match nearest(name, &known) {
                _ if !homes.is_empty() => {
                    let problem = problem.label(format!("it belongs in {homes}"));
                    problem.help(match homes.strip_prefix("`[").and_then(|home| home.strip_suffix("]`")) {
                        Some(home) if value.get_ref().is_table() => format!("write `[{home}.{name}]`"),
                        _ => "in TOML a key belongs to the last header above it: move it there".to_owned(),
                    })
                }
                Some(near) => problem.label(format!("did you mean `{near}`?")),
                None => problem.help(format!("the keys here are {}", listed(&known))),
            });
        }
    }

    fn take(&mut self, key: &'static Key) -> Option<(SourceSpan, DeValue<'t>)> {
        self.values.remove(key.name).map(|value| self.with_span(key, value))
    }

    fn require(&self, key: &Key) {
        if key.is_required() && !self.contains(key) {
            self.report_missing(key, Problem::at(&self.span, format!("missing key `{}`", key.name)));
        }
    }

    fn require_items(&self, key: &Key) {
        match self.values.get(key.name) {
            Some(value) if key.is_required() && value.get_ref().as_array().is_some_and(|items| items.is_empty()) => {
                let span = SourceSpan::new(&self.source, value.span());
                self.report_missing(key, Problem::at(&span, format!("`{}` needs at least one entry", key.name)));
            }
            _ => self.require(key),
        }
    }

    fn report_missing(&self, key: &Key, problem: Problem) {
        self.context.report(match key.help {
            Some(help) => problem.help(help),
            None => problem,
        });
    }

    fn choose(&self, key: &'static Key, text: &StringValue, title: &str) -> Option<&'static str> {
        let (Kind::Choice(values) | Kind::Choices(values)) = key.kind else {
            panic!("`{}` is declared as something else", key.name)
        };
        let chosen = values.iter().find(|value| **value == text.value);
        if chosen.is_none() {
            let values = listed(values);
            let expected = values.rsplit_once(", ").map(|(others, last)| format!("{others} or {last}"));
            let label = format!("expected {}", expected.unwrap_or(values));
            self.context.report(Problem::at(&text.span, title).label(label));
        }
        chosen.copied()
    }

    fn with_span(&self, key: &'static Key, value: Spanned<DeValue<'t>>) -> (SourceSpan, DeValue<'t>) {
        (SourceSpan::new(&self.source, value.span()).of_key(key), value.into_inner())
    }

    fn read_string(&self, key: &Key, (span, value): (SourceSpan, DeValue<'t>)) -> Option<StringValue> {
        let DeValue::String(written) = &value else {
            self.context.report(Problem::at(&span, "expected a string").label(found(&value)));
            return None;
        };
        let LoadContext { environment, tenant_variables, .. } = self.context;
        let expanded = match (tenant_variables, key.takes_variables_in_registry) {
            // A `$` is a part of the text.
            (Some(_), false) => Ok(Cow::Borrowed(&**written)),
            (allowed, _) => secret::expand(written, *environment, *allowed),
        };
        match expanded {
            Ok(value) if value.trim().is_empty() => {
                self.context.report(Problem::at(&span, "expected a string that is not empty"));
                None
            }
            Ok(value) => {
                let from_environment = matches!(value, Cow::Owned(_));
                Some(StringValue { value: value.into_owned(), span, from_environment })
            }
            Err(errors) => {
                for error in errors {
                    let problem = Problem::at(&span, error.to_string());
                    self.context.report(match (error, tenant_variables) {
                        (ExpansionError::NotAllowed(_), Some(allowed)) => problem.help(allowed.help()),
                        (ExpansionError::Malformed, _) => problem.help("`$${` writes `${`"),
                        _ => problem,
                    });
                }
                None
            }
        }
    }

    fn read_table(&self, key: &Key, value: (SourceSpan, DeValue<'t>)) -> Option<TableReader<'r, 't>> {
        read_table(self.context, &self.source, key, value)
    }
}

fn read_table<'r, 't>(
    context: &'r LoadContext<'r>,
    source: &Arc<SourceFile>,
    key: &Key,
    (span, value): (SourceSpan, DeValue<'t>),
) -> Option<TableReader<'r, 't>> {
    let DeValue::Table(values) = value else {
        context.report(Problem::at(&span, "expected a table").label(found(&value)));
        return None;
    };
    let keys = key.keys().expect("it is declared as a table");
    Some(TableReader { context, source: Arc::clone(source), span, values, keys })
}

fn found(value: &DeValue<'_>) -> String {
    format!("found {} {}", if value.is_integer() || value.is_array() { "an" } else { "a" }, value.type_str())
}

/// The known key that was probably meant: at most one edit per three characters.
fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let distances = known.iter().map(|key| (strsim::damerau_levenshtein(name, key), *key));
    distances.filter(|(distance, key)| distance * 3 <= key.len()).min().map(|(_, key)| key)
}

fn listed(keys: &[&str]) -> String {
    keys.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ")
}
