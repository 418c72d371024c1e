//! Verifying a token: whether it is one of this tenant's, and which.
//!
//! What the database said of a token is remembered: that it is one, and that it is none. How long depends on whether
//! changes are heard of ([`crate::shared::announce`]). While they are, a change makes what was remembered of its tenant
//! worthless at once. While they should be and are not, a token that was found is remembered so briefly that revoking it
//! is felt in time. One that was not found is remembered only while changes are heard, so that a token made a moment ago
//! works at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moka::future::Cache;

use super::Tenant;
use super::token::TokenDigest;
use crate::metrics::Metrics;
use crate::shared::announce::Listening;
use crate::store::StoreError;

/// How long anything is remembered while changes are heard. A token that is revoked by SQL, or by who could not reach the
/// shared store, is refused after this time. Longer makes that worse; shorter looks up more, at the cost of a connection
/// for each of thousands of tenants.
const HEARD: Duration = Duration::from_secs(60);

/// How long a found token is remembered where there is no shared store to hear from: revoking is felt within five
/// seconds.
const ALONE: Duration = Duration::from_secs(4);

/// How long a found token is remembered while changes should be heard and are not: revoking is felt within a second.
const DEAF: Duration = Duration::from_millis(800);

/// How many tokens are remembered. More costs memory (about 200 bytes each), fewer costs look-ups on busy gateways, and
/// under a flood of invented tokens.
const CAPACITY: u64 = 100_000;

/// A token that was verified.
#[derive(Debug)]
pub struct Token {
    /// Its number in the tenant's database.
    pub id: i64,
    /// What the administrator calls it.
    pub name: String,
    /// The last minute in which its use was noted, so that [`super::LastUsed`] hears of it once a minute.
    pub(super) noted: AtomicI64,
}

/// Verifies tokens for all tenants.
#[derive(Debug)]
pub struct TokenVerifier {
    /// Keyed by tenant too: the same token at another tenant is unknown there.
    remembered: Cache<(Arc<str>, TokenDigest), Remembered>,
    listening: Option<Listening>,
    missed: Arc<AtomicU64>,
    metrics: Metrics,
}

/// What the database said of a token.
#[derive(Clone, Debug)]
struct Remembered {
    said: Said,
    at: Instant,
    /// The changes that were known before it was asked.
    changes: (u64, u64),
}

#[derive(Clone, Debug)]
enum Said {
    Known(Arc<Token>),
    Unknown,
    /// It could not say; shared by those who asked at once, and not remembered.
    Nothing(Arc<StoreError>),
}

impl TokenVerifier {
    /// A verifier that remembers nothing yet. `missed` counts how often changes were missed.
    #[must_use]
    pub fn new(listening: Option<Listening>, missed: Arc<AtomicU64>, metrics: Metrics) -> Self {
        let remembered = Cache::builder().max_capacity(CAPACITY).time_to_live(HEARD).build();
        Self { remembered, listening, missed, metrics }
    }

    /// The tenant's token with a digest, where that is remembered. Most requests need no more.
    pub async fn recall(&self, tenant: &Tenant, digest: TokenDigest) -> Option<Arc<Token>> {
        let remembered = self.remembered.get(&(Arc::clone(&tenant.slug), digest)).await?;
        match &remembered.said {
            Said::Known(token) if self.still_holds(&remembered, self.changes(tenant)) => {
                self.metrics.token_checks.with_label_values(&["memory", "known"]).inc();
                Some(Arc::clone(token))
            }
            _ => None,
        }
    }

    /// The tenant's token with a digest; none for an unknown one, a revoked one and another tenant's alike.
    ///
    /// # Errors
    /// The [`StoreError`] when the tenant's database can't say.
    pub async fn verify(&self, tenant: &Tenant, digest: TokenDigest) -> Result<Option<Arc<Token>>, Arc<StoreError>> {
        let changes = self.changes(tenant);
        let look_up = async {
            let said = match look_up(tenant, &digest).await {
                Ok(Some(token)) => Said::Known(token),
                Ok(None) => Said::Unknown,
                Err(error) => Said::Nothing(error),
            };
            Remembered { said, at: Instant::now(), changes }
        };
        let entry = self.remembered.entry((Arc::clone(&tenant.slug), digest));
        let entry = entry.or_insert_with_if(look_up, |remembered| !self.still_holds(remembered, changes)).await;
        let by = if entry.is_fresh() { "database" } else { "memory" };
        let (result, verified) = match entry.into_value().said {
            Said::Known(token) => ("known", Ok(Some(token))),
            Said::Unknown => ("unknown", Ok(None)),
            Said::Nothing(error) => ("failed", Err(error)),
        };
        self.metrics.token_checks.with_label_values(&[by, result]).inc();
        verified
    }

    /// The changes that this node heard of, or missed, that concern a tenant.
    fn changes(&self, tenant: &Tenant) -> (u64, u64) {
        (self.missed.load(Ordering::Acquire), tenant.token_changes.load(Ordering::Acquire))
    }

    fn still_holds(&self, remembered: &Remembered, changes: (u64, u64)) -> bool {
        let limit = match (&remembered.said, &self.listening) {
            (Said::Nothing(_), _) => return false,
            (_, Some(listening)) if listening.hears() => HEARD,
            (Said::Unknown, _) => return false,
            (Said::Known(_), Some(_)) => DEAF,
            (Said::Known(_), None) => ALONE,
        };
        remembered.changes == changes && remembered.at.elapsed() < limit
    }
}

async fn look_up(tenant: &Tenant, digest: &TokenDigest) -> Result<Option<Arc<Token>>, Arc<StoreError>> {
    let (store, _turn) = tenant.database.store_for_look_up().await.map_err(Arc::new)?;
    let record = store.find_token(digest.as_bytes()).await.map_err(Arc::new)?;
    let record = record.filter(|record| digest.matches(&record.digest));
    Ok(record.map(|record| Arc::new(Token { id: record.id, name: record.name, noted: AtomicI64::new(i64::MIN) })))
}
