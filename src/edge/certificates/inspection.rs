//! Inspects all certificates in the background: which are faulty, and which expire next.
//!
//! The gateway starts without reading the certificates of its tenants, and keeps serving its own when its files
//! are replaced by a faulty pair. The inspection finds such faults before clients do. One thread works for a
//! quarter of the time. A sound pair of files is read again only when its stamp changes, so every round but the
//! first only reads stamps from the disk.

use std::collections::{BinaryHeap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::loader::run_blocking;
use super::{Certificates, GATEWAY};
use crate::background::{Run, Task};
use crate::certificate::{self, CertificateFiles, Validity};
use crate::config::TenantConfig;
use crate::host::{CertificateNames, HostName};
use crate::metrics::CertificateMetrics;
use crate::store::with_causes;

/// How many tenants are inspected at once. The thread then rests for three times as long as they took.
///
/// Larger: requests lose the CPU for longer at a time. Smaller: more switches between threads.
const BATCH: usize = 16;

/// For how many of the certificates that expire soonest the expiry is published.
///
/// Larger: more metric series. Smaller: an operator sees fewer of the expiries ahead.
const SOONEST: usize = 10;

/// How many new faults of one round are logged individually.
///
/// Larger: a lost folder of certificates floods the log. Smaller: the log names fewer of the faulty certificates.
const LOGGED: usize = 10;

/// The background task that inspects all certificates.
pub(super) struct CertificateInspection {
    certificates: Arc<Certificates>,
    previous: PreviousRound,
    /// The owners of certificates whose expiry is published.
    published: HashSet<Arc<str>>,
}

impl CertificateInspection {
    pub(super) fn new(certificates: Arc<Certificates>) -> Self {
        Self { certificates, previous: PreviousRound::default(), published: HashSet::new() }
    }
}

impl Task for CertificateInspection {
    const NAME: &'static str = "certificates";

    fn interval(&self) -> Duration {
        self.certificates.loader.intervals.inspect
    }

    async fn woken(&mut self) {
        let loader = &self.certificates.loader;
        let forgotten = async {
            match &loader.obtained {
                Some(obtained) => obtained.forgotten().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = loader.changed.notified() => {}
            () = forgotten => {}
        }
    }

    async fn run(&mut self) -> Run {
        self.certificates.drop_gone().await;
        let (round, previous) = inspect(&self.certificates, std::mem::take(&mut self.previous)).await;
        publish(&round.soonest, &mut self.published, &self.certificates.loader.metrics);
        // A tenant that was removed during the round, and whose series was removed then.
        self.published.retain(|owner| {
            let is_there = self.certificates.is_there(owner);
            if !is_there {
                let _ = self.certificates.loader.metrics.expiry.remove_label_values(&[&**owner]);
            }
            is_there
        });
        log(&round.faults, &previous.faults);
        self.certificates.faulty.store(Arc::new(round.faults.clone()));
        self.previous =
            PreviousRound { keys: previous.keys, sound: round.sound, faults: round.faults.into_iter().collect() };
        Run::Succeeded
    }
}

/// What the previous round found.
#[derive(Default)]
struct PreviousRound {
    keys: RandomState,
    /// The stamp and validity of each sound pair of files, by a hash of what it has to be sound for. Stored as
    /// numbers, because there is one per tenant.
    sound: HashMap<u64, (u64, Validity)>,
    faults: HashSet<(Arc<str>, String)>,
}

#[derive(Default)]
struct Round {
    sound: HashMap<u64, (u64, Validity)>,
    faults: Vec<(Arc<str>, String)>,
    /// A max-heap: the latest of the soonest is on top.
    soonest: BinaryHeap<(i64, Arc<str>)>,
}

async fn inspect(certificates: &Certificates, mut previous: PreviousRound) -> (Round, PreviousRound) {
    let (gateway, obtained) = (certificates.gateway.load_full(), certificates.loader.obtained.clone());
    // If no listener uses TLS, no certificate is used.
    if gateway.is_none() && obtained.is_none() {
        return (Round::default(), previous);
    }
    let tenants: Vec<_> = certificates.directory.load().configs().map(Arc::clone).collect();
    let mut round = Round::default();
    for (_, certificate) in obtained.iter().flat_map(|obtained| obtained.all()) {
        round.note_expiry(certificate.slug, certificate.not_after.as_second());
    }
    if let Some((gateway, files)) = gateway.as_ref().and_then(|gateway| Some((gateway, gateway.files()?.clone()))) {
        round.note_expiry(GATEWAY.into(), gateway.validity().until);
        let done = run_blocking(move || {
            round.inspect_files(&GATEWAY.into(), &files, &[], &previous);
            (round, previous)
        });
        (round, previous) = done.await;
    }
    // A host that gets a certificate of its own is reported with its domain.
    let names = gateway.filter(|_| !certificates.are_obtained).map(|gateway| Arc::clone(&gateway.served().names));
    for some in tenants.chunks(BATCH) {
        let (some, names) = (some.to_vec(), names.clone());
        let began = Instant::now();
        let done = run_blocking(move || {
            some.iter().for_each(|tenant| round.inspect(tenant, names.as_deref(), &previous));
            (round, previous)
        });
        (round, previous) = done.await;
        tokio::time::sleep(3 * began.elapsed()).await;
    }
    (round, previous)
}

impl Round {
    fn inspect(&mut self, tenant: &TenantConfig, gateway: Option<&CertificateNames>, previous: &PreviousRound) {
        let mut soonest = None;
        for (pattern, files) in &tenant.certificates {
            let is_for = |host: &&HostName| tenant.certificate(host).is_some_and(|(chosen, _)| chosen == pattern);
            let hosts: Vec<_> = tenant.hosts().filter(is_for).collect();
            let Some(Validity { until, .. }) = self.inspect_files(&tenant.slug, files, &hosts, previous) else {
                continue;
            };
            soonest = Some(soonest.map_or(until, |soonest: i64| soonest.min(until)));
        }
        let is_bare = |host: &&HostName| {
            tenant.certificate(host).is_none() && gateway.is_some_and(|gateway| !gateway.covers(host))
        };
        for host in tenant.hosts().filter(is_bare) {
            self.faults.push((Arc::clone(&tenant.slug), format!("no certificate covers `{host}`")));
        }
        if let Some(expires) = soonest {
            self.note_expiry(Arc::clone(&tenant.slug), expires);
        }
    }

    /// The validity of the certificate in a pair of files, if it is sound for its hosts. Records what is wrong
    /// with it, or that it is out of date.
    fn inspect_files(
        &mut self,
        owner: &Arc<str>,
        files: &CertificateFiles,
        hosts: &[&HostName],
        previous: &PreviousRound,
    ) -> Option<Validity> {
        let key = previous.keys.hash_one((owner, files, hosts));
        let stamp = previous.keys.hash_one(files.stamp());
        let checked = match previous.sound.get(&key) {
            Some((before, validity)) if *before == stamp => Ok(*validity),
            _ => check_files(files, hosts),
        };
        let in_date = |validity| certificate::check_date(validity, files, Timestamp::now());
        let fault = match &checked {
            Ok(validity) => in_date(*validity).err().map(|error| with_causes(&error)),
            Err(fault) => Some(fault.clone()),
        };
        self.faults.extend(fault.map(|fault| (Arc::clone(owner), fault)));
        let validity = checked.ok()?;
        self.sound.insert(key, (stamp, validity));
        Some(validity)
    }

    fn note_expiry(&mut self, owner: Arc<str>, expires: i64) {
        self.soonest.push((expires, owner));
        if self.soonest.len() > SOONEST {
            self.soonest.pop();
        }
    }
}

/// The validity of the certificate in a pair of files if it is sound for its hosts, otherwise what is wrong with
/// it.
fn check_files(files: &CertificateFiles, hosts: &[&HostName]) -> Result<Validity, String> {
    let certificate = certificate::read(files).map_err(|error| with_causes(&error))?;
    match hosts.iter().find(|host| !certificate.names.covers(host)) {
        Some(host) => Err(format!("the certificate `{}` does not cover `{host}`", files.certificate.display())),
        None => Ok(certificate.validity),
    }
}

/// Publishes the expiry of the certificates that expire soonest, and of no others. A series that stays is not
/// removed in between, so that no scrape misses it.
fn publish(soonest: &BinaryHeap<(i64, Arc<str>)>, published: &mut HashSet<Arc<str>>, metrics: &CertificateMetrics) {
    for (expires, owner) in soonest {
        metrics.expiry.with_label_values(&[&**owner]).set(*expires);
    }
    let now: HashSet<Arc<str>> = soonest.iter().map(|(_, owner)| Arc::clone(owner)).collect();
    for gone in published.difference(&now) {
        // Unless its tenant was removed meanwhile, it exists.
        let _ = metrics.expiry.remove_label_values(&[&**gone]);
    }
    *published = now;
}

/// Logs the faults that are new.
fn log(faults: &[(Arc<str>, String)], before: &HashSet<(Arc<str>, String)>) {
    let new: Vec<_> = faults.iter().filter(|fault| !before.contains(*fault)).collect();
    for (tenant, fault) in new.iter().take(LOGGED) {
        tracing::error!(tenant = &**tenant, fault, "a certificate is faulty or missing");
    }
    if new.len() > LOGGED {
        let faults = new.len() - LOGGED;
        tracing::error!(faults, "more certificates are faulty; `formgate check` lists all");
    }
}
