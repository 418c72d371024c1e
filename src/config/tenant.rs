//! A `[[tenant]]` table, checked on its own.
//!
//! Owns the keys of the table, their defaults and ranges. Once all tables are read, [`super::unique`] checks what
//! tenants must not share, and [`super::coverage`] whether their hosts have certificates.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hash, RandomState};
use std::num::NonZero;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use jiff::tz::TimeZone;

use super::TenantConfig;
use super::context::LoadContext;
use super::database;
use super::gateway::{NamedFiles, read_files};
use super::oidc::{self, OidcConfig};
use super::problem::{Problem, TenantOrigin};
use super::sections::parse_tenant;
use super::source::{SourceFile, SourceSection, SourceSpan};
use super::table::{StringValue, TableReader};
use crate::host::{HostName, HostPattern};
use crate::shown_text::{NAME_RULE, is_valid_name};
use crate::store::{DatabaseLocation, Guard};

/// The default of `requests_per_minute`: the budget in the service description.
const DEFAULT_REQUESTS_PER_MINUTE: u32 = 60;
/// The largest `requests_per_minute`. Larger: every admitted request is a timestamp in the window's log, and checking
/// it becomes slow. Smaller: busy integrations can't get the budget that they need.
const MAX_REQUESTS_PER_MINUTE: u32 = 100_000;
/// The default of `max_connections`. Larger: a few hundred tenants exhaust a Postgres server. Smaller: the concurrent
/// searches of one tenant wait for each other.
const DEFAULT_MAX_CONNECTIONS: u32 = 5;
/// The largest `max_connections`. Larger: a typing mistake passes. Smaller: a tenant can't use a large server.
const MAX_CONNECTIONS: u32 = 1000;
/// The default of `max_in_flight`. Larger: more searches than the tenant's connections can answer before clients time
/// out. Smaller: a burst is refused that would be served.
const DEFAULT_MAX_IN_FLIGHT: u32 = 64;
/// The largest `max_in_flight`. Larger: it would limit nothing, since the default limit on client connections is the
/// same. Smaller: a tenant with many concurrent clients is refused although the gateway has room.
const MAX_IN_FLIGHT: u32 = 10_000;
/// The maximum length of a slug. Larger: it no longer fits into a label of a host name (RFC 1035), and slugs become
/// part of addresses. Smaller: valid labels are refused.
const MAX_SLUG: usize = 63;

/// A value and its span.
#[derive(Clone)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) span: SourceSpan,
}

/// The table, and the values that are compared with other tables.
#[derive(Clone)]
pub(super) struct TenantTable {
    /// `None` if a key of the table was faulty.
    fields: Option<TenantFields>,
    pub(super) slug: Option<Located<String>>,
    /// The sign-in address if it is valid, followed by the custom domains.
    pub(super) hosts: Vec<Located<HostName>>,
    /// Certificates for single hosts and wildcards.
    pub(super) certificates: Vec<(Located<HostPattern>, Option<NamedFiles>)>,
    /// The identity of the database.
    pub(super) database: Option<Located<String>>,
}

/// The other values of a table without a fault.
#[derive(Clone)]
struct TenantFields {
    name: String,
    database: Located<DatabaseLocation>,
    timezone: TimeZone,
    requests_per_minute: u32,
    max_connections: u32,
    max_in_flight: u32,
    group_guard: Option<Guard>,
    oidc: Option<Arc<OidcConfig>>,
}

impl TenantTable {
    /// The tenant's configuration, in exactly sized allocations; `None` if a key of the table was faulty.
    fn config(&self, section_fingerprint: Option<NonZero<u64>>) -> Option<TenantConfig> {
        let Self { fields: Some(fields), slug: Some(slug), hosts, certificates, database: _ } = self else {
            return None;
        };
        let (address, domains) = hosts.split_first()?;
        let (address, domains) = (address.value.copied(), domains.iter().map(|host| host.value.copied()));
        let domains: Box<[HostName]> = domains.collect();
        let certificates = certificates.iter().filter_map(|(pattern, named)| {
            // Share the allocation of a name that appears twice.
            let host = std::iter::once(&address).chain(&domains).find(|host| pattern.value.host() == Some(host));
            let pattern = host.map_or_else(|| pattern.value.clone(), |host| host.clone().into());
            Some((pattern, named.as_ref()?.files.clone()))
        });
        let certificates = certificates.collect();
        Some(TenantConfig {
            slug: slug.value.as_str().into(),
            name: fields.name.as_str().into(),
            address,
            domains,
            added_domains: 0,
            certificates,
            database: fields.database.value.clone(),
            timezone: fields.timezone.clone(),
            requests_per_minute: fields.requests_per_minute,
            max_connections: fields.max_connections,
            max_in_flight: fields.max_in_flight,
            group_guard: fields.group_guard,
            oidc: fields.oidc.clone(),
            origin: TenantOrigin::new(&slug.value, &slug.span, &fields.database.span),
            section_fingerprint,
        })
    }
}

/// A tenant of the configuration. A valid one is kept without spans, which are many times as large; its section is
/// parsed again if a comparison with other tenants finds a fault.
pub(super) enum LoadedTenant {
    Valid(ValidTenant),
    Table(Box<TenantTable>),
}

/// A tenant whose table has no fault.
#[derive(Clone)]
pub(super) struct ValidTenant {
    pub(super) config: Arc<TenantConfig>,
    /// The fingerprint of its database's identity.
    database: u64,
    file: Arc<SourceFile>,
    section: Range<usize>,
}

/// The result of reading one section of a file.
pub(super) enum ParsedSection {
    /// The section is unchanged, and its tenant is already served.
    Served(ValidTenant),
    /// The tables, usually one, and the range of the section.
    Read(Vec<TenantTable>, Range<usize>),
}

impl ParsedSection {
    /// Reads a section of a file; `None` if the section is not a TOML document of its own.
    pub(super) fn read(
        file: &Arc<SourceFile>,
        section: Range<usize>,
        folder: &Path,
        context: &LoadContext<'_>,
    ) -> Option<Self> {
        if let Some(config) =
            context.served().and_then(|served| served.by_fingerprint.get(&fingerprint_of(file, &section)?))
        {
            let (config, database) = (Arc::clone(config), fingerprint(database::identity(&config.database, context)));
            return Some(Self::Served(ValidTenant { config, database, file: Arc::clone(file), section }));
        }
        read_section(file, section.clone(), folder, context).map(|tenants| Self::Read(tenants, section))
    }

    /// Adds the tenants of the section to the list.
    pub(super) fn push_into(
        &mut self,
        file: &Arc<SourceFile>,
        context: &LoadContext<'_>,
        tenants: &mut Vec<LoadedTenant>,
    ) {
        match self {
            Self::Served(valid) => tenants.push(LoadedTenant::Valid(valid.clone())),
            Self::Read(read, section) => match ValidTenant::of(read, file, section, context) {
                Some(valid) => tenants.push(LoadedTenant::Valid(valid)),
                None => tenants.extend(read.drain(..).map(|tenant| LoadedTenant::Table(Box::new(tenant)))),
            },
        }
    }
}

impl ValidTenant {
    fn of(
        read: &[TenantTable],
        file: &Arc<SourceFile>,
        section: &Range<usize>,
        context: &LoadContext<'_>,
    ) -> Option<Self> {
        let [tenant] = read else { return None };
        let config = tenant.config(fingerprint_of(file, section))?;
        let database = fingerprint(&tenant.database.as_ref()?.value);
        // Share the configuration that is already served.
        let served = context.served().and_then(|served| (served.tenant)(&config.slug));
        let config = served.filter(|served| served.is_same(&config)).unwrap_or_else(|| Arc::new(config));
        (tenant.certificates.len() == config.certificates.len()).then(|| Self {
            config,
            database,
            file: Arc::clone(file),
            section: section.clone(),
        })
    }
}

impl LoadedTenant {
    pub(super) fn slug(&self) -> Option<&str> {
        match self {
            Self::Valid(valid) => Some(&valid.config.slug),
            Self::Table(tenant) => tenant.slug.as_ref().map(|slug| &*slug.value),
        }
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = &HostName> {
        let (valid, located) = match self {
            Self::Valid(valid) => (Some(valid.config.hosts()), None),
            Self::Table(tenant) => (None, Some(tenant.hosts.iter().map(|host| &host.value))),
        };
        valid.into_iter().flatten().chain(located.into_iter().flatten())
    }

    /// Equal for the same database; different databases may collide.
    pub(super) fn database(&self) -> Option<u64> {
        match self {
            Self::Valid(valid) => Some(valid.database),
            Self::Table(tenant) => tenant.database.as_ref().map(|database| fingerprint(&database.value)),
        }
    }

    /// The path of its SQLite database.
    pub(super) fn database_file(&self) -> Option<Cow<'_, Path>> {
        match self {
            Self::Valid(valid) => valid.config.database.file().map(Cow::Borrowed),
            Self::Table(tenant) => {
                let identity = tenant.database.as_ref()?.value.strip_prefix(database::SQLITE)?;
                Some(Cow::Owned(identity.into()))
            }
        }
    }

    /// The tenant's table with all spans.
    pub(super) fn table(&self, context: &LoadContext<'_>) -> Cow<'_, TenantTable> {
        match self {
            Self::Table(tenant) => Cow::Borrowed(tenant),
            Self::Valid(ValidTenant { file, section, .. }) => {
                // Its faults were reported when it was first read.
                let fork = context.fork();
                let read = read_section(file, section.clone(), file.folder(), &fork).and_then(|mut read| read.pop());
                Cow::Owned(read.expect("it was read before"))
            }
        }
    }

    pub(super) fn into_config(self) -> Option<Arc<TenantConfig>> {
        match self {
            Self::Valid(valid) => Some(valid.config),
            Self::Table(tenant) => tenant.config(None).map(Arc::new),
        }
    }
}

fn read_section(
    file: &Arc<SourceFile>,
    section: Range<usize>,
    folder: &Path,
    context: &LoadContext<'_>,
) -> Option<Vec<TenantTable>> {
    let document = parse_tenant(&file.text()[section.clone()])?;
    let mut root = TableReader::root(context, &SourceSection::new(file, section.start), document);
    Some(root.tables("tenant").into_iter().map(|table| read(table, folder)).collect())
}

/// A fingerprint of a section: the same text in the same folder has the same meaning. The environment of the process
/// does not change.
fn fingerprint_of(file: &SourceFile, section: &Range<usize>) -> Option<NonZero<u64>> {
    NonZero::new(fingerprint((file.path().parent(), &file.text()[section.clone()])))
}

/// A hash of a value, stable within this process.
pub(super) fn fingerprint(value: impl Hash) -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEYS.hash_one(value)
}

/// Reads a `[[tenant]]` table.
pub(super) fn read(mut table: TableReader<'_, '_>, folder: &Path) -> TenantTable {
    let slug = table.required_string("slug").and_then(|text| read_slug(text, &table));
    let name = table.required_string("name").and_then(|text| read_name(text, &table));
    let address = table.required_string("address").and_then(|text| read_host(&text, &table));
    let domains: Vec<_> = table.strings("domains").iter().filter_map(|text| read_host(text, &table)).collect();
    let (database, identity) = table
        .required_string_with_variables("database")
        .and_then(|text| {
            let read = database::read(&text, folder, table.context());
            let read = read.map_err(|problem| table.context().report(problem)).ok()?;
            let located = Located { value: read.location, span: text.span.clone() };
            Some((located, Located { value: read.identity, span: text.span }))
        })
        .unzip();
    let timezone = table.string("timezone").map_or(Some(TimeZone::UTC), |text| read_timezone(&text, &table));
    let requests_per_minute =
        table.integer("requests_per_minute", 1..=MAX_REQUESTS_PER_MINUTE, DEFAULT_REQUESTS_PER_MINUTE);
    let max_connections = table.integer("max_connections", 1..=MAX_CONNECTIONS, DEFAULT_MAX_CONNECTIONS);
    let max_in_flight = table.integer("max_in_flight", 1..=MAX_IN_FLIGHT, DEFAULT_MAX_IN_FLIGHT);
    let group_guard = table.table("group_guard").map(read_group_guard);
    let oidc = oidc::read(table.table("oidc"), folder).map(Arc::new);
    let certificates = read_certificates(&mut table, folder);
    table.finish();

    let fields = || {
        address.as_ref().and(slug.as_ref())?;
        let (name, database, timezone) = (name?, database?, timezone?);
        Some(TenantFields {
            name,
            database,
            timezone,
            requests_per_minute,
            max_connections,
            max_in_flight,
            group_guard,
            oidc,
        })
    };
    TenantTable {
        fields: fields(),
        slug,
        hosts: address.into_iter().chain(domains).collect(),
        certificates,
        database: identity,
    }
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

pub(super) fn read_group_guard(mut table: TableReader<'_, '_>) -> Guard {
    if !table.contains("max_detached_percent") {
        table.context().report(Problem::at(table.span(), "missing key `max_detached_percent`"));
    }
    let max_detached_percent = table.integer("max_detached_percent", 0..=100, 100);
    table.finish();
    Guard { max_detached_percent }
}

fn read_certificates(
    table: &mut TableReader<'_, '_>,
    folder: &Path,
) -> Vec<(Located<HostPattern>, Option<NamedFiles>)> {
    let entries = table.table("tls").map(TableReader::named_tables).unwrap_or_default();
    let read = |(key, files): (StringValue, TableReader<'_, '_>)| {
        let pattern = read_pattern(key, &files);
        let named = read_files(files, folder);
        Some((pattern?, named))
    };
    entries.into_iter().filter_map(read).collect()
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
