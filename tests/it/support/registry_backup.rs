//! A backup of a registry, and its restore: the tables as they were, byte for byte, while nodes run.

use super::database::Database;

/// The tables, those first that others refer to.
const TABLES: [&str; 9] = [
    "registry_head",
    "registry_stamps",
    "registry_tenants",
    "registry_claims",
    "registry_nodes",
    "registry_domains",
    "registry_certificates",
    "registry_events",
    "registry_budgets",
];

/// Keeps the tables as they are now.
pub(crate) async fn back_up(registry: &Database) {
    for table in TABLES {
        registry.execute(&format!("CREATE TABLE kept_{table} AS SELECT * FROM {table}")).await;
    }
}

/// Makes them as they were, at once. Rows are inserted, so that no trigger of a change sees them.
pub(crate) async fn restore(registry: &Database) {
    let delete = TABLES.iter().rev().map(|table| format!("DELETE FROM {table}; "));
    let insert = TABLES.iter().map(|table| format!("INSERT INTO {table} SELECT * FROM kept_{table}; "));
    let all: String = delete.chain(insert).collect();
    registry.execute(&format!("BEGIN; {all}COMMIT")).await;
}
