//! An account's data as lines of an import: 50 forms of 8 fields, 8 answers a submission, over three years.
//!
//! The first form holds 20 % of the submissions and the last 0.3 %: more than a page of ten thousand. Each of the keywords `jq`, `zqv` and `wxqzkjvb`, and
//! the answer `Rare answer`, stands in 20 submissions, however many there are.

use std::io::{self, Write};

use jiff::{SignedDuration, Timestamp};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::json;

const FORMS: usize = 50;
const KINDS: [&str; 8] = ["text", "email", "select", "radio", "text", "textarea", "number", "date"];
const CHOICES: [&str; 6] = ["Standard", "Premium", "Basic", "Partner", "Staff", "Guest"];
const RARE: [&str; 3] = ["jq", "zqv", "wxqzkjvb"];

/// Three years, which the submissions are spread over evenly.
const SPAN: SignedDuration = SignedDuration::from_hours(3 * 365 * 24);

/// Writes so many submissions and all that they refer to; the same number writes the same lines.
pub(crate) fn write(out: &mut impl Write, submissions: i64) -> io::Result<()> {
    let mut random = StdRng::seed_from_u64(1);
    let words = vocabulary(&mut random);
    let users = (submissions / 20).max(500);
    for id in 1..=users {
        writeln!(out, "{}", json!({"type": "user", "id": id, "email": format!("user{id}@mail.test"), "name": "User"}))?;
    }
    for id in 1..=20 {
        writeln!(out, "{}", json!({"type": "label", "id": id, "name": format!("Label {id}")}))?;
    }
    for form in 1..=FORMS {
        let field = |(at, kind): (usize, &&str)| {
            let id = form * 100 + at + 1;
            json!({"id": id, "gid": format!("00000000-0000-4000-8000-{id:012}"), "name": format!("Field {at}"), "type": kind})
        };
        let elements: Vec<_> = KINDS.iter().enumerate().map(field).collect();
        writeln!(out, "{}", json!({"type": "form", "id": form, "name": format!("Form {form}"), "elements": elements}))?;
    }
    let begin: Timestamp = "2023-01-01T00:00:00Z".parse().expect("an instant");
    let rare_every = (submissions / 20).max(1);
    for id in 1..=submissions {
        let share: f64 = random.random_range(0.0..100.0);
        let form = if share < 20.0 {
            1
        } else if share >= 99.7 {
            FORMS
        } else {
            random.random_range(2..FORMS)
        };
        let status = match random.random_range(0..100) {
            0..70 => "pending",
            70..85 => "approved",
            85..95 => "info",
            95..99 => "denied",
            _ => "escalate",
        };
        let share = i32::try_from(id * 1_000_000 / submissions).expect("a million at most");
        let created_at = begin + SPAN * share / 1_000_000;
        let updated_at = created_at + SignedDuration::from_secs(random.random_range(0..5 * 86_400));
        let mut words = |count: usize| -> String {
            let picked: Vec<&str> = (0..count).map(|_| pick(&words, &mut random)).collect();
            picked.join(" ")
        };
        let (name, line, mut text) = (words(2), words(5), words(25));
        match random.random_range(0..100) {
            0..10 => text.push_str(" complete"),
            10 => text.push_str(" delivery"),
            _ => {}
        }
        if id % rare_every < 3 {
            text.push(' ');
            text.push_str(RARE[usize::try_from(id % rare_every).expect("below 3")]);
        }
        let mail = if form == 1 && id % rare_every == 5 { "Rare answer".to_owned() } else { format!("{id}@mail.test") };
        let choice = CHOICES[(random.random_range(0.0..1.0_f64).powi(2) * 6.0) as usize];
        let values = [&name, &mail, choice, "Yes", &line, &text, &(id * 7 % 100_000).to_string(), "2024-05-01"];
        let answer = |(at, value): (usize, &&str)| json!({"element_id": form * 100 + at + 1, "value": value});
        let answers: Vec<_> = values.iter().enumerate().map(answer).collect();
        let user = random.random_range(1..=users);
        let labels: Vec<i64> = if random.random_bool(0.3) { vec![random.random_range(1..=20)] } else { Vec::new() };
        writeln!(
            out,
            "{}",
            json!({"type": "submission", "id": id, "form_id": form, "status": status, "draft": random.random_bool(0.03),
                "submitter_id": user, "created_at": created_at, "updated_at": updated_at, "labels": labels,
                "pending_on": [], "participants": [user], "answers": answers})
        )?;
    }
    Ok(())
}

/// Five thousand words, none of which has a `j`, a `q`, an `x` or a `z`.
fn vocabulary(random: &mut StdRng) -> Vec<String> {
    let onsets =
        ["b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "br", "st", "tr", "sh"];
    let (nuclei, codas) = (["a", "e", "i", "o", "u", "ai", "ea", "ou"], ["", "", "n", "r", "s", "t", "l", "nd", "ck"]);
    let word = |random: &mut StdRng| {
        let mut word = String::new();
        for _ in 0..random.random_range(1..=3) {
            for part in [onsets.choose(random), nuclei.choose(random), codas.choose(random)] {
                word.push_str(part.expect("there are some"));
            }
        }
        if random.random_bool(0.06) { word + "ing" } else { word }
    };
    (0..5000).map(|_| word(random)).collect()
}

/// A word: the first ones far more often than the last.
fn pick<'w>(words: &'w [String], random: &mut StdRng) -> &'w str {
    let place = random.random_range(0.0..1.0_f64).powi(3) * words.len() as f64;
    &words[place as usize]
}
