//! One `[[tenant]]` table, checked by itself.
//!
//! Owns the keys of the table, their defaults and ranges. What tenants must not share is checked in
//! [`super::unique`], and whether their hosts have certificates in [`super::coverage`], once all are read.

use std::path::Path;

use jiff::tz::TimeZone;

use super::TenantConfig;
use super::database::{self, Database};
use super::file::{Table, Text};
use super::gateway::{NamedFiles, read_files};
use super::problem::{Origin, Problem};
use super::source::Place;
use crate::store::Guard;
use crate::tenant::host::HostName;

/// The budget of the service description.
const REQUESTS_PER_MINUTE: u32 = 60;
/// Every admitted request is an instant in the window's log; more of them make one check slow.
const MOST_REQUESTS_PER_MINUTE: u32 = 100_000;
/// Enough for one tenant's searches at once; with more, a few hundred tenants exhaust a Postgres server.
const MAX_CONNECTIONS: u32 = 5;
/// Past this a typing mistake is likelier than a need.
const MOST_CONNECTIONS: u32 = 1000;
/// More than any number of searches that a tenant's connections can answer before their callers lose patience; with
/// fewer, a burst is refused that would be served.
const MAX_IN_FLIGHT: u32 = 64;
/// Past this it limits nothing.
const MOST_IN_FLIGHT: u32 = 10_000;
/// A label of a host name (RFC 1035), since slugs are made into addresses.
const LONGEST_SLUG: usize = 63;

/// A value and where it was written.
pub(super) struct Placed<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// The table, and what has to be compared with other tables.
pub(super) struct Tenant {
    /// Absent when a key of the table was faulty.
    pub(super) config: Option<TenantConfig>,
    pub(super) slug: Option<Placed<String>>,
    /// The sign-in address and the custom domains.
    pub(super) hosts: Vec<Placed<HostName>>,
    /// Certificates of single hosts.
    pub(super) certificates: Vec<(Placed<HostName>, Option<NamedFiles>)>,
    /// The identity of the database.
    pub(super) database: Option<Placed<String>>,
}

/// Reads a `[[tenant]]` table.
pub(super) fn read(mut table: Table<'_, '_>, folder: &Path) -> Tenant {
    let slug = table.required_text("slug").and_then(|text| read_slug(text, &table));
    let name = table.required_text("name");
    let address = table.required_text("address").and_then(|text| read_host(&text, &table));
    let domains: Vec<_> = table.texts("domains").iter().filter_map(|text| read_host(text, &table)).collect();
    let database = table.required_text("database").and_then(|text| {
        let database = database::read(&text, folder).map_err(|problem| table.reading().report(problem)).ok()?;
        Some((database, text.place))
    });
    let timezone = table.text("timezone").map_or(Some(TimeZone::UTC), |text| read_timezone(&text, &table));
    let requests_per_minute = table.integer("requests_per_minute", 1..=MOST_REQUESTS_PER_MINUTE, REQUESTS_PER_MINUTE);
    let max_connections = table.integer("max_connections", 1..=MOST_CONNECTIONS, MAX_CONNECTIONS);
    let max_in_flight = table.integer("max_in_flight", 1..=MOST_IN_FLIGHT, MAX_IN_FLIGHT);
    let group_guard = table.table("group_guard").map(read_group_guard);
    let certificates = read_certificates(&mut table, folder);
    table.finish();

    let config = || -> Option<TenantConfig> {
        let slug = slug.as_ref()?;
        let (database, database_place) = database.as_ref()?;
        Some(TenantConfig {
            slug: slug.value.clone(),
            name: name?.value,
            address: address.as_ref()?.value.clone(),
            domains: domains.iter().map(|domain| domain.value.clone()).collect(),
            certificates: certificates
                .iter()
                .filter_map(|(host, named)| Some((host.value.clone(), named.as_ref()?.files.clone())))
                .collect(),
            database: database.location.clone(),
            timezone: timezone?,
            requests_per_minute,
            max_connections,
            max_in_flight,
            group_guard,
            origin: Origin { slug: slug.place.clone(), database: database_place.clone() },
        })
    };
    Tenant {
        config: config(),
        slug,
        hosts: address.into_iter().chain(domains).collect(),
        certificates,
        database: database.map(|(Database { identity, .. }, place)| Placed { value: identity, place }),
    }
}

fn read_slug(text: Text, table: &Table<'_, '_>) -> Option<Placed<String>> {
    let Text { value, place, .. } = text;
    let plain = value.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !plain || value.starts_with('-') || value.ends_with('-') || value.len() > LONGEST_SLUG {
        let help = "a slug is 1 to 63 lower-case letters, digits and hyphens, with no hyphen first or last";
        table.reading().report(Problem::at(&place, "not a slug").help(help));
        return None;
    }
    Some(Placed { value, place })
}

fn read_host(text: &Text, table: &Table<'_, '_>) -> Option<Placed<HostName>> {
    let problem = match HostName::parse(&text.value) {
        // A caller that connects to a bare IP address sends no name, so no certificate can be chosen by it.
        Ok(host) if is_ip(&host) => Problem::at(&text.place, "an IP address is not a host name"),
        Ok(host) => return Some(Placed { value: host, place: text.place.clone() }),
        Err(_) => {
            let label = "expected a name alone: no scheme, port or path";
            Problem::at(&text.place, "not a host name").label(label)
        }
    };
    table.reading().report(problem);
    None
}

fn is_ip(host: &HostName) -> bool {
    host.as_str().starts_with('[') || host.as_str().parse::<std::net::Ipv4Addr>().is_ok()
}

fn read_timezone(text: &Text, table: &Table<'_, '_>) -> Option<TimeZone> {
    // `localtime` is whatever this machine is set to; the nodes of one gateway may differ.
    let portable = |zone: &TimeZone| zone.iana_name().is_some_and(|name| name != "localtime");
    let zone = TimeZone::get(&text.value).ok().filter(portable);
    if zone.is_none() {
        let label = "expected an IANA name such as `Europe/Berlin`";
        table.reading().report(Problem::at(&text.place, "unknown time zone").label(label));
    }
    zone
}

fn read_group_guard(mut table: Table<'_, '_>) -> Guard {
    if !table.contains("max_detached_percent") {
        table.reading().report(Problem::at(table.place(), "missing key `max_detached_percent`"));
    }
    let max_detached_percent = table.integer("max_detached_percent", 0..=100, 100);
    table.finish();
    Guard { max_detached_percent }
}

fn read_certificates(table: &mut Table<'_, '_>, folder: &Path) -> Vec<(Placed<HostName>, Option<NamedFiles>)> {
    let entries = table.table("tls").map(Table::entries).unwrap_or_default();
    let read = |(key, files): (Text, Table<'_, '_>)| {
        let host = read_host(&key, &files);
        let named = read_files(files, folder);
        Some((host?, named))
    };
    entries.into_iter().filter_map(read).collect()
}
