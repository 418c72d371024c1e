//! The parts of a page of changes around its submissions.

use crate::api::id::IdKind;
use crate::api::json::Json;
use crate::store::{Change, ChangeKind};

/// What has not been written of a page of changes.
#[derive(Debug)]
pub(in crate::api) struct ChangesEnd {
    changes: Vec<Change>,
    /// How many changes were written.
    written: usize,
    cursor: String,
    has_more: bool,
    next: String,
}

impl ChangesEnd {
    pub(in crate::api) fn new(changes: Vec<Change>, cursor: String, has_more: bool, next: String) -> Self {
        Self { changes, written: 0, cursor, has_more, next }
    }

    /// As if nothing had been written.
    pub(in crate::api) fn begin_again(&mut self) {
        self.written = 0;
    }

    /// Writes the changes before that of a submission, which show none, and this one up to the submission.
    pub(super) fn write_before(&mut self, json: &mut Json, submission: i64) {
        while let Some(change) = self.changes.get(self.written) {
            let is_its_own = change.submission == submission && change.kind != ChangeKind::Deleted;
            write(json, self.written, change, if is_its_own { change.kind } else { ChangeKind::Deleted });
            self.written += 1;
            if is_its_own {
                return;
            }
            json.raw("null}");
        }
    }

    /// Writes the changes behind the last submission, and the end of the answer.
    pub(in crate::api) fn write(&mut self, json: &mut Json) {
        while let Some(change) = self.changes.get(self.written) {
            // One that is listed no longer was deleted a moment ago.
            write(json, self.written, change, ChangeKind::Deleted);
            json.raw("null}");
            self.written += 1;
        }
        json.raw("],\"meta\":{\"cursor\":").text(&self.cursor).raw(",\"has_more\":").value(&self.has_more);
        json.raw("},\"links\":{\"next\":").text(&self.next).raw("}}");
    }
}

/// Writes a change up to its submission.
fn write(json: &mut Json, at: usize, change: &Change, kind: ChangeKind) {
    let kind = match kind {
        ChangeKind::Created => "created",
        ChangeKind::Updated => "updated",
        ChangeKind::Deleted => "deleted",
    };
    json.raw(if at == 0 { "{\"type\":" } else { ",{\"type\":" }).text(kind);
    json.raw(",\"id\":").id(IdKind::Submission.id(change.submission));
    json.raw(",\"form\":").id(IdKind::Form.id(change.form));
    json.raw(",\"changed_at\":").instant(change.changed_at).raw(",\"submission\":");
}
