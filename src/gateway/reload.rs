//! Applies a changed configuration without a restart and without dropping a request.
//!
//! The configuration is read and checked as a whole, by the same code as `formgate check`; a faulty one changes
//! nothing. Tenants that remain keep their databases, windows and cached tokens. Requests in flight finish with the
//! configuration they started with; databases that are no longer used are closed after them. Changes that a running
//! process can't apply (addresses, Redis, the window's span) are logged and need a restart.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio::sync::OwnedMutexGuard;

use super::changes::{fingerprint, is_watched};
use super::databases::Databases;
use crate::config::{
    CertificateFiles, Config, GatewayConfig, Problems, ServedConfig, Sources, TenantConfig, WatchedFolders,
};
use crate::edge::{Certificates, PreparedCertificate};
use crate::file_stamp::FileStamp;
use crate::registry::{FileTenants, Followed, Following};
use crate::request::Pipeline;
use crate::store::with_causes;
use crate::tenant::{self, DatabaseServers, Directory, RemovedDatabase, written_behind};

/// How many faults of a refused configuration are logged. `formgate check` lists all.
///
/// Larger: one mistake in a pattern of thousands of tenants fills the log. Smaller: an operator fixes the faults in
/// more rounds.
const LOGGED_FAULTS: usize = 20;

/// How long a reload waits for the registry, which may have changes that belong with those of the files.
///
/// Larger: a registry that does not answer delays changes of the files for longer. Smaller: a tenant that moves from a file to a
/// slow registry is not served for a moment.
const REGISTRY_LIMIT: Duration = Duration::from_secs(5);

/// Replaces the configuration that is served.
#[derive(Clone, Debug)]
pub struct Reloader {
    pub(super) pipeline: Arc<Pipeline>,
    certificates: Arc<Certificates>,
    databases: Arc<Databases>,
    following: Option<Arc<Following>>,
    config: Arc<ArcSwap<GatewayConfig>>,
    servers: DatabaseServers,
}

/// What a reload compares with. The tenants themselves are only in the directory.
pub(super) struct ServedState {
    gateway: GatewayConfig,
    pub(super) folders: WatchedFolders,
    /// SQLite files in these folders, by [`fingerprint`]: they are written constantly.
    pub(super) databases: HashSet<u64>,
    pub(super) sources: Sources,
    pub(super) read_at: SystemTime,
}

/// A refused configuration: the folders in which a change may fix it, and the files it was read from.
#[derive(Default)]
pub(super) struct RefusedConfig {
    pub(super) folders: WatchedFolders,
    pub(super) sources: Sources,
    gateway: Option<CertificateFiles>,
    tenants: Vec<Arc<TenantConfig>>,
}

impl RefusedConfig {
    fn certificates(&self) -> impl Iterator<Item = &CertificateFiles> {
        self.tenants.iter().flat_map(|tenant| &tenant.certificates).map(|(_, files)| files).chain(&self.gateway)
    }
}

impl ServedState {
    pub(super) fn of(config: Config) -> Self {
        let Config { gateway, tenants, folders, sources, read_at, warnings: _ } = config;
        let files = tenants.iter().filter_map(|tenant| tenant.database.file());
        let databases = files.filter(|file| is_watched(file, &folders)).map(fingerprint).collect();
        Self { gateway, folders, databases, sources, read_at }
    }
}

/// A configuration that was read but is not applied yet.
struct LoadedConfig {
    directory: Directory,
    certificate: PreparedCertificate,
    state: ServedState,
    registered: Option<Registered>,
}

/// The tenants of the registry, which stay as they are for as long as this is held.
struct Registered {
    followed: OwnedMutexGuard<Followed>,
    following: Arc<Following>,
}

impl Reloader {
    /// How many tenants are served, those of the registry too.
    #[must_use]
    pub fn tenants(&self) -> usize {
        self.pipeline.gate.directory.load().len()
    }

    pub(super) fn new(
        pipeline: Arc<Pipeline>,
        certificates: Arc<Certificates>,
        databases: Arc<Databases>,
        following: Option<Arc<Following>>,
        config: Arc<ArcSwap<GatewayConfig>>,
        servers: DatabaseServers,
    ) -> Self {
        Self { pipeline, certificates, databases, following, config, servers }
    }

    /// Reads the configuration and applies it, or logs why not.
    pub(super) async fn reload(
        &self,
        path: &Path,
        served: Arc<ServedState>,
    ) -> Result<ServedState, Box<RefusedConfig>> {
        // From here on, the registry changes no tenant until the files are served.
        let metrics = &self.pipeline.metrics;
        let refused = |faults: String| {
            metrics.reloads.with_label_values(&["refused"]).inc();
            metrics.last_reload_successful.set(0);
            tracing::error!(faults, "invalid configuration ignored; the previous one stays in effect");
        };
        let registered = match &self.following {
            Some(following) => {
                let Some(followed) = following.hold(REGISTRY_LIMIT).await else {
                    refused("the registry stopped responding while a change was read".to_owned());
                    return Err(Box::default());
                };
                Some(Registered { followed, following: Arc::clone(following) })
            }
            None => None,
        };
        let before = self.pipeline.gate.directory.load_full();
        let outcome = {
            let (path, certificates) = (path.to_owned(), Arc::clone(&self.certificates));
            let (before, served) = (Arc::clone(&before), Arc::clone(&served));
            on_own_thread(move || read(&path, &before, &served, &certificates, registered)).await
        };
        let LoadedConfig { directory, certificate, state, registered } = match outcome {
            Ok(Ok(read)) => read,
            Ok(Err((faults, config))) => {
                refused(faults);
                return Err(config);
            }
            Err(ReloadThreadEnded) => {
                refused("the reading was not finished".to_owned());
                return Err(Box::default());
            }
        };
        let tenants = directory.len();
        // Written before the tenants are removed: a stop soon after this must not lose it.
        let removed = before.removed_in(&directory);
        written_behind::write(removed.iter().filter_map(RemovedDatabase::write_behind).collect()).await;
        // Certificates before tenants, so that a new tenant is served from its first handshake.
        self.certificates.replace(certificate);
        let after = Arc::new(directory);
        self.servers.announce(after.configs());
        self.pipeline.gate.directory.store(Arc::clone(&after));
        drop(registered);
        self.databases.inspect_soon();
        // Links lead to the port that is listened on: other addresses wait for a restart.
        let listen = self.config.load().listen.clone();
        let gateway = GatewayConfig { listen, ..state.gateway.clone() };
        self.pipeline.administration.configure(&gateway);
        self.config.store(Arc::new(gateway));
        self.pipeline.request_log.set(state.gateway.request_log);
        self.pipeline.hsts.store(state.gateway.hsts.clone().map(Arc::new));
        metrics.tenants.retain(|slug| after.config(slug).is_some());
        self.pipeline.gate.quota.forget_unused_accounts();
        metrics.tenants_served.set(i64::try_from(tenants).unwrap_or(i64::MAX));
        metrics.reloads.with_label_values(&["done"]).inc();
        metrics.last_reload_successful.set(1);
        metrics.last_reload.set(Timestamp::now().as_second());
        tracing::info!(tenants, "the configuration is reloaded");
        for key in served.gateway.waiting_for_restart(&state.gateway) {
            tracing::warn!(key, "a change of this key waits for a restart");
        }
        tokio::spawn(close_removed(before, after));
        Ok(state)
    }

    /// Whether the configuration or certificates are read from any of these files, under any name, or were for a
    /// refused configuration.
    pub(super) async fn is_any_read(
        &self,
        files: &BTreeSet<PathBuf>,
        sources: &Sources,
        refused: Option<&Arc<RefusedConfig>>,
    ) -> bool {
        let (files, sources, directory) = (files.clone(), sources.clone(), self.pipeline.gate.directory.load_full());
        let refused = refused.cloned();
        let gateway = self.certificates.files_of_gateway();
        let look = move || {
            let Some(written) = files.iter().map(|file| FileStamp::of(file)).collect::<Option<Vec<_>>>() else {
                // A file that no longer exists can't be compared with those that were read.
                return true;
            };
            let is_written = |path: &Path| {
                FileStamp::of(path).is_some_and(|stamp| written.iter().any(|written| written.is_of_same_file(&stamp)))
            };
            let tenants = directory.configs().flat_map(|tenant| &tenant.certificates).map(|(_, files)| files);
            let refused = refused.iter().flat_map(|refused| refused.certificates());
            let mut certificates = tenants.chain(&gateway).chain(refused);
            sources.files().iter().any(|file| is_written(file))
                || certificates.any(|files| is_written(&files.certificate) || is_written(&files.private_key))
        };
        tokio::task::spawn_blocking(look).await.unwrap_or(true)
    }

    /// Loads renewed certificates in the background.
    pub(super) fn compare_certificates(&self) {
        let certificates = Arc::clone(&self.certificates);
        tokio::spawn(async move { certificates.compare().await });
    }
}

/// Reads a configuration. Blocks on its files and on certificates that are new in it.
fn read(
    path: &Path,
    before: &Directory,
    served: &ServedState,
    certificates: &Certificates,
    mut registered: Option<Registered>,
) -> Result<LoadedConfig, (String, Box<RefusedConfig>)> {
    let is_of_file = |tenant: &Arc<TenantConfig>| !tenant.origin.is_registered();
    let tenant = |slug: &str| before.config(slug).filter(|tenant| is_of_file(tenant)).cloned();
    let known = ServedConfig::new(served.gateway.certificate.as_ref(), &tenant);
    let examination = Config::examine(path, Some(&known));
    let refused = Box::new(RefusedConfig {
        folders: examination.folders.clone(),
        sources: examination.sources.clone(),
        gateway: examination.gateway.as_ref().and_then(|gateway| gateway.certificate.clone()),
        tenants: examination.tenants.clone(),
    });
    let config = match examination.into_config() {
        Ok(config) => config.in_mode(served.gateway.mode),
        Err(problems) => return Err((first_of(&problems), refused)),
    };
    let certificate = certificates.prepare(config.gateway.certificate.as_ref());
    let certificate = match certificate {
        Ok(certificate) => certificate,
        Err(error) => return Err((with_causes(&error), refused)),
    };
    config.log_warnings();
    let directory = match &mut registered {
        None => Directory::new(&config.tenants, before),
        Some(Registered { followed, following }) => {
            let files = FileTenants::of(&config.tenants);
            let combined = followed.combine(&files, before, following);
            let others = combined.map_err(|problems| (first_of(&problems), refused))?;
            let directory = Directory::new(&[config.tenants.as_slice(), &others].concat(), before);
            followed.took(files, &directory, following);
            directory
        }
    };
    Ok(LoadedConfig { directory, certificate, state: ServedState::of(config), registered })
}

/// Runs work that briefly takes much memory on its own thread. The allocator keeps freed memory for the thread that
/// used it, and returns it to others when the thread ends. Tokio's blocking threads live on, so each reload could
/// leave memory with another one.
async fn on_own_thread<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, ReloadThreadEnded> {
    let (done, outcome) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("reload".to_owned());
    // The receiver is dropped only when the gateway stops.
    let started = thread.spawn(move || drop(done.send(work())));
    started.map_err(|_| ReloadThreadEnded)?;
    outcome.await.map_err(|_| ReloadThreadEnded)
}

/// The thread ended before its work did, or could not be started.
struct ReloadThreadEnded;

fn first_of(problems: &Problems) -> String {
    let mut faults: Vec<_> = problems.iter().take(LOGGED_FAULTS).map(ToString::to_string).collect();
    if problems.len() > LOGGED_FAULTS {
        faults.push(format!("and {} more: `formgate check` lists all", problems.len() - LOGGED_FAULTS));
    }
    faults.join("\n\n")
}

/// Closes the databases that are no longer configured.
async fn close_removed(before: Arc<Directory>, after: Arc<Directory>) {
    // Dropping thousands of tenants takes time too.
    let left = tokio::task::spawn_blocking(move || before.removed_in(&after)).await;
    tenant::close_removed(left.unwrap_or_default()).await;
}
