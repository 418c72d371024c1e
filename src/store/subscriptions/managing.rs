//! Pauses and resumes subscriptions, and rotates their secrets.
//!
//! Each is one statement. A sender that holds the subscription notices a pause when it next writes its progress.

use std::time::Duration;

use super::Subscription;
use crate::store::engine::Retry;
use crate::store::statement::Sql;
use crate::store::{Store, StoreError};

impl Store {
    /// Stops a subscription from being delivered until it is resumed. One that is disabled or gone stays so, with its
    /// reason. None: there is no such subscription.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn pause_subscription(&self, id: i64) -> Result<Option<Subscription>, StoreError> {
        self.change_subscription(id, |sql| {
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
    pub async fn resume_subscription(&self, id: i64) -> Result<Option<Subscription>, StoreError> {
        self.change_subscription(id, |sql| {
            sql.push("state = 'active', reason = NULL, failures = 0, failing_since = NULL, next_attempt_at = NULL");
        })
        .await
    }

    /// Gives a subscription a new secret. The one before signs too for a while. None: there is no such subscription.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Statement`].
    pub async fn rotate_secret(
        &self,
        id: i64,
        secret: &str,
        grace: Duration,
    ) -> Result<Option<Subscription>, StoreError> {
        self.change_subscription(id, |sql| {
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
        assign: impl FnOnce(&mut Sql),
    ) -> Result<Option<Subscription>, StoreError> {
        let mut sql = self.database.sql();
        sql.push("UPDATE subscriptions SET ");
        assign(&mut sql);
        sql.push(" WHERE id = ").bind(id);
        let mut retry = Retry::default();
        loop {
            match self.database.execute(sql.clone()).await {
                Ok(_) => return self.find_subscription(id).await,
                Err(error) if retry.wait_if_retryable(&error).await => {}
                Err(error) => return Err(error),
            }
        }
    }
}
