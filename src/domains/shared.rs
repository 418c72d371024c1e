//! The domains of a gateway, as one node works on them: what every part of the work shares.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::{SignedDuration, Timestamp};
use moka::future::Cache;
use rustls::ServerConfig;
use tokio::sync::Notify;

use super::authorities::Breakers;
use super::client::Clients;
use super::error::DomainsError;
use super::trouble::Trouble;
use super::unopenable::Unopenable;
use crate::config::{AcmeConfig, DomainsConfig};
use crate::dns::Dns;
use crate::host::HostName;
use crate::metrics::DomainMetrics;
use crate::registry::{FollowError, Following};
use crate::store::Registry;
use crate::store::registry::DomainState;
use crate::tenant::Directory;

/// For how long a response to TLS-ALPN-01, or that there is none, is cached.
///
/// Larger: a node responds later to a new challenge. Smaller: strangers cause more statements.
const TLS_ALPN_CACHED: Duration = Duration::from_secs(1);

/// How many of them are cached.
const MAX_TLS_ALPN_CACHED: u64 = 1_000;

/// Decides whether a certificate file of the gateway covers a host that no file of its tenant covers.
pub type GatewayCovers = Arc<dyn Fn(&HostName) -> bool + Send + Sync>;

/// The domains of a gateway, as one node works on them.
pub struct Domains {
    pub(super) config: DomainsConfig,
    pub(super) acme: Option<AcmeConfig>,
    pub(super) following: Arc<Following>,
    pub(super) directory: Arc<ArcSwap<Directory>>,
    pub(super) gateway_covers: GatewayCovers,
    pub(super) dns: Dns,
    pub(super) clients: Clients,
    pub(super) breakers: Breakers,
    /// How to respond to handshakes with TLS-ALPN-01, by host.
    pub(super) tls_alpn: Cache<HostName, Option<Arc<ServerConfig>>>,
    /// How far the clock of the registry is ahead of this machine's, in microseconds.
    clock: AtomicI64,
    /// The failing domains: their tenants, with what is wrong.
    pub(super) failing: ArcSwap<Vec<(Arc<str>, String)>>,
    /// The number of domains that can't be checked because DNS is unreachable.
    pub(super) unasked: AtomicU64,
    /// The number of domains that wait for another account at a CA.
    pub(super) without_account: AtomicU64,
    /// What `seal_keys` does not open.
    pub(super) unopened: ArcSwap<Unopenable>,
    /// Why this node can't do its work on domains.
    pub(super) trouble: Trouble,
    /// Something was changed here: rows may be due.
    pub(super) changed: Notify,
    pub(super) metrics: DomainMetrics,
}

impl Domains {
    /// No domain is checked before a [`DomainWorker`](super::DomainWorker) runs. Blocks on the files of the system's DNS settings.
    #[must_use]
    pub fn new(
        config: &DomainsConfig,
        acme: Option<&AcmeConfig>,
        following: Arc<Following>,
        directory: Arc<ArcSwap<Directory>>,
        gateway_covers: GatewayCovers,
        metrics: DomainMetrics,
    ) -> Self {
        let cas = acme.map_or(0, |acme| acme.requests.authorities.len());
        metrics.counted(&DomainState::ALL.map(DomainState::as_str), &[]);
        for (ca, limits) in acme.iter().flat_map(|acme| acme.requests.authorities.iter().zip(&acme.limits)) {
            metrics.begin(&ca.name, limits.orders);
        }
        Self {
            dns: Dns::new(&config.resolvers),
            config: config.clone(),
            acme: acme.cloned(),
            following,
            directory,
            gateway_covers,
            clients: Clients::default(),
            breakers: Breakers::new(cas),
            tls_alpn: Cache::builder().max_capacity(MAX_TLS_ALPN_CACHED).time_to_live(TLS_ALPN_CACHED).build(),
            clock: AtomicI64::new(0),
            failing: ArcSwap::default(),
            unasked: AtomicU64::new(0),
            without_account: AtomicU64::new(0),
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

    /// Why this node can't check domains or renew certificates.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.cause()
    }

    /// The number of domains that can't be checked because DNS is unreachable.
    #[must_use]
    pub fn unasked(&self) -> u64 {
        self.unasked.load(Ordering::Relaxed)
    }

    /// The number of domains that wait for another account, since a CA has deactivated the one of the gateway.
    #[must_use]
    pub fn without_account(&self) -> u64 {
        self.without_account.load(Ordering::Relaxed)
    }

    /// Works on rows that are due now.
    pub fn wake(&self) {
        self.changed.notify_one();
    }

    /// Tries the keys of `seal_keys`, and logs what has changed.
    pub(super) async fn try_keys(&self, registry: &Registry) -> Result<(), DomainsError> {
        let Some(acme) = &self.acme else { return Ok(()) };
        let now = Unopenable::find(registry, &acme.seals, &self.following.certificates().unopened()).await?;
        now.log(&self.unopened.swap(Arc::new(now.clone())));
        Ok(())
    }

    pub(super) async fn registry(&self) -> Result<&Registry, FollowError> {
        self.following.registry().await
    }

    /// Now, by the clock of the registry.
    pub(super) fn now(&self) -> Timestamp {
        self.by_registry(Timestamp::now())
    }

    /// An instant of this machine's clock by the clock of the registry.
    pub(super) fn by_registry(&self, at: Timestamp) -> Timestamp {
        at.saturating_add(SignedDuration::from_micros(self.clock.load(Ordering::Relaxed))).unwrap_or(at)
    }

    pub(super) fn note_clock(&self, registry: Timestamp) {
        let ahead = registry.duration_since(Timestamp::now()).as_micros();
        self.clock.store(i64::try_from(ahead).unwrap_or(0), Ordering::Relaxed);
    }
}

impl fmt::Debug for Domains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domains").field("config", &self.config).finish_non_exhaustive()
    }
}
