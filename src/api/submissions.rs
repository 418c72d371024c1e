//! `POST /submission` and `GET /submission/{id}`: searches, and one submission with its answers.
//!
//! Owns the JSON of a submission. [`filter`] parses the search, and the store runs it. An answer of more than
//! [`WHOLE_BYTES`] is [`streamed`].

mod changes_end;
mod cursor;
mod envelope;
mod pages;
pub(super) mod readers;
mod selection;
mod streamed;

use std::borrow::Cow;
use std::ops::Range;

use http::StatusCode;
use jiff::tz::TimeZone;
use serde::Serialize;
use serde_json::Value;

use super::body::Body;
use super::id::IdKind;
use super::json::Json;
use super::time::time_of_day;
use super::{Call, filter, page};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::reply::{ReadSubmission, Reply, WHOLE_BYTES};
use crate::store::{Answer, Field, Submission, SubmissionReader, SubmissionsView};
pub(super) use changes_end::ChangesEnd;
use cursor::CursorScope;
pub use envelope::{Envelope, EnvelopeBody, ShownSubmissions};
use pages::{SearchEnd, SearchStart};
pub use selection::Selection;
use streamed::Closing;

/// The type of fields whose answers are times of day.
pub(super) const TIME: &str = "time";

/// The details of a file. Details missing in the database are null.
#[derive(Debug, Serialize)]
pub(super) struct FileJson {
    pub(super) name: Value,
    pub(super) url: Value,
    pub(super) size: Value,
    pub(super) mime_type: Value,
}

impl FileJson {
    /// Reads the stored details: an object, of which only these four keys are used.
    fn read(mut stored: Value) -> Self {
        let mut take = |key: &str| stored.get_mut(key).map_or(Value::Null, Value::take);
        Self { name: take("name"), url: take("url"), size: take("size"), mime_type: take("mime_type") }
    }
}

/// The parts of an answer that depend only on its field: the same for each submission of a form, so they are written
/// once and copied.
pub(super) struct FieldsJson {
    json: Json,
    fields: Vec<FieldJson>,
}

struct FieldJson {
    /// The JSON before the value, and between it and the files.
    before_value: Range<usize>,
    before_files: Range<usize>,
    is_time: bool,
}

impl FieldsJson {
    pub(super) fn new(fields: &[Field<'_>]) -> Self {
        let mut json = Json::with_capacity(128 * fields.len());
        let fields = fields.iter().map(|field| {
            let start = json.position();
            json.raw("{\"gid\":").text(&field.gid).raw(",\"name\":").text(&field.name).raw(",\"value\":");
            let middle = json.position();
            json.raw(",\"type\":").text(&field.kind).raw(",\"files\":");
            let (before_value, before_files) = (start..middle, middle..json.position());
            FieldJson { before_value, before_files, is_time: field.kind == TIME }
        });
        let fields = fields.collect();
        Self { json, fields }
    }

    fn write(&self, json: &mut Json, submission: &Submission<'_>, selection: &Selection, zone: &TimeZone) {
        self.write_up_to(WHOLE_BYTES, json, submission, selection, zone);
    }

    /// The same. Nobody reads what is written beyond so many bytes.
    pub(super) fn write_up_to(
        &self,
        most: usize,
        json: &mut Json,
        submission: &Submission<'_>,
        selection: &Selection,
        zone: &TimeZone,
    ) {
        let Submission { id, status, created_at, updated_at, .. } = *submission;
        selection.write_head(json, id, status, created_at, updated_at);
        for (at, answer) in submission.entries.iter().enumerate() {
            if json.position() > most {
                return;
            }
            json.raw(if at == 0 { "" } else { "," });
            self.write_answer(json, answer, zone);
        }
        json.raw(selection.end());
    }

    pub(super) fn write_answer(&self, json: &mut Json, answer: &Answer<'_>, zone: &TimeZone) {
        let field = &self.fields[answer.field];
        let ShownAnswer { value, files } = shown_answer(field.is_time, answer, zone);
        json.copy(&self.json, &field.before_value).text(&value).copy(&self.json, &field.before_files).value(&files);
        json.raw(",\"updated_at\":").instant(answer.updated_at).raw("}");
    }
}

/// An answer as the API shows it.
pub(super) struct ShownAnswer<'a> {
    /// Its text: the URLs of its files, separated by commas; a time of day with the zone.
    pub(super) value: Cow<'a, str>,
    pub(super) files: Vec<FileJson>,
}

/// An answer as the API shows it. `is_time`: its field is of this type.
pub(super) fn shown_answer<'a>(is_time: bool, answer: &'a Answer<'_>, zone: &TimeZone) -> ShownAnswer<'a> {
    let files: Vec<Value> =
        answer.files.as_deref().and_then(|files| serde_json::from_str(files).ok()).unwrap_or_default();
    let files: Vec<FileJson> = files.into_iter().map(FileJson::read).collect();
    let value = if !files.is_empty() {
        let urls: Vec<&str> = files.iter().filter_map(|file| file.url.as_str()).collect();
        urls.join(",").into()
    } else if is_time {
        time_of_day(&answer.value, answer.updated_at, zone)
    } else {
        Cow::Borrowed(&*answer.value)
    };
    ShownAnswer { value, files }
}

pub(super) async fn search(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let zone = &admitted.tenant().timezone;
    let mut faults = Faults::default();
    let selection = Selection::parse(call, &mut faults);
    let start = SearchStart::parse(call, &mut faults);
    let body = Body::of(call, &filter::PARAMETERS)?;
    let filter = filter::parse(&body, zone, &mut faults)?;
    let filter = faults.into_result(filter)?;
    let scope = CursorScope::of(&filter, admitted.token().reach());
    let start = start.of(&scope)?;

    let store = call.store(admitted).await?.showing(selection.elements());
    selection.check(&store).await?;
    let page = store.search(&filter, start).await?;
    let end = SearchEnd::new(call, start, &scope, &page);
    let found = page.submissions;
    let mut json = Json::with_capacity(page::TYPICAL_BYTES);
    json.raw("{\"data\":[");
    if let Some(shown) = found.read()? {
        let (fields, mut written) = (FieldsJson::new(&shown.fields), 0);
        while let Some(submission) = shown.submissions.get(written)
            && json.position() <= WHOLE_BYTES
        {
            json.raw(if written == 0 { "" } else { "," });
            fields.write(&mut json, submission, &selection, zone);
            written += 1;
        }
        if json.position() <= WHOLE_BYTES {
            json.raw("]");
            end.write(&mut json, written as u64);
            return Ok(json.reply(StatusCode::OK).with_rows(written).with_read(read_by_showing(&shown)));
        }
    }
    let ids = found.ids();
    let reader = store.read_in_parts(ids.iter().copied());
    Ok(streamed::reply(reader, Closing::Page(Box::new(end)), &selection, zone).await?.with_rows(ids.len()))
}

/// Every submission of a view that an answer shows whole.
pub(super) fn read_by_showing(shown: &SubmissionsView<'_>) -> Vec<ReadSubmission> {
    shown.submissions.iter().map(|of| ReadSubmission { id: of.id, form: Some(of.form) }).collect()
}

/// Writes the changes of a page, up to the end of the list, with the submissions as they are now.
pub(super) fn write_changes(
    json: &mut Json,
    end: &mut ChangesEnd,
    shown: &SubmissionsView<'_>,
    selection: &Selection,
    zone: &TimeZone,
) {
    let fields = FieldsJson::new(&shown.fields);
    for submission in &shown.submissions {
        end.write_before(json, submission.id);
        fields.write(json, submission, selection, zone);
        json.raw("}");
        // Nobody reads what is written beyond.
        if json.position() > WHOLE_BYTES {
            return;
        }
    }
}

/// The answer with the changes of a page, whose submissions are read in parts.
pub(super) async fn stream_changes(
    reader: SubmissionReader,
    end: ChangesEnd,
    selection: &Selection,
    zone: &TimeZone,
) -> Result<Reply, Refusal> {
    streamed::reply(reader, Closing::Changes(Box::new(end)), selection, zone).await
}

pub(super) async fn show(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let zone = &admitted.tenant().timezone;
    let id = IdKind::Submission.parse(call.id()).ok_or(Refusal::SubmissionNotFound)?;
    let mut faults = Faults::default();
    let selection = Selection::parse(call, &mut faults);
    let selection = faults.into_result(selection)?;
    let store = call.store(admitted).await?.showing(selection.elements());
    selection.check(&store).await?;
    let found = store.submission(id).await?;
    if let Some(shown) = found.read()? {
        let submission = shown.submissions.first().ok_or(Refusal::SubmissionNotFound)?;
        let mut json = Json::with_capacity(8 * 1024);
        json.raw("{\"data\":");
        FieldsJson::new(&shown.fields).write(&mut json, submission, &selection, zone);
        json.raw("}");
        if json.position() <= WHOLE_BYTES {
            return Ok(json.reply(StatusCode::OK).with_rows(1).with_read(read_by_showing(&shown)));
        }
    }
    Ok(streamed::reply(store.read_in_parts([id]), Closing::Submission, &selection, zone).await?.with_rows(1))
}
