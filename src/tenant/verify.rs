//! Verifies a token: whether it is one of this tenant's, and which.
//!
//! Look-ups in the database are cached, for known and for unknown tokens. How long one is valid depends on whether
//! changes are received ([`crate::shared::announce`]). While they are, a change immediately invalidates all cached
//! answers of its tenant. If Redis is configured but changes are not received, a known token is cached so briefly
//! that a revocation takes effect in time. An unknown token is cached only while changes are received, so that a new
//! token works immediately.
//!
//! When a cached look-up expires, a SQLite database without a commit since then is not read again ([`CommitStamp`]):
//! a gateway with thousands of them has connections to few, and would open a file for most look-ups.
//!
//! A cached token carries its expiry, which is compared with the clock at each use. So it is refused at that instant on
//! every node, without a change to receive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use moka::future::Cache;

use super::Tenant;
use super::token::{Token, TokenDigest};
use super::tokens::Generation;
use crate::metrics::{Metrics, TokenCheck};
use crate::shared::announce::TokenChangeSubscription;
use crate::store::{CommitStamp, StoreError};

/// How long a cached look-up is valid while changes are received.
///
/// Larger: a token that is revoked by SQL, or by a command that can't reach Redis, is accepted for longer. Smaller:
/// more look-ups, each of which needs a connection to one of thousands of databases.
const WHILE_RECEIVING: Duration = Duration::from_secs(60);

/// How long a known token is valid without Redis.
///
/// Larger: a revocation takes more than five seconds to take effect. Smaller: more look-ups.
const WITHOUT_REDIS: Duration = Duration::from_secs(4);

/// How long a known token is valid if Redis is configured but changes are not received.
///
/// Larger: a revocation takes more than a second to take effect. Smaller: more look-ups.
const WHILE_NOT_RECEIVING: Duration = Duration::from_millis(800);

/// How many look-ups are cached. The cache prefers frequently used tokens, so a flood of invented ones does not evict
/// them.
///
/// Larger: more memory, about 300 bytes each. Smaller: more look-ups on busy gateways.
const CAPACITY: u64 = 100_000;

/// Verifies tokens for all tenants.
#[derive(Debug)]
pub struct TokenVerifier {
    /// The key includes the tenant's generation: the same token is unknown to another tenant.
    answers: Cache<(Generation, TokenDigest), CachedAnswer>,
    listening: Option<TokenChangeSubscription>,
    missed: Arc<AtomicU64>,
    metrics: Metrics,
}

/// The result of a look-up, when, and the state at that time.
#[derive(Clone, Debug)]
struct CachedAnswer {
    answer: LookUpResult,
    at: Instant,
    /// Change counts before the look-up: missed changes of all tenants, and this tenant's changes.
    changes: (u64, u64),
    /// The state of the database's files before the look-up.
    stamp: Option<CommitStamp>,
}

#[derive(Clone, Debug)]
enum LookUpResult {
    Known(Arc<Token>),
    Unknown,
    /// A failed look-up. Shared by concurrent requests for the same token, and never valid for later ones.
    Failed(Arc<StoreError>),
}

impl CachedAnswer {
    /// Whether nothing was committed to the database since.
    fn is_of_the_same_state(&self, changes: (u64, u64), stamp: Option<CommitStamp>) -> bool {
        let is_answer = !matches!(self.answer, LookUpResult::Failed(_));
        is_answer && self.changes == changes && stamp.is_some() && self.stamp == stamp
    }
}

impl TokenVerifier {
    /// A verifier with an empty cache. `missed` counts how often changes were missed.
    #[must_use]
    pub fn new(listening: Option<TokenChangeSubscription>, missed: Arc<AtomicU64>, metrics: Metrics) -> Self {
        let answers = Cache::builder().max_capacity(CAPACITY).time_to_live(WHILE_RECEIVING).build();
        Self { answers, listening, missed, metrics }
    }

    /// The tenant's token with a digest, if a valid look-up is cached. Most requests need no more.
    pub async fn recall(&self, tenant: &Tenant, digest: &TokenDigest) -> Option<Arc<Token>> {
        let cached = self.answers.get(&(tenant.tokens.generation, *digest)).await?;
        if !self.is_valid(&cached, self.changes(tenant)) {
            return None;
        }
        let LookUpResult::Known(token) = cached.answer else { return None };
        if token.is_expired(Timestamp::now()) {
            return None;
        }
        self.metrics.token_checks.count(TokenCheck::KnownByMemory);
        Some(token)
    }

    /// The tenant's token with a digest; `None` for an unknown token, a revoked one, an expired one and another
    /// tenant's alike. A known one that is not accepted is looked up as often as an unknown one, so that the time of a
    /// refusal doesn't tell them apart.
    ///
    /// # Errors
    /// The [`StoreError`] if the tenant's database fails.
    pub async fn verify(
        &self,
        tenant: &Tenant,
        digest: TokenDigest,
        is_accepted: impl Fn(&Token) -> bool + Send + Sync,
    ) -> Result<Option<Arc<Token>>, Arc<StoreError>> {
        let (changes, key) = (self.changes(tenant), (tenant.tokens.generation, digest));
        let before = self.answers.get(&key).await;
        let mut from_memory = true;
        let look_up = async {
            let stamp = tenant.database.commit_stamp().await;
            let answer = match before.filter(|before| before.is_of_the_same_state(changes, stamp)) {
                Some(before) => before.answer,
                None => {
                    from_memory = false;
                    look_up(tenant, &digest).await
                }
            };
            CachedAnswer { answer, at: Instant::now(), changes, stamp }
        };
        let entry = self.answers.entry(key);
        let is_due = |cached: &CachedAnswer| {
            let is_refused = matches!(&cached.answer, LookUpResult::Known(token) if !is_accepted(token));
            !self.is_valid(cached, changes) || is_refused && !self.is_receiving()
        };
        let entry = entry.or_insert_with_if(look_up, is_due).await;
        // After the look-up, which may have waited.
        let is_valid = |token: &Arc<Token>| !token.is_expired(Timestamp::now());
        let (check, verified) = match (entry.into_value().answer, from_memory) {
            (LookUpResult::Known(token), true) => (TokenCheck::KnownByMemory, Ok(Some(token).filter(is_valid))),
            (LookUpResult::Known(token), false) => (TokenCheck::KnownByDatabase, Ok(Some(token).filter(is_valid))),
            (LookUpResult::Unknown, true) => (TokenCheck::UnknownByMemory, Ok(None)),
            (LookUpResult::Unknown, false) => (TokenCheck::UnknownByDatabase, Ok(None)),
            (LookUpResult::Failed(error), true) => (TokenCheck::FailedByMemory, Err(error)),
            (LookUpResult::Failed(error), false) => (TokenCheck::FailedByDatabase, Err(error)),
        };
        self.metrics.token_checks.count(check);
        verified
    }

    /// The counts of changes that this node received, or missed, for a tenant.
    fn changes(&self, tenant: &Tenant) -> (u64, u64) {
        (self.missed.load(Ordering::Acquire), tenant.tokens.changes())
    }

    fn is_receiving(&self) -> bool {
        self.listening.as_ref().is_some_and(TokenChangeSubscription::is_receiving)
    }

    fn is_valid(&self, cached: &CachedAnswer, changes: (u64, u64)) -> bool {
        let is_receiving = self.is_receiving();
        let valid_for = match (&cached.answer, &self.listening) {
            (LookUpResult::Failed(_), _) => return false,
            (LookUpResult::Unknown, _) if !is_receiving => return false,
            (LookUpResult::Unknown | LookUpResult::Known(_), Some(_)) if is_receiving => WHILE_RECEIVING,
            (LookUpResult::Unknown | LookUpResult::Known(_), Some(_)) => WHILE_NOT_RECEIVING,
            (LookUpResult::Unknown | LookUpResult::Known(_), None) => WITHOUT_REDIS,
        };
        cached.changes == changes && cached.at.elapsed() < valid_for
    }
}

/// Looks up a token in the database.
async fn look_up(tenant: &Tenant, digest: &TokenDigest) -> LookUpResult {
    let found = async {
        let (store, _permit) = tenant.database.store_for_look_up().await?;
        store.find_token(digest.as_bytes(), Timestamp::now()).await
    };
    match found.await {
        Ok(Some(record)) => LookUpResult::Known(Arc::new(Token::new(&record))),
        Ok(None) => LookUpResult::Unknown,
        Err(error) => LookUpResult::Failed(Arc::new(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::host::HostName;
    use crate::store::{Actor, Reach, Store, TokenLimits, migrate};
    use crate::tenant::Directory;
    use crate::tenant::token::{self, Created, NewTokenRequest};

    const CONFIG: &str = r#"
        [gateway]
        listen = [{ address = "127.0.0.1:0", tls = false }]
        [[tenant]]
        slug = "acme"
        name = "Acme"
        address = "acme.example.com"
        database = "sqlite:acme.db"
    "#;

    /// Ages all cached look-ups until they are no longer valid.
    async fn age(verifier: &TokenVerifier) {
        for (key, cached) in &verifier.answers {
            let at = cached.at.checked_sub(2 * WITHOUT_REDIS).expect("the machine runs for longer");
            verifier.answers.insert(*key, CachedAnswer { at, ..cached }).await;
        }
    }

    #[tokio::test]
    async fn a_database_file_is_queried_again_only_after_a_commit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tenants.toml");
        std::fs::write(&file, CONFIG).unwrap();
        let config = Config::load(&file).unwrap();
        let location = &config.tenants[0].database;
        migrate(location, Reach::Served).await.unwrap();
        let store = Store::open(location, 1).await.unwrap();
        let by = Actor::command("root");
        let request =
            NewTokenRequest { name: "one".into(), expires_at: None, limits: TokenLimits::default(), form_key: None };
        let Created::New { id, token } = token::create(&store, request, &by).await.unwrap() else { panic!() };

        let directory = Directory::new(&config.tenants, &Directory::default());
        let tenant = directory.resolve(&HostName::parse("acme.example.com").unwrap()).expect("a tenant");
        let verifier = TokenVerifier::new(None, Arc::default(), Metrics::default());
        let checks = || {
            let checks = &verifier.metrics.token_checks;
            (checks.get(TokenCheck::KnownByDatabase), checks.get(TokenCheck::KnownByMemory))
        };
        let verify = async || verifier.verify(tenant, token.digest(), |_| true).await.unwrap();

        assert!(verify().await.is_some());
        age(&verifier).await;
        assert!(verify().await.is_some());
        assert_eq!(checks(), (2, 0), "a commit of a moment ago may not show yet");

        tokio::time::sleep(WITHOUT_REDIS).await;
        assert!(verify().await.is_some());
        assert_eq!(checks(), (3, 0));
        for times in 1..4 {
            age(&verifier).await;
            assert!(verify().await.is_some());
            assert_eq!(checks(), (3, times), "nothing was committed");
        }
        assert!(store.revoke_token(id, Timestamp::now(), &by).await.unwrap());
        age(&verifier).await;
        assert!(verify().await.is_none());
    }
}
