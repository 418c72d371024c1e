//! The names of an account's tokens by number, for reports of which tokens used the budget.
//!
//! Read from the database when an unknown number comes up, which happens once per token on a busy account, and
//! cached.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Mutex;

use super::{TenantDatabase, Token};
use crate::quota::{LogEntry, NamedShare, Share, Usage};
use crate::store::with_causes;

/// The minimum pause between readings for numbers without a name, and between attempts after a failure.
///
/// Larger: a new token is shown by number for longer. Smaller: a number without a token, as after restoring a backup,
/// makes each report run a statement.
const PAUSE: Duration = Duration::from_secs(5);

/// How long a report waits for names.
///
/// Larger: a refusal, which most reports are, waits for a database that hangs. Smaller: a slow database costs reports
/// their names.
const READ_LIMIT: Duration = Duration::from_millis(500);

/// The known names.
#[derive(Debug, Default)]
pub struct TokenNames {
    known: ArcSwap<HashMap<u32, Arc<str>>>,
    /// Held while one report reads the names and others wait for it.
    last: Mutex<Option<Reading>>,
}

/// What the last reading did not find.
#[derive(Debug)]
struct Reading {
    at: Instant,
    /// The numbers without a name; `None` if nothing could be read.
    nameless: Option<HashSet<u32>>,
}

impl TokenNames {
    /// Adds names to a usage. The asking token's own name is always known; a token whose name is unknown is shown by
    /// its number.
    pub async fn name(&self, usage: &Usage, asking: &Token, database: &TenantDatabase) -> Vec<NamedShare> {
        let named = |Share { token, requests }| Some(NamedShare { token: self.name_of(token, asking)?, requests });
        if let Some(all) = usage.shares().map(named).collect() {
            return all;
        }
        // On a timeout, the names known by then have to do.
        let _ = tokio::time::timeout(READ_LIMIT, Box::pin(self.read(usage, database))).await;
        let numbered = |Share { token, requests }| NamedShare { token: format!("#{token}").into(), requests };
        usage.shares().map(|share| named(share).unwrap_or_else(|| numbered(share))).collect()
    }

    fn name_of(&self, token: u32, asking: &Token) -> Option<Arc<str>> {
        if token == LogEntry::short(asking.id) {
            return Some(Arc::clone(&asking.name));
        }
        self.known.load().get(&token).map(Arc::clone)
    }

    fn unknown(&self, usage: &Usage) -> HashSet<u32> {
        let known = self.known.load();
        usage.shares().map(|share| share.token).filter(|token| !known.contains_key(token)).collect()
    }

    async fn read(&self, usage: &Usage, database: &TenantDatabase) {
        let mut last = self.last.lock().await;
        let mut unknown = self.unknown(usage);
        if let Some(last) = last.as_ref().filter(|last| last.at.elapsed() < PAUSE) {
            let Some(nameless) = &last.nameless else { return };
            if unknown.is_subset(nameless) {
                return;
            }
            unknown.extend(nameless);
        }
        // Holds until the reading is done, and if it is cancelled: nothing could be read.
        *last = Some(Reading { at: Instant::now(), nameless: None });
        let Ok(store) = database.store().await else { return };
        match store.list_tokens().await {
            Ok(tokens) => {
                let named = tokens.into_iter().map(|token| (LogEntry::short(token.id), token.name.into()));
                let known: HashMap<u32, Arc<str>> = named.collect();
                unknown.retain(|token| !known.contains_key(token));
                *last = Some(Reading { at: Instant::now(), nameless: Some(unknown) });
                self.known.store(Arc::new(known));
            }
            Err(error) => tracing::debug!(cause = with_causes(&error), "could not read the names of tokens"),
        }
    }
}
