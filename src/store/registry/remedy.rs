//! What an operator does about a registry that can't be used.

use crate::store::StoreError;

/// The next step, for the operator API. What went wrong is the text of the error.
#[must_use]
pub fn registry_remedy(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unavailable(cause) | StoreError::Statement(cause) if is_damaged(cause) => DAMAGED,
        StoreError::Unavailable(cause) | StoreError::Statement(cause) if lacks_right(cause) => RIGHTS,
        StoreError::Statement(_) | StoreError::Migration(_) | StoreError::SchemaOlder { .. } | StoreError::RowLost => {
            DAMAGED
        }
        StoreError::SchemaUnreleased => UNRELEASED,
        StoreError::SchemaNewer { .. } => "run the newest version of formgate on every node",
        StoreError::OfDrill => "call a node that was started without `--drill`",
        StoreError::ReadOnly(_) | StoreError::Folder { .. } => {
            "let the user that runs formgate write to its file and folder, and free space on their disk"
        }
        StoreError::Unavailable(_)
        | StoreError::Resting
        | StoreError::Busy
        | StoreError::Locked { .. }
        | StoreError::Unsettled
        | StoreError::GroupDeleted
        | StoreError::MemorySpent(_) => {
            "try again; if that does not help, check its database and `registry` in `[gateway]`"
        }
    }
}

const DAMAGED: &str = "restore a backup of the registry, as `The registry after a restore` in deploy/backup.md shows; \
     until then every node serves what it last read";

const UNRELEASED: &str = "with the build that created it, run `formgate tenant export`. Name a new database in `registry`, \
     delete the snapshot of each node, and run `formgate tenant import` with the tables. Domains, operator tokens and \
     certificates are not exported: add domains and create tokens again; certificates are obtained again";

const RIGHTS: &str = "grant the role of `registry` what it lacks, as `Rights of a node` in deploy/registry.md shows; \
     `formgate check` names it";

/// Whether the role lacks a right (`insufficient_privilege`).
fn lacks_right(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(database) if database.code().as_deref() == Some("42501"))
}

/// Whether the data is damaged, or tables are missing.
fn is_damaged(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    let Some(code) = database.code() else { return false };
    match code.parse::<i64>() {
        // SQLite's primary result codes CORRUPT and NOTADB (sqlite.org/rescode.html). A SQLSTATE has five characters.
        Ok(code) if code < 10_000 => matches!(code & 0xff, 11 | 26),
        // Postgres: undefined_table, undefined_column, data_corrupted, index_corrupted.
        _ => matches!(&*code, "42P01" | "42703" | "XX001" | "XX002"),
    }
}
