//! Verifying a token: whether it is one of this tenant's, and which.
//!
//! A token that was found is remembered for a moment, so that a burst of requests costs one look-up. Only found tokens
//! are remembered, so that one made a moment ago works at once, and only so briefly that revoking is felt in time on
//! every node.

use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;

use super::Tenant;
use super::token::{PresentedToken, TokenDigest};
use crate::store::StoreError;

/// How long a found token is remembered. Longer, and a revoked token works past the second that is promised; shorter,
/// and busy accounts look up more.
const REMEMBERED: Duration = Duration::from_millis(900);

/// How many tokens are remembered. More costs memory (about 200 bytes each), fewer costs look-ups on busy gateways.
const CAPACITY: u64 = 100_000;

/// A token that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its number in the tenant's database.
    pub id: i64,
    /// What the administrator calls it.
    pub name: String,
}

/// Verifies tokens for all tenants.
#[derive(Debug)]
pub struct TokenVerifier {
    /// Keyed by tenant too: the same token at another tenant is unknown there.
    found: Cache<(String, TokenDigest), Arc<Token>>,
}

/// Why no token was found: unknown here, or the database could not say.
#[derive(Debug)]
enum NotFound {
    Unknown,
    Store(Arc<StoreError>),
}

impl TokenVerifier {
    /// A verifier that remembers nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self { found: Cache::builder().max_capacity(CAPACITY).time_to_live(REMEMBERED).build() }
    }

    /// The tenant's token that was presented; none for an unknown one, a revoked one and another tenant's alike.
    ///
    /// # Errors
    /// The [`StoreError`] when the tenant's database can't say.
    pub async fn verify(
        &self,
        tenant: &Tenant,
        presented: &PresentedToken,
    ) -> Result<Option<Arc<Token>>, Arc<StoreError>> {
        let digest = presented.digest();
        let look_up = async {
            let store = tenant.database.store().await.map_err(NotFound::Store)?;
            let record = store.find_token(digest.as_bytes()).await.map_err(|error| NotFound::Store(Arc::new(error)))?;
            let record = record.filter(|record| digest.matches(&record.digest)).ok_or(NotFound::Unknown)?;
            Ok(Arc::new(Token { id: record.id, name: record.name }))
        };
        match self.found.try_get_with((tenant.slug.clone(), digest), look_up).await {
            Ok(token) => Ok(Some(token)),
            Err(not_found) => match &*not_found {
                NotFound::Unknown => Ok(None),
                NotFound::Store(error) => Err(Arc::clone(error)),
            },
        }
    }
}

impl Default for TokenVerifier {
    fn default() -> Self {
        Self::new()
    }
}
