//! What a format of an export is: it takes submissions one after another, in the order of their ids, and gives bytes.
//!
//! A format knows neither the database nor HTTP. Its bytes are complete up to any point: what it holds back, such as a row
//! group, it gives later. [`super::parts`] bounds what is read ahead.

use bytes::Bytes;
use jiff::tz::TimeZone;

use super::csv::CsvFormat;
use super::ndjson::NdjsonFormat;
use super::parquet::{self, ParquetFormat};
use crate::api::submissions::Selection;
use crate::reply::{ContentType, PartsError};
use crate::store::{ExportColumn, Field, Submission, SubmissionPart};

/// A format, by its name in `format=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatKind {
    /// A submission a line, as a search shows it.
    Ndjson,
    /// A submission a row, with a column for each element.
    Csv,
    /// The same, with values of their types.
    Parquet,
}

/// What a format knows before the first submission.
#[derive(Clone, Debug)]
pub struct FormatStart {
    /// The elements of the form and of its graduated children, in this order, if the format needs a form.
    pub columns: Vec<ExportColumn>,
    /// The text of the cursor with which the feed goes on.
    pub cursor: String,
    /// Whether it has only what changed, with deletions.
    pub is_since: bool,
    /// `excel=1`
    pub excel: bool,
    /// `raw=1`
    pub raw: bool,
    /// Which keys and answers are shown.
    pub selection: Selection,
    /// The account's, for times of day.
    pub zone: TimeZone,
}

/// Writes an export.
pub trait ExportFormat: Send {
    /// Takes the fields of the next submissions, in place of those before: [`Answer::field`](crate::store::Answer::field) is an
    /// index into them. They are of several forms, if the submissions are, or have graduated children.
    fn set_fields(&mut self, fields: &[Field<'_>]);

    /// Writes a submission.
    ///
    /// # Errors
    /// Any error cuts the export off.
    fn submission(&mut self, submission: &Submission<'_>) -> Result<(), PartsError>;

    /// Writes that a submission is no longer in the result. Only of exports of what changed.
    ///
    /// # Errors
    /// Any error cuts the export off.
    fn deletion(&mut self, id: i64) -> Result<(), PartsError>;

    /// Writes what follows the last submission. `rows` counts submissions and deletions.
    ///
    /// # Errors
    /// Any error cuts the export off.
    fn end(&mut self, rows: u64) -> Result<(), PartsError>;

    /// About how many bytes [`Self::take`] would return; none only if it would return none.
    fn complete_bytes(&self) -> usize;

    /// Takes bytes that are complete; none if there are none. Behind the end, each call returns a part of what is left.
    fn take(&mut self) -> Bytes;

    /// Takes a submission that is too long to be read whole. Otherwise it is assembled, up to a limit.
    fn part_writer(&mut self) -> Option<&mut dyn PartWriter> {
        None
    }

    /// Whether [`Self::flush`] is due. Asked after each submission.
    fn is_full(&self) -> bool {
        false
    }

    /// Completes what is held back. On a blocking thread, whenever it is due and once before the end.
    ///
    /// # Errors
    /// Any error cuts the export off.
    fn flush(&mut self) -> Result<(), PartsError> {
        Ok(())
    }
}

/// Writes a submission of any length in parts.
pub trait PartWriter {
    /// Writes the next part.
    ///
    /// # Errors
    /// Any error cuts the export off.
    fn part(&mut self, part: &SubmissionPart) -> Result<(), PartsError>;
}

impl FormatKind {
    /// Every format.
    pub const ALL: [Self; 3] = [Self::Ndjson, Self::Csv, Self::Parquet];

    /// Its name in `format=`, which files end with.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ndjson => "ndjson",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        }
    }

    /// The format of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What the body of the response is.
    #[must_use]
    pub fn content(self) -> ContentType {
        match self {
            Self::Ndjson => ContentType::Ndjson,
            Self::Csv => ContentType::Csv,
            Self::Parquet => ContentType::Parquet,
        }
    }

    /// Whether it is of a single form, without sub-forms, whose elements are its columns.
    #[must_use]
    pub fn has_columns(self) -> bool {
        match self {
            Self::Ndjson => false,
            Self::Csv | Self::Parquet => true,
        }
    }

    /// How many bytes it holds at most, in addition to what is read ahead: row groups, and what compresses them.
    #[must_use]
    pub fn memory(self) -> usize {
        match self {
            Self::Ndjson | Self::Csv => 0,
            Self::Parquet => parquet::MEMORY,
        }
    }

    /// Begins to write. What precedes the first submission is complete at once.
    ///
    /// # Errors
    /// Why it can't begin.
    pub fn begin(self, start: FormatStart) -> Result<Box<dyn ExportFormat>, PartsError> {
        match self {
            Self::Ndjson => Ok(Box::new(NdjsonFormat::new(start))),
            Self::Csv => Ok(Box::new(CsvFormat::new(start))),
            Self::Parquet => Ok(Box::new(ParquetFormat::new(start)?)),
        }
    }
}
