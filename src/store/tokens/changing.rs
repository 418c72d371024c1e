//! Narrows and widens what a token is limited to.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{AuditEntry, TokenLimits, subject};
use crate::store::audit::{self, Actor};
use crate::store::engine::retry;
use crate::store::statement::sql;
use crate::store::subscriptions::end_leases;
use crate::store::{Store, StoreError};

/// The outcome of changing the limits of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedToken {
    /// They were changed.
    Changed,
    /// It has these limits already.
    Same,
    /// There is no such token.
    Unknown,
    /// It is revoked.
    Revoked,
    /// It has expired.
    Expired,
}

impl Store {
    /// Changes what a token is limited to. `change` gets the present limits, and returns the new ones. Its row is locked from
    /// reading it, so that two changes follow each other.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn change_token_limits(
        &self,
        id: i64,
        change: impl Fn(TokenLimits) -> TokenLimits + Sync,
        now: Timestamp,
        by: &Actor,
    ) -> Result<ChangedToken, StoreError> {
        let change = &change;
        retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let lock = sql!(
                "SELECT name, revoked_at, expires_at, scopes, forms, networks, requests_per_minute
                 FROM tokens WHERE id = {id} {pg: FOR UPDATE}",
                id,
            );
            let Some(row) = transaction.connection().fetch_optional(lock).await? else {
                return Ok(ChangedToken::Unknown);
            };
            if row.get::<Option<Timestamp>>(1)?.is_some() {
                return Ok(ChangedToken::Revoked);
            }
            if row.get::<Option<Timestamp>>(2)?.is_some_and(|expires_at| expires_at <= now) {
                return Ok(ChangedToken::Expired);
            }
            let old = TokenLimits::read(&row, 3)?;
            let new = change(old.clone());
            if new == old {
                return Ok(ChangedToken::Same);
            }
            let update = sql!(
                "UPDATE tokens
                 SET scopes = {scopes}, forms = {forms}, networks = {networks},
                   requests_per_minute = {requests_per_minute}
                 WHERE id = {id}",
                scopes = new.scopes.stored(),
                forms = new.forms.stored(),
                networks = new.networks.stored(),
                requests_per_minute = new.stored_budget(),
                id,
            );
            transaction.execute(update).await?;
            if new.forms != old.forms {
                end_leases(&mut transaction, id).await?;
            }
            let (before, after) = differing(&old, &new);
            let details = json!({ "name": row.get::<String>(0)?, "before": before, "after": after });
            let entry = AuditEntry { action: "token.change", subject: subject(id), details };
            audit::append(&mut transaction, by, entry, now).await?;
            transaction.commit().await?;
            Ok(ChangedToken::Changed)
        })
        .await
    }
}

/// The keys with other values, with those before and after.
fn differing(old: &TokenLimits, new: &TokenLimits) -> (Map<String, Value>, Map<String, Value>) {
    let (old, new) = (old.to_json(), new.to_json());
    let differs = |(key, _): &(&String, &Value)| old[*key] != new[*key];
    let of = |limits: &Map<String, Value>| {
        limits.iter().filter(differs).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    (of(&old), of(&new))
}
