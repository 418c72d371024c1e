//! Loading lines into a database: one transaction, batch by batch, each batch checked and then written table by table.
//!
//! Owns the rules of what may be loaded (`check`), what is known of the database (`known`) and the statements (`write`).
//! Reading and parsing the input, and the order of faults, are `crate::import`'s. Nothing is kept before [`Import::finish`].

pub(crate) mod batch;
pub(crate) mod check;
mod documents;
mod keys;
mod known;
pub(crate) mod record;
pub(super) mod rows;
pub(super) mod submissions;
mod touched;
mod write;

use batch::Batch;
use check::Refusal;
use documents::Documents;
use known::Known;
use record::Record;

use super::database::{Database, Transaction};
use super::location::DatabaseLocation;
use super::sql::Dialect;
use super::{StoreError, schema};

/// The tables whose ids a product may give and the database may have to continue.
const IDENTITIES: [&str; 7] = ["users", "forms", "elements", "labels", "groups", "flow_steps", "submissions"];

/// What the keyword indexes took in last lies in lists that each search reads whole; so much that reading every document
/// looks cheaper. Without `pg_trgm` there is one of them. To who does not own them, Postgres leaves that for a vacuum.
const CLEAN: &str = "SELECT gin_clean_pending_list(oid) FROM pg_class \
    WHERE oid IN (to_regclass('submission_documents_trigrams'), to_regclass('submission_documents_bigrams')) \
    AND pg_has_role(relowner, 'USAGE')";

/// Every table that a load writes, and no other that the database may have. Without figures of the bigrams, which are most of
/// what this takes, a keyword of two characters that most documents have takes twice as long.
const ANALYZE: &str = "ANALYZE users, labels, forms, elements, groups, group_members, flow_steps, flow_step_groups, \
    submissions, answers, submission_labels, submission_pending, submission_participants, submission_flow_steps, \
    submission_documents, answer_lines";

/// A load under way; dropping it takes everything back.
#[derive(Debug)]
pub(crate) struct Import {
    database: Database,
    transaction: Transaction,
    known: Known,
    documents: Documents,
    batches: u64,
}

impl Import {
    /// Begins to load into a database at the newest schema.
    pub(crate) async fn begin(location: &DatabaseLocation) -> Result<Self, StoreError> {
        let database = location.connect_for_long();
        schema::require_newest(&mut database.reader().await?).await?;
        let mut transaction = database.begin().await?;
        prepare(&mut transaction).await?;
        let known = Known::at_start(&mut transaction).await?;
        let documents = Documents::for_load(&mut transaction).await?;
        if documents == Documents::AtTheEnd {
            keys::take_away(&mut transaction).await?;
        }
        Ok(Self { database, transaction, known, documents, batches: 0 })
    }

    /// Loads what can be loaded of a batch, and tells for each of its records whether it was refused.
    pub(crate) async fn load(&mut self, batch: &Batch) -> Result<Vec<Option<Refusal>>, StoreError> {
        self.known.look_up(&mut self.transaction, batch).await?;
        let refusals: Vec<_> = batch.records().iter().map(|record| self.known.accept(record).err()).collect();
        let accepted: Vec<&Record> = batch
            .records()
            .iter()
            .zip(&refusals)
            .filter_map(|(record, refusal)| refusal.is_none().then_some(record))
            .collect();
        write::write(&mut self.transaction, &self.known, self.documents, &accepted).await?;
        self.batches += 1;
        if self.batches.is_power_of_two() && self.transaction.dialect() == Dialect::Postgres {
            // What was planned when the tables were half as large: of empty ones, a whole index is read as cheaply as a row.
            run(&mut self.transaction, "DISCARD PLANS").await?;
        }
        Ok(refusals)
    }

    /// Keeps what was loaded.
    pub(crate) async fn finish(mut self) -> Result<(), StoreError> {
        if self.documents == Documents::AtTheEnd {
            keys::put_back(&mut self.transaction).await?;
        }
        self.documents.make_all(&mut self.transaction).await?;
        complete(&mut self.transaction).await?;
        self.transaction.commit().await?;
        // Gives space back: that of the log, which is as large as the load, or that of the changes which were settled, which
        // every count would read. Where a reader hinders it, a later one does it.
        if let Ok(mut writer) = self.database.writer().await {
            let mut sql = writer.sql();
            sql.push_either("VACUUM count_changes", "PRAGMA wal_checkpoint(TRUNCATE)");
            writer.fetch_all(sql).await.ok();
        }
        self.database.close().await;
        Ok(())
    }

    /// Takes back what was loaded.
    pub(crate) async fn roll_back(self) -> Result<(), StoreError> {
        self.transaction.roll_back().await?;
        self.database.close().await;
        Ok(())
    }
}

async fn prepare(transaction: &mut Transaction) -> Result<(), StoreError> {
    match transaction.dialect() {
        Dialect::Postgres => {
            // The last statements take as long as the load is large, whatever the role's other statements may take.
            run(transaction, "SET LOCAL statement_timeout = 0").await?;
            // Every statement finds its rows by key; in tables that grow from nothing the planner has no figures to see it.
            run(transaction, "SET LOCAL enable_seqscan = off").await?;
            // Foreign keys are checked row by row with prepared statements: planning each anew takes three times as long.
            run(transaction, "SET LOCAL plan_cache_mode = auto").await?;
            // To empty the lists of the keyword indexes is most of what a load takes. Longer ones, and searches beside it
            // take longer: each reads them.
            run(transaction, "SET LOCAL gin_pending_list_limit = '32MB'").await?;
            // Counts are settled once, at the end.
            run(transaction, "SET LOCAL formgate.settled = 'yes'").await?;
            run(transaction, "SET LOCAL work_mem = '64MB'").await?;
            run(transaction, "SET LOCAL maintenance_work_mem = '256MB'").await
        }
        Dialect::Sqlite => {
            // 64 MiB for the indexes that the load jumps about in: with the usual 2 MiB, pages are written many times.
            run(transaction, "PRAGMA cache_size = -65536").await?;
            rest_triggers(transaction, true).await
        }
    }
}

/// What the rest of the program counts on after a load: identities behind the largest id, figures for the planner.
async fn complete(transaction: &mut Transaction) -> Result<(), StoreError> {
    match transaction.dialect() {
        Dialect::Postgres => {
            for table in IDENTITIES {
                // The built-in group's own id is the largest integer of JSON: nothing comes behind it.
                let given = if table == "groups" { " WHERE NOT built_in" } else { "" };
                let mut sql = transaction.sql();
                sql.push("SELECT setval(name, greatest(largest, pg_sequence_last_value(name))) FROM (");
                sql.push("SELECT pg_get_serial_sequence(").bind(table).push(", 'id')::regclass AS name, ");
                sql.push("max(id) AS largest FROM ").push(table).push(given);
                sql.push(") AS identity WHERE largest IS NOT NULL");
                transaction.fetch_all(sql).await?;
            }
            run(transaction, "SELECT formgate_settle_counts()").await?;
            run(transaction, CLEAN).await?;
            run(transaction, ANALYZE).await
        }
        Dialect::Sqlite => {
            rest_triggers(transaction, false).await?;
            // A look at a thousand rows of each index tells as much as one at all of them.
            run(transaction, "PRAGMA analysis_limit = 1000").await?;
            run(transaction, "ANALYZE").await
        }
    }
}

/// Whether the triggers leave the documents and the lines, and on SQLite the folded texts, to the rest of this transaction.
pub(super) async fn rest_triggers(transaction: &mut Transaction, resting: bool) -> Result<(), StoreError> {
    let statement = match (transaction.dialect(), resting) {
        (Dialect::Postgres, true) => "SET LOCAL formgate.resting = 'on'",
        (Dialect::Postgres, false) => "SET LOCAL formgate.resting = 'off'",
        (Dialect::Sqlite, true) => "UPDATE upkeep SET resting = 1",
        (Dialect::Sqlite, false) => "UPDATE upkeep SET resting = 0",
    };
    run(transaction, statement).await
}

async fn run(transaction: &mut Transaction, statement: &'static str) -> Result<(), StoreError> {
    let mut sql = transaction.sql();
    sql.push(statement);
    transaction.execute(sql).await?;
    Ok(())
}
