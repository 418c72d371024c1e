//! Delivers webhooks: what changed in the databases of all tenants, to the receivers that are subscribed to it.
//!
//! A webhook is a position in the change log of a database. Nothing is queued: a receiver that is down for days costs one
//! row, and gets every event in order once it works again. Nodes only coordinate through the databases: leases there divide
//! the work, and a node takes over the leases of one that died.
//!
//! 1. `watched` has the tenants with subscriptions, and `watch` polls one for due events after `hints`. The same hints wake
//!    requests that wait for a change of the feed.
//! 2. `survey` finds the tenants with subscriptions, when this node starts and for new tenants.
//! 3. `sender` leases a subscription, and sends what is due within the limits of `permits`.
//! 4. `outcome` decides what a response means and when to try again.
//!
//! [`crate::store`] owns the log, leases and positions, [`crate::api`] the body of a webhook, and [`crate::outbound`] the
//! request.

mod hints;
mod outcome;
mod permits;
mod request;
mod sender;
mod signing;
mod survey;
mod watch;
mod watched;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{TenantConfig, WebhookConfig};
use crate::metrics::{STATES, WebhookMetrics};
use crate::outbound::Client;
use crate::registry::{Duty, Following};
use crate::store::{LeasedSubscription, Standing, SubscriptionCounts};
use crate::tenant::{Directory, NoticedWrites, Tenant};
use permits::Permits;
pub use survey::Survey;
use survey::Surveyed;
pub use watch::Watch;
use watched::Watched;

/// The delivery of webhooks by one node.
#[derive(Clone, Debug)]
pub struct Webhooks(Arc<DeliveryContext>);

/// What all senders of a node share.
#[derive(Debug)]
struct DeliveryContext {
    config: WebhookConfig,
    client: Arc<Client>,
    permits: Permits,
    directory: Arc<ArcSwap<Directory>>,
    /// Divides the tenants between nodes, if there is a registry.
    following: Option<Arc<Following>>,
    watched: Watched,
    /// The surveyed tenants, without a registry.
    surveyed: Surveyed,
    /// Cancelled once the first survey is over.
    first_survey: CancellationToken,
    /// Tenants were added, or were assigned to this node.
    share_changed: Notify,
    /// The requests that wait for changes, which hints wake.
    noticed_writes: Arc<NoticedWrites>,
    metrics: WebhookMetrics,
    /// Identifies this node in leases; different after each start.
    node: String,
    leases: AtomicU64,
    /// Cancelled when the node stops: no request starts then.
    stopping: CancellationToken,
    /// Polls and senders.
    running: TaskTracker,
}

impl Webhooks {
    /// Delivers for the tenants of a directory with a client, once [`Webhooks::watch`] runs. `noticed_writes` are the
    /// requests that wait for a change of the feed, which are woken by the same hints. With a registry to follow, the nodes
    /// divide its tenants.
    #[must_use]
    pub fn new(
        config: &WebhookConfig,
        client: Arc<Client>,
        directory: Arc<ArcSwap<Directory>>,
        following: Option<Arc<Following>>,
        noticed_writes: Arc<NoticedWrites>,
        metrics: WebhookMetrics,
    ) -> Self {
        Self(Arc::new(DeliveryContext {
            config: config.clone(),
            client,
            permits: Permits::new(config),
            directory,
            following,
            watched: Watched::default(),
            surveyed: Surveyed::default(),
            first_survey: CancellationToken::new(),
            share_changed: Notify::new(),
            noticed_writes,
            metrics,
            node: format!("{:032x}", rand::random::<u128>()),
            leases: AtomicU64::new(0),
            stopping: CancellationToken::new(),
            running: TaskTracker::new(),
        }))
    }

    /// The background task that notices what is due. `announced` are tenants whose subscriptions changed.
    #[must_use]
    pub fn watch(&self, announced: Receiver<Arc<str>>) -> Watch {
        Watch::new(Arc::clone(&self.0), announced)
    }

    /// The background task that finds out which tenants have subscriptions, if that is unknown.
    #[must_use]
    pub fn survey(&self) -> Survey {
        Survey::new(Arc::clone(&self.0))
    }

    /// Completes once the first survey is over: until then, others do not open the same databases.
    pub async fn surveyed(&self) {
        self.0.first_survey.cancelled().await;
    }

    /// Notes whether tenants have subscriptions, according to their databases. Subscribed tenants are watched from now on.
    pub async fn note_subscribed(&self, found: &[(Arc<TenantConfig>, bool)]) {
        self.0.note_subscribed(found).await;
    }

    /// Whether a tenant is known to have subscriptions.
    #[must_use]
    pub fn is_watched(&self, tenant: &str) -> bool {
        self.0.watched.has(tenant)
    }

    /// Publishes the number of subscriptions of all tenants.
    pub fn publish<'c>(&self, counts: impl Iterator<Item = &'c SubscriptionCounts>) {
        let (mut by_state, mut set_aside) = ([0; STATES.len()], 0);
        for counts in counts {
            for (state, sum) in STATES.iter().zip(&mut by_state) {
                *sum += counts.by_state.get(*state).copied().unwrap_or(0);
            }
            set_aside += counts.set_aside;
        }
        for (state, sum) in STATES.iter().zip(by_state) {
            self.0.metrics.subscriptions.with_label_values(&[*state]).set(sum);
        }
        self.0.metrics.waiting.set(set_aside);
    }

    /// Starts no further request, waits a limited time for the running ones, and releases the leases.
    pub async fn stop(&self) {
        self.0.stopping.cancel();
        self.0.running.close();
        if tokio::time::timeout(self.0.config.drain + STOP_LIMIT, self.0.running.wait()).await.is_err() {
            tracing::warn!("some receivers did not respond in time; another node sends their webhooks again");
        }
    }
}

/// How long writing the last positions may take.
///
/// Larger: a database that hangs delays a stop. Smaller: another node sends more events again.
const STOP_LIMIT: Duration = Duration::from_secs(2);

impl DeliveryContext {
    /// The duty of this node for a tenant.
    fn duty(&self, slug: &str) -> Duty {
        let Some(following) = &self.following else { return Duty::Keeper };
        self.directory.load().config(slug).map_or(Duty::Nothing, |tenant| following.keepers().duty(tenant))
    }

    /// Grows whenever the duty for any tenant may have changed, or more tenants are known to have subscriptions.
    fn generation(&self) -> u64 {
        self.following.as_ref().map_or(0, |following| following.keepers().generation())
    }

    async fn shares_changed(&self) {
        match &self.following {
            Some(following) => following.shares_changed().await,
            None => std::future::pending().await,
        }
    }

    /// Whether a tenant stays watched after a poll: it has something to deliver, a request waits for it, or it has subscriptions
    /// according to the registry, which may be paused or just being created.
    fn is_watched(&self, slug: &str, is_delivered: bool) -> bool {
        let of_registry = |following: &Arc<Following>| {
            let directory = self.directory.load();
            let tenant = directory.config(slug).filter(|tenant| tenant.origin.is_registered());
            tenant.is_some_and(|tenant| {
                following.keepers().duty(tenant) != Duty::Nothing && following.subscribed().has_subscriptions(tenant)
            })
        };
        is_delivered || self.noticed_writes.is_waited_for(slug) || self.following.as_ref().is_some_and(of_registry)
    }

    async fn note_subscribed(&self, found: &[(Arc<TenantConfig>, bool)]) {
        self.surveyed.note(found);
        if let Some(following) = &self.following {
            following.note_subscribed(found).await;
        }
        for (tenant, _) in found.iter().filter(|(_, is_subscribed)| *is_subscribed) {
            let duty = self.duty(&tenant.slug);
            if duty != Duty::Nothing && !self.watched.has(&tenant.slug) {
                self.watched.poll_now(&tenant.slug, duty);
            }
        }
    }

    /// A name for a lease.
    fn new_holder(&self) -> String {
        format!("{}-{}", self.node, self.leases.fetch_add(1, Ordering::Relaxed))
    }

    /// Logs and counts a change of a subscription's state, once for each change. `fault` is how its receiver failed.
    fn report(&self, tenant: &Tenant, leased: &LeasedSubscription, standing: &Standing, fault: &str) {
        let (tenant, subscription) = (&*tenant.slug, leased.id);
        match standing {
            Standing::Failing { reason, .. } if leased.failures == 0 => {
                self.metrics.changes.with_label_values(&["failing"]).inc();
                tracing::warn!(tenant, subscription, %reason, "webhook receiver fails; retrying");
            }
            Standing::Disabled { reason } => {
                self.metrics.changes.with_label_values(&["disabled"]).inc();
                self.metrics.disabled.with_label_values(&[fault]).inc();
                tracing::warn!(
                    tenant,
                    subscription,
                    %reason,
                    "webhook receiver failed for too long; subscription disabled"
                );
            }
            Standing::Gone { reason } => {
                self.metrics.changes.with_label_values(&["gone"]).inc();
                tracing::warn!(tenant, subscription, %reason, "webhook receiver is gone; sending nothing more");
            }
            _ => {}
        }
    }

    fn report_recovery(&self, tenant: &Tenant, leased: &LeasedSubscription) {
        self.metrics.changes.with_label_values(&["active"]).inc();
        tracing::info!(tenant = &*tenant.slug, subscription = leased.id, "webhook receiver works again");
    }
}
