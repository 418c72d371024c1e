//! When tokens were last used, to the minute: noted in memory, written behind, one statement a tenant.
//!
//! A token costs one write a minute at most, however often it is used. What is noted and not yet written is written on a
//! normal stop; a crash loses at most the time between two writes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use super::Tenant;

const MINUTE: i64 = 60;

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
    /// Notes that a tenant's token was used.
    pub fn note(&self, tenant: &Tenant, token: i64, now: Timestamp) {
        let minute = now.as_second().div_euclid(MINUTE);
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let last = noted.entry((Arc::clone(&tenant.slug), token)).or_insert(Noted { minute: i64::MIN, written: true });
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
        for tenant in tenants {
            let (Some(used), Some(store)) = (new.remove(&tenant.slug), tenant.database.if_open()) else { continue };
            match store.touch_tokens(&used).await {
                Ok(()) => self.mark_written(&tenant.slug, &used),
                Err(error) => {
                    tracing::warn!(tenant = &*tenant.slug, %error, "when tokens were last used can't be written now");
                }
            }
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
