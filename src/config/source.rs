//! The text of one configuration file as reports may show it, and places in it.
//!
//! Owns lines, columns, and what is hidden. The text is kept with every value hidden that could be a secret, so no
//! report made later can show one: a value is shown only under a key whose values are known to be plain, and never
//! when it looks like a URL. What a [`Place`] covers is a range of bytes; lines are counted only when one is reported.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use toml::de::{DeTable, DeValue};

/// The keys whose values a report may show. A mistyped key (`databse`) is not among them, and so its value is hidden.
const PLAIN_KEYS: [&str; 20] = [
    "include",
    "listen",
    "admin_listen",
    "on_redis_failure",
    "redis_timeout_ms",
    "drain_seconds",
    "window_seconds",
    "certificate",
    "private_key",
    "slug",
    "name",
    "address",
    "domains",
    "timezone",
    "requests_per_minute",
    "max_connections",
    "max_in_flight",
    "wait_ms",
    "statement_seconds",
    "idle_seconds",
];

/// One file, safe to show.
pub(super) struct Source {
    path: PathBuf,
    /// The position in the order in which files are read; it sorts the reports.
    order: usize,
    text: String,
    hidden: Vec<Range<usize>>,
    lines: OnceLock<Vec<usize>>,
}

impl Source {
    /// A file that is TOML: hides the values of the document that are not known to be plain.
    pub(super) fn new(path: &Path, order: usize, text: &str, document: &DeTable<'_>) -> Arc<Self> {
        let mut hidden = Vec::new();
        hide_values(document, &mut hidden);
        Self::hiding(path, order, text, hidden)
    }

    /// A file that is no TOML: where its values are is not known, so only headers and plain keys are shown.
    pub(super) fn broken(path: &Path, order: usize, text: &str) -> Arc<Self> {
        let mut hidden = Vec::new();
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let content = line.trim_end();
            let plain = match content.split('=').collect::<Vec<_>>().as_slice() {
                [header] => header.starts_with('['),
                [key, _] => PLAIN_KEYS.contains(&key.trim()),
                _ => false,
            };
            if !plain && !content.is_empty() {
                hidden.push(start..start + content.len());
            }
            start += line.len();
        }
        Self::hiding(path, order, text, hidden)
    }

    fn hiding(path: &Path, order: usize, text: &str, mut hidden: Vec<Range<usize>>) -> Arc<Self> {
        for (start, _) in text.match_indices("://") {
            let rest = &text[start..];
            hidden.push(start..start + rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(rest.len()));
        }
        let hidden = merged(hidden);
        let mut shown = String::with_capacity(text.len());
        for range in &hidden {
            shown.push_str(&text[shown.len()..range.start]);
            shown.extend(text[range.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { '*' }));
        }
        shown.push_str(&text[shown.len()..]);
        Arc::new(Self { path: path.to_owned(), order, text: shown, hidden, lines: OnceLock::new() })
    }

    /// The offsets at which lines start.
    fn lines(&self) -> &[usize] {
        self.lines.get_or_init(|| {
            std::iter::once(0).chain(self.text.match_indices('\n').map(|(newline, _)| newline + 1)).collect()
        })
    }
}

/// Leaves only what is known to be plain: the other leaves are hidden, whatever their type.
fn hide_values(table: &DeTable<'_>, hidden: &mut Vec<Range<usize>>) {
    for (key, value) in table {
        hide_value(key.get_ref(), value, hidden);
    }
}

fn hide_value(key: &str, value: &toml::Spanned<DeValue<'_>>, hidden: &mut Vec<Range<usize>>) {
    match value.get_ref() {
        DeValue::Table(table) => hide_values(table, hidden),
        DeValue::Array(items) => items.iter().for_each(|item| hide_value(key, item, hidden)),
        _ if PLAIN_KEYS.contains(&key) => {}
        _ => hidden.push(value.span()),
    }
}

/// Sorts ranges and joins those that overlap.
fn merged(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, kept| {
        let overlap = next.start <= kept.end;
        if overlap {
            kept.end = kept.end.max(next.end);
        }
        overlap
    });
    ranges
}

/// A range of bytes in a file.
#[derive(Clone)]
pub(super) struct Place {
    source: Arc<Source>,
    span: Range<usize>,
}

impl Place {
    pub(super) fn new(source: &Arc<Source>, span: Range<usize>) -> Self {
        Self { source: Arc::clone(source), span }
    }

    pub(super) fn path(&self) -> &Path {
        &self.source.path
    }

    /// Sorts places as a reader meets them.
    pub(super) fn order(&self) -> (usize, usize) {
        (self.source.order, self.span.start)
    }

    /// The line and the column of the first character, both from 1; columns count characters.
    pub(super) fn line_and_column(&self) -> (usize, usize) {
        let (line, start) = self.line_start();
        (line, self.source.text[start..self.start()].chars().count() + 1)
    }

    /// The first line that the place is on, and which bytes of it the place covers.
    pub(super) fn line(&self) -> (&str, Range<usize>) {
        let (_, start) = self.line_start();
        let line = self.source.text[start..].lines().next().unwrap_or_default();
        let covered = (self.start() - start).min(line.len())..(self.span.end - start).min(line.len());
        (line, covered)
    }

    /// Whether the place touches a value that a report must not show.
    pub(super) fn is_hidden(&self) -> bool {
        let hidden = &self.source.hidden;
        let next = hidden.partition_point(|range| range.end <= self.span.start);
        hidden.get(next).is_some_and(|range| range.start < self.span.end.max(self.span.start + 1))
    }

    /// The number of the line, and the offset at which it starts.
    fn line_start(&self) -> (usize, usize) {
        let lines = self.source.lines();
        let number = lines.partition_point(|start| *start <= self.start());
        (number, lines[number - 1])
    }

    /// The first byte, moved to the start of a character: hiding and parsers both may leave it inside of one.
    fn start(&self) -> usize {
        self.source.text.floor_char_boundary(self.span.start)
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, column) = self.line_and_column();
        write!(f, "{}:{line}:{column}", self.path().display())
    }
}
