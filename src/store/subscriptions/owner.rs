//! The token that made a subscription. What the subscription is sent is limited to what the token's forms reach now, also after
//! the token has ended. A bound subscription ends with its token: from then on it reads as paused.
//!
//! Nothing is written when a token is revoked or expires, so there is no moment at which that could be missed. Whoever
//! reads the state of a subscription, or leases it, looks at the token, by the clock of this node as for requests.

use jiff::Timestamp;

use super::Subscription;
use crate::store::engine::Transaction;
use crate::store::reach::FormReach;
use crate::store::statement::{Sql, sql};
use crate::store::tokens::is_active;
use crate::store::{Store, StoreError};

/// An expression of a subscription: the forms of its token. NULL: all.
pub(super) const FORMS: &str = "(SELECT t.forms FROM tokens t WHERE t.id = token_id)";

/// A condition on a subscription: it is bound to a token that was revoked or has expired.
pub(super) fn has_ended(now: Timestamp) -> Sql {
    sql!(
        "(bound AND NOT EXISTS (SELECT 1 FROM tokens WHERE id = token_id AND {+is_active}))",
        is_active = is_active(now),
    )
}

/// An expression: the state of a subscription, as its readers see it.
pub(super) fn state(now: Timestamp) -> Sql {
    sql!(
        "CASE WHEN state IN ('active', 'failing') AND {+has_ended} THEN 'paused' ELSE state END",
        has_ended = has_ended(now),
    )
}

/// Ends the leases of the subscriptions of a token whose forms change: a holder would go on with the reach that it has read.
pub(in crate::store) async fn end_leases(transaction: &mut Transaction, token: i64) -> Result<(), StoreError> {
    let end = sql!("UPDATE subscriptions SET leased_by = NULL, leased_until = NULL WHERE token_id = {token}", token);
    transaction.execute(end).await?;
    Ok(())
}

/// Hands the bound subscriptions of a token to its successor.
pub(in crate::store) async fn hand_over(transaction: &mut Transaction, old: i64, new: i64) -> Result<(), StoreError> {
    let update = sql!("UPDATE subscriptions SET token_id = {new} WHERE token_id = {old} AND bound", new, old);
    transaction.execute(update).await?;
    Ok(())
}

impl Store {
    /// The condition that a subscription is one that the caller may manage, behind others: a token that is limited to forms manages
    /// those that it made.
    pub(super) fn own(&self) -> Sql {
        match self.reach() {
            FormReach::All => Sql::default(),
            FormReach::Forms(_) => sql!(" AND token_id = {token}", token = self.caller.token),
        }
    }

    /// Whether the caller may manage a subscription.
    pub(super) fn manages(&self, subscription: &Subscription) -> bool {
        self.reach().is_all() || self.is_of_caller(subscription)
    }

    /// The subscription that the caller gets who subscribes to the same: its own, or one that is not bound to another token and
    /// sends as much.
    pub(super) fn the_same(&self, known: Vec<Subscription>, bound: bool) -> Option<Subscription> {
        let is_shared = |one: &Subscription| !bound && !one.bound && one.reach.is_all() && self.reach().is_all();
        let own = known.iter().position(|one| self.is_of_caller(one));
        let at = own.or_else(|| known.iter().position(is_shared))?;
        known.into_iter().nth(at)
    }

    fn is_of_caller(&self, subscription: &Subscription) -> bool {
        self.caller.token.is_some() && subscription.made_by.as_ref().map(|token| token.id) == self.caller.token
    }
}
