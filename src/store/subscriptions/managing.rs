//! Pauses and resumes subscriptions, and rotates their secrets.
//!
//! Each is one transaction, which also writes the audit log if an administrator or a command made the change: `by` is
//! None for a call of the API, which the access log records. A sender that holds the subscription notices a pause when it next writes its progress.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::Subscription;
use crate::store::audit::{self, Actor, AuditEntry};
use crate::store::engine::Retry;
use crate::store::statement::Sql;
use crate::store::{Store, StoreError};

impl Store {
    /// Stops a subscription from being delivered until it is resumed. One that is disabled or gone stays so, with its
    /// reason. None: there is no such subscription.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn pause_subscription(&self, id: i64, by: Option<&Actor>) -> Result<Option<Subscription>, StoreError> {
        self.change_subscription(id, by, "webhook.pause", |sql| {
            sql.push("reason = CASE WHEN state IN ('active', 'failing') THEN 'paused by request' ELSE reason END, ");
            sql.push("failing_since = CASE WHEN state IN ('active', 'failing') THEN NULL ELSE failing_since END, ");
            sql.push("state = CASE WHEN state IN ('active', 'failing') THEN 'paused' ELSE state END");
        })
        .await
    }

    /// Has a subscription delivered, from where it stopped, whatever its state. None: there is no such subscription.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn resume_subscription(&self, id: i64, by: Option<&Actor>) -> Result<Option<Subscription>, StoreError> {
        self.change_subscription(id, by, "webhook.resume", |sql| {
            sql.push("state = 'active', reason = NULL, failures = 0, failing_since = NULL, next_attempt_at = NULL");
        })
        .await
    }

    /// The current secret of a subscription, sealed if it is stored so. None: there is no such subscription.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn current_secret(&self, id: i64) -> Result<Option<String>, StoreError> {
        let mut reader = self.database.reader().await?;
        let mut sql = reader.sql();
        sql.push("SELECT secret FROM subscriptions WHERE id = ").bind(id);
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
        self.change_subscription_with(id, current, by, "webhook.rotate", |sql| {
            if grace.is_zero() {
                sql.push("previous_secret = NULL, previous_secret_until = NULL");
            } else {
                sql.push("previous_secret = secret, previous_secret_until = ").push_now_plus(grace);
            }
            // A holder of the lease would go on signing with the secrets that it has read.
            sql.push(", leased_by = NULL, leased_until = NULL, secret = ").bind(secret);
        })
        .await
    }

    async fn change_subscription(
        &self,
        id: i64,
        by: Option<&Actor>,
        action: &'static str,
        assign: impl FnOnce(&mut Sql),
    ) -> Result<Option<Subscription>, StoreError> {
        self.change_subscription_with(id, None, by, action, assign).await
    }

    async fn change_subscription_with(
        &self,
        id: i64,
        secret: Option<&str>,
        by: Option<&Actor>,
        action: &'static str,
        assign: impl FnOnce(&mut Sql),
    ) -> Result<Option<Subscription>, StoreError> {
        let mut sql = self.database.sql();
        sql.push("UPDATE subscriptions SET ");
        assign(&mut sql);
        sql.push(" WHERE id = ").bind(id);
        if let Some(secret) = secret {
            sql.push(" AND secret = ").bind(secret);
        }
        sql.push(" RETURNING target_url");
        let mut retry = Retry::default();
        loop {
            match self.try_to_change_subscription(id, by, action, sql.clone()).await {
                Ok(true) => return self.find_subscription(id).await,
                Ok(false) => return Ok(None),
                Err(error) if retry.wait_if_retryable(&error).await => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn try_to_change_subscription(
        &self,
        id: i64,
        by: Option<&Actor>,
        action: &'static str,
        change: Sql,
    ) -> Result<bool, StoreError> {
        let mut transaction = self.database.begin().await?;
        let Some(changed) = transaction.connection().fetch_optional(change).await? else { return Ok(false) };
        if let Some(by) = by {
            let entry = audit_entry(action, id, &changed.get::<String>(0)?);
            audit::append(&mut transaction, by, entry, Timestamp::now()).await?;
        }
        transaction.commit().await?;
        Ok(true)
    }
}

/// What the audit log says about a change of a subscription. Only the host of the target: its path may be a secret.
pub(super) fn audit_entry(action: &'static str, id: i64, target_url: &str) -> AuditEntry {
    let host = target_url.split("://").nth(1).and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    AuditEntry { action, subject: format!("webhook hook_{id}"), details: json!({ "target": host }) }
}
