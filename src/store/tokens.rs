//! API tokens in the account's database, which stores their digests and never the tokens.

use jiff::Timestamp;

use super::statement::{Row, Sql};
use super::{Store, StoreError};

/// A token to store.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// What the administrator calls it.
    pub name: String,
    /// The first characters of the token, by which administrators recognize it.
    pub prefix: String,
    /// SHA-256 of the token.
    pub digest: [u8; 32],
}

/// A stored token.
#[derive(Clone, Debug)]
pub struct TokenRecord {
    /// The number that `token revoke` takes.
    pub id: i64,
    /// What the administrator calls it.
    pub name: String,
    /// The first characters of the token.
    pub prefix: String,
    /// SHA-256 of the token.
    pub digest: Vec<u8>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

const COLUMNS: &str = "id, name, prefix, digest, created_at, last_used_at, revoked_at";

impl TokenRecord {
    fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            prefix: row.get(2)?,
            digest: row.get(3)?,
            created_at: row.get(4)?,
            last_used_at: row.get(5)?,
            revoked_at: row.get(6)?,
        })
    }
}

impl Store {
    /// The token with a digest, unless it is revoked.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn find_token(&self, digest: &[u8; 32]) -> Result<Option<TokenRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT ")
            .push(COLUMNS)
            .push(" FROM tokens WHERE revoked_at IS NULL AND digest = ")
            .bind(digest.to_vec());
        let row = reader.fetch_optional(sql).await?;
        Ok(row.as_ref().map(TokenRecord::read).transpose()?)
    }

    /// Every token, by id, including revoked ones.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_tokens(&self) -> Result<Vec<TokenRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT ").push(COLUMNS).push(" FROM tokens ORDER BY id");
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(TokenRecord::read).collect::<Result<_, _>>()?)
    }

    /// Stores a token.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn create_token(&self, token: NewToken, now: Timestamp) -> Result<(), StoreError> {
        let mut sql = self.database.sql();
        sql.push("INSERT INTO tokens (name, prefix, digest, created_at) VALUES (").bind(token.name).push(", ");
        sql.bind(token.prefix).push(", ").bind(token.digest.to_vec()).push(", ").bind(now).push(")");
        self.database.execute(sql).await?;
        Ok(())
    }

    /// Revokes a token. Returns whether it exists. A token that was revoked before keeps its time of revocation.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn revoke_token(&self, id: i64, now: Timestamp) -> Result<bool, StoreError> {
        let mut sql = self.database.sql();
        sql.push("UPDATE tokens SET revoked_at = coalesce(revoked_at, ").bind(now).push(") WHERE id = ").bind(id);
        Ok(self.database.execute(sql).await? > 0)
    }

    /// Writes when tokens were last used, with one statement. A time older than the stored one changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn touch_tokens(&self, used: &[(i64, Timestamp)]) -> Result<(), StoreError> {
        self.database.execute(touch(self.database.sql(), used)).await?;
        Ok(())
    }

    /// The same, on a connection that is open and idle. Returns whether there is one.
    ///
    /// # Errors
    /// [`StoreError::Statement`].
    pub async fn touch_tokens_if_idle(&self, used: &[(i64, Timestamp)]) -> Result<bool, StoreError> {
        let Some(mut transaction) = self.database.begin_if_idle().await? else { return Ok(false) };
        transaction.execute(touch(self.database.sql(), used)).await?;
        transaction.commit().await?;
        Ok(true)
    }
}

fn touch(mut sql: Sql, used: &[(i64, Timestamp)]) -> Sql {
    let rows = serde_json::to_string(&used.iter().map(|(id, at)| (id, at.as_microsecond())).collect::<Vec<_>>())
        .expect("numbers are JSON");
    sql.push("UPDATE tokens SET last_used_at = ");
    sql.push_either("to_timestamp(used.at / 1e6)", "used.at").push(" FROM ");
    sql.push_rows(rows, &[("id", "bigint"), ("at", "bigint")]).push(" AS used WHERE tokens.id = used.id");
    sql.push(" AND (last_used_at IS NULL OR last_used_at < ")
        .push_either("to_timestamp(used.at / 1e6)", "used.at")
        .push(")");
    sql
}
