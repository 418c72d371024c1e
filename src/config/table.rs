//! The TOML as written: reads values from tables by key, each with its span.
//!
//! Owns types, ranges, `${NAME}` and unknown keys; the meaning of values is checked elsewhere. serde stops at the
//! first fault, so the document is walked by hand: a reader takes the keys it knows, faults are reported as they are
//! found, and [`TableReader::finish`] reports the remaining keys as unknown. A faulty value reads as `None` or as its
//! default. That is sound because no configuration is built once a fault is reported.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::context::LoadContext;
use super::keys;
use super::problem::Problem;
use super::secret::{self, ExpansionError};
use super::source::{SourceFile, SourceSection, SourceSpan};

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

/// What `${NAME}` is in a string of a tenant of the registry. In files, every string takes variables.
#[derive(Clone, Copy)]
enum InRegistry {
    /// A part of the text, as a `$` always is.
    Literal,
    /// A variable, if tenants may use it.
    Expanded,
}

/// A table from which values are taken one by one.
pub(super) struct TableReader<'r, 't> {
    context: &'r LoadContext<'r>,
    source: Arc<SourceSection>,
    /// The header, or all of an inline table.
    span: SourceSpan,
    values: DeTable<'t>,
    known: Vec<&'static str>,
}

impl<'r, 't> TableReader<'r, 't> {
    /// The root table of a file.
    pub(super) fn root(context: &'r LoadContext<'r>, source: &Arc<SourceSection>, document: DeTable<'t>) -> Self {
        let span = SourceSpan::new(source, 0..0);
        Self { context, source: Arc::clone(source), span, values: document, known: Vec::new() }
    }

    /// A table without keys that is in no file.
    pub(super) fn empty(context: &'r LoadContext<'r>) -> Self {
        let file = SourceFile::new(Path::new(""), 0, String::new());
        Self::root(context, &SourceSection::new(&file, 0), DeTable::new())
    }

    pub(super) fn context(&self) -> &'r LoadContext<'r> {
        self.context
    }

    pub(super) fn span(&self) -> &SourceSpan {
        &self.span
    }

    /// An optional string.
    pub(super) fn string(&mut self, key: &'static str) -> Option<StringValue> {
        let value = self.take(key)?;
        self.read_string(value, InRegistry::Literal)
    }

    /// A required string.
    pub(super) fn required_string(&mut self, key: &'static str) -> Option<StringValue> {
        self.require(key, "key");
        self.string(key)
    }

    /// A required string that takes variables in tenants of the registry too.
    pub(super) fn required_string_with_variables(&mut self, key: &'static str) -> Option<StringValue> {
        self.require(key, "key");
        let value = self.take(key)?;
        self.read_string(value, InRegistry::Expanded)
    }

    /// An array of strings; a missing one is empty.
    pub(super) fn strings(&mut self, key: &'static str) -> Vec<StringValue> {
        let Some((span, value)) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            self.context.report(Problem::at(&span, "expected an array of strings").label(found(&value)));
            return Vec::new();
        };
        let read = |item| self.read_string(self.with_span(key, item), InRegistry::Literal);
        items.into_iter().filter_map(read).collect()
    }

    /// A required array of at least one string.
    pub(super) fn required_strings(&mut self, key: &'static str) -> Vec<StringValue> {
        self.require_items(key, None);
        self.strings(key)
    }

    /// The same for strings that a reader can't make up. `help` says where they come from.
    pub(super) fn required_strings_with_help(&mut self, key: &'static str, help: &'static str) -> Vec<StringValue> {
        self.require_items(key, Some(help));
        self.strings(key)
    }

    /// A required array of at least one string or table.
    pub(super) fn required_strings_or_tables(&mut self, key: &'static str) -> Vec<StringOrTable<'r, 't>> {
        self.require_items(key, None);
        let Some((span, value)) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            self.context.report(Problem::at(&span, "expected an array of strings or tables").label(found(&value)));
            return Vec::new();
        };
        let read = |item| match self.with_span(key, item) {
            table @ (_, DeValue::Table(_)) => self.read_table(table).map(StringOrTable::Table),
            text @ (_, DeValue::String(_)) => self.read_string(text, InRegistry::Literal).map(StringOrTable::String),
            (span, other) => {
                self.context.report(Problem::at(&span, "expected a string or a table").label(found(&other)));
                None
            }
        };
        items.into_iter().filter_map(read).collect()
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, key: &'static str, default: bool) -> bool {
        let Some((span, value)) = self.take(key) else { return default };
        value.as_bool().unwrap_or_else(|| {
            self.context.report(Problem::at(&span, "expected `true` or `false`").label(found(&value)));
            default
        })
    }

    /// An integer within a range.
    pub(super) fn integer(&mut self, key: &'static str, range: RangeInclusive<u32>, default: u32) -> u32 {
        let Some((span, value)) = self.take(key) else { return default };
        let DeValue::Integer(integer) = &value else {
            self.context.report(Problem::at(&span, "expected an integer").label(found(&value)));
            return default;
        };
        let value = i64::from_str_radix(integer.as_str(), integer.radix()).ok().and_then(|n| u32::try_from(n).ok());
        value.filter(|n| range.contains(n)).unwrap_or_else(|| {
            let (least, most) = (range.start(), range.end());
            self.context.report(Problem::at(&span, format!("`{key}` must be from {least} to {most}")));
            default
        })
    }

    /// An optional table.
    pub(super) fn table(&mut self, key: &'static str) -> Option<TableReader<'r, 't>> {
        let value = self.take(key)?;
        if let (span, DeValue::Array(_)) = &value {
            let problem = Problem::at(span, "expected a table").label("found an array of tables");
            self.context.report(problem.help(format!("there is only one: write `{key}` with one pair of brackets")));
            return None;
        }
        self.read_table(value)
    }

    /// A required table.
    pub(super) fn required_table(&mut self, key: &'static str) -> Option<TableReader<'r, 't>> {
        self.require(key, "table");
        self.table(key)
    }

    /// An array of tables: `[[key]]`.
    pub(super) fn tables(&mut self, key: &'static str) -> Vec<TableReader<'r, 't>> {
        let Some((span, value)) = self.take(key) else { return Vec::new() };
        let DeValue::Array(items) = value else {
            let problem = Problem::at(&span, "expected an array of tables").label(found(&value));
            self.context.report(problem.help(format!("write `[[{key}]]`, with two pairs of brackets, for each {key}")));
            return Vec::new();
        };
        items.into_iter().filter_map(|item| self.read_table(self.with_span(key, item))).collect()
    }

    /// The tables under keys that the operator chooses, with these keys.
    pub(super) fn named_tables(self) -> Vec<(StringValue, TableReader<'r, 't>)> {
        let Self { context, source, values, .. } = self;
        let read = |(key, value): (Spanned<_>, Spanned<DeValue<'t>>)| {
            let span = SourceSpan::new(&source, key.span());
            let value_span = SourceSpan::new(&source, value.span());
            if !value.get_ref().is_table() {
                let problem = Problem::at(&value_span, "expected a table").label(found(value.get_ref()));
                context.report(problem.help("the keys here are hosts, each with a table: `[tenant.tls.\"HOST\"]`"));
                return None;
            }
            let table = read_table(context, &source, (value_span, value.into_inner()))?;
            Some((StringValue { value: String::from(key.into_inner()), span, from_environment: false }, table))
        };
        values.into_iter().filter_map(read).collect()
    }

    /// Reports a key that is not allowed here.
    pub(super) fn refuse(&mut self, key: &'static str, title: &str) {
        if let Some((key, _)) = self.values.remove_entry(key) {
            self.context.report(Problem::at(&SourceSpan::new(&self.source, key.span()), title));
        }
    }

    /// The span of a key, whatever its value.
    pub(super) fn span_of(&self, key: &str) -> Option<SourceSpan> {
        let (key, _) = self.values.get_key_value(key)?;
        Some(SourceSpan::new(&self.source, key.span()))
    }

    /// Where a key of a table under a key is, while the table was not taken.
    pub(super) fn span_within(&self, table: &str, key: &str) -> Option<SourceSpan> {
        let (_, DeValue::Table(values)) = self.values.get_key_value(table).map(|(at, value)| (at, value.get_ref()))?
        else {
            return None;
        };
        let (key, _) = values.get_key_value(key)?;
        Some(SourceSpan::new(&self.source, key.span()))
    }

    /// Whether a key is present, whatever its value.
    pub(super) fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Reports the keys that were not taken.
    pub(super) fn finish(self) {
        for (key, value) in &self.values {
            let name = key.get_ref();
            let span = SourceSpan::new(&self.source, key.span());
            let problem = Problem::at(&span, format!("unknown key `{name}`"));
            let homes = keys::tables_with_key(name).join(" or ");
            self.context.report(match nearest(name, &self.known) {
                _ if !homes.is_empty() => {
                    let problem = problem.label(format!("it belongs in {homes}"));
                    problem.help(match homes.strip_prefix("`[").and_then(|home| home.strip_suffix("]`")) {
                        Some(home) if value.get_ref().is_table() => format!("write `[{home}.{name}]`"),
                        _ => "in TOML a key belongs to the last header above it: move it there".to_owned(),
                    })
                }
                Some(near) => problem.label(format!("did you mean `{near}`?")),
                None => problem.help(format!("the keys here are {}", listed(&self.known))),
            });
        }
        self.context.add_known_keys(&self.known);
    }

    fn take(&mut self, key: &'static str) -> Option<(SourceSpan, DeValue<'t>)> {
        self.known.push(key);
        self.values.remove(key).map(|value| self.with_span(key, value))
    }

    fn require(&self, key: &str, kind: &str) {
        if !self.contains(key) {
            self.context.report(Problem::at(&self.span, format!("missing {kind} `{key}`")));
        }
    }

    fn require_items(&self, key: &str, help: Option<&'static str>) {
        let problem = match self.values.get(key) {
            None => Problem::at(&self.span, format!("missing key `{key}`")),
            Some(value) if value.get_ref().as_array().is_some_and(|items| items.is_empty()) => {
                let span = SourceSpan::new(&self.source, value.span());
                Problem::at(&span, format!("`{key}` needs at least one entry"))
            }
            Some(_) => return,
        };
        self.context.report(match help {
            Some(help) => problem.help(help),
            None => problem,
        });
    }

    fn with_span(&self, key: &'static str, value: Spanned<DeValue<'t>>) -> (SourceSpan, DeValue<'t>) {
        (SourceSpan::new(&self.source, value.span()).of_key(key), value.into_inner())
    }

    fn read_string(&self, (span, value): (SourceSpan, DeValue<'t>), in_registry: InRegistry) -> Option<StringValue> {
        let DeValue::String(written) = &value else {
            self.context.report(Problem::at(&span, "expected a string").label(found(&value)));
            return None;
        };
        let LoadContext { environment, tenant_variables, .. } = self.context;
        let expanded = match (tenant_variables, in_registry) {
            (Some(_), InRegistry::Literal) => Ok(Cow::Borrowed(&**written)),
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

    fn read_table(&self, value: (SourceSpan, DeValue<'t>)) -> Option<TableReader<'r, 't>> {
        read_table(self.context, &self.source, value)
    }
}

fn read_table<'r, 't>(
    context: &'r LoadContext<'r>,
    source: &Arc<SourceSection>,
    (span, value): (SourceSpan, DeValue<'t>),
) -> Option<TableReader<'r, 't>> {
    let DeValue::Table(values) = value else {
        context.report(Problem::at(&span, "expected a table").label(found(&value)));
        return None;
    };
    Some(TableReader { context, source: Arc::clone(source), span, values, known: Vec::new() })
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
