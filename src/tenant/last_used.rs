//! When tokens were last used, to the minute: noted in memory, written behind, one statement a tenant.
//!
//! The first use of a token is written soon, and while it goes on being used every [`PAUSE`], however often that is: each
//! write opens a SQLite file where a gateway has thousands of them. What is noted and not yet written is written on a
//! normal stop; a crash loses at most the time between two writes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;

use super::{Tenant, Token};

const MINUTE: i64 = 60;

/// Minutes after which a token that is in use is written again. More, and lists show an older minute for it; fewer, and
/// databases are written more often.
const PAUSE: i64 = 10;

/// How many tenants are written at once. More opens as many connections in one moment; fewer lets a few databases that
/// hang hold up the rest.
const AT_ONCE: usize = 32;

/// How long one writing may take, so that databases that hang don't hold up a stop.
const LIMIT: Duration = Duration::from_secs(5);

/// What is to be written.
#[derive(Debug, Default)]
pub struct LastUsed {
    noted: Mutex<HashMap<(Arc<str>, i64), Noted>>,
}

/// Which notes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Those of tokens that were never written, or not for ten minutes.
    Late,
    /// All.
    All,
}

/// Two minutes, whole ones since 1970.
#[derive(Clone, Copy, Debug)]
struct Noted {
    used: i64,
    written: i64,
}

impl Noted {
    const NEVER: Self = Self { used: i64::MIN, written: i64::MIN };

    fn is_due(self, due: Due) -> bool {
        let unwritten = self.used.saturating_sub(self.written);
        unwritten >= if due == Due::All { 1 } else { PAUSE }
    }
}

impl LastUsed {
    /// Notes that a tenant's token was used. All but the first use in a minute cost nothing.
    pub fn note(&self, tenant: &Tenant, token: &Token, now: Timestamp) {
        let minute = now.as_second().div_euclid(MINUTE);
        if token.noted.swap(minute, Ordering::Relaxed) == minute {
            return;
        }
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (Arc::clone(&tenant.slug), token.id);
        let noted = noted.entry(key).or_insert(Noted::NEVER);
        noted.used = noted.used.max(minute);
    }

    /// Writes what is due, tenant by tenant. A tenant whose database can't be written keeps its notes for the next time.
    pub async fn write<'a>(&self, due: Due, tenants: impl IntoIterator<Item = &'a Arc<Tenant>>) {
        let mut new: HashMap<Arc<str>, Vec<(i64, Timestamp)>> = HashMap::new();
        for ((slug, token), noted) in self.noted.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if noted.is_due(due) {
                let at = Timestamp::from_second(noted.used * MINUTE).expect("a minute that a clock has shown");
                new.entry(Arc::clone(slug)).or_default().push((*token, at));
            }
        }
        let writes = tenants
            .into_iter()
            .filter_map(|tenant| Some((tenant, new.remove(&tenant.slug)?, tenant.database.if_open()?)));
        // Several at once: a tenant whose database hangs must not hold up the others.
        let written = stream::iter(writes).for_each_concurrent(AT_ONCE, async |(tenant, used, store)| {
            match store.touch_tokens(&used).await {
                Ok(()) => self.mark_written(&tenant.slug, &used),
                Err(error) => {
                    tracing::warn!(tenant = &*tenant.slug, %error, "when tokens were last used can't be written now");
                }
            }
        });
        if tokio::time::timeout(LIMIT, written).await.is_err() {
            tracing::warn!("when tokens were last used can't be written in time");
        }
    }

    fn mark_written(&self, slug: &Arc<str>, used: &[(i64, Timestamp)]) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        for (token, at) in used {
            if let Some(noted) = noted.get_mut(&(Arc::clone(slug), *token)) {
                noted.written = noted.written.max(at.as_second() / MINUTE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_in_use_is_written_at_first_and_then_every_pause_and_in_a_stop() {
        for (used, written, late, all) in [
            (1000, i64::MIN, true, true),
            (1000, 1000, false, false),
            (1000 + PAUSE - 1, 1000, false, true),
            (1000 + PAUSE, 1000, true, true),
        ] {
            let noted = Noted { used, written };
            assert_eq!((noted.is_due(Due::Late), noted.is_due(Due::All)), (late, all), "{noted:?}");
        }
        assert!(!Noted::NEVER.is_due(Due::All));
    }
}
