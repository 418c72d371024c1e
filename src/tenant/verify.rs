//! Verifying a token: whether it is one of this tenant's, and which.
//!
//! What the database said of a token is remembered: that it is one, and that it is none. How long depends on whether
//! changes are heard of ([`crate::shared::announce`]). While they are, a change makes what was remembered of its tenant
//! worthless at once. While they should be and are not, a token that was found is remembered so briefly that revoking it
//! is felt in time. One that was not found is remembered only while changes are heard, so that a token made a moment ago
//! works at once.
//!
//! Tokens that were found stand at their tenant too ([`super::tokens`]), and are found there by most requests.
//!
//! When that time is over, a SQLite database to which nothing was committed meanwhile is not asked again ([`CommitStamp`]):
//! a gateway with thousands of them has connections to few, and would open a file for most look-ups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use moka::future::Cache;

use super::Tenant;
use super::token::{Token, TokenDigest};
use super::tokens::{Asked, Generation};
use crate::metrics::{Metrics, TokenCheck};
use crate::shared::announce::Listening;
use crate::store::{CommitStamp, StoreError};

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

/// Verifies tokens for all tenants.
#[derive(Debug)]
pub struct TokenVerifier {
    /// Keyed by the generation of a tenant too: the same token at another tenant is unknown there.
    remembered: Cache<(Generation, TokenDigest), Remembered>,
    listening: Option<Listening>,
    missed: Arc<AtomicU64>,
    metrics: Metrics,
}

/// What the database said of a token.
#[derive(Clone, Debug)]
struct Remembered {
    said: Said,
    asked: Asked,
    /// What the database's files looked like before it was asked.
    stamp: Option<CommitStamp>,
}

impl Remembered {
    /// Whether it was said of the database as it is now.
    fn was_told_of(&self, changes: (u64, u64), stamp: Option<CommitStamp>) -> bool {
        let said_something = !matches!(self.said, Said::Nothing(_));
        said_something && self.asked.changes == changes && stamp.is_some() && self.stamp == stamp
    }
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

    /// The tenant's token with a digest, if it is in use and what was said of it still holds. Most requests need no more.
    pub fn recall(&self, tenant: &Tenant, digest: &TokenDigest) -> Option<Arc<Token>> {
        let found = tenant.tokens.in_use.find(digest, |asked| holds(asked, self.changes(tenant), self.known_holds()));
        if found.is_some() {
            self.metrics.token_checks.count(TokenCheck::KnownByMemory);
        }
        found
    }

    /// The tenant's token with a digest; none for an unknown one, a revoked one and another tenant's alike.
    ///
    /// # Errors
    /// The [`StoreError`] when the tenant's database can't say.
    pub async fn verify(&self, tenant: &Tenant, digest: TokenDigest) -> Result<Option<Arc<Token>>, Arc<StoreError>> {
        let (changes, key) = (self.changes(tenant), (tenant.tokens.generation, digest));
        let before = self.remembered.get(&key).await;
        let mut from_memory = true;
        let look_up = async {
            let stamp = tenant.database.commit_stamp().await;
            let said = match before.filter(|before| before.was_told_of(changes, stamp)) {
                Some(before) => before.said,
                None => {
                    from_memory = false;
                    look_up(tenant, &digest).await
                }
            };
            Remembered { said, asked: Asked { at: Instant::now(), changes }, stamp }
        };
        let entry = self.remembered.entry(key);
        let entry = entry.or_insert_with_if(look_up, |remembered| !self.still_holds(remembered, changes)).await;
        let remembered = entry.into_value();
        let (check, verified) = match remembered.said {
            Said::Known(token) => {
                tenant.tokens.in_use.keep(digest, remembered.asked, &token);
                let check = if from_memory { TokenCheck::KnownByMemory } else { TokenCheck::KnownByDatabase };
                (check, Ok(Some(token)))
            }
            Said::Unknown => {
                tenant.tokens.in_use.forget(&digest);
                let check = if from_memory { TokenCheck::UnknownByMemory } else { TokenCheck::UnknownByDatabase };
                (check, Ok(None))
            }
            Said::Nothing(error) => {
                let check = if from_memory { TokenCheck::FailedByMemory } else { TokenCheck::FailedByDatabase };
                (check, Err(error))
            }
        };
        self.metrics.token_checks.count(check);
        verified
    }

    /// The changes that this node heard of, or missed, that concern a tenant.
    fn changes(&self, tenant: &Tenant) -> (u64, u64) {
        (self.missed.load(Ordering::Acquire), tenant.tokens.changes())
    }

    fn still_holds(&self, remembered: &Remembered, changes: (u64, u64)) -> bool {
        match &remembered.said {
            Said::Nothing(_) => false,
            Said::Unknown => self.hears() && holds(remembered.asked, changes, HEARD),
            Said::Known(_) => holds(remembered.asked, changes, self.known_holds()),
        }
    }

    /// How long it holds that a token was found.
    fn known_holds(&self) -> Duration {
        match &self.listening {
            Some(_) if self.hears() => HEARD,
            Some(_) => DEAF,
            None => ALONE,
        }
    }

    fn hears(&self) -> bool {
        self.listening.as_ref().is_some_and(Listening::hears)
    }
}

/// Whether what a database said so lately, and knowing of these changes, still holds.
fn holds(asked: Asked, changes: (u64, u64), limit: Duration) -> bool {
    asked.changes == changes && asked.at.elapsed() < limit
}

/// What the database says.
async fn look_up(tenant: &Tenant, digest: &TokenDigest) -> Said {
    let found = async {
        let (store, _turn) = tenant.database.store_for_look_up().await?;
        store.find_token(digest.as_bytes()).await
    };
    match found.await {
        Ok(Some(record)) => Said::Known(Arc::new(Token::new(record.id, &record.name))),
        Ok(None) => Said::Unknown,
        Err(error) => Said::Nothing(Arc::new(error)),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::config::Config;
    use crate::host::HostName;
    use crate::store::{NewToken, Reach, Store, migrate};
    use crate::tenant::Directory;
    use crate::tenant::token::PresentedToken;

    const CONFIG: &str = r#"
        [gateway]
        listen = [{ address = "127.0.0.1:0", tls = false }]
        [[tenant]]
        slug = "acme"
        name = "Acme"
        address = "acme.example.com"
        database = "sqlite:acme.db"
    "#;

    /// Makes all that is remembered so old that it has to be looked up anew.
    async fn age(verifier: &TokenVerifier) {
        for (key, remembered) in &verifier.remembered {
            let at = remembered.asked.at.checked_sub(2 * ALONE).expect("the machine runs for longer");
            let asked = Asked { at, ..remembered.asked };
            verifier.remembered.insert(*key, Remembered { asked, ..remembered }).await;
        }
    }

    #[tokio::test]
    async fn a_file_is_asked_again_only_when_something_was_committed_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tenants.toml");
        std::fs::write(&file, CONFIG).unwrap();
        let config = Config::load(&file).unwrap();
        let location = &config.tenants[0].database;
        migrate(location, Reach::Served).await.unwrap();
        let store = Store::open(location, 1).await.unwrap();
        let token = PresentedToken::generate();
        let new = NewToken { name: "one".into(), prefix: "fg_".into(), digest: *token.digest().as_bytes() };
        store.create_token(new, Timestamp::now()).await.unwrap();

        let directory = Directory::new(&config, &Directory::default());
        let tenant = directory.resolve(&HostName::parse("acme.example.com").unwrap()).expect("a tenant");
        let verifier = TokenVerifier::new(None, Arc::default(), Metrics::default());
        let asked = || {
            let checks = &verifier.metrics.token_checks;
            (checks.get(TokenCheck::KnownByDatabase), checks.get(TokenCheck::KnownByMemory))
        };
        let verify = async || verifier.verify(tenant, token.digest()).await.unwrap();

        assert!(verify().await.is_some());
        age(&verifier).await;
        assert!(verify().await.is_some());
        assert_eq!(asked(), (2, 0), "a commit of a moment ago may not show yet");

        tokio::time::sleep(ALONE).await;
        assert!(verify().await.is_some());
        assert_eq!(asked(), (3, 0));
        for times in 1..4 {
            age(&verifier).await;
            assert!(verify().await.is_some());
            assert_eq!(asked(), (3, times), "nothing was committed");
        }
        assert!(store.revoke_token(1, Timestamp::now()).await.unwrap());
        age(&verifier).await;
        assert!(verify().await.is_none());
    }
}
