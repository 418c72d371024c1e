//! The life of domains: from a claim to a certificate that renews itself.
//!
//! Every host that no file gives a certificate has a row in the registry. [`DomainWorker`] takes rows that are due, under
//! leases, and walks each one step further:
//!
//! ```text
//! claimed → dns → verified → queued → issuing → live → failing → removed
//! ```
//!
//! - `needed`: which hosts have rows.
//! - `life`: what becomes of a row; `ownership` decides whose it is, `beginning` chooses the authority of an order, `orders`
//!   obtains the certificate, `failures` has what else may come of an order; `renewal` and `schedule` decide when the row is
//!   next.
//! - `authorities` has which authorities work, `budgets` what each allows.
//! - [`Reason`]: what is wrong and what to do, in the same words everywhere; [`describe`] shows a row.
//! - [`AccountDomains`]: what the administrators of an account see and may do; `told` is what they read of a reason.
//! - `challenges` answers the authorities, on any node.
//! - `resealing` is for a change of `seal_keys`; `stored_keys` finds keys that are missing there, and
//!   `unopenable` reports it on a running node. `trouble` is why the work can't be done at all.
//!
//! A look that could not ask changes no state. A certificate is never obtained inside a handshake.

mod account;
mod authorities;
mod beginning;
mod budgets;
mod challenges;
mod claim;
mod described;
mod failures;
mod life;
mod needed;
mod orders;
mod ownership;
mod plan;
mod reason;
mod renewal;
mod resealing;
mod schedule;
mod steps;
mod stored_keys;
mod told;
mod trouble;
mod unopenable;
mod worker;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use secrecy::zeroize::Zeroizing;
use tokio::sync::{Notify, OnceCell};

use self::authorities::Breakers;
use self::challenges::TlsAlpnAnswers;
use self::trouble::Trouble;
use self::unopenable::Unopenable;
use crate::acme::{AccountKey, Acme};
use crate::config::{AcmeConfig, DomainsConfig};
use crate::dns::Dns;
use crate::host::HostName;
use crate::metrics::DomainMetrics;
use crate::registry::{FollowError, Following};
use crate::seal::{Seals, Unopened};
use crate::store::registry::DomainState;
use crate::store::{Registry, StoreError};
use crate::tenant::Directory;

pub use account::{AccountDomains, AccountHost, HostAddition, HostCheck, Serving};
pub use claim::{Claimed, DomainClaim, await_look, chosen, claim};
pub use described::{describe, describe_event, describe_unwatched, new_proof};
pub use plan::{AuthorityStatus, Plan, status};
pub use reason::{OtherReason, Reason, proof_of, proof_record};
pub use resealing::{Resealed, UnopenedKey, reseal};
pub use steps::StepPart;
pub use stored_keys::{MissingKey, UnreadyNodes, missing_keys, unready_nodes};
pub use worker::DomainWorker;

/// Decides whether a certificate of a file covers a host that no file of its tenant does.
pub type GatewayCovers = Arc<dyn Fn(&HostName) -> bool + Send + Sync>;

/// The domains of a gateway, as one node works on them.
pub struct Domains {
    config: DomainsConfig,
    acme: Option<AcmeConfig>,
    following: Arc<Following>,
    directory: Arc<ArcSwap<Directory>>,
    gateway_covers: GatewayCovers,
    dns: Dns,
    client: OnceCell<Arc<Acme>>,
    breakers: Breakers,
    tls_alpn: TlsAlpnAnswers,
    /// How far the clock of the registry is ahead of this machine's, in microseconds.
    clock: AtomicI64,
    /// The domains that fail: tenants, with what is wrong.
    failing: ArcSwap<Vec<(Arc<str>, String)>>,
    /// How many domains there are for which DNS can't be asked.
    unasked: AtomicU64,
    /// What `seal_keys` does not open.
    unopened: ArcSwap<Unopenable>,
    /// Why this node can't do its work on domains.
    trouble: Trouble,
    /// Something was changed here: look for rows that are due.
    changed: Notify,
    metrics: DomainMetrics,
}

/// Why nothing can be ordered.
#[derive(Debug, thiserror::Error)]
pub enum DomainsError {
    /// The registry.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The account key can't be opened.
    #[error("the account key can't be used: {0}")]
    Unopened(#[from] Unopened),
    /// The account key is damaged.
    #[error("the account key is damaged")]
    Damaged,
}

impl From<StoreError> for DomainsError {
    fn from(error: StoreError) -> Self {
        Self::Follow(error.into())
    }
}

impl Domains {
    /// Nothing is looked at before a [`DomainWorker`] runs. Blocks on the files of the system's DNS settings.
    #[must_use]
    pub fn new(
        config: &DomainsConfig,
        acme: Option<&AcmeConfig>,
        following: Arc<Following>,
        directory: Arc<ArcSwap<Directory>>,
        gateway_covers: GatewayCovers,
        metrics: DomainMetrics,
    ) -> Self {
        let authorities = acme.map_or(0, |acme| acme.requests.authorities.len());
        metrics.counted(&DomainState::ALL.map(DomainState::as_str), &[]);
        for (authority, limits) in acme.iter().flat_map(|acme| acme.requests.authorities.iter().zip(&acme.limits)) {
            metrics.begin(&authority.name, limits.orders);
        }
        Self {
            dns: Dns::new(&config.resolvers),
            config: config.clone(),
            acme: acme.cloned(),
            following,
            directory,
            gateway_covers,
            client: OnceCell::new(),
            breakers: Breakers::new(authorities),
            tls_alpn: challenges::no_answers(),
            clock: AtomicI64::new(0),
            failing: ArcSwap::default(),
            unasked: AtomicU64::new(0),
            unopened: ArcSwap::default(),
            trouble: Trouble::default(),
            changed: Notify::new(),
            metrics,
        }
    }

    /// Where hosts have to point.
    #[must_use]
    pub fn config(&self) -> &DomainsConfig {
        &self.config
    }

    /// The domains that have a certificate and will lose it, or whose certificate can't be opened: their tenants, with
    /// what is wrong.
    #[must_use]
    pub fn failing(&self) -> Vec<(Arc<str>, String)> {
        self.failing.load().iter().chain(&self.unopened.load().certificates).cloned().collect()
    }

    /// Why nothing can be ordered, if the account key can't be opened.
    #[must_use]
    pub fn unopened_account(&self) -> Option<String> {
        self.unopened.load().account.clone()
    }

    /// Why this node can't look after domains, renew certificates and the like.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.cause()
    }

    /// How many domains there are for which DNS can't be asked.
    #[must_use]
    pub fn unasked(&self) -> u64 {
        self.unasked.load(Ordering::Relaxed)
    }

    /// Looks for rows that are due now.
    pub fn look_soon(&self) {
        self.changed.notify_one();
    }

    async fn registry(&self) -> Result<&Registry, FollowError> {
        self.following.registry().await
    }

    /// Now, by the clock of the registry.
    fn now(&self) -> Timestamp {
        self.by_registry(Timestamp::now())
    }

    /// An instant of this machine's clock by the clock of the registry.
    fn by_registry(&self, at: Timestamp) -> Timestamp {
        at.saturating_add(SignedDuration::from_micros(self.clock.load(Ordering::Relaxed))).unwrap_or(at)
    }

    fn note_clock(&self, registry: Timestamp) {
        let ahead = registry.duration_since(Timestamp::now()).as_micros();
        self.clock.store(i64::try_from(ahead).unwrap_or(0), Ordering::Relaxed);
    }

    /// The client of the authorities, with the account key of the registry; the first node makes one. `None` if no
    /// certificates are obtained.
    async fn client(&self) -> Result<Option<(&AcmeConfig, &Acme)>, DomainsError> {
        let Some(acme) = &self.acme else { return Ok(None) };
        let open = async {
            let key = account_key(self.registry().await?, &acme.seals).await?;
            let settings = acme.requests.clone();
            let client = tokio::task::spawn_blocking(move || Acme::new(settings, key)).await;
            Ok::<_, DomainsError>(Arc::new(client.map_err(|_| DomainsError::Damaged)?))
        };
        Ok(Some((acme, self.client.get_or_try_init(|| open).await?)))
    }
}

/// The account key of a registry; makes one if there is none.
async fn account_key(registry: &Registry, seals: &Seals) -> Result<AccountKey, DomainsError> {
    let stored = match registry.account_key().await? {
        Some(stored) => stored,
        None => {
            let new = AccountKey::generate();
            registry.account_key_or(&seals.seal(&STANDARD.encode(new.pkcs8()), ACCOUNT)).await?
        }
    };
    open_account_key(&stored, seals)
}

/// Opens the account key as the registry has it.
fn open_account_key(stored: &str, seals: &Seals) -> Result<AccountKey, DomainsError> {
    let text = Zeroizing::new(seals.open(stored, ACCOUNT)?);
    let pkcs8 = Zeroizing::new(STANDARD.decode(text.as_bytes()).map_err(|_| DomainsError::Damaged)?);
    AccountKey::from_pkcs8(&pkcs8).map_err(|_| DomainsError::Damaged)
}

/// What the account key is sealed for.
pub(crate) const ACCOUNT: &str = "acme account";

impl fmt::Debug for Domains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domains").field("config", &self.config).finish_non_exhaustive()
    }
}
