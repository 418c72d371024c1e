//! The parsed filters of a search. Every field has been checked, and texts that are compared are folded.
//!
//! An empty list is a filter that was not sent. Filters are combined with AND, the values of one filter with OR.

use jiff::Timestamp;

pub use super::statement::SortDirection;
use super::statement::{fold, searchable};

/// A submission's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Awaiting action.
    Pending,
    /// Approved.
    Approved,
    /// Denied.
    Denied,
    /// Sent back.
    Back,
    /// Information requested.
    Info,
    /// Escalated.
    Escalate,
}

impl Status {
    /// Every status, in the order of the service description.
    pub const ALL: [Self; 6] = [Self::Pending, Self::Approved, Self::Denied, Self::Back, Self::Info, Self::Escalate];

    /// The status as the API and the database spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Back => "back",
            Self::Info => "info",
            Self::Escalate => "escalate",
        }
    }

    /// The status with this spelling.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// A keyword of at least two characters, folded like documents, and without NUL, which Postgres does not accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyword(String);

impl Keyword {
    /// Folds a keyword. None when it has fewer than two characters, or a NUL.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        (text.chars().nth(1).is_some() && !text.contains('\0')).then(|| Self(searchable(fold(text))))
    }

    /// The folded text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The answers, one of which an element must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The element. None for a key that names no element, which never matches.
    pub element: Option<i64>,
    /// The folded answers, at least one.
    pub answers: Vec<String>,
}

/// What the result is ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortBy {
    /// When the submission was created.
    CreatedAt,
    /// When it last changed.
    #[default]
    UpdatedAt,
}

/// All filters of a search, and its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubmissionFilter {
    /// Forms, including their sub-forms at any depth.
    pub forms: Vec<i64>,
    /// Statuses.
    pub statuses: Vec<Status>,
    /// A substring of any one answer, also of a graduated child.
    pub search: Option<Keyword>,
    /// Users who submitted.
    pub submitters: Vec<i64>,
    /// Users for whose action the submission waits.
    pub pending: Vec<i64>,
    /// Users who acted on it.
    pub participants: Vec<i64>,
    /// Whole answers or whole lines of answers. Every term must match, in the submission or a graduated child.
    pub terms: Vec<Term>,
    /// The earliest time of creation.
    pub start: Option<Timestamp>,
    /// The latest time of creation, inclusive, in microseconds.
    pub end: Option<Timestamp>,
    /// Labels.
    pub labels: Vec<i64>,
    /// Shared labels.
    pub shared_labels: Vec<i64>,
    /// Flow steps.
    pub flows: Vec<i64>,
    /// What orders the result.
    pub sort_by: SortBy,
    /// Which end comes first.
    pub sort_direction: SortDirection,
}

impl SubmissionFilter {
    /// Whether anything but a keyword narrows the search.
    pub(super) fn narrows_by_more_than_a_keyword(&self) -> bool {
        // Destructured, so that a new filter is not forgotten.
        let Self {
            forms,
            statuses,
            search: _,
            submitters,
            pending,
            participants,
            terms,
            start,
            end,
            labels,
            shared_labels,
            flows,
            sort_by: _,
            sort_direction: _,
        } = self;
        let lists = [forms, submitters, pending, participants, labels, shared_labels, flows];
        lists.iter().any(|ids| !ids.is_empty())
            || !(statuses.is_empty() && terms.is_empty())
            || start.is_some()
            || end.is_some()
    }
}
