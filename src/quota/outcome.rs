//! What became of a request: the windows that it had to pass, and which of them is nearer to its end.
//!
//! Every request passes its account's window, and its token's own if the token has a budget. It takes a place in both or
//! in neither.

use std::sync::Arc;
use std::time::Duration;

use super::usage::Usage;
use super::{LimitedToken, NotAdmitted};

/// Whose budget it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BudgetOf {
    /// That of all tokens of the account for the API.
    Account,
    /// That of all tokens of the account for SCIM.
    Scim,
    /// The token's own.
    Token,
}

/// What may be spent in one window, and how much of it remains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Whose it is.
    pub of: BudgetOf,
    /// Requests per window.
    pub limit: u32,
    /// Requests that would still be admitted now.
    pub remaining: u32,
}

/// A window after a request.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Places that remain.
    pub(super) remaining: u32,
    /// Time until a place is free; `None` if one is, or was.
    pub(super) wait: Option<Duration>,
    /// Which tokens used the window, if the request asks for it or the window is full.
    pub(super) usage: Usage,
}

/// The windows of a request after it.
#[derive(Debug)]
pub(super) struct Outcomes {
    /// That of the account.
    pub(super) account: Outcome,
    /// The token's own, if it has a budget.
    pub(super) token: Option<Outcome>,
}

impl Outcomes {
    /// Whether the request took a place.
    pub(super) fn is_admitted(&self) -> bool {
        self.account.wait.is_none() && self.token.as_ref().is_none_or(|token| token.wait.is_none())
    }

    /// The refusal, if a window is full.
    pub(super) fn refusal(&self, limit: u32, token: LimitedToken, now: u64) -> Option<NotAdmitted> {
        let account = Full::of(&self.account, limit, now);
        let own = self.token.as_ref().zip(token.limit).and_then(|(own, limit)| Full::of(own, limit, now));
        refusal(account.as_ref(), own.as_ref(), now)
    }

    /// What remains of the nearer budget: the one with fewer requests left, the token's if they are equal.
    pub(super) fn budget(&self, limit: u32, token: LimitedToken) -> Budget {
        let account = Budget { of: BudgetOf::Account, limit, remaining: self.account.remaining };
        let own = self.token.as_ref().zip(token.limit);
        let own = own.map(|(own, limit)| Budget { of: BudgetOf::Token, limit, remaining: own.remaining });
        own.filter(|own| own.remaining <= account.remaining).unwrap_or(account)
    }
}

/// A window that is full until an instant. Only time frees a place, so Redis is not called before then.
#[derive(Clone, Debug)]
pub(super) struct Full {
    /// In microseconds of [`Quota::now`](super::Quota).
    pub(super) until: u64,
    /// The limit at which the window was full.
    pub(super) limit: u32,
    pub(super) usage: Arc<Usage>,
}

impl Full {
    /// A window that an outcome found full.
    pub(super) fn of(outcome: &Outcome, limit: u32, now: u64) -> Option<Self> {
        let wait = outcome.wait?;
        Some(Self { until: now + super::micros(wait), limit, usage: Arc::new(outcome.usage.clone()) })
    }

    /// Whether it is still full.
    pub(super) fn holds(&self, limit: u32, now: u64) -> bool {
        self.limit == limit && self.until > now
    }

    fn refusal(&self, of: BudgetOf, now: u64) -> NotAdmitted {
        NotAdmitted::Exhausted {
            budget: Budget { of, limit: self.limit, remaining: 0 },
            wait: Duration::from_micros(self.until.saturating_sub(now)),
            usage: Arc::clone(&self.usage),
        }
    }
}

/// The refusal by full windows: of two, the one that is full for longer, the token's own if they are equal. `None` if neither
/// is full.
pub(super) fn refusal(account: Option<&Full>, token: Option<&Full>, now: u64) -> Option<NotAdmitted> {
    match (account, token) {
        (None, None) => None,
        (Some(account), Some(token)) if account.until > token.until => Some(account.refusal(BudgetOf::Account, now)),
        (_, Some(token)) => Some(token.refusal(BudgetOf::Token, now)),
        (Some(account), None) => Some(account.refusal(BudgetOf::Account, now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(remaining: u32) -> Outcome {
        Outcome { remaining, wait: None, usage: Usage::default() }
    }

    #[test]
    fn the_budget_with_fewer_requests_left_is_shown_and_the_tokens_if_they_are_equal() {
        let token = LimitedToken { id: 7, limit: Some(10) };
        for (account, own, of) in [(5, 4, BudgetOf::Token), (4, 4, BudgetOf::Token), (3, 4, BudgetOf::Account)] {
            let outcomes = Outcomes { account: outcome(account), token: Some(outcome(own)) };
            assert_eq!(outcomes.budget(60, token).of, of, "{account} {own}");
        }
        let outcomes = Outcomes { account: outcome(3), token: None };
        let budget = outcomes.budget(60, LimitedToken { id: 7, limit: None });
        assert_eq!(budget, Budget { of: BudgetOf::Account, limit: 60, remaining: 3 });
    }

    #[test]
    fn the_refusal_is_by_the_window_that_is_full_for_longer() {
        let full = |until| Full { until, limit: 5, usage: Arc::default() };
        let by = |account: Option<u64>, token: Option<u64>| {
            let (account, token) = (account.map(full), token.map(full));
            match refusal(account.as_ref(), token.as_ref(), 1000)? {
                NotAdmitted::Exhausted { budget, wait, .. } => Some((budget.of, wait.as_micros())),
                NotAdmitted::StoreFailed => panic!(),
            }
        };
        assert_eq!(by(None, None), None);
        assert_eq!(by(Some(3000), None), Some((BudgetOf::Account, 2000)));
        assert_eq!(by(None, Some(3000)), Some((BudgetOf::Token, 2000)));
        assert_eq!(by(Some(3001), Some(3000)), Some((BudgetOf::Account, 2001)));
        assert_eq!(by(Some(3000), Some(3000)), Some((BudgetOf::Token, 2000)));
    }
}
