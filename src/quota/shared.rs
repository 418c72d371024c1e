//! Windows in Redis, shared by every node: one atomic script a request, by the server's clock.
//!
//! Owns the script and how its answers are read; connections and their failures are [`crate::shared`]'s.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Script;

use super::usage::{Entry, Usage};
use crate::shared::{CallError, Lanes};

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("window.lua")));

/// What is asked of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// What is left, and who used the rest.
    Look,
    /// A place.
    Spend,
    /// A place, and who used the others.
    SpendAndTell,
}

/// What a window answers.
#[derive(Debug)]
pub(super) struct Answer {
    /// Whether there is, or was, a place.
    pub(super) admitted: bool,
    /// Places that are left.
    pub(super) remaining: u32,
    /// How long until there is a place, where there is none.
    pub(super) wait: Duration,
    /// Who used the window, where that is told.
    pub(super) usage: Usage,
}

/// Asks the window at a key, with room for `limit` requests in `span`, for a token.
pub(super) async fn ask(
    lanes: &Lanes,
    key: &str,
    span: Duration,
    limit: u32,
    ask: Ask,
    token: i64,
) -> Result<Answer, CallError> {
    let mut invocation = SCRIPT.key(key);
    invocation.arg(limit).arg(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)).arg(match ask {
        Ask::Look => "look",
        Ask::Spend => "spend",
        Ask::SpendAndTell => "tell",
    });
    invocation.arg(Entry::short(token));
    let answer = lanes.call(async |mut connection| invocation.invoke_async(&mut connection).await).await;
    let (admitted, remaining, wait, log): (bool, u32, u64, Vec<u8>) = answer?;
    let usage = Usage::of(log.as_chunks::<8>().0.iter().map(|entry| Entry::token_of(*entry)));
    Ok(Answer { admitted, remaining, wait: Duration::from_millis(wait), usage })
}
