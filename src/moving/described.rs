//! A move as JSON: what the operator API and `formgate tenant moves --json` show.

use serde_json::{Value, json};

use crate::store::registry::MoveRecord;

/// A move, with databases without their passwords.
#[must_use]
pub fn describe(record: &MoveRecord) -> Value {
    json!({
        "id": record.id,
        "slug": record.slug,
        "state": record.state.as_str(),
        "reason": record.reason,
        "from": record.from,
        "to": record.to,
        "held_ms": record.held_ms,
    })
}
