//! Databases that are had in other ways than by one plain URL of a server: through a pooler, over IPv6 or a socket, with an
//! extension in a schema of its own; restored and altered ones.

mod altered;
mod catalog;
mod definitions;
mod pooler;
mod restored;
mod shared;
mod statements;
mod trigrams;
mod url;

use serde_json::{Value, json};

use crate::support::client::Client;

const AT: &str = "2024-05-01T12:00:00Z";

/// A form, and a submission for each answer, which has the numbers from 1.
fn submissions(answers: &[&str]) -> String {
    let form = json!({"type": "form", "id": 1, "name": "Leave", "elements": [
        {"id": 11, "gid": "g", "name": "Reason", "type": "text"}]});
    let mut lines = form.to_string();
    for (id, answer) in (1..).zip(answers) {
        let answers = json!([{"element_id": 11, "value": answer}]);
        let submission = json!({"type": "submission", "id": id, "form_id": 1, "status": "pending", "created_at": AT, "updated_at": AT, "answers": answers});
        lines.push_str(&format!("\n{submission}"));
    }
    lines
}

/// How many submissions a keyword finds.
async fn find(client: &Client, keyword: &str) -> Value {
    let answer = client.post("/api/v1/submission").json(&json!({ "search": keyword })).send().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["meta"]["total"].clone()
}
