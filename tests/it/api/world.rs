//! An account's data at random, and the API's rules about it in the plainest words.
//!
//! A [`World`] is written as NDJSON for the import, and searched in memory by walking over everything: what the gateway
//! answers must be the same, whatever indexes, triggers and SQL it uses. The words are chosen to hurt: case folding
//! beyond ASCII, LIKE's wildcards, quotes, text that is part of other text, ties in both sort keys, and instants around
//! the two clock changes of the account's zone.

use std::collections::HashMap;
use std::fmt::Write;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use rand::rngs::StdRng;
use rand::seq::{IndexedMutRandom, IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};

use crate::support::client::Client;

/// The zone of the account: its clocks change on 2024-03-31 and 2024-10-27.
pub(crate) const ZONE: &str = "Europe/Berlin";

pub(crate) const STATUSES: [&str; 6] = ["pending", "approved", "denied", "back", "info", "escalate"];

const WORDS: [&str; 30] = [
    "Holiday",
    "holiday",
    "HÖHLE",
    "höhle",
    "Straße",
    "STRASSE",
    "İstanbul",
    "istanbul",
    "ΟΔΟΣ",
    "οδος",
    "Σ",
    "100%",
    "100",
    "a_b",
    "aXb",
    "C:\\temp",
    "say \"hi\"",
    "it's",
    "東京都",
    "京",
    "é",
    "e\u{301}",
    "ﬁne",
    "Ǆ",
    "x",
    "ab",
    "AB",
    "NULL",
    "'; DROP TABLE answers; --",
    "\u{1f}",
];

/// Instants that stand close to the clock changes, few enough that many submissions share one.
fn instants() -> Vec<Timestamp> {
    let around = [
        "2024-03-30T22:59:59.999999Z",
        "2024-03-30T23:00:00Z",
        "2024-03-31T21:59:59.999999Z",
        "2024-03-31T22:00:00Z",
        "2024-10-26T21:59:59Z",
        "2024-10-26T22:00:00Z",
        "2024-10-27T22:59:59.999999Z",
        "2024-10-27T23:00:00Z",
        "2024-06-15T12:00:00.5Z",
        "2024-06-15T12:00:00Z",
    ];
    around.iter().map(|text| text.parse().expect("an instant")).collect()
}

/// Every date around those instants.
const DATES: [&str; 8] =
    ["2024-03-30", "2024-03-31", "2024-04-01", "2024-06-15", "2024-10-26", "2024-10-27", "2024-10-28", "2025-01-01"];

struct Form {
    id: i64,
    parent: Option<i64>,
    graduated: bool,
    disabled: bool,
    anonymous: bool,
    elements: Vec<(i64, &'static str)>,
}

#[derive(Clone)]
struct Answer {
    value: String,
    files: Value,
    updated_at: Timestamp,
}

struct Submission {
    id: i64,
    form: i64,
    parent: Option<i64>,
    status: &'static str,
    draft: bool,
    submitter: Option<i64>,
    created_at: Timestamp,
    updated_at: Timestamp,
    labels: Vec<i64>,
    shared_labels: Vec<i64>,
    pending: Vec<i64>,
    participants: Vec<i64>,
    flows: Vec<i64>,
    answers: HashMap<i64, Answer>,
}

/// Everything of one account.
pub(crate) struct World {
    /// Added to every id, so that two worlds share none.
    base: i64,
    forms: Vec<Form>,
    submissions: Vec<Submission>,
    random: StdRng,
}

const KINDS: [&str; 8] = ["text", "textarea", "checkbox", "time", "file", "select", "number", "something-new"];

impl World {
    /// A world of some size; the same seed makes the same one.
    pub(crate) fn new(seed: u64, base: i64, submissions: i64) -> Self {
        let mut world = Self { base, forms: Vec::new(), submissions: Vec::new(), random: StdRng::seed_from_u64(seed) };
        // 2 and 3 are sub-forms of 1, at depth; 5 and 6 of the graduated 4; 7 is disabled, 8 stands alone.
        let parents = [None, Some(1), Some(2), None, Some(4), Some(5), None, None];
        for (id, parent) in (1..).zip(parents) {
            let elements =
                (1..=4).map(|at| (base + id * 10 + at, KINDS[(id * 3 + at) as usize % KINDS.len()])).collect();
            let form = Form {
                id: base + id,
                parent: parent.map(|parent| base + parent),
                graduated: id == 4,
                disabled: id == 7,
                anonymous: id == 8,
                elements,
            };
            world.forms.push(form);
        }
        for id in 1..=submissions {
            let submission = world.submission(base + id);
            world.submissions.push(submission);
        }
        world
    }

    fn some_of(&mut self, range: std::ops::RangeInclusive<i64>) -> Vec<i64> {
        let base = self.base;
        range.filter(|_| self.random.random_bool(0.3)).map(|id| base + id).collect()
    }

    fn instant(&mut self) -> Timestamp {
        *instants().choose(&mut self.random).expect("there are some")
    }

    fn words(&mut self, most: usize) -> String {
        let words =
            (0..self.random.random_range(0..=most)).map(|_| *WORDS.choose(&mut self.random).expect("there are some"));
        words.collect::<Vec<_>>().join(" ")
    }

    fn submission(&mut self, id: i64) -> Submission {
        let form = self.random.random_range(0..self.forms.len());
        let (form, elements) = (self.forms[form].id, self.forms[form].elements.clone());
        // A parent has no parent itself; whether its child is a child submission depends on the parent's form.
        let parents: Vec<i64> =
            self.submissions.iter().filter(|other| other.parent.is_none()).map(|other| other.id).collect();
        let parent = if self.random.random_bool(0.35) { parents.choose(&mut self.random).copied() } else { None };
        let updated_at = self.instant();
        let mut answers = HashMap::new();
        for (element, kind) in elements {
            if self.random.random_bool(0.75) {
                answers.insert(element, self.answer(kind));
            }
        }
        Submission {
            id,
            form,
            parent,
            status: STATUSES.choose(&mut self.random).expect("there are some"),
            draft: self.random.random_bool(0.12),
            submitter: self.random.random_bool(0.8).then(|| self.base + self.random.random_range(1..=5)),
            created_at: self.instant(),
            updated_at,
            labels: self.some_of(1..=3),
            shared_labels: self.some_of(2..=5),
            pending: self.some_of(1..=5),
            participants: self.some_of(1..=5),
            flows: self.some_of(1..=3),
            answers,
        }
    }

    fn answer(&mut self, kind: &str) -> Answer {
        let updated_at = self.instant();
        let plain = |value: String| Answer { value, files: json!([]), updated_at };
        match kind {
            "time" => plain(["09:30", "23:59", "24:00", "noon"].choose(&mut self.random).expect("some").to_string()),
            "checkbox" | "select" => {
                let lines: Vec<String> = (0..self.random.random_range(1..=3)).map(|_| self.words(2)).collect();
                plain(lines.join("\n"))
            }
            "file" => {
                let files: Vec<Value> = (0..self.random.random_range(0..=2))
                    .map(|at| json!({"name": format!("{at}.pdf"), "url": format!("https://files.test/{}/{at}.pdf", self.base), "size": 1234, "mime_type": "application/pdf"}))
                    .collect();
                let urls: Vec<&str> = files.iter().map(|file| file["url"].as_str().expect("a URL")).collect();
                Answer { value: urls.join(","), files: files.into(), updated_at }
            }
            _ => plain(self.words(4)),
        }
    }

    /// The world as the import reads it.
    pub(crate) fn ndjson(&self) -> String {
        let base = self.base;
        let mut lines = String::new();
        let mut line = |value: Value| writeln!(lines, "{value}").expect("writing to memory does not fail");
        for id in 1..=5 {
            line(
                json!({"type": "user", "id": base + id, "email": format!("u{}@example.com", base + id), "name": format!("User {id} of {base}")}),
            );
            line(json!({"type": "label", "id": base + id, "name": format!("Label {id} of {base}"), "shared": id > 3}));
        }
        for form in &self.forms {
            let elements: Vec<Value> = form
                .elements
                .iter()
                .map(|(id, kind)| json!({"id": id, "gid": gid(*id), "name": field_name(*id), "type": kind}))
                .collect();
            line(
                json!({"type": "form", "id": form.id, "name": form_name(form.id), "anonymous": form.anonymous, "disabled": form.disabled,
                "parent_id": form.parent, "graduated": form.graduated, "elements": elements}),
            );
        }
        for id in 1..=3 {
            line(
                json!({"type": "flow_step", "id": base + id, "form_id": base + 1, "name": format!("Step {id} of {base}"), "groups": []}),
            );
        }
        for submission in &self.submissions {
            let answers: Vec<Value> = submission
                .answers
                .iter()
                .map(|(element, answer)| json!({"element_id": element, "value": answer.value, "updated_at": answer.updated_at.to_string(), "files": answer.files}))
                .collect();
            line(
                json!({"type": "submission", "id": submission.id, "form_id": submission.form, "parent_id": submission.parent, "status": submission.status,
                "draft": submission.draft, "submitter_id": submission.submitter, "created_at": submission.created_at.to_string(), "updated_at": submission.updated_at.to_string(),
                "labels": submission.labels, "shared_labels": submission.shared_labels, "pending_on": submission.pending, "participants": submission.participants,
                "flow_steps": submission.flows, "answers": answers}),
            );
        }
        lines
    }

    /// Changes something at random, and tells the SQL that changes it in a database too.
    pub(crate) fn change(&mut self) -> String {
        let at = self.random.random_range(0..self.submissions.len());
        let (id, has_children) = {
            let id = self.submissions[at].id;
            (id, self.submissions.iter().any(|other| other.parent == Some(id)))
        };
        match self.random.random_range(0..9) {
            0 => {
                let status = STATUSES.choose(&mut self.random).expect("there are some");
                self.submissions[at].status = status;
                format!("UPDATE submissions SET status = '{status}' WHERE id = {id}")
            }
            1 => {
                self.submissions[at].draft ^= true;
                format!("UPDATE submissions SET draft = NOT draft WHERE id = {id}")
            }
            2 => {
                let form = self.forms.choose(&mut self.random).expect("there are some").id;
                self.submissions[at].form = form;
                format!("UPDATE submissions SET form_id = {form} WHERE id = {id}")
            }
            3 => {
                self.submissions[at].updated_at = self.submissions[at].created_at;
                format!("UPDATE submissions SET updated_at = created_at WHERE id = {id}")
            }
            4 => {
                let form = self.forms.choose_mut(&mut self.random).expect("there are some");
                form.graduated ^= true;
                format!("UPDATE forms SET graduated = NOT graduated WHERE id = {}", form.id)
            }
            5 if !has_children => {
                self.submissions.remove(at);
                format!("DELETE FROM submissions WHERE id = {id}")
            }
            6 => {
                let new = self.submissions.iter().map(|other| other.id).max().expect("there are some") + 1;
                let Submission { form, created_at, updated_at, parent, .. } = self.submissions[at];
                let status = STATUSES[0];
                self.submissions.push(Submission {
                    id: new,
                    form,
                    parent,
                    status,
                    draft: false,
                    submitter: None,
                    created_at,
                    updated_at,
                    labels: Vec::new(),
                    shared_labels: Vec::new(),
                    pending: Vec::new(),
                    participants: Vec::new(),
                    flows: Vec::new(),
                    answers: HashMap::new(),
                });
                format!(
                    "INSERT INTO submissions (id, form_id, parent_id, status, created_at, updated_at) \
                     SELECT {new}, form_id, parent_id, '{status}', created_at, updated_at FROM submissions WHERE id = {id}"
                )
            }
            7 => {
                let label = self.base + self.random.random_range(1..=5);
                let shared = self.random.random_bool(0.5);
                let submission = &mut self.submissions[at];
                let labels = if shared { &mut submission.shared_labels } else { &mut submission.labels };
                if let Some(at) = labels.iter().position(|other| *other == label) {
                    labels.remove(at);
                    let row = format!("submission_id = {id} AND label_id = {label} AND shared = {shared}");
                    format!("DELETE FROM submission_labels WHERE {row}")
                } else {
                    labels.push(label);
                    format!(
                        "INSERT INTO submission_labels (submission_id, label_id, shared) VALUES ({id}, {label}, {shared})"
                    )
                }
            }
            _ => {
                let mut answers: Vec<i64> = self.submissions[at].answers.keys().copied().collect();
                answers.sort_unstable();
                let Some(&element) = answers.first() else { return "SELECT 1".to_owned() };
                self.submissions[at].answers.remove(&element);
                format!("DELETE FROM answers WHERE submission_id = {id} AND element_id = {element}")
            }
        }
    }

    /// A filter body at random: most filters are left out, most that are there match something.
    pub(crate) fn filter(&mut self) -> Value {
        let mut body = Map::new();
        let mut ids = |world: &mut Self, name: &str, range: std::ops::RangeInclusive<i64>| {
            if world.random.random_bool(0.15) {
                let ids = world
                    .some_of(range)
                    .into_iter()
                    .map(|id| if id % 2 == 0 { json!(id) } else { json!(id.to_string()) });
                body.insert(name.to_owned(), ids.collect());
            }
        };
        ids(self, "submitters", 1..=6);
        ids(self, "pending", 1..=6);
        ids(self, "participants", 1..=6);
        ids(self, "labels", 1..=5);
        ids(self, "sharedLabels", 1..=5);
        ids(self, "flows", 1..=3);
        if self.random.random_bool(0.3) {
            let forms = self
                .some_of(1..=9)
                .into_iter()
                .map(|id| if id % 2 == 0 { json!(id) } else { json!(format!("for_{id}")) });
            body.insert("forms".into(), forms.collect());
        }
        if self.random.random_bool(0.2) {
            let statuses: Vec<&str> = STATUSES.into_iter().filter(|_| self.random.random_bool(0.4)).collect();
            body.insert("statuses".into(), statuses.into());
        }
        if self.random.random_bool(0.3) {
            body.insert("search".into(), self.keyword().into());
        }
        if self.random.random_bool(0.25) {
            body.insert("terms".into(), self.terms());
        }
        for (name, chance) in [("start", 0.2), ("end", 0.2)] {
            if self.random.random_bool(chance) {
                let date = if self.random.random_bool(0.5) {
                    (*DATES.choose(&mut self.random).expect("some")).to_owned()
                } else {
                    self.instant().to_string()
                };
                body.insert(name.into(), date.into());
            }
        }
        // An end before the start is a fault, which is another test's.
        if let (Some(start), Some(end)) = (body.get("start"), body.get("end"))
            && last_instant(end.as_str().expect("a text")) < first_instant(start.as_str().expect("a text"))
        {
            body.remove("end");
        }
        if self.random.random_bool(0.5) {
            body.insert("sortBy".into(), ["created_at", "updated_at"].choose(&mut self.random).copied().into());
        }
        if self.random.random_bool(0.5) {
            body.insert("sortDirection".into(), ["asc", "desc"].choose(&mut self.random).copied().into());
        }
        Value::Object(body)
    }

    /// Two or more characters out of some answer, in another case now and then.
    fn keyword(&mut self) -> String {
        let word = if self.random.random_bool(0.5) {
            self.words(2)
        } else {
            (*WORDS.choose(&mut self.random).expect("some")).to_owned()
        };
        let characters: Vec<char> = word.chars().collect();
        if characters.len() < 2 {
            return "ol".into();
        }
        let from = self.random.random_range(0..characters.len() - 1);
        let to = self.random.random_range(from + 2..=characters.len());
        let part: String = characters[from..to].iter().collect();
        if self.random.random_bool(0.5) { part.to_uppercase() } else { part }
    }

    fn terms(&mut self) -> Value {
        let mut terms = Map::new();
        // Often the answers of one submission, of which its parent shows more than one.
        let (of_one, one) = (self.random.random_bool(0.5), self.random.random_range(0..self.submissions.len()));
        for _ in 0..self.random.random_range(1..=6) {
            let submission = if of_one { one } else { self.random.random_range(0..self.submissions.len()) };
            let mut answers: Vec<(i64, String)> =
                self.submissions[submission].answers.iter().map(|(id, answer)| (*id, answer.value.clone())).collect();
            answers.sort();
            let Some((element, value)) = answers.choose(&mut self.random).cloned() else { continue };
            let line = value.split('\n').next_back().expect("a text has a line").to_owned();
            let other = self.words(1);
            terms.insert(
                element.to_string(),
                json!([if self.random.random_bool(0.5) { value.to_uppercase() } else { line }, other]),
            );
        }
        if self.random.random_bool(0.05) {
            terms.insert("Reason".into(), json!(["x"]));
        }
        Value::Object(terms)
    }

    /// The ids of every form that the list shows.
    pub(crate) fn listed_forms(&self) -> Vec<String> {
        self.listed_forms_within(None)
    }

    /// Those that it shows with a token that is limited to forms.
    pub(crate) fn listed_forms_within(&self, reach: Option<&[i64]>) -> Vec<String> {
        self.forms
            .iter()
            .filter(|form| !form.disabled && form.parent.is_none() && self.reaches(reach, form.id))
            .map(|form| format!("for_{}", form.id))
            .collect()
    }

    /// Whether a form is one of these or below one; all are reached without a limit.
    pub(crate) fn reaches(&self, reach: Option<&[i64]>, form: i64) -> bool {
        reach.is_none_or(|reach| self.with_forms_above(form).iter().any(|form| reach.contains(form)))
    }

    /// A form and those above it, however they go in a circle.
    fn with_forms_above(&self, form: i64) -> Vec<i64> {
        let mut forms = vec![form];
        while let Some(parent) = self.form(*forms.last().expect("one at least")).parent
            && !forms.contains(&parent)
        {
            forms.push(parent);
        }
        forms
    }

    /// The ids of every form.
    pub(crate) fn forms(&self) -> impl Iterator<Item = i64> {
        self.forms.iter().map(|form| form.id)
    }

    /// The ids of every element.
    pub(crate) fn elements(&self) -> impl Iterator<Item = i64> {
        self.forms.iter().flat_map(|form| form.elements.iter().map(|(id, _)| *id))
    }

    /// A submission as it is shown with some fields: of what is shown without them, these keys, and of its answers those of
    /// these elements.
    pub(crate) fn select(whole: &Value, fields: &[String]) -> Value {
        let has = |field: &str| fields.iter().any(|wanted| wanted == field);
        let element = |gid: &str| gid.rsplit('-').next().expect("a part").trim_start_matches('0').to_owned();
        let (mut shown, has_numbers) = (Map::new(), fields.iter().any(|field| field.parse::<i64>().is_ok()));
        for (key, value) in whole.as_object().expect("a submission") {
            if has(key) {
                shown.insert(key.clone(), value.clone());
            } else if key == "allElements" && has_numbers {
                let entries = value.as_array().expect("a list").iter();
                let entries = entries.filter(|entry| has(&element(entry["gid"].as_str().expect("a text"))));
                shown.insert(key.clone(), entries.cloned().collect());
            }
        }
        shown.into()
    }

    /// Fields at random: some keys, some elements, and now and then one of them twice.
    pub(crate) fn fields(&mut self) -> Vec<String> {
        let elements: Vec<i64> = self.elements().collect();
        let chance = *[0.0, 0.05, 0.3, 1.0].choose(&mut self.random).expect("some");
        let elements: Vec<String> =
            elements.into_iter().filter(|_| self.random.random_bool(chance)).map(|id| id.to_string()).collect();
        let keys = ["id", "status", "created_at", "updated_at", "allElements"];
        let chance = *[0.0, 0.4].choose(&mut self.random).expect("some");
        let keys = keys.into_iter().filter(|_| self.random.random_bool(chance)).map(str::to_owned);
        let mut fields: Vec<String> = keys.chain(elements).collect();
        if fields.is_empty() {
            fields.push("status".to_owned());
        }
        if self.random.random_bool(0.1) {
            fields.push(fields[0].clone());
        }
        fields.shuffle(&mut self.random);
        fields
    }

    /// The form of a submission.
    pub(crate) fn form_of(&self, submission: i64) -> i64 {
        let found = self.submissions.iter().find(|other| other.id == submission);
        found.expect("a submission of this world").form
    }

    /// Gives a form another parent or none at random, and tells the SQL that does so in a database too.
    pub(crate) fn move_form(&mut self) -> String {
        let ids: Vec<i64> = self.forms().collect();
        let parent = if self.random.random_bool(0.7) { ids.choose(&mut self.random).copied() } else { None };
        let form = self.forms.choose_mut(&mut self.random).expect("there are some");
        form.parent = parent.filter(|parent| *parent != form.id);
        let parent = form.parent.map_or_else(|| "NULL".to_owned(), |parent| parent.to_string());
        format!("UPDATE forms SET parent_id = {parent} WHERE id = {}", form.id)
    }

    /// Some of the forms at random, and the id of one that does not exist now and then.
    pub(crate) fn some_forms(&mut self, chance: f64) -> Vec<i64> {
        let ids: Vec<i64> = self.forms().chain([self.base + 999]).collect();
        ids.into_iter().filter(|_| self.random.random_bool(chance)).collect()
    }

    /// A number below another one.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end)
    }

    /// Every submission's id, whether it is returned by itself or not.
    pub(crate) fn ids(&self) -> impl Iterator<Item = i64> {
        self.submissions.iter().map(|submission| submission.id)
    }

    /// What a search returns, all pages in one.
    pub(crate) fn search(&self, filter: &Value) -> Vec<Value> {
        self.search_within(filter, None)
    }

    /// What a search with a token returns that is limited to forms.
    pub(crate) fn search_within(&self, filter: &Value, reach: Option<&[i64]>) -> Vec<Value> {
        let mut found: Vec<&Submission> = self
            .submissions
            .iter()
            .filter(|submission| self.is_listed(submission) && self.matches(submission, filter))
            .filter(|submission| self.reaches(reach, submission.form))
            .collect();
        let key = |submission: &Submission| {
            let at = if filter["sortBy"] == "created_at" { submission.created_at } else { submission.updated_at };
            (at, submission.id)
        };
        found.sort_by_key(|submission| key(submission));
        if filter["sortDirection"] != "asc" {
            found.reverse();
        }
        found.into_iter().map(|submission| self.show(submission)).collect()
    }

    /// Asks for the first page of searches, and expects what they return here.
    pub(crate) async fn assert_found(&self, client: &Client, filters: impl IntoIterator<Item = Value>) {
        for filter in filters {
            let expected = self.search(&filter);
            let answer = client.post("/api/v1/submission").json(&filter).send().await.json();
            assert_eq!(answer["meta"]["total"], expected.len(), "{filter}");
            assert_eq!(answer["data"].as_array().unwrap(), &expected[..expected.len().min(20)], "{filter}");
        }
    }

    /// What one submission reads as, if it is returned by itself.
    pub(crate) fn find(&self, id: i64) -> Option<Value> {
        let found = self.submissions.iter().find(|submission| submission.id == id && self.is_listed(submission));
        found.map(|submission| self.show(submission))
    }

    fn form(&self, id: i64) -> &Form {
        self.forms.iter().find(|form| form.id == id).expect("a form of this world")
    }

    fn is_child(&self, submission: &Submission) -> bool {
        let parent = submission.parent.and_then(|parent| self.submissions.iter().find(|other| other.id == parent));
        parent.is_some_and(|parent| self.form(parent.form).graduated)
    }

    fn is_listed(&self, submission: &Submission) -> bool {
        !submission.draft && !self.is_child(submission)
    }

    /// The submission and its graduated children, which show their answers in it.
    fn shown_in<'a>(&'a self, submission: &'a Submission) -> Vec<&'a Submission> {
        let children = self
            .submissions
            .iter()
            .filter(|other| other.parent == Some(submission.id) && self.is_child(other) && !other.draft);
        std::iter::once(submission).chain(children).collect()
    }

    fn matches(&self, submission: &Submission, filter: &Value) -> bool {
        let ids = |name: &str| -> Option<Vec<i64>> {
            let list = filter[name].as_array().filter(|list| !list.is_empty())?;
            let number =
                |value: &Value| value.as_i64().or_else(|| value.as_str()?.trim_start_matches("for_").parse().ok());
            Some(list.iter().map(|value| number(value).expect("an id")).collect())
        };
        let meets = |wanted: Option<Vec<i64>>, has: &[i64]| {
            wanted.is_none_or(|wanted| has.iter().any(|id| wanted.contains(id)))
        };
        let forms = self.with_forms_above(submission.form);
        let status = filter["statuses"].as_array().filter(|list| !list.is_empty());
        meets(ids("forms"), &forms)
            && meets(ids("submitters"), submission.submitter.as_slice())
            && meets(ids("pending"), &submission.pending)
            && meets(ids("participants"), &submission.participants)
            && meets(ids("labels"), &submission.labels)
            && meets(ids("sharedLabels"), &submission.shared_labels)
            && meets(ids("flows"), &submission.flows)
            && status.is_none_or(|list| list.contains(&submission.status.into()))
            && filter["start"].as_str().is_none_or(|start| submission.created_at >= first_instant(start))
            && filter["end"].as_str().is_none_or(|end| submission.created_at <= last_instant(end))
            && filter["search"].as_str().is_none_or(|keyword| {
                let contains = |answer: &Answer| lower_case(&answer.value).contains(&lower_case(keyword));
                self.shown_in(submission).iter().any(|shown| shown.answers.values().any(contains))
            })
            && filter["terms"].as_object().is_none_or(|terms| {
                terms.iter().all(|(key, wanted)| {
                    let equals = |text: &str| {
                        let wanted = wanted.as_array().expect("a list").iter();
                        wanted
                            .map(|wanted| wanted.as_str().expect("a text"))
                            .any(|wanted| lower_case(wanted) == lower_case(text))
                    };
                    let Ok(element) = key.parse::<i64>() else { return false };
                    self.shown_in(submission)
                        .iter()
                        .filter_map(|shown| shown.answers.get(&element))
                        .any(|answer| equals(&answer.value) || answer.value.split('\n').any(equals))
                })
            })
    }

    fn show(&self, submission: &Submission) -> Value {
        let mut entries = Vec::new();
        for shown in self.shown_in(submission) {
            for (element, kind) in &self.form(shown.form).elements {
                let none = Answer { value: String::new(), files: json!([]), updated_at: shown.updated_at };
                let answer = shown.answers.get(element).cloned().unwrap_or(none);
                let is_time = *kind == "time" && matches!(answer.value.as_str(), "09:30" | "23:59");
                let value = if is_time {
                    format!("{} {}", answer.value, summer_or_winter(answer.updated_at))
                } else {
                    answer.value
                };
                entries.push(json!({"gid": gid(*element), "name": field_name(*element), "value": value, "type": kind,
                    "files": answer.files, "updated_at": six_digits(answer.updated_at)}));
            }
        }
        json!({"id": format!("sub_{}", submission.id), "status": submission.status, "created_at": six_digits(submission.created_at),
            "updated_at": six_digits(submission.updated_at), "allElements": entries})
    }
}

fn gid(element: i64) -> String {
    format!("00000000-0000-4000-8000-{element:012}")
}

fn field_name(element: i64) -> String {
    format!("Field {element}")
}

fn form_name(form: i64) -> String {
    format!("Form {form}")
}

fn six_digits(instant: Timestamp) -> String {
    instant.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Berlin has summer time from the one clock change to the other, at 01:00 UTC.
fn summer_or_winter(instant: Timestamp) -> &'static str {
    let changes =
        ["2024-03-31T01:00:00Z", "2024-10-27T01:00:00Z"].map(|text| text.parse::<Timestamp>().expect("an instant"));
    if (changes[0]..changes[1]).contains(&instant) { "CEST" } else { "CET" }
}

fn day(text: &str) -> Option<jiff::civil::Date> {
    (text.len() == 10).then(|| text.parse().expect("a date"))
}

fn midnight(date: jiff::civil::Date) -> Timestamp {
    date.to_zoned(TimeZone::get(ZONE).expect("a zone")).expect("a midnight").timestamp()
}

fn first_instant(text: &str) -> Timestamp {
    day(text).map_or_else(|| text.parse().expect("an instant"), midnight)
}

fn last_instant(text: &str) -> Timestamp {
    let end = |date: jiff::civil::Date| midnight(date.tomorrow().expect("a next day")) - 1.microsecond();
    day(text).map_or_else(|| text.parse().expect("an instant"), end)
}

/// What texts are compared by: in lower case, and both small sigmas are one.
fn lower_case(text: &str) -> String {
    text.to_lowercase().replace('ς', "σ")
}
