//! Checks that tenants share no slug, host or database, and which hosts a certificate may be configured for.
//!
//! Owns the comparison across tables and files. Each claim is looked up once, so the work is linear in the number of
//! tenants.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::path::Path;

use super::context::LoadContext;
use super::problem::Problem;
use super::source::SourceSpan;
use super::tenant::{Located, TenantTable};
use super::{RegistryConfig, database};
use crate::store::FileId;

/// Reports every duplicate claim together with the first one.
pub(super) fn check(tenants: &[TenantTable], context: &LoadContext<'_>) {
    let (mut slugs, mut hosts, mut databases) = (HashMap::new(), HashMap::new(), HashMap::new());
    for tenant in tenants {
        if let Some(Located { value: slug, span }) = &tenant.slug
            && let Some(first) = claim(&mut slugs, slug, span)
        {
            report(span, first, format!("the slug `{slug}` is taken"), context);
        }
        for Located { value: host, span } in &tenant.hosts {
            if let Some(first) = claim(&mut hosts, host, span) {
                report(span, first, format!("the host `{host}` is claimed twice"), context);
            }
        }
        if let Some(Located { value: database, span }) = &tenant.database
            && let Some(first) = claim(&mut databases, database, span)
        {
            report(span, first, "each tenant needs a database of its own".to_owned(), context);
        }
        check_certificate_hosts(tenant, context);
    }
    check_database_files(tenants, context);
}

/// Reports tenants whose database is that of the registry, or its snapshot.
pub(super) fn check_own(registry: &RegistryConfig, tenants: &[TenantTable], context: &LoadContext<'_>) {
    let own = [(&registry.database, "the registry"), (&registry.snapshot, "the snapshot of the registry")];
    let own = own.map(|(location, what)| (database::identity(location, context), what));
    for database in tenants.iter().filter_map(|tenant| tenant.database.as_ref()) {
        let Some((_, what)) = own.iter().find(|(taken, _)| database.value == *taken) else { continue };
        let problem = Problem::at(&database.span, format!("the database is that of {what}"));
        context.report(problem.help("give each tenant, and the registry, a database of its own"));
    }
}

/// Reports SQLite databases that are one file, or a file that SQLite keeps next to another one, although their paths differ.
/// Looks at each file once.
fn check_database_files(tenants: &[TenantTable], context: &LoadContext<'_>) {
    let databases = || tenants.iter().filter_map(|tenant| tenant.database.as_ref());
    let files = || databases().filter_map(|it| Some((it, Path::new(it.value.strip_prefix(database::SQLITE)?))));
    let report = |first: &Located<String>, second: &Located<String>| {
        // Equal paths have their own report.
        if first.value != second.value {
            let title = "each tenant needs a database of its own, and this path leads to a file of another one";
            report(&second.span, &first.span, title.to_owned(), context);
        }
    };
    let (mut claims, mut linked) = (HashMap::new(), HashMap::new());
    for (database, path) in files() {
        let Some((file, has_links)) = FileId::at(path) else { continue };
        if has_links {
            linked.insert(file, database);
        }
        if let Some(first) = claim(&mut claims, file, database) {
            report(first, database);
        }
    }
    if linked.is_empty() {
        return;
    }
    for (database, path) in files() {
        for other in FileId::beside(path).filter_map(|file| linked.get(&file)) {
            report(database, other);
        }
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
fn check_certificate_hosts(tenant: &TenantTable, context: &LoadContext<'_>) {
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
