//! Faulty lines: their reports, and that they leave nothing behind.

use std::io::{self, BufReader, Cursor, Read};
use std::sync::mpsc;
use std::time::Duration;

use super::{BASE, fault, import, load};
use crate::import::{ImportError, OnFault, Progress, Stage, run};
use crate::store::{DatabaseLocation, Events, raw};

/// Lines with a mark before the faulty value, and the expected report.
const FAULTS: &[(&str, &str)] = &[
    // Lines that do not match the format.
    (r#"{▸"#, "EOF while parsing an object"),
    (r#"{"type":"user","id":9,"email":"é@x" ▸"name":""}"#, "expected `,` or `}`"),
    (r#"{"type":"user","id":9,"email":"a@x"} ▸x"#, "trailing characters"),
    (r#"▸["user",9,"a@x",""]"#, "invalid type: sequence, expected an object"),
    (r#"▸7"#, "invalid type: integer `7`, expected an object"),
    (r#"▸{"id":9}"#, "missing field `type`"),
    (
        r#"{"type":▸"team"}"#,
        "`type`: unknown type `team`, expected one of `user`, `label`, `form`, `group`, `flow_step`, `submission`",
    ),
    (r#"▸{"type":"user","email":"a@x"}"#, "missing field `id`"),
    (
        r#"{"type":"label","id":9,"name":"a","color":▸"red"}"#,
        "`color`: unknown field `color`, expected one of `type`, `id`, `name`, `shared`",
    ),
    (r#"▸{"type":"label","id":9,"id":9,"name":"a"}"#, "duplicate field `id`"),
    // Values.
    (
        r#"{"type":"user","id":▸0,"email":"a@x"}"#,
        "`id`: invalid value: integer `0`, expected a positive 64-bit integer",
    ),
    (
        r#"{"type":"user","id":▸-1,"email":"a@x"}"#,
        "`id`: invalid value: integer `-1`, expected a positive 64-bit integer",
    ),
    (
        r#"{"type":"user","id":▸"9","email":"a@x"}"#,
        "`id`: invalid type: string \"9\", expected a positive 64-bit integer",
    ),
    (
        r#"{"type":"user","id":▸9223372036854775808,"email":"a@x"}"#,
        "`id`: invalid value: integer `9223372036854775808`, expected a positive 64-bit integer",
    ),
    (r#"{"type":"user","id":9,"email":▸"ana"}"#, "`email`: expected an e-mail address of at most 320 characters"),
    (r#"{"type":"user","id":9,"email":"a@x","name":▸"a\u0000"}"#, "`name`: a text can't hold the character NUL"),
    (r#"{"type":"group","id":9,"name":▸""}"#, "`name`: expected 1 to 255 characters"),
    (r#"{"type":"group","id":9,"name":"a","external_id":▸""}"#, "`external_id`: expected 1 to 255 characters"),
    (
        r#"{"type":"form","id":9,"name":"é","elements":[▸[1,"g","n","t"]]}"#,
        "`elements[0]`: invalid type: sequence, expected an object",
    ),
    (
        r#"{"type":"form","id":9,"name":"é","elements":[▸{"id":1,"gid":"g","name":"n"}]}"#,
        "`elements[0]`: missing field `type`",
    ),
    // Conflicts with the database.
    (
        r#"{"type":"user","id":9,"email":▸"ana\u200b@x"}"#,
        "`email`: the address must not contain the invisible character U+200B",
    ),
    (
        r#"{"type":"user","id":9,"email":▸"mailto:ana@x"}"#,
        "`email`: the address must be an email address without mailto:",
    ),
    (r#"{"type":"user","id":9,"email":▸"e\u0301va@example.com"}"#, "`email`: user 8 has this e-mail address"),
    (r#"{"type":"user","id":9,"email":▸"ÉVA@example.com"}"#, "`email`: user 8 has this e-mail address"),
    (r#"{"type":"group","id":9,"name":"a","external_id":▸"ext-4"}"#, "`external_id`: group 4 has this external id"),
    (r#"{"type":"group","id":9,"name":"a","members":[7, ▸99]}"#, "`members[1]`: there is no user 99"),
    (
        r#"{"type":"group","id":▸9007199254740991,"name":"a"}"#,
        "`id`: group 9007199254740991 is the built-in group \"All Users\"",
    ),
    (r#"{"type":"group","id":▸5,"name":"All Users"}"#, "`id`: group 5 is another group than \"All Users\""),
    (
        r#"{"type":"group","id":9,"name":"All Users","external_id":▸"x"}"#,
        "`external_id`: the group \"All Users\" has no external id",
    ),
    (r#"{"type":"flow_step","id":9,"form_id":▸99,"name":"a"}"#, "`form_id`: there is no form 99"),
    (r#"{"type":"flow_step","id":9,"form_id":1,"name":"a","groups":[▸99]}"#, "`groups[0]`: there is no group 99"),
    (r#"{"type":"form","id":9,"name":"a","parent_id":▸99}"#, "`parent_id`: there is no form 99"),
    (r#"{"type":"form","id":9,"name":"a","parent_id":▸9}"#, "`parent_id`: a form can't be its own parent"),
    (
        r#"{"type":"form","id":2,"name":"Trip","graduated":true,"parent_id":▸3,"elements":[{"id":201,"gid":"g","name":"n","type":"text"}]}"#,
        "`parent_id`: form 3 is itself below form 2",
    ),
    (
        r#"{"type":"form","id":9,"name":"a","elements":[{"id":▸101,"gid":"g","name":"n","type":"text"}]}"#,
        "`elements[0].id`: element 101 belongs to form 1",
    ),
    (
        r#"{"type":"form","id":9,"name":"a","elements":[{"id":9,"gid":"g","name":"n","type":"text"},{"id":▸9,"gid":"g","name":"n","type":"text"}]}"#,
        "`elements[1].id`: element 9 is listed twice",
    ),
    (
        r#"{"type":"form","id":1,"name":"Leave","elements":▸[{"id":102,"gid":"g","name":"n","type":"text"}]}"#,
        "`elements`: element 101 is left out, but there are answers to it",
    ),
];

/// The keys of a submission without conflicts, the values that replace them, and the expected report.
const SUBMISSION_FAULTS: &[(&str, &str)] = &[
    (r#""form_id":99"#, "`form_id`: there is no form 99"),
    (r#""form_id":1,"submitter_id":99"#, "`submitter_id`: there is no user 99"),
    (r#""form_id":1,"labels":[3,99]"#, "`labels[1]`: there is no label 99"),
    (r#""form_id":1,"shared_labels":[99]"#, "`shared_labels[0]`: there is no label 99"),
    (r#""form_id":1,"pending_on":[99]"#, "`pending_on[0]`: there is no user 99"),
    (r#""form_id":1,"participants":[99]"#, "`participants[0]`: there is no user 99"),
    (r#""form_id":1,"flow_steps":[99]"#, "`flow_steps[0]`: there is no flow step 99"),
    (r#""form_id":1,"parent_id":99"#, "`parent_id`: there is no submission 99"),
    (r#""form_id":1,"parent_id":2000"#, "`parent_id`: a submission can't be its own parent"),
    (r#""form_id":1,"answers":[{"element_id":201,"value":""}]"#, "`answers[0].element_id`: form 1 has no element 201"),
    (r#""form_id":1,"answers":[{"element_id":101}]"#, "`answers[0]`: missing field `value`"),
    (
        r#""form_id":1,"answers":[{"element_id":101,"value":""},{"element_id":101,"value":""}]"#,
        "`answers[1].element_id`: element 101 is answered twice",
    ),
    (
        r#""form_id":1,"answers":[{"element_id":101,"value":"","files":[{"name":"a"}]}]"#,
        "`answers[0].files[0]`: missing field `url`",
    ),
    (r#""form_id":1,"draft":"no""#, "`draft`: invalid type: string \"no\", expected a boolean"),
];

pub(super) async fn every_fault_is_named_by_line_column_and_key(location: DatabaseLocation) {
    load(&location, BASE).await;
    for (marked, expected) in FAULTS {
        let (line, column) = (marked.replace('▸', ""), marked.chars().take_while(|c| *c != '▸').count() + 1);
        let separator = if expected.starts_with('`') { ", " } else { ": " };
        assert_eq!(fault(&location, &line).await, format!("line 1, column {column}{separator}{expected}"), "{marked}");
    }
    for (keys, expected) in SUBMISSION_FAULTS {
        let line = format!(
            r#"{{"type":"submission","id":2000,"status":"info","created_at":"2024-05-01T00:00:00Z","updated_at":"2024-05-01T00:00:00Z",{keys}}}"#
        );
        assert_eq!(without_column(&fault(&location, &line).await), format!("line 1, {expected}"), "{line}");
    }
    let submission = |id, form, parent, status, created_at| {
        format!(
            r#"{{"type":"submission","id":{id},"form_id":{form},"parent_id":{parent},"status":"{status}","created_at":"{created_at}","updated_at":"2024-05-01T00:00:00Z"}}"#
        )
    };
    assert_eq!(
        without_column(&fault(&location, &submission(2000, 1, "null", "completed", "2024-05-01T00:00:00Z")).await),
        "line 1, `status`: unknown status `completed`, expected one of `pending`, `approved`, `denied`, `back`, `info`, `escalate`"
    );
    for instant in
        ["2024-05-01", "2024-05-01T00:00Z", "2024-05-01T00:00:00", "2024-02-30T00:00:00Z", "0000-05-01T00:00:00Z"]
    {
        assert_eq!(
            without_column(&fault(&location, &submission(2000, 1, "null", "info", instant)).await),
            "line 1, `created_at`: expected an RFC 3339 date-time such as `2024-05-01T13:45:30.123456Z`"
        );
    }

    // One level below a graduated form: 1003 is below 1002, and form 2 of 1002 is graduated.
    let now = "2024-05-01T00:00:00Z";
    assert_eq!(
        without_column(&fault(&location, &submission(1002, 2, "1001", "info", now)).await),
        "line 1, `parent_id`: submission 1002 of a graduated form has children, so it can have no parent"
    );
    let below_a_child = [submission(2000, 2, "1001", "info", now), submission(2001, 1, "2000", "info", now)].join("\n");
    assert_eq!(
        without_column(&fault(&location, &below_a_child).await),
        "line 2, `parent_id`: submission 2000 of a graduated form has a parent, so it can have no children"
    );
    let graduating = [
        submission(2000, 3, "1001", "info", now),
        submission(2001, 1, "2000", "info", now),
        r#"{"type":"form","id":3,"name":"Stop","parent_id":2,"graduated":true,"elements":[{"id":301,"gid":"g","name":"n","type":"text"}]}"#.to_owned(),
    ];
    assert_eq!(
        without_column(&fault(&location, &graduating.join("\n")).await),
        "line 3, `graduated`: a submission of this form has a parent and children, and there is but one level below a graduated form"
    );
}

/// A fault of a line, ignoring its column.
fn without_column(fault: &str) -> String {
    let (line, rest) = fault.split_once(", column ").unwrap();
    format!("{line}, {}", rest.split_once(", ").unwrap().1)
}

pub(super) async fn a_faulty_line_leaves_nothing_behind(location: DatabaseLocation) {
    let text = format!("{BASE}\n{}", r#"{"type":"label","id":9}"#);
    assert_eq!(fault(&location, &text).await, "line 16, column 1: missing field `name`");
    let left = "SELECT CAST((SELECT count(*) FROM users) + (SELECT count(*) FROM forms) \
        + (SELECT count(*) FROM submissions) + (SELECT count(*) FROM listed_documents) AS text)";
    assert_eq!(raw::select(&location, left).await, ["0"]);
}

pub(super) async fn the_first_fault_in_line_order_is_reported(location: DatabaseLocation) {
    let text = "\u{feff}\n \r\n{\"type\":\"label\",\"id\":1,\"name\":\"a\"}\r\n{\"type\":\"flow_step\",\"id\":1,\"form_id\":1,\"name\":\"a\"}\n{\n";
    assert_eq!(fault(&location, text).await, "line 4, column 38, `form_id`: there is no form 1");
    // Referenced objects come first.
    let text = r#"
{"type":"group","id":1,"name":"a","members":[1]}
{"type":"user","id":1,"email":"a@x"}"#;
    assert_eq!(fault(&location, text).await, "line 2, column 46, `members[0]`: there is no user 1");
}

pub(super) async fn keep_going_skips_only_faulty_lines(location: DatabaseLocation) {
    let mut text = BASE.as_bytes().to_vec();
    text.extend(b"{\"type\":\"label\",\"id\":5,\"name\":\"\xff\"}\n");
    // A line that refers to a faulty one is faulty.
    text.extend(b"{\"type\":\"group\",\"id\":9,\"name\":\"a\",\"members\":[99]}\n");
    text.extend(b"{\"type\":\"flow_step\",\"id\":12,\"form_id\":1,\"name\":\"a\",\"groups\":[9]}\n");
    text.extend(b"{\"type\":\"label\",\"id\":6,\"name\":\"kept\"}");
    let imported = run(&location, Cursor::new(text), OnFault::KeepGoing, Events::Sent, |_| None, |_| ()).await.unwrap();
    assert_eq!((imported.lines, imported.faulty, imported.labels, imported.submissions), (18, 3, 3, 3));
    assert_eq!(
        imported.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "line 15, column 32: the text is not UTF-8",
            "line 16, column 46, `members[0]`: there is no user 99",
            "line 17, column 62, `groups[0]`: there is no group 9",
        ]
    );
    assert_eq!(raw::select(&location, "SELECT name FROM labels ORDER BY id").await, ["Urgent", "Team", "kept"]);

    let many = "{}\n".repeat(5_000);
    let imported = import(&location, &many, OnFault::KeepGoing).await.unwrap();
    assert_eq!((imported.faulty, imported.faults.len()), (5_000, 100));
}

pub(super) async fn an_unreadable_input_leaves_nothing_behind(location: DatabaseLocation) {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    let input = BufReader::new(Cursor::new("{\"type\":\"label\",\"id\":1,\"name\":\"a\"}\n").chain(Broken));
    match run(&location, input, OnFault::KeepGoing, Events::Sent, |_| None, |_| ()).await {
        Err(ImportError::Unreadable { line: 2, source }) => assert_eq!(source.to_string(), "the disk is gone"),
        other => panic!("expected an unreadable input, got {other:?}"),
    }
    assert_eq!(raw::select(&location, "SELECT name FROM labels").await, [""; 0]);
}

pub(super) async fn a_cancelled_load_leaves_nothing_behind(location: DatabaseLocation) {
    /// An input that blocks until its other end is dropped.
    struct Open(mpsc::Receiver<()>);
    impl Read for Open {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            self.0.recv().ok();
            Ok(0)
        }
    }
    let (other_end, open) = mpsc::channel();
    // More than a batch, so that rows are written before the import waits.
    let labels = (1..=1_500).map(|n| format!("{{\"type\":\"label\",\"id\":{n},\"name\":\"a\"}}\n"));
    let input = BufReader::new(Cursor::new(labels.collect::<String>()).chain(Open(open)));
    let (written, mut first_batch) = tokio::sync::mpsc::unbounded_channel();
    let loading =
        run(&location, input, OnFault::Stop, Events::Sent, |_| None, move |stage| written.send(stage).unwrap());
    tokio::select! {
        loaded = loading => panic!("an open input was loaded: {loaded:?}"),
        stage = first_batch.recv() => assert!(matches!(stage, Some(Stage::Loading(Progress { lines: 1_000, .. })))),
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("nothing was loaded"),
    }
    drop(other_end);
    assert_eq!(raw::select(&location, "SELECT name FROM labels").await, [""; 0]);
    load(&location, BASE).await;
}
