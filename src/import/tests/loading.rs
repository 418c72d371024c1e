//! The contents of the database after an import.

use std::num::NonZeroU64;

use super::{BASE, fault, load};
use crate::store::filter::{Keyword, SubmissionFilter, Term};
use crate::store::fold;
use crate::store::{DatabaseLocation, PageRequest, Reindexed, Store, raw, reindex};

/// Every row that an import writes, as text.
const EVERYTHING: &str = "
    SELECT 'user ' || id || ' ' || email || ' ' || name || ' ' || email_folded AS line FROM users
    UNION ALL SELECT 'label ' || id || ' ' || name || ' ' || CASE WHEN shared THEN 'shared' ELSE '' END FROM labels
    UNION ALL SELECT 'form ' || id || ' ' || name || ' ' || coalesce(parent_id, 0) || CASE WHEN graduated THEN ' graduated' ELSE '' END FROM forms
    UNION ALL SELECT 'element ' || id || ' ' || form_id || ' ' || position || ' ' || gid || ' ' || name || ' ' || type FROM elements
    UNION ALL SELECT 'group ' || id || ' ' || name || ' ' || coalesce(external_id, '-') || CASE WHEN managed THEN ' managed' ELSE '' END FROM groups
    UNION ALL SELECT 'member ' || group_id || ' ' || user_id FROM group_members
    UNION ALL SELECT 'step ' || id || ' ' || form_id || ' ' || name FROM flow_steps
    UNION ALL SELECT 'asks ' || flow_step_id || ' ' || group_id FROM flow_step_groups
    UNION ALL SELECT 'submission ' || id || ' ' || form_id || ' ' || coalesce(parent_id, 0) || ' ' || status || ' ' || coalesce(submitter_id, 0) FROM submissions
    UNION ALL SELECT 'answer ' || submission_id || ' ' || element_id || ' ' || value || CASE WHEN files IS NULL THEN '' ELSE ' files' END FROM answers
    UNION ALL SELECT 'on ' || submission_id || ' ' || label_id || CASE WHEN shared THEN ' shared' ELSE '' END FROM submission_labels
    UNION ALL SELECT 'pending ' || submission_id || ' ' || user_id FROM submission_pending
    UNION ALL SELECT 'participant ' || submission_id || ' ' || user_id FROM submission_participants
    UNION ALL SELECT 'at ' || submission_id || ' ' || flow_step_id FROM submission_flow_steps
    UNION ALL SELECT 'listed ' || id || ' ' || form_id || ' ' || status || ' ' || coalesce(submitter_id, 0) FROM listed_submissions
    UNION ALL SELECT 'document ' || submission_id || ' ' || shown_in || ' ' || document FROM listed_documents
    UNION ALL SELECT 'terms ' || submission_id || ' ' || shown_in || ' ' || count(*) FROM listed_terms GROUP BY submission_id, shown_in";

async fn everything(location: &DatabaseLocation) -> Vec<String> {
    let mut lines = raw::select(location, EVERYTHING).await;
    lines.sort();
    lines
}

/// The difference between two states of a database: `-` removed rows, `+` added rows.
fn changes(before: &[String], after: &[String]) -> Vec<String> {
    let gone = before.iter().filter(|line| !after.contains(line)).map(|line| format!("-{line}"));
    let new = after.iter().filter(|line| !before.contains(line)).map(|line| format!("+{line}"));
    gone.chain(new).collect()
}

async fn search(location: &DatabaseLocation, filter: SubmissionFilter) -> Vec<i64> {
    let store = Store::open(location, 1).await.unwrap();
    let page = PageRequest { number: NonZeroU64::MIN, size: 20 };
    let found = store.search(&filter, page).await.unwrap();
    store.close().await;
    found.submissions.read().unwrap().unwrap().submissions.iter().map(|submission| submission.id).collect()
}

async fn found_by_keyword(location: &DatabaseLocation, keyword: &str) -> Vec<i64> {
    let filter = SubmissionFilter { search: Keyword::new(keyword), ..SubmissionFilter::default() };
    search(location, filter).await
}

async fn found_by_term(location: &DatabaseLocation, element: i64, answer: &str) -> Vec<i64> {
    let terms = vec![Term { element: Some(element), answers: vec![fold(answer)] }];
    let filter = SubmissionFilter { terms, ..SubmissionFilter::default() };
    search(location, filter).await
}

/// Asserts that the search tables match the rows they are derived from.
async fn assert_search_tables_match(location: &DatabaseLocation) {
    assert_eq!(reindex(location).await.unwrap(), Reindexed::default());
}

pub(super) async fn a_file_is_loaded_as_written(location: DatabaseLocation) {
    let imported = load(&location, BASE).await;
    assert_eq!((imported.users, imported.labels, imported.forms, imported.groups), (2, 2, 3, 2));
    assert_eq!((imported.flow_steps, imported.submissions, imported.lines, imported.faulty), (1, 3, 14, 0));
    assert_eq!(
        everything(&location).await,
        [
            "answer 1001 101 École d'ÉTÉ",
            "answer 1001 102 Montag\nDIENSTAG\n",
            "answer 1001 103 https://files.example/a.pdf,https://files.example/b files",
            "answer 1002 201 ",
            "answer 1003 301 Łódź",
            "asks 11 4",
            "at 1001 11",
            "document 1001 1001 école d'été\u{fdd0}montag\ndienstag\n\u{fdd0}https://files.example/a.pdf,https://files.example/b",
            "document 1002 1002 ",
            "document 1003 1002 łódź",
            "element 101 1 0 g-101 Reason text",
            "element 102 1 1 g-102 Days checkbox",
            "element 103 1 2 g-103 Proof file",
            "element 201 2 0 g-201 Where text",
            "element 301 3 0 g-301 City text",
            "form 1 Leave 0",
            "form 2 Trip 0 graduated",
            "form 3 Stop 2",
            "group 4 Managers ext-4 managed",
            "group 5 Staff -",
            "group 9007199254740991 All Users -",
            "label 3 Urgent ",
            "label 4 Team shared",
            "listed 1001 1 pending 7",
            "listed 1002 2 approved 0",
            "member 4 7",
            "member 4 8",
            "on 1001 3",
            "on 1001 3 shared",
            "on 1001 4 shared",
            "participant 1001 7",
            "participant 1001 8",
            "pending 1001 7",
            "step 11 1 Approval",
            "submission 1001 1 0 pending 7",
            "submission 1002 2 0 approved 0",
            "submission 1003 3 1002 approved 0",
            "terms 1001 1001 6",
            "terms 1002 1002 1",
            "terms 1003 1002 1",
            "user 7 ana@example.com Ana ana@example.com",
            "user 8 Éva@example.com  éva@example.com",
        ]
    );
    assert_search_tables_match(&location).await;

    let store = Store::open(&location, 1).await.unwrap();
    let found = store.submission(1001).await.unwrap();
    let submission = found.read().unwrap().unwrap().submissions.remove(0);
    // Truncated to microseconds and converted to UTC.
    assert_eq!(submission.created_at.to_string(), "2024-05-01T13:45:30.123456Z");
    assert_eq!(submission.updated_at.to_string(), "2024-05-01T23:00:00Z");
    let files: serde_json::Value = serde_json::from_str(submission.entries[2].files.as_deref().unwrap()).unwrap();
    assert_eq!(
        files,
        serde_json::json!([
            {"name": "a.pdf", "url": "https://files.example/a.pdf", "size": 12, "mime_type": "application/pdf"},
            {"name": "b", "url": "https://files.example/b", "size": null, "mime_type": null},
        ])
    );
    // An answer without a timestamp gets that of its submission.
    assert_eq!(submission.entries[0].updated_at, submission.updated_at);
    assert_eq!(submission.entries[1].updated_at, submission.created_at);
    store.close().await;
}

pub(super) async fn loading_is_idempotent(location: DatabaseLocation) {
    load(&location, BASE).await;
    let before = everything(&location).await;
    load(&location, BASE).await;
    assert_eq!(everything(&location).await, before);
    assert_search_tables_match(&location).await;
}

pub(super) async fn a_line_replaces_what_it_lists(location: DatabaseLocation) {
    load(&location, BASE).await;
    let before = everything(&location).await;
    load(
        &location,
        r#"
{"type":"user","id":7,"email":"ANA@example.com","name":"Ana B"}
{"type":"form","id":2,"name":"Trip","elements":[{"id":202,"gid":"g-202","name":"When","type":"date"},{"id":201,"gid":"g-201","name":"Where","type":"text"}]}
{"type":"group","id":4,"name":"Managers","members":[8]}
{"type":"flow_step","id":11,"form_id":1,"name":"Approval","groups":[5]}
{"type":"submission","id":1001,"form_id":1,"status":"denied","created_at":"2024-05-01T13:45:30.123456Z","updated_at":"2024-05-02T00:00:00Z","labels":[4],"shared_labels":[3],"pending_on":[8],"answers":[{"element_id":101,"value":"Ferien"},{"element_id":102,"value":"mittwoch"}]}
{"type":"submission","id":1002,"form_id":2,"status":"approved","created_at":"2024-05-01T00:00:00Z","updated_at":"2024-05-01T00:00:00Z"}"#,
    )
    .await;
    let after = everything(&location).await;
    assert_eq!(
        changes(&before, &after),
        [
            "-answer 1001 101 École d'ÉTÉ",
            "-answer 1001 102 Montag\nDIENSTAG\n",
            "-answer 1001 103 https://files.example/a.pdf,https://files.example/b files",
            "-answer 1002 201 ",
            "-asks 11 4",
            "-at 1001 11",
            "-document 1001 1001 école d'été\u{fdd0}montag\ndienstag\n\u{fdd0}https://files.example/a.pdf,https://files.example/b",
            "-document 1002 1002 ",
            "-document 1003 1002 łódź",
            "-element 201 2 0 g-201 Where text",
            "-form 2 Trip 0 graduated",
            "-group 4 Managers ext-4 managed",
            "-listed 1001 1 pending 7",
            "-member 4 7",
            "-on 1001 3",
            "-on 1001 4 shared",
            "-participant 1001 7",
            "-participant 1001 8",
            "-pending 1001 7",
            "-submission 1001 1 0 pending 7",
            "-terms 1001 1001 6",
            "-terms 1002 1002 1",
            "-terms 1003 1002 1",
            "-user 7 ana@example.com Ana ana@example.com",
            "+answer 1001 101 Ferien",
            "+answer 1001 102 mittwoch",
            "+asks 11 5",
            "+document 1001 1001 ferien\u{fdd0}mittwoch",
            "+document 1003 1003 łódź",
            "+element 201 2 1 g-201 Where text",
            "+element 202 2 0 g-202 When date",
            "+form 2 Trip 0",
            "+group 4 Managers -",
            "+listed 1001 1 denied 0",
            "+listed 1003 3 approved 0",
            "+on 1001 4",
            "+pending 1001 8",
            "+submission 1001 1 0 denied 0",
            "+terms 1001 1001 2",
            "+terms 1003 1003 1",
            "+user 7 ANA@example.com Ana B ana@example.com",
        ]
    );
    // An element without answers can be removed, and added to another form.
    load(
        &location,
        r#"
{"type":"form","id":1,"name":"Leave","elements":[{"id":101,"gid":"g-101","name":"Reason","type":"text"},{"id":102,"gid":"g-102","name":"Days","type":"checkbox"}]}
{"type":"form","id":3,"name":"Stop","parent_id":2,"elements":[{"id":301,"gid":"g-301","name":"City","type":"text"},{"id":103,"gid":"g-103","name":"Map","type":"file"}]}"#,
    )
    .await;
    assert_eq!(
        changes(&after, &everything(&location).await),
        ["-element 103 1 2 g-103 Proof file", "+element 103 3 1 g-103 Map file"]
    );
    assert_eq!(found_by_keyword(&location, "ferien").await, [1001]);
    assert_eq!(found_by_keyword(&location, "dienstag").await, [0; 0]);
    assert_search_tables_match(&location).await;
}

pub(super) async fn imported_answers_are_found_by_search_and_terms(location: DatabaseLocation) {
    load(&location, BASE).await;
    assert_eq!(found_by_keyword(&location, "COLE D'ét").await, [1001]);
    assert_eq!(found_by_keyword(&location, "ÉÉ").await, [0; 0]);
    assert_eq!(found_by_keyword(&location, "té").await, [1001]);
    assert_eq!(found_by_term(&location, 102, "Dienstag").await, [1001]);
    // The answers of a graduated child belong to its parent.
    assert_eq!(found_by_keyword(&location, "ŁÓDŹ").await, [1002]);
    assert_eq!(found_by_term(&location, 301, "łódź").await, [1002]);
}

pub(super) async fn the_built_in_group_takes_the_id_of_its_line(location: DatabaseLocation) {
    load(&location, BASE).await;
    let before = everything(&location).await;
    let text = r#"
{"type":"group","id":6,"name":"All Users","members":[7,99]}
{"type":"flow_step","id":12,"form_id":1,"name":"All","groups":[6]}"#;
    load(&location, text).await;
    load(&location, text).await;
    let after = everything(&location).await;
    assert_eq!(
        changes(&before, &after),
        ["-group 9007199254740991 All Users -", "+asks 12 6", "+group 6 All Users -", "+step 12 1 All"]
    );
    // References are updated, and its old id is free.
    load(
        &location,
        r#"
{"type":"group","id":10,"name":"All Users"}
{"type":"group","id":6,"name":"Six"}"#,
    )
    .await;
    assert_eq!(
        changes(&after, &everything(&location).await),
        ["-asks 12 6", "-group 6 All Users -", "+asks 12 10", "+group 10 All Users -", "+group 6 Six -"]
    );
    assert_eq!(
        fault(&location, r#"{"type":"group","id":10,"name":"Ten"}"#).await,
        "line 1, column 22, `id`: group 10 is the built-in group \"All Users\""
    );
}

pub(super) async fn lines_of_one_object_are_loaded_in_their_order(location: DatabaseLocation) {
    load(&location, BASE).await;
    let before = everything(&location).await;
    load(
        &location,
        r#"
{"type":"user","id":7,"email":"other@example.com","name":"Ana"}
{"type":"user","id":9,"email":"ana@example.com"}
{"type":"submission","id":1001,"form_id":1,"status":"info","created_at":"2024-05-01T13:45:30.123456Z","updated_at":"2024-05-02T00:00:00Z","answers":[{"element_id":101,"value":"first"}]}
{"type":"submission","id":1001,"form_id":3,"status":"back","created_at":"2024-05-01T13:45:30.123456Z","updated_at":"2024-05-02T00:00:00Z","answers":[{"element_id":301,"value":"second"}]}
{"type":"form","id":1,"name":"Leave"}
{"type":"form","id":3,"name":"Stop","parent_id":1,"elements":[{"id":301,"gid":"g-301","name":"City","type":"text"},{"id":101,"gid":"g-101","name":"Reason","type":"text"}]}
{"type":"group","id":5,"name":"Staff","members":[9]}"#,
    )
    .await;
    let changes = changes(&before, &everything(&location).await);
    for came in [
        "+user 7 other@example.com Ana other@example.com",
        "+user 9 ana@example.com  ana@example.com",
        "+submission 1001 3 0 back 0",
        "+answer 1001 301 second",
        "+document 1001 1001 second",
        "+element 101 3 1 g-101 Reason text",
        "+form 3 Stop 1",
        "+member 5 9",
    ] {
        assert!(changes.iter().any(|change| change == came), "{came} is not among {changes:#?}");
    }
    assert_eq!(changes.iter().filter(|change| change.starts_with("+answer")).count(), 1);
    assert_search_tables_match(&location).await;
}

pub(super) async fn a_long_file_is_loaded_in_batches(location: DatabaseLocation) {
    // Users and submissions alternate, each submission a child of the previous one.
    let mut text = BASE.to_owned();
    for n in 1..=2_500 {
        let (user, submission, parent) = (10_000 + n, 20_000 + n, if n == 1 { 1001 } else { 20_000 + n - 1 });
        text.push_str(&format!(
            r#"{{"type":"user","id":{user},"email":"user{user}@example.com"}}
{{"type":"submission","id":{submission},"form_id":1,"parent_id":{parent},"status":"info","submitter_id":{user},"created_at":"2024-05-01T00:00:00Z","updated_at":"2024-05-01T00:00:00Z","answers":[{{"element_id":101,"value":"Answer {n}"}}]}}
"#
        ));
    }
    let imported = load(&location, &text).await;
    assert_eq!((imported.users, imported.submissions, imported.lines), (2_502, 2_503, 5_014));
    assert_eq!(found_by_keyword(&location, "answer 2499").await, [22_499]);
    load(&location, &text).await;
    assert_search_tables_match(&location).await;
}

pub(super) async fn rows_written_by_sql_after_an_import_are_indexed(location: DatabaseLocation) {
    load(&location, BASE).await;
    raw::execute(&location, "INSERT INTO users (email) VALUES ('NEW@example.com')").await;
    assert_eq!(
        raw::select(&location, "SELECT id || ' ' || email_folded FROM users WHERE email = 'NEW@example.com'").await,
        ["9 new@example.com"]
    );
    raw::execute(&location, "UPDATE answers SET value = 'KRÄNK' WHERE submission_id = 1001 AND element_id = 101").await;
    raw::execute(&location, "DELETE FROM answers WHERE submission_id = 1001 AND element_id = 103").await;
    assert_eq!(found_by_keyword(&location, "kränk").await, [1001]);
    assert_eq!(
        raw::select(&location, "SELECT document FROM listed_documents WHERE submission_id = 1001").await,
        ["kränk\u{fdd0}montag\ndienstag\n"]
    );
    assert_search_tables_match(&location).await;
}

pub(super) async fn reindex_repairs_rows_written_around_the_triggers(location: DatabaseLocation) {
    load(&location, BASE).await;
    let before = everything(&location).await;
    for statement in [
        "UPDATE listed_documents SET document = 'wrong' WHERE submission_id = 1001",
        "INSERT INTO listed_documents (submission_id, shown_in, document) VALUES (77, 77, 'nobody''s')",
        "DELETE FROM listed_terms",
        "INSERT INTO listed_terms (term, shown_in, submission_id) VALUES (4711, 1003, 1003)",
        "UPDATE listed_counts SET listed = listed + 1 WHERE counted = 'form' AND listed > 0",
        "DELETE FROM listed_by_label WHERE shared",
        "UPDATE listed_submissions SET status = 'denied' WHERE id = 1002",
    ] {
        raw::execute(&location, statement).await;
    }
    let reindexed = reindex(&location).await.unwrap();
    // The counts of both forms are too high, and that of the wrong status is found one too low when it goes.
    assert_eq!(
        reindexed,
        Reindexed { users: 0, submissions: 1, documents: 4, labels: 1, counts: 5, changes: 0, audit_end: false }
    );
    assert_eq!(everything(&location).await, before);
    assert_search_tables_match(&location).await;
}

pub(super) async fn reindex_rebuilds_the_trigram_index(location: DatabaseLocation) {
    load(&location, BASE).await;
    if location.file().is_some() {
        raw::execute(&location, "INSERT INTO listed_trigrams (listed_trigrams) VALUES ('delete-all')").await;
        assert_eq!(found_by_keyword(&location, "montag").await, [0; 0]);
    } else {
        raw::execute(&location, "DROP INDEX listed_documents_trigrams").await;
    }
    assert_search_tables_match(&location).await;
    assert_eq!(found_by_keyword(&location, "montag").await, [1001]);
    if location.file().is_none() {
        let index = "SELECT indexname::text FROM pg_indexes WHERE indexname = 'listed_documents_trigrams'";
        assert_eq!(raw::select(&location, index).await.len(), 1);
    }
}
