//! The names of an account's tokens by their numbers, for reports of who used the budget.
//!
//! Read when a number is met that has none yet, which a busy account does once a token, and then from memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Mutex;

use super::TenantDatabase;
use crate::quota::{Entry, Usage};

/// How often the names are read at most: a number without a token, as after a restored backup, must not cost each report
/// a statement.
const PAUSE: Duration = Duration::from_secs(5);

/// One token's part of a budget, as a report shows it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NamedShare {
    /// The token's name.
    pub token: Arc<str>,
    /// Requests in the current window.
    pub requests: u32,
}

/// The names that are known.
#[derive(Debug, Default)]
pub struct TokenNames {
    known: ArcSwap<HashMap<u32, Arc<str>>>,
    read_at: Mutex<Option<Instant>>,
}

impl TokenNames {
    /// A usage with names. A token that can't be named now is called by its number.
    pub async fn name(&self, usage: &Usage, database: &TenantDatabase) -> Vec<NamedShare> {
        let known = self.known.load();
        if usage.shares().any(|share| !known.contains_key(&share.token)) {
            self.read(database).await;
        }
        let known = self.known.load();
        let named = |share: crate::quota::Share| {
            let name = known.get(&share.token).cloned();
            NamedShare { token: name.unwrap_or_else(|| format!("#{}", share.token).into()), requests: share.requests }
        };
        usage.shares().map(named).collect()
    }

    async fn read(&self, database: &TenantDatabase) {
        let mut read_at = self.read_at.lock().await;
        if read_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        *read_at = Some(Instant::now());
        let Ok(store) = database.store().await else { return };
        match store.list_tokens().await {
            Ok(tokens) => {
                let named = tokens.into_iter().map(|token| (Entry::short(token.id), token.name.into()));
                self.known.store(Arc::new(named.collect()));
            }
            Err(error) => tracing::debug!(%error, "the names of tokens can't be read"),
        }
    }
}
