//! The certificates that were obtained for domains, as this node knows them.
//!
//! An index has one small entry for each host, so a handshake for a host without a certificate costs one look-up. Chains
//! and keys are read when a handshake needs them: from the snapshot, which has every certificate that this node has seen,
//! or else from the registry. So what is served outlives the registry and a restart.
//!
//! A certificate that is valid is never replaced by one that is not, nor by one of an earlier state of the registry that
//! ends sooner, wherever either comes from.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, OnceCell};

use super::loading::open;
use crate::config::RegistryConfig;
use crate::host::HostName;
use crate::seal::{Seals, Unopened};
use crate::store::registry::{CertificateRecord, StoredPair};
use crate::store::{Registry, StoreError};

/// The certificates of the registry.
#[derive(Debug)]
pub struct ObtainedCertificates {
    index: RwLock<HashMap<Box<str>, ObtainedCertificate>>,
    /// The hosts whose certificates are sealed with a key that is not configured.
    unopened: RwLock<BTreeMap<Box<str>, UnopenedCertificate>>,
    config: RegistryConfig,
    /// Opened at the first handshake that needs it.
    snapshot: OnceCell<Registry>,
    registry: OnceCell<Registry>,
    seals: Seals,
    /// Certificates of erased tenants were dropped.
    forgotten: Notify,
}

/// A certificate, without its chain and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObtainedCertificate {
    /// The tenant that it is served for.
    pub slug: Arc<str>,
    /// A digest of its chain and its sealed key: another one after each renewal.
    pub id: u64,
    /// From when on it is valid.
    pub not_before: Timestamp,
    /// Until when it is valid.
    pub not_after: Timestamp,
}

impl ObtainedCertificate {
    fn of(row: &CertificateRecord, pair: &StoredPair) -> Self {
        let CertificateRecord { not_before, not_after, .. } = *row;
        Self { slug: row.slug.as_str().into(), id: id_of(pair), not_before, not_after }
    }

    /// Whether it is valid at an instant.
    #[must_use]
    pub fn is_valid(&self, now: Timestamp) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }

    /// Whether another one of the registry takes its place. One of another tenant always does: the registry decides whose a
    /// host is.
    fn gives_way_to(&self, other: &Self, from: ReadFrom, now: Timestamp) -> bool {
        let is_better = other.is_valid(now) && (from == ReadFrom::Increment || other.not_after >= self.not_after);
        self.slug != other.slug || !self.is_valid(now) || is_better
    }
}

fn id_of(pair: &StoredPair) -> u64 {
    let digest = Sha256::new().chain_update(&pair.chain).chain_update([0]).chain_update(&pair.key).finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

/// Which certificates of the registry are taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFrom {
    /// The certificates that were stored since then. A missing one was removed.
    Increment,
    /// Any of them, which may be older than the known ones.
    Whole,
}

/// A certificate that can't be served, because its key is sealed with a key that is not configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnopenedCertificate {
    /// The tenant that it would be served for.
    pub slug: Arc<str>,
    /// The id of the key that is missing.
    pub missing: Arc<str>,
}

/// The keys that a node needs to follow a registry.
#[derive(Clone, Copy, Debug)]
pub struct RegistrySeals<'s> {
    /// Seal the texts of tenants in the snapshot, and open them.
    pub texts: &'s Seals,
    /// Open the keys of certificates.
    pub certificates: &'s Seals,
}

/// A chain and its key in PEM.
pub struct OpenedPair {
    /// The chain, leaf first.
    pub chain: String,
    /// The key.
    pub key: String,
}

/// Why a certificate that was obtained can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ObtainedError {
    /// Neither the snapshot nor the registry has it.
    #[error("neither the snapshot nor the registry has it")]
    Missing,
    /// Its key does not open.
    #[error(transparent)]
    Unopened(#[from] Unopened),
    /// The registry can't be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ObtainedCertificates {
    /// Knows none yet. `seals` opens their keys.
    #[must_use]
    pub fn new(config: &RegistryConfig, seals: &Seals) -> Self {
        Self {
            index: RwLock::default(),
            unopened: RwLock::default(),
            config: config.clone(),
            snapshot: OnceCell::new(),
            registry: OnceCell::new(),
            seals: seals.clone(),
            forgotten: Notify::new(),
        }
    }

    /// Waits until tenants were erased.
    pub async fn forgotten(&self) {
        self.forgotten.notified().await;
    }

    /// What is known of a host's certificate, if it is one of this tenant.
    #[must_use]
    pub fn find(&self, host: &HostName, slug: &str) -> Option<ObtainedCertificate> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        index.get(host.as_str()).filter(|known| *known.slug == *slug).cloned()
    }

    /// Every host with a certificate.
    #[must_use]
    pub fn all(&self) -> Vec<(Box<str>, ObtainedCertificate)> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        index.iter().map(|(host, known)| (host.clone(), known.clone())).collect()
    }

    /// The hosts whose certificates can't be served for lack of a key, in alphabetical order.
    #[must_use]
    pub fn unopened(&self) -> BTreeMap<Box<str>, UnopenedCertificate> {
        self.unopened.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the chain and the key of a host.
    ///
    /// # Errors
    /// [`ObtainedError`].
    pub async fn read(&self, host: &str, wanted: &ObtainedCertificate) -> Result<OpenedPair, ObtainedError> {
        let of_snapshot = match self.config.kept_snapshot() {
            Some(snapshot) => find_in(self.snapshot.get_or_try_init(|| Registry::open(snapshot)).await, host).await,
            None => Ok(None),
        };
        let is_wanted = |row: &CertificateRecord| row.pair.as_ref().is_some_and(|pair| id_of(pair) == wanted.id);
        let found = match of_snapshot {
            Ok(Some(row)) if is_wanted(&row) => Some(row),
            // It could not be kept in the snapshot, or the registry has a later one by now.
            _ => find_in(self.registry.get_or_try_init(|| open(&self.config)).await, host).await?.filter(|row| {
                let found = row.pair.as_ref().map(|pair| ObtainedCertificate::of(row, pair));
                let now = Timestamp::now();
                is_wanted(row)
                    || found.is_some_and(|found| {
                        *found.slug == *wanted.slug && wanted.gives_way_to(&found, ReadFrom::Increment, now)
                    })
            }),
        };
        let StoredPair { chain, key } = found.and_then(|row| row.pair).ok_or(ObtainedError::Missing)?;
        Ok(OpenedPair { key: self.seals.open(&key, host)?, chain })
    }

    /// Takes certificates over, unless they would replace a better one. Returns those it took.
    pub(super) fn take(&self, rows: Vec<CertificateRecord>, from: ReadFrom) -> Vec<CertificateRecord> {
        let now = Timestamp::now();
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let mut unopened = self.unopened.write().unwrap_or_else(PoisonError::into_inner);
        let mut take = |row: &CertificateRecord| {
            let host = row.host.as_str();
            let known = index.get(host);
            let Some(pair) = &row.pair else {
                let is_kept = from == ReadFrom::Whole && known.is_some_and(|known| known.is_valid(now));
                if !is_kept {
                    index.remove(host);
                    unopened.remove(host);
                }
                return !is_kept;
            };
            let offered = ObtainedCertificate::of(row, pair);
            if known.is_some_and(|known| !known.gives_way_to(&offered, from, now)) {
                return false;
            }
            unopened.remove(host);
            if let Some(missing) = self.seals.missing_key(&pair.key) {
                let certificate = UnopenedCertificate { slug: Arc::clone(&offered.slug), missing: missing.into() };
                unopened.insert(host.into(), certificate);
            }
            index.insert(host.into(), offered);
            true
        };
        rows.into_iter().filter(|row| take(row)).collect()
    }

    /// Drops what the registry has no more and is not valid. Returns the hosts of these, and how many certificates are kept
    /// although the registry has none. `listed` are all hosts for which it has one, or had.
    pub(super) fn keep_valid(&self, listed: &HashSet<String>) -> (Vec<String>, usize) {
        let now = Timestamp::now();
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let mut unopened = self.unopened.write().unwrap_or_else(PoisonError::into_inner);
        let others = index.iter().filter(|(host, _)| !listed.contains(&***host));
        let (kept, gone): (Vec<_>, Vec<_>) = others.partition(|(_, known)| known.is_valid(now));
        let kept = kept.len();
        let gone: Vec<_> = gone.into_iter().map(|(host, _)| host.to_string()).collect();
        for host in &gone {
            index.remove(host.as_str());
            unopened.remove(host.as_str());
        }
        (gone, kept)
    }

    /// Drops the certificates of tenants that were erased.
    pub(super) fn forget(&self, slugs: &[String]) {
        let is_kept = |slug: &str| !slugs.iter().any(|erased| erased == slug);
        self.index.write().unwrap_or_else(PoisonError::into_inner).retain(|_, known| is_kept(&known.slug));
        self.unopened.write().unwrap_or_else(PoisonError::into_inner).retain(|_, known| is_kept(&known.slug));
        self.forgotten.notify_one();
    }

    /// The hosts whose certificates have expired between two instants.
    pub(super) fn expired(&self, from: Timestamp, until: Timestamp) -> Vec<String> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let expired = index.iter().filter(|(_, known)| known.not_after >= from && known.not_after < until);
        expired.map(|(host, _)| host.to_string()).collect()
    }

    /// Closes every connection.
    pub(super) async fn close(&self) {
        for registry in [&self.snapshot, &self.registry] {
            if let Some(registry) = registry.get() {
                registry.close().await;
            }
        }
    }
}

async fn find_in(opened: Result<&Registry, StoreError>, host: &str) -> Result<Option<CertificateRecord>, StoreError> {
    opened?.find_certificate(host).await
}

impl std::fmt::Debug for OpenedPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenedPair").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(from: i64, until: i64) -> ObtainedCertificate {
        let at = |second| Timestamp::from_second(second).expect("an instant");
        ObtainedCertificate { slug: "acme".into(), id: 1, not_before: at(from), not_after: at(until) }
    }

    #[test]
    fn a_valid_certificate_gives_way_to_a_better_one_only() {
        let now = Timestamp::from_second(100).expect("an instant");
        let known = certificate(50, 200);
        for (other, of_increment, of_whole) in [
            (certificate(60, 300), true, true),
            (certificate(50, 200), true, true),
            // A later one of another authority.
            (certificate(90, 150), true, false),
            (certificate(0, 90), false, false),
            (certificate(110, 400), false, false),
        ] {
            let gives_way = [ReadFrom::Increment, ReadFrom::Whole].map(|from| known.gives_way_to(&other, from, now));
            assert_eq!(gives_way, [of_increment, of_whole], "{other:?}");
            let of_another = ObtainedCertificate { slug: "globex".into(), ..other.clone() };
            assert!(known.gives_way_to(&of_another, ReadFrom::Whole, now), "the host is that of another tenant");
            assert!(certificate(0, 90).gives_way_to(&other, ReadFrom::Whole, now), "it has expired");
        }
    }
}
