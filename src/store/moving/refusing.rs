//! The triggers of a database that its account has left: they refuse every write in words, and say where the account is.

use super::table::TABLES;
use crate::store::engine::MOVED;
use crate::store::statement::Dialect;

fn text(place: &str) -> String {
    format!("{MOVED}: write to {place}").replace('\'', "''")
}

/// Statements that create the triggers. On Postgres, the error has the code of a read-only transaction.
pub(super) fn beginning(dialect: Dialect, place: &str) -> String {
    let text = text(place);
    match dialect {
        Dialect::Postgres => {
            let function = format!(
                "CREATE OR REPLACE FUNCTION formgate_move_refuse() RETURNS trigger LANGUAGE plpgsql AS $formgate$\n\
                 BEGIN RAISE read_only_sql_transaction USING MESSAGE = '{text}'; END\n$formgate$;\n"
            );
            let trigger = |name: &str| {
                format!(
                    "CREATE TRIGGER formgate_moved BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {name}\n\
                       FOR EACH STATEMENT EXECUTE FUNCTION formgate_move_refuse();\n\
                     ALTER TABLE {name} ENABLE ALWAYS TRIGGER formgate_moved;\n"
                )
            };
            TABLES.iter().map(|table| trigger(table.name)).fold(function, |all, one| all + &one)
        }
        Dialect::Sqlite => {
            let trigger = |name: &str, event: &str| {
                format!(
                    "CREATE TRIGGER formgate_moved_{name}_{event} BEFORE {event} ON {name} BEGIN\n  \
                     SELECT RAISE(ABORT, '{text}');\nEND;\n"
                )
            };
            let of_table = |name| ["INSERT", "UPDATE", "DELETE"].map(|event| trigger(name, event)).concat();
            TABLES.iter().map(|table| of_table(table.name)).collect()
        }
    }
}

/// Statements that remove them.
pub(super) fn ending(dialect: Dialect) -> String {
    let of_table = |name: &str| match dialect {
        Dialect::Postgres => format!("DROP TRIGGER IF EXISTS formgate_moved ON {name};\n"),
        Dialect::Sqlite => ["INSERT", "UPDATE", "DELETE"]
            .map(|event| format!("DROP TRIGGER IF EXISTS formgate_moved_{name}_{event};\n"))
            .concat(),
    };
    let function = match dialect {
        Dialect::Postgres => "DROP FUNCTION IF EXISTS formgate_move_refuse();\n",
        Dialect::Sqlite => "",
    };
    TABLES.iter().map(|table| of_table(table.name)).chain([function.to_owned()]).collect()
}
