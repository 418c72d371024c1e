//! Writes a batch of rows with one statement.
//!
//! The statements are composed of constant texts, because their tables are data: `statement/rows.rs`.
//!
//! A row that is already stored with the same values is not written, so repeating a load writes nothing.

use super::database::Transaction;
use super::error::StoreError;
use crate::store::statement::{JsonRows, Sql, TableSpec, sql};

impl TableSpec {
    /// An insertion of the rows, to which a condition may be added.
    pub(in crate::store) fn insertion(&self, rows: &JsonRows) -> Sql {
        sql!(
            "INSERT INTO {+table} ({+columns}) SELECT {+selected} FROM {+batch}",
            table = Sql::text(self.name),
            columns = self.column_names(),
            selected = self.column_names(),
            batch = self.batch(rows),
        )
    }

    fn insertion_on_conflict(&self, rows: &JsonRows, action: Sql) -> Sql {
        // Without WHERE, SQLite parses ON as part of a join.
        sql!(
            "{+insertion} WHERE true ON CONFLICT ({+key}) DO {+action}",
            insertion = self.insertion(rows),
            key = self.key_names(),
            action,
        )
    }

    /// Inserts the rows. Updates a row whose key exists and whose other columns differ.
    pub(in crate::store) async fn upsert(
        &self,
        transaction: &mut Transaction,
        rows: &JsonRows,
    ) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let action = if self.columns.len() == self.key {
            Sql::text("NOTHING")
        } else {
            let others = || self.columns[self.key..].iter().map(|(column, _)| Sql::text(column));
            let assignment = |column: Sql| sql!("{+column} = excluded.{+column}", column);
            let differs = |column: Sql| {
                sql!("{+table}.{+column} IS DISTINCT FROM excluded.{+column}", table = Sql::text(self.name), column)
            };
            sql!(
                "UPDATE SET {+assignments} WHERE {+differs}",
                assignments = Sql::joined(others().map(assignment), ", "),
                differs = Sql::joined(others().map(differs), " OR "),
            )
        };
        let sql = self.insertion_on_conflict(rows, action);
        transaction.execute(sql).await?;
        Ok(())
    }

    /// Inserts the rows. No row may exist yet.
    pub(in crate::store) async fn insert(
        &self,
        transaction: &mut Transaction,
        rows: &JsonRows,
    ) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        transaction.execute(self.insertion(rows)).await?;
        Ok(())
    }

    /// Inserts the rows. If a key exists, adds the value of the column `sum` to the stored one.
    pub(in crate::store) async fn add(
        &self,
        transaction: &mut Transaction,
        rows: &JsonRows,
        sum: &'static str,
    ) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let [table, sum] = [self.name, sum].map(Sql::text);
        let action = sql!("UPDATE SET {+sum} = {+table}.{+sum} + excluded.{+sum}", sum, table);
        transaction.execute(self.insertion_on_conflict(rows, action)).await?;
        Ok(())
    }

    /// Deletes all rows of some owners (the first column of the key).
    pub(in crate::store) async fn delete(
        &self,
        transaction: &mut Transaction,
        owners: &[i64],
    ) -> Result<(), StoreError> {
        if owners.is_empty() {
            return Ok(());
        }
        let [table, owner] = [self.name, self.columns[0].0].map(Sql::text);
        let sql = sql!("DELETE FROM {+table} WHERE {+owner} {in owners}", table, owner, owners);
        transaction.execute(sql).await?;
        Ok(())
    }

    /// Deletes the rows of some owners (the first column of the key) that are not among `rows`.
    pub(super) async fn keep_only(
        &self,
        transaction: &mut Transaction,
        owners: &[i64],
        rows: &JsonRows,
    ) -> Result<(), StoreError> {
        if owners.is_empty() {
            return Ok(());
        }
        let [table, owner] = [self.name, self.columns[0].0].map(Sql::text);
        // An uncorrelated list is built once and hashed; NOT EXISTS would read it for every row.
        let sql = sql!(
            "DELETE FROM {+table} WHERE {+owner} {in owners} AND ({+key}) NOT IN (SELECT {+kept} FROM {+batch})",
            table,
            owner,
            owners,
            key = self.key_names(),
            kept = self.key_names(),
            batch = self.batch(rows),
        );
        transaction.execute(sql).await?;
        Ok(())
    }

    /// Replaces the rows of some owners by `rows`. Other owners in `rows` must have none yet.
    pub(in crate::store) async fn replace(
        &self,
        transaction: &mut Transaction,
        owners: &[i64],
        rows: &JsonRows,
    ) -> Result<(), StoreError> {
        if owners.is_empty() {
            // Checking for existing keys would cost a quarter of the insertion.
            return self.insert(transaction, rows).await;
        }
        self.keep_only(transaction, owners, rows).await?;
        self.upsert(transaction, rows).await
    }
}
