//! Requests that cost more than one: further places in the windows of a request that has taken one already.
//!
//! All places are taken or none, by one call to Redis. If none is, the request gives back the one that it has, since a refusal
//! spends nothing. Nothing is remembered of such a refusal: the window has room for other requests.

use std::sync::Arc;

use super::accounts::{LimitedAccount, LimitedToken};
use super::outcome::{Budget, BudgetOf, Outcome, Outcomes};
use super::shared::{Operation, WindowRequest};
use super::{NotAdmitted, Quota, ReportUsage};
use crate::config::OnRedisFailure;

impl Quota {
    /// Spends more of an account's budget, and of the token's own if it has one, for a request that was admitted. Returns what
    /// remains of the nearer one.
    ///
    /// # Errors
    /// [`NotAdmitted`]; the request has then spent nothing.
    pub async fn spend_more(
        &self,
        account: LimitedAccount<'_>,
        token: LimitedToken,
        more: u32,
    ) -> Result<Budget, NotAdmitted> {
        let most = token.limit.unwrap_or(u32::MAX).min(account.limit);
        let places = u16::try_from(more.min(most)).unwrap_or(u16::MAX);
        let outcomes = match &self.shared {
            None => self.spend_more_of_own(account, token, places),
            Some((windows, policy)) => {
                let request = WindowRequest { places, ..account.request(Operation::SpendMore, token) };
                match (windows.request(request).await, policy) {
                    (Ok(outcomes), _) => {
                        self.note_spent(account, token, &outcomes, places);
                        given_back(outcomes)
                    }
                    (Err(_), OnRedisFailure::Local) => self.spend_more_of_own(account, token, places),
                    (Err(_), OnRedisFailure::Allow) => {
                        let (now, span, mut own) = (self.now(), self.span_in_micros(), account.own());
                        (0..places).for_each(|_| own.note(now, span, account.limit, token));
                        own.peek(now, span, account.limit, token, ReportUsage::No)
                    }
                    (Err(_), OnRedisFailure::Deny) => return Err(NotAdmitted::StoreFailed),
                }
            }
        };
        match refusal(&outcomes, account.limit, token) {
            Some(refusal) => Err(refusal),
            None => Ok(outcomes.budget(account.limit, token)),
        }
    }

    fn spend_more_of_own(&self, account: LimitedAccount<'_>, token: LimitedToken, places: u16) -> Outcomes {
        account.own().spend_more((self.now(), self.span_in_micros()), account.limit, token, places)
    }

    /// Records in this node's own window what the shared one decided.
    fn note_spent(&self, account: LimitedAccount<'_>, token: LimitedToken, outcomes: &Outcomes, places: u16) {
        let (now, span) = (self.now(), self.span_in_micros());
        let mut own = account.own();
        if outcomes.is_admitted() {
            (0..places).for_each(|_| own.note(now, span, account.limit, token));
        } else {
            own.take_back(token);
        }
        drop(own);
        account.note_peek(now, outcomes.account.remaining);
    }
}

/// What remains after a refusal gave back its place: the script reports what remained before.
fn given_back(outcomes: Outcomes) -> Outcomes {
    if outcomes.is_admitted() {
        return outcomes;
    }
    let more = |outcome: Outcome| Outcome { remaining: outcome.remaining.saturating_add(1), ..outcome };
    Outcomes { account: more(outcomes.account), token: outcomes.token.map(more) }
}

/// The refusal by the windows that have too few places: of two, by the one that has for longer, the token's own if they are
/// equal.
fn refusal(outcomes: &Outcomes, limit: u32, token: LimitedToken) -> Option<NotAdmitted> {
    let own = outcomes.token.as_ref().zip(token.limit).map(|(own, limit)| (BudgetOf::Token, limit, own));
    let account = (BudgetOf::Account, limit, &outcomes.account);
    let of_windows = [Some(account), own].into_iter().flatten();
    let full = of_windows.filter_map(|(of, limit, outcome)| Some((outcome.wait?, of, limit, outcome)));
    let (wait, of, limit, outcome) = full.max_by_key(|(wait, ..)| *wait)?;
    let budget = Budget { of, limit, remaining: outcome.remaining };
    Some(NotAdmitted::Exhausted { budget, wait, usage: Arc::new(outcome.usage.clone()) })
}
