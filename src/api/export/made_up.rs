//! Forms and submissions for the tests of formats.

use jiff::tz::TimeZone;

use super::format::{ExportFormat, FormatKind, FormatStart};
use crate::api::submissions::Selection;
use crate::reply::PartsError;
use crate::store::{Answer, ExportColumn, Field, Submission};

/// A field of form 1.
pub(super) fn column(element: i64, name: &str, kind: &str) -> ExportColumn {
    let (gid, name, kind) = (format!("g-{element}"), name.to_owned(), kind.to_owned());
    ExportColumn { element, form: 1, gid, name, kind, is_of_child: false }
}

/// A form whose fields have the ids 101, 102 and so on.
pub(super) struct MadeUpForm {
    columns: Vec<ExportColumn>,
    fields: Vec<Field<'static>>,
}

impl MadeUpForm {
    /// A form with fields of these names and types.
    pub(super) fn new(fields: &[(&str, &str)]) -> Self {
        let columns: Vec<ExportColumn> =
            fields.iter().zip(101..).map(|((name, kind), id)| column(id, name, kind)).collect();
        let fields = columns.iter().map(|column| {
            let (gid, name, kind) = (column.gid.clone().into(), column.name.clone().into(), column.kind.clone().into());
            Field { id: column.element, gid, name, kind }
        });
        Self { fields: fields.collect(), columns }
    }

    /// Begins an export.
    pub(super) fn begin(&self, kind: FormatKind, change: impl FnOnce(&mut FormatStart)) -> Box<dyn ExportFormat> {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let (columns, cursor) = (self.columns.clone(), "cursor-7".to_owned());
        let selection = Selection::ALL;
        let mut start = FormatStart { columns, cursor, is_since: false, excel: false, raw: false, selection, zone };
        change(&mut start);
        let mut format = kind.begin(start).unwrap();
        format.set_fields(&self.fields);
        format
    }

    /// Exports a submission: for each answer the position of its field, the text, and files as JSON.
    pub(super) fn submit(&self, format: &mut dyn ExportFormat, id: i64, answers: &[(usize, &str, Option<&str>)]) {
        self.try_submit(format, id, answers).unwrap();
    }

    /// The same for one that the format may not take.
    pub(super) fn try_submit(
        &self,
        format: &mut dyn ExportFormat,
        id: i64,
        answers: &[(usize, &str, Option<&str>)],
    ) -> Result<(), PartsError> {
        let at = "2024-05-01T12:00:00.5Z".parse().unwrap();
        let entries = answers.iter().map(|(field, value, files)| Answer {
            field: *field,
            value: (*value).into(),
            files: files.map(Into::into),
            updated_at: at,
        });
        let entries = entries.collect();
        let submission = Submission { id, form: 1, status: "pending", created_at: at, updated_at: at, entries };
        format.submission(&submission)
    }

    /// Exports a submission with the same answer to each of the fields, one after another.
    pub(super) fn submit_texts(&self, format: &mut dyn ExportFormat, id: i64, texts: &[&str]) {
        let answers: Vec<_> = texts.iter().enumerate().map(|(field, text)| (field, *text, None)).collect();
        self.submit(format, id, &answers);
    }
}

/// The rest of an export.
pub(super) fn finish(format: &mut dyn ExportFormat, rows: u64) -> Vec<u8> {
    let mut file = format.take().to_vec();
    format.flush().unwrap();
    format.end(rows).unwrap();
    loop {
        let part = format.take();
        if part.is_empty() {
            return file;
        }
        file.extend(part);
    }
}
