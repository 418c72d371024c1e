//! One certificate in memory, and how it is read.
//!
//! Owns reading certificate files for handshakes, off the worker threads, and the `ServerConfig` of each
//! certificate. The certificate is chosen before rustls begins the handshake, because the choice may wait for a
//! disk and a rustls resolver can't. All certificates share one key for session tickets, so that a session can be
//! resumed whichever of them issued its ticket; rustls itself refuses a ticket of another name.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, Ticketer};
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::sign::SingleCertAndKey;
use tokio::sync::{Notify, Semaphore};

use super::CheckIntervals;
use crate::certificate::{self, Certificate, CertificateError, CertificateFiles, FilesStamp, Validity};
use crate::host::CertificateNames;
use crate::metrics::CertificateMetrics;
use crate::store::with_causes;

/// How many pairs of files are read at once.
///
/// Larger: a rush of first handshakes takes threads and CPU from requests. Smaller: folders that respond slowly
/// delay the certificates of others.
const MAX_CONCURRENT_READS: usize = 32;

/// The memory of a certificate apart from its chain and paths: the key as rustls holds it, the `ServerConfig`, and
/// the cache entry. A process was measured to grow by 3 to 4 KiB per certificate (`benches/tenants`), chain
/// included, with elliptic-curve keys; RSA keys take more.
///
/// Larger: the cache holds less than it could. Smaller: it grows past its bound.
const OVERHEAD: usize = 4 * 1024;

/// A certificate, ready for handshakes.
#[derive(Debug)]
pub struct ServedCertificate {
    /// HTTP/2 and HTTP/1.1 by ALPN, TLS 1.2 and 1.3, only this certificate.
    pub tls: Arc<ServerConfig>,
    /// The names that the certificate covers.
    pub names: Arc<CertificateNames>,
}

/// A certificate in memory, and what is known of its files.
#[derive(Debug)]
pub(super) struct LoadedCertificate {
    served: Arc<ServedCertificate>,
    files: CertificateFiles,
    /// The slug of the tenant that owns it, or `gateway`.
    owner: Arc<str>,
    stamp: FilesStamp,
    validity: Validity,
    bytes: u32,
    /// When it was last compared with its files, in milliseconds since the loader was created.
    compared: AtomicU64,
    /// The last fault of files that should have replaced it.
    fault: Mutex<Option<String>>,
}

impl LoadedCertificate {
    pub(super) fn served(&self) -> &Arc<ServedCertificate> {
        &self.served
    }

    pub(super) fn files(&self) -> &CertificateFiles {
        &self.files
    }

    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    pub(super) fn validity(&self) -> Validity {
        self.validity
    }

    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }
}

/// Reads certificates and prepares them for handshakes.
pub(super) struct Loader {
    provider: Arc<CryptoProvider>,
    ticketer: Arc<dyn ProducesTickets>,
    permits: Semaphore,
    since: Instant,
    pub(super) intervals: CheckIntervals,
    pub(super) metrics: CertificateMetrics,
    /// Notified when a certificate was renewed, or when its files hold one that can't be served.
    pub(super) changed: Notify,
}

impl Loader {
    pub(super) fn new(metrics: CertificateMetrics, intervals: CheckIntervals) -> Self {
        Self {
            provider: Arc::new(aws_lc_rs::default_provider()),
            ticketer: Ticketer::new().expect("the system gives random bytes"),
            permits: Semaphore::new(MAX_CONCURRENT_READS),
            since: Instant::now(),
            intervals,
            metrics,
            changed: Notify::new(),
        }
    }

    /// Reads a pair of files with blocking I/O.
    pub(super) fn read(
        &self,
        files: &CertificateFiles,
        owner: Arc<str>,
    ) -> Result<LoadedCertificate, CertificateError> {
        // Taken before the files are read: files that are written meanwhile get another stamp and are read again.
        let stamp = files.stamp();
        let certificate = certificate::read(files)?;
        let chain: usize = certificate.key.cert.iter().map(|certificate| certificate.len()).sum();
        let paths = files.certificate.as_os_str().len() + files.private_key.as_os_str().len();
        Ok(LoadedCertificate {
            bytes: u32::try_from(chain + 2 * paths + OVERHEAD).unwrap_or(u32::MAX),
            validity: certificate.validity,
            served: self.ready(certificate),
            files: files.clone(),
            owner,
            stamp,
            compared: AtomicU64::new(self.now()),
            fault: Mutex::default(),
        })
    }

    /// Reads a pair of files on a blocking thread, and counts the read. A certificate that is out of date never
    /// replaces a valid one.
    pub(super) async fn load(
        self: &Arc<Self>,
        files: &CertificateFiles,
        owner: &Arc<str>,
        before: Option<Validity>,
    ) -> Result<LoadedCertificate, CertificateError> {
        let _permit = self.permits.acquire().await.expect("the permits are never closed");
        let (loader, files, owner) = (Arc::clone(self), files.clone(), Arc::clone(owner));
        let read = run_blocking(move || {
            let held = loader.read(&files, owner)?;
            let now = Timestamp::now();
            if before.is_some_and(|before| before.check(now).is_ok()) {
                certificate::check_date(held.validity, &files, now)?;
            }
            Ok(held)
        });
        let read = read.await;
        self.metrics.loads.with_label_values(&[if read.is_ok() { "done" } else { "failed" }]).inc();
        read
    }

    /// Whether a comparison of a certificate with its files is due. Only the first caller gets `true`.
    pub(super) fn is_due(&self, held: &LoadedCertificate) -> bool {
        let (now, last) = (self.now(), held.compared.load(Ordering::Relaxed));
        let intervals = u64::try_from(self.intervals.compare.as_millis()).unwrap_or(u64::MAX);
        now.saturating_sub(last) >= intervals
            && held.compared.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Reads the replacement of a certificate whose files [changed](changed), if they are sound. A pair that is
    /// broken, out of date or only half written is logged once and tried again later.
    pub(super) async fn renew(self: &Arc<Self>, held: &LoadedCertificate) -> Option<LoadedCertificate> {
        let tenant = &*held.owner;
        match self.load(&held.files, &held.owner, Some(held.validity)).await {
            Ok(renewed) => {
                tracing::info!(tenant, file = %held.files.certificate.display(), "a renewed certificate is served");
                self.note_change();
                Some(renewed)
            }
            Err(error) => {
                let fault = with_causes(&error);
                if fault_of(held).replace(fault.clone()).is_none_or(|before| before != fault) {
                    let message = "a renewed certificate can't be served; the one before it goes on";
                    tracing::error!(tenant, fault, remedy = error.remedy(), "{message}");
                    self.note_change();
                }
                None
            }
        }
    }

    pub(super) fn note_change(&self) {
        self.changed.notify_one();
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn ready(&self, certificate: Certificate) -> Arc<ServedCertificate> {
        let mut tls = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .expect("aws-lc-rs has cipher suites for TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate.key)));
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Sessions live only in the clients' tickets: a session store per certificate would grow with the number
        // of tenants.
        tls.ticketer = Arc::clone(&self.ticketer);
        tls.session_storage = Arc::new(NoServerSessionStorage {});
        Arc::new(ServedCertificate { tls: Arc::new(tls), names: certificate.names })
    }
}

/// The certificates whose files have changed since they were read.
pub(super) async fn changed(mut some: Vec<Arc<LoadedCertificate>>) -> Vec<Arc<LoadedCertificate>> {
    let compare = move || {
        some.retain(|held| {
            let is_changed = held.files.stamp() != held.stamp;
            if !is_changed {
                *fault_of(held) = None;
            }
            is_changed
        });
        some
    };
    run_blocking(compare).await
}

fn fault_of(held: &LoadedCertificate) -> std::sync::MutexGuard<'_, Option<String>> {
    held.fault.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs blocking work on a thread that serves no requests.
pub(super) async fn run_blocking<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // Work that has not begun is cancelled only when the runtime shuts down.
            Err(_) => std::future::pending().await,
        },
    }
}
