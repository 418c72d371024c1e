//! Combines the tenants of the registry with those of changed files.
//!
//! Owns the decision which rows can be served with these files. A file that claims what a served row has is refused.

use std::collections::HashSet;
use std::sync::Arc;

use super::claimed::{FileTenants, conflicts};
use super::following::{Followed, Following};
use super::loading::read_row;
use crate::config::{Problems, RegisteredTenant, TenantConfig};
use crate::tenant::Directory;

impl Followed {
    /// The tenants of the registry to serve together with changed files: the ones that are served now, and the refused ones
    /// whose conflict with a file is gone.
    ///
    /// # Errors
    /// The faults of the files that claim what a served tenant of the registry has.
    pub fn combine(
        &self,
        files: &FileTenants,
        served: &Directory,
        following: &Following,
    ) -> Result<Vec<Arc<TenantConfig>>, Problems> {
        let registered = served.configs().filter(|tenant| tenant.origin.is_registered());
        let registered: Vec<_> = registered.map(RegisteredTenant::served).collect();
        Problems::none_of(conflicts(files, &registered))?;
        let waiting = self.refused.values().filter_map(|refused| {
            let slug = &refused.row.slug;
            refused.row.text.as_ref()?;
            let tenant = read_row(&refused.row, following.config()).ok()?;
            let is_free = files.conflict(&tenant).is_none()
                && tenant.config.hosts().all(|host| {
                    registered
                        .iter()
                        .all(|other| *other.config.slug == **slug || other.config.hosts().all(|taken| taken != host))
                });
            is_free.then_some(tenant.config)
        });
        let waiting: Vec<_> = waiting.collect();
        let replaced: HashSet<&str> = waiting.iter().map(|tenant| &*tenant.slug).collect();
        let kept =
            registered.into_iter().map(|tenant| tenant.config).filter(|config| !replaced.contains(&*config.slug));
        Ok(kept.collect::<Vec<_>>().into_iter().chain(waiting.iter().cloned()).collect())
    }

    /// Notes that changed files are served now.
    pub fn took(&mut self, files: FileTenants, served: &Directory, following: &Following) {
        self.files = Arc::new(files);
        self.refused.retain(|slug, refused| {
            let read = read_row(&refused.row, following.config());
            let config = served.config(slug).filter(|config| config.origin.is_registered());
            let is_served = read.ok().zip(config).is_some_and(|(tenant, config)| config.is_same(&tenant.config));
            !is_served
        });
        following.publish(self);
    }
}

/// Why a tenant can't be served: it conflicts with a tenant of a file, or with the previous state of another row.
pub(super) fn why_not(
    tenant: &RegisteredTenant,
    files: &FileTenants,
    served: &Directory,
    leaving: &HashSet<Arc<str>>,
) -> Option<String> {
    if let Some(conflict) = files.conflict(tenant) {
        let place = conflict.owner.origin.file_and_line();
        return Some(format!("{} is that of the tenant `{}` of {place}", conflict.what, conflict.owner.slug));
    }
    let other = tenant.config.hosts().find_map(|host| {
        let owner = served.config_at(host)?;
        (owner.slug != tenant.config.slug && !leaving.contains(&owner.slug)).then_some((host, owner))
    })?;
    Some(format!("the host `{}` is that of the tenant `{}`, whose own change can't be served", other.0, other.1.slug))
}
