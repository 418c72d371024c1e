//! Submissions whose JSON is too long to be built whole: it is written in parts while the client reads.
//!
//! The JSON is that of a short answer. Reading ahead is bounded by [`PART_BYTES`]; the store bounds what a single part
//! of a submission has.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::try_unfold;
use http::StatusCode;
use jiff::tz::TimeZone;

use super::{ChangesEnd, FieldsJson, SearchEnd, Selection};
use crate::api::json::Json;
use crate::error::Refusal;
use crate::reply::{Part, PartsError, ReadSubmission, Reply};
use crate::store::{Field, StoreError, SubmissionPart, SubmissionReader};

/// A part is sent once it has this many bytes.
///
/// Larger: a part takes more memory. Smaller: more writes to the socket.
const PART_BYTES: usize = 128 * 1024;

/// What follows the submissions.
pub(super) enum Closing {
    /// `GET /submission/{id}`
    Submission,
    /// `POST /submission`
    Page(Box<SearchEnd>),
    /// `GET /submission/changes`
    Changes(Box<ChangesEnd>),
}

/// The answer with everything that a reader yields.
pub(super) async fn reply(
    reader: SubmissionReader,
    ending: Closing,
    selection: &Selection,
    zone: &TimeZone,
) -> Result<Reply, Refusal> {
    let is_single = matches!(ending, Closing::Submission);
    let mut writer = Writer {
        reader,
        json: Json::with_capacity(2 * PART_BYTES),
        fields: None,
        read: Vec::new(),
        written: 0,
        entries: 0,
        ending: Some(ending),
        selection: selection.clone(),
        zone: zone.clone(),
    };
    writer.json.raw(if is_single { "{\"data\":" } else { "{\"data\":[" });
    let first = writer.next_part().await?.unwrap_or_default();
    // It was there a moment ago.
    if is_single && writer.written == 0 {
        return Err(Refusal::SubmissionNotFound);
    }
    let parts = try_unfold(writer, |mut writer| async move {
        let part = writer.next_part().await?;
        Ok::<_, PartsError>(part.map(|part| (part, writer)))
    });
    let Part { bytes, read } = first;
    Ok(Reply::of_json(StatusCode::OK, bytes.into()).with_read(read).with_parts(parts.boxed()))
}

/// The fields of a form, and their JSON.
type KnownFields = (Arc<[Field<'static>]>, FieldsJson);

struct Writer {
    reader: SubmissionReader,
    json: Json,
    /// Those of the form whose entries were written last.
    fields: Option<KnownFields>,
    /// The submissions that begin in the JSON.
    read: Vec<ReadSubmission>,
    /// How many submissions were begun.
    written: u64,
    /// How many entries the current one has.
    entries: u64,
    /// None once it was written.
    ending: Option<Closing>,
    selection: Selection,
    zone: TimeZone,
}

impl Writer {
    /// The next part. None behind the last one.
    async fn next_part(&mut self) -> Result<Option<Part>, StoreError> {
        while self.json.position() < PART_BYTES {
            let Some(part) = self.reader.next().await? else {
                return Ok(self.end());
            };
            self.write(part);
        }
        Ok(Some(self.take_part()))
    }

    /// What was written since the last part.
    fn take_part(&mut self) -> Part {
        Part { bytes: self.json.take_part(), read: std::mem::take(&mut self.read) }
    }

    /// The end, once.
    fn end(&mut self) -> Option<Part> {
        match self.ending.take()? {
            Closing::Page(end) => {
                self.json.raw("]");
                end.write(&mut self.json, self.written);
            }
            Closing::Changes(mut end) => end.write(&mut self.json),
            Closing::Submission => _ = self.json.raw("}"),
        }
        Some(self.take_part())
    }

    fn write(&mut self, part: SubmissionPart) {
        match part {
            SubmissionPart::Begin { id, form, status, created_at, updated_at } => {
                match &mut self.ending {
                    Some(Closing::Changes(end)) => end.write_before(&mut self.json, id),
                    _ => _ = self.json.raw(if self.written == 0 { "" } else { "," }),
                }
                self.selection.write_head(&mut self.json, id, &status, created_at, updated_at);
                self.read.push(ReadSubmission { id, form: Some(form) });
                (self.written, self.entries) = (self.written + 1, 0);
            }
            SubmissionPart::Entries { fields, entries } => {
                let known = match self.fields.take() {
                    Some((known, json)) if Arc::ptr_eq(&known, &fields) => (known, json),
                    _ => {
                        let json = FieldsJson::new(&fields);
                        (fields, json)
                    }
                };
                for answer in &entries {
                    self.json.raw(if self.entries == 0 { "" } else { "," });
                    known.1.write_answer(&mut self.json, answer, &self.zone);
                    self.entries += 1;
                }
                self.fields = Some(known);
            }
            SubmissionPart::End => {
                let is_change = matches!(self.ending, Some(Closing::Changes(_)));
                self.json.raw(self.selection.end()).raw(if is_change { "}" } else { "" });
            }
        }
    }
}
