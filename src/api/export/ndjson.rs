//! NDJSON: a submission a line, as a search shows it, or a deletion; and a last line that says where the feed goes on.

use bytes::Bytes;
use jiff::tz::TimeZone;

use super::format::{ExportFormat, FormatStart, PartWriter};
use crate::api::id::IdKind;
use crate::api::json::Json;
use crate::api::submissions::{FieldsJson, Selection};
use crate::reply::PartsError;
use crate::store::{Field, Submission, SubmissionPart};

/// A size that most parts fit in.
///
/// Larger: wasted memory. Smaller: parts are copied as they grow.
const TYPICAL_BYTES: usize = 160 * 1024;

/// Writes NDJSON.
pub(super) struct NdjsonFormat {
    json: Json,
    fields: FieldsJson,
    /// How many entries the submission has that is written in parts.
    entries: u64,
    cursor: String,
    selection: Selection,
    zone: TimeZone,
}

impl NdjsonFormat {
    pub(super) fn new(start: FormatStart) -> Self {
        let FormatStart { cursor, selection, zone, .. } = start;
        let (json, fields) = (Json::with_capacity(TYPICAL_BYTES), FieldsJson::new(&[]));
        Self { json, fields, entries: 0, cursor, selection, zone }
    }
}

impl ExportFormat for NdjsonFormat {
    fn set_fields(&mut self, fields: &[Field<'_>]) {
        self.fields = FieldsJson::new(fields);
    }

    fn submission(&mut self, submission: &Submission<'_>) -> Result<(), PartsError> {
        self.fields.write_up_to(usize::MAX, &mut self.json, submission, &self.selection, &self.zone);
        self.json.raw("\n");
        Ok(())
    }

    fn deletion(&mut self, id: i64) -> Result<(), PartsError> {
        self.json.raw("{\"id\":").id(IdKind::Submission.id(id)).raw(",\"deleted\":true}\n");
        Ok(())
    }

    fn end(&mut self, rows: u64) -> Result<(), PartsError> {
        self.json.raw("{\"cursor\":").text(&self.cursor).raw(",\"rows\":").value(&rows).raw("}\n");
        Ok(())
    }

    fn complete_bytes(&self) -> usize {
        self.json.position()
    }

    fn take(&mut self) -> Bytes {
        let part = self.json.take_part();
        self.json = Json::with_capacity(TYPICAL_BYTES);
        part
    }

    fn part_writer(&mut self) -> Option<&mut dyn PartWriter> {
        Some(self)
    }
}

impl PartWriter for NdjsonFormat {
    fn part(&mut self, part: &SubmissionPart) -> Result<(), PartsError> {
        match part {
            SubmissionPart::Begin { id, status, created_at, updated_at, .. } => {
                self.selection.write_head(&mut self.json, *id, status, *created_at, *updated_at);
                self.entries = 0;
            }
            SubmissionPart::Entries { fields, entries } => {
                self.fields = FieldsJson::new(fields);
                for answer in entries {
                    self.json.raw(if self.entries == 0 { "" } else { "," });
                    self.fields.write_answer(&mut self.json, answer, &self.zone);
                    self.entries += 1;
                }
            }
            SubmissionPart::End => _ = self.json.raw(self.selection.end()).raw("\n"),
        }
        Ok(())
    }
}
