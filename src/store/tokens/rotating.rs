//! Rotates a token: a new one replaces it, and the old one is refused after an overlap. The subscriptions that are bound to the
//! old one are the new one's at once.
//!
//! The row of the old token is locked until the commit, so that two rotations of it follow each other, and so do a
//! rotation and a revocation.

use std::time::Duration;

use jiff::Timestamp;

use super::{AuditEntry, CreatedToken, NewToken, TokenLimits, details, insert, subject};
use crate::instant::Rfc3339Micros;
use crate::store::audit::{self, Actor};
use crate::store::engine::retry;
use crate::store::statement::sql;
use crate::store::subscriptions::hand_over;
use crate::store::{Store, StoreError};

/// The outcome of rotating a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotatedToken {
    /// It was replaced.
    New {
        /// The new token.
        id: i64,
        /// From when on the old token is refused.
        old_until: Timestamp,
    },
    /// The same form was sent before, and created the token with this id.
    Existing(i64),
    /// There is no such token.
    Unknown,
    /// It is revoked.
    Revoked,
    /// It has expired.
    Expired,
}

impl Store {
    /// Stores `token`, which replaces the one with this id and has its limits. That one expires after `overlap`, or earlier if it already
    /// had an earlier expiry; without an overlap it is revoked.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn rotate_token(
        &self,
        id: i64,
        token: NewToken,
        overlap: Duration,
        now: Timestamp,
        by: &Actor,
    ) -> Result<RotatedToken, StoreError> {
        let token = &NewToken { replaces: Some(id), ..token };
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let lock = sql!(
                "SELECT revoked_at, expires_at, scopes, forms, networks, requests_per_minute
                 FROM tokens WHERE id = {id} {pg: FOR UPDATE}",
                id,
            );
            let Some(old) = transaction.connection().fetch_optional(lock).await? else {
                return Ok(RotatedToken::Unknown);
            };
            let token = &NewToken { limits: TokenLimits::read(&old, 2)?, ..token.clone() };
            // Before the state of the old token: the form that is sent again may have revoked it.
            let new = match insert(&mut transaction, token, now, by).await? {
                CreatedToken::New(id) => id,
                CreatedToken::Existing { id, .. } => return Ok(RotatedToken::Existing(id)),
            };
            let expires_at: Option<Timestamp> = old.get(1)?;
            if old.get::<Option<Timestamp>>(0)?.is_some() {
                return Ok(RotatedToken::Revoked);
            }
            if expires_at.is_some_and(|expires_at| expires_at <= now) {
                return Ok(RotatedToken::Expired);
            }
            // Saturates: an overlap without end.
            let end = now.checked_add(overlap).unwrap_or(Timestamp::MAX);
            let old_until = expires_at.map_or(end, |expires_at| expires_at.min(end));
            let update = if overlap.is_zero() {
                sql!("UPDATE tokens SET revoked_at = {old_until} WHERE id = {id}", old_until, id)
            } else {
                sql!("UPDATE tokens SET expires_at = {old_until} WHERE id = {id}", old_until, id)
            };
            transaction.execute(update).await?;
            hand_over(&mut transaction, id, new).await?;

            let mut details = details(token);
            details["old_until"] = Rfc3339Micros(old_until).to_string().into();
            let entry = AuditEntry { action: "token.rotate", subject: subject(new), details };
            audit::append(&mut transaction, by, entry, now).await?;
            transaction.commit().await?;
            Ok(RotatedToken::New { id: new, old_until })
        })
        .await
    }
}
