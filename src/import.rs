//! `formgate import` and its call of the operator API: loads NDJSON into a tenant's database in one transaction.
//!
//! A line is an object of the format (users, labels, forms, groups, flow steps, submissions), identified by its id, so
//! loading is idempotent. A line may refer to objects in the database or on earlier lines. This module reads
//! (`lines`), parses (`parse`) and reports faults by line, column and key (`fault`); the store decides what may be
//! loaded, and how. Nothing is kept unless [`run`] returns an [`Imported`].

mod fault;
mod lines;
mod parse;
mod reader;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead};

use serde_json::{Value, json};

pub use fault::LineFault;

use crate::store::import::Import;
use crate::store::import::batch::RecordKind;
use crate::store::{Actor, AuditEntry, DatabaseLocation, Events, StoreError};
use reader::{Chunk, ReaderMessage};

/// How many faults are kept for the report; all are counted. Larger: a file of another format fills memory. Smaller:
/// fixing a file takes more attempts.
const MAX_LISTED_FAULTS: usize = 100;

/// How to handle a faulty line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// Stop, and keep nothing of the file.
    #[default]
    Stop,
    /// Skip the line.
    KeepGoing,
}

/// The progress of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Lines of the input, empty ones included.
    pub lines: u64,
    /// Bytes of the input.
    pub bytes: u64,
}

/// The stage of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Loading; a batch has been loaded up to here.
    Loading(Progress),
    /// The whole input is loaded; building indexes and planner statistics, which is half of the work of a first import
    /// into Postgres.
    Finishing,
}

/// The number of lines loaded by type, whether or not they changed anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Users.
    pub users: u64,
    /// Labels.
    pub labels: u64,
    /// Forms, with their elements.
    pub forms: u64,
    /// Groups, with their members.
    pub groups: u64,
    /// Flow steps.
    pub flow_steps: u64,
    /// Submissions, with their answers.
    pub submissions: u64,
    /// Lines of the input, empty and faulty ones included.
    pub lines: u64,
    /// Lines that were skipped.
    pub faulty: u64,
    /// Their first faults, in line order.
    pub faults: Vec<LineFault>,
}

impl Imported {
    fn count(&mut self, kind: RecordKind) {
        *match kind {
            RecordKind::User => &mut self.users,
            RecordKind::Label => &mut self.labels,
            RecordKind::Form => &mut self.forms,
            RecordKind::Group => &mut self.groups,
            RecordKind::FlowStep => &mut self.flow_steps,
            RecordKind::Submission => &mut self.submissions,
        } += 1;
    }

    /// The number of lines that were loaded, of every type.
    #[must_use]
    pub fn loaded(&self) -> u64 {
        self.users + self.labels + self.forms + self.groups + self.flow_steps + self.submissions
    }

    /// The number of lines of each type, in words.
    #[must_use]
    pub fn summary(&self) -> String {
        let counts = [
            (self.users, "users"),
            (self.labels, "labels"),
            (self.forms, "forms"),
            (self.groups, "groups"),
            (self.flow_steps, "flow steps"),
            (self.submissions, "submissions"),
        ];
        counts.map(|(count, what)| format!("{count} {what}")).join(", ")
    }

    /// What the audit log says of it.
    #[must_use]
    pub fn details(&self) -> Value {
        json!({ "loaded": self.summary(), "lines": self.lines, "left_out": self.faulty })
    }
}

/// Why an import failed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A line is faulty, with [`OnFault::Stop`].
    #[error("{0}")]
    Faulty(LineFault),
    /// The input could not be read.
    #[error("line {line} can't be read: {source}")]
    Unreadable {
        /// The number of the line.
        line: u64,
        /// The I/O error.
        source: io::Error,
    },
    /// Another import that has to be alone is under way.
    #[error("another import into the account is under way")]
    UnderWay,
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Loads an input into a database with the newest schema, and reports progress after every batch. `events`
/// says whether webhooks are sent what it changes. `audited` makes the row of the audit log of what was loaded, which is
/// written in the same transaction.
///
/// # Errors
/// [`ImportError`]. Then, and also if the future is dropped, the database is unchanged.
pub async fn run(
    location: &DatabaseLocation,
    input: impl BufRead + Send + 'static,
    on_fault: OnFault,
    events: Events,
    audited: impl FnOnce(&Imported) -> Option<(Actor, AuditEntry)>,
    on_stage: impl FnMut(Stage) + Send,
) -> Result<Imported, ImportError> {
    let import = Import::begin(location, events).await?;
    load_all(import, input, on_fault, audited, on_stage).await
}

/// The same for an input without faults, unless another call of this is under way, on any node that has the database.
///
/// # Errors
/// As [`run`], and [`ImportError::UnderWay`].
pub async fn run_alone(
    location: &DatabaseLocation,
    input: impl BufRead + Send + 'static,
    events: Events,
    audited: impl FnOnce(&Imported) -> Option<(Actor, AuditEntry)>,
) -> Result<Imported, ImportError> {
    let import = Import::begin_alone(location, events).await?.ok_or(ImportError::UnderWay)?;
    load_all(import, input, OnFault::Stop, audited, |_| ()).await
}

async fn load_all(
    mut import: Import,
    input: impl BufRead + Send + 'static,
    on_fault: OnFault,
    audited: impl FnOnce(&Imported) -> Option<(Actor, AuditEntry)>,
    mut on_stage: impl FnMut(Stage) + Send,
) -> Result<Imported, ImportError> {
    let mut messages = reader::start(input, on_fault);
    let mut imported = Imported::default();
    loop {
        match messages.recv().await.expect("the reading thread ends with a message") {
            ReaderMessage::Chunk(chunk) => {
                let progress = chunk.progress;
                let faults = load(&mut import, chunk, &mut imported).await?;
                if let (OnFault::Stop, Some(first)) = (on_fault, faults.first()) {
                    import.roll_back().await?;
                    return Err(ImportError::Faulty(first.clone()));
                }
                imported.faulty += u64::try_from(faults.len()).expect("a chunk is small");
                let room = MAX_LISTED_FAULTS - imported.faults.len();
                imported.faults.extend(faults.into_iter().take(room));
                on_stage(Stage::Loading(progress));
            }
            ReaderMessage::Unreadable { line, source } => {
                import.roll_back().await?;
                return Err(ImportError::Unreadable { line, source });
            }
            ReaderMessage::End(progress) => {
                imported.lines = progress.lines;
                break;
            }
        }
    }
    on_stage(Stage::Finishing);
    import.finish(audited(&imported)).await?;
    Ok(imported)
}

/// Loads a chunk and counts its lines. Returns the faults of the others, in line order.
async fn load(import: &mut Import, chunk: Chunk, imported: &mut Imported) -> Result<Vec<LineFault>, StoreError> {
    let refusals = import.load(&chunk.batch).await?;
    let mut faults = chunk.faults;
    for ((record, (line, text)), refusal) in chunk.batch.records().iter().zip(&chunk.lines).zip(refusals) {
        match refusal {
            None => imported.count(record.kind()),
            Some(refusal) => faults.push(LineFault::of_refusal(*line, text, &refusal)),
        }
    }
    faults.sort_by_key(|fault| fault.line);
    Ok(faults)
}
