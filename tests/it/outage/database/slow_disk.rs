//! Closing a SQLite file syncs it, and no request waits for the file of another account.

use std::time::{Duration, Instant};

use super::scene::BY_ITSELF;
use crate::support::client::operator_count;
use crate::support::fixture::{Engine, Site};
use crate::support::process::Node;
use crate::support::slow_disk::SlowDisk;

const OPEN: &str = r#"formgate_database_connections{database="sqlite",state="open"}"#;
const CLOSING: &str = r#"formgate_database_connections{database="sqlite",state="closing"}"#;

/// When all databases were last inspected, in seconds, or the node was started. The inspection opens each once.
const INSPECTED: &str = r#"formgate_task_last_success_timestamp_seconds{task="databases"}"#;

/// Enough for an inspection to take longer than a second, at 100 ms each.
const OTHERS: usize = 8;

/// As many files as 2 MiB keep open.
const CAP: usize = 3;

#[tokio::test]
async fn accounts_are_served_while_the_files_that_made_room_for_them_can_not_be_closed() {
    let writers: Vec<String> = (0..CAP).map(|n| format!("writer{n}")).collect();
    let readers: Vec<String> = (0..CAP).map(|n| format!("reader{n}")).collect();
    let site = Site::new().databases("sqlite_mib", 2);
    let all = || writers.iter().chain(&readers);
    let site = (0..OTHERS).fold(site, |site, n| site.tenant(&format!("other{n}"), Engine::Sqlite));
    let site = all().fold(site, |site, slug| site.tenant(slug, Engine::Sqlite)).requests_per_minute(100_000).write();
    let tokens: Vec<String> = all().map(|slug| site.token(slug, "tests")).collect();
    let clients = |node: &Node| -> Vec<_> {
        all().zip(&tokens).map(|(slug, token)| node.client().to(&site.host(slug)).with(token)).collect()
    };
    // After this, the last uses of all tokens are stored, and need not be written.
    let mut first = site.start();
    for client in clients(&first) {
        assert_eq!(client.get("/api/v1/me").send().await.status, 200);
    }
    assert_eq!(first.stop(BY_ITSELF).await, 0);

    let disk = SlowDisk::build(site.folder());
    let mut node = Node::spawn_in(&site.config_path, &disk.environment());
    let clients = clients(&node);
    let operator = node.operator_address();
    // It would keep a file open that the test wants closed.
    let (started, began) = (operator_count(operator, INSPECTED).await, Instant::now());
    while operator_count(operator, INSPECTED).await == started {
        assert!(began.elapsed() < Duration::from_secs(120), "two inspections do not take that long");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (writers, readers) = clients.split_at(CAP);
    let group = serde_json::json!({"name": "Staff", "members": [{"email": "nia@acme.example"}]});
    for writer in writers {
        assert_eq!(writer.put("/api/v1/group").json(&group).send().await.status, 201);
    }
    assert_eq!(operator_count(operator, OPEN).await, CAP as u64, "one for reading and writing");

    disk.hold();
    for (reader, closing) in readers.iter().zip(1..) {
        assert_eq!(reader.get("/api/v1/form").send().await.status, 200);
        let counts = (operator_count(operator, OPEN).await, operator_count(operator, CLOSING).await);
        assert_eq!(counts, (CAP as u64, closing));
    }
    disk.release();
    let began = Instant::now();
    while operator_count(operator, CLOSING).await > 0 {
        assert!(began.elapsed() < BY_ITSELF, "they stay open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for writer in writers {
        let groups = writer.get("/api/v1/group").send().await.json();
        assert!(groups.to_string().contains("Staff"), "{groups}");
    }
}
