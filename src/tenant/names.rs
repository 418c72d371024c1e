//! The names of an account's tokens by their numbers, for reports of who used the budget.
//!
//! Read when a number is met that has none yet, which a busy account does once a token, and then from memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Mutex;

use super::{TenantDatabase, Token};
use crate::quota::{LogEntry, NamedShare, Share, Usage};
use crate::store::with_causes;

/// How often the names are read for numbers that had none: one without a token, as after a restored backup, must not cost
/// each report a statement. So often they are tried, too, while they can't be read.
const PAUSE: Duration = Duration::from_secs(5);

/// How long a report waits for names. It is mostly a refusal, which must not wait for a database that hangs.
const READ_LIMIT: Duration = Duration::from_millis(500);

/// The names that are known.
#[derive(Debug, Default)]
pub struct TokenNames {
    known: ArcSwap<HashMap<u32, Arc<str>>>,
    /// Held while one report reads and others wait for it.
    last: Mutex<Option<Reading>>,
}

/// What the last reading did not find.
#[derive(Debug)]
struct Reading {
    at: Instant,
    /// The numbers that were asked for and have no name; every number, where nothing could be read.
    nameless: Option<HashSet<u32>>,
}

impl TokenNames {
    /// A usage with names, for who comes with a token, whose own name is known. Another that can't be named now is called
    /// by its number.
    pub async fn name(&self, usage: &Usage, asking: &Token, database: &TenantDatabase) -> Vec<NamedShare> {
        let named = |Share { token, requests }| Some(NamedShare { token: self.name_of(token, asking)?, requests });
        if let Some(all) = usage.shares().map(named).collect() {
            return all;
        }
        // In time or not: what is known then has to do.
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
        // Until it is done, and where it is given up: nothing could be read.
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
            Err(error) => tracing::debug!(cause = with_causes(&error), "the names of tokens can't be read"),
        }
    }
}
