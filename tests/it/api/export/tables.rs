//! CSV and Parquet: other people's readers find in them what NDJSON has.
//!
//! `tables/compare.py` derives what a table has to contain from NDJSON, and reads both formats by Python's csv, DuckDB, pyarrow
//! and LibreOffice Calc.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::PATH;
use crate::api::account::{Account, account};
use crate::support::answer::Answer;
use crate::support::client::Client;
use crate::support::fixture::{Engine, on_both_databases};
use crate::support::folder::temporary;
use crate::support::process::python;

/// Texts that are hard on formats, spreadsheets and their readers.
const TEXTS: [&str; 30] = [
    "=1+1",
    "-5",
    "+49 30 1234",
    "+4930",
    "@SUM(A1)",
    "\ttab",
    "\rreturn",
    "-",
    "--1",
    "-1,5",
    "1,5",
    "007",
    "1e5",
    "line\nfeed",
    "both\r\nends",
    "\n",
    "say \"hi\"",
    "\"",
    "a,b;c\td",
    "'quoted'",
    "",
    " lead",
    "trail ",
    "NULL",
    "\\N",
    "\u{feff}mark",
    "👩‍👩‍👧 Zürich",
    "שלום \u{202e}abc",
    "2024-02-30",
    "TRUE",
];

const NUMBERS: [&str; 12] =
    ["5", "-5", "1,5", "", "0.1", "-1.5e3", "+7", ".5", "1e400", "NaN", "-5 km", "12345678901234567890"];

const DATES: [&str; 8] =
    ["2024-02-29", "2023-02-29", "0000-01-01", "0001-01-01", "9999-12-31", "29.02.2024", "", "1969-12-31"];

const TIMES: [&str; 6] = ["09:30", "24:00", "9:30", "23:59", "", "half past nine"];

const CHOICES: [&str; 5] = ["a", "a\nb\n", "", "x\r\ny\nz", "one, two"];

/// The elements of the form of many kinds: id, name, type, and what its column is called.
const ELEMENTS: [(i64, &str, &str, &str); 12] = [
    (101, "Name", "text", "Name (101)"),
    (102, "name", "textarea", "name (102)"),
    (103, "", "email", "(103)"),
    (104, "id", "text", "id (104)"),
    (105, "=Amount", "number", "=Amount"),
    (106, "Day", "date", "Day"),
    (107, "At, \"sharp\"", "time", "At, \"sharp\""),
    (108, "Choices", "checkbox", "Choices"),
    (109, "Files", "file", "Files"),
    (110, "Choices_value", "signature", "Choices_value"),
    (111, "deleted", "user", "deleted (111)"),
    (112, "New\nline", "select", "New\nline"),
];

/// Those of its graduated children.
const CHILD: [(i64, &str, &str, &str); 3] =
    [(201, "City", "text", "City"), (202, "Cost", "number", "Cost"), (203, "Day (106)", "date", "Day (106)")];

fn text_of(kind: &str, number: usize) -> String {
    let of = |texts: &[&str]| texts[number % texts.len()].to_owned();
    match kind {
        "number" => of(&NUMBERS),
        "date" => of(&DATES),
        "time" => of(&TIMES),
        "checkbox" | "select" => of(&CHOICES),
        "textarea" if number.is_multiple_of(9) => "0123456789abcdef".repeat(2047) + "long",
        _ => of(&TEXTS),
    }
}

fn elements(of: &[(i64, &str, &str, &str)]) -> Vec<Value> {
    let element =
        |(id, name, kind, _): &(i64, &str, &str, &str)| json!({"id": id, "gid": gid(*id), "name": name, "type": kind});
    of.iter().map(element).collect()
}

fn gid(element: i64) -> String {
    format!("g{element}")
}

fn answers(of: &[(i64, &str, &str, &str)], number: usize) -> Vec<Value> {
    let mut answers = Vec::new();
    for (at, (id, _, kind, _)) in of.iter().enumerate() {
        let files = match (*kind, number % 4) {
            ("file", 1) => {
                json!([{"name": "a,b.pdf", "url": "https://x.test/a", "size": 7, "mime_type": "application/pdf"}])
            }
            ("file", 2) => {
                json!([{"name": "=b", "url": "https://x.test/b"}, {"name": "c", "url": "https://x.test/c", "size": 0}])
            }
            _ => json!([]),
        };
        // Some are not answered.
        if !(number + at).is_multiple_of(7) || *kind == "file" {
            let value = if *kind == "file" { String::new() } else { text_of(kind, number + at) };
            answers.push(json!({"element_id": id, "value": value, "files": files}));
        }
    }
    answers
}

fn submission(id: i64, form: i64, parent: Option<i64>, answers: &[Value]) -> String {
    let at = format!("2026-0{}-01T12:00:00.{:06}Z", 1 + id % 9, id);
    let submission = json!({"type": "submission", "id": id, "form_id": form, "parent_id": parent, "status": "pending",
        "created_at": at, "updated_at": at, "answers": answers});
    format!("{submission}\n")
}

/// Forms 1 to 5: many kinds with children, a thousand elements, no elements, no submissions, and more than fits into a row group.
fn forms() -> String {
    let form = |id: i64, graduated: bool, parent: Option<i64>, elements: &[Value]| {
        let form = json!({"type": "form", "id": id, "name": "F", "graduated": graduated, "parent_id": parent, "elements": elements});
        format!("{form}\n")
    };
    let wide: Vec<Value> = (0..1000)
        .map(|number| json!({"id": 10_000 + number, "gid": gid(10_000 + number), "name": format!("E{number}"), "type": "text"}))
        .collect();
    let mut lines = form(1, true, None, &elements(&ELEMENTS)) + &form(6, false, Some(1), &elements(&CHILD));
    lines += &form(2, false, None, &wide);
    lines += &form(3, false, None, &[]);
    lines += &form(4, false, None, &[json!({"id": 401, "gid": gid(401), "name": "Day", "type": "date"})]);
    lines += &form(5, false, None, &[json!({"id": 501, "gid": gid(501), "name": "Story", "type": "textarea"})]);
    let mut child = 5_000;
    for number in 0..60 {
        let id = 1_000 + i64::try_from(number).expect("it is small");
        lines += &submission(id, 1, None, &answers(&ELEMENTS, number));
        for _ in 0..number % 4 {
            lines += &submission(child, 6, Some(id), &answers(&CHILD, usize::try_from(child).expect("it is positive")));
            child += 1;
        }
    }
    for id in 2_000..2_005 {
        let answer = |element: i64| json!({"element_id": 10_000 + element, "value": format!("{id} {element}")});
        lines += &submission(id, 2, None, &[answer(id % 1000), answer(999), answer(500)]);
    }
    for id in 4_000..4_020 {
        let story = format!("{id} and more\n").repeat(40_000);
        lines += &submission(id, 5, None, &[json!({"element_id": 501, "value": story})]);
    }
    lines + &submission(3_000, 3, None, &[])
}

/// The description of a form for `compare.py`.
fn told(file: &str, form: i64, rows: usize, cursor: &str) -> Value {
    let heading = |(id, _, kind, heading): &(i64, &str, &str, &str)| {
        // One of its name is a field of its own.
        let typed = if *id == 108 { "Choices_value (108)".to_owned() } else { format!("{heading}_value") };
        json!({"gid": gid(*id), "type": kind, "heading": heading, "typed": typed})
    };
    let elements: Vec<Value> = match form {
        1 => ELEMENTS.iter().chain(&CHILD).map(heading).collect(),
        2 => (0..1000)
            .map(|n| json!({"gid": gid(10_000 + n), "type": "text", "heading": format!("E{n}"), "typed": ""}))
            .collect(),
        5 => vec![json!({"gid": gid(501), "type": "textarea", "heading": "Story", "typed": ""})],
        4 => vec![json!({"gid": gid(401), "type": "date", "heading": "Day", "typed": "Day_value"})],
        _ => Vec::new(),
    };
    json!({"file": file, "rows": rows, "elements": elements, "cursor": cursor, "since": false, "calc": false,
        "groups": if form == 5 { 5 } else { u8::from(rows > 0) }})
}

async fn fetch(client: &Client, parameters: &str) -> Answer {
    let answer = client.get(&format!("{PATH}?{parameters}")).send().await;
    assert_eq!(answer.status, 200, "{parameters}: {answer:?}");
    answer
}

/// Writes every format of an export, and returns the cursor of the Parquet file.
async fn write_all(account: &Account, folder: &Path, file: &str, parameters: &str) -> String {
    let mut cursor = String::new();
    for (ending, format) in [
        ("ndjson", "format=ndjson"),
        ("csv", "format=csv"),
        ("excel.csv", "format=csv&excel=1"),
        ("raw.csv", "format=csv&raw=1"),
        ("parquet", "format=parquet"),
    ] {
        let answer = fetch(&account.client, &format!("{format}&{parameters}")).await;
        cursor = answer.header("formgate-cursor").expect("a cursor").to_owned();
        fs::write(folder.join(format!("{file}.{ending}")), &answer.body).expect("the folder can be written");
    }
    cursor
}

async fn compare(folder: &Path, forms: &[Value]) {
    fs::write(folder.join("forms.json"), json!(forms).to_string()).expect("the folder can be written");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/api/export/tables/compare.py");
    let mut command = Command::new(python());
    command.arg(script).arg(folder);
    let done = tokio::task::spawn_blocking(move || command.output()).await.expect("it does not panic");
    let done = done.expect("Python is installed");
    let [output, faults] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(done.status.success(), "{output}{faults}");
    assert_eq!(output.lines().count(), forms.len(), "{output}");
}

on_both_databases! {
    async fn other_programs_read_in_tables_what_ndjson_has(engine: Engine) {
        let (account, folder) = (account(engine, &forms()), temporary("tables"));
        let mut told_forms = Vec::new();
        for (form, rows) in [(1, 60), (2, 5), (3, 1), (4, 0), (5, 20)] {
            let file = form.to_string();
            let cursor = write_all(&account, folder.path(), &file, &format!("form=for_{form}")).await;
            let mut told = told(&file, form, rows, &cursor);
            // It takes seconds, and reads the same from both databases.
            told["calc"] = (form == 1 && engine == Engine::Sqlite).into();
            told_forms.push(told);
        }
        compare(folder.path(), &told_forms).await;
    }

    async fn tables_of_what_changed_have_a_column_of_deletions(engine: Engine) {
        let (account, folder) = (account(engine, &forms()), temporary("tables"));
        let since = fetch(&account.client, "format=csv&form=1").await;
        let since = since.header("formgate-cursor").expect("a cursor").to_owned();
        let database = account.database().await;
        database.execute("DELETE FROM answers WHERE submission_id = 1000").await;
        database.execute("DELETE FROM submissions WHERE id = 1000").await;
        database.execute("UPDATE submissions SET status = 'approved' WHERE id = 1003").await;
        database.execute("UPDATE answers SET value = '=2' WHERE submission_id = 1007 AND element_id = 102").await;
        database.close().await;
        let cursor = write_all(&account, folder.path(), "changed", &format!("form=1&since={since}")).await;
        let mut told = told("changed", 1, 3, &cursor);
        told["since"] = true.into();
        compare(folder.path(), &[told]).await;
    }
}

#[tokio::test]
async fn tables_are_of_one_form_and_say_what_they_are() {
    let account = account(Engine::Sqlite, &forms());
    let client = &account.client;
    for format in ["csv", "parquet"] {
        let refused = client.get(&format!("{PATH}?format={format}")).send().await;
        assert_eq!((refused.status.as_u16(), refused.json()["errors"]["form"].is_array()), (422, true), "{refused:?}");
        for missing in [&format!("format={format}&form=77"), &format!("format={format}&form=for_77")] {
            assert_eq!(client.get(&format!("{PATH}?{missing}")).send().await.status, 404, "{missing}");
        }
        let limited = client.with(&account.token_within(&[2]));
        assert_eq!(limited.get(&format!("{PATH}?format={format}&form=1")).send().await.status, 404);
    }
    let date = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::get(crate::api::world::ZONE).unwrap()).date();
    for (format, kind) in
        [("csv", "text/csv; charset=utf-8; header=present"), ("parquet", "application/vnd.apache.parquet")]
    {
        let call = client.get(&format!("{PATH}?format={format}&form=2")).header("accept-encoding", "zstd, br, gzip");
        let answer = call.send().await;
        assert_eq!(answer.header("content-type"), Some(kind));
        let name = answer.header("content-disposition").expect("a name");
        let tomorrow = date.tomorrow().unwrap();
        let is_named = |date| name == format!("attachment; filename=\"acme-for_2-{date}.{format}\"");
        assert!(is_named(date) || is_named(tomorrow), "{name}");
        // Parquet is compressed as it is.
        assert_eq!(answer.header("content-encoding").is_some(), format == "csv", "{answer:?}");
    }
}
