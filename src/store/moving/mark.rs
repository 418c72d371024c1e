//! `formgate_move`, the row in both databases that says which move they belong to, and who may write for it.
//!
//! Each transaction of a move first takes the row with the number of its lease: a node that was paused and lost its lease
//! writes nothing to either database. In the source, the row says in the end that the account has left: that is the one place
//! that decides where the account is.

use super::table::bound;
use super::{MoveError, MoveMark};
use crate::store::StoreError;
use crate::store::engine::{DatabaseLocation, PooledConnection, Transaction};
use crate::store::statement::{Dialect, Sql};

/// What a database is for a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The account is here.
    Source,
    /// The account is copied to here.
    Target,
    /// The account was here, and has left.
    Left,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Target => "target",
            Self::Left => "left",
        }
    }

    fn of(name: &str) -> Self {
        match name {
            "target" => Self::Target,
            "left" => Self::Left,
            _ => Self::Source,
        }
    }
}

/// Why an account can't be served from a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotThere {
    /// The account has left it for this place.
    Left(String),
    /// It is the target of a move: an unfinished copy, until the account arrives.
    Unfinished,
}

/// What moves have made of a database, if an account can't be served from it. An unfinished copy may not be one that can be opened
/// as a [`Store`](crate::store::Store).
///
/// # Errors
/// [`StoreError::Unavailable`], [`StoreError::Statement`].
pub async fn find_not_there(location: &DatabaseLocation) -> Result<Option<NotThere>, StoreError> {
    if location.file().is_some_and(|file| !file.exists()) {
        return Ok(None);
    }
    let database = location.connect_for_maintenance();
    let found = async { Ok::<_, StoreError>(find(&mut database.reader().await?).await?) };
    let found = found.await;
    database.close().await;
    Ok(found?.and_then(|found| match found.role {
        Role::Source => None,
        Role::Target => Some(NotThere::Unfinished),
        Role::Left => Some(NotThere::Left(found.place)),
    }))
}

/// The row.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) id: i64,
    pub(super) role: Role,
    /// The identity of the account's database.
    pub(super) identity: String,
    /// Where the account goes.
    pub(super) place: String,
}

/// Create the table, which has one row.
const CREATE: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS formgate_move (id bigint NOT NULL, fence bigint NOT NULL, role text NOT NULL, \
     identity text NOT NULL, place text NOT NULL, only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row))",
    "CREATE TABLE IF NOT EXISTS formgate_move (id INTEGER NOT NULL, fence INTEGER NOT NULL, role TEXT NOT NULL, \
     identity TEXT NOT NULL, place TEXT NOT NULL, only_row INTEGER PRIMARY KEY DEFAULT 1) STRICT",
];

async fn has_table(reader: &mut PooledConnection, name: &'static str) -> Result<bool, sqlx::Error> {
    let sql = match reader.dialect() {
        Dialect::Postgres => [Sql::text("SELECT to_regclass("), bound(name), Sql::text(") IS NOT NULL")],
        Dialect::Sqlite => {
            [Sql::text("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = "), bound(name), Sql::text(")")]
        }
    };
    reader.fetch_one(Sql::joined(sql, "")).await?.get(0)
}

/// The row, if there is one.
pub(super) async fn find(reader: &mut PooledConnection) -> Result<Option<Found>, sqlx::Error> {
    if !has_table(reader, "formgate_move").await? {
        return Ok(None);
    }
    let row = reader.fetch_optional(Sql::text("SELECT id, role, identity, place FROM formgate_move")).await?;
    row.map(|row| {
        let role = Role::of(&row.get::<String>(1)?);
        Ok(Found { id: row.get(0)?, role, identity: row.get(2)?, place: row.get(3)? })
    })
    .transpose()
}

/// Has the database belong to a move, in place of an earlier one.
pub(super) async fn put(transaction: &mut Transaction, mark: &MoveMark, role: Role) -> Result<(), MoveError> {
    let [postgres, sqlite] = CREATE;
    transaction.command(if transaction.dialect() == Dialect::Postgres { postgres } else { sqlite }).await?;
    transaction.execute(Sql::text("DELETE FROM formgate_move")).await?;
    let values = [bound(mark.id), bound(mark.fence), bound(role.name()), bound(&mark.identity), bound(&mark.place)];
    let mut sql = Sql::text("INSERT INTO formgate_move (id, fence, role, identity, place) VALUES (");
    sql.append(Sql::joined(values, ", ")).append(Sql::text(")"));
    transaction.execute(sql).await?;
    Ok(())
}

/// Makes sure that no later holder of the lease has written, and that the account has not left.
pub(super) async fn take(transaction: &mut Transaction, mark: &MoveMark) -> Result<(), MoveError> {
    match take_over(transaction, mark).await? {
        Role::Source | Role::Target => Ok(()),
        Role::Left => Err(MoveError::Lost),
    }
}

/// Makes sure that no later holder of the lease has written, and that no earlier one will. Returns what the database is.
pub(super) async fn take_over(transaction: &mut Transaction, mark: &MoveMark) -> Result<Role, MoveError> {
    let sql = [
        Sql::text("UPDATE formgate_move SET fence = "),
        bound(mark.fence),
        Sql::text(" WHERE id = "),
        bound(mark.id),
        Sql::text(" AND fence <= "),
        bound(mark.fence),
        Sql::text(" RETURNING role"),
    ];
    let row = transaction.fetch_all(Sql::joined(sql, "")).await?.pop().ok_or(MoveError::Lost)?;
    Ok(Role::of(&row.get::<String>(0)?))
}

/// The account has left.
pub(super) async fn leave(transaction: &mut Transaction) -> Result<(), MoveError> {
    let mut sql = Sql::text("UPDATE formgate_move SET role = ");
    sql.append(bound(Role::Left.name()));
    transaction.execute(sql).await?;
    // What it was restored to is history.
    transaction.command("DROP TABLE IF EXISTS formgate_restored").await?;
    Ok(())
}
