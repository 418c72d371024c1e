//! What no two tenants may share: slugs, hosts and databases; and which hosts a certificate may be given for.
//!
//! Owns the comparison across tables and files. Each claim is looked up once, so the work grows with the tenants, not
//! with their square. Tenants are compared without their places; those that clash are read once more to point at them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use super::TenantConfig;
use super::file::Reading;
use super::problem::Problem;
use super::source::Place;
use super::tenant::{Listed, Placed, Tenant};
use crate::host::HostPattern;

/// Reports every second claim, with the first one beside it. One kind of claim after another: with very many tenants each
/// takes some memory.
pub(super) fn check(tenants: &[Listed], reading: &Reading<'_>) {
    check_slugs(tenants, reading);
    check_hosts(tenants, reading);
    check_databases(tenants, reading);
    tenants.iter().for_each(|tenant| check_certificate_hosts(tenant, reading));
}

fn check_slugs(tenants: &[Listed], reading: &Reading<'_>) {
    let mut claims = HashMap::with_capacity(tenants.len());
    for (index, tenant) in tenants.iter().enumerate() {
        if let Some(slug) = tenant.slug()
            && let Some(first) = first(&mut claims, slug, index)
        {
            let (first, second) = (tenants[first].placed(reading), tenant.placed(reading));
            if let (Some(first), Some(second)) = (&first.slug, &second.slug) {
                report(&second.place, &first.place, format!("the slug `{slug}` is taken"), reading);
            }
        }
    }
}

fn check_hosts(tenants: &[Listed], reading: &Reading<'_>) {
    let mut claims = HashMap::with_capacity(tenants.iter().map(|tenant| tenant.hosts().count()).sum());
    for (index, tenant) in tenants.iter().enumerate() {
        for (position, host) in tenant.hosts().enumerate() {
            if let Some((first, at)) = first(&mut claims, host, (index, position)) {
                let (first, second) = (tenants[first].placed(reading), tenant.placed(reading));
                let title = format!("the host `{host}` is claimed twice");
                report(&second.hosts[position].place, &first.hosts[at].place, title, reading);
            }
        }
    }
}

fn check_databases(tenants: &[Listed], reading: &Reading<'_>) {
    let mut claims = HashMap::with_capacity(tenants.len());
    for (index, tenant) in tenants.iter().enumerate() {
        if let Some(database) = tenant.database()
            && let Some(first) = first(&mut claims, database, index)
        {
            let (first, second) = (tenants[first].placed(reading), tenant.placed(reading));
            if let (Some(first), Some(second)) = (&first.database, &second.database)
                && first.value == second.value
            {
                let title = "each tenant needs a database of its own".to_owned();
                report(&second.place, &first.place, title, reading);
            }
        }
    }
}

/// Who claimed this before; else whoever claims it now is remembered.
fn first<K: Eq + Hash, C: Copy>(claims: &mut HashMap<K, C>, claimed: K, by: C) -> Option<C> {
    match claims.entry(claimed) {
        Entry::Occupied(first) => Some(*first.get()),
        Entry::Vacant(free) => {
            free.insert(by);
            None
        }
    }
}

fn report(place: &Place, first: &Place, title: String, reading: &Reading<'_>) {
    reading.report(Problem::at(place, title).label("here").earlier(first, "first claimed here"));
}

/// A certificate is given for a host of the same tenant, or for some below a name, once.
fn check_certificate_hosts(tenant: &Listed, reading: &Reading<'_>) {
    let in_order = |config: &TenantConfig| {
        let mut given = HashSet::new();
        let own = |pattern: &HostPattern| config.hosts().any(|host| pattern.matches(host));
        config.certificates.iter().all(|(pattern, _)| own(pattern) && given.insert(pattern))
    };
    if !matches!(tenant, Listed::Sound(sound) if in_order(&sound.config)) {
        report_certificate_hosts(&tenant.placed(reading), reading);
    }
}

fn report_certificate_hosts(tenant: &Tenant, reading: &Reading<'_>) {
    let mut given = HashMap::new();
    for (Placed { value: pattern, place }, _) in &tenant.certificates {
        if !tenant.hosts.iter().any(|own| pattern.matches(&own.value)) {
            let title = match pattern.host() {
                Some(host) => format!("`{host}` is not a host of this tenant"),
                None => format!("no host of this tenant is a `{pattern}`"),
            };
            let help = "a certificate is given for the tenant's `address` or one of its `domains`";
            reading.report(Problem::at(place, title).help(help));
        }
        if let Some(first) = first(&mut given, pattern, place) {
            report(place, first, format!("a second certificate for `{pattern}`"), reading);
        }
    }
}
