//! What no two tenants may share: slugs, hosts and databases; and which hosts a certificate may be given for.
//!
//! Owns the comparison across tables and files. Each claim is looked up once, so the work grows with the tenants, not
//! with their square.

use std::collections::HashMap;
use std::hash::Hash;

use super::file::Reading;
use super::problem::Problem;
use super::source::Place;
use super::tenant::{Placed, Tenant};

/// Reports every second claim, with the first one beside it.
pub(super) fn check(tenants: &[Tenant], reading: &Reading<'_>) {
    let (mut slugs, mut hosts, mut databases) = (Claims::default(), Claims::default(), Claims::default());
    for tenant in tenants {
        if let Some(slug) = &tenant.slug {
            let title = || format!("the slug `{}` is taken", slug.value);
            slugs.claim(&slug.value, &slug.place, title, reading);
        }
        for host in &tenant.hosts {
            hosts.claim(&host.value, &host.place, || format!("the host `{}` is claimed twice", host.value), reading);
        }
        if let Some(database) = &tenant.database {
            let title = || "each tenant needs a database of its own".to_owned();
            databases.claim(&database.value, &database.place, title, reading);
        }
        check_certificate_hosts(tenant, reading);
    }
}

/// A certificate is given for a host of the same tenant, once.
fn check_certificate_hosts(tenant: &Tenant, reading: &Reading<'_>) {
    let mut given = Claims::default();
    for (host, _) in &tenant.certificates {
        let Placed { value: host, place } = host;
        if !tenant.hosts.iter().any(|own| own.value == *host) {
            let problem = Problem::at(place, format!("`{host}` is not a host of this tenant"));
            reading.report(problem.help("a certificate is given for the tenant's `address` or one of its `domains`"));
        }
        given.claim(host, place, || format!("a second certificate for `{host}`"), reading);
    }
}

/// Who came first.
struct Claims<'t, T>(HashMap<&'t T, &'t Place>);

impl<T> Default for Claims<'_, T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<'t, T: Eq + Hash> Claims<'t, T> {
    fn claim(&mut self, value: &'t T, place: &'t Place, title: impl Fn() -> String, reading: &Reading<'_>) {
        if let Some(first) = self.0.get(value) {
            reading.report(Problem::at(place, title()).label("here").earlier(first, "first claimed here"));
        } else {
            self.0.insert(value, place);
        }
    }
}
