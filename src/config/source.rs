//! The text of a configuration file as reports may show it, and spans of it.
//!
//! Owns line and column numbers, and redaction. Reports quote a copy of the file in which every value that could be a
//! secret is masked: a value is shown only under a key whose values are known to be plain, and never if it looks like
//! a URL. A [`SourceSpan`] is a range of bytes; lines are counted and the copy is made only when there is something to
//! report. The text of a file lives only as long as its loading and its reports.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use toml::de::{DeTable, DeValue};

use super::folders::folder_of;
use super::sections::{Sections, parse_tenant};

/// The keys whose values a report may show. A mistyped key (`databse`) is not among them, so its value is masked.
const PLAIN_KEYS: [&str; 28] = [
    "include",
    "listen",
    "admin_listen",
    "registry_snapshot",
    "tenant_variables",
    "on_redis_failure",
    "redis_timeout_ms",
    "drain_seconds",
    "window_seconds",
    "hsts",
    "certificate",
    "private_key",
    "cache_mib",
    "accept_terms",
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
    "max_shared_connections",
    "sqlite_mib",
    "sqlite_idle_seconds",
];

/// How many lines one entry of the line index covers. Larger: each lookup of a position scans more. Smaller: the index
/// of a file of very many tenants takes megabytes, although each tenant looks up a position.
const LINES_PER_MARK: usize = 16;

/// A file as it was read, and as reports may show it.
pub(super) struct SourceFile {
    path: Arc<Path>,
    /// The folder that relative paths in it start at.
    folder: PathBuf,
    /// Its position in reading order, by which reports are sorted.
    order: usize,
    /// The text including secrets: for parsing only, never shown.
    text: String,
    is_toml: bool,
    redacted: OnceLock<RedactedText>,
    /// The offsets of every [`LINES_PER_MARK`]th line.
    marks: OnceLock<Vec<usize>>,
}

/// The text with secrets masked, and the masked ranges.
struct RedactedText {
    text: String,
    hidden: Vec<Range<usize>>,
}

impl SourceFile {
    /// A file of valid TOML: masks every value that is not known to be plain.
    pub(super) fn new(path: &Path, order: usize, text: String) -> Arc<Self> {
        Arc::new(Self::build(path, order, text, true))
    }

    /// A text of valid TOML that is in no file, whose relative paths start at `folder`.
    pub(super) fn elsewhere(name: &Path, folder: &Path, text: String) -> Arc<Self> {
        Arc::new(Self { folder: folder.to_owned(), ..Self::build(name, 0, text, true) })
    }

    /// A file that is not valid TOML: the positions of its values are unknown, so only headers and plain keys are
    /// shown.
    pub(super) fn broken(path: &Path, order: usize, text: String) -> Arc<Self> {
        Arc::new(Self::build(path, order, text, false))
    }

    fn build(path: &Path, order: usize, text: String, is_toml: bool) -> Self {
        let (redacted, marks) = (OnceLock::new(), OnceLock::new());
        Self { path: path.into(), folder: folder_of(path), order, text, is_toml, redacted, marks }
    }

    /// Marks the file as invalid TOML.
    pub(super) fn into_broken(self: Arc<Self>) -> Arc<Self> {
        match Arc::try_unwrap(self) {
            Ok(file) => Self::broken(&file.path, file.order, file.text),
            Err(shared) => Self::broken(&shared.path, shared.order, shared.text.clone()),
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The text including secrets.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    pub(super) fn order(&self) -> usize {
        self.order
    }

    /// Computed for the first report: most files have no fault.
    fn redacted(&self) -> &RedactedText {
        self.redacted.get_or_init(|| {
            let hidden = if self.is_toml { self.hidden_in_toml() } else { self.hidden_in_broken() };
            self.redact(hidden)
        })
    }

    fn hidden_in_toml(&self) -> Vec<Range<usize>> {
        let mut hidden = Vec::new();
        let sections = Sections::split(&self.text);
        if let Some(root) = sections.parse_root() {
            hide_values(&root, 0, &mut hidden);
            let every = sections.tenants.iter().all(|section| {
                let document = parse_tenant(&self.text[section.clone()]);
                document.map(|document| hide_values(&document, section.start, &mut hidden)).is_some()
            });
            if every {
                return hidden;
            }
        }
        hidden.clear();
        match DeTable::parse(&self.text) {
            Ok(document) => hide_values(document.get_ref(), 0, &mut hidden),
            Err(_) => return self.hidden_in_broken(),
        }
        hidden
    }

    fn hidden_in_broken(&self) -> Vec<Range<usize>> {
        let mut hidden = Vec::new();
        let mut start = 0;
        for line in self.text.split_inclusive('\n') {
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
        hidden
    }

    fn redact(&self, mut hidden: Vec<Range<usize>>) -> RedactedText {
        let text = &self.text;
        for (start, _) in text.match_indices("://") {
            let rest = &text[start..];
            hidden.push(start..start + rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(rest.len()));
        }
        let hidden = merged(hidden);
        let mut redacted = String::with_capacity(text.len());
        for range in &hidden {
            redacted.push_str(&text[redacted.len()..range.start]);
            redacted.extend(text[range.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { '*' }));
        }
        redacted.push_str(&text[redacted.len()..]);
        RedactedText { text: redacted, hidden }
    }

    /// The number of the line that contains a byte, and the offset of its start.
    fn line_at(&self, byte: usize) -> (usize, usize) {
        let marks = self.marks.get_or_init(|| {
            let starts = self.text.match_indices('\n').map(|(newline, _)| newline + 1);
            std::iter::once(0).chain(starts).step_by(LINES_PER_MARK).collect()
        });
        let passed = marks.partition_point(|mark| *mark <= byte);
        let mark = marks[passed - 1];
        let passed_lines = self.text[mark..byte].matches('\n').count();
        let start = self.text[mark..byte].rfind('\n').map_or(mark, |newline| mark + newline + 1);
        ((passed - 1) * LINES_PER_MARK + passed_lines + 1, start)
    }
}

/// A file, or a section of it that was parsed on its own.
pub(super) struct SourceSection {
    file: Arc<SourceFile>,
    /// The offset of the section in the file.
    start: usize,
}

impl SourceSection {
    pub(super) fn new(file: &Arc<SourceFile>, start: usize) -> Arc<Self> {
        Arc::new(Self { file: Arc::clone(file), start })
    }
}

/// Collects the ranges to mask: every value that is not known to be plain, whatever its type.
fn hide_values(table: &DeTable<'_>, start: usize, hidden: &mut Vec<Range<usize>>) {
    for (key, value) in table {
        hide_value(key.get_ref(), value, start, hidden);
    }
}

fn hide_value(key: &str, value: &toml::Spanned<DeValue<'_>>, start: usize, hidden: &mut Vec<Range<usize>>) {
    match value.get_ref() {
        DeValue::Table(table) => hide_values(table, start, hidden),
        DeValue::Array(items) => items.iter().for_each(|item| hide_value(key, item, start, hidden)),
        _ if PLAIN_KEYS.contains(&key) => {}
        _ => hidden.push(value.span().start + start..value.span().end + start),
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
pub(super) struct SourceSpan {
    source: Arc<SourceSection>,
    /// Offsets within the file.
    bytes: Range<usize>,
    /// The key whose value, or an item of it, is here.
    key: Option<&'static str>,
}

impl SourceSpan {
    /// A range of bytes as the parser of a section reported it.
    pub(super) fn new(source: &Arc<SourceSection>, span: Range<usize>) -> Self {
        Self { source: Arc::clone(source), bytes: span.start + source.start..span.end + source.start, key: None }
    }

    /// The same as the place of a value, or of an item of it.
    pub(super) fn of_key(self, key: &'static str) -> Self {
        Self { key: Some(key), ..self }
    }

    /// The key, if this is the place of a value.
    pub(super) fn key(&self) -> Option<&'static str> {
        self.key
    }

    pub(super) fn file(&self) -> &Arc<SourceFile> {
        &self.source.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.file().path
    }

    /// The line and column of the first character, both from 1; columns count characters.
    pub(super) fn line_and_column(&self) -> (usize, usize) {
        let (line, start) = self.line_start();
        (line, self.file().text[start..self.start()].chars().count() + 1)
    }

    /// The first line of the span as it may be shown, and the bytes of it that the span covers.
    pub(super) fn line(&self) -> (&str, Range<usize>) {
        let text = &self.file().redacted().text;
        let (_, start) = self.line_start();
        let line = text[start..].lines().next().unwrap_or_default();
        let first = text.floor_char_boundary(self.bytes.start);
        let covered = (first - start).min(line.len())..(self.bytes.end - start).min(line.len());
        (line, covered)
    }

    /// The line including secrets.
    pub(super) fn written_line(&self) -> &str {
        self.file().text[self.line_start().1..].lines().next().unwrap_or_default()
    }

    /// Whether the span overlaps a value that a report must not show.
    pub(super) fn is_hidden(&self) -> bool {
        let hidden = &self.file().redacted().hidden;
        let next = hidden.partition_point(|range| range.end <= self.bytes.start);
        hidden.get(next).is_some_and(|range| range.start < self.bytes.end.max(self.bytes.start + 1))
    }

    /// The number of the line and the offset of its start.
    fn line_start(&self) -> (usize, usize) {
        self.file().line_at(self.start())
    }

    /// The first byte, moved to the start of a character: parsers may report an offset inside of one.
    fn start(&self) -> usize {
        self.file().text.floor_char_boundary(self.bytes.start)
    }
}

impl fmt::Debug for SourceSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, column) = self.line_and_column();
        write!(f, "{}:{line}:{column}", self.path().display())
    }
}
