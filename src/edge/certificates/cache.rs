//! The certificates of tenants in memory: those that handshakes needed, up to a number of bytes.
//!
//! One task reads a certificate however many handshakes wait for it. A failure is remembered for a moment, so that
//! a broken host costs its own clients an error and other hosts nothing. A fault is logged only when it is new.

use std::fmt;
use std::mem;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures_util::FutureExt;
use moka::future::Cache as Moka;
use moka::ops::compute::Op;

use super::loader::{LoadedCertificate, Loader, Origin, ServedCertificate};
use crate::certificate::CertificateError;
use crate::store::with_causes;

/// How many broken certificates are remembered with their fault.
///
/// Larger: each takes a few hundred bytes. Smaller: a gateway with more broken certificates logs their faults
/// repeatedly.
const MAX_FAILURES: u64 = 10_000;

/// How many certificates are compared with their origins at a time.
///
/// Larger: requests lose a CPU for longer. Smaller: more switches between threads, each of which takes longer than
/// a comparison.
const COMPARE_BATCH: usize = 64;

/// The part of the comparison interval (one 50th) that a due certificate waits for others to be compared with it.
///
/// Larger: smaller batches, and more switches between threads. Smaller: a renewed certificate is served later.
const BATCH_DELAY_DIVISOR: u32 = 50;

pub(super) struct Cache {
    held: Moka<Origin, Arc<LoadedCertificate>>,
    /// The certificates due for comparison. None while no task compares.
    due: Mutex<Option<Vec<Arc<LoadedCertificate>>>>,
    failures: Moka<Origin, LoadFailure>,
    loader: Arc<Loader>,
}

#[derive(Clone)]
struct LoadFailure {
    at: Instant,
    error: Arc<CertificateError>,
}

impl Cache {
    pub(super) fn new(bytes: u64, loader: Arc<Loader>) -> Self {
        // moka evicts by frequency as well as age: a client that tries every name once evicts no certificate in
        // use.
        let held = Moka::builder().max_capacity(bytes).weigher(|_, held: &Arc<LoadedCertificate>| held.bytes()).build();
        Self { held, due: Mutex::default(), failures: Moka::new(MAX_FAILURES), loader }
    }

    /// A certificate that is in memory, without waiting. If a comparison with its origin is due, it runs in the
    /// background.
    pub(super) async fn held(self: &Arc<Self>, origin: &Origin) -> Option<Arc<ServedCertificate>> {
        let held = self.held.get(origin).await?;
        if self.loader.is_due(&held) {
            self.compare_soon(Arc::clone(&held));
        }
        Some(Arc::clone(held.served()))
    }

    /// Queues a certificate for comparison, and starts the task that compares unless it is running. There is only
    /// one such task, so that a folder that does not respond blocks one thread and not all of them.
    fn compare_soon(self: &Arc<Self>, held: Arc<LoadedCertificate>) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let is_begun = due.is_some();
        due.get_or_insert_default().push(held);
        if !is_begun {
            let cache = Arc::clone(self);
            tokio::spawn(async move { cache.compare_due().await });
        }
    }

    async fn compare_due(&self) {
        loop {
            tokio::time::sleep(self.loader.intervals.compare / BATCH_DELAY_DIVISOR).await;
            let some = {
                let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
                match due.as_mut().filter(|some| !some.is_empty()) {
                    Some(some) => mem::take(some),
                    None => {
                        *due = None;
                        return;
                    }
                }
            };
            // A panic must not end the comparing.
            let _ = AssertUnwindSafe(self.compare(&some)).catch_unwind().await;
        }
    }

    /// Reads a certificate, or waits for the task that reads it.
    pub(super) async fn load(
        &self,
        owner: &Arc<str>,
        origin: &Origin,
    ) -> Result<Arc<ServedCertificate>, Arc<CertificateError>> {
        let before = self.failures.get(origin).await;
        if let Some(failure) = before.as_ref().filter(|failure| failure.at.elapsed() < self.loader.intervals.retry) {
            return Err(Arc::clone(&failure.error));
        }
        let load = async {
            match self.loader.load(origin, owner, None).await {
                Ok(held) => {
                    if before.is_some() {
                        self.failures.invalidate(origin).await;
                        tracing::info!(tenant = &**owner, "the tenant's certificate is back");
                    }
                    Ok(Arc::new(held))
                }
                Err(error) => {
                    let (fault, error) = (with_causes(&error), Arc::new(error));
                    if before.as_ref().is_none_or(|before| with_causes(&*before.error) != fault) {
                        let remedy = error.remedy();
                        tracing::error!(tenant = &**owner, fault, remedy, "the tenant's certificate can't be served");
                    }
                    let failure = LoadFailure { at: Instant::now(), error: Arc::clone(&error) };
                    self.failures.insert(origin.clone(), failure).await;
                    Err(error)
                }
            }
        };
        let loaded = self.held.try_get_with_by_ref(origin, load).await;
        self.evict().await;
        loaded.map(|held| Arc::clone(held.served())).map_err(|error: Arc<Arc<CertificateError>>| (*error).clone())
    }

    /// Compares every certificate in memory with its origin, and drops those that no tenant has any more.
    pub(super) async fn compare_all(&self, has: impl Fn(&LoadedCertificate) -> bool) {
        let all = self.keep(has).await;
        self.compare(&all).await;
        self.evict().await;
    }

    /// Drops the certificates that no tenant has any more, and returns the others.
    pub(super) async fn keep(&self, has: impl Fn(&LoadedCertificate) -> bool) -> Vec<Arc<LoadedCertificate>> {
        let (kept, gone): (Vec<_>, Vec<_>) = self.held.iter().map(|(_, held)| held).partition(|held| has(held));
        for held in gone {
            self.held.invalidate(held.origin()).await;
        }
        kept
    }

    async fn compare(&self, all: &[Arc<LoadedCertificate>]) {
        for some in all.chunks(COMPARE_BATCH) {
            for held in self.loader.changed(some.to_vec()).await {
                if let Some(renewed) = self.loader.renew(&held).await {
                    self.replace(&held, Arc::new(renewed)).await;
                    self.evict().await;
                }
            }
        }
    }

    /// Replaces a certificate, unless another one has replaced it meanwhile: that one may be valid where `renewed`, which
    /// was compared with the one before it, is not. What differs from the files still is compared when it is due.
    async fn replace(&self, held: &Arc<LoadedCertificate>, renewed: Arc<LoadedCertificate>) {
        let entry = self.held.entry_by_ref(held.origin());
        let replace = |current: Option<moka::Entry<Origin, Arc<LoadedCertificate>>>| {
            let is_current = current.is_some_and(|current| Arc::ptr_eq(current.value(), held));
            std::future::ready(if is_current { Op::Put(renewed) } else { Op::Nop })
        };
        entry.and_compute_with(replace).await;
    }

    /// Evicts what exceeds the bound now and not at the next access, and updates the metrics.
    async fn evict(&self) {
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
