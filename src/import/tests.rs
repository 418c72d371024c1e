//! End-to-end imports. Each case is a function of a migrated, empty database, so that it can run on Postgres and
//! SQLite.

mod faults;
mod loading;

use std::io::Cursor;

use crate::import::{ImportError, Imported, OnFault, run};
use crate::store::{DatabaseLocation, Events, Reach, migrate};

/// The lines with which most cases start.
const BASE: &str = r#"
{"type":"user","id":7,"email":"ana@example.com","name":"Ana"}
{"type":"user","id":8,"email":"Éva@example.com"}
{"type":"label","id":3,"name":"Urgent","shared":false}
{"type":"label","id":4,"name":"Team","shared":true}
{"type":"form","id":1,"name":"Leave","anonymous":false,"disabled":false,"parent_id":null,"graduated":false,"elements":[{"id":101,"gid":"g-101","name":"Reason","type":"text"},{"id":102,"gid":"g-102","name":"Days","type":"checkbox"},{"id":103,"gid":"g-103","name":"Proof","type":"file"}]}
{"type":"form","id":2,"name":"Trip","graduated":true,"elements":[{"id":201,"gid":"g-201","name":"Where","type":"text"}]}
{"type":"form","id":3,"name":"Stop","parent_id":2,"elements":[{"id":301,"gid":"g-301","name":"City","type":"text"}]}
{"type":"group","id":4,"name":"Managers","external_id":"ext-4","managed":true,"members":[7,8,7]}
{"type":"group","id":5,"name":"Staff"}
{"type":"flow_step","id":11,"form_id":1,"name":"Approval","groups":[4]}
{"type":"submission","id":1001,"form_id":1,"parent_id":null,"status":"pending","draft":false,"submitter_id":7,"created_at":"2024-05-01T13:45:30.1234567Z","updated_at":"2024-05-02T01:00:00+02:00","labels":[3],"shared_labels":[4,3],"pending_on":[7],"participants":[7,8],"flow_steps":[11],"answers":[{"element_id":102,"value":"Montag\nDIENSTAG\n","updated_at":"2024-05-01T13:45:30.123456Z","files":[]},{"element_id":101,"value":"École d'ÉTÉ"},{"element_id":103,"value":"","files":[{"name":"a.pdf","url":"https://files.example/a.pdf","size":12,"mime_type":"application/pdf"},{"name":"b","url":"https://files.example/b"}]}]}
{"type":"submission","id":1002,"form_id":2,"status":"approved","created_at":"2024-05-01T00:00:00Z","updated_at":"2024-05-01T00:00:00Z","answers":[{"element_id":201,"value":null}]}
{"type":"submission","id":1003,"form_id":3,"parent_id":1002,"status":"approved","created_at":"2024-05-01T00:00:00Z","updated_at":"2024-05-01T00:00:00Z","answers":[{"element_id":301,"value":"Łódź"}]}
"#;

async fn import(location: &DatabaseLocation, text: &str, on_fault: OnFault) -> Result<Imported, ImportError> {
    run(location, Cursor::new(text.to_owned()), on_fault, Events::Sent, |_| None, |_| ()).await
}

async fn load(location: &DatabaseLocation, text: &str) -> Imported {
    import(location, text, OnFault::Stop).await.unwrap()
}

/// The fault of a refused text.
async fn fault(location: &DatabaseLocation, text: &str) -> String {
    match import(location, text, OnFault::Stop).await {
        Err(ImportError::Faulty(fault)) => fault.to_string(),
        other => panic!("expected a fault, got {other:?}"),
    }
}

/// Runs each case on its own SQLite database.
macro_rules! on_sqlite {
    ($($case:path => $name:ident,)*) => {$(
        #[tokio::test]
        async fn $name() {
            let folder = tempfile::tempdir().unwrap();
            let location = DatabaseLocation::parse("sqlite:forms.db", folder.path()).unwrap();
            migrate(&location, Reach::Served).await.unwrap();
            $case(location).await;
        }
    )*};
}

on_sqlite! {
    faults::every_fault_is_named_by_line_column_and_key => every_fault_is_named_by_line_column_and_key,
    faults::a_faulty_line_leaves_nothing_behind => a_faulty_line_leaves_nothing_behind,
    faults::the_first_fault_in_line_order_is_reported => the_first_fault_in_line_order_is_reported,
    faults::keep_going_skips_only_faulty_lines => keep_going_skips_only_faulty_lines,
    faults::an_unreadable_input_leaves_nothing_behind => an_unreadable_input_leaves_nothing_behind,
    loading::a_file_is_loaded_as_written => a_file_is_loaded_as_written,
    loading::loading_is_idempotent => loading_is_idempotent,
    loading::a_line_replaces_what_it_lists => a_line_replaces_what_it_lists,
    loading::imported_answers_are_found_by_search_and_terms => imported_answers_are_found_by_search_and_terms,
    loading::the_built_in_group_takes_the_id_of_its_line => the_built_in_group_takes_the_id_of_its_line,
    loading::lines_of_one_object_are_loaded_in_their_order => lines_of_one_object_are_loaded_in_their_order,
    loading::a_long_file_is_loaded_in_batches => a_long_file_is_loaded_in_batches,
    loading::rows_written_by_sql_after_an_import_are_indexed => rows_written_by_sql_after_an_import_are_indexed,
    faults::a_cancelled_load_leaves_nothing_behind => a_cancelled_load_leaves_nothing_behind,
    loading::reindex_rebuilds_the_trigram_index => reindex_rebuilds_the_trigram_index,
    loading::reindex_repairs_rows_written_around_the_triggers => reindex_repairs_rows_written_around_the_triggers,
}

#[tokio::test]
async fn a_database_without_the_newest_schema_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let location = DatabaseLocation::parse("sqlite:forms.db", folder.path()).unwrap();
    assert!(matches!(import(&location, "", OnFault::Stop).await, Err(ImportError::Store(_))));
    assert!(!folder.path().join("forms.db").exists());
}

#[tokio::test]
async fn reindex_folds_what_sql_wrote_beyond_ascii() {
    use crate::store::{Reindexed, raw, reindex};

    let folder = tempfile::tempdir().unwrap();
    let location = DatabaseLocation::parse("sqlite:forms.db", folder.path()).unwrap();
    migrate(&location, Reach::Served).await.unwrap();
    load(&location, BASE).await;
    for statement in [
        "INSERT INTO users (id, email) VALUES (20, 'ÖZ@example.com')",
        "INSERT INTO users (id, email) VALUES (21, 'ÉVA@example.com')", // another Éva, unknown to SQLite as such
        "UPDATE answers SET value = 'ÄRGER
ÖL' WHERE submission_id = 1001 AND element_id = 101",
    ] {
        raw::execute(&location, statement).await;
    }
    let reindexed = Reindexed { users: 1, ..Reindexed::default() };
    assert_eq!(reindex(&location).await.unwrap(), reindexed, "answers beyond ASCII need no rebuild");
    assert_eq!(
        raw::select(&location, "SELECT coalesce(email_folded, 'none') FROM users WHERE id >= 20 ORDER BY id").await,
        ["öz@example.com", "none"]
    );
}
