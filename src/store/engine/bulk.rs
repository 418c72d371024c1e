//! Writes a batch of rows with one statement.
//!
//! A row that is already stored with the same values is not written, so repeating a load writes nothing.

use super::database::Transaction;
use super::error::StoreError;
use crate::store::statement::{JsonRows, Sql, TableSpec, push_column_names};

impl TableSpec {
    /// Adds an insertion of the rows, to which a condition may be added.
    pub(in crate::store) fn push_insertion(&self, sql: &mut Sql, rows: &JsonRows) {
        sql.push("INSERT INTO ").push(self.name).push(" (");
        self.push_column_names(sql);
        sql.push(") SELECT ");
        self.push_column_names(sql);
        sql.push(" FROM ");
        self.push_batch(sql, rows);
    }

    /// An insertion up to `ON CONFLICT … DO`.
    fn insertion_on_conflict(&self, transaction: &Transaction, rows: &JsonRows) -> Sql {
        let mut sql = transaction.sql();
        self.push_insertion(&mut sql, rows);
        // Without WHERE, SQLite parses ON as part of a join.
        sql.push(" WHERE true ON CONFLICT (");
        push_column_names(&mut sql, &self.columns[..self.key]);
        sql.push(") DO ");
        sql
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
        let others = &self.columns[self.key..];
        let mut sql = self.insertion_on_conflict(transaction, rows);
        if others.is_empty() {
            sql.push("NOTHING");
        } else {
            sql.push("UPDATE SET ");
            for (at, (column, _)) in others.iter().enumerate() {
                sql.push(if at == 0 { "" } else { ", " }).push(column).push(" = excluded.").push(column);
            }
            for (at, (column, _)) in others.iter().enumerate() {
                sql.push(if at == 0 { " WHERE " } else { " OR " }).push(self.name).push(".").push(column);
                sql.push(" IS DISTINCT FROM excluded.").push(column);
            }
        }
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
        let mut sql = transaction.sql();
        self.push_insertion(&mut sql, rows);
        transaction.execute(sql).await?;
        Ok(())
    }

    /// Inserts the rows whose keys do not exist. Returns how many they were.
    pub(in crate::store) async fn insert_absent(
        &self,
        transaction: &mut Transaction,
        rows: &JsonRows,
    ) -> Result<u64, StoreError> {
        let mut sql = self.insertion_on_conflict(transaction, rows);
        sql.push("NOTHING");
        Ok(transaction.execute(sql).await?)
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
        let mut sql = self.insertion_on_conflict(transaction, rows);
        sql.push("UPDATE SET ").push(sum).push(" = ").push(self.name).push(".").push(sum);
        sql.push(" + excluded.").push(sum);
        transaction.execute(sql).await?;
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
        let mut sql = transaction.sql();
        sql.push("DELETE FROM ").push(self.name).push(" WHERE ").push(self.columns[0].0).in_ids(owners);
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
        let key = &self.columns[..self.key];
        let mut sql = transaction.sql();
        sql.push("DELETE FROM ").push(self.name).push(" WHERE ").push(key[0].0).in_ids(owners);
        // An uncorrelated list is built once and hashed; NOT EXISTS would read it for every row.
        sql.push(" AND (");
        push_column_names(&mut sql, key);
        sql.push(") NOT IN (SELECT ");
        push_column_names(&mut sql, key);
        sql.push(" FROM ");
        self.push_batch(&mut sql, rows);
        sql.push(")");
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
