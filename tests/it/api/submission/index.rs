//! A keyword is looked up, not read for.

use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::account::account;
use crate::support::fixture::Engine;

/// Postgres writes its statistics down when a connection has been quiet for a while.
const COUNTED: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_keyword_is_served_by_the_trigrams_of_postgres() {
    let mut lines = String::new();
    let form = json!({"type": "form", "id": 1, "name": "F", "elements": [{"id": 11, "gid": "g", "name": "N", "type": "text"}]});
    writeln!(lines, "{form}").unwrap();
    for id in 1..=6000 {
        let answers =
            json!([{"element_id": 11, "value": format!("One of many, case {id}, {}", "and more of it ".repeat(20))}]);
        let at = "2024-05-01T00:00:00Z";
        let submission = json!({"type": "submission", "id": id, "form_id": 1, "status": "pending", "created_at": at, "updated_at": at, "answers": answers});
        writeln!(lines, "{submission}").unwrap();
    }
    let account = account(Engine::Postgres, &lines);
    let found = account.search("", &json!({"search": "CASE 2718,"})).await;
    assert_eq!((&found["meta"]["total"], &found["data"][0]["id"]), (&json!(1), &json!("sub_2718")));

    let database = account.database().await;
    let since = Instant::now();
    loop {
        let scans = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'submission_documents_trigrams'";
        let [used] = database.integers(scans).await;
        if used > 0 {
            break;
        }
        assert!(since.elapsed() < COUNTED, "the index was not used");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
