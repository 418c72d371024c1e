//! Lines that can be loaded together.
//!
//! A batch is checked line by line but written table by table, so it holds only lines for which that comes to the same:
//! no object twice, and forms before groups before flow steps before submissions. Users and labels refer to nothing and
//! may stand anywhere.

use std::collections::HashSet;

use super::record::Record;

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RecordKind {
    User,
    Label,
    Form,
    Group,
    FlowStep,
    Submission,
}

impl Record {
    /// What the line is about.
    pub(crate) fn kind(&self) -> RecordKind {
        match self {
            Self::User(_) => RecordKind::User,
            Self::Label(_) => RecordKind::Label,
            Self::Form(_) => RecordKind::Form,
            Self::Group(_) => RecordKind::Group,
            Self::FlowStep(_) => RecordKind::FlowStep,
            Self::Submission(_) => RecordKind::Submission,
        }
    }

    /// The id of what it is about.
    pub(crate) fn id(&self) -> i64 {
        match self {
            Self::User(user) => user.id,
            Self::Label(label) => label.id,
            Self::Form(form) => form.id,
            Self::Group(group) => group.id,
            Self::FlowStep(step) => step.id,
            Self::Submission(submission) => submission.id,
        }
    }
}

/// Records in the order of their lines.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    records: Vec<Record>,
    objects: HashSet<(RecordKind, i64)>,
    latest: Option<RecordKind>,
}

impl Batch {
    /// Adds a record, or gives it back where the batch must be loaded before it.
    pub(crate) fn push(&mut self, record: Record) -> Result<(), Record> {
        let kind = record.kind();
        let refers_to_nothing = matches!(kind, RecordKind::User | RecordKind::Label);
        if !refers_to_nothing && self.latest.is_some_and(|latest| latest > kind) {
            return Err(record);
        }
        if !self.objects.insert((kind, record.id())) {
            return Err(record);
        }
        if !refers_to_nothing {
            self.latest = Some(kind);
        }
        self.records.push(record);
        Ok(())
    }

    /// The records, in the order of their lines.
    pub(crate) fn records(&self) -> &[Record] {
        &self.records
    }
}
