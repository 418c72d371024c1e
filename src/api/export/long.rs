//! A submission that is too long to be read whole, for formats that need it whole: assembled from its parts, up to a limit.

use std::sync::Arc;

use jiff::Timestamp;

use super::format::ExportFormat;
use crate::reply::PartsError;
use crate::store::{Answer, Field, Submission, SubmissionPart};

/// How many bytes of answers such a submission may have.
///
/// Larger: an export takes more memory. Smaller: more submissions can only be exported as NDJSON.
const MAX_BYTES: usize = 24 * 1024 * 1024;

/// The submission is longer than the format can take.
#[derive(Debug, thiserror::Error)]
#[error("Submission sub_{0} is too long for this format of an export; NDJSON takes it")]
pub(super) struct TooLong(pub(super) i64);

/// A submission that is being read.
#[derive(Default)]
pub(super) struct LongSubmission {
    head: Option<Head>,
    fields: Vec<Field<'static>>,
    /// The fields of the last part, and the index of the first of them.
    last: Option<(Arc<[Field<'static>]>, usize)>,
    entries: Vec<Answer<'static>>,
    bytes: usize,
}

struct Head {
    id: i64,
    form: i64,
    status: String,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl LongSubmission {
    /// Adds the next part. Writes the submission at its end, and begins again.
    pub(super) fn add(&mut self, part: SubmissionPart, format: &mut dyn ExportFormat) -> Result<(), PartsError> {
        match part {
            SubmissionPart::Begin { id, form, status, created_at, updated_at } => {
                self.head = Some(Head { id, form, status, created_at, updated_at });
            }
            SubmissionPart::Entries { fields, entries } => {
                let first = match &self.last {
                    Some((known, first)) if Arc::ptr_eq(known, &fields) => *first,
                    _ => {
                        let first = self.fields.len();
                        self.fields.extend(fields.iter().cloned());
                        self.last = Some((fields, first));
                        first
                    }
                };
                for answer in entries {
                    self.bytes += size_of::<Answer<'_>>() + answer.value.len();
                    self.bytes += answer.files.as_ref().map_or(0, |files| files.len());
                    self.entries.push(Answer { field: first + answer.field, ..answer });
                }
                if self.bytes > MAX_BYTES {
                    return Err(TooLong(self.head.as_ref().map_or(0, |head| head.id)).into());
                }
            }
            SubmissionPart::End => {
                let Self { head: Some(head), fields, entries, .. } = std::mem::take(self) else { return Ok(()) };
                let Head { id, form, ref status, created_at, updated_at } = head;
                format.set_fields(&fields);
                format.submission(&Submission { id, form, status, created_at, updated_at, entries })?;
            }
        }
        Ok(())
    }
}
