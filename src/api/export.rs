//! `GET` and `POST /submission/export`: all submissions that match, in one response that is streamed while it is read, and a
//! cursor with which the feed goes on.
//!
//! Owns the parameters, the headers and the order of checks: parameters, one export at a time, how many rows it has and what
//! that costs, the first rows. `parts` reads them, and a `format` writes them.

mod cells;
mod columns;
mod csv;
mod format;
mod long;
#[cfg(test)]
mod made_up;
mod ndjson;
mod pace;
mod parquet;
mod parts;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::try_unfold;
use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, HeaderName, HeaderValue};
use jiff::Timestamp;

use super::body::Body;
use super::changes::{cursor_text, lost_changes, read_cursor_of};
use super::id::IdKind;
use super::{Call, filter, query};
use crate::error::{Faults, Refusal};
use crate::gate::Admitted;
use crate::reply::{PartsError, Reply};
use crate::store::{ChangeCursor, ExportError, ExportRequest};
use crate::tenant::Tenant;

use long::TooLong;

pub use format::{ExportFormat, FormatKind, FormatStart, PartWriter};
pub use parts::{BeginError, ExportParts, ExportQuery};

pub use super::submissions::Selection;

const PATH: &str = "/api/v1/submission/export";

/// How many rows each request of the budget pays for.
///
/// Larger: an export keeps an account busy for longer at the same cost. Smaller: large exports cost half of the budget sooner.
const ROWS_A_REQUEST: u64 = 10_000;

/// The cursor with which the feed goes on.
const CURSOR: HeaderName = HeaderName::from_static("formgate-cursor");
/// Whether all rows are of one instant.
const SNAPSHOT: HeaderName = HeaderName::from_static("formgate-snapshot");
/// How many requests of the budget it spends.
const COST: HeaderName = HeaderName::from_static("formgate-cost");

/// The parameters.
fn parse(call: &Call<'_>, admitted: &Admitted) -> Result<ExportQuery, Refusal> {
    let mut faults = Faults::default();
    let format = query::value(call, "format", &mut faults);
    // What has a fault already is not missing too.
    let is_missing = |name| query::values(call, name).next().is_none();
    let kind = format.as_deref().and_then(FormatKind::parse);
    if kind.is_none() && (format.is_some() || is_missing("format")) {
        let names = FormatKind::ALL.map(FormatKind::name).join(", ");
        faults.add("format", format_args!("The format must be one of {names}."));
    }
    let kind = kind.unwrap_or(FormatKind::Ndjson);
    let form = query::value(call, "form", &mut faults).and_then(|text| {
        let form = IdKind::Form.parse(&text);
        if form.is_none() {
            faults.add("form", "The form must be a form id: for_<number> or a number.");
        }
        form
    });
    if kind.has_columns() && is_missing("form") {
        faults.add("form", "The form is required in this format.");
    }
    let after = query::value(call, "after", &mut faults).map(|text| {
        IdKind::Submission.parse(&text).unwrap_or_else(|| {
            faults.add("after", "The after must be a submission id: sub_<number> or a number.");
            0
        })
    });
    let since = cursor(call, "since", form, admitted, &mut faults);
    let as_of = cursor(call, "as_of", form, admitted, &mut faults);
    // Its rows would be newer than those before, and its cursor too: what changed between would be missed.
    if after.is_some() && is_missing("as_of") {
        faults.add("as_of", "The as_of must be the cursor of the export that after resumes.");
    }
    let (excel, raw) = (query::flag(call, "excel", &mut faults), query::flag(call, "raw", &mut faults));
    let selection = Selection::parse(call, &mut faults);
    let body = Body::of(call, &filter::PARAMETERS)?;
    let filter = filter::parse(&body, &admitted.tenant().timezone, &mut faults)?;
    let request =
        ExportRequest { form, is_form_alone: kind.has_columns(), filter, since, after: after.unwrap_or(0), as_of };
    faults.into_result(ExportQuery { kind, request, excel, raw, selection })
}

fn cursor(
    call: &Call<'_>,
    name: &'static str,
    form: Option<i64>,
    admitted: &Admitted,
    faults: &mut Faults,
) -> Option<ChangeCursor> {
    let text = query::value(call, name, faults)?;
    match read_cursor_of(&text, form.as_slice(), admitted.token().reach()) {
        Ok(cursor) => Some(cursor),
        Err(fault) => {
            match fault {
                Some(fault) => faults.add(name, fault),
                None => faults.add(name, format_args!("The {name} must be a cursor that an answer had.")),
            }
            None
        }
    }
}

pub(super) async fn export(admitted: &Admitted, call: &Call<'_>) -> Result<Reply, Refusal> {
    let query = parse(call, admitted)?;
    let (store, zone) = (call.store(admitted).await?, &admitted.tenant().timezone);
    query.selection.check(&store).await?;
    if let Some(form) = query.request.form.filter(|_| query.kind.has_columns()) {
        store.find_form(form).await?.ok_or(Refusal::FormNotFound)?;
    }
    let lease = if call.is_head { None } else { Some(admitted.begin_export(call.quota).await?) };
    let count = store.count_export(&query.request).await.map_err(|error| refusal(call, error))?;
    let cost = cost(admitted, count.rows);
    let (kind, form) = (query.kind, query.request.form);
    let with_headers = |reply: Reply, cursor: &str| {
        let cursor = HeaderValue::from_str(cursor).expect("base64 is visible ASCII");
        reply
            .with_header(CURSOR, cursor)
            .with_header(COST, cost.into())
            .with_header(CONTENT_DISPOSITION, disposition(admitted.tenant(), kind, form))
    };
    let Some(lease) = lease else {
        let cursor = cursor_text(&count.cursor, form.as_slice(), store.reach());
        // Without content, and without a length, which is not known.
        let nothing = futures_util::stream::empty();
        let reply = Reply::of_type(StatusCode::OK, kind.content(), Bytes::new()).with_parts(nothing.boxed());
        return Ok(with_headers(reply, &cursor));
    };
    if cost > 1 {
        admitted.spend_more(call.quota, cost - 1, call.spent).await?;
    }
    let permit = call.rows.reserve(memory_of(kind))?;
    let begun = ExportParts::begin(&store, query, zone).await;
    let parts = begun
        .map_err(|error| match error {
            BeginError::Export(error) => refusal(call, error),
            BeginError::NoForm => Refusal::FormNotFound,
            BeginError::NoColumns => Faults::single("fields", "The fields must name a column of the form."),
            BeginError::Unreadable(error) if error.is::<TooLong>() => Faults::single("format", error),
            BeginError::Unreadable(error) => Refusal::ExportFailed(error),
        })?
        .holding(lease, permit);
    let (rows, cursor) = (parts.rows().unwrap_or(count.rows), parts.cursor().to_owned());
    let snapshot = HeaderValue::from_static(if parts.is_of_one_instant() { "one" } else { "range" });
    let reply = reply_of(parts, kind).await?.with_rows(usize::try_from(rows).unwrap_or(usize::MAX));
    Ok(with_headers(reply.with_header(SNAPSHOT, snapshot), &cursor))
}

/// The response with an export that has begun: what is read already, and then the rest while it is read.
///
/// # Errors
/// [`Refusal::ExportFailed`].
pub async fn reply_of(mut parts: ExportParts, kind: FormatKind) -> Result<Reply, Refusal> {
    let is_whole = parts.has_one_part();
    let first = parts.next().await.map_err(Refusal::ExportFailed)?.unwrap_or_default();
    let reply = Reply::of_type(StatusCode::OK, kind.content(), first.bytes).with_read(first.read);
    if is_whole {
        return Ok(reply);
    }
    let rest = try_unfold(parts, |mut parts| async move {
        let part = parts.next().await?;
        Ok::<_, PartsError>(part.map(|part| (part, parts)))
    });
    Ok(reply.with_parts(rest.boxed()))
}

/// How much memory an export in this format takes.
#[must_use]
pub fn memory_of(kind: FormatKind) -> usize {
    parts::EXPORT_BYTES + kind.memory()
}

/// How many requests of the budget an export spends: at most half of what may be spent, so that it is admitted sooner or later.
fn cost(admitted: &Admitted, rows: u64) -> u32 {
    let own = admitted.token().limits.requests_per_minute;
    let limit = admitted.tenant().requests_per_minute.min(own.unwrap_or(u32::MAX));
    let requests = u32::try_from(1 + rows / ROWS_A_REQUEST).unwrap_or(u32::MAX);
    requests.min((limit / 2).max(1))
}

/// `attachment`, with a name that says of which account, form and day it is.
#[must_use]
pub fn disposition(tenant: &Tenant, kind: FormatKind, form: Option<i64>) -> HeaderValue {
    let of = form.map_or_else(|| "submissions".to_owned(), |form| IdKind::Form.id(form).to_string());
    let date = Timestamp::now().to_zoned(tenant.timezone.clone()).date();
    let value = format!("attachment; filename=\"{}-{of}-{date}.{}\"", tenant.slug, kind.name());
    HeaderValue::from_str(&value).expect("slugs, ids and dates are visible ASCII")
}

fn refusal(call: &Call<'_>, error: ExportError) -> Refusal {
    match error {
        ExportError::Store(error) => error.into(),
        ExportError::Lost(lost) => lost_changes(call, lost, PATH, &["since", "after", "as_of"]),
    }
}
