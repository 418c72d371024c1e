//! When tokens were last used, to the minute: noted in memory, written behind, one statement a tenant.
//!
//! A token costs one write a minute at most, however often it is used. What is noted and not yet written is written on a
//! normal stop; a crash loses at most the time between two writes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use jiff::Timestamp;

use super::{Tenant, Token};

const MINUTE: i64 = 60;

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

#[derive(Clone, Copy, Debug)]
struct Noted {
    /// Whole minutes since 1970.
    minute: i64,
    written: bool,
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
        let last = noted.entry(key).or_insert(Noted { minute: i64::MIN, written: true });
        if minute > last.minute {
            *last = Noted { minute, written: false };
        }
    }

    /// Writes what is new, tenant by tenant. A tenant whose database can't be written keeps its notes for the next time.
    pub async fn write<'a>(&self, tenants: impl IntoIterator<Item = &'a Arc<Tenant>>) {
        let mut new: HashMap<Arc<str>, Vec<(i64, Timestamp)>> = HashMap::new();
        for ((slug, token), noted) in self.noted.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if !noted.written {
                let at = Timestamp::from_second(noted.minute * MINUTE).expect("a minute that a clock has shown");
                new.entry(Arc::clone(slug)).or_default().push((*token, at));
            }
        }
        let due = tenants
            .into_iter()
            .filter_map(|tenant| Some((tenant, new.remove(&tenant.slug)?, tenant.database.if_open()?)));
        // Several at once: a tenant whose database hangs must not hold up the others.
        let written = stream::iter(due).for_each_concurrent(AT_ONCE, async |(tenant, used, store)| {
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
                // It may have been used again meanwhile, in a later minute.
                noted.written |= noted.minute * MINUTE == at.as_second();
            }
        }
    }
}
