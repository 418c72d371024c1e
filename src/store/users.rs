//! The folded e-mail addresses by which users are found.
//!
//! Postgres folds every address when it is written. SQLite's triggers fold only ASCII; [`fold_new`] folds the rest
//! before code looks for users.

use super::StoreError;
use super::engine::{Database, Transaction};
use super::statement::{Dialect, fold};

/// How many users are checked in one transaction. Larger: other writers wait longer. Smaller: more transactions.
const BATCH: i64 = 500;

/// Folds the addresses that a program wrote into SQLite and SQLite could not fold. If another user has the same folded
/// address, the address stays unfolded.
pub(super) async fn fold_new(transaction: &mut Transaction) -> Result<(), sqlx::Error> {
    if transaction.dialect() == Dialect::Postgres {
        return Ok(());
    }
    let mut sql = transaction.sql();
    sql.push("SELECT id, email FROM users WHERE email_folded IS NULL");
    for user in transaction.fetch_all(sql).await? {
        let mut sql = transaction.sql();
        sql.push("UPDATE OR IGNORE users SET email_folded = ").bind(fold(&user.get::<String>(1)?));
        sql.push(" WHERE id = ").bind(user.get::<i64>(0)?);
        transaction.execute(sql).await?;
    }
    Ok(())
}

/// Corrects every wrong folded address. Returns how many there were.
pub(super) async fn repair(database: &Database) -> Result<u64, StoreError> {
    if database.dialect() == Dialect::Postgres {
        let all = "UPDATE users SET email = email WHERE email_folded IS DISTINCT FROM formgate_fold(email)";
        let mut sql = database.sql();
        sql.push(all);
        return database.execute(sql).await;
    }
    let mut repaired = 0;
    let mut last = 0;
    loop {
        let mut transaction = database.begin().await?;
        let mut sql = transaction.sql();
        sql.push("SELECT id, email, email_folded FROM users WHERE id > ").bind(last);
        sql.push(" ORDER BY id LIMIT ").bind(BATCH);
        let users = transaction.fetch_all(sql).await?;
        let Some(end) = users.last() else { return Ok(repaired) };
        last = end.get(0)?;
        for user in users {
            let (id, folded) = (user.get::<i64>(0)?, fold(&user.get::<String>(1)?));
            if user.get::<Option<String>>(2)?.as_ref() != Some(&folded) {
                let mut sql = transaction.sql();
                sql.push("UPDATE OR IGNORE users SET email_folded = ").bind(folded).push(" WHERE id = ").bind(id);
                repaired += transaction.execute(sql).await?;
            }
        }
        transaction.commit().await?;
    }
}
