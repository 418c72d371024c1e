//! The audit log: every change, with filters, and as newline-delimited JSON.

use askama::Template;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::try_unfold;
use http::StatusCode;
use http::header::{CONTENT_DISPOSITION, HeaderValue};
use jiff::Timestamp;
use jiff::civil::Date;
use serde_json::{Map, Value};

use super::forms::parameter;
use super::frame::{Frame, page};
use super::protection::{Referrer, protect};
use super::texts::AuditTexts;
use super::times::Moment;
use super::visit::Member;
use crate::error::Refusal;
use crate::reply::{ContentType, PartsError, Reply};
use crate::store::{AuditFilter, AuditRecord};

/// How many rows a page has. Larger: a page takes longer. Smaller: more pages.
const PAGE: u32 = 100;

/// How many rows an export reads at once. Larger: more memory for each export. Smaller: more statements.
const BATCH: u32 = 500;

struct AuditRow {
    id: i64,
    at: Moment,
    actor: String,
    source: String,
    network: Option<String>,
    action: String,
    subject: String,
    details: Vec<Detail>,
}

/// One of the details of a row: `role admin`.
#[derive(Debug, PartialEq, Eq)]
struct Detail {
    name: String,
    value: String,
    /// The value, if it is an instant.
    at: Option<Moment>,
}

/// The filter as it was typed.
struct TypedFilter {
    actor: String,
    action: String,
    since: String,
    until: String,
    fault: Option<&'static str>,
}

#[derive(Template)]
#[template(path = "audit.html", config = "src/administration/askama.toml")]
struct AuditPage {
    frame: Frame,
    text: &'static AuditTexts,
    typed: TypedFilter,
    is_filtered: bool,
    rows: Vec<AuditRow>,
    /// The query of the filter, for the export.
    query: String,
    /// The query of the next page.
    next: Option<String>,
}

impl TypedFilter {
    fn of(member: &Member<'_>) -> (Self, AuditFilter) {
        let query = member.visit.head.uri.query();
        let typed = |name| parameter(query, name).trim().replace('\0', "");
        let mut typed = Self {
            actor: typed("actor"),
            action: typed("action"),
            since: typed("since"),
            until: typed("until"),
            fault: None,
        };
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let (mut since, mut until) = (None, None);
        for (text, day, is_end) in [(&typed.since, &mut since, false), (&typed.until, &mut until, true)] {
            if !text.is_empty() {
                match border_of(text, is_end, member) {
                    Some(at) => *day = Some(at),
                    None => typed.fault = Some(&member.area.texts.audit.bad_day),
                }
            }
        }
        let filter = AuditFilter { actor: given(&typed.actor), action: given(&typed.action), since, until };
        (typed, filter)
    }

    fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in
            [("actor", &self.actor), ("action", &self.action), ("since", &self.since), ("until", &self.until)]
        {
            if !value.is_empty() {
                query.append_pair(name, value);
            }
        }
        query.finish()
    }
}

/// The first or the last instant of a day in the account's time zone.
pub(super) fn border_of(day: &str, is_end: bool, member: &Member<'_>) -> Option<Timestamp> {
    let zone = member.visit.tenant.timezone.clone();
    let day: Date = day.parse().ok().filter(|_| day.len() == 10)?;
    let day = if is_end { day.tomorrow().ok()? } else { day };
    let at = day.to_zoned(zone).ok()?.timestamp();
    Some(if is_end { at - std::time::Duration::from_micros(1) } else { at })
}

pub(super) async fn show(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    let (typed, filter) = TypedFilter::of(member);
    let before = parameter(member.visit.head.uri.query(), "before").parse().ok();
    let mut records = match typed.fault {
        None => member.store.list_audit(&filter, before, PAGE + 1).await?,
        Some(_) => Vec::new(),
    };
    let has_more = records.len() > PAGE as usize;
    records.truncate(PAGE as usize);
    let query = typed.query();
    let next = records.last().filter(|_| has_more).map(|last| {
        let separator = if query.is_empty() { "" } else { "&" };
        format!("?{query}{separator}before={}", last.id)
    });
    let status = if typed.fault.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let rows = records.into_iter().map(|record| AuditRow {
        id: record.id,
        at: member.moment(record.at),
        actor: record.actor,
        source: record.source,
        network: record.network,
        action: record.action,
        subject: record.subject,
        details: details_of(&record.details, &|at| member.moment(at)),
    });
    let rows = rows.collect();
    let is_filtered = !query.is_empty() || before.is_some();
    let query = if query.is_empty() { query } else { format!("?{query}") };
    let text = &member.area.texts.audit;
    Ok(page(status, &AuditPage { frame: Frame::of(member, "audit"), text, is_filtered, typed, rows, query, next }))
}

/// The details without the punctuation of JSON; `moment` writes an instant. What is no JSON is one value without a name.
fn details_of(json: &str, moment: &dyn Fn(Timestamp) -> Moment) -> Vec<Detail> {
    let mut details = Vec::new();
    match serde_json::from_str(json) {
        Ok(Value::Object(fields)) => add_details("", &fields, moment, &mut details),
        _ => details.push(Detail { name: String::new(), value: json.to_owned(), at: None }),
    }
    details
}

fn add_details(of: &str, fields: &Map<String, Value>, moment: &dyn Fn(Timestamp) -> Moment, details: &mut Vec<Detail>) {
    for (key, value) in fields {
        let name = format!("{of}{} ", key.replace('_', " "));
        match value {
            Value::Null => {}
            Value::Object(fields) => add_details(&name, fields, moment, details),
            Value::String(text) => {
                let at = is_instant(key).then(|| text.parse::<Timestamp>().ok()).flatten().map(moment);
                details.push(Detail { name, value: text.clone(), at });
            }
            other => details.push(Detail { name, value: other.to_string(), at: None }),
        }
    }
}

/// Whether a detail is an instant, by its name: a token may be called like one.
fn is_instant(key: &str) -> bool {
    key == "since" || key.ends_with("_at") || key.ends_with("_until")
}

/// The rows that match the filter as newline-delimited JSON, the newest first. They are read while the client reads.
pub(super) async fn export(member: &Member<'_>, _: &str) -> Result<Reply, Refusal> {
    let (typed, filter) = TypedFilter::of(member);
    if let Some(fault) = typed.fault {
        return Ok(member.area.unknown(fault));
    }
    let first = member.store.list_audit(&filter, None, BATCH).await?;
    let next = next_of(&first);
    let state = (member.store.clone(), filter, next);
    let rest = try_unfold(state, |(store, filter, next)| async move {
        let Some(before) = next else { return Ok(None) };
        let records = store.list_audit(&filter, Some(before), BATCH).await?;
        let next = next_of(&records);
        Ok::<_, PartsError>(Some((lines(&records), (store, filter, next))))
    });
    let reply = Reply::of_type(StatusCode::OK, ContentType::Ndjson, lines(&first));
    let reply = protect(reply, Referrer::SameOrigin);
    let file = format!("attachment; filename=\"audit-{}.ndjson\"", member.visit.tenant.slug);
    let file = HeaderValue::try_from(file).expect("a slug is letters, digits and hyphens");
    let reply = reply.with_header(CONTENT_DISPOSITION, file);
    Ok(if next.is_some() { reply.with_rest(rest.boxed()) } else { reply })
}

/// Where the next batch begins; `None` behind the last one.
fn next_of(records: &[AuditRecord]) -> Option<i64> {
    records.last().filter(|_| records.len() == BATCH as usize).map(|record| record.id)
}

fn lines(records: &[AuditRecord]) -> Bytes {
    records.iter().map(|record| format!("{}\n", record.to_json())).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(json: &str) -> Vec<String> {
        let moment = |at| Moment { at, exact: String::new(), shown: "(a moment)".to_owned() };
        let details = details_of(json, &moment).into_iter();
        details.map(|detail| detail.name + &detail.at.map_or(detail.value, |at| at.shown)).collect()
    }

    #[test]
    fn details_are_shown_without_the_punctuation_of_json() {
        let json = r#"{"role": "admin", "expires_at": null, "old_id": 7, "events": {"event": "evt_1"}}"#;
        assert_eq!(shown(json), ["role admin", "old id 7", "events event evt_1"]);
        assert_eq!(shown("{}"), [""; 0]);
        assert_eq!(shown("<b>"), ["<b>"]);
    }

    #[test]
    fn instants_in_details_have_the_form_of_all_others() {
        let at = "2026-07-04T22:05:59.123456Z";
        let json = json!({ "old_until": at, "expires_at": at, "name": at, "events": { "since": at, "after": 7 } });
        let named = format!("name {at}");
        let expected =
            ["old until (a moment)", "expires at (a moment)", &named, "events since (a moment)", "events after 7"];
        assert_eq!(shown(&json.to_string()), expected);
        assert_eq!(shown(r#"{"expires_at": "soon"}"#), ["expires at soon"]);
    }
}
