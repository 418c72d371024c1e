//! The windows of one account in this process: its own, and those of its tokens that have a budget.
//!
//! Both are behind one lock, so that a request takes a place in both or in neither.

use std::collections::HashMap;
use std::time::Duration;

use super::outcome::{Full, Outcome, Outcomes};
use super::usage::{LogEntry, Usage};
use super::window::Window;
use super::{LimitedToken, ReportUsage};

/// The windows of an account.
#[derive(Debug, Default)]
pub(super) struct Windows {
    /// That of the account.
    pub(super) account: Window,
    /// By the numbers of tokens that have a budget, if they were used lately.
    tokens: HashMap<i64, TokenWindow>,
}

/// A token's own window, as this node knows it.
#[derive(Debug, Default)]
struct TokenWindow {
    /// What this node admitted. Complete if no Redis is shared.
    window: Window,
    /// What the shared window reported when it was last full.
    full: Option<Full>,
    /// How many requests the shared window held when it last admitted one.
    held: u32,
    /// While the account's window is full until then, this one is known to have a place.
    open_until: u64,
}

impl TokenWindow {
    /// Whether nothing is known of it that matters now.
    fn is_idle(&mut self, now: u64, span: u64) -> bool {
        self.window.is_empty(now, span)
            && self.full.as_ref().is_none_or(|full| full.until <= now)
            && self.open_until <= now
    }
}

impl Windows {
    /// Takes a place in both windows, or in neither.
    pub(super) fn admit(
        &mut self,
        now: u64,
        span: u64,
        limit: u32,
        token: LimitedToken,
        report: ReportUsage,
    ) -> Outcomes {
        let Self { account, tokens } = self;
        let entry = LogEntry::short(token.id);
        let Some((own_limit, own)) = own_window(tokens, now, span, token) else {
            let decision = account.admit(now, span, limit, entry);
            return Outcomes { account: outcome(account, decision, now, span, report), token: None };
        };
        let own = &mut own.window;
        let (own_decision, decision) = match (own.wait(now, span, own_limit), account.wait(now, span, limit)) {
            (None, None) => (own.admit(now, span, own_limit, entry), account.admit(now, span, limit, entry)),
            (own_wait, wait) => (
                own_wait.map_or_else(|| Ok(own.remaining(now, span, own_limit)), Err),
                wait.map_or_else(|| Ok(account.remaining(now, span, limit)), Err),
            ),
        };
        let token = outcome(own, own_decision, now, span, ReportUsage::No);
        Outcomes { account: outcome(account, decision, now, span, report), token: Some(token) }
    }

    /// Takes further places in both windows for a request that has one, or gives that one back.
    pub(super) fn spend_more(
        &mut self,
        (now, span): (u64, u64),
        limit: u32,
        token: LimitedToken,
        places: u16,
    ) -> Outcomes {
        let Self { account, tokens } = self;
        let (entry, wanted) = (LogEntry::short(token.id), u32::from(places));
        let mut own = own_window(tokens, now, span, token);
        let own_wait = own.as_mut().and_then(|(limit, own)| own.window.wait_for(now, span, *limit, wanted));
        let wait = account.wait_for(now, span, limit, wanted);
        let is_admitted = wait.is_none() && own_wait.is_none();
        let spend = |window: &mut Window, limit: u32, wait: Option<u64>| {
            let usage = if wait.is_some() { window.usage(now, span) } else { Usage::default() };
            if is_admitted {
                (0..places).for_each(|_| window.note(now, span, limit, entry));
            } else {
                window.take_back(entry);
            }
            let remaining = window.remaining(now, span, limit);
            Outcome { remaining, wait: wait.map(Duration::from_micros), usage }
        };
        let token = own.map(|(limit, own)| spend(&mut own.window, limit, own_wait));
        Outcomes { account: spend(account, limit, wait), token }
    }

    /// Takes back a request of a token.
    pub(super) fn take_back(&mut self, token: LimitedToken) {
        let entry = LogEntry::short(token.id);
        self.account.take_back(entry);
        if let Some(own) = self.tokens.get_mut(&token.id) {
            own.window.take_back(entry);
        }
    }

    /// Records a request that was admitted elsewhere.
    pub(super) fn note(&mut self, now: u64, span: u64, limit: u32, token: LimitedToken) {
        let entry = LogEntry::short(token.id);
        if let Some((own_limit, own)) = own_window(&mut self.tokens, now, span, token) {
            own.window.note(now, span, own_limit, entry);
        }
        self.account.note(now, span, limit, entry);
    }

    /// What remains, without spending.
    pub(super) fn peek(
        &mut self,
        now: u64,
        span: u64,
        limit: u32,
        token: LimitedToken,
        report: ReportUsage,
    ) -> Outcomes {
        let own = own_window(&mut self.tokens, now, span, token);
        let token = own.map(|(own_limit, own)| {
            let remaining = Ok(own.window.remaining(now, span, own_limit));
            outcome(&mut own.window, remaining, now, span, ReportUsage::No)
        });
        let remaining = Ok(self.account.remaining(now, span, limit));
        Outcomes { account: outcome(&mut self.account, remaining, now, span, report), token }
    }

    /// Whether no request of the account counts any more.
    pub(super) fn is_empty(&mut self, now: u64, span: u64) -> bool {
        self.account.is_empty(now, span)
    }

    /// How many requests the shared window of a token held when this node last asked.
    pub(super) fn held(&self, token: i64) -> u32 {
        self.tokens.get(&token).map_or(0, |own| own.held)
    }

    /// Remembers what the shared window of a token reported. `account` is the account's window, if that is full.
    pub(super) fn note_shared(
        &mut self,
        (now, span): (u64, u64),
        token: LimitedToken,
        outcome: &Outcome,
        account: Option<&Full>,
    ) -> Option<Full> {
        let (limit, own) = own_window(&mut self.tokens, now, span, token)?;
        own.full = Full::of(outcome, limit, now);
        own.held = match own.full {
            None => limit.saturating_sub(outcome.remaining),
            Some(_) => own.held.max(limit),
        };
        if let (None, Some(account)) = (&own.full, account) {
            own.open_until = account.until;
        }
        own.full.clone()
    }

    /// What is known of the shared window of a token with a budget while the account's may be full.
    pub(super) fn known(&self, now: u64, token: LimitedToken, account: Option<&Full>) -> KnownOwn {
        let Some(limit) = token.limit else { return KnownOwn::Open };
        let Some(own) = self.tokens.get(&token.id) else { return KnownOwn::Unknown };
        match &own.full {
            Some(full) if full.holds(limit, now) => KnownOwn::Full(full.clone()),
            _ if account.is_some_and(|account| own.open_until == account.until) => KnownOwn::Open,
            _ => KnownOwn::Unknown,
        }
    }
}

/// The limit of a token that has a budget, and its window.
fn own_window(
    tokens: &mut HashMap<i64, TokenWindow>,
    now: u64,
    span: u64,
    token: LimitedToken,
) -> Option<(u32, &mut TokenWindow)> {
    let limit = token.limit?;
    if !tokens.contains_key(&token.id) {
        tokens.retain(|_, own| !own.is_idle(now, span));
    }
    Some((limit, tokens.entry(token.id).or_default()))
}

/// What a node knows of a token's own window without asking Redis.
#[derive(Debug)]
pub(super) enum KnownOwn {
    /// It is full.
    Full(Full),
    /// There is none, or it has a place for as long as the account's has none.
    Open,
    /// Redis has to be asked.
    Unknown,
}

/// A window after a decision: what remains, or the time until a place is free.
fn outcome(window: &mut Window, decision: Result<u32, u64>, now: u64, span: u64, report: ReportUsage) -> Outcome {
    let is_reported = decision.is_err() || report == ReportUsage::Yes;
    let usage = if is_reported { window.usage(now, span) } else { Usage::default() };
    let wait = decision.err().map(Duration::from_micros);
    Outcome { remaining: decision.unwrap_or_default(), wait, usage }
}
