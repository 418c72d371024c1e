//! Checks that tenants share no slug, host or database, and which hosts a certificate may be configured for.
//!
//! Owns the comparison across tables and files. Each claim is looked up once, so the work is linear in the number of
//! tenants. Tenants are compared without spans; the sections of those that conflict are parsed again to report them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use super::context::LoadContext;
use super::problem::Problem;
use super::source::SourceSpan;
use super::tenant::{LoadedTenant, Located, TenantTable, fingerprint};
use super::{RegistryConfig, TenantConfig, database};
use crate::host::HostPattern;
use crate::store::FileId;

/// Reports every duplicate claim together with the first one. Checks one kind of claim after the other, because with
/// very many tenants each needs some memory.
pub(super) fn check(tenants: &[LoadedTenant], context: &LoadContext<'_>) {
    check_slugs(tenants, context);
    check_hosts(tenants, context);
    check_databases(tenants, context);
    check_database_files(tenants, context);
    tenants.iter().for_each(|tenant| check_certificate_hosts(tenant, context));
}

fn check_slugs(tenants: &[LoadedTenant], context: &LoadContext<'_>) {
    let mut claims = HashMap::with_capacity(tenants.len());
    for (index, tenant) in tenants.iter().enumerate() {
        if let Some(slug) = tenant.slug()
            && let Some(first) = claim(&mut claims, slug, index)
        {
            let (first, second) = (tenants[first].table(context), tenant.table(context));
            if let (Some(first), Some(second)) = (&first.slug, &second.slug) {
                report(&second.span, &first.span, format!("the slug `{slug}` is taken"), context);
            }
        }
    }
}

fn check_hosts(tenants: &[LoadedTenant], context: &LoadContext<'_>) {
    let mut claims = HashMap::with_capacity(tenants.iter().map(|tenant| tenant.hosts().count()).sum());
    for (index, tenant) in tenants.iter().enumerate() {
        for (position, host) in tenant.hosts().enumerate() {
            if let Some((first, at)) = claim(&mut claims, host, (index, position)) {
                let (first, second) = (tenants[first].table(context), tenant.table(context));
                let title = format!("the host `{host}` is claimed twice");
                report(&second.hosts[position].span, &first.hosts[at].span, title, context);
            }
        }
    }
}

fn check_databases(tenants: &[LoadedTenant], context: &LoadContext<'_>) {
    let mut claims = HashMap::with_capacity(tenants.len());
    for (index, tenant) in tenants.iter().enumerate() {
        if let Some(database) = tenant.database()
            && let Some(first) = claim(&mut claims, database, index)
        {
            let (first, second) = (tenants[first].table(context), tenant.table(context));
            if let (Some(first), Some(second)) = (&first.database, &second.database)
                && first.value == second.value
            {
                let title = "each tenant needs a database of its own".to_owned();
                report(&second.span, &first.span, title, context);
            }
        }
    }
}

/// Reports tenants whose database is that of the registry, or its snapshot.
pub(super) fn check_own(registry: &RegistryConfig, tenants: &[LoadedTenant], context: &LoadContext<'_>) {
    let own = [(&registry.database, "the registry"), (&registry.snapshot, "the snapshot of the registry")];
    let own = own.map(|(location, what)| (fingerprint(database::identity(location, context)), what));
    for tenant in tenants {
        let Some((_, what)) = own.iter().find(|(taken, _)| tenant.database() == Some(*taken)) else { continue };
        if let Some(database) = &tenant.table(context).database {
            let problem = Problem::at(&database.span, format!("the database is that of {what}"));
            context.report(problem.help("give each tenant, and the registry, a database of its own"));
        }
    }
}

/// Reports SQLite databases that are one file, or a file that SQLite keeps next to another one, although their paths differ.
/// Looks at each file once.
fn check_database_files(tenants: &[LoadedTenant], context: &LoadContext<'_>) {
    let (mut claims, mut linked) = (HashMap::new(), HashMap::new());
    for (index, tenant) in tenants.iter().enumerate() {
        let Some((file, has_links)) = tenant.database_file().and_then(|path| FileId::at(&path)) else { continue };
        if has_links {
            linked.insert(file, index);
        }
        if let Some(first) = claim(&mut claims, file, index) {
            report_one_file(tenants, first, index, context);
        }
    }
    if linked.is_empty() {
        return;
    }
    for (index, tenant) in tenants.iter().enumerate() {
        let Some(path) = tenant.database_file() else { continue };
        for other in FileId::beside(&path).filter_map(|file| linked.get(&file)) {
            report_one_file(tenants, index, *other, context);
        }
    }
}

fn report_one_file(tenants: &[LoadedTenant], first: usize, second: usize, context: &LoadContext<'_>) {
    // Equal paths have their own report.
    if tenants[first].database() != tenants[second].database()
        && let (Some(first), Some(second)) =
            (&tenants[first].table(context).database, &tenants[second].table(context).database)
    {
        let title = "each tenant needs a database of its own, and this path leads to a file of another one".to_owned();
        report(&second.span, &first.span, title, context);
    }
}

/// Returns the earlier claimant, or records this one.
fn claim<K: Eq + Hash, C: Copy>(claims: &mut HashMap<K, C>, claimed: K, by: C) -> Option<C> {
    match claims.entry(claimed) {
        Entry::Occupied(first) => Some(*first.get()),
        Entry::Vacant(free) => {
            free.insert(by);
            None
        }
    }
}

fn report(span: &SourceSpan, first: &SourceSpan, title: String, context: &LoadContext<'_>) {
    context.report(Problem::at(span, title).label("here").earlier(first, "first claimed here"));
}

/// Checks that each certificate is for a host of the same tenant or a wildcard that matches one, and that no host or
/// wildcard has two.
fn check_certificate_hosts(tenant: &LoadedTenant, context: &LoadContext<'_>) {
    let in_order = |config: &TenantConfig| {
        let mut given = HashSet::new();
        let own = |pattern: &HostPattern| config.hosts().any(|host| pattern.matches(host));
        config.certificates.iter().all(|(pattern, _)| own(pattern) && given.insert(pattern))
    };
    if !matches!(tenant, LoadedTenant::Valid(valid) if in_order(&valid.config)) {
        report_certificate_hosts(&tenant.table(context), context);
    }
}

fn report_certificate_hosts(tenant: &TenantTable, context: &LoadContext<'_>) {
    let mut given = HashMap::new();
    for (Located { value: pattern, span }, _) in &tenant.certificates {
        if !tenant.hosts.iter().any(|own| pattern.matches(&own.value)) {
            let title = match pattern.host() {
                Some(host) => format!("`{host}` is not a host of this tenant"),
                None => format!("no host of this tenant is a `{pattern}`"),
            };
            let help = "a certificate is given for the tenant's `address` or one of its `domains`";
            context.report(Problem::at(span, title).help(help));
        }
        if let Some(first) = claim(&mut given, pattern, span) {
            report(span, first, format!("a second certificate for `{pattern}`"), context);
        }
    }
}
