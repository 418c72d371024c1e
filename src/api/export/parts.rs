//! The parts of an export: what the store reads, as a format writes it. Knows no HTTP and no budget.
//!
//! Some parts are read ahead at once, in as few turns as possible, and then sent while nothing is read: a client that takes
//! its time holds some memory and no connection. If the end is among the first ones, the whole export is of one instant.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use jiff::tz::TimeZone;

use super::columns::Columns;
use super::format::{ExportFormat, FormatKind, FormatStart};
use super::long::{LongSubmission, TooLong};
use super::pace::Pace;
use crate::api::changes::cursor_text;
use crate::api::submissions::Selection;
use crate::memory::MemoryPermit;
use crate::reply::{Part, PartsError, ReadSubmission};
use crate::store::{
    ExportBatch, ExportError, ExportRead, ExportReader, ExportRequest, ExportRow, Store, StoreError, SubmissionPart,
};

/// A part is complete once it has this many bytes.
///
/// Larger: a part takes more memory. Smaller: more writes to the socket.
const PART_BYTES: usize = 128 * 1024;

/// How many bytes are read ahead, and for how long once there are any: a table that compresses well has few, and its client
/// waits for the first ones.
///
/// Larger: an export takes more memory, and its response begins later. Smaller: more turns, and fewer exports are of one instant.
const READ_AHEAD: usize = 4 * 1024 * 1024;
const LONGEST_READ: Duration = Duration::from_secs(3);

/// The memory that is reserved for an export, in addition to what every streamed answer takes: the parts that are read ahead, a
/// batch as rows, as JSON and as parsed, and the ids that were found.
///
/// Larger: fewer exports at once. Smaller: they hold more memory than is reserved.
pub(super) const EXPORT_BYTES: usize = READ_AHEAD + 8 * 1024 * 1024;

/// What is exported, and how.
#[derive(Clone, Debug)]
pub struct ExportQuery {
    /// The format.
    pub kind: FormatKind,
    /// Which submissions.
    pub request: ExportRequest,
    /// `excel=1`
    pub excel: bool,
    /// `raw=1`
    pub raw: bool,
    /// `fields=`
    pub selection: Selection,
}

/// Why an export can't begin.
#[derive(Debug, thiserror::Error)]
pub enum BeginError {
    /// The database fails, or a cursor leads nowhere.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// There is no such form.
    #[error("no such form")]
    NoForm,
    /// None of the fields is a column of the form.
    #[error("no column is selected")]
    NoColumns,
    /// The format or the database fails at once.
    #[error("the export could not begin")]
    Unreadable(#[source] PartsError),
}

impl BeginError {
    /// Whether a submission is longer than the format can take.
    #[must_use]
    pub fn is_too_long(&self) -> bool {
        matches!(self, Self::Unreadable(error) if error.is::<TooLong>())
    }
}

impl From<StoreError> for BeginError {
    fn from(error: StoreError) -> Self {
        Self::Export(error.into())
    }
}

/// Produces the parts of an export.
pub struct ExportParts {
    reader: ExportReader,
    /// Absent while it works on a blocking thread.
    format: Option<Box<dyn ExportFormat>>,
    long: LongSubmission,
    ready: VecDeque<Part>,
    ready_bytes: usize,
    /// The submissions that were written and are in no part yet.
    read: Vec<ReadSubmission>,
    rows: u64,
    is_read: bool,
    is_of_one_instant: bool,
    cursor: String,
    /// Dropped once everything is read.
    lease: Option<Box<dyn Send + Sync>>,
    permit: Option<MemoryPermit>,
    /// Of a node, which has other requests too.
    pace: Option<Pace>,
}

impl ExportParts {
    /// Begins an export, and reads the first parts ahead.
    ///
    /// # Errors
    /// [`BeginError`].
    pub async fn begin(store: &Store, query: ExportQuery, zone: &TimeZone) -> Result<Self, BeginError> {
        let ExportQuery { kind, request, excel, raw, selection } = query;
        let columns = match request.form.filter(|_| kind.has_columns()) {
            Some(form) => store.list_export_columns(form).await?.ok_or(BeginError::NoForm)?,
            None => Vec::new(),
        };
        let (form, is_since) = (request.form, request.since.is_some());
        if kind.has_columns() && Columns::new(&selection, &columns, false).are_none() {
            return Err(BeginError::NoColumns);
        }
        let store = store.clone().showing(selection.elements());
        let reader = store.export(request).await?;
        let cursor = cursor_text(reader.cursor(), form.as_slice(), store.reach());
        let start =
            FormatStart { columns, cursor: cursor.clone(), is_since, excel, raw, selection, zone: zone.clone() };
        let mut parts = Self {
            reader,
            format: Some(kind.begin(start).map_err(BeginError::Unreadable)?),
            long: LongSubmission::default(),
            ready: VecDeque::new(),
            ready_bytes: 0,
            read: Vec::new(),
            rows: 0,
            is_read: false,
            is_of_one_instant: false,
            cursor,
            lease: None,
            permit: None,
            pace: None,
        };
        parts.read_ahead().await.map_err(|error| match error.downcast::<StoreError>() {
            Ok(error) => BeginError::from(*error),
            Err(error) => BeginError::Unreadable(error),
        })?;
        parts.is_of_one_instant = parts.is_read && parts.reader.is_of_one_instant();
        Ok(parts)
    }

    /// Keeps something until everything is read, and reserved memory until everything is sent.
    #[must_use]
    pub fn holding(mut self, lease: impl Send + Sync + 'static, permit: MemoryPermit) -> Self {
        self.lease = if self.is_read { None } else { Some(Box::new(lease)) };
        self.permit = Some(permit);
        self.pace = Some(Pace::begin());
        self
    }

    /// The text of the cursor with which the feed goes on.
    #[must_use]
    pub fn cursor(&self) -> &str {
        &self.cursor
    }

    /// Whether the whole export is of one instant, which is known once it begins.
    #[must_use]
    pub fn is_of_one_instant(&self) -> bool {
        self.is_of_one_instant
    }

    /// How many rows it has, if everything is read.
    #[must_use]
    pub fn rows(&self) -> Option<u64> {
        self.is_read.then_some(self.rows)
    }

    /// Whether the next part is the last one.
    #[must_use]
    pub fn has_one_part(&self) -> bool {
        let has_more = self.format.as_ref().is_some_and(|format| format.complete_bytes() > 0);
        self.is_read && self.ready.len() <= 1 && !has_more
    }

    /// The next part. None behind the last one.
    ///
    /// # Errors
    /// [`StoreError`], or what the format fails with.
    pub async fn next(&mut self) -> Result<Option<Part>, PartsError> {
        if self.ready.is_empty() && !self.is_read {
            self.read_ahead().await?;
        }
        if self.ready.is_empty() && self.format().complete_bytes() > 0 {
            self.take_part();
        }
        let part = self.ready.pop_front();
        self.ready_bytes -= part.as_ref().map_or(0, |part| part.bytes.len());
        Ok(part)
    }

    /// Reads until enough is ready, or everything.
    async fn read_ahead(&mut self) -> Result<(), PartsError> {
        if let Some(pace) = &mut self.pace {
            pace.resume();
        }
        let began = Instant::now();
        while self.ready_bytes < READ_AHEAD && (began.elapsed() < LONGEST_READ || !self.has_part()) {
            match self.reader.next().await? {
                Some(ExportRead::Batch(batch)) => self.write_batch(batch).await?,
                Some(ExportRead::Part(part)) => self.write_part(part).await?,
                None => {
                    self.flush().await?;
                    let rows = self.rows;
                    self.format().end(rows)?;
                    self.take_part();
                    self.is_read = true;
                    self.lease = None;
                    return Ok(());
                }
            }
        }
        if self.ready.is_empty() {
            self.take_part();
        }
        Ok(self.reader.pause().await?)
    }

    /// Whether something can be sent, if only a short part.
    fn has_part(&mut self) -> bool {
        !self.ready.is_empty() || self.format().complete_bytes() > 0
    }

    async fn write_batch(&mut self, batch: ExportBatch) -> Result<(), PartsError> {
        let Some(shown) = batch.submissions.read()? else {
            self.reader.put_back(batch);
            return Ok(());
        };
        self.format().set_fields(&shown.fields);
        for row in batch.rows(&shown) {
            match row {
                ExportRow::Submission(submission) => {
                    self.format().submission(submission)?;
                    self.read.push(ReadSubmission { id: submission.id, form: Some(submission.form) });
                }
                ExportRow::Deletion(id) => self.format().deletion(id)?,
            }
            self.rows += 1;
            self.complete().await?;
        }
        Ok(())
    }

    async fn write_part(&mut self, part: SubmissionPart) -> Result<(), PartsError> {
        if let SubmissionPart::Begin { id, form, .. } = &part {
            self.read.push(ReadSubmission { id: *id, form: Some(*form) });
            self.rows += 1;
        }
        let format = self.format.as_deref_mut().expect(PRESENT);
        match format.part_writer() {
            Some(writer) => writer.part(&part)?,
            None => self.long.add(part, format)?,
        }
        self.complete().await
    }

    /// Takes a part if it is complete.
    async fn complete(&mut self) -> Result<(), PartsError> {
        if self.format().is_full() {
            self.flush().await?;
        }
        if self.format().complete_bytes() >= PART_BYTES {
            self.take_part();
        }
        if let Some(pace) = &mut self.pace {
            pace.rest().await;
        }
        Ok(())
    }

    fn take_part(&mut self) {
        let bytes = self.format().take();
        self.ready_bytes += bytes.len();
        self.ready.push_back(Part { bytes, read: std::mem::take(&mut self.read) });
    }

    async fn flush(&mut self) -> Result<(), PartsError> {
        let mut format = self.format.take().expect(PRESENT);
        let flushing = tokio::task::spawn_blocking(move || {
            let flushed = format.flush();
            (format, flushed)
        });
        let (format, flushed) = flushing.await?;
        self.format = Some(format);
        flushed
    }

    fn format(&mut self) -> &mut dyn ExportFormat {
        self.format.as_deref_mut().expect(PRESENT)
    }
}

/// Nothing else is called while it is on another thread; if it panics there, the export ends.
const PRESENT: &str = "the format is here between two calls";
