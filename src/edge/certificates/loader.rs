//! One certificate in memory, and how it is read.
//!
//! Owns reading certificates for handshakes, from files and from the registry, off the worker threads, and the `ServerConfig` of each
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
use crate::host::{CertificateNames, HostName};
use crate::metrics::CertificateMetrics;
use crate::registry::ObtainedCertificates;
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
    /// When it is valid.
    pub validity: Validity,
}

/// Where a certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// Two files.
    Files(CertificateFiles),
    /// It was obtained for a host of a tenant.
    Obtained(HostName, Arc<str>),
}

/// Which version of a certificate it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Files(FilesStamp),
    Obtained(u64),
}

/// A certificate in memory, and what is known of its origin.
#[derive(Debug)]
pub(super) struct LoadedCertificate {
    served: Arc<ServedCertificate>,
    origin: Origin,
    /// The slug of the tenant that owns it, or `gateway`.
    owner: Arc<str>,
    version: Version,
    bytes: u32,
    /// When it was last compared with its origin, in milliseconds since the loader was created.
    compared: AtomicU64,
    /// The last fault of files that should have replaced it.
    fault: Mutex<Option<String>>,
}

impl LoadedCertificate {
    pub(super) fn served(&self) -> &Arc<ServedCertificate> {
        &self.served
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Its files, unless it was obtained.
    pub(super) fn files(&self) -> Option<&CertificateFiles> {
        match &self.origin {
            Origin::Files(files) => Some(files),
            Origin::Obtained(..) => None,
        }
    }

    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    pub(super) fn validity(&self) -> Validity {
        self.served.validity
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
    /// Those of the registry, if there is one.
    pub(super) obtained: Option<Arc<ObtainedCertificates>>,
    /// Notified when a certificate was renewed, or when its files hold one that can't be served.
    pub(super) changed: Notify,
}

impl Loader {
    pub(super) fn new(
        metrics: CertificateMetrics,
        intervals: CheckIntervals,
        obtained: Option<Arc<ObtainedCertificates>>,
    ) -> Self {
        Self {
            provider: Arc::new(aws_lc_rs::default_provider()),
            ticketer: Ticketer::new().expect("the system gives random bytes"),
            permits: Semaphore::new(MAX_CONCURRENT_READS),
            since: Instant::now(),
            intervals,
            metrics,
            obtained,
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
        Ok(self.loaded(certificate, Origin::Files(files.clone()), owner, Version::Files(stamp)))
    }

    fn loaded(&self, certificate: Certificate, origin: Origin, owner: Arc<str>, version: Version) -> LoadedCertificate {
        let chain: usize = certificate.key.cert.iter().map(|certificate| certificate.len()).sum();
        let origin_bytes = match &origin {
            Origin::Files(files) => 2 * (files.certificate.as_os_str().len() + files.private_key.as_os_str().len()),
            Origin::Obtained(host, _) => 2 * host.as_str().len(),
        };
        LoadedCertificate {
            bytes: u32::try_from(chain + origin_bytes + OVERHEAD).unwrap_or(u32::MAX),
            served: self.ready(certificate),
            origin,
            owner,
            version,
            compared: AtomicU64::new(self.now()),
            fault: Mutex::default(),
        }
    }

    /// Reads a certificate, off the threads that serve requests, and counts the read. One that is out of date never
    /// replaces a valid one.
    pub(super) async fn load(
        self: &Arc<Self>,
        origin: &Origin,
        owner: &Arc<str>,
        before: Option<Validity>,
    ) -> Result<LoadedCertificate, CertificateError> {
        let _permit = self.permits.acquire().await.expect("the permits are never closed");
        let read = match origin {
            Origin::Files(files) => self.load_files(files, owner, before).await,
            Origin::Obtained(host, slug) => self.load_obtained(host, slug, before).await,
        };
        self.metrics.loads.with_label_values(&[if read.is_ok() { "done" } else { "failed" }]).inc();
        read
    }

    async fn load_files(
        self: &Arc<Self>,
        files: &CertificateFiles,
        owner: &Arc<str>,
        before: Option<Validity>,
    ) -> Result<LoadedCertificate, CertificateError> {
        let (loader, files, owner) = (Arc::clone(self), files.clone(), Arc::clone(owner));
        let read = run_blocking(move || {
            let held = loader.read(&files, owner)?;
            let now = Timestamp::now();
            if before.is_some_and(|before| before.check(now).is_ok()) {
                certificate::check_date(held.validity(), &files, now)?;
            }
            Ok(held)
        });
        read.await
    }

    async fn load_obtained(
        &self,
        host: &HostName,
        slug: &Arc<str>,
        before: Option<Validity>,
    ) -> Result<LoadedCertificate, CertificateError> {
        let failed = |cause: String| CertificateError::Obtained { host: host.to_string(), cause };
        let known = self.obtained.as_ref().and_then(|obtained| Some((obtained, obtained.find(host, slug)?)));
        let (obtained, known) = known.ok_or_else(|| failed("it is gone".to_owned()))?;
        let pair = obtained.read(host.as_str(), &known).await.map_err(|error| failed(with_causes(&error)))?;
        let certificate = certificate::pair_of_text(host, &pair.chain, &pair.key)?;
        let now = Timestamp::now();
        if before.is_some_and(|before| before.check(now).is_ok()) {
            certificate.validity.check(now).map_err(|out_of_date| failed(out_of_date.to_string()))?;
        }
        let origin = Origin::Obtained(host.clone(), Arc::clone(slug));
        Ok(self.loaded(certificate, origin, Arc::clone(slug), Version::Obtained(known.id)))
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
        match self.load(&held.origin, &held.owner, Some(held.validity())).await {
            Ok(renewed) => {
                match &held.origin {
                    Origin::Files(files) => {
                        tracing::info!(tenant, file = %files.certificate.display(), "a renewed certificate is served");
                    }
                    Origin::Obtained(host, _) => tracing::info!(tenant, %host, "a renewed certificate is served"),
                }
                self.note_change();
                Some(renewed)
            }
            Err(error) => {
                let fault = with_causes(&error);
                if fault_of(held).replace(fault.clone()).is_none_or(|before| before != fault) {
                    let message = "invalid renewed certificate ignored; the previous one stays in effect";
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
        Arc::new(ServedCertificate { tls: Arc::new(tls), names: certificate.names, validity: certificate.validity })
    }
}

impl Loader {
    /// The certificates that have another version than the one that was read. A certificate that is gone is served on: its
    /// host is no longer the tenant's, or will be without one after the cache.
    pub(super) async fn changed(
        self: &Arc<Self>,
        mut some: Vec<Arc<LoadedCertificate>>,
    ) -> Vec<Arc<LoadedCertificate>> {
        let loader = Arc::clone(self);
        let compare = move || {
            some.retain(|held| {
                let is_changed = match &held.origin {
                    Origin::Files(files) => Version::Files(files.stamp()) != held.version,
                    Origin::Obtained(host, slug) => {
                        let known = loader.obtained.as_ref().and_then(|obtained| obtained.find(host, slug));
                        known.is_some_and(|known| Version::Obtained(known.id) != held.version)
                    }
                };
                if !is_changed {
                    *fault_of(held) = None;
                }
                is_changed
            });
            some
        };
        run_blocking(compare).await
    }
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
