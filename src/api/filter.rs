//! The filters of `POST /submission`: parses a body into a [`SubmissionFilter`].
//!
//! Owns the names of the filters, their limits, and their faults. Knows no SQL: the store turns a filter into a query.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::de::{MapAccess, SeqAccess};
use serde_json::value::RawValue;

use super::body::{self, Body, BodyEntry};
use super::id::{IdKind, parse_number};
use super::reader::{ReadKey, ReadList, Scalar, Skip, ValueReader};
use super::time::{Bound, parse_bound};
use super::values::{self, FieldPath};
use crate::error::{Faults, Refusal};
use crate::store::filter::{Keyword, SortBy, SortDirection, Status, SubmissionFilter, Term};
use crate::store::fold;

/// All filters; other keys are ignored.
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

/// The maximum length of a keyword in characters.
///
/// Larger: a search compares each answer with a longer text. Smaller: searching for a whole sentence is refused.
const MAX_KEYWORD: usize = 1_000;

/// The maximum number of elements in `terms`.
///
/// Larger: a search does more index scans, one per element. Smaller: long forms can't be searched by all of their
/// fields.
const MAX_TERMS: usize = 50;

/// The maximum number of answers in `terms`, over all elements.
///
/// Larger: a search does more index scans. Smaller: clients that look up hundreds of reference numbers need two
/// searches.
const MAX_ANSWERS: usize = 1_000;

/// Parses all filters in body order. Faulty ones are reported and left out.
///
/// # Errors
/// See [`BodyEntry::read`].
pub(super) fn parse(body: &Body<'_>, zone: &TimeZone, faults: &mut Faults) -> Result<SubmissionFilter, Refusal> {
    let mut filter = SubmissionFilter::default();
    for entry in body.entries() {
        match entry.name {
            "forms" => filter.forms = values::list(entry, faults, form)?,
            "statuses" => filter.statuses = values::list(entry, faults, status)?,
            "search" => filter.search = values::scalar(entry, faults, keyword)?,
            "submitters" => filter.submitters = values::list(entry, faults, values::number)?,
            "pending" => filter.pending = values::list(entry, faults, values::number)?,
            "participants" => filter.participants = values::list(entry, faults, values::number)?,
            "terms" => filter.terms = terms(entry, faults)?,
            "start" => filter.start = date(entry, Bound::Start, zone, faults)?,
            "end" => filter.end = date(entry, Bound::End, zone, faults)?,
            "labels" => filter.labels = values::list(entry, faults, values::number)?,
            "sharedLabels" => filter.shared_labels = values::list(entry, faults, values::number)?,
            "flows" => filter.flows = values::list(entry, faults, values::number)?,
            "sortBy" => {
                let choices = [("created_at", SortBy::CreatedAt), ("updated_at", SortBy::UpdatedAt)];
                filter.sort_by = choice(entry, choices, faults)?.unwrap_or_default();
            }
            "sortDirection" => {
                let choices = [("asc", SortDirection::Ascending), ("desc", SortDirection::Descending)];
                filter.sort_direction = choice(entry, choices, faults)?.unwrap_or_default();
            }
            _ => {}
        }
    }
    if let (Some(start), Some(end)) = (filter.start, filter.end)
        && end < start
    {
        faults.add("end", "The end must not be before the start.");
    }
    Ok(filter)
}

fn form(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<i64> {
    values::id(value, path, IdKind::Form, faults)
}

fn status(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<Status> {
    let status = if let Scalar::String(text) = value { Status::parse(text) } else { None };
    if status.is_none() {
        faults.add(path, format_args!("The {path} must be one of {}.", Status::ALL.map(Status::as_str).join(", ")));
    }
    status
}

fn keyword(value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults) -> Option<Keyword> {
    let text = values::text(value, path, faults)?;
    if text.chars().nth(MAX_KEYWORD).is_some() {
        faults.add(path, format_args!("The {path} must be at most {MAX_KEYWORD} characters."));
        return None;
    }
    let keyword = Keyword::new(text);
    if keyword.is_none() {
        faults.add(path, format_args!("The {path} must be at least 2 characters."));
    }
    keyword
}

/// Parses an object of element ids and lists of answers. A key that is not a number matches nothing; an empty list
/// counts as absent.
fn terms(entry: &BodyEntry<'_>, faults: &mut Faults) -> Result<Vec<Term>, Refusal> {
    let mark = faults.mark();
    let too_many = |faults: &mut Faults, what: &str| {
        faults.truncate_to(mark);
        faults.add("terms", format_args!("The terms must have at most {what}."));
        Ok(Vec::new())
    };
    let entries = match entry.read(ReadTerms)? {
        TermEntries::Object(entries) => entries,
        TermEntries::TooMany => return too_many(faults, &format!("{MAX_TERMS} elements")),
        TermEntries::Invalid => {
            faults.add("terms", "The terms must be an object of element ids and lists of answers.");
            return Ok(Vec::new());
        }
    };
    let (mut terms, mut answers_left) = (Vec::new(), MAX_ANSWERS);
    for (key, json) in entries {
        let (path, most) = (FieldPath::Key(&FieldPath::Top("terms"), &key), answers_left);
        let read = |value: &Scalar<'_>, path: FieldPath<'_>, faults: &mut Faults| {
            answers_left -= 1;
            values::text(value, path, faults).map(fold)
        };
        let Some(answers) = BodyEntry { json, ..*entry }.read(ReadList { path, most, faults: &mut *faults, read })?
        else {
            return too_many(faults, &format!("{MAX_ANSWERS} answers in all"));
        };
        if !answers.is_empty() {
            terms.push(Term { element: parse_number(&key), answers });
        }
    }
    Ok(terms)
}

/// Reads the entries of `terms` as JSON texts.
struct ReadTerms;

enum TermEntries<'b> {
    Object(Vec<(String, &'b RawValue)>),
    TooMany,
    Invalid,
}

impl<'b> ValueReader<'b> for ReadTerms {
    type Value = TermEntries<'b>;

    /// If a key is repeated, the last value counts; `null` counts as absent.
    fn object<A: MapAccess<'b>>(self, mut object: A) -> Result<TermEntries<'b>, A::Error> {
        let mut entries: Vec<(String, &RawValue)> = Vec::new();
        while let Some(known) = object.next_key_seed(ReadKey(|key: &str| {
            entries.retain(|(known, _)| known != key);
            (entries.len() < MAX_TERMS).then(|| key.to_owned())
        }))? {
            let text: &RawValue = object.next_value()?;
            match known {
                _ if body::is_null(text) => {}
                Some(key) => entries.push((key, text)),
                None => {
                    while object.next_key_seed(Skip)?.is_some() {
                        object.next_value_seed(Skip)?;
                    }
                    return Ok(TermEntries::TooMany);
                }
            }
        }
        Ok(TermEntries::Object(entries))
    }

    /// Some languages serialize an empty object as an empty array.
    fn array<A: SeqAccess<'b>>(self, mut items: A) -> Result<TermEntries<'b>, A::Error> {
        let mut entries = TermEntries::Object(Vec::new());
        while items.next_element_seed(Skip)?.is_some() {
            entries = TermEntries::Invalid;
        }
        Ok(entries)
    }

    fn scalar(self, _: Scalar<'_>) -> TermEntries<'b> {
        TermEntries::Invalid
    }
}

fn date(
    entry: &BodyEntry<'_>,
    bound: Bound,
    zone: &TimeZone,
    faults: &mut Faults,
) -> Result<Option<Timestamp>, Refusal> {
    values::scalar(entry, faults, |value, path, faults| {
        let date = parse_bound(values::text(value, path, faults)?, bound, zone);
        if date.is_none() {
            faults.add(path, format_args!("The {path} must be a date (YYYY-MM-DD) or an RFC 3339 date-time."));
        }
        date
    })
}

fn choice<T>(entry: &BodyEntry<'_>, choices: [(&str, T); 2], faults: &mut Faults) -> Result<Option<T>, Refusal> {
    values::scalar(entry, faults, |value, path, faults| {
        let names = choices.each_ref().map(|(name, _)| *name);
        let chosen = choices.into_iter().find(|(name, _)| *value == Scalar::String(name));
        if chosen.is_none() {
            faults.add(path, format_args!("The {path} must be {} or {}.", names[0], names[1]));
        }
        chosen.map(|(_, chosen)| chosen)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn faults_of(body: &Value) -> Vec<String> {
        let mut faults = Faults::default();
        parse(&Body::parse(body.to_string().as_bytes(), &PARAMETERS).unwrap(), &TimeZone::UTC, &mut faults).unwrap();
        let Err(refusal) = faults.into_result(()) else { return Vec::new() };
        let answer: Value = serde_json::from_slice(&refusal.reply().body).unwrap();
        answer["errors"].as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn every_fault_is_reported_in_body_order() {
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
    fn nulls_and_empty_lists_count_as_absent() {
        let nulls: serde_json::Map<String, Value> =
            PARAMETERS.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
        let empty = json!({"forms": [], "statuses": [], "terms": {"1": [], "name": null}, "labels": []});
        for body in [Value::Object(nulls), empty, json!({"terms": []})] {
            let mut faults = Faults::default();
            let text = body.to_string();
            let filter = parse(&Body::parse(text.as_bytes(), &PARAMETERS).unwrap(), &TimeZone::UTC, &mut faults);
            assert_eq!((filter.unwrap(), faults), (SubmissionFilter::default(), Faults::default()), "{body}");
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
    fn a_list_that_is_too_long_is_a_single_fault() {
        let values = |count: usize| vec!["7"; count];
        let of_one_term = |count| json!({"terms": {"1": values(count)}});
        let terms = |count: usize| {
            let terms: serde_json::Map<_, _> = (0..count).map(|at| (at.to_string(), json!(["7"]))).collect();
            json!({ "terms": terms })
        };
        for (body, fault) in [
            (json!({"forms": values(1_000), "flows": values(1_000)}), None),
            (json!({"forms": values(1_001)}), Some("forms")),
            (json!({"labels": vec![true; 1_001]}), Some("labels")),
            (json!({"statuses": vec![json!([[]]); 100_000]}), Some("statuses")),
            (of_one_term(1_000), None),
            (of_one_term(1_001), Some("terms")),
            (json!({"terms": {"1": values(500), "2": values(501)}}), Some("terms")),
            (json!({"terms": {"1": vec![7; 500], "2": values(501)}}), Some("terms")),
            (terms(50), None),
            (terms(51), Some("terms")),
            (terms(60_000), Some("terms")),
            (json!({"search": "ü".repeat(1_000)}), None),
            (json!({"search": "ü".repeat(1_001)}), Some("search")),
        ] {
            assert_eq!(faults_of(&body), fault.into_iter().collect::<Vec<_>>(), "{fault:?}");
        }
    }

    #[test]
    fn only_the_last_value_of_a_key_counts_against_a_bound() {
        for (body, sound) in [
            (format!(r#"{{"terms": {{"1": [{0}"a"], "\u0031": ["b"], "1": [{0}"c"]}}}}"#, r#""x","#.repeat(999)), true),
            (
                format!(
                    r#"{{"terms": {{{} "1": ["a"]}}}}"#,
                    (0..100).map(|at| format!(r#""{at}": null,"#)).collect::<String>()
                ),
                true,
            ),
            (format!(r#"{{"terms": {{{} "1": ["a"]}}}}"#, r#""1": [7],"#.repeat(100)), true),
            (r#"{"forms": ["x"], "forms": [1]}"#.to_owned(), true),
            (r#"{"forms": [1], "forms": ["x"]}"#.to_owned(), false),
        ] {
            let mut faults = Faults::default();
            parse(&Body::parse(body.as_bytes(), &PARAMETERS).unwrap(), &TimeZone::UTC, &mut faults).unwrap();
            assert_eq!(faults.into_result(()).is_ok(), sound, "{body}");
        }
    }

    #[test]
    fn a_long_key_is_cut_where_a_fault_repeats_it() {
        let key = "k".repeat(500_000);
        let cut = format!("terms.{}…", "k".repeat(63));
        assert_eq!(faults_of(&json!({"terms": {&key: [1, 2]}})), [format!("{cut}.0"), format!("{cut}.1")]);
    }

    #[test]
    fn json_that_no_machine_holds_is_a_fault_of_the_body() {
        let deep = format!(r#"{{"forms": {}{}}}"#, "[".repeat(200), "]".repeat(200));
        for body in [r#"{"forms": [1e999]}"#, r#"{"search": "\ud800"}"#, r#"{"terms": {"\ud800": []}}"#, &deep] {
            let body = Body::parse(body.as_bytes(), &PARAMETERS).unwrap();
            assert!(parse(&body, &TimeZone::UTC, &mut Faults::default()).is_err(), "{body:?}");
        }
    }
}
