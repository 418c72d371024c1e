//! What a running node can't open with its `seal_keys`: the account key, and the keys of certificates.
//!
//! Checked as often as the domains are counted. Logged when it changes, and reported by readiness until it is fixed. The
//! node knows about a certificate since it last read it from the registry; nothing is opened for that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::account_key;
use super::error::DomainsError;
use super::stored_keys::MissingKey;
use crate::registry::UnopenedCertificate;
use crate::seal::{Seals, Unopened};
use crate::store::Registry;

/// How many certificates are named in readiness.
///
/// Larger: a probe that runs every second gets a very large response. Smaller: fewer faults are visible without the log.
const MAX_NAMED: usize = 100;

/// What can't be opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Unopenable {
    /// Why the account key can't be used.
    pub(super) account: Option<String>,
    /// Tenants with certificates whose keys can't be opened, and why.
    pub(super) certificates: Vec<(Arc<str>, String)>,
    /// How many certificates these are, and the ids of the missing keys.
    count: usize,
    missing: BTreeSet<Arc<str>>,
}

impl Unopenable {
    /// Tries the account key, and takes the certificates whose keys this node could not open: `unopened`, by host.
    pub(super) async fn find(
        registry: &Registry,
        seals: &Seals,
        unopened: &BTreeMap<Box<str>, UnopenedCertificate>,
    ) -> Result<Self, DomainsError> {
        let account = match registry.account_key().await? {
            None => None,
            Some(stored) => account_key::open(&stored, seals).err().map(|error| match error {
                DomainsError::Unopened(Unopened::UnknownKey) => {
                    let id = seals.missing_key(&stored).unwrap_or_default().to_owned();
                    let missing = MissingKey { id, account: true, certificates: 0 };
                    format!("{missing}: {}", MissingKey::NEXT_STEP)
                }
                other => format!("{other}: restore a backup of the registry"),
            }),
        };
        let certificates = unopened.iter().take(MAX_NAMED).map(|(host, UnopenedCertificate { slug, missing })| {
            (Arc::clone(slug), format!("{host}: its key is sealed with the key `{missing}`, which `seal_keys` lacks"))
        });
        Ok(Self {
            account,
            certificates: certificates.collect(),
            count: unopened.len(),
            missing: unopened.values().map(|certificate| Arc::clone(&certificate.missing)).collect(),
        })
    }

    /// Logs what has changed.
    pub(super) fn log(&self, before: &Self) {
        match &self.account {
            Some(cause) if before.account != self.account => {
                tracing::error!(cause, "the account key can't be opened; no certificates are obtained or renewed");
            }
            None if before.account.is_some() => tracing::info!("the account key can be opened again"),
            _ => {}
        }
        if self.missing == before.missing {
            return;
        }
        if self.missing.is_empty() {
            tracing::info!("the keys of all certificates can be opened again");
        } else {
            let missing = self.missing.iter().map(|id| &**id).collect::<Vec<_>>().join(", ");
            let (certificates, next_step) = (self.count, MissingKey::NEXT_STEP);
            tracing::error!(
                certificates,
                missing,
                next_step,
                "keys of certificates can't be opened; they are not served"
            );
        }
    }
}
