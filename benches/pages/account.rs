//! The account whose submissions are read.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::client::Client;
use crate::support::database::Database;
use crate::support::fixture::Engine;

/// How long a node may take to derive its search tables in the background.
const DERIVED_WITHIN: Duration = Duration::from_secs(1800);

/// Waits until the first page can be read, and then has the database count what it holds.
pub(crate) async fn wait_for_search(client: &Client, database: &Database, engine: Engine) {
    let since = Instant::now();
    while client.post("/api/v1/submission").json(&json!({"page": 1})).send().await.status != 200 {
        assert!(since.elapsed() < DERIVED_WITHIN, "the search tables are derived from the background");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    database.execute(if engine == Engine::Postgres { "VACUUM ANALYZE" } else { "ANALYZE" }).await;
}

/// Forms with 12 elements each, from 101 on for the first, 20 labels, and submissions a minute apart. The first and the last
/// thousand have all 12 answers, the others the first few.
pub(crate) async fn fill(database: &Database, engine: Engine, forms: i64, submissions: i64, answers: u32) {
    let numbers = |name: &str, to: i64| match engine {
        Engine::Postgres | Engine::PostgresOn(_) => format!("generate_series(1, {to}) AS {name} ({name})"),
        Engine::Sqlite => format!(
            "(WITH RECURSIVE r ({name}) AS (SELECT 1 UNION ALL SELECT {name} + 1 FROM r WHERE {name} < {to}) SELECT {name} FROM r)"
        ),
    };
    let at = |minutes: &str| match engine {
        Engine::Postgres | Engine::PostgresOn(_) => {
            format!("timestamptz '2024-01-01T00:00:00Z' + ({minutes}) * interval '1 minute'")
        }
        Engine::Sqlite => format!("1704067200000000 + ({minutes}) * 60000000"),
    };
    let (created, updated) = (at("i"), at(&format!("CASE WHEN i < {} THEN 0 ELSE i END", submissions / 2)));
    for statement in [
        format!("INSERT INTO labels (id, name) SELECT i, 'Label ' || i FROM {}", numbers("i", 20)),
        format!("INSERT INTO forms (id, name) SELECT i, 'Form ' || i FROM {}", numbers("i", forms)),
        format!(
            "INSERT INTO elements (id, form_id, position, gid, name, type) \
             SELECT i * 100 + e, i, e, '00000000-0000-4000-8000-000000000001', 'Question number ' || e, 'text' FROM {}, {}",
            numbers("i", forms),
            numbers("e", 12)
        ),
        format!(
            "INSERT INTO submissions (id, form_id, status, created_at, updated_at) \
             SELECT i, 1 + i % {forms}, CASE WHEN i % 100 = 0 THEN 'info' ELSE 'pending' END, {created}, {updated} FROM {}",
            numbers("i", submissions)
        ),
        format!(
            "INSERT INTO answers (submission_id, element_id, value, updated_at) \
             SELECT i, (1 + i % {forms}) * 100 + e, CASE WHEN e = 1 AND i % 100 = 3 THEN 'A rare answer ' ELSE 'The answer to it is this: ' END || i, {updated} FROM {}, {} \
             WHERE e <= {answers} OR i <= 1000 OR i > {}",
            numbers("i", submissions),
            numbers("e", 12),
            submissions - 1000
        ),
        format!(
            "INSERT INTO submission_labels (submission_id, label_id) SELECT i, 1 + i % 20 FROM {}",
            numbers("i", submissions)
        ),
    ] {
        database.execute(&statement).await;
    }
}
