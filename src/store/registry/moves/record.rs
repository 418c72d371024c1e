//! A move of an account, as the registry has it.

use crate::store::statement::{Row, Sql};

/// How far a move is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    /// The tables are copied.
    Copying,
    /// What changed meanwhile is copied.
    CatchingUp,
    /// The account's requests wait.
    Holding,
    /// The account is in the other database.
    Done,
    /// Somebody cancelled it.
    Cancelled,
    /// It can't succeed.
    Failed,
}

impl MoveState {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Copying, Self::CatchingUp, Self::Holding, Self::Done, Self::Cancelled, Self::Failed];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Copying => "copying",
            Self::CatchingUp => "catching_up",
            Self::Holding => "holding",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    pub(super) fn of(name: &str) -> Self {
        Self::ALL.into_iter().find(|state| state.as_str() == name).unwrap_or(Self::Failed)
    }

    /// Whether the account may still be moved.
    #[must_use]
    pub fn is_under_way(self) -> bool {
        matches!(self, Self::Copying | Self::CatchingUp | Self::Holding)
    }
}

/// A move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveRecord {
    /// Its number.
    pub id: i64,
    /// The tenant.
    pub slug: String,
    /// How far it is.
    pub state: MoveState,
    /// Why it failed, or what it waits for.
    pub reason: Option<String>,
    /// The database that the account leaves, without a password.
    pub from: String,
    /// The database to which it moves, without a password.
    pub to: String,
    /// How long requests waited, in milliseconds.
    pub held_ms: Option<i64>,
    /// Who asked for it.
    pub asked_by: String,
    /// The address of the database to which it moves, as in its claims.
    pub place: String,
    /// The identity that is stored in the account's database.
    pub identity: String,
    /// That of the lease.
    pub fence: i64,
    /// The databases, as the table of the tenant has them before and afterwards. Not shown: they may have passwords.
    old_database: Hidden,
    database: Hidden,
}

/// A text that is not logged.
#[derive(Clone, PartialEq, Eq)]
struct Hidden(String);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl MoveRecord {
    /// The database to which it moves, as the table of the tenant has it afterwards.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database.0
    }

    /// The database that the account leaves, as the table of the tenant has it before.
    #[must_use]
    pub fn old_database(&self) -> &str {
        &self.old_database.0
    }

    pub(super) fn columns() -> Sql {
        Sql::text(
            "id, slug, state, reason, source, target, held_ms, asked_by, place, identity, fence, old_database, database",
        )
    }

    pub(super) fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            slug: row.get(1)?,
            state: MoveState::of(&row.get::<String>(2)?),
            reason: row.get(3)?,
            from: row.get(4)?,
            to: row.get(5)?,
            held_ms: row.get(6)?,
            asked_by: row.get(7)?,
            place: row.get(8)?,
            identity: row.get(9)?,
            fence: row.get(10)?,
            old_database: Hidden(row.get(11)?),
            database: Hidden(row.get(12)?),
        })
    }
}
