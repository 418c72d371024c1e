//! Derives from every submission again, and corrects what is wrong in the search tables, the change log and the counts.

use std::collections::BTreeMap;

use super::numbering::{Events, Numbering};
use super::options::FOR_A_COMMAND;
use super::placing::Placed;
use super::release::Taken;
use super::writing::Differences;
use super::{begin, counts, create_indexes, derive, intake, settle_all};
use crate::store::engine::{Database, Transaction};
use crate::store::statement::{Dialect, UNINDEXED_END, sql};
use crate::store::{StoreError, totals};

/// How many submissions `reindex` checks in one transaction.
///
/// Larger: writers of a SQLite file wait longer. Smaller: more transactions.
const REPAIR_BATCH: i64 = 500;

/// Derives from every submission again, and recounts. Returns what was wrong, and how many counts were.
pub(in crate::store) async fn repair(database: &Database) -> Result<(Differences, u64), StoreError> {
    settle_all(database).await?;
    repair_trigrams(database).await?;
    let mut transaction = begin(database, FOR_A_COMMAND).await?;
    let mut numbering = Numbering::begin(&mut transaction, Events::Sent).await?;
    numbering.place(&mut transaction, Placed::All).await?;
    numbering.end(&mut transaction, Taken::Some).await?;
    transaction.commit().await?;
    let (mut differences, mut last) = (Differences::default(), 0);
    loop {
        let mut transaction = begin(database, FOR_A_COMMAND).await?;
        let ids = intake::ids_after(&mut transaction, last, REPAIR_BATCH).await?;
        let Some(&end) = ids.last() else { break };
        let mut numbering = Numbering::begin(&mut transaction, Events::Sent).await?;
        differences += derive(&mut transaction, &ids, &BTreeMap::new(), None, &mut numbering).await?.0;
        numbering.end(&mut transaction, Taken::Some).await?;
        transaction.commit().await?;
        last = end;
    }
    let mut transaction = begin(database, FOR_A_COMMAND).await?;
    let counts = counts::repair(&mut transaction).await?;
    transaction.commit().await?;
    let counts = counts + totals::repair(database).await?;
    create_indexes(database).await?;
    Ok((differences, counts))
}

/// Rebuilds the keyword index of SQLite if it does not match the documents.
async fn repair_trigrams(database: &Database) -> Result<(), StoreError> {
    if database.dialect() == Dialect::Postgres {
        return Ok(());
    }
    // 1: compare with the documents as well.
    const CHECK: &str = "INSERT INTO listed_trigrams (listed_trigrams, rank) VALUES ('integrity-check', 1)";
    const REBUILD: &str = "INSERT INTO listed_trigrams (listed_trigrams) VALUES ('rebuild')";
    let mut transaction = begin(database, FOR_A_COMMAND).await?;
    clear_unindexed(&mut transaction).await?;
    match transaction.command(CHECK).await {
        Err(sqlx::Error::Database(error)) if is_corrupt(&*error) => {}
        checked => {
            checked?;
            return Ok(transaction.roll_back().await?);
        }
    }
    transaction.roll_back().await?;
    let mut transaction = begin(database, FOR_A_COMMAND).await?;
    // They are derived again.
    clear_unindexed(&mut transaction).await?;
    transaction.command(REBUILD).await?;
    Ok(transaction.commit().await?)
}

/// Empties the documents that are not in the index, which is compared with all documents, and built from them.
async fn clear_unindexed(transaction: &mut Transaction) -> Result<(), StoreError> {
    let sql = sql!(
        "UPDATE listed_documents SET document = '' WHERE substr(document, -2) = {end}
         {scans: runs when everything is compared}",
        end = UNINDEXED_END,
    );
    transaction.execute(sql).await?;
    Ok(())
}

/// `SQLITE_CORRUPT` and its extensions.
fn is_corrupt(error: &dyn sqlx::error::DatabaseError) -> bool {
    error.code().and_then(|code| code.parse::<i64>().ok()).is_some_and(|code| code & 0xff == 11)
}
