//! When tokens were last used, to the minute: recorded in memory and written later, one statement per tenant.
//!
//! The first use of a token is written soon, and further ones every `PAUSE` minutes, however frequent: with thousands
//! of SQLite databases, each write opens a file. A normal stop writes all unwritten times; a crash loses at most the
//! time between two writes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;

use super::{TenantDatabase, Token, Tokens};
use crate::store::{Store, with_causes};

const MINUTE: i64 = 60;

/// Minutes between two writes for a token in use.
///
/// Larger: lists show an older time for it. Smaller: databases are written more often.
const PAUSE: i64 = 10;

/// How many tenants are written concurrently.
///
/// Larger: more connections are opened at once. Smaller: a few databases that hang hold up the rest.
const MAX_CONCURRENT: usize = 32;

/// How long one round of writes may take.
///
/// Larger: databases that hang delay a stop. Smaller: slow databases are written at a later attempt.
const LIMIT: Duration = Duration::from_secs(5);

/// The recorded uses of one tenant's tokens.
#[derive(Debug, Default)]
pub struct LastUsed(Mutex<HashMap<i64, UseTimes>>);

/// Which recorded uses are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Those of tokens never written, or not for ten minutes.
    Late,
    /// All.
    All,
}

/// Two times, in whole minutes since 1970.
#[derive(Clone, Copy, Debug)]
struct UseTimes {
    used: i64,
    written: i64,
}

impl UseTimes {
    const NEVER: Self = Self { used: i64::MIN, written: i64::MIN };

    fn is_due(self, due: Due) -> bool {
        let unwritten = self.used.saturating_sub(self.written);
        unwritten >= if due == Due::All { 1 } else { PAUSE }
    }
}

impl LastUsed {
    /// Records that a token was used. Costs nothing except for the first use in each minute.
    pub fn note(&self, token: &Token, now: Timestamp) {
        let minute = now.as_second().div_euclid(MINUTE);
        if token.noted.swap(minute, Ordering::Relaxed) == minute {
            return;
        }
        let mut noted = self.lock();
        let noted = noted.entry(token.id).or_insert(UseTimes::NEVER);
        noted.used = noted.used.max(minute);
    }

    /// The uses to write, by token.
    fn due(&self, due: Due) -> Vec<(i64, Timestamp)> {
        let at = |minute| Timestamp::from_second(minute * MINUTE).expect("a minute that a clock has shown");
        let noted = self.lock();
        noted.iter().filter(|(_, noted)| noted.is_due(due)).map(|(token, noted)| (*token, at(noted.used))).collect()
    }

    fn mark_written(&self, used: &[(i64, Timestamp)]) {
        let mut noted = self.lock();
        for (token, at) in used {
            if let Some(noted) = noted.get_mut(token) {
                noted.written = noted.written.max(at.as_second() / MINUTE);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i64, UseTimes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be written to one tenant's database.
#[derive(Debug)]
pub struct UnwrittenUses {
    slug: Arc<str>,
    tokens: Arc<Tokens>,
    store: Arc<Store>,
    used: Vec<(i64, Timestamp)>,
}

impl UnwrittenUses {
    /// What is due, if anything, while the database is open: recording a use implies that it was opened.
    pub(super) fn find(slug: &Arc<str>, tokens: &Arc<Tokens>, database: &TenantDatabase, due: Due) -> Option<Self> {
        let used = Some(tokens.last_used.due(due)).filter(|used| !used.is_empty())?;
        Some(Self { slug: Arc::clone(slug), tokens: Arc::clone(tokens), store: database.if_open()?, used })
    }
}

/// Writes each tenant's uses. A tenant whose database can't be written keeps them for the next attempt.
pub async fn write(writes: Vec<UnwrittenUses>) {
    // Concurrently: a tenant whose database hangs must not hold up the others.
    let written = stream::iter(writes).for_each_concurrent(
        MAX_CONCURRENT,
        async |UnwrittenUses { slug, tokens, store, used }| match store.touch_tokens(&used).await {
            Ok(()) => tokens.last_used.mark_written(&used),
            Err(error) => {
                let cause = with_causes(&error);
                tracing::warn!(
                    tenant = &*slug,
                    cause,
                    "last-used times of tokens not written; they are written at the next attempt"
                );
            }
        },
    );
    if tokio::time::timeout(LIMIT, written).await.is_err() {
        tracing::warn!("last-used times of tokens not written in time; they are written at the next attempt");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_use_is_written_then_one_per_pause_and_all_at_a_stop() {
        for (used, written, late, all) in [
            (1000, i64::MIN, true, true),
            (1000, 1000, false, false),
            (1000 + PAUSE - 1, 1000, false, true),
            (1000 + PAUSE, 1000, true, true),
        ] {
            let noted = UseTimes { used, written };
            assert_eq!((noted.is_due(Due::Late), noted.is_due(Due::All)), (late, all), "{noted:?}");
        }
        assert!(!UseTimes::NEVER.is_due(Due::All));
    }
}
