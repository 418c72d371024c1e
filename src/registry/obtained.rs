//! The certificates that were obtained for domains, as this node knows them.
//!
//! An index has one small entry for each host, so a handshake for a host without a certificate costs one look-up. Chains
//! and keys are read when a handshake needs them: from the snapshot, which has every certificate that this node has seen,
//! or else from the registry. So what is served outlives the registry and a restart.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use tokio::sync::OnceCell;

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
}

/// A certificate, without its chain and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObtainedCertificate {
    /// The tenant that it is served for.
    pub slug: Arc<str>,
    /// Another one after each renewal.
    pub revision: i64,
    /// Until when it is valid.
    pub not_after: Timestamp,
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
        }
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
            Some(snapshot) => {
                find_in(self.snapshot.get_or_try_init(|| Registry::open(snapshot)).await, host, wanted).await
            }
            None => Ok(None),
        };
        let found = match of_snapshot {
            Ok(Some(pair)) => Some(pair),
            _ => find_in(self.registry.get_or_try_init(|| open(&self.config)).await, host, wanted).await?,
        };
        let StoredPair { chain, key } = found.ok_or(ObtainedError::Missing)?;
        Ok(OpenedPair { key: self.seals.open(&key, host)?, chain })
    }

    /// Takes certificates over. With `is_whole`, there are no others.
    pub(super) fn take(&self, rows: &[CertificateRecord], is_whole: bool) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let mut unopened = self.unopened.write().unwrap_or_else(PoisonError::into_inner);
        if is_whole {
            index.clear();
            unopened.clear();
        }
        for row in rows {
            unopened.remove(row.host.as_str());
            let Some(pair) = &row.pair else {
                index.remove(row.host.as_str());
                continue;
            };
            if let Some(missing) = self.seals.missing_key(&pair.key) {
                let certificate = UnopenedCertificate { slug: row.slug.as_str().into(), missing: missing.into() };
                unopened.insert(row.host.as_str().into(), certificate);
            }
            let known = ObtainedCertificate {
                slug: row.slug.as_str().into(),
                revision: row.revision,
                not_after: row.not_after,
            };
            index.insert(row.host.as_str().into(), known);
        }
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

async fn find_in(
    opened: Result<&Registry, StoreError>,
    host: &str,
    wanted: &ObtainedCertificate,
) -> Result<Option<StoredPair>, StoreError> {
    let found = opened?.find_certificate(host).await?;
    // An older one in the snapshot: this one could not be kept.
    let found = found.filter(|found| found.revision >= wanted.revision && *found.slug == *wanted.slug);
    Ok(found.and_then(|found| found.pair))
}

impl std::fmt::Debug for OpenedPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenedPair").finish_non_exhaustive()
    }
}
