//! A database that was restored from a backup, before its account goes back to it.
//!
//! What was written goes back to the instant of the backup. What people have decided since stays as it is: who may do what, and
//! what is sent to whom. So [`prepare_restored`] takes tokens and subscriptions from the account's present database. It also
//! ends sign-ins, begins the change log again, so that whoever follows it loads everything again, and has no webhook sent for
//! what was written before. Ids that were given since are not given again, where a database counts them.
//!
//! Then it marks the database: whose it is, and of which instant.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use sqlx::AssertSqlSafe;

use super::audit::{self, Actor, AuditEntry};
use super::derived::changes::DROP_EVENTS;
use super::engine::{Database, DatabaseLocation, PooledConnection, Transaction};
use super::moving::forget_moves;
use super::statement::{Dialect, Sql, sql};
use super::subscriptions::{CarriedSubscriptions, carry_subscriptions};
use super::tokens::{CarriedTokens, carry_tokens};
use super::{DatabaseIdentity, Reach, Store, StoreError, WaitingEvents, migrate, schema};
use crate::instant::Rfc3339Micros;

/// The tables whose ids a database counts: after a restore, it goes on where it is now.
const NUMBERED: [&str; 11] = [
    "users",
    "forms",
    "elements",
    "labels",
    "groups",
    "flow_steps",
    "submissions",
    "tokens",
    "admin_sessions",
    "group_syncs",
    "subscriptions",
];

/// How far the clocks of two machines may be apart.
///
/// Larger: a backup that is a little too new is taken. Smaller: one of the right instant is refused.
const CLOCKS: Duration = Duration::from_secs(60);

/// Why a restored database can't be prepared.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The account's present database can't be used.
    #[error("the account's present database can't be read, which says who may do what now")]
    Present(#[source] StoreError),
    /// The restored database can't be used.
    #[error("the restored database can't be used")]
    Restored(#[source] StoreError),
    /// It has no tables of an account.
    #[error("the database has no tables of an account: restore a backup of the account into it first")]
    Empty,
    /// It is of a moment at which an account was being copied to it.
    #[error("the backup is of a moment at which an account was being moved to this database, and is not whole")]
    HalfCopied,
    /// It is that of another account.
    #[error("the database was restored from a backup of another account")]
    OfAnotherAccount,
    /// It is of a later instant than the one to which the account is to go back.
    #[error("the backup has rows of {newest}: it is of a later instant than {at}")]
    Newer {
        /// That of its newest row with a time that formgate wrote.
        newest: Timestamp,
        /// The wanted one.
        at: Timestamp,
    },
    /// It is prepared, for another instant.
    #[error("the database is prepared already, as it was at {at}")]
    Prepared {
        /// That instant.
        at: Timestamp,
    },
    /// It is the account's own.
    #[error("this is the account's present database: restore the backup into another one")]
    SameDatabase,
}

/// The mark of a restored database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RestoredMark {
    /// The identity of the account's database.
    pub(super) identity: String,
    /// To which instant it was restored.
    pub(super) at: Timestamp,
}

/// What a restored database got of the present one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarriedOver {
    /// Tokens.
    pub tokens: CarriedTokens,
    /// Subscriptions.
    pub subscriptions: CarriedSubscriptions,
}

/// What is restored, for the audit log.
#[derive(Clone, Copy, Debug)]
pub struct Restoration<'r> {
    /// The account.
    pub slug: &'r str,
    /// The instant to which it goes back.
    pub at: Timestamp,
    /// The restored database, without a password.
    pub place: &'r str,
}

/// Prepares a database that was restored from a backup of an account, so that the account can go back to it. Preparing it again
/// is well. The audit log gets a row on both sides.
///
/// # Errors
/// [`RestoreError`]. The restored database may have been changed, and is not marked.
pub async fn prepare_restored(
    present: &DatabaseLocation,
    restored: &DatabaseLocation,
    restoration: &Restoration<'_>,
    by: &Actor,
) -> Result<CarriedOver, RestoreError> {
    let now = Store::open(present, 1).await.map_err(RestoreError::Present)?;
    let prepared = prepare(&now, restored, restoration, by).await;
    let outcome = match prepared {
        Ok(carried) => {
            let Restoration { slug, at, place } = restoration;
            let details = json!({ "to": Rfc3339Micros(*at), "database": place });
            let entry = AuditEntry { action: "tenant.restored", subject: format!("tenant {slug}"), details };
            now.audit(by, entry, Timestamp::now()).await.map(|()| carried).map_err(RestoreError::Present)
        }
        Err(error) => Err(error),
    };
    now.close().await;
    outcome
}

async fn prepare(
    now: &Store,
    restored: &DatabaseLocation,
    restoration: &Restoration<'_>,
    by: &Actor,
) -> Result<CarriedOver, RestoreError> {
    let database = restored.connect_for_maintenance();
    let checked = check(&database, now, restoration.at).await;
    database.close().await;
    checked?;
    migrate(restored, Reach::Served).await.map_err(RestoreError::Restored)?;
    let then = Store::open(restored, 1).await.map_err(RestoreError::Restored)?;
    let prepared = then.go_back(now, restoration, by).await;
    then.close().await;
    prepared
}

/// Refuses a database that was not restored from a backup of the account, and removes what a move left in it.
async fn check(database: &Database, now: &Store, at: Timestamp) -> Result<(), RestoreError> {
    let read = async {
        let mut reader = database.reader().await?;
        if !schema::has_migrations(&mut reader).await? {
            return Ok(None);
        }
        let (identity, physical_id) = DatabaseIdentity::read(&mut reader).await?;
        let mark = RestoredMark::find(&mut reader).await?;
        Ok::<_, StoreError>(Some((identity, physical_id, mark, newest_row(&mut reader).await?)))
    };
    let Some((identity, physical_id, mark, newest)) = read.await.map_err(RestoreError::Restored)? else {
        return Err(RestoreError::Empty);
    };
    if identity != *now.identity() {
        return Err(RestoreError::OfAnotherAccount);
    }
    if physical_id.is_some() && physical_id == now.physical_id() {
        return Err(RestoreError::SameDatabase);
    }
    match (mark, newest) {
        (Some(mark), _) if mark.at != at => return Err(RestoreError::Prepared { at: mark.at }),
        // Litestream restores to the instant.
        (None, Some(newest)) if database.dialect() == Dialect::Postgres && newest > at + CLOCKS => {
            return Err(RestoreError::Newer { newest, at });
        }
        _ => {}
    }
    // Otherwise the migration could not write.
    if forget_moves(database).await.map_err(RestoreError::Restored)? {
        return Err(RestoreError::HalfCopied);
    }
    Ok(())
}

/// The time of the newest row of the audit log. Those of submissions are what programs wrote.
async fn newest_row(reader: &mut PooledConnection) -> Result<Option<Timestamp>, sqlx::Error> {
    reader.fetch_one(sql!("SELECT max(at) FROM audit_log")).await?.get(0)
}

impl Store {
    async fn go_back(
        &self,
        present: &Self,
        restoration: &Restoration<'_>,
        by: &Actor,
    ) -> Result<CarriedOver, RestoreError> {
        self.reset_changes(WaitingEvents::Dropped, by).await.map_err(RestoreError::Restored)?;
        let mut reader = present.database.reader().await.map_err(RestoreError::Present)?;
        let last = sql!("SELECT last_id, digest FROM audit_state");
        let last = reader.fetch_one(last).await.map_err(|error| RestoreError::Present(error.into()))?;
        let written = async {
            let (id, digest): (i64, Vec<u8>) = (last.get(0)?, last.get(1)?);
            let mut transaction = self.database.begin().await?;
            let carried = carry_over(&mut reader, &mut transaction, Timestamp::now()).await?;
            transaction.command("DELETE FROM admin_sessions; DELETE FROM admin_links").await?;
            let mark = RestoredMark { identity: self.identity().as_str().to_owned(), at: restoration.at };
            mark.write(&mut transaction).await?;
            // What the log had since is found at the other side, which nobody can change unnoticed.
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let details = json!({ "to": Rfc3339Micros(restoration.at), "last_row": id, "last_digest": digest });
            let entry =
                AuditEntry { action: "tenant.restored", subject: format!("tenant {}", restoration.slug), details };
            audit::append(&mut transaction, by, entry, Timestamp::now()).await?;
            transaction.commit().await?;
            Ok::<_, StoreError>(carried)
        };
        written.await.map_err(RestoreError::Restored)
    }
}

/// Takes from the present database what people have decided since the backup. Can be repeated.
pub(super) async fn carry_over(
    present: &mut PooledConnection,
    restored: &mut Transaction,
    now: Timestamp,
) -> Result<CarriedOver, StoreError> {
    let tokens = carry_tokens(present, restored, now).await?;
    let subscriptions = carry_subscriptions(present, restored).await?;
    restored.command(DROP_EVENTS).await?;
    for table in NUMBERED {
        let given = last_number(present, table).await?;
        if given > last_number(restored.connection(), table).await? {
            go_on_after(restored, table, given).await?;
        }
    }
    Ok(CarriedOver { tokens, subscriptions })
}

/// The last id that a table has given, if the database counts them.
async fn last_number(reader: &mut PooledConnection, table: &'static str) -> Result<i64, sqlx::Error> {
    let sql = sql!(
        "SELECT {pg: coalesce(pg_sequence_last_value(pg_get_serial_sequence({table}, 'id')::regclass), 0)
                | lite: coalesce((SELECT seq FROM sqlite_sequence WHERE name = {table}), 0)}",
        table,
    );
    reader.fetch_one(sql).await?.get(0)
}

async fn go_on_after(transaction: &mut Transaction, table: &'static str, number: i64) -> Result<(), sqlx::Error> {
    if transaction.dialect() == Dialect::Postgres {
        let sql = sql!("{pg: SELECT setval(pg_get_serial_sequence({table}, 'id')::regclass, {number})}", table, number);
        transaction.fetch_all(sql).await?;
        return Ok(());
    }
    let known = sql!("{lite: UPDATE sqlite_sequence SET seq = {number} WHERE name = {table}}", number, table);
    if transaction.execute(known).await? == 0 {
        let new = sql!(
            "{lite: INSERT INTO sqlite_sequence (name, seq) SELECT name, {number} FROM sqlite_schema
              WHERE type = 'table' AND name = {table} AND sql LIKE '%AUTOINCREMENT%'}",
            number,
            table,
        );
        transaction.execute(new).await?;
    }
    Ok(())
}

/// The table of the mark, of which a database has one row.
const CREATE: [&str; 2] = [
    "CREATE TABLE IF NOT EXISTS formgate_restored (identity text NOT NULL, at bigint NOT NULL)",
    "CREATE TABLE IF NOT EXISTS formgate_restored (identity TEXT NOT NULL, at INTEGER NOT NULL) STRICT",
];

impl RestoredMark {
    async fn write(&self, transaction: &mut Transaction) -> Result<(), sqlx::Error> {
        let [postgres, sqlite] = CREATE;
        transaction.command(if transaction.dialect() == Dialect::Postgres { postgres } else { sqlite }).await?;
        let Self { identity, at } = self;
        let (identity, at) = (identity.replace('\'', "''"), at.as_microsecond());
        let mark = format!("DELETE FROM formgate_restored; INSERT INTO formgate_restored VALUES ('{identity}', {at})");
        transaction.command(AssertSqlSafe(mark)).await
    }

    /// The mark of a database, if it has one.
    pub(super) async fn find(reader: &mut PooledConnection) -> Result<Option<Self>, sqlx::Error> {
        let exists = sql!(
            "SELECT {pg: to_regclass('formgate_restored') IS NOT NULL
                    | lite: EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'formgate_restored')}",
        );
        if !reader.fetch_one(exists).await?.get::<bool>(0)? {
            return Ok(None);
        }
        let row = reader.fetch_optional(Sql::text("SELECT identity, at FROM formgate_restored")).await?;
        row.map(|row| {
            let at = Timestamp::from_microsecond(row.get(1)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
            Ok(Self { identity: row.get(0)?, at })
        })
        .transpose()
    }
}
