//! Which certificate a handshake serves.
//!
//! A tenant's host has a certificate of its own, one for all its hosts below a name, or the gateway's; a name that no
//! tenant has has none, and its handshake ends with an alert. The gateway's is always in memory. Those of tenants are read
//! when they are first asked for, by one task however many ask, and kept in a [cache] that is bounded in bytes. So
//! a name costs its entry in the tenants' directory until somebody connects to it, and a name of nobody costs a look-up.
//!
//! Files that were renewed are taken up by themselves: a certificate that is served is compared with its files from time
//! to time, off the handshake's path. The renewed pair takes its place once it is whole; until then the one before goes
//! on. [Inspection](inspection) looks at all certificates, served or not.

mod cache;
mod held;
mod inspection;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};

use self::cache::Cache;
use self::held::{Held, Loader};
use self::inspection::Inspection;
use crate::background::Task;
use crate::certificate::{CertificateError, CertificateFiles};
use crate::config::GatewayConfig;
use crate::host::HostName;
use crate::metrics::Metrics;
use crate::tenant::Directory;

pub use self::held::ServedCertificate;

/// How often files are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// A certificate that is served is compared with its files at most so often. Longer, and a renewed one is served
    /// later where its folder is not watched; shorter, and busy hosts cost a look at the disk more often.
    pub compare: Duration,
    /// A certificate that can't be read is tried at most so often. Longer, and a mended one is served later; shorter, and
    /// callers of a broken host cost the disk more.
    pub retry: Duration,
    /// All certificates are inspected so often. Longer, and a fault or an expiry of a quiet host is told later; shorter,
    /// and more files are looked at for nothing.
    pub inspect: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { compare: seconds(5), retry: seconds(1), inspect: seconds(600) }
    }
}

/// Every certificate of the gateway.
pub struct Certificates {
    directory: Arc<ArcSwap<Directory>>,
    /// None where nothing speaks TLS.
    gateway: Arc<ArcSwapOption<Held>>,
    loader: Arc<Loader>,
    cache: Arc<Cache>,
    /// What the last inspection found.
    faulty: ArcSwap<Vec<(Arc<str>, String)>>,
}

impl Certificates {
    /// Reads the gateway's certificate, if it has one, blocking on its files; those of tenants wait until they are asked for.
    ///
    /// # Errors
    /// The gateway's certificate can't be read.
    pub fn open(
        gateway: &GatewayConfig,
        directory: Arc<ArcSwap<Directory>>,
        metrics: &Metrics,
        pace: Pace,
    ) -> Result<Self, CertificateError> {
        let loader = Arc::new(Loader::new(metrics.certificates.clone(), pace));
        let held = gateway.certificate.as_ref().map(|files| loader.read(files, GATEWAY.into())).transpose()?;
        let cache = Arc::new(Cache::new(gateway.certificate_cache, Arc::clone(&loader)));
        Ok(Self {
            directory,
            gateway: Arc::new(ArcSwapOption::from_pointee(held)),
            loader,
            cache,
            faulty: ArcSwap::default(),
        })
    }

    /// The tenants, or `gateway`, whose certificates were faulty when they were last inspected, and what was wrong.
    #[must_use]
    pub fn faulty(&self) -> Vec<(Arc<str>, String)> {
        self.faulty.load().to_vec()
    }

    /// The certificate for the name in a ClientHello: the gateway's when there is none, nothing when no tenant has the
    /// name.
    ///
    /// # Errors
    /// The tenant's certificate can't be read now; it was logged.
    pub async fn choose(
        &self,
        name: Option<&HostName>,
    ) -> Result<Option<Arc<ServedCertificate>>, Arc<CertificateError>> {
        let Some(name) = name else { return Ok(self.gateway()) };
        let Some(tenant) = self.directory.load().config_at(name).cloned() else { return Ok(None) };
        let Some((_, files)) = tenant.certificate(name) else { return Ok(self.gateway()) };
        match self.cache.held(files).await {
            Some(served) => Ok(Some(served)),
            None => self.cache.load(&tenant.slug, files).await.map(Some),
        }
    }

    /// Reads another certificate for the gateway, blocking on its files, unless it is the one that is served already or
    /// there is to be none: as long as the process lives, what listens with TLS goes on.
    ///
    /// # Errors
    /// It can't be read.
    pub fn prepare(&self, files: Option<&CertificateFiles>) -> Result<Prepared, CertificateError> {
        let served = self.gateway.load();
        let other = files.filter(|files| served.as_ref().is_none_or(|served| served.files() != *files));
        let Some(files) = other else { return Ok(Prepared(None)) };
        self.loader.read(files, GATEWAY.into()).map(|held| Prepared(Some(Arc::new(held))))
    }

    /// Puts the gateway's certificate in place. Connections that were served another go on, and so do sessions.
    pub fn replace(&self, prepared: Prepared) {
        if let Some(held) = prepared.0 {
            self.gateway.store(Some(held));
        }
    }

    /// The files of the gateway's certificate, if it has one.
    #[must_use]
    pub fn files_of_gateway(&self) -> Option<CertificateFiles> {
        self.gateway.load().as_ref().map(|held| held.files().clone())
    }

    /// Compares all that is in memory with its files, lets go of what no tenant has any more, and has everything
    /// inspected: something changed.
    pub async fn compare(&self) {
        self.loader.note_change();
        renew(&self.loader, &self.gateway).await;
        let directory = self.directory.load_full();
        let has = |held: &Held| {
            let tenant = directory.config(held.owner());
            tenant.is_some_and(|tenant| tenant.certificates.iter().any(|(_, files)| files == held.files()))
        };
        self.cache.compare_all(has).await;
    }

    /// The background task that inspects all certificates.
    #[must_use]
    pub fn inspection(self: &Arc<Self>) -> impl Task {
        Inspection::new(Arc::clone(self))
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

/// Takes up the gateway's certificate if it was renewed, unless it was replaced meanwhile.
async fn renew(loader: &Arc<Loader>, gateway: &ArcSwapOption<Held>) {
    for before in held::changed(gateway.load_full().into_iter().collect()).await {
        if let Some(renewed) = loader.renew(&before).await {
            gateway.compare_and_swap(&before, Some(Arc::new(renewed)));
        }
    }
}

/// What logs and metrics call the owner of the gateway's certificate.
const GATEWAY: &str = "gateway";

/// A certificate of the gateway that was read and is not in place yet.
pub struct Prepared(Option<Arc<Held>>);

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("is_other", &self.0.is_some()).finish()
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("cache", &self.cache).finish_non_exhaustive()
    }
}
