//! A `[[tenant]]` table, checked on its own.
//!
//! Owns the keys of the table, their defaults and ranges. Once all tables are read, [`super::unique`] checks what
//! tenants must not share, and [`super::coverage`] whether their hosts have certificates.

use std::path::Path;
use std::sync::Arc;

use jiff::tz::TimeZone;

use super::TenantConfig;
use super::certificate_files::{self, NamedFiles};
use super::database;
use super::declaration::keys;
use super::oidc;
use super::problem::{Problem, TenantOrigin};
use super::source::SourceSpan;
use super::table::{StringValue, TableReader};
use crate::host::{HostName, HostPattern};
use crate::shown_text::{NAME_RULE, is_valid_name};
use crate::store::Guard;

keys! { key:
    slug = string(), "its short name in commands, metrics and logs: 1 to 63 lower-case letters, digits and hyphens";
    name = string(),
        "the name that `GET /me` returns: 1 to 255 visible characters with single spaces between them, without other blanks, \
         control characters, line breaks, invisible characters, changes of direction, characters for private use, and more than \
         4 marks on a letter";
    address = string(), "the sign-in address: a host name; Unicode is allowed";
    domains = strings().default("[]"), "further hosts of the tenant. A host belongs to one tenant";
    database = string().hidden().with_variables_in_registry(),
        "`postgres://USER:PASSWORD@HOST:PORT/DATABASE` or `sqlite:PATH`. Special characters in user and password are \
         percent-encoded, also if they come from a variable. [Parameters](../src/store/README.md#the-url-of-a-postgres-database) \
         such as `sslmode=verify-full` or `pooler=transaction` follow a `?`; an unknown parameter is an error. In tenants of the \
         registry, the user and the host are required, and what a URL omits has a fixed default: port 5432, the database of the \
         user's name, no password, `sslmode=prefer`. PG\\* variables (`PGPASSWORD`, `PGUSER`, …) and password files \
         (`PGPASSFILE`, `~/.pgpass`) never apply to them; while `PGOPTIONS`, `PGSSLCERT` or `PGSSLKEY` is set, a node refuses \
         their Postgres URLs";
    timezone = string().default("\"UTC\""), "an IANA time zone";
    /// The default is the budget in the service description. The largest, if it were larger: every admitted request is a
    /// timestamp in the window's log, and checking it becomes slow; smaller: busy integrations can't get the budget that they
    /// need.
    requests_per_minute = integer(1..=100_000).default("60"),
        "the request budget that all tokens of the tenant share";
    /// The default, if it were larger: a directory that sends all its users at once takes more of the tenant's connections;
    /// smaller: that takes hours.
    scim_requests_per_minute = integer(1..=100_000).default("600"),
        "the budget of requests below `/scim/v2`, which spend nothing of `requests_per_minute`";
    /// The largest. Larger: a typing mistake passes. Smaller: a tenant can't use a large server. The default, if it were larger:
    /// a few hundred tenants exhaust a Postgres server; smaller: the concurrent searches of one tenant wait for each other.
    max_connections = integer(1..=1000).default("5"), "the most connections from this node to the tenant's database";
    /// The largest. Larger: it would limit nothing, since the default limit on client connections is the same. Smaller: a tenant
    /// with many concurrent clients is refused although the gateway has room. The default, if it were larger: more searches than
    /// the tenant's connections can answer before clients time out; smaller: a burst is refused that would be served.
    max_in_flight = integer(1..=10_000).default("64"), "the most requests of the tenant in flight at once";
    group_guard = table(guard_key::KEYS).without("none"), "a [limit](#a-guard-of-groups) on what one `PUT /group`, or a directory in ten minutes, may remove";
    oidc = table(oidc::key::KEYS).without("none"),
        "[the OpenID provider](#openid-connect) of the tenant's administrators, in place of the gateway's";
    tls = named_tables("HOST", certificate_files::key::KEYS).without("the gateway's certificate"),
        "[a certificate](#certificates-of-tenants) of one of the tenant's hosts; it has precedence over the gateway's";
}

keys! { guard_key:
    max_detached_percent = integer(0..=100),
        "a `PUT /group` that would remove more than this share of a group's members is refused until it is confirmed; what a directory \
         removes beyond it in ten minutes is [held](../src/scim/README.md#the-guard), where 50 is the default";
}

/// The maximum length of a slug. Larger: it no longer fits into a label of a host name (RFC 1035), and slugs become
/// part of addresses. Smaller: valid labels are refused.
const MAX_SLUG: usize = 63;

/// A value and its span.
#[derive(Clone)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) span: SourceSpan,
}

/// The table: the tenant, and what is compared with other tables.
pub(super) struct TenantTable {
    /// `None` if a key of the table was faulty. If the same tenant is already served, it is that one.
    pub(super) config: Option<Arc<TenantConfig>>,
    pub(super) slug: Option<Located<String>>,
    /// The sign-in address if it is valid, followed by the custom domains.
    pub(super) hosts: Vec<Located<HostName>>,
    /// Certificates for single hosts and wildcards.
    pub(super) certificates: Vec<(Located<HostPattern>, Option<NamedFiles>)>,
    /// The identity of the database.
    pub(super) database: Option<Located<String>>,
}

/// Reads a `[[tenant]]` table.
pub(super) fn read(mut table: TableReader<'_, '_>, folder: &Path) -> TenantTable {
    let context = table.context();
    let slug = table.string(&key::slug).and_then(|text| read_slug(text, &table));
    let name = table.string(&key::name).and_then(|text| read_name(text, &table));
    let address = table.string(&key::address).and_then(|text| read_host(&text, &table));
    let domains: Vec<_> = table.strings(&key::domains).iter().filter_map(|text| read_host(text, &table)).collect();
    let (location, database) = table
        .string(&key::database)
        .and_then(|text| {
            let read = database::read(&text, folder, context);
            let read = read.map_err(|problem| context.report(problem)).ok()?;
            Some((read.location, Located { value: read.identity, span: text.span }))
        })
        .unzip();
    let timezone = table.string(&key::timezone).map_or(Some(TimeZone::UTC), |text| read_timezone(&text, &table));
    let requests_per_minute = table.integer(&key::requests_per_minute);
    let scim_requests_per_minute = table.integer(&key::scim_requests_per_minute);
    let max_connections = table.integer(&key::max_connections);
    let max_in_flight = table.integer(&key::max_in_flight);
    let group_guard = table.table(&key::group_guard).map(read_group_guard);
    let oidc = table.table(&key::oidc).and_then(|table| oidc::read(table, folder)).map(Arc::new);
    let certificates: Vec<_> = table
        .named_tables(&key::tls)
        .into_iter()
        .filter_map(|(host, files)| {
            let pattern = read_pattern(host, &files);
            let named = certificate_files::read(files, folder);
            Some((pattern?, named))
        })
        .collect();
    table.finish();

    // A gateway keeps a configuration for very long, so its allocations have no spare capacity and share names.
    let config = || {
        let (slug, database, location) = (slug.as_ref()?, database.as_ref()?, location?);
        let address = address.as_ref()?.value.copied();
        let domains: Box<[HostName]> = domains.iter().map(|host| host.value.copied()).collect();
        let certificates = certificates.iter().filter_map(|(pattern, named)| {
            let host = std::iter::once(&address).chain(&domains).find(|host| pattern.value.host() == Some(host));
            let pattern = host.map_or_else(|| pattern.value.clone(), |host| host.clone().into());
            Some((pattern, named.as_ref()?.files.clone()))
        });
        let certificates = certificates.collect();
        let config = TenantConfig {
            slug: slug.value.as_str().into(),
            name: name?.into(),
            address,
            domains,
            added_domains: 0,
            certificates,
            database: location,
            timezone: timezone?,
            requests_per_minute,
            scim_requests_per_minute,
            max_connections,
            max_in_flight,
            group_guard,
            oidc,
            origin: TenantOrigin::new(&slug.value, &slug.span, &database.span),
        };
        let served = context.served.and_then(|served| (served.tenant)(&config.slug));
        Some(served.filter(|served| served.is_same(&config)).unwrap_or_else(|| Arc::new(config)))
    };
    TenantTable { config: config(), slug, hosts: address.into_iter().chain(domains).collect(), certificates, database }
}

fn read_slug(text: StringValue, table: &TableReader<'_, '_>) -> Option<Located<String>> {
    let StringValue { value, span, .. } = text;
    let plain = value.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !plain || value.starts_with('-') || value.ends_with('-') || value.len() > MAX_SLUG {
        let help = "a slug is 1 to 63 lower-case letters, digits and hyphens, with no hyphen first or last";
        table.context().report(Problem::at(&span, "not a slug").help(help));
        return None;
    }
    Some(Located { value, span })
}

fn read_name(text: StringValue, table: &TableReader<'_, '_>) -> Option<String> {
    if is_valid_name(&text.value) {
        return Some(text.value);
    }
    table.context().report(Problem::at(&text.span, "not a name that can be shown").help(NAME_RULE));
    None
}

fn read_host(text: &StringValue, table: &TableReader<'_, '_>) -> Option<Located<HostName>> {
    match HostName::parse_domain(&text.value) {
        Ok(host) => Some(Located { value: host, span: text.span.clone() }),
        Err(fault) => {
            let problem = Problem::at(&text.span, fault.to_string());
            let problem = match fault.rule() {
                Some(rule) => problem.label(rule),
                None => problem,
            };
            table.context().report(problem);
            None
        }
    }
}

fn read_timezone(text: &StringValue, table: &TableReader<'_, '_>) -> Option<TimeZone> {
    // `localtime` depends on the machine, and the nodes of a gateway may differ.
    let portable = |zone: &TimeZone| zone.iana_name().is_some_and(|name| name != "localtime");
    let zone = TimeZone::get(&text.value).ok().filter(portable);
    if zone.is_none() {
        let label = "expected an IANA name such as `Europe/Berlin`";
        table.context().report(Problem::at(&text.span, "unknown time zone").label(label));
    }
    zone
}

fn read_group_guard(mut table: TableReader<'_, '_>) -> Guard {
    let max_detached_percent = table.integer(&guard_key::max_detached_percent);
    table.finish();
    Guard { max_detached_percent }
}

/// Parses a host, or `*.` followed by a domain.
fn read_pattern(key: StringValue, table: &TableReader<'_, '_>) -> Option<Located<HostPattern>> {
    if !key.value.starts_with("*.") {
        read_host(&key, table)?;
    }
    let pattern = HostPattern::parse(&key.value);
    if pattern.is_err() {
        let label = "expected a name alone, or `*.` and a name";
        table.context().report(Problem::at(&key.span, "not a host name").label(label));
    }
    Some(Located { value: pattern.ok()?, span: key.span })
}
