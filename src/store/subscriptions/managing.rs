//! Pauses and resumes subscriptions, and rotates their secrets.
//!
//! Each is one transaction, which also writes the audit log if an administrator or a command made the change: `by` is
//! None for a call of the API, which the access log records. A sender that holds the subscription notices a pause when it next writes its progress.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::Subscription;
use super::owner::has_ended;
use crate::outbound::DeliveryReason;
use crate::store::audit::{self, Actor, AuditEntry};
use crate::store::engine::retry;
use crate::store::statement::{Argument, Sql, sql};
use crate::store::{Store, StoreError};

/// The outcome of resuming a subscription.
#[derive(Clone, Debug)]
pub enum Resumed {
    /// It is delivered.
    Active(Box<Subscription>),
    /// It is bound to a token that was revoked or has expired.
    TokenEnded,
    /// There is no such subscription.
    Unknown,
}

impl Store {
    /// Stops a subscription from being delivered until it is resumed. One that is disabled or gone stays so, with its
    /// reason. None: there is no such subscription.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn pause_subscription(&self, id: i64, by: Option<&Actor>) -> Result<Option<Subscription>, StoreError> {
        let pause = sql!(
            "UPDATE subscriptions SET
               reason = CASE WHEN state IN ('active', 'failing') THEN {reason} ELSE reason END,
               failing_since = CASE WHEN state IN ('active', 'failing') THEN NULL ELSE failing_since END,
               state = CASE WHEN state IN ('active', 'failing') THEN 'paused' ELSE state END
             WHERE id = {id}{+own}
             RETURNING target_url",
            reason = DeliveryReason::Paused.stored(),
            id,
            own = self.own(),
        );
        self.change_subscription(id, by, "webhook.pause", pause).await
    }

    /// Has a subscription delivered, from where it stopped, whatever its state.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn resume_subscription(&self, id: i64, by: Option<&Actor>) -> Result<Resumed, StoreError> {
        let resume = sql!(
            "UPDATE subscriptions SET
               state = 'active', reason = NULL, failures = 0, failing_since = NULL, next_attempt_at = NULL
             WHERE id = {id}{+own} AND NOT {+has_ended}
             RETURNING target_url",
            id,
            own = self.own(),
            has_ended = has_ended(Timestamp::now()),
        );
        Ok(match self.change_subscription(id, by, "webhook.resume", resume).await? {
            Some(resumed) => Resumed::Active(Box::new(resumed)),
            None if self.find_subscription(id).await?.is_some() => Resumed::TokenEnded,
            None => Resumed::Unknown,
        })
    }

    /// The current secret of a subscription, sealed if it is stored so. None: there is no such subscription.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn current_secret(&self, id: i64) -> Result<Option<String>, StoreError> {
        let mut reader = self.database.reader().await?;
        let sql = sql!("SELECT secret FROM subscriptions WHERE id = {id}", id);
        Ok(reader.fetch_optional(sql).await?.map(|row| row.get(0)).transpose()?)
    }

    /// Gives a subscription a new secret. The one before signs too for a while. None: there is no such subscription, or
    /// its secret is not `current` any more, if that is given.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn rotate_secret(
        &self,
        id: i64,
        current: Option<&str>,
        secret: &str,
        grace: Duration,
        by: Option<&Actor>,
    ) -> Result<Option<Subscription>, StoreError> {
        let previous = if grace.is_zero() {
            Sql::text("previous_secret = NULL, previous_secret_until = NULL")
        } else {
            sql!("previous_secret = secret, previous_secret_until = {clock + grace}", grace)
        };
        let is_current = match current {
            Some(current) => sql!("secret = {current}", current = Argument::Secret(current.to_owned())),
            None => Sql::text("TRUE"),
        };
        // A holder of the lease would go on signing with the secrets that it has read.
        let rotate = sql!(
            "UPDATE subscriptions SET {+previous}, leased_by = NULL, leased_until = NULL, secret = {secret}
             WHERE id = {id} AND {+is_current}{+own}
             RETURNING target_url",
            previous,
            secret = Argument::Secret(secret.to_owned()),
            id,
            is_current,
            own = self.own(),
        );
        self.change_subscription(id, by, "webhook.rotate", rotate).await
    }

    /// Runs an update that returns the target.
    async fn change_subscription(
        &self,
        id: i64,
        by: Option<&Actor>,
        action: &'static str,
        update: Sql,
    ) -> Result<Option<Subscription>, StoreError> {
        let update = &update;
        let is_changed = retry::run(|| async move {
            let mut transaction = self.database.begin().await?;
            let changed = transaction.connection().fetch_optional(update.clone()).await?;
            let Some(changed) = changed else { return Ok(false) };
            if let Some(by) = by {
                let entry = audit_entry(action, id, &changed.get::<String>(0)?);
                audit::append(&mut transaction, by, entry, Timestamp::now()).await?;
            }
            transaction.commit().await?;
            Ok::<_, StoreError>(true)
        })
        .await?;
        if is_changed { self.find_subscription(id).await } else { Ok(None) }
    }
}

/// What the audit log says about a change of a subscription. Only the host of the target: its path may be a secret.
pub(super) fn audit_entry(action: &'static str, id: i64, target_url: &str) -> AuditEntry {
    let host = target_url.split("://").nth(1).and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    AuditEntry { action, subject: format!("webhook hook_{id}"), details: json!({ "target": host }) }
}
