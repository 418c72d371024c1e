//! Which hosts have a life of their own: those of every tenant that no file gives a certificate.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Domains, DomainsError, new_proof};
use crate::host::HostName;
use crate::tenant::Directory;

/// How many rows are made in one statement.
///
/// Larger: a longer transaction. Smaller: more of them.
const AT_ONCE: usize = 500;

/// The hosts that this node has made rows for, so that a change of the directory costs what is new in it.
#[derive(Debug, Default)]
pub(super) struct Needed {
    known: Mutex<HashSet<(HostName, Arc<str>)>>,
}

impl Needed {
    /// Forgets them: rows are made again where they are missing, as after a restore of the registry.
    pub(super) fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Makes rows for the hosts that need one and have none yet. Domains that were added have theirs.
    pub(super) async fn make(&self, domains: &Domains, directory: &Directory) -> Result<(), DomainsError> {
        let mut needed = HashSet::new();
        for tenant in directory.configs() {
            for host in tenant.table_hosts() {
                if domains.needs_certificate(directory, host) {
                    needed.insert((host.clone(), Arc::clone(&tenant.slug)));
                }
            }
        }
        let new: Vec<_> = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            needed.difference(&known).cloned().collect()
        };
        let registry = domains.registry().await?;
        for some in new.chunks(AT_ONCE) {
            let rows: Vec<_> =
                some.iter().map(|(host, slug)| (host.to_string(), slug.to_string(), new_proof())).collect();
            registry.need_domains(&rows).await?;
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = needed;
        Ok(())
    }
}

impl Domains {
    /// Whether a host of a tenant needs a certificate of its own: files always win.
    pub(super) fn needs_certificate(&self, directory: &Directory, host: &HostName) -> bool {
        directory.config_at(host).is_some_and(|tenant| tenant.certificate(host).is_none())
            && !(self.gateway_covers)(host)
    }
}
