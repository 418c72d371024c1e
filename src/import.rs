//! `formgate import`: NDJSON into a tenant's database, as one transaction.
//!
//! A line is an object of the format (users, labels, forms, groups, flow steps, submissions) and is loaded by its id:
//! loading a file twice is loading it once. What a line refers to stands in the database or on an earlier line. This
//! module reads (`lines`), parses (`parse`) and tells faults by line, column and key (`fault`); what may be loaded, and
//! how, is the store's. Nothing of the file is kept unless [`run`] returns an [`Imported`].

mod fault;
mod lines;
mod parse;
mod reader;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead};

pub use fault::Fault;

use crate::store::import::Import;
use crate::store::import::batch::RecordKind;
use crate::store::{DatabaseLocation, StoreError};
use reader::{Chunk, Message};

/// How many faults are kept to be shown; all are counted. More, and a file of another format fills memory.
const SHOWN_FAULTS: usize = 100;

/// What happens at a faulty line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// The load ends and nothing of the file is kept.
    #[default]
    Stop,
    /// The line is left out.
    KeepGoing,
}

/// How far a load has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Lines of the input, empty ones included.
    pub lines: u64,
    /// Bytes of the input.
    pub bytes: u64,
}

/// What a load is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A batch was loaded; the input was read so far.
    Loading(Progress),
    /// All of the input is loaded. Indexes are built and figures for the planner taken, which of a first load into Postgres
    /// is half of the work.
    Finishing,
}

/// What was loaded: lines, whether or not they changed anything.
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
    /// Lines that were left out.
    pub faulty: u64,
    /// The first of their faults, in the order of the lines.
    pub faults: Vec<Fault>,
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
}

/// Why nothing was loaded.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A line is at fault, and the load stops at faults.
    #[error("{0}")]
    Faulty(Fault),
    /// The input could not be read.
    #[error("line {line} can't be read: {source}")]
    Unreadable {
        /// The line that was to be read.
        line: u64,
        /// What the system says.
        source: io::Error,
    },
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Loads an input into a database that is at the newest schema, telling what it is at after every batch.
///
/// # Errors
/// [`ImportError`]; then, as when the future is dropped, the database is as it was.
pub async fn run(
    location: &DatabaseLocation,
    input: impl BufRead + Send + 'static,
    on_fault: OnFault,
    mut tell: impl FnMut(Stage) + Send,
) -> Result<Imported, ImportError> {
    let mut import = Import::begin(location).await?;
    let mut messages = reader::start(input, on_fault);
    let mut imported = Imported::default();
    loop {
        match messages.recv().await.expect("the reading thread ends with a message") {
            Message::Chunk(chunk) => {
                let upto = chunk.upto;
                let faults = load(&mut import, chunk, &mut imported).await?;
                if let (OnFault::Stop, Some(first)) = (on_fault, faults.first()) {
                    import.roll_back().await?;
                    return Err(ImportError::Faulty(first.clone()));
                }
                imported.faulty += u64::try_from(faults.len()).expect("a chunk is small");
                let room = SHOWN_FAULTS - imported.faults.len();
                imported.faults.extend(faults.into_iter().take(room));
                tell(Stage::Loading(upto));
            }
            Message::Unreadable { line, source } => {
                import.roll_back().await?;
                return Err(ImportError::Unreadable { line, source });
            }
            Message::End(upto) => {
                imported.lines = upto.lines;
                break;
            }
        }
    }
    tell(Stage::Finishing);
    import.finish().await?;
    Ok(imported)
}

/// Loads a chunk, counts what was loaded and tells the faults of the rest, in the order of the lines.
async fn load(import: &mut Import, chunk: Chunk, imported: &mut Imported) -> Result<Vec<Fault>, StoreError> {
    let refusals = import.load(&chunk.batch).await?;
    let mut faults = chunk.faults;
    for ((record, (line, text)), refusal) in chunk.batch.records().iter().zip(&chunk.lines).zip(refusals) {
        match refusal {
            None => imported.count(record.kind()),
            Some(refusal) => faults.push(Fault::of_refusal(*line, text, &refusal)),
        }
    }
    faults.sort_by_key(|fault| fault.line);
    Ok(faults)
}
