//! Follows the registry: takes its changes into the directory, one increment at a time.
//!
//! The head of the registry is polled twice a second, by one short statement: so a change is served by every node
//! within a second, without Redis and without a session that listens. A row that can't be read, or wants what a tenant of
//! a file has, leaves its tenant as it was, is logged, and is tried again when the files change.

mod applying;
mod certificates;
mod error;
mod moving;
mod ready;
mod reported;
mod sharing;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio::sync::{Notify, OnceCell, OwnedMutexGuard};
use tokio::time::timeout_at;

use applying::{Closing, RefusedRow, log_refused};
pub use error::FollowError;
use moving::FollowedMoves;
pub use ready::{Rows, Unready};
use reported::FollowingState;

use super::claimed::FileTenants;
use super::keepers::{Keepers, KeptTenants};
use super::loading::{Loaded, open, read_whole};
use super::missing_rights::MissingRights;
use super::node_name::NodeName;
use super::obtained::{ObtainedCertificates, RegistrySeals};
use super::presence::{Presence, Sightings};
use super::snapshot::{Snapshot, TakenCertificates};
use super::subscribed::SubscribedTenants;
use crate::config::{RegisteredTenant, RegistryConfig, TenantConfig};
use crate::metrics::{Metrics, RegistryMetrics};
use crate::store::registry::{Beat, Head, Look, PAGE, RegistryMark, RegistryUse};
use crate::store::{Registry, StoreError, with_causes};
use crate::tenant::{DatabaseServers, Directory};

/// The registry as this node follows it.
#[derive(Debug)]
pub struct Following {
    config: RegistryConfig,
    registry: OnceCell<Registry>,
    directory: Arc<ArcSwap<Directory>>,
    servers: DatabaseServers,
    metrics: RegistryMetrics,
    all_metrics: Metrics,
    node: NodeName,
    certificates: Arc<ObtainedCertificates>,
    /// Held by the one call that polls the registry and takes over what it found, so that no other one changes what it
    /// compares with.
    looking: tokio::sync::Mutex<()>,
    /// Held while tenants change, by this or by a reload of the files. Not during a poll of the registry, which may
    /// hang.
    followed: Arc<tokio::sync::Mutex<Followed>>,
    /// The local operator API has written, or the files have changed.
    pub(super) changed: Notify,
    state: Mutex<FollowingState>,
    sightings: Mutex<Sightings>,
    keepers: Arc<Keepers>,
    rights: MissingRights,
    subscribed: SubscribedTenants,
    shares_changed: Notify,
    /// The number of tenants that this node keeps, and the state for which it was counted.
    kept: ArcSwap<KeptTenants>,
    shared_out: Mutex<Option<(u64, Weak<Directory>)>>,
    closing: Arc<Closing>,
    /// Others know of this node: it serves, or is about to.
    has_joined: AtomicBool,
    /// The database has another registry than the one that this node follows.
    is_other: AtomicBool,
    /// How often the registry was restored to an earlier state.
    restores: AtomicU64,
    moves: Mutex<FollowedMoves>,
}

/// What this node has taken over.
#[derive(Debug)]
pub struct Followed {
    head: Head,
    /// What this process wrote last about itself, if it is known to have been written.
    beat: Option<String>,
    /// The tenants that it then wrote as removed, with their databases still open.
    closing: Vec<String>,
    pub(super) files: Arc<FileTenants>,
    pub(super) refused: BTreeMap<String, RefusedRow>,
    /// `None` if this node keeps none.
    snapshot: Option<Snapshot>,
    /// Up to where the certificates were taken over.
    certificates: TakenCertificates,
    /// When the registry was last asked for the certificates of hosts whose own had expired by then.
    expired_at: Option<(Instant, Timestamp)>,
    /// Up to here the tenants with subscriptions were taken over.
    subscribed: i64,
    presence: Presence,
}

impl Following {
    /// Follows a registry from where it was loaded. `directory` has the tenants of `files` and those of
    /// [`Self::tenants_of`]. `servers` hears of every tenant before it is served.
    #[must_use]
    pub fn new(
        config: &RegistryConfig,
        loaded: Loaded,
        files: &[Arc<TenantConfig>],
        (directory, servers): (Arc<ArcSwap<Directory>>, DatabaseServers),
        node: NodeName,
        seals: RegistrySeals<'_>,
        metrics: &Metrics,
    ) -> Self {
        let Loaded { registry, head, rows, away: _ } = loaded;
        let refused = rows.into_iter().filter_map(|(row, read)| {
            let problems = read.err()?;
            Some((row.slug.clone(), RefusedRow::of(row, &problems)))
        });
        let followed = Followed {
            head,
            beat: None,
            closing: Vec::new(),
            files: Arc::new(FileTenants::of(files)),
            refused: refused.collect(),
            snapshot: config.kept_snapshot().map(|snapshot| Snapshot::new(snapshot, seals.texts)),
            certificates: TakenCertificates::default(),
            expired_at: None,
            subscribed: 0,
            presence: Presence::new(seals.certificates.ids().map(ToOwned::to_owned).collect()),
        };
        let following = Self {
            config: config.clone(),
            registry: OnceCell::new_with(registry),
            directory,
            servers,
            metrics: metrics.registry.clone(),
            all_metrics: metrics.clone(),
            keepers: Arc::new(Keepers::new(node.id())),
            rights: MissingRights::new([RegistryUse::Follow]),
            subscribed: SubscribedTenants::default(),
            shares_changed: Notify::new(),
            kept: ArcSwap::default(),
            shared_out: Mutex::default(),
            closing: Arc::default(),
            node,
            certificates: Arc::new(ObtainedCertificates::new(config, seals.certificates)),
            changed: Notify::new(),
            state: Mutex::new(FollowingState { unready: Some(Unready::Starting), ..FollowingState::default() }),
            sightings: Mutex::default(),
            has_joined: AtomicBool::new(false),
            is_other: AtomicBool::new(false),
            restores: AtomicU64::new(0),
            moves: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            followed: Arc::new(tokio::sync::Mutex::new(followed)),
        };
        {
            let followed = following.followed.try_lock().expect("it is new");
            log_refused(&followed.refused.values().collect::<Vec<_>>());
            following.publish(&followed);
        }
        following
    }

    /// The same for a node that serves the operator API, which needs more rights.
    #[must_use]
    pub fn of_operator(self) -> Self {
        Self { rights: MissingRights::new([RegistryUse::Follow, RegistryUse::Operate]), ..self }
    }

    /// The tenants of a loaded registry that can be read.
    pub fn tenants_of(loaded: &Loaded) -> impl Iterator<Item = &RegisteredTenant> {
        loaded.rows.iter().filter_map(|(_, read)| read.as_ref().ok())
    }

    /// The open registry, to read and to write.
    ///
    /// # Errors
    /// [`FollowError`] if it can't be opened, or is not the one that this node follows.
    pub async fn registry(&self) -> Result<&Registry, FollowError> {
        let registry = self.open().await?;
        if self.is_other.load(Ordering::Acquire) { Err(FollowError::OtherRegistry) } else { Ok(registry) }
    }

    async fn open(&self) -> Result<&Registry, StoreError> {
        self.registry.get_or_try_init(|| open(&self.config)).await
    }

    /// The registry's keys in the configuration.
    #[must_use]
    pub fn config(&self) -> &RegistryConfig {
        &self.config
    }

    /// This node.
    #[must_use]
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// How often the registry was restored to an earlier state, as far as this process knows.
    #[must_use]
    pub fn restores(&self) -> u64 {
        self.restores.load(Ordering::Acquire)
    }

    /// Looks at the registry now: something was written here.
    pub fn look_soon(&self) {
        self.changed.notify_one();
    }

    /// What the role of this node may not do with the registry, and what to do about it.
    #[must_use]
    pub fn missing_rights(&self) -> Option<String> {
        self.rights.describe()
    }

    /// Whether a node wrote to the registry a short while ago, whatever the clock of the registry says.
    #[must_use]
    pub fn is_running(&self, node: &str) -> bool {
        self.sightings.lock().unwrap_or_else(PoisonError::into_inner).is_running(node)
    }

    /// Has callers wait for this node from now on, which no start that fails does, and then takes what was changed since it
    /// was loaded. So a node that starts serves every change that was acknowledged before.
    pub async fn join(&self) {
        self.has_joined.store(true, Ordering::Release);
        if let Some(registry) = self.registry.get() {
            self.beat(registry, &mut *self.followed.lock().await).await;
            let directory = self.directory.load_full();
            self.check_files(directory.configs()).await;
            self.catch_up().await;
            self.share_out().await;
        }
        self.note_ready_alone(&*self.followed.lock().await);
    }

    /// What the tenants of the files have.
    pub async fn files(&self) -> Arc<FileTenants> {
        Arc::clone(&self.followed.lock().await.files)
    }

    /// Takes what is in the registry now, as far as it can be read. A tenant that is being moved out of a file may be there.
    pub async fn catch_up(&self) {
        if let Err(error) = self.follow().await {
            tracing::debug!(cause = with_causes(&error), "the registry can't be read before a reload");
        }
    }

    /// Takes what is in the registry now, as [`Self::catch_up`] does, and keeps its tenants as they are while the files are
    /// read again. `None` if the registry stopped answering in the middle of a change.
    pub async fn hold(self: &Arc<Self>, limit: Duration) -> Option<OwnedMutexGuard<Followed>> {
        let deadline = Instant::now() + limit;
        let following = Arc::clone(self);
        // A task, so that it continues after the time limit: a change is taken over as a whole.
        let caught_up = tokio::spawn(async move { following.catch_up().await });
        if timeout_at(deadline.into(), caught_up).await.is_err() {
            tracing::warn!("registry unavailable; reading the files without its latest changes");
        }
        timeout_at(deadline.into(), Arc::clone(&self.followed).lock_owned()).await.ok()
    }

    /// Writes and logs the outcome of a change, and stops writing about this node, which ends.
    pub async fn end(&self) {
        if let Some(registry) = self.registry.get() {
            if self.config.is_written {
                registry.forget_node(self.node.id()).await.ok();
            }
            registry.close().await;
        }
        self.certificates.close().await;
    }

    pub(super) async fn follow(&self) -> Result<(), FollowError> {
        let registry = self.open().await?;
        let _looking = self.looking.lock().await;
        let marks = {
            let Followed { head, certificates, .. } = &*self.followed.lock().await;
            [head.mark(), certificates.of]
        };
        let Look { mut head, has: [has_rows, has_certificates], beats, keeping, subscribed, shared, moves } =
            registry.look(marks).await?;
        let mut followed = self.followed.lock().await;
        let own_beat = beats.get(self.node.id()).cloned();
        self.sightings.lock().unwrap_or_else(PoisonError::into_inner).note(beats);
        if head.epoch != followed.head.epoch {
            // A backup of the same registry has the same epoch. Following another one would remove every tenant.
            return Err(FollowError::OtherRegistry);
        }
        // Before a row is taken over that has the other database.
        self.expect_moves(&moves);
        let has_other_beat = followed.beat.is_some() && followed.beat != own_beat;
        let is_restored = !has_rows || has_other_beat;
        let mut is_applied = is_restored;
        if is_restored {
            tracing::warn!(
                revision = head.revision,
                before = followed.head.revision,
                "registry was restored; reading all of it"
            );
            let rows;
            (head, rows) = read_whole(registry).await?;
            self.apply(&mut followed, head.clone(), rows, true).await;
            self.restores.fetch_add(1, Ordering::Release);
            self.forget_subscribed(&mut followed);
            self.directory.load().owners().find_again();
        }
        while followed.head.revision < head.revision {
            let rows = registry.changes(followed.head.revision, head.revision, PAGE).await?;
            let reached = match rows.last() {
                None => break,
                Some(last) if rows.len() == PAGE as usize => {
                    let RegistryMark { revision, stamp } = registry.mark(last.revision).await?;
                    Head { revision, stamp, ..head.clone() }
                }
                Some(_) => head.clone(),
            };
            self.apply(&mut followed, reached, rows, false).await;
            is_applied = true;
        }
        let has_history = has_certificates && !is_restored;
        is_applied |= self.take_certificates(registry, &mut followed, &head, has_history).await?;
        self.note_readiness(registry, &followed).await?;
        if is_applied || followed.presence.is_due() || followed.closing != self.closing.slugs() {
            self.beat(registry, &mut followed).await;
        }
        self.follow_shares(registry, &mut followed, keeping, subscribed).await?;
        drop(followed);
        self.follow_moves(registry, &moves);
        self.follow_databases(registry, shared).await;
        Ok(())
    }

    /// Checks what the role of this node may do: also if it may not even read.
    pub(super) async fn check_rights(&self) {
        let Some(registry) = self.registry.get().filter(|_| self.config.is_written) else { return };
        if let Err(error) = self.rights.check(registry).await {
            tracing::debug!(cause = with_causes(&error), "the rights in the registry can't be checked");
        }
    }

    /// Writes all rows to the snapshot if it lacks some. They are read while the registry is followed.
    pub(super) async fn complete_snapshot(&self) -> Result<(), FollowError> {
        {
            let Followed { head, snapshot, .. } = &mut *self.followed.lock().await;
            let Some(snapshot) = snapshot else { return Ok(()) };
            if !snapshot.lacks_rows(head).await {
                return Ok(());
            }
        }
        let (head, rows) = read_whole(self.open().await?).await?;
        let mut followed = self.followed.lock().await;
        // Otherwise changes were taken meanwhile that may not be among the rows.
        if head.revision >= followed.head.revision
            && let Some(snapshot) = &mut followed.snapshot
        {
            snapshot.keep(&head, &rows, true).await;
        }
        Ok(())
    }

    /// Writes how far this node has got, so that others list it and wait for it. A registry that can't be written is still
    /// followed.
    async fn beat(&self, registry: &Registry, followed: &mut Followed) {
        if !self.config.is_written || !self.has_joined.load(Ordering::Acquire) {
            return;
        }
        let mark = followed.head.mark();
        let named = followed.refused.iter().take(Beat::NAMED);
        let named = named.map(|(slug, refused)| (slug.clone(), refused.in_short.clone())).unzip();
        let refused = (named, followed.refused.len());
        followed.closing = self.closing.slugs();
        let (presence, closing) = (&mut followed.presence, &followed.closing);
        followed.beat = presence.write(registry, &self.node, mark, refused, closing, &self.sightings).await;
        self.state().is_unlisted = followed.presence.is_faulty();
    }
}
