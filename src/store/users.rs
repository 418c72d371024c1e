//! The folded e-mail addresses by which users are found.
//!
//! Postgres folds every address when it is written. SQLite's triggers fold only ASCII; [`fold_new`] folds the rest
//! before code looks for users.

use super::StoreError;
use super::engine::{Database, Transaction};
use super::statement::{Dialect, Sql, fold, sql};

/// How many users are checked in one transaction. Larger: other writers wait longer. Smaller: more transactions.
const BATCH: i64 = 500;

/// Folds the addresses that a program wrote into SQLite and SQLite could not fold. If another user has the same folded
/// address, the address stays unfolded.
pub(super) async fn fold_new(transaction: &mut Transaction) -> Result<(), sqlx::Error> {
    if transaction.dialect() == Dialect::Postgres {
        return Ok(());
    }
    let unfolded = sql!("SELECT id, email FROM users WHERE email_folded IS NULL");
    for user in transaction.fetch_all(unfolded).await? {
        transaction.execute(set_folded(user.get(0)?, fold(&user.get::<String>(1)?))).await?;
    }
    Ok(())
}

/// Only on SQLite.
fn set_folded(id: i64, folded: String) -> Sql {
    sql!("UPDATE OR IGNORE users SET email_folded = {folded} WHERE id = {id}", folded, id)
}

/// Corrects every wrong folded address. Returns how many there were.
pub(super) async fn repair(database: &Database) -> Result<u64, StoreError> {
    if database.dialect() == Dialect::Postgres {
        let sql = sql!(
            "UPDATE users SET email = email
             WHERE email_folded IS DISTINCT FROM formgate_fold(email)
             {scans: a repair checks every address}"
        );
        return database.execute(sql).await;
    }
    let mut repaired = 0;
    let mut last = 0_i64;
    loop {
        let mut transaction = database.begin().await?;
        let batch = sql!(
            "SELECT id, email, email_folded FROM users WHERE id > {last} ORDER BY id LIMIT {batch}",
            last,
            batch = BATCH,
        );
        let users = transaction.fetch_all(batch).await?;
        let Some(end) = users.last() else { return Ok(repaired) };
        last = end.get(0)?;
        for user in users {
            let (id, folded) = (user.get::<i64>(0)?, fold(&user.get::<String>(1)?));
            if user.get::<Option<String>>(2)?.as_ref() != Some(&folded) {
                repaired += transaction.execute(set_folded(id, folded)).await?;
            }
        }
        transaction.commit().await?;
    }
}
