//! Which certificate a handshake serves.
//!
//! A tenant's host uses its own certificate, one for all of the tenant's hosts below a name, the one that was obtained
//! for it, or the gateway's. The
//! handshake for a name that no tenant has ends with an alert. The gateway's certificate is always in memory. A
//! tenant's certificate is read for its first handshake, by one task however many handshakes wait for it, and kept
//! in a [cache] that is bounded in bytes. So a name costs an entry in the tenant directory until a client connects
//! to it, and an unknown name costs a lookup.
//!
//! Renewed files are picked up automatically: a served certificate is compared with its files at intervals, off
//! the handshake path. The renewed pair replaces the old one once it is complete. [Inspection](inspection) checks
//! all certificates, served or not.

mod cache;
mod inspection;
mod loader;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use rustls::ServerConfig;

use self::cache::Cache;
use self::inspection::CertificateInspection;
use self::loader::{LoadedCertificate, Loader, Origin};
use crate::background::Task;
use crate::certificate::{CertificateError, CertificateFiles};
use crate::config::GatewayConfig;
use crate::domains::Domains;
use crate::host::HostName;
use crate::metrics::Metrics;
use crate::registry::{ObtainedCertificate, ObtainedCertificates};
use crate::tenant::Directory;

pub use self::loader::ServedCertificate;

/// How often certificate files are checked.
#[derive(Clone, Copy, Debug)]
pub struct CheckIntervals {
    /// The minimum interval between comparisons of a served certificate with its files.
    ///
    /// Larger: a renewed certificate is served later if its folder is not watched. Smaller: busy hosts cause more
    /// disk access.
    pub compare: Duration,
    /// The minimum interval between attempts to read a certificate that can't be read.
    ///
    /// Larger: a repaired certificate is served later. Smaller: clients of a broken host cause more disk access.
    pub retry: Duration,
    /// The interval between inspections of all certificates.
    ///
    /// Larger: a fault or an expiry of a quiet host is reported later. Smaller: more files are checked in vain.
    pub inspect: Duration,
}

impl Default for CheckIntervals {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { compare: seconds(5), retry: seconds(1), inspect: seconds(600) }
    }
}

/// All certificates: the gateway's own and those of its tenants.
pub struct Certificates {
    directory: Arc<ArcSwap<Directory>>,
    /// None if no listener uses TLS, or if each host has its own.
    gateway: Arc<ArcSwapOption<LoadedCertificate>>,
    loader: Arc<Loader>,
    cache: Arc<Cache>,
    /// The domains that get a certificate of their own, if there are any.
    domains: OnceLock<Arc<Domains>>,
    /// Whether a host that no file covers gets a certificate of its own.
    are_obtained: bool,
    /// The faults that the last inspection found.
    faulty: ArcSwap<Vec<(Arc<str>, String)>>,
}

impl Certificates {
    /// Reads the gateway's certificate, if it has one, with blocking I/O. Certificates of tenants are read on
    /// demand.
    ///
    /// # Errors
    /// The gateway's certificate can't be read.
    pub fn open(
        gateway: &GatewayConfig,
        directory: Arc<ArcSwap<Directory>>,
        metrics: &Metrics,
        intervals: CheckIntervals,
        obtained: Option<Arc<ObtainedCertificates>>,
    ) -> Result<Self, CertificateError> {
        let loader = Arc::new(Loader::new(metrics.certificates.clone(), intervals, obtained));
        let held = gateway.certificate.as_ref().map(|files| loader.read(files, GATEWAY.into())).transpose()?;
        let cache = Arc::new(Cache::new(gateway.certificate_cache, Arc::clone(&loader)));
        Ok(Self {
            directory,
            gateway: Arc::new(ArcSwapOption::from_pointee(held)),
            loader,
            cache,
            domains: OnceLock::new(),
            are_obtained: gateway.acme.is_some(),
            faulty: ArcSwap::default(),
        })
    }

    /// The owners (tenants, or `gateway`) of the certificates that the last inspection found faulty, each with its
    /// fault. Without tenants that were removed since.
    #[must_use]
    pub fn faulty(&self) -> Vec<(Arc<str>, String)> {
        self.faulty.load().iter().filter(|(owner, _)| self.is_there(owner)).cloned().collect()
    }

    /// Has handshakes of authorities answered for these domains. The first call counts.
    pub fn answer_for(&self, domains: Arc<Domains>) {
        let _ = self.domains.set(domains);
    }

    /// How to answer an authority that verifies a name by a handshake.
    pub(super) async fn answer_authority(&self, name: &HostName) -> Option<Arc<ServerConfig>> {
        self.domains.get()?.tls_alpn_response(name).await
    }

    /// Whether the gateway's certificate covers a host.
    #[must_use]
    pub fn gateway_covers(&self, host: &HostName) -> bool {
        self.gateway.load().as_ref().is_some_and(|gateway| gateway.served().names.covers(host))
    }

    /// The certificate for the name in a ClientHello: the gateway's if there is no name, `None` if no tenant has
    /// the name.
    ///
    /// # Errors
    /// The tenant's certificate can't be read at present; the cause has been logged.
    pub async fn choose(
        &self,
        name: Option<&HostName>,
    ) -> Result<Option<Arc<ServedCertificate>>, Arc<CertificateError>> {
        let Some(name) = name else { return Ok(self.gateway()) };
        let Some(tenant) = self.directory.load().config_at(name).cloned() else { return Ok(None) };
        let chosen = match tenant.certificate(name) {
            Some((_, files)) => self.load(&tenant.slug, &Origin::Files(files.clone())).await.map(Some),
            None if self.gateway_covers(name) => Ok(self.gateway()),
            None => match self.obtained(name, &tenant.slug) {
                Some((_, origin)) => return self.load(&tenant.slug, &origin).await.map(Some),
                None => return Ok(self.gateway()),
            },
        };
        let now = Timestamp::now();
        let is_valid = |served: &Arc<ServedCertificate>| served.validity.check(now).is_ok();
        if chosen.as_ref().is_ok_and(|served| served.as_ref().is_some_and(is_valid)) {
            return chosen;
        }
        // Files win, but one that is out of date never replaces a valid certificate that was obtained.
        let obtained = self.obtained(name, &tenant.slug).filter(|(known, _)| known.is_valid(now));
        let Some((_, origin)) = obtained else { return chosen };
        self.load(&tenant.slug, &origin).await.map(Some).or(chosen)
    }

    async fn load(&self, slug: &Arc<str>, origin: &Origin) -> Result<Arc<ServedCertificate>, Arc<CertificateError>> {
        match self.cache.held(origin).await {
            Some(served) => Ok(served),
            None => self.cache.load(slug, origin).await,
        }
    }

    /// The certificate that was obtained for a host.
    fn obtained(&self, name: &HostName, slug: &Arc<str>) -> Option<(ObtainedCertificate, Origin)> {
        let known = self.loader.obtained.as_ref()?.find(name, slug)?;
        Some((known, Origin::Obtained(name.clone(), Arc::clone(slug))))
    }

    /// Reads a new certificate for the gateway with blocking I/O. Reads nothing if the certificate is already
    /// served, or if `files` is `None`: TLS listeners keep their certificate for as long as the process lives.
    ///
    /// # Errors
    /// The certificate can't be read.
    pub fn prepare(&self, files: Option<&CertificateFiles>) -> Result<PreparedCertificate, CertificateError> {
        let served = self.gateway.load();
        let other = files.filter(|files| served.as_ref().is_none_or(|served| served.files() != Some(*files)));
        let Some(files) = other else { return Ok(PreparedCertificate(None)) };
        self.loader.read(files, GATEWAY.into()).map(|held| PreparedCertificate(Some(Arc::new(held))))
    }

    /// Replaces the gateway's certificate. Open connections and sessions continue.
    pub fn replace(&self, prepared: PreparedCertificate) {
        if let Some(held) = prepared.0 {
            self.gateway.store(Some(held));
        }
    }

    /// The files of the gateway's certificate, if it has one.
    #[must_use]
    pub fn files_of_gateway(&self) -> Option<CertificateFiles> {
        self.gateway.load().as_ref().and_then(|held| held.files().cloned())
    }

    /// Compares all certificates in memory with their files, drops those that no tenant has any more, and triggers
    /// an inspection. Called after a reload or a change in a watched folder.
    pub async fn compare(&self) {
        self.loader.note_change();
        renew(&self.loader, &self.gateway).await;
        let directory = self.directory.load_full();
        self.cache.compare_all(|held| has(&directory, held)).await;
    }

    /// Drops those in memory that no tenant has any more.
    async fn drop_gone(&self) {
        let directory = self.directory.load_full();
        self.cache.keep(|held| has(&directory, held)).await;
    }

    /// Whether an owner of certificates is still there.
    fn is_there(&self, owner: &str) -> bool {
        owner == GATEWAY || self.directory.load().config(owner).is_some()
    }

    /// The background task that inspects all certificates.
    #[must_use]
    pub fn inspection(self: &Arc<Self>) -> impl Task {
        CertificateInspection::new(Arc::clone(self))
    }

    fn gateway(&self) -> Option<Arc<ServedCertificate>> {
        let held = self.gateway.load_full()?;
        if self.loader.is_due(&held) {
            let (loader, gateway) = (Arc::clone(&self.loader), Arc::clone(&self.gateway));
            tokio::spawn(async move { renew(&loader, &gateway).await });
        }
        Some(Arc::clone(held.served()))
    }
}

/// Whether a tenant still has a certificate.
fn has(directory: &Directory, held: &LoadedCertificate) -> bool {
    directory.config(held.owner()).is_some_and(|tenant| match held.origin() {
        Origin::Files(files) => tenant.certificates.iter().any(|(_, known)| known == files),
        Origin::Obtained(host, _) => tenant.hosts().any(|known| known == host),
    })
}

/// Replaces the gateway's certificate if its files were renewed, unless another one has replaced it meanwhile.
async fn renew(loader: &Arc<Loader>, gateway: &ArcSwapOption<LoadedCertificate>) {
    for before in loader.changed(gateway.load_full().into_iter().collect()).await {
        if let Some(renewed) = loader.renew(&before).await {
            gateway.compare_and_swap(&before, Some(Arc::new(renewed)));
        }
    }
}

/// The owner of the gateway's certificate in logs and metrics.
const GATEWAY: &str = "gateway";

/// A certificate of the gateway that was read but is not in place yet.
pub struct PreparedCertificate(Option<Arc<LoadedCertificate>>);

impl fmt::Debug for PreparedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedCertificate").field("is_other", &self.0.is_some()).finish()
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("cache", &self.cache).finish_non_exhaustive()
    }
}
