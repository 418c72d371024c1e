//! The certificates of tenants that are in memory: those that were asked for, up to a number of bytes.
//!
//! One task reads a certificate however many handshakes wait for it. What could not be read is remembered for a moment,
//! so that a broken host costs its callers an answer and nobody else anything; the fault is logged when it is new.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use moka::future::Cache as Moka;

use super::held::{Held, Loader, ServedCertificate, told};
use crate::tenant::certificate::{CertificateError, CertificateFiles};

/// Of how many broken certificates it is remembered what was wrong. With fewer, a gateway with more of them logs their
/// faults again and again; each takes some hundred bytes.
const FAILURES: u64 = 10_000;

pub(super) struct Cache {
    held: Moka<CertificateFiles, Arc<Held>>,
    failures: Moka<CertificateFiles, Failure>,
    loader: Arc<Loader>,
}

#[derive(Clone)]
struct Failure {
    at: Instant,
    error: Arc<CertificateError>,
}

impl Cache {
    pub(super) fn new(bytes: u64, loader: Arc<Loader>) -> Self {
        // By frequency as well as age, which is moka's way: a caller who tries every name once evicts nobody's.
        let held = Moka::builder().max_capacity(bytes).weigher(|_, held: &Arc<Held>| held.bytes()).build();
        Self { held, failures: Moka::new(FAILURES), loader }
    }

    /// A certificate that is in memory, without waiting. Its files are compared behind the handshake when it is time.
    pub(super) async fn held(self: &Arc<Self>, files: &CertificateFiles) -> Option<Arc<ServedCertificate>> {
        let held = self.held.get(files).await?;
        if self.loader.is_due(&held) {
            let (cache, held) = (Arc::clone(self), Arc::clone(&held));
            tokio::spawn(async move { cache.compare(&held).await });
        }
        Some(Arc::clone(held.served()))
    }

    /// Reads a certificate, or waits for the task that does.
    pub(super) async fn load(
        &self,
        owner: &Arc<str>,
        files: &CertificateFiles,
    ) -> Result<Arc<ServedCertificate>, Arc<CertificateError>> {
        let before = self.failures.get(files).await;
        if let Some(failure) = before.as_ref().filter(|failure| failure.at.elapsed() < self.loader.pace.retry) {
            return Err(Arc::clone(&failure.error));
        }
        let load = async {
            match self.loader.load(files, owner).await {
                Ok(held) => {
                    if before.is_some() {
                        self.failures.invalidate(files).await;
                        tracing::info!(tenant = &**owner, "the tenant's certificate is back");
                    }
                    Ok(Arc::new(held))
                }
                Err(error) => {
                    let (fault, error) = (told(&error), Arc::new(error));
                    if before.as_ref().is_none_or(|before| told(&before.error) != fault) {
                        tracing::error!(tenant = &**owner, fault, "the tenant's certificate can't be served");
                    }
                    let failure = Failure { at: Instant::now(), error: Arc::clone(&error) };
                    self.failures.insert(files.clone(), failure).await;
                    Err(error)
                }
            }
        };
        let loaded = self.held.try_get_with_by_ref(files, load).await;
        self.settle().await;
        loaded.map(|held| Arc::clone(held.served())).map_err(|error: Arc<Arc<CertificateError>>| (*error).clone())
    }

    /// Compares every certificate in memory with its files, and lets go of those that nobody has any more.
    pub(super) async fn compare_all(&self, has: impl Fn(&Held) -> bool) {
        let all: Vec<_> = self.held.iter().map(|(_, held)| held).collect();
        for held in all {
            if has(&held) {
                self.compare(&held).await;
            } else {
                self.held.invalidate(held.files()).await;
            }
        }
        self.settle().await;
    }

    async fn compare(&self, held: &Held) {
        if let Some(renewed) = self.loader.renew(held).await {
            self.held.insert(held.files().clone(), Arc::new(renewed)).await;
            self.settle().await;
        }
    }

    /// Evicts what is too much, now and not when somebody next asks, and tells what is left.
    async fn settle(&self) {
        self.held.run_pending_tasks().await;
        let metrics = &self.loader.metrics;
        metrics.cached.set(i64::try_from(self.held.entry_count()).unwrap_or(i64::MAX));
        metrics.cache_bytes.set(i64::try_from(self.held.weighted_size()).unwrap_or(i64::MAX));
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("held", &self.held.entry_count()).finish_non_exhaustive()
    }
}
