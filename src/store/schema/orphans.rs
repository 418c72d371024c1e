//! Counts rows that refer to rows that do not exist, for `formgate check --deep`.
//!
//! `ALTER TABLE … DISABLE TRIGGER ALL` disables the checks of foreign keys as well, and enabling them again checks nothing that
//! was written in between. Reads every row with a foreign key, in one statement for each key.

use super::objects::{Object, ObjectKind, expected};
use crate::store::StoreError;
use crate::store::engine::{DatabaseLocation, PooledConnection};
use crate::store::statement::{Dialect, Sql, sql};

/// Rows of one table that refer to rows of another that do not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphans {
    /// The table that has them.
    pub table: String,
    /// The table that they refer to.
    pub referenced: String,
    /// How many there are.
    pub rows: i64,
}

/// Counts them for each pair of tables that has some.
///
/// # Errors
/// [`StoreError::Unavailable`], [`StoreError::Statement`].
pub async fn count_orphans(location: &DatabaseLocation) -> Result<Vec<Orphans>, StoreError> {
    let database = location.connect_for_maintenance();
    let mut reader = database.reader().await?;
    let counted = match reader.dialect() {
        Dialect::Postgres => count_on_postgres(&mut reader).await,
        Dialect::Sqlite => count_on_sqlite(&mut reader).await,
    };
    drop(reader);
    database.close().await;
    counted
}

async fn count_on_postgres(reader: &mut PooledConnection) -> Result<Vec<Orphans>, StoreError> {
    let mut counted = Vec::new();
    for (table, column, referenced, key) in expected(Dialect::Postgres).iter().filter_map(foreign_key) {
        let sql = sql!(
            "SELECT count(*) FROM {+table} AS referring
             WHERE {+column} IS NOT NULL
               AND NOT EXISTS (SELECT FROM {+referenced} AS referenced WHERE referenced.{+key} = referring.{+column})
             {scans: looks at every row}",
            table = Sql::text(table),
            column = Sql::text(column),
            referenced = Sql::text(referenced),
            key = Sql::text(key),
        );
        let rows = reader.fetch_one(sql).await?.get(0)?;
        if rows > 0 {
            counted.push(Orphans { table: table.to_owned(), referenced: referenced.to_owned(), rows });
        }
    }
    Ok(counted)
}

/// Table, column, and the table and the column that these refer to.
fn foreign_key(object: &'static Object) -> Option<(&'static str, &'static str, &'static str, &'static str)> {
    let definition = object.state.strip_prefix("FOREIGN KEY (").filter(|_| object.kind == ObjectKind::Constraint)?;
    let (column, rest) = definition.split_once(") REFERENCES ")?;
    let (referenced, rest) = rest.split_once('(')?;
    Some((object.table, column, referenced, rest.split_once(')')?.0))
}

async fn count_on_sqlite(reader: &mut PooledConnection) -> Result<Vec<Orphans>, StoreError> {
    let sql = sql!(
        "SELECT \"table\", parent, count(*) FROM pragma_foreign_key_check GROUP BY 1, 2 ORDER BY 1, 2
         {scans: looks at every row}",
    );
    let mut counted = Vec::new();
    for row in &reader.fetch_all(sql).await? {
        counted.push(Orphans { table: row.get(0)?, referenced: row.get(1)?, rows: row.get(2)? });
    }
    Ok(counted)
}
