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
use super::named_forms::FormNames;
use super::protection::{Referrer, protect};
use super::texts::{AuditTexts, Texts};
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

/// One of the details of a row: `role: admin`.
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
    let details: Vec<Value> =
        records.iter().map(|record| serde_json::from_str(&record.details).unwrap_or_default()).collect();
    let forms = FormNames::of(details.iter().flat_map(forms_in), member).await?;
    let words = DetailWords { texts: member.area.texts, forms: &forms, moment: &|at: Timestamp| member.moment(at) };
    let rows = records.into_iter().zip(&details).map(|(record, details)| AuditRow {
        id: record.id,
        at: member.moment(record.at),
        actor: record.actor,
        source: record.source,
        network: record.network,
        action: record.action,
        subject: words.subject(&record.subject),
        details: words.of(details, &record.details),
    });
    let rows = rows.collect();
    let is_filtered = !query.is_empty() || before.is_some();
    let query = if query.is_empty() { query } else { format!("?{query}") };
    let text = &member.area.texts.audit;
    Ok(page(status, &AuditPage { frame: Frame::of(member, "audit"), text, is_filtered, typed, rows, query, next }))
}

/// Writes details in the words of a language.
struct DetailWords<'w> {
    texts: &'static Texts,
    /// The names of the forms in the details.
    forms: &'w FormNames,
    /// Writes an instant.
    moment: &'w dyn Fn(Timestamp) -> Moment,
}

impl DetailWords<'_> {
    /// The details without the punctuation of JSON. What is no JSON is one value without a name.
    fn of(&self, json: &Value, written: &str) -> Vec<Detail> {
        let mut details = Vec::new();
        match json {
            Value::Object(fields) => self.add("", fields, &mut details),
            _ => details.push(Detail { name: String::new(), value: written.to_owned(), at: None }),
        }
        details
    }

    fn add(&self, of: &str, fields: &Map<String, Value>, details: &mut Vec<Detail>) {
        let change =
            fields.get("before").and_then(Value::as_object).zip(fields.get("after").and_then(Value::as_object));
        for (key, value) in fields {
            let name = |end: &str| format!("{of}{}{end}", self.named(key).unwrap_or_else(|| key.replace('_', " ")));
            match (value, change) {
                (Value::Null, _) => {}
                (Value::Object(before), Some((_, after))) if key == "before" => {
                    self.add_changes(before, after, details);
                }
                (Value::Object(_), Some(_)) if key == "after" => {}
                (Value::Object(fields), _) => self.add(&name(" "), fields, details),
                (Value::String(text), _) => {
                    let at = is_instant(key).then(|| text.parse::<Timestamp>().ok()).flatten().map(self.moment);
                    details.push(Detail { name: name(": "), value: self.value(key, value), at });
                }
                _ => details.push(Detail { name: name(": "), value: self.value(key, value), at: None }),
            }
        }
    }

    /// Each limit that was changed, as it was before and after.
    fn add_changes(&self, before: &Map<String, Value>, after: &Map<String, Value>, details: &mut Vec<Detail>) {
        for (key, value) in before {
            let [before, after] = [value, after.get(key).unwrap_or(&Value::Null)].map(|value| self.value(key, value));
            let name = format!("{}: ", self.named(key).unwrap_or_else(|| key.replace('_', " ")));
            let value = self.texts.audit.changed.fill(&[("before", &before), ("after", &after)]);
            details.push(Detail { name, value, at: None });
        }
    }

    fn named(&self, name: &str) -> Option<String> {
        self.texts.audit_names.get(name).map(ToString::to_string)
    }

    fn value(&self, key: &str, value: &Value) -> String {
        let text = match value {
            Value::Null => return self.texts.audit.no_limit.to_string(),
            Value::Array(items) => {
                return items.iter().map(|item| self.value(key, item)).collect::<Vec<_>>().join(", ");
            }
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        match text.strip_prefix("for_").and_then(|id| id.parse().ok()).filter(|_| key == FORMS) {
            Some(form) => self.forms.label(form),
            None => self.named(&format!("{key}.{text}")).unwrap_or(text),
        }
    }

    /// What a row is about: `token 7`.
    fn subject(&self, subject: &str) -> String {
        let of_group = subject.strip_prefix("sync ").and_then(|sync| sync.split_once(" of "));
        if let Some((number, group)) = of_group {
            return self.texts.group_sync.heading.fill(&[("number", &number), ("group", &group)]);
        }
        let known =
            subject.split_once(' ').and_then(|(kind, rest)| Some((self.named(&format!("subject.{kind}"))?, rest)));
        known.map_or_else(|| subject.to_owned(), |(kind, rest)| format!("{kind} {rest}"))
    }
}

/// The key whose values are ids of forms.
const FORMS: &str = "forms";

/// The forms in details, also in what they were before.
fn forms_in(details: &Value) -> Vec<i64> {
    let Some(fields) = details.as_object() else { return Vec::new() };
    let listed = fields.get(FORMS).and_then(Value::as_array).into_iter().flatten();
    let listed = listed.filter_map(|form| form.as_str()?.strip_prefix("for_")?.parse().ok());
    let nested = ["before", "after"].into_iter().filter_map(|key| fields.get(key)).flat_map(forms_in);
    listed.chain(nested).collect()
}

/// Whether a detail is an instant, by its name: a token may be called like one.
fn is_instant(key: &str) -> bool {
    ["since", "until"].contains(&key) || key.ends_with("_at") || key.ends_with("_until")
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
    use crate::config::Language;

    fn shown_in(language: Language, json: &str) -> Vec<String> {
        let moment = |at| Moment { at, exact: String::new(), shown: "(a moment)".to_owned() };
        let words = DetailWords { texts: Texts::of(language), forms: &FormNames::default(), moment: &moment };
        let details = words.of(&serde_json::from_str(json).unwrap_or_default(), json).into_iter();
        details.map(|detail| detail.name + &detail.at.map_or(detail.value, |at| at.shown)).collect()
    }

    fn shown(json: &str) -> Vec<String> {
        shown_in(Language::English, json)
    }

    #[test]
    fn details_are_shown_without_the_punctuation_of_json() {
        let json =
            r#"{"role": "admin", "expires_at": null, "old_id": 7, "events": {"event": "evt_1"}, "odd": ["a", 1]}"#;
        assert_eq!(shown(json), ["role: admin", "old id: 7", "events event: evt_1", "odd: a, 1"]);
        assert_eq!(shown("{}"), [""; 0]);
        for whole in ["<b>", "[1]", "null"] {
            assert_eq!(shown(whole), [whole]);
        }
        // A row of a later version.
        assert_eq!(
            shown(r#"{"before": 1, "after": {"events": "failed"}}"#),
            ["before: 1", "after position events: those that failed"]
        );
    }

    #[test]
    fn a_change_of_limits_shows_what_was_before_and_after_in_the_language_of_the_page() {
        let json = r#"{"name": "CRM", "before": {"scopes": ["scim"], "forms": ["for_1", "for_2"], "networks": ["10.0.0.0/8"]},
            "after": {"scopes": ["*"], "forms": ["for_1"], "networks": null}}"#;
        let english = [
            "name: CRM",
            "may do: scim → everything",
            "forms: for_1, for_2 → for_1",
            "networks: 10.0.0.0/8 → no limit",
        ];
        let german =
            ["Name: CRM", "darf: scim → alles", "Formulare: for_1, for_2 → for_1", "Netze: 10.0.0.0/8 → keine Grenze"];
        assert_eq!(shown(json), english);
        assert_eq!(shown_in(Language::German, json), german);
        assert_eq!(forms_in(&serde_json::from_str(json).unwrap()), [1, 2, 1]);
        assert_eq!(
            shown_in(Language::German, r#"{"later_key": 7, "name": "scopes"}"#),
            ["later key: 7", "Name: scopes"]
        );
    }

    #[test]
    fn instants_in_details_have_the_form_of_all_others() {
        let at = "2026-07-04T22:05:59.123456Z";
        let json = json!({ "old_until": at, "expires_at": at, "name": at, "events": { "since": at, "after": 7 } });
        let named = format!("name: {at}");
        let expected = [
            "old value accepted until: (a moment)",
            "expires: (a moment)",
            &named,
            "events since: (a moment)",
            "events after position: 7",
        ];
        assert_eq!(shown(&json.to_string()), expected);
        assert_eq!(shown(r#"{"expires_at": "soon"}"#), ["expires: soon"]);
    }
}
