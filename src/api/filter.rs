//! The filters of `POST /submission`, from what was sent to a [`SubmissionFilter`].

use jiff::tz::TimeZone;
use serde_json_borrow::Value;

use super::ask::{self, Path};
use super::body::{self, Body};
use super::id::{Kind, parse_number};
use super::time::{Bound, parse_bound};
use crate::error::Faults;
use crate::store::filter::{Keyword, SortBy, SortDirection, Status, SubmissionFilter, Term, fold};

/// Every filter that there is; all else that is sent is ignored.
pub(super) const PARAMETERS: [&str; 14] = [
    "forms",
    "statuses",
    "search",
    "submitters",
    "pending",
    "participants",
    "terms",
    "start",
    "end",
    "labels",
    "sharedLabels",
    "flows",
    "sortBy",
    "sortDirection",
];

/// Reads all filters, in the order of the body; what is faulty is noted and left out.
pub(super) fn parse(body: &Body<'_>, zone: &TimeZone, faults: &mut Faults) -> SubmissionFilter {
    let mut filter = SubmissionFilter::default();
    for (name, value) in body.sent() {
        match name {
            "forms" => filter.forms = ask::list(value, name.into(), faults, form),
            "statuses" => filter.statuses = ask::list(value, name.into(), faults, status),
            "search" => filter.search = keyword(value, faults),
            "submitters" => filter.submitters = ask::list(value, name.into(), faults, ask::number),
            "pending" => filter.pending = ask::list(value, name.into(), faults, ask::number),
            "participants" => filter.participants = ask::list(value, name.into(), faults, ask::number),
            "terms" => filter.terms = terms(value, faults),
            "start" => filter.start = date(value, name.into(), Bound::Start, zone, faults),
            "end" => filter.end = date(value, name.into(), Bound::End, zone, faults),
            "labels" => filter.labels = ask::list(value, name.into(), faults, ask::number),
            "sharedLabels" => filter.shared_labels = ask::list(value, name.into(), faults, ask::number),
            "flows" => filter.flows = ask::list(value, name.into(), faults, ask::number),
            "sortBy" => {
                let choices = [("created_at", SortBy::CreatedAt), ("updated_at", SortBy::UpdatedAt)];
                filter.sort_by = choice(value, name.into(), choices, faults).unwrap_or_default();
            }
            "sortDirection" => {
                let choices = [("asc", SortDirection::Ascending), ("desc", SortDirection::Descending)];
                filter.sort_direction = choice(value, name.into(), choices, faults).unwrap_or_default();
            }
            _ => {}
        }
    }
    if let (Some(start), Some(end)) = (filter.start, filter.end)
        && end < start
    {
        faults.add("end", "The end must not be before the start.");
    }
    filter
}

fn form(value: &Value<'_>, path: Path<'_>, faults: &mut Faults) -> Option<i64> {
    ask::id(value, path, Kind::Form, faults)
}

fn status(value: &Value<'_>, path: Path<'_>, faults: &mut Faults) -> Option<Status> {
    let status = value.as_str().and_then(Status::parse);
    if status.is_none() {
        faults.add(path, format_args!("The {path} must be one of {}.", Status::ALL.map(Status::as_str).join(", ")));
    }
    status
}

fn keyword(value: &Value<'_>, faults: &mut Faults) -> Option<Keyword> {
    let keyword = Keyword::new(ask::text(value, Path::Top("search"), faults)?);
    if keyword.is_none() {
        faults.add("search", "The search must be at least 2 characters.");
    }
    keyword
}

/// An object of element ids and lists of answers. A key that is no number matches nothing; an empty list is as if its
/// key were not sent.
fn terms(value: &Value<'_>, faults: &mut Faults) -> Vec<Term> {
    let Some(object) = value.as_object() else {
        if value.as_array().is_none_or(|items| !items.is_empty()) {
            faults.add("terms", "The terms must be an object of element ids and lists of answers.");
        }
        return Vec::new();
    };
    let mut terms = Vec::new();
    for (key, value) in body::sent(object) {
        let answer = |value: &Value<'_>, path: Path<'_>, faults: &mut Faults| ask::text(value, path, faults).map(fold);
        let answers = ask::list(value, Path::Key(&Path::Top("terms"), key), faults, answer);
        if !answers.is_empty() {
            terms.push(Term { element: parse_number(key), answers });
        }
    }
    terms
}

fn date(
    value: &Value<'_>,
    path: Path<'_>,
    bound: Bound,
    zone: &TimeZone,
    faults: &mut Faults,
) -> Option<jiff::Timestamp> {
    let date = parse_bound(ask::text(value, path, faults)?, bound, zone);
    if date.is_none() {
        faults.add(path, format_args!("The {path} must be a date (YYYY-MM-DD) or an RFC 3339 date-time."));
    }
    date
}

fn choice<T>(value: &Value<'_>, path: Path<'_>, choices: [(&str, T); 2], faults: &mut Faults) -> Option<T> {
    let names = choices.each_ref().map(|(name, _)| *name);
    let chosen = choices.into_iter().find(|(name, _)| value.as_str() == Some(name));
    if chosen.is_none() {
        faults.add(path, format_args!("The {path} must be {} or {}.", names[0], names[1]));
    }
    chosen.map(|(_, chosen)| chosen)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn faults_of(body: &Value) -> Vec<String> {
        let mut faults = Faults::default();
        parse(&Body::parse(body.to_string().as_bytes()).unwrap(), &TimeZone::UTC, &mut faults);
        let Err(refusal) = faults.or_else(()) else { return Vec::new() };
        let answer: Value = serde_json::from_slice(&refusal.reply().body).unwrap();
        answer["errors"].as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn every_fault_is_told_at_once_in_the_order_of_the_body() {
        let body = json!({
            "sortBy": "name",
            "forms": ["for_1", "sub_1", 0, 1.5, -2, 9_223_372_036_854_775_808_u64, true],
            "statuses": ["pending", "Pending"],
            "search": "x",
            "terms": {"12": ["ok", 5], "name": "x"},
            "start": "2024-13-01",
            "submitters": {"a": 1},
            "flows": ["7", "seven"],
            "unknown": [],
        });
        let expected = [
            "sortBy",
            "forms.1",
            "forms.2",
            "forms.3",
            "forms.4",
            "forms.5",
            "forms.6",
            "statuses.1",
            "search",
            "terms.12.1",
            "terms.name",
            "start",
            "submitters",
            "flows.1",
        ];
        assert_eq!(faults_of(&body), expected);
    }

    #[test]
    fn nulls_and_empty_lists_are_as_if_they_were_not_sent() {
        let nulls: serde_json::Map<String, Value> =
            PARAMETERS.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
        let empty = json!({"forms": [], "statuses": [], "terms": {"1": [], "name": null}, "labels": []});
        for body in [Value::Object(nulls), empty, json!({"terms": []})] {
            let mut faults = Faults::default();
            let filter = parse(&Body::parse(body.to_string().as_bytes()).unwrap(), &TimeZone::UTC, &mut faults);
            assert_eq!((filter, faults), (SubmissionFilter::default(), Faults::default()), "{body}");
        }
    }

    #[test]
    fn an_end_before_the_start_is_a_fault_of_the_end() {
        assert_eq!(faults_of(&json!({"end": "2024-01-01", "start": "2024-01-02"})), ["end"]);
        assert!(faults_of(&json!({"end": "2024-01-01", "start": "2024-01-01"})).is_empty());
    }

    #[test]
    fn nul_is_refused_where_text_goes_to_the_database() {
        assert_eq!(faults_of(&json!({"search": "ab\0", "terms": {"1": ["\0"]}})), ["search", "terms.1.0"]);
    }

    #[test]
    fn what_is_no_object_is_a_fault_of_the_body() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for body in
            [b"[]".as_slice(), b"null", b"1", b"{", b"{\"a\":1}x", b"\xff", b"{\"a\":\"\xff\"}", deep.as_bytes()]
        {
            assert!(Body::parse(body).is_err());
        }
        for body in [b"".as_slice(), b" \n", b"{}"] {
            assert_eq!(Body::parse(body).unwrap().keys().count(), 0);
        }
    }
}
