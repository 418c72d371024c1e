//! Loads records into a database: in one transaction, batch by batch, each batch checked and then written table by
//! table.
//!
//! Owns the rules of what may be loaded (`check`), the needed state of the database (`state`) and the statements
//! (`write`). `crate::import` reads and parses the input and orders the faults. Nothing is committed before
//! [`Import::finish`].

pub(crate) mod batch;
pub(crate) mod check;
mod keys;
pub(crate) mod record;
mod state;
mod submissions;
mod touched;
mod write;

use batch::Batch;
use check::RecordFault;
use jiff::Timestamp;
use record::Record;
use state::ImportState;

use super::derived::settle::{Events, settle_within};
use super::engine::{Database, DatabaseLocation, Transaction};
use super::statement::{Dialect, Sql, sql};
use super::{Actor, AuditEntry, StoreError, audit, schema, users};

/// The tables whose ids a load may assign and whose sequences the database continues.
const IDENTITIES: [&str; 7] = ["users", "forms", "elements", "labels", "groups", "flow_steps", "submissions"];

/// One load of this kind at a time for the tables of a schema. The number is arbitrary.
const TRY_TO_BE_ALONE: &str =
    "SELECT pg_try_advisory_xact_lock(hashtextextended(coalesce(current_schema(), ''), 2870411936650288187))";

/// A load in progress. Dropping it rolls back.
#[derive(Debug)]
pub(crate) struct Import {
    database: Database,
    transaction: Transaction,
    state: ImportState,
    is_first: bool,
    batches: u64,
    events: Events,
}

impl Import {
    /// Begins to load into a migrated database. `events` says whether webhooks are sent what is loaded.
    pub(crate) async fn begin(location: &DatabaseLocation, events: Events) -> Result<Self, StoreError> {
        let (database, transaction) = open(location).await?;
        Self::start(database, transaction, events).await
    }

    /// The same, unless a load that was begun by this has not ended. On SQLite, the write lock of the file says so.
    pub(crate) async fn begin_alone(location: &DatabaseLocation, events: Events) -> Result<Option<Self>, StoreError> {
        let (database, mut transaction) = open(location).await?;
        if transaction.dialect() == Dialect::Postgres {
            let row = transaction.connection().fetch_one(Sql::text(TRY_TO_BE_ALONE)).await?;
            if !row.get::<bool>(0)? {
                transaction.roll_back().await?;
                database.close().await;
                return Ok(None);
            }
        }
        Self::start(database, transaction, events).await.map(Some)
    }

    async fn start(database: Database, mut transaction: Transaction, events: Events) -> Result<Self, StoreError> {
        prepare(&mut transaction).await?;
        users::fold_new(&mut transaction).await?;
        let state = ImportState::load(&mut transaction).await?;
        let is_first = transaction.dialect() == Dialect::Postgres && is_empty(&mut transaction).await?;
        if is_first {
            keys::drop_keys(&mut transaction).await?;
        }
        Ok(Self { database, transaction, state, is_first, batches: 0, events })
    }

    /// Loads the valid records of a batch. Returns the fault of each record, if it has one.
    pub(crate) async fn load(&mut self, batch: &Batch) -> Result<Vec<Option<RecordFault>>, StoreError> {
        self.state.look_up(&mut self.transaction, batch).await?;
        let faults: Vec<_> = batch.records().iter().map(|record| self.state.accept(record).err()).collect();
        let accepted: Vec<&Record> = batch
            .records()
            .iter()
            .zip(&faults)
            .filter_map(|(record, fault)| fault.is_none().then_some(record))
            .collect();
        write::write(&mut self.transaction, &self.state, &accepted).await?;
        self.batches += 1;
        if self.batches.is_power_of_two() && self.transaction.dialect() == Dialect::Postgres {
            // Plans from when the tables were at most half as large: on empty tables a full index scan is as cheap as
            // a lookup.
            run(&mut self.transaction, "DISCARD PLANS").await?;
        }
        Ok(faults)
    }

    /// Commits the load, together with the row that the audit log gets.
    pub(crate) async fn finish(mut self, audited: Option<(Actor, AuditEntry)>) -> Result<(), StoreError> {
        if self.is_first {
            keys::restore_keys(&mut self.transaction).await?;
        }
        settle_within(&mut self.transaction, self.events).await?;
        complete(&mut self.transaction).await?;
        if let Some((actor, entry)) = audited {
            audit::append(&mut self.transaction, &actor, entry, Timestamp::now()).await?;
        }
        self.transaction.commit().await?;
        // Frees the space of the write-ahead log, which is as large as the load, or of the intake, which every search
        // would read. If a reader prevents it, a later checkpoint or vacuum does it.
        if let Ok(mut writer) = self.database.writer().await {
            let give_back = match writer.dialect() {
                Dialect::Postgres => "VACUUM intake",
                // Without waiting for readers, as which writers would wait too: a program such as Litestream reads all the time.
                Dialect::Sqlite => "PRAGMA busy_timeout = 0; PRAGMA wal_checkpoint(TRUNCATE)",
            };
            writer.command(give_back).await.ok();
        }
        self.database.close().await;
        Ok(())
    }

    /// Rolls back the load.
    pub(crate) async fn roll_back(self) -> Result<(), StoreError> {
        self.transaction.roll_back().await?;
        self.database.close().await;
        Ok(())
    }
}

async fn open(location: &DatabaseLocation) -> Result<(Database, Transaction), StoreError> {
    let database = location.connect_for_maintenance();
    schema::require_served(&mut database.reader().await?).await?;
    let transaction = database.begin().await?;
    Ok((database, transaction))
}

async fn prepare(transaction: &mut Transaction) -> Result<(), StoreError> {
    match transaction.dialect() {
        Dialect::Postgres => {
            // The last statements take as long as the load is large, so a limit of the role must not apply.
            run(transaction, "SET LOCAL statement_timeout = 0").await?;
            // Every statement finds its rows by key, but the planner has no statistics of growing tables to know that.
            run(transaction, "SET LOCAL enable_seqscan = off").await?;
            // Foreign keys are checked row by row with prepared statements: planning each check takes three times as
            // long.
            run(transaction, "SET LOCAL plan_cache_mode = auto").await?;
            // Flushing the pending lists of the keyword indexes takes most of the time of a load. Larger: concurrent
            // searches take longer, because each reads the lists. Smaller: more flushes.
            run(transaction, "SET LOCAL gin_pending_list_limit = '32MB'").await?;
            run(transaction, "SET LOCAL work_mem = '64MB'").await?;
            run(transaction, "SET LOCAL maintenance_work_mem = '256MB'").await
        }
        Dialect::Sqlite => {
            // 64 MiB for index pages in random order: with the default of 2 MiB, pages are written many times.
            run(transaction, "PRAGMA cache_size = -65536").await
        }
    }
}

/// Sets what the program expects after a load on Postgres: sequences past the largest id, and statistics for the planner.
///
/// SQLite gets no statistics. Without them it assumes that tables are large, which they become. Statistics of a small load would
/// be kept after the account has grown, and searches would read whole tables.
async fn complete(transaction: &mut Transaction) -> Result<(), StoreError> {
    if transaction.dialect() == Dialect::Sqlite {
        return Ok(());
    }
    for table in IDENTITIES {
        // The id of the built-in group is the largest integer that JSON represents exactly: no id may follow
        // it.
        let given = if table == "groups" { " WHERE NOT built_in" } else { "" };
        let sql = sql!(
            "{pg: SELECT setval(name, greatest(largest, pg_sequence_last_value(name)))
             FROM (SELECT pg_get_serial_sequence({name}, 'id')::regclass AS name, max(id) AS largest
                   FROM {+table}{+given}) AS identity
             WHERE largest IS NOT NULL}",
            name = table,
            table = Sql::text(table),
            given = Sql::text(given),
        );
        transaction.fetch_all(sql).await?;
    }
    // No other table of the database, which may be the product's.
    let tables = Sql::text(schema::PLAIN_TABLES);
    transaction.execute(sql!("ANALYZE {+tables}", tables)).await?;
    Ok(())
}

/// Whether no submission has an answer yet.
async fn is_empty(transaction: &mut Transaction) -> Result<bool, StoreError> {
    let rows = transaction.fetch_all(sql!("SELECT NOT EXISTS (SELECT 1 FROM answers)")).await?;
    Ok(rows.first().map(|row| row.get(0)).transpose()?.unwrap_or(false))
}

async fn run(transaction: &mut Transaction, statement: &'static str) -> Result<(), StoreError> {
    transaction.execute(Sql::text(statement)).await?;
    Ok(())
}
