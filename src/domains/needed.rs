//! Which hosts have a life of their own: those of every tenant that no file gives a certificate.
//!
//! The tables of tenants also win over claims of others that are not proved: [`super::life`] ends these.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Domains, DomainsError, new_proof};
use crate::host::HostName;
use crate::tenant::Directory;

/// How many rows are made in one statement.
///
/// Larger: a longer transaction. Smaller: more of them.
const AT_ONCE: usize = 500;

/// The hosts of tables with their tenants, and whether each needs a certificate, as far as this node has made rows for them:
/// so a change of the directory costs what is new in it.
#[derive(Debug, Default)]
pub(super) struct Needed {
    known: Mutex<HashMap<(HostName, Arc<str>), bool>>,
}

impl Needed {
    /// Forgets them: rows are made again where they are missing, as after a restore of the registry.
    pub(super) fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Makes rows for the hosts that need one and have none yet, and has claims of others to new hosts of tables checked.
    /// Domains that were added have their rows.
    pub(super) async fn make(&self, domains: &Domains, directory: &Directory) -> Result<(), DomainsError> {
        let mut hosts = HashMap::new();
        for tenant in directory.configs() {
            for host in tenant.table_hosts() {
                let needs_certificate = domains.needs_certificate(directory, host);
                hosts.insert((host.clone(), Arc::clone(&tenant.slug)), needs_certificate);
            }
        }
        let new: Vec<_> = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            hosts.iter().filter(|(host, needs)| known.get(host) != Some(*needs)).collect()
        };
        let registry = domains.registry().await?;
        for some in new.chunks(AT_ONCE) {
            let owned: Vec<_> = some.iter().map(|((host, slug), _)| (host.to_string(), slug.to_string())).collect();
            registry.check_claims_to(&owned).await?;
            let needed = owned.into_iter().zip(some).filter(|(_, (_, needs))| **needs);
            let rows: Vec<_> = needed.map(|((host, slug), _)| (host, slug, new_proof())).collect();
            registry.need_domains(&rows).await?;
        }
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = hosts;
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
