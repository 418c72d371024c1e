//! `POST /submission` and `GET /submission/{id}`.

use std::borrow::Cow;

use http::StatusCode;
use jiff::tz::TimeZone;
use serde::Serialize;
use serde_json::{Value, json};

use super::ask::Body;
use super::id::{Id, Kind};
use super::page::{self, Envelope};
use super::time::{Instant, time_of_day};
use super::{Call, filter, store};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::reply::Reply;
use crate::store::{Answer, Page, Submission};

/// Submissions on a page, as the service description fixes it.
const PAGE_SIZE: u32 = 20;

#[derive(Serialize)]
struct SubmissionJson<'r> {
    id: Id,
    status: &'r str,
    created_at: Instant,
    updated_at: Instant,
    #[serde(rename = "allElements")]
    all_elements: Vec<AnswerJson<'r>>,
}

#[derive(Serialize)]
struct AnswerJson<'r> {
    gid: &'r str,
    name: &'r str,
    value: Cow<'r, str>,
    r#type: &'r str,
    files: Vec<FileJson>,
    updated_at: Instant,
}

/// A file's details. What the database does not tell is null.
#[derive(Serialize)]
struct FileJson {
    name: Value,
    url: Value,
    size: Value,
    mime_type: Value,
}

impl FileJson {
    /// The details as a writer of the database left them: an object, of which only these four keys are known.
    fn read(mut stored: Value) -> Self {
        let mut take = |key: &str| stored.get_mut(key).map_or(Value::Null, Value::take);
        Self { name: take("name"), url: take("url"), size: take("size"), mime_type: take("mime_type") }
    }
}

impl<'r> SubmissionJson<'r> {
    fn new(submission: &'r Submission<'_>, zone: &TimeZone) -> Self {
        Self {
            id: Kind::Submission.show(submission.id),
            status: submission.status,
            created_at: Instant(submission.created_at),
            updated_at: Instant(submission.updated_at),
            all_elements: submission.entries.iter().map(|answer| AnswerJson::new(answer, zone)).collect(),
        }
    }
}

impl<'r> AnswerJson<'r> {
    fn new(answer: &'r Answer<'_>, zone: &TimeZone) -> Self {
        let files: Vec<Value> =
            answer.files.as_deref().and_then(|files| serde_json::from_str(files).ok()).unwrap_or_default();
        let files: Vec<FileJson> = files.into_iter().map(FileJson::read).collect();
        let value = if !files.is_empty() {
            let urls: Vec<&str> = files.iter().filter_map(|file| file.url.as_str()).collect();
            urls.join(",").into()
        } else if answer.kind == "time" {
            time_of_day(&answer.value, answer.updated_at, zone)
        } else {
            answer.value.as_ref().into()
        };
        Self {
            gid: &answer.gid,
            name: &answer.name,
            value,
            r#type: &answer.kind,
            files,
            updated_at: Instant(answer.updated_at),
        }
    }
}

pub(super) async fn search(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let zone = &admitted.tenant().timezone;
    let mut faults = Faults::default();
    let request = page::requested(call, PAGE_SIZE, &mut faults);
    let body = Body::parse(&call.body)?;
    let filter = filter::parse(&body, zone, &mut faults);
    let filter = faults.or_else(filter)?;

    let found = store(admitted).await?.search(&filter, request).await?;
    let submissions = found.submissions.read()?;
    let items = submissions.iter().map(|submission| SubmissionJson::new(submission, zone)).collect();
    let page = Page { items, total: found.total };
    let reply = Reply::json(StatusCode::OK, &Envelope::new(call, "/api/v1/submission", request, page));
    Ok(body.name_ignored(reply, &filter::PARAMETERS))
}

pub(super) async fn show(admitted: &Admitted, id: &str) -> Result<Reply, Refusal> {
    let id = Kind::Submission.parse(id).ok_or(Refusal::SubmissionNotFound)?;
    let found = store(admitted).await?.submissions(&[id]).await?;
    let submission = found.read()?.pop().ok_or(Refusal::SubmissionNotFound)?;
    let submission = SubmissionJson::new(&submission, &admitted.tenant().timezone);
    Ok(Reply::json(StatusCode::OK, &json!({ "data": submission })))
}
