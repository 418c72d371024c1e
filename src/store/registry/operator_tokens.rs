//! The tokens of the operator API. Only their digests are stored.

use jiff::Timestamp;

use super::Registry;
use crate::store::StoreError;
use crate::store::statement::{Row, Sql, sql};

/// A token to store.
#[derive(Clone, Debug)]
pub struct NewOperatorToken {
    /// What the operator calls it.
    pub name: String,
    /// Its first characters, by which operators recognize it.
    pub prefix: String,
    /// SHA-256 of the token.
    pub digest: [u8; 32],
    /// From this instant on it is refused. None: never.
    pub expires_at: Option<Timestamp>,
}

/// A stored token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorTokenRecord {
    /// What `operator-token revoke` takes.
    pub id: i64,
    /// What the operator calls it.
    pub name: String,
    /// Its first characters.
    pub prefix: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// The system user of the command that created it.
    pub created_by: String,
    /// From this instant on it is refused. None: never.
    pub expires_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// How old the time of the last use may get before it is written.
///
/// Larger: the list is less exact. Smaller: more writes.
const USE_INTERVAL: std::time::Duration = std::time::Duration::from_secs(60);

impl OperatorTokenRecord {
    /// What [`Self::read`] reads.
    fn columns() -> Sql {
        Sql::text("id, name, prefix, created_at, created_by, expires_at, last_used_at, revoked_at")
    }
    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            prefix: row.get(2)?,
            created_at: row.get(3)?,
            created_by: row.get(4)?,
            expires_at: row.get(5)?,
            last_used_at: row.get(6)?,
            revoked_at: row.get(7)?,
        })
    }
}

impl Registry {
    /// Stores a token. Returns its id.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn create_operator_token(
        &self,
        token: &NewOperatorToken,
        now: Timestamp,
        by: &str,
    ) -> Result<i64, StoreError> {
        let mut transaction = self.database.begin().await?;
        let sql = sql!(
            "INSERT INTO operator_tokens (name, prefix, digest, created_at, created_by, expires_at)
             VALUES ({name}, {prefix}, {digest}, {now}, {by}, {expires_at})
             RETURNING id",
            name = &token.name,
            prefix = &token.prefix,
            digest = &token.digest,
            now,
            by,
            expires_at = token.expires_at,
        );
        let id = transaction.connection().fetch_one(sql).await?.get(0)?;
        transaction.commit().await?;
        Ok(id)
    }

    /// The token with a digest, unless it is revoked or has expired. Notes its use.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn use_operator_token(
        &self,
        digest: &[u8; 32],
        now: Timestamp,
    ) -> Result<Option<OperatorTokenRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT {+columns} FROM operator_tokens
             WHERE revoked_at IS NULL AND digest = {digest} AND (expires_at IS NULL OR expires_at > {now})",
            columns = OperatorTokenRecord::columns(),
            digest,
            now,
        );
        let found = reader.fetch_optional(sql).await?.as_ref().map(OperatorTokenRecord::read).transpose()?;
        drop(reader);
        if let Some(token) = found.as_ref().filter(|token| token.last_used_at.is_none_or(|at| at + USE_INTERVAL <= now))
        {
            let sql = sql!("UPDATE operator_tokens SET last_used_at = {now} WHERE id = {id}", now, id = token.id);
            // A registry that can't be written is still read.
            self.database.execute(sql).await.ok();
        }
        Ok(found)
    }

    /// Every token, by id, including revoked ones.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_operator_tokens(&self) -> Result<Vec<OperatorTokenRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT {+columns} FROM operator_tokens ORDER BY id", columns = OperatorTokenRecord::columns());
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(OperatorTokenRecord::read).collect::<Result<_, _>>()?)
    }

    /// Revokes a token. Returns whether there was one that was not revoked.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn revoke_operator_token(&self, id: i64, now: Timestamp) -> Result<bool, StoreError> {
        let sql = sql!("UPDATE operator_tokens SET revoked_at = {now} WHERE revoked_at IS NULL AND id = {id}", now, id);
        Ok(self.database.execute(sql).await? > 0)
    }
}
