//! What is wrong with a configuration, told to the operator who has to mend it.
//!
//! Owns the reports and their order; what a fault is, the readers decide. A report names a file, and a line and a
//! column wherever there is one. No text in it may quote a value that could be a secret: titles and labels quote only
//! what was parsed as something plain, and the lines shown come from [`super::source`], which hides the rest.

use std::fmt;
use std::path::{Path, PathBuf};

use annotate_snippets::{
    Annotation, AnnotationKind, Element, Group, Level, Renderer, Snippet, normalize_untrusted_str,
};

use super::source::{Place, Source};

/// One fault of a configuration. Its `Display` is a report of some lines, without colours.
#[derive(Clone, Debug)]
pub struct Problem {
    title: String,
    at: At,
    label: Option<String>,
    /// Boxed, to keep a `Result` with a problem small.
    earlier: Option<Box<(Place, String)>>,
    help: Option<String>,
}

#[derive(Clone, Debug)]
enum At {
    Place(Place),
    File(PathBuf),
}

impl Problem {
    /// A fault at a place in a file.
    pub(super) fn at(place: &Place, title: impl Into<String>) -> Self {
        Self { title: title.into(), at: At::Place(place.clone()), label: None, earlier: None, help: None }
    }

    /// A fault of a file as a whole, as when it can't be read.
    pub(super) fn of_file(path: &Path, title: impl Into<String>) -> Self {
        Self { title: title.into(), at: At::File(path.to_owned()), label: None, earlier: None, help: None }
    }

    /// What stands beside the place.
    pub(super) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Another place that the fault refers to.
    pub(super) fn earlier(mut self, place: &Place, label: impl Into<String>) -> Self {
        self.earlier = Some(Box::new((place.clone(), label.into())));
        self
    }

    /// What would mend it.
    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// The fault in one line, without its place.
    #[must_use]
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The file that has to be mended.
    #[must_use]
    pub fn path(&self) -> &Path {
        match &self.at {
            At::Place(place) => place.path(),
            At::File(path) => path,
        }
    }

    /// Line and column, both from 1; none when the file as a whole is at fault.
    #[must_use]
    pub fn line_and_column(&self) -> Option<(usize, usize)> {
        match &self.at {
            At::Place(place) => Some(place.line_and_column()),
            At::File(_) => None,
        }
    }

    /// Files in the order in which they are read; a fault of a whole file stands first.
    fn order(&self) -> Option<(usize, usize)> {
        match &self.at {
            At::Place(place) => Some(place.order()),
            At::File(_) => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut report = Group::with_title(Level::ERROR.primary_title(&self.title));
        report = match &self.at {
            At::Place(place) => report.elements(shown(place, AnnotationKind::Primary, self.label.as_deref())),
            At::File(path) => report
                .element(annotate_snippets::Origin::path(path.to_string_lossy()))
                .elements(self.label.as_deref().map(note)),
        };
        if let Some((place, label)) = self.earlier.as_deref() {
            report = report.elements(shown(place, AnnotationKind::Context, Some(label)));
        }
        if let Some(help) = &self.help {
            report = report.element(Level::HELP.message(normalize_untrusted_str(help)));
        }
        f.write_str(&Renderer::plain().render(&[report]))
    }
}

/// A place with its line; without it where the line would show a secret.
fn shown<'a>(place: &'a Place, kind: AnnotationKind, label: Option<&'a str>) -> Vec<Element<'a>> {
    let (number, column) = place.line_and_column();
    let path = place.path().to_string_lossy();
    if place.is_hidden() {
        let origin = annotate_snippets::Origin::path(path).line(number).char_column(column);
        return std::iter::once(origin.into()).chain(label.map(note)).collect();
    }
    let (line, covered) = place.line();
    let annotation: Annotation<'_> = kind.span(covered).label(label);
    vec![Snippet::source(line).line_start(number).path(path).annotation(annotation).into()]
}

fn note(text: &str) -> Element<'_> {
    Level::NOTE.message(normalize_untrusted_str(text)).into()
}

/// Every fault of a configuration, in the order of the files; at least one. Its `Display` is all reports, with an
/// empty line between them.
#[derive(Clone, Debug)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Passes when there is none.
    ///
    /// # Errors
    /// All problems, sorted, when there are any.
    pub fn none_of(mut problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() {
            return Ok(());
        }
        problems.sort_by_key(Problem::order);
        Err(Self(problems))
    }

    /// How many there are; never 0.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// One by one, in the order of the files.
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

/// Where a tenant was written, for faults that show only later, as when its database does not answer.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The value of `slug`.
    pub(super) slug: Place,
    /// The value of `database`.
    pub(super) database: Place,
}

/// Of a tenant that a program made and no file holds.
impl Default for Origin {
    fn default() -> Self {
        let place = Place::new(&Source::broken(Path::new("(no file)"), 0, ""), 0..0);
        Self { slug: place.clone(), database: place }
    }
}

impl Origin {
    /// A fault of the tenant as a whole; the report points at its `slug`.
    #[must_use]
    pub fn tenant_problem(&self, message: impl Into<String>) -> Problem {
        Problem::at(&self.slug, message)
    }

    /// A fault of the tenant's database; the report points at the value of `database` and does not show it.
    ///
    /// The message must not quote the URL: it is a secret.
    #[must_use]
    pub fn database_problem(&self, message: impl Into<String>) -> Problem {
        Problem::at(&self.database, message).earlier(&self.slug, "the database of this tenant")
    }
}
