//! Which hosts formgate obtains certificates for: those without a certificate file.
//!
//! The tables of tenants also win over claims of others that are not proved: [`super::life`] ends these.

use std::collections::HashMap;
use std::sync::Arc;

use super::described::new_proof;
use super::error::DomainsError;
use super::shared::Domains;
use crate::host::HostName;
use crate::tenant::Directory;

/// How many rows one statement creates.
///
/// Larger: a longer transaction. Smaller: more of them.
const AT_ONCE: usize = 500;

/// The hosts of tables for which this node has created rows.
#[derive(Debug, Default)]
pub(super) struct Needed {
    /// With their tenants, and whether each needs a certificate.
    known: HashMap<(HostName, Arc<str>), bool>,
    /// The directory that they are from.
    seen: Option<Arc<Directory>>,
}

impl Needed {
    /// Forgets them: missing rows are created again, as after a restore of the registry.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Creates rows for the hosts that need one and have none yet, and schedules checks of other tenants' claims to new hosts
    /// of tables. Domains that were added have their rows. Costs as much as has changed in the directory, unless a reload of
    /// the files has replaced it: then the certificate of the gateway may cover other hosts.
    pub(super) async fn create(&mut self, domains: &Domains, directory: &Arc<Directory>) -> Result<(), DomainsError> {
        let all = std::mem::take(&mut self.known);
        let (before, mut known, mut had) = match self.seen.take() {
            Some(seen) if Arc::ptr_eq(&seen, directory) => {
                (self.known, self.seen) = (all, Some(seen));
                return Ok(());
            }
            Some(seen) if directory.shares_with(&seen) => (seen, all, HashMap::new()),
            _ => (Arc::default(), HashMap::new(), all),
        };
        for tenant in before.configs_apart(directory) {
            let hosts = tenant.table_hosts().map(|host| (host.clone(), Arc::clone(&tenant.slug)));
            had.extend(hosts.filter_map(|host| known.remove_entry(&host)));
        }
        let mut new = Vec::new();
        for tenant in directory.configs_apart(&before) {
            for host in tenant.table_hosts() {
                let needs_certificate = domains.needs_certificate(directory, host);
                let host = (host.clone(), Arc::clone(&tenant.slug));
                if had.get(&host) != Some(&needs_certificate) {
                    new.push((host.clone(), needs_certificate));
                }
                known.insert(host, needs_certificate);
            }
        }
        let registry = domains.registry().await?;
        for some in new.chunks(AT_ONCE) {
            let owned: Vec<_> = some.iter().map(|((host, slug), _)| (host.to_string(), slug.to_string())).collect();
            registry.check_claims_to(&owned).await?;
            let needed = owned.into_iter().zip(some).filter(|(_, (_, needs))| *needs);
            let rows: Vec<_> = needed.map(|((host, slug), _)| (host, slug, new_proof())).collect();
            registry.need_domains(&rows).await?;
        }
        (self.known, self.seen) = (known, Some(Arc::clone(directory)));
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
