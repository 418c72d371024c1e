//! The numbers that each table gave last: the next rows get the next ones, on whichever database.

use super::MoveError;
use super::table::bound;
use crate::store::engine::{PooledConnection, Transaction};
use crate::store::schema::numbered;
use crate::store::statement::{Dialect, Sql};

/// The last number of each table that numbers its rows. On SQLite, a table may keep none and continue after its highest.
pub(super) async fn read(reader: &mut PooledConnection) -> Result<Vec<(&'static str, i64)>, MoveError> {
    let mut last = Vec::new();
    for table in numbered() {
        let sql = match reader.dialect() {
            Dialect::Postgres => [
                Sql::text("SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence("),
                bound(table),
                Sql::text(", 'id')::regclass), 0)"),
            ],
            Dialect::Sqlite => [
                Sql::text("SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = "),
                bound(table),
                Sql::joined(
                    [
                        Sql::text("), 0), coalesce((SELECT max(id) FROM "),
                        Sql::text(table),
                        // The id of the built-in group is above all that are given.
                        Sql::text(" WHERE id < 9007199254740991), 0))"),
                    ],
                    "",
                ),
            ],
        };
        last.push((table, reader.fetch_one(Sql::joined(sql, "")).await?.get(0)?));
    }
    Ok(last)
}

/// Has the tables continue after these numbers.
pub(super) async fn write(transaction: &mut Transaction, last: &[(&'static str, i64)]) -> Result<(), MoveError> {
    for (table, number) in last {
        match transaction.dialect() {
            Dialect::Postgres => {
                let sql = [
                    Sql::text("SELECT setval(pg_get_serial_sequence("),
                    bound(*table),
                    Sql::text(", 'id')::regclass, "),
                    bound((*number).max(1)),
                    Sql::text(", "),
                    bound(*number > 0),
                    Sql::text(")"),
                ];
                transaction.fetch_all(Sql::joined(sql, "")).await?;
            }
            Dialect::Sqlite => {
                let mut old = Sql::text("DELETE FROM sqlite_sequence WHERE name = ");
                old.append(bound(*table));
                transaction.execute(old).await?;
                // Only for a table that keeps its last number.
                let sql = [
                    Sql::text("INSERT INTO sqlite_sequence (name, seq) SELECT name, "),
                    bound(*number),
                    Sql::text(" FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%' AND name = "),
                    bound(*table),
                ];
                transaction.execute(Sql::joined(sql, "")).await?;
            }
        }
    }
    Ok(())
}
