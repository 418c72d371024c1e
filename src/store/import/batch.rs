//! Records that can be loaded together.
//!
//! A batch is checked record by record but written table by table, so it only contains records for which the result is
//! the same: no object twice, and forms before groups before flow steps before submissions. Users and labels refer to
//! no other object and may be anywhere.

use std::collections::HashSet;

use super::record::Record;

/// The type of a record.
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
    /// The type of the record.
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

    /// The id of its object.
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
    /// Adds a record, or returns it if the batch has to be loaded first.
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
