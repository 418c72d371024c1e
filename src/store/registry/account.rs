//! The key of the accounts at the authorities: one for all, in sealed form.

use super::Registry;
use crate::store::StoreError;
use crate::store::statement::sql;

impl Registry {
    /// The key, or this one if there is none yet.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn account_key_or(&self, new: &str) -> Result<String, StoreError> {
        let mut transaction = self.database.begin().await?;
        let sql = sql!(
            "INSERT INTO registry_acme_account AS known (id, key) VALUES (1, {new})
             ON CONFLICT (id) DO UPDATE SET key = known.key RETURNING key",
            new,
        );
        let row = transaction.connection().fetch_one(sql).await?;
        transaction.commit().await?;
        Ok(row.get(0)?)
    }

    /// The key, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn account_key(&self) -> Result<Option<String>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT key FROM registry_acme_account");
        Ok(reader.fetch_optional(sql).await?.map(|row| row.get(0)).transpose()?)
    }

    /// Replaces the key: by another sealed form, or with the one that a snapshot has.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn replace_account_key(&self, key: &str) -> Result<(), StoreError> {
        let sql = sql!(
            "INSERT INTO registry_acme_account (id, key) VALUES (1, {key})
             ON CONFLICT (id) DO UPDATE SET key = excluded.key",
            key,
        );
        self.database.execute(sql).await?;
        Ok(())
    }
}
