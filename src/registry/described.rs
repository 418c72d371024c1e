//! A row of the registry as JSON: what the operator API and `formgate tenant … --json` show.

use serde_json::{Value, json};

use crate::config::registered::json;
use crate::instant::Rfc3339Micros;
use crate::store::registry::RegistryRow;

/// A tenant, with the keys of its table.
#[must_use]
pub fn describe(row: &RegistryRow) -> Value {
    json!({
        "slug": row.slug,
        "owner": "registry",
        "revision": row.revision,
        "changed_at": Rfc3339Micros(row.changed_at),
        "changed_by": row.changed_by,
        "added_domains": row.domains,
        "tenant": row.text.as_deref().and_then(json::from_text),
    })
}
