//! The text of a configuration file as reports may show it, and spans of it.
//!
//! Owns line and column numbers, and redaction. Reports quote a copy of the file in which every value that could be a
//! secret is masked: a value is shown only under a key whose values are known to be plain, and never if it looks like
//! a URL. A [`SourceSpan`] is a range of bytes; lines are counted and the copy is made only when there is something to
//! report. The text of a file lives only as long as its loading and its reports. The declarations of the keys say what is plain.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use toml::de::{DeTable, DeValue};

use super::declaration::{self, Key, Keys, Shown};
use super::folders::folder_of;

/// A file as it was read, and as reports may show it.
pub(super) struct SourceFile {
    path: Arc<Path>,
    /// The folder that relative paths in it start at.
    folder: PathBuf,
    /// Its position in reading order, by which reports are sorted.
    order: usize,
    /// The text including secrets: for parsing only, never shown.
    text: String,
    /// The keys at its top, from which all others are reached.
    keys: Keys,
    redacted: OnceLock<RedactedText>,
    /// The offset of each line.
    lines: OnceLock<Vec<usize>>,
}

/// The text with secrets masked, and the masked ranges.
struct RedactedText {
    text: String,
    hidden: Vec<Range<usize>>,
}

impl SourceFile {
    pub(super) fn new(path: &Path, order: usize, text: String, keys: Keys) -> Arc<Self> {
        Self::below(path, folder_of(path), order, text, keys)
    }

    /// A text in no file, whose relative paths start at `folder`.
    pub(super) fn elsewhere(name: &Path, folder: &Path, text: String, keys: Keys) -> Arc<Self> {
        Self::below(name, folder.to_owned(), 0, text, keys)
    }

    fn below(path: &Path, folder: PathBuf, order: usize, text: String, keys: Keys) -> Arc<Self> {
        let (redacted, lines) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self { path: path.into(), folder, order, text, keys, redacted, lines })
    }

    pub(super) fn keys(&self) -> Keys {
        self.keys
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
            let plain = declaration::names(self.keys, |key| key.shown == Shown::Plain);
            let mut masks = Masks { text: &self.text, plain, hidden: Vec::new(), shown: Vec::new() };
            match DeTable::parse(&self.text) {
                Ok(document) => masks.hide_values(document.get_ref()),
                Err(_) => masks.hide_lines(),
            }
            masks.hide_urls();
            self.redact(masks.hidden)
        })
    }

    fn redact(&self, hidden: Vec<Range<usize>>) -> RedactedText {
        let (text, hidden) = (&self.text, merged(hidden));
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
        let lines = self.lines.get_or_init(|| {
            let starts = self.text.match_indices('\n').map(|(newline, _)| newline + 1);
            std::iter::once(0).chain(starts).collect()
        });
        let number = lines.partition_point(|start| *start <= byte);
        (number, lines[number - 1])
    }
}

/// What to mask in a text. A mistyped key (`databse`) is not among the plain ones, so its value is masked.
struct Masks<'t> {
    text: &'t str,
    /// The names of the keys whose values a report may show.
    plain: BTreeSet<&'static str>,
    hidden: Vec<Range<usize>>,
    /// Values that a report may show although they look like a URL.
    shown: Vec<Range<usize>>,
}

impl Masks<'_> {
    /// Hides every value that is not known to be plain, whatever its type.
    fn hide_values(&mut self, table: &DeTable<'_>) {
        for (key, value) in table {
            self.hide_value(key.get_ref(), value);
        }
    }

    fn hide_value(&mut self, key: &str, value: &toml::Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(table) => self.hide_values(table),
            DeValue::Array(items) => items.iter().for_each(|item| self.hide_value(key, item)),
            DeValue::String(text) if self.plain.contains(key) && is_url_without_password(text) => {
                self.shown.push(value.span());
            }
            _ if self.plain.contains(key) => {}
            _ => self.hidden.push(value.span()),
        }
    }

    /// Of a text that is not valid TOML: the positions of its values are unknown, so only headers and plain keys are shown.
    fn hide_lines(&mut self) {
        let mut start = 0;
        for line in self.text.split_inclusive('\n') {
            let content = line.trim_end();
            let plain = match content.split('=').collect::<Vec<_>>().as_slice() {
                [header] => header.starts_with('['),
                [key, _] => self.plain.contains(key.trim()),
                _ => false,
            };
            if !plain && !content.is_empty() {
                self.hidden.push(start..start + content.len());
            }
            start += line.len();
        }
    }

    /// Hides what looks like a URL, also in comments.
    fn hide_urls(&mut self) {
        self.shown.sort_by_key(|range| range.start);
        for (start, _) in self.text.match_indices("://") {
            let next = self.shown.partition_point(|range| range.end <= start);
            if self.shown.get(next).is_none_or(|range| start < range.start) {
                let rest = &self.text[start..];
                let end = rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(rest.len());
                self.hidden.push(start..start + end);
            }
        }
    }
}

/// Whether a text is a URL that has no password: before an `@`, as a parameter, or where a port belongs.
fn is_url_without_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else { return false };
    let authority = rest.split('/').next().unwrap_or_default();
    let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
    !text.contains(['@', '?']) && port.bytes().all(|byte| byte.is_ascii_digit())
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
    file: Arc<SourceFile>,
    bytes: Range<usize>,
    /// The key whose value, or an item of it, is here.
    key: Option<&'static str>,
}

impl SourceSpan {
    pub(super) fn new(file: &Arc<SourceFile>, bytes: Range<usize>) -> Self {
        Self { file: Arc::clone(file), bytes, key: None }
    }

    /// The same as the place of a value, or of an item of it.
    pub(super) fn of_key(self, key: &Key) -> Self {
        Self { key: Some(key.name), ..self }
    }

    /// The key, if this is the place of a value.
    pub(super) fn key(&self) -> Option<&'static str> {
        self.key
    }

    pub(super) fn file(&self) -> &Arc<SourceFile> {
        &self.file
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
