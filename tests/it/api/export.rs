//! `GET` and `POST /submission/export`: everything that matches, in one response, and where the feed goes on.

mod budget;
mod following;
mod long;
mod memory;
mod one_at_a_time;
mod recipe;
mod resuming;
mod selected;
mod tables;
mod writers;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::account::{Account, account};
use super::world::World;
use crate::support::answer::{Answer, decoded};
use crate::support::client::{Call, Client};
use crate::support::fixture::{Engine, on_both_databases};

const PATH: &str = "/api/v1/submission/export";

/// What an export had.
pub(super) struct Exported {
    /// The lines before the last one.
    rows: Vec<Value>,
    cursor: String,
    /// `one` or `range`.
    snapshot: String,
    cost: u64,
}

impl Exported {
    /// Reads a whole one.
    fn read(answer: &Answer) -> Self {
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
        let body = match answer.header("content-encoding") {
            Some(encoding) => decoded(encoding, &answer.body),
            None => answer.body.clone(),
        };
        let mut rows = lines(&body);
        let end = rows.pop().expect("a last line");
        let header = |name: &str| answer.header(name).unwrap_or_else(|| panic!("{name}: {answer:?}")).to_owned();
        let cursor = header("formgate-cursor");
        assert_eq!(end, json!({"cursor": cursor, "rows": rows.len()}));
        let ids: Vec<i64> = rows.iter().map(id_of).collect();
        assert!(ids.is_sorted_by(|one, next| one < next), "by id: {ids:?}");
        Self { rows, cursor, snapshot: header("formgate-snapshot"), cost: answer.number("formgate-cost").unwrap() }
    }

    /// The submissions by id.
    fn copy(&self) -> BTreeMap<String, Value> {
        let mut copy = BTreeMap::new();
        self.apply_to(&mut copy);
        copy
    }

    /// Brings a copy in step.
    fn apply_to(&self, copy: &mut BTreeMap<String, Value>) {
        for row in &self.rows {
            let id = row["id"].as_str().expect("an id").to_owned();
            if row["deleted"] == true {
                assert_eq!(*row, json!({"id": id, "deleted": true}));
                copy.remove(&id);
            } else {
                copy.insert(id, row.clone());
            }
        }
    }
}

/// The whole lines of a body.
fn lines(body: &[u8]) -> Vec<Value> {
    let whole = body.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let text = std::str::from_utf8(&body[..whole]).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

fn id_of(row: &Value) -> i64 {
    let id = row["id"].as_str().and_then(|id| id.strip_prefix("sub_"));
    id.and_then(|id| id.parse().ok()).unwrap_or_else(|| panic!("{row}"))
}

fn get(client: &Client, parameters: &str) -> Call {
    client.get(&format!("{PATH}?format=ndjson{parameters}"))
}

/// An export by GET.
pub(super) async fn export(client: &Client, parameters: &str) -> Exported {
    Exported::read(&get(client, parameters).send().await)
}

/// An export by POST.
async fn export_matching(client: &Client, parameters: &str, filter: &Value) -> Exported {
    Exported::read(&client.post(&format!("{PATH}?format=ndjson{parameters}")).json(filter).send().await)
}

fn by_id(mut submissions: Vec<Value>) -> Vec<Value> {
    submissions.sort_by_key(id_of);
    submissions
}

/// An account whose form 1 has submissions with a text each, and whose form 2 has one.
fn filled(engine: Engine, submissions: std::ops::Range<i64>, text: &str) -> (Account, String) {
    let ndjson = many(submissions, text);
    (account(engine, &ndjson), ndjson)
}

/// The lines of an import.
fn many(submissions: std::ops::Range<i64>, text: &str) -> String {
    of_size(submissions, text, 0)
}

/// The same with so many bytes more each, which no search looks at: they are the name of a file.
fn bulky(submissions: std::ops::Range<i64>, bytes: usize) -> String {
    of_size(submissions, "x", bytes)
}

fn of_size(submissions: std::ops::Range<i64>, text: &str, bytes: usize) -> String {
    let mut lines = String::new();
    for form in [1, 2] {
        let elements = [("Reason", "text"), ("Receipt", "file")]
            .iter()
            .zip(form * 10..)
            .map(|((name, kind), id)| json!({"id": id, "gid": format!("g{id}"), "name": name, "type": kind}));
        let form = json!({"type": "form", "id": form, "name": "F", "elements": elements.collect::<Vec<_>>()});
        lines += &format!("{form}\n");
    }
    let (last, name) = (submissions.end - 1, "some bytes ".repeat(bytes / 11));
    for id in submissions {
        let form = if id == last { 2 } else { 1 };
        let mut answers = vec![json!({"element_id": form * 10, "value": format!("{id} {text}")})];
        if bytes > 0 {
            let files = json!([{"name": name, "url": "https://files.example/1"}]);
            answers.push(json!({"element_id": form * 10 + 1, "value": "", "files": files}));
        }
        lines += &format!(
            "{}\n",
            json!({"type": "submission", "id": id, "form_id": form, "status": if id % 3 == 0 { "approved" } else { "pending" },
                "created_at": "2026-03-01T12:00:00Z", "updated_at": "2026-03-01T12:00:00Z", "answers": answers})
        );
    }
    lines
}

on_both_databases! {
    async fn an_export_has_what_a_search_finds_by_id(engine: Engine) {
        let mut world = World::new(71, 1000, 200);
        let account = account(engine, &world.ndjson());
        let mut clients = vec![(account.client.clone(), None)];
        for chance in [0.2, 0.5] {
            let mut forms = world.some_forms(chance);
            forms.push(1001);
            clients.push((account.client.with(&account.token_within(&forms)), Some(forms)));
        }
        let forms: Vec<i64> = world.forms().collect();
        for round in 0..120 {
            let (client, reach) = &clients[round % clients.len()];
            let filter = if round < 6 { json!({}) } else { world.filter() };
            let expected = by_id(world.search_within(&filter, reach.as_deref()));
            let found = export_matching(client, "", &filter).await;
            assert_eq!(found.rows, expected, "{filter} of {reach:?}");
            assert_eq!((found.snapshot.as_str(), found.cost), ("one", 1));
            // The same of a form and its sub-forms.
            let form = forms[world.below(forms.len())];
            let below = world.search_within(&json!({ "forms": [form] }), reach.as_deref());
            let expected: Vec<Value> = expected.into_iter().filter(|one| below.contains(one)).collect();
            let found = export_matching(client, &format!("&form={form}"), &filter).await;
            assert_eq!(found.rows, expected, "{filter} and for_{form} of {reach:?}");
        }
    }

    async fn a_term_of_no_element_and_an_unknown_form_have_no_rows(engine: Engine) {
        let (account, _) = filled(engine, 1..8, "x");
        for (parameters, filter, rows) in [
            ("", json!({"terms": {"Reason": ["1 x"]}}), 0),
            ("", json!({"terms": {"10": ["1 x"]}}), 1),
            ("&form=99", json!({}), 0),
            ("&form=for_2", json!({}), 1),
            ("&form=1", json!({"forms": [2]}), 0),
            ("", json!({"search": "x"}) , 422),
            ("", json!({"search": " x"}), 7),
            ("", json!({"search": "3 x", "statuses": ["approved"]}), 1),
        ] {
            if rows == 422 {
                let answer = account.client.post(&format!("{PATH}?format=ndjson")).json(&filter).send().await;
                assert_eq!(answer.status, 422);
                continue;
            }
            assert_eq!(export_matching(&account.client, parameters, &filter).await.rows.len(), rows, "{parameters} {filter}");
        }
        let limited = account.client.with(&account.token_within(&[2]));
        for (parameters, rows) in [("", 1), ("&form=1", 0), ("&form=2", 1)] {
            assert_eq!(export(&limited, parameters).await.rows.len(), rows, "{parameters}");
        }
    }

    async fn the_head_of_an_export_names_the_file_and_the_cost_and_has_no_length(engine: Engine) {
        let (account, _) = filled(engine, 1..8, "x");
        let head = account.client.head(&format!("{PATH}?format=ndjson&form=1")).send().await;
        let get = get(&account.client, "&form=1").send().await;
        for answer in [&head, &get] {
            assert_eq!(answer.status, 200);
            assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
            assert_eq!(answer.header("formgate-cost"), Some("1"));
            let name = answer.header("content-disposition").unwrap();
            assert!(name.starts_with("attachment; filename=\"acme-for_1-20") && name.ends_with(".ndjson\""), "{name}");
        }
        assert_eq!((head.header("content-length"), head.header("formgate-snapshot")), (None, None));
        assert_eq!(head.header("formgate-cursor"), get.header("formgate-cursor"));
        assert_eq!(head.number("x-ratelimit-remaining"), get.number("x-ratelimit-remaining").map(|left| left + 1));
        let lacking = account.run(&["token", "create", "--tenant", "acme", "--name", "f", "--scopes", "forms:read"]);
        let answer = account.client.with(lacking.stdout.trim_end()).get(&format!("{PATH}?format=ndjson")).send().await;
        assert_eq!((answer.status.as_u16(), &answer.json()["required"]), (403, &json!("submissions:read")));
    }

    async fn an_export_is_compressed_as_other_responses_are(engine: Engine) {
        let (account, _) = filled(engine, 1..3000, "some text to be found again and again");
        let plain = export(&account.client, "").await;
        for encoding in ["gzip", "br", "zstd"] {
            let answer = get(&account.client, "").header("accept-encoding", encoding).send().await;
            assert_eq!(answer.header("content-encoding"), Some(encoding));
            assert_eq!(Exported::read(&answer).rows, plain.rows);
        }
    }

    async fn every_fault_of_a_parameter_is_named(engine: Engine) {
        let (account, _) = filled(engine, 1..3, "x");
        let of_form = export(&account.client, "&form=1").await.cursor;
        let of_all = export(&account.client, "").await.cursor;
        for (query, faults) in [
            (String::new(), &["format"][..]),
            ("format=xml".into(), &["format"]),
            ("format=NDJSON&form=sub_1&excel=yes&raw=2".into(), &["format", "form", "excel", "raw"]),
            ("format=ndjson&format=ndjson".into(), &["format"]),
            ("format=ndjson&after=sub_1".into(), &["as_of"]),
            ("format=ndjson&after=sub_1&as_of=bad".into(), &["as_of"]),
            ("format=csv&form=abc".into(), &["form"]),
            ("format=csv".into(), &["form"]),
            (format!("format=ndjson&after=for_1&as_of={of_all}"), &["after"]),
            ("format=ndjson&since=now".into(), &["since"]),
            (format!("format=ndjson&since={of_form}"), &["since"]),
            (format!("format=ndjson&form=2&since={of_form}&as_of={of_form}"), &["since", "as_of"]),
            (format!("format=ndjson&form=1&since={of_all}"), &["since"]),
        ] {
            let answer = account.client.get(&format!("{PATH}?{query}")).send().await;
            assert_eq!(answer.status, 422, "{query}");
            let errors = answer.json()["errors"].clone();
            assert_eq!(errors.as_object().unwrap().keys().collect::<Vec<_>>(), faults, "{query}: {errors}");
            assert!(errors.as_object().unwrap().values().all(|texts| texts[1].is_null()), "{query}: {errors}");
        }
        let ignored = get(&account.client, "&page=2").send().await;
        assert_eq!((ignored.status.as_u16(), ignored.header("x-ignored-parameters")), (200, Some("page")));
        let body = account.client.post(&format!("{PATH}?format=ndjson")).json(&json!({"statuses": ["new"]})).send().await;
        assert_eq!(body.json()["errors"].as_object().unwrap().keys().collect::<Vec<_>>(), ["statuses.0"]);
    }
}
