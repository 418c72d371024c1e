//! Reports of faults in a configuration, for the operator who has to fix them.
//!
//! Owns the reports and their order; the readers decide what is a fault. A report names a file, and a line and column
//! where there is one. No text in a report may quote a value that could be a secret: titles and labels quote only
//! values that were parsed as something plain, and the quoted lines come from [`super::source`], which redacts the
//! rest.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use annotate_snippets::{
    Annotation, AnnotationKind, Element, Group, Level, Renderer, Snippet, normalize_untrusted_str,
};

use super::source::SourceSpan;

/// What reports call the place of a tenant that is in no file but in the registry.
pub(super) const REGISTRY: &str = "registry";

/// The longest line that is certain to be shown whole, in bytes. Larger: the renderer may cut the key off. Smaller: titles repeat
/// the keys that the lines show.
const MAX_WIDTH: usize = 120;

/// A fault of a configuration, or a warning. Its `Display` is a report of several lines, without colours.
#[derive(Clone, Debug)]
pub struct Problem {
    title: String,
    is_warning: bool,
    at: ProblemLocation,
    label: Option<String>,
    /// Boxed to keep a `Result` with a problem small.
    earlier: Option<Box<(ProblemLocation, String)>>,
    help: Option<String>,
}

#[derive(Clone, Debug)]
enum ProblemLocation {
    /// Boxed like `earlier`.
    Span(Box<SourceSpan>),
    /// A line of a file that is no longer in memory; boxed like `earlier`.
    Line(Box<SourceLine>),
    File(PathBuf),
}

impl ProblemLocation {
    /// The key of the value here, unless the report shows the line that it is on: the line may hold a secret, or only an item
    /// of a list, or be cut.
    fn key_that_is_not_shown(&self) -> Option<&'static str> {
        let Self::Span(span) = self else { return None };
        let is_shown = |key: &&str| span.line().0.contains(key) && span.line().0.len() <= MAX_WIDTH;
        span.key().filter(|key| span.is_hidden() || !is_shown(key))
    }
}

#[derive(Clone, Debug)]
struct SourceLine {
    path: Arc<Path>,
    order: usize,
    /// Line and column, both from 1.
    at: (usize, usize),
    /// The line, if it is known to contain nothing else, and the range to underline.
    shown: Option<(String, Range<usize>)>,
}

impl Problem {
    /// A fault at a span of a file.
    pub(super) fn at(span: &SourceSpan, title: impl Into<String>) -> Self {
        Self::new(title, ProblemLocation::Span(Box::new(span.clone())))
    }

    /// A fault of a whole file, such as one that can't be read.
    pub(super) fn of_file(path: &Path, title: impl Into<String>) -> Self {
        Self::new(title, ProblemLocation::File(path.to_owned()))
    }

    fn new(title: impl Into<String>, at: ProblemLocation) -> Self {
        Self { title: title.into(), is_warning: false, at, label: None, earlier: None, help: None }
    }

    /// Turns the fault into a warning, which does not prevent the configuration from being used.
    pub(super) fn into_warning(mut self) -> Self {
        self.is_warning = true;
        self
    }

    /// Whether it does not prevent the configuration from being used.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        self.is_warning
    }

    /// The text next to the underlined span.
    pub(super) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Another span that the fault refers to.
    pub(super) fn earlier(mut self, span: &SourceSpan, label: impl Into<String>) -> Self {
        self.earlier = Some(Box::new((ProblemLocation::Span(Box::new(span.clone())), label.into())));
        self
    }

    /// How to fix it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The fault in one line, without its location.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The fault as one of a tenant of the registry, which its place does not name.
    #[must_use]
    pub fn of_registered(mut self, slug: &str) -> Self {
        self.title = format!("tenant `{slug}` of the registry: {}", self.title);
        self
    }

    /// The fault in one line, with its label and help, and without its location.
    #[must_use]
    pub fn in_one_line(&self) -> String {
        let mut line = self.title.clone();
        for (before, part) in [(": ", &self.label), ("; ", &self.help)] {
            line.extend(part.iter().flat_map(|part| [before, part]));
        }
        line
    }

    /// The key whose value is at fault.
    #[cfg(test)]
    pub(super) fn key(&self) -> Option<&'static str> {
        match &self.at {
            ProblemLocation::Span(span) => span.key(),
            ProblemLocation::Line(_) | ProblemLocation::File(_) => None,
        }
    }

    /// The file with the fault.
    #[must_use]
    pub fn path(&self) -> &Path {
        match &self.at {
            ProblemLocation::Span(span) => span.path(),
            ProblemLocation::Line(line) => &line.path,
            ProblemLocation::File(path) => path,
        }
    }

    /// Line and column, both from 1; `None` for a fault of the whole file.
    #[must_use]
    pub fn line_and_column(&self) -> Option<(usize, usize)> {
        match &self.at {
            ProblemLocation::Span(span) => Some(span.line_and_column()),
            ProblemLocation::Line(line) => Some(line.at),
            ProblemLocation::File(_) => None,
        }
    }

    /// The sort key: files in reading order; faults of whole files come first.
    fn order(&self) -> Option<(usize, (usize, usize))> {
        match &self.at {
            ProblemLocation::Span(span) => Some((span.file().order(), span.line_and_column())),
            ProblemLocation::Line(line) => Some((line.order, line.at)),
            ProblemLocation::File(_) => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = if self.is_warning { Level::WARNING } else { Level::ERROR };
        let title = match self.at.key_that_is_not_shown().filter(|key| !self.title.contains(&format!("`{key}`"))) {
            Some(key) => format!("`{key}`: {}", self.title),
            None => self.title.clone(),
        };
        let mut report = Group::with_title(level.primary_title(normalize_untrusted_str(&title)));
        report = report.elements(shown(&self.at, AnnotationKind::Primary, self.label.as_deref()));
        if let Some((at, label)) = self.earlier.as_deref() {
            report = report.elements(shown(at, AnnotationKind::Context, Some(label)));
        }
        if let Some(help) = &self.help {
            report = report.element(Level::HELP.message(normalize_untrusted_str(help)));
        }
        f.write_str(&Renderer::plain().render(&[report]))
    }
}

/// A location with its line. Omits the line if it would show a secret or is no longer in memory.
fn shown<'a>(at: &'a ProblemLocation, kind: AnnotationKind, label: Option<&'a str>) -> Vec<Element<'a>> {
    let (path, position, line) = match at {
        ProblemLocation::File(path) => (path.as_path(), None, None),
        ProblemLocation::Span(span) => {
            (span.path(), Some(span.line_and_column()), (!span.is_hidden()).then(|| span.line()))
        }
        ProblemLocation::Line(line) => {
            let shown = line.shown.as_ref().map(|(text, covered)| (text.as_str(), covered.clone()));
            (&*line.path, Some(line.at), shown)
        }
    };
    let path = path.to_string_lossy();
    if let (Some((number, _)), Some((line, covered))) = (position, line) {
        let annotation: Annotation<'_> = kind.span(covered).label(label);
        return vec![Snippet::source(line).line_start(number).path(path).annotation(annotation).into()];
    }
    let mut origin = annotate_snippets::Origin::path(path);
    if let Some((number, column)) = position {
        origin = origin.line(number).char_column(column);
    }
    std::iter::once(origin.into()).chain(label.map(note)).collect()
}

fn note(text: &str) -> Element<'_> {
    Level::NOTE.message(normalize_untrusted_str(text)).into()
}

/// Every fault of a configuration, in file order; at least one. Its `Display` is all reports, separated by empty
/// lines.
#[derive(Clone, Debug)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Returns `Ok` if there is no problem.
    ///
    /// # Errors
    /// All problems, sorted.
    pub fn none_of(mut problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() {
            return Ok(());
        }
        problems.sort_by_cached_key(Problem::order);
        Err(Self(problems))
    }

    /// A single problem.
    #[must_use]
    pub(super) fn of(problem: Problem) -> Self {
        Self(vec![problem])
    }

    /// The number of problems; never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Iterates over the problems in file order.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Where a tenant is configured, for faults that appear only later, such as a database that does not answer. Contains
/// no text of the file: a gateway keeps one of these per tenant.
#[derive(Clone, Debug)]
pub struct TenantOrigin {
    path: Arc<Path>,
    order: u32,
    /// Line and column of the value of `slug`.
    slug: (u32, u32),
    /// Whether the line contains only the key and its value.
    slug_alone: bool,
    /// Line and column of the value of `database`.
    database: (u32, u32),
}

/// A tenant that was created in code, without a file.
impl Default for TenantOrigin {
    fn default() -> Self {
        Self { path: Path::new("(no file)").into(), order: 0, slug: (1, 1), slug_alone: false, database: (1, 1) }
    }
}

impl TenantOrigin {
    pub(super) fn new(slug: &str, slug_span: &SourceSpan, database: &SourceSpan) -> Self {
        let short = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let at = |span: &SourceSpan| {
            let (line, column) = span.line_and_column();
            (short(line), short(column))
        };
        Self {
            path: Arc::clone(slug_span.file().path()),
            order: short(slug_span.file().order()),
            slug: at(slug_span),
            slug_alone: slug_span.written_line() == format!("slug = \"{slug}\""),
            database: at(database),
        }
    }

    /// Whether the tenant is in no file but in the registry.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        &*self.path == Path::new(REGISTRY)
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.path.to_path_buf()
    }

    /// The file and the line of the value of `slug`, from 1: `tenants.d/acme.toml:2`.
    #[must_use]
    pub fn file_and_line(&self) -> String {
        format!("{}:{}", self.path.display(), self.slug.0)
    }

    /// A fault of the tenant as a whole. The report points at the value of `slug`.
    pub(super) fn problem(&self, slug: &str, message: impl Into<String>) -> Problem {
        Problem::new(message, self.line(self.slug, self.slug_line(slug)))
    }

    /// The line of `slug` and the range of its value, if the line contains nothing else.
    fn slug_line(&self, slug: &str) -> Option<(String, Range<usize>)> {
        self.slug_alone.then(|| {
            let line = format!("slug = \"{slug}\"");
            let covered = "slug = ".len()..line.len();
            (line, covered)
        })
    }

    /// A fault of the tenant's database. The report points at the value of `database` and does not show it.
    ///
    /// The message must not quote the URL, which is a secret.
    pub(super) fn database_problem(&self, slug: &str, message: impl Into<String>) -> Problem {
        let shown = self.slug_line(slug);
        let mut problem = Problem::new(message, self.line(self.database, None));
        problem.earlier = Some(Box::new((self.line(self.slug, shown), "the database of this tenant".to_owned())));
        problem
    }

    fn line(&self, (line, column): (u32, u32), shown: Option<(String, Range<usize>)>) -> ProblemLocation {
        let at = (line as usize, column as usize);
        ProblemLocation::Line(Box::new(SourceLine {
            path: Arc::clone(&self.path),
            order: self.order as usize,
            at,
            shown,
        }))
    }
}
