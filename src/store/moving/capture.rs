//! Notes what changes in the source while it is copied: triggers on every table write the table and the key of each row into
//! `formgate_move_notes`, in the writer's own transaction.
//!
//! A note says nothing about what was written: the row is read when the note is applied. So a note that is there twice, or
//! is applied again after a crash, changes nothing. A `TRUNCATE` notes the whole table.

use std::collections::BTreeSet;

use sqlx::AssertSqlSafe;

use super::MoveError;
use super::table::{MovedTable, TABLES, bound};
use crate::store::engine::{Database, PooledConnection};
use crate::store::statement::{Dialect, Sql};

/// How many notes are applied at once.
///
/// Larger: a round holds a snapshot of the source for longer. Smaller: more rounds after a bulk load.
pub(super) const NOTES_AT_ONCE: u32 = 10_000;

/// How long creating a trigger waits for writers of its table, which wait behind it.
const LOCK_WAIT: &str = "SET LOCAL lock_timeout = '1s'";

/// A note.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) id: i64,
    pub(super) table: String,
    /// The key; `None` stands for the whole table.
    pub(super) key: Option<String>,
}

/// The schema of a Postgres account, as it is written in SQL; empty for SQLite.
pub(super) async fn schema_of(reader: &mut PooledConnection) -> Result<String, MoveError> {
    if reader.dialect() == Dialect::Sqlite {
        return Ok(String::new());
    }
    let sql = Sql::text(
        "SELECT quote_ident(nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.oid = to_regclass('database_identity')",
    );
    Ok(reader.fetch_one(sql).await?.get(0)?)
}

/// Begins to note what is written, where that has not begun.
pub(super) async fn begin(source: &Database) -> Result<(), MoveError> {
    let (dialect, schema) = (source.dialect(), schema_of(&mut source.reader().await?).await?);
    let notes = match dialect {
        Dialect::Postgres => {
            "CREATE TABLE IF NOT EXISTS formgate_move_notes (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, \
             relation text NOT NULL, key text) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)"
        }
        Dialect::Sqlite => {
            "CREATE TABLE IF NOT EXISTS formgate_move_notes (id INTEGER PRIMARY KEY AUTOINCREMENT, relation TEXT NOT NULL, \
             key TEXT) STRICT"
        }
    };
    let mut transaction = source.begin().await?;
    transaction.command(notes).await?;
    if dialect == Dialect::Sqlite {
        let triggers: String = TABLES.iter().filter(|table| table.has_key()).map(on_sqlite).collect();
        transaction.command(AssertSqlSafe(triggers)).await?;
    }
    transaction.commit().await?;
    if dialect == Dialect::Postgres {
        let found = noting(&mut source.reader().await?).await?;
        for table in TABLES.iter().filter(|table| table.has_key() && !found.contains(table.name)) {
            let mut transaction = source.begin().await?;
            transaction.command(LOCK_WAIT).await?;
            transaction.command(AssertSqlSafe(on_postgres(table, &schema))).await?;
            transaction.commit().await?;
        }
    }
    Ok(())
}

/// The tables whose triggers are there, on Postgres.
async fn noting(reader: &mut PooledConnection) -> Result<BTreeSet<String>, MoveError> {
    let sql = Sql::text(
        "SELECT relname::text FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid \
         WHERE tgname = 'formgate_move_noted' AND tgenabled = 'A' \
           AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('database_identity'))",
    );
    let rows = reader.fetch_all(sql).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?)
}

/// Statements that end the notes.
pub(super) fn ending(dialect: Dialect) -> String {
    let noted = TABLES.iter().filter(|table| table.has_key()).map(|table| table.name);
    let triggers: String = match dialect {
        Dialect::Postgres => noted
            .map(|name| {
                format!(
                    "DROP TRIGGER IF EXISTS formgate_move_noted ON {name};\n\
                     DROP TRIGGER IF EXISTS formgate_move_emptied ON {name};\n\
                     DROP FUNCTION IF EXISTS formgate_move_note_{name}();\n"
                )
            })
            .collect(),
        Dialect::Sqlite => noted
            .map(|name| {
                format!(
                    "DROP TRIGGER IF EXISTS formgate_move_{name}_inserted;\n\
                     DROP TRIGGER IF EXISTS formgate_move_{name}_updated;\n\
                     DROP TRIGGER IF EXISTS formgate_move_{name}_deleted;\n"
                )
            })
            .collect(),
    };
    format!("{triggers}DROP TABLE IF EXISTS formgate_move_notes;\n")
}

/// The key of `NEW` or `OLD`, as a JSON array.
fn key(table: &MovedTable, row: &str, dialect: Dialect) -> String {
    let columns = table.key.iter().map(|at| &table.columns[*at]);
    let values: Vec<_> = columns.map(|column| column.kind.noted(&format!("{row}.{}", column.name), dialect)).collect();
    let values = values.join(", ");
    match dialect {
        Dialect::Postgres => format!("json_build_array({values})::text"),
        Dialect::Sqlite => format!("json_array({values})"),
    }
}

/// Runs as the owner, with the name of the schema, so that the writer needs no right and no search path.
fn on_postgres(table: &MovedTable, schema: &str) -> String {
    let name = table.name;
    let [new, old] = ["NEW", "OLD"].map(|row| key(table, row, Dialect::Postgres));
    format!(
        "CREATE OR REPLACE FUNCTION formgate_move_note_{name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$\n\
         DECLARE\n  new_key text;\n  old_key text;\nBEGIN\n\
         IF TG_OP IN ('INSERT', 'UPDATE') THEN new_key := {new}; END IF;\n\
         IF TG_OP IN ('UPDATE', 'DELETE') THEN old_key := {old}; END IF;\n\
         IF TG_OP = 'INSERT' OR new_key IS DISTINCT FROM old_key AND TG_OP = 'UPDATE' THEN\n\
           INSERT INTO {schema}.formgate_move_notes (relation, key) VALUES ('{name}', new_key);\n\
         END IF;\n\
         IF TG_OP <> 'INSERT' THEN\n\
           INSERT INTO {schema}.formgate_move_notes (relation, key) VALUES ('{name}', old_key);\n\
         END IF;\n\
         RETURN NULL;\nEND\n$$;\n\
         DROP TRIGGER IF EXISTS formgate_move_noted ON {name};\n\
         CREATE TRIGGER formgate_move_noted AFTER INSERT OR UPDATE OR DELETE ON {name}\n\
           FOR EACH ROW EXECUTE FUNCTION formgate_move_note_{name}();\n\
         DROP TRIGGER IF EXISTS formgate_move_emptied ON {name};\n\
         CREATE TRIGGER formgate_move_emptied AFTER TRUNCATE ON {name}\n\
           FOR EACH STATEMENT EXECUTE FUNCTION formgate_move_note_{name}();\n\
         ALTER TABLE {name} ENABLE ALWAYS TRIGGER formgate_move_noted, ENABLE ALWAYS TRIGGER formgate_move_emptied;\n"
    )
}

/// What `REPLACE` removes by another key fires no trigger: comparing the tables finds it.
fn on_sqlite(table: &MovedTable) -> String {
    let name = table.name;
    let [new, old] = ["NEW", "OLD"].map(|row| key(table, row, Dialect::Sqlite));
    let trigger = |event: &str, done: &str, keys: &[&String]| {
        let notes: String = keys
            .iter()
            .map(|key| format!("  INSERT INTO formgate_move_notes (relation, key) VALUES ('{name}', {key});\n"))
            .collect();
        format!("CREATE TRIGGER IF NOT EXISTS formgate_move_{name}_{done} AFTER {event} ON {name} BEGIN\n{notes}END;\n")
    };
    [
        trigger("INSERT", "inserted", &[&new]),
        trigger("UPDATE", "updated", &[&new, &old]),
        trigger("DELETE", "deleted", &[&old]),
    ]
    .concat()
}

/// The first notes that a snapshot sees.
pub(super) async fn read(reader: &mut PooledConnection) -> Result<Vec<Note>, MoveError> {
    let mut sql = Sql::text("SELECT id, relation, key FROM formgate_move_notes ORDER BY id LIMIT ");
    sql.append(bound(NOTES_AT_ONCE));
    let rows = reader.fetch_all(sql).await?;
    let note = |row: &crate::store::statement::Row| Ok(Note { id: row.get(0)?, table: row.get(1)?, key: row.get(2)? });
    Ok(rows.iter().map(note).collect::<Result<_, sqlx::Error>>()?)
}

/// Removes notes that were applied: each by its number, since one with a lower number may commit later.
pub(super) fn removal(notes: &[Note]) -> Sql {
    let ids: Vec<i64> = notes.iter().map(|note| note.id).collect();
    let mut sql = Sql::text("DELETE FROM formgate_move_notes WHERE id ");
    sql.append(crate::store::statement::sql!("{in ids}", ids));
    sql
}
