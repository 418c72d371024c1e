//! Prepares both sides of a move: what the target has is found out, its tables are created and stripped, and notes begin in
//! the source.

use sqlx::AssertSqlSafe;

use super::mark::Role;
use super::table::TABLES;
use super::{MoveError, Moving, capture, mark, refusing};
use crate::store::derived::settle::keyword_indexes;
use crate::store::engine::{DatabaseLocation, PooledConnection};
use crate::store::restored::RestoredMark;
use crate::store::schema::stripping;
use crate::store::statement::{Dialect, Sql};
use crate::store::{DatabaseIdentity, Reach, StoreError, migrate, schema};

/// What a database has that an account is to be moved to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// Nothing of an account.
    Empty,
    /// What an earlier move of this account left.
    Left,
    /// A backup of the account, which was prepared for its return.
    Restored,
    /// The account itself, under another address, or a copy of it.
    Same,
    /// Something else.
    InUse,
    /// Nothing of an account, and none can be there, for this reason.
    Unfit(String),
}

impl Moving {
    /// Prepares both sides. What an earlier move left in the target is removed.
    ///
    /// # Errors
    /// [`MoveError`].
    pub async fn prepare(&mut self) -> Result<(), MoveError> {
        self.target_location.create_file()?;
        if self.prepare_return().await? {
            return Ok(());
        }
        let found = mark::find(&mut self.target.reader().await?).await?;
        let is_ours = found.as_ref().is_some_and(|found| found.identity == self.mark.identity);
        if is_ours {
            // Otherwise the migration could not write.
            let mut transaction = self.target.begin().await?;
            transaction.command(AssertSqlSafe(refusing::ending(self.target.dialect()))).await?;
            transaction.commit().await?;
        } else {
            match target_state(&mut self.target.reader().await?, &self.mark.identity).await? {
                TargetState::Same | TargetState::InUse => return Err(MoveError::TargetInUse),
                TargetState::Empty | TargetState::Left | TargetState::Restored | TargetState::Unfit(_) => {}
            }
        }
        if !found.is_some_and(|found| is_ours && found.id == self.mark.id && found.role == Role::Target) {
            // An unfinished copy lacks rows that a migration relies on.
            if !is_ours || schema::require_served(&mut self.target.reader().await?).await.is_err() {
                migrate(&self.target_location, Reach::Served).await?;
            }
            self.empty_target().await?;
        }
        self.strip().await?;
        let found = mark::find(&mut self.source.reader().await?).await?;
        if found.is_none_or(|found| found.id != self.mark.id) {
            let mut transaction = self.source.begin().await?;
            mark::put(&mut transaction, &self.mark, Role::Source).await?;
            transaction.commit().await?;
        }
        capture::begin(&self.source).await
    }

    async fn empty_target(&mut self) -> Result<(), MoveError> {
        let dialect = self.target.dialect();
        let mut transaction = self.target.begin().await?;
        transaction.command(AssertSqlSafe(stripping(dialect))).await?;
        // Of a move from here.
        transaction.command(AssertSqlSafe(capture::ending(dialect))).await?;
        match dialect {
            Dialect::Postgres => {
                let names: Vec<_> = TABLES.iter().map(|table| table.name).collect();
                transaction.command(AssertSqlSafe(format!("TRUNCATE {}", names.join(", ")))).await?;
            }
            Dialect::Sqlite => {
                transaction.command("INSERT INTO listed_trigrams (listed_trigrams) VALUES ('delete-all')").await?;
                for table in &*TABLES {
                    transaction.execute(table.delete_all(dialect)).await?;
                }
            }
        }
        keyword_indexes::drop_if_empty(&mut transaction).await?;
        mark::put(&mut transaction, &self.mark, Role::Target).await?;
        transaction.command("DROP TABLE IF EXISTS formgate_move_tables").await?;
        let progress =
            "CREATE TABLE formgate_move_tables (relation text PRIMARY KEY, after_key text, is_copied boolean)";
        transaction.command(progress).await?;
        Ok(transaction.commit().await?)
    }

    /// Takes the triggers and foreign keys of the target away.
    pub(super) async fn strip(&mut self) -> Result<(), MoveError> {
        if self.is_dressed {
            let mut transaction = self.begin_target().await?;
            transaction.command(AssertSqlSafe(stripping(self.target.dialect()))).await?;
            transaction.commit().await?;
            self.is_dressed = false;
        }
        Ok(())
    }
}

/// What a database has that an account with this identity is to be moved to.
///
/// # Errors
/// [`StoreError`] if it can't be opened.
pub async fn look_at_target(
    location: &DatabaseLocation,
    identity: &DatabaseIdentity,
) -> Result<TargetState, StoreError> {
    if location.file().is_some_and(|file| !file.exists()) {
        return Ok(TargetState::Empty);
    }
    let database = location.connect_for_maintenance();
    let looked = async { target_state(&mut database.reader().await?, identity.as_str()).await };
    let looked = looked.await;
    database.close().await;
    match looked {
        Ok(state) => Ok(state),
        Err(MoveError::Store(error)) => Err(error),
        Err(_) => Err(StoreError::Busy),
    }
}

async fn target_state(reader: &mut PooledConnection, identity: &str) -> Result<TargetState, MoveError> {
    if let Some(restored) = RestoredMark::find(reader).await? {
        return Ok(if restored.identity == identity { TargetState::Restored } else { TargetState::InUse });
    }
    if let Some(found) = mark::find(reader).await? {
        return Ok(if found.identity == identity { TargetState::Left } else { TargetState::InUse });
    }
    if !schema::has_migrations(reader).await? {
        return state_without_tables(reader).await;
    }
    schema::require_served(reader).await?;
    let filled = Sql::text(
        "SELECT EXISTS (SELECT 1 FROM users) OR EXISTS (SELECT 1 FROM forms) OR EXISTS (SELECT 1 FROM labels) \
         OR EXISTS (SELECT 1 FROM groups WHERE NOT built_in) OR EXISTS (SELECT 1 FROM tokens) \
         OR EXISTS (SELECT 1 FROM audit_log) OR EXISTS (SELECT 1 FROM subscriptions) OR EXISTS (SELECT 1 FROM admin_links)",
    );
    let is_filled: bool = reader.fetch_one(filled).await?.get(0)?;
    if !is_filled {
        return Ok(TargetState::Empty);
    }
    let (found, _) = DatabaseIdentity::read(reader).await?;
    Ok(if found.as_str() == identity { TargetState::Same } else { TargetState::InUse })
}

/// The state of a database without tables of formgate. The tables of an extension do not count.
async fn state_without_tables(reader: &mut PooledConnection) -> Result<TargetState, MoveError> {
    let tables = match reader.dialect() {
        Dialect::Postgres => {
            "SELECT EXISTS (
               SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
               WHERE nspname = current_schema() AND relkind IN ('r', 'p')
               AND NOT EXISTS (SELECT 1 FROM pg_depend d
                 WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'))"
        }
        Dialect::Sqlite => {
            "SELECT EXISTS (
               SELECT 1 FROM sqlite_schema
               WHERE type = 'table' AND name NOT LIKE 'sqlite%' AND name NOT LIKE '_litestream%')"
        }
    };
    if reader.fetch_one(Sql::text(tables)).await?.get(0)? {
        return Ok(TargetState::InUse);
    }
    if reader.dialect() == Dialect::Sqlite {
        return Ok(TargetState::Empty);
    }
    let fault = Sql::text(
        "SELECT CASE
           WHEN current_setting('server_encoding') <> 'UTF8'
             THEN 'its encoding is ' || current_setting('server_encoding') || ', and not UTF8'
           WHEN current_schema() IS NULL AND NOT has_database_privilege(current_database(), 'CREATE')
             THEN 'the role may not create the schema: grant CREATE on the database to it'
           WHEN NOT has_schema_privilege(current_schema(), 'CREATE')
             THEN 'the role may not create tables: grant CREATE on the schema ' || current_schema() || ' to it'
         END",
    );
    let fault: Option<String> = reader.fetch_one(fault).await?.get(0)?;
    Ok(fault.map_or(TargetState::Empty, TargetState::Unfit))
}
