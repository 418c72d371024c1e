//! What the administration area shows of all tokens and subscriptions at a glance, and pages of tokens.

use jiff::{SignedDuration, Timestamp};

use super::statement::{Sql, sql};
use super::tokens::{COLUMNS, is_active};
use super::{Store, StoreError, TokenRecord};

/// Tokens that expire within this time need attention. Larger: administrators get used to the hint. Smaller: a holiday
/// is longer than the time to replace a token.
const EXPIRES_SOON: SignedDuration = SignedDuration::from_hours(14 * 24);

/// Tokens that were not used for this time need attention. Larger: forgotten tokens stay valid for longer. Smaller:
/// tokens of a job that runs every quarter are listed.
const UNUSED: SignedDuration = SignedDuration::from_hours(90 * 24);

/// Tokens at a glance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenCounts {
    /// Neither revoked nor expired.
    pub active: i64,
    /// Of these, those that expire within 14 days and are not replaced.
    pub expire_soon: i64,
    /// Of these, those that were neither used nor created within 90 days and are not replaced.
    pub unused: i64,
}

/// Which tokens to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFilter {
    /// Those that are neither revoked nor expired.
    Active,
    /// Of these, those that expire within 14 days and are not replaced.
    ExpireSoon,
    /// Of these, those that were neither used nor created within 90 days and are not replaced.
    Unused,
    /// Every one.
    All,
}

impl Store {
    /// Counts tokens.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_tokens(&self, now: Timestamp) -> Result<TokenCounts, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT count(*), count(CASE WHEN {+expires_soon} THEN 1 END), count(CASE WHEN {+is_unused} THEN 1 END)
             FROM tokens
             WHERE {+is_active}
             {scans: an account has few tokens that are valid}",
            expires_soon = expires_soon(now),
            is_unused = is_unused(now),
            is_active = is_active(now),
        );
        let row = reader.fetch_one(sql).await?;
        Ok(TokenCounts { active: row.get(0)?, expire_soon: row.get(1)?, unused: row.get(2)? })
    }

    /// Tokens below an id, newest first.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn list_newest_tokens(
        &self,
        filter: TokenFilter,
        before: Option<i64>,
        limit: u32,
        now: Timestamp,
    ) -> Result<Vec<TokenRecord>, StoreError> {
        let mut reader = self.database.reader().await?;
        let conditions = match filter {
            TokenFilter::Active => vec![is_active(now)],
            TokenFilter::ExpireSoon => vec![is_active(now), expires_soon(now)],
            TokenFilter::Unused => vec![is_active(now), is_unused(now)],
            TokenFilter::All => vec![Sql::text("TRUE")],
        };
        let sql = sql!(
            "SELECT {+columns} FROM tokens
             WHERE id < {before} AND {+conditions}
             ORDER BY id DESC LIMIT {limit}",
            columns = Sql::text(COLUMNS),
            before = before.unwrap_or(i64::MAX),
            conditions = Sql::joined(conditions, " AND "),
            limit,
        );
        let rows = reader.fetch_all(sql).await?;
        Ok(rows.iter().map(TokenRecord::read).collect::<Result<_, _>>()?)
    }

    /// How many subscriptions are failing, and how many were disabled or are gone.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn count_troubled_subscriptions(&self) -> Result<(i64, i64), StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!(
            "SELECT count(CASE WHEN state = 'failing' THEN 1 END),
               count(CASE WHEN state IN ('disabled', 'gone') THEN 1 END)
             FROM subscriptions"
        );
        let row = reader.fetch_one(sql).await?;
        Ok((row.get(0)?, row.get(1)?))
    }
}

fn expires_soon(now: Timestamp) -> Sql {
    sql!(
        "expires_at <= {soon} AND {+is_not_replaced}",
        soon = now + EXPIRES_SOON,
        is_not_replaced = is_not_replaced(now)
    )
}

fn is_unused(now: Timestamp) -> Sql {
    sql!(
        "coalesce(last_used_at, created_at) < {long_ago} AND {+is_not_replaced}",
        long_ago = now - UNUSED,
        is_not_replaced = is_not_replaced(now)
    )
}

/// No active token replaces it: one that was rotated ends by itself. The list is read once, not for each token.
fn is_not_replaced(now: Timestamp) -> Sql {
    sql!(
        "id NOT IN (
           SELECT replaces FROM tokens WHERE replaces IS NOT NULL AND {+is_active}
           {scans: an account has few tokens that are valid})",
        is_active = is_active(now),
    )
}
