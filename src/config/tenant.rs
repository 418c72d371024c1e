//! One `[[tenant]]` table, checked by itself.
//!
//! Owns the keys of the table, their defaults and ranges. What tenants must not share is checked in
//! [`super::unique`], and whether their hosts have certificates in [`super::coverage`], once all are read.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hash, RandomState};
use std::num::NonZero;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use jiff::tz::TimeZone;

use super::TenantConfig;
use super::database;
use super::file::{Reading, Table, Text};
use super::folders::folder_of;
use super::gateway::{NamedFiles, read_files};
use super::pieces::parse_tenant;
use super::problem::{Origin, Problem};
use super::source::{Place, Source, SourceFile};
use crate::host::{HostName, HostPattern};
use crate::store::{DatabaseLocation, Guard};

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
#[derive(Clone)]
pub(super) struct Placed<T> {
    pub(super) value: T,
    pub(super) place: Place,
}

/// The table, and what has to be compared with other tables.
#[derive(Clone)]
pub(super) struct Tenant {
    /// Absent when a key of the table was faulty.
    whole: Option<Whole>,
    pub(super) slug: Option<Placed<String>>,
    /// The sign-in address, where it is sound, and the custom domains.
    pub(super) hosts: Vec<Placed<HostName>>,
    /// Certificates of single hosts, and of all below a name.
    pub(super) certificates: Vec<(Placed<HostPattern>, Option<NamedFiles>)>,
    /// The identity of the database.
    pub(super) database: Option<Placed<String>>,
}

/// What a table without a fault says beside that.
#[derive(Clone)]
struct Whole {
    name: String,
    database: Placed<DatabaseLocation>,
    timezone: TimeZone,
    requests_per_minute: u32,
    max_connections: u32,
    max_in_flight: u32,
    group_guard: Option<Guard>,
}

impl Tenant {
    /// The tenant as it is configured, in memory of its own; none when a key of the table was faulty.
    fn config(&self, written: Option<NonZero<u64>>) -> Option<TenantConfig> {
        let Self { whole: Some(whole), slug: Some(slug), hosts, certificates, database: _ } = self else { return None };
        let (address, domains) = hosts.split_first()?;
        let (address, domains) = (address.value.copied(), domains.iter().map(|host| host.value.copied()));
        let domains: Box<[HostName]> = domains.collect();
        let certificates = certificates.iter().filter_map(|(pattern, named)| {
            // A name that stands in two places is held once.
            let host = std::iter::once(&address).chain(&domains).find(|host| pattern.value.host() == Some(host));
            let pattern = host.map_or_else(|| pattern.value.clone(), |host| host.clone().into());
            Some((pattern, named.as_ref()?.files.clone()))
        });
        let certificates = certificates.collect();
        Some(TenantConfig {
            slug: slug.value.as_str().into(),
            name: whole.name.as_str().into(),
            address,
            domains,
            certificates,
            database: whole.database.value.clone(),
            timezone: whole.timezone.clone(),
            requests_per_minute: whole.requests_per_minute,
            max_connections: whole.max_connections,
            max_in_flight: whole.max_in_flight,
            group_guard: whole.group_guard,
            origin: Origin::new(&slug.value, &slug.place, &whole.database.place),
            written,
        })
    }
}

/// One of all tenants. A sound one is held without its places, which are many times as large, and is read once more
/// where a comparison with others finds a fault.
pub(super) enum Listed {
    Sound(Sound),
    Placed(Box<Tenant>),
}

/// A tenant whose table is whole.
#[derive(Clone)]
pub(super) struct Sound {
    pub(super) config: Arc<TenantConfig>,
    /// Of the identity of its database.
    database: u64,
    file: Arc<SourceFile>,
    piece: Range<usize>,
}

/// What stands in a piece of a file, as long as only some of them are in memory.
pub(super) enum Draft {
    /// What is served already, by the same words.
    Served(Sound),
    /// The tables, mostly one, and which piece it is.
    Read(Vec<Tenant>, Range<usize>),
}

impl Draft {
    /// Reads a piece of a file; none when the piece is no document of its own.
    pub(super) fn read(
        file: &Arc<SourceFile>,
        piece: Range<usize>,
        folder: &Path,
        reading: &Reading<'_>,
    ) -> Option<Self> {
        if let Some(config) = reading.served().and_then(|served| served.written.get(&fingerprint_of(file, &piece)?)) {
            let (config, database) = (Arc::clone(config), fingerprint(database::identity(&config.database, reading)));
            return Some(Self::Served(Sound { config, database, file: Arc::clone(file), piece }));
        }
        read_piece(file, piece.clone(), folder, reading).map(|tenants| Self::Read(tenants, piece))
    }

    /// Adds the tenants of the piece, and leaves what was read of them.
    pub(super) fn list(&mut self, file: &Arc<SourceFile>, reading: &Reading<'_>, tenants: &mut Vec<Listed>) {
        match self {
            Self::Served(sound) => tenants.push(Listed::Sound(sound.clone())),
            Self::Read(read, piece) => match Sound::of(read, file, piece, reading) {
                Some(sound) => tenants.push(Listed::Sound(sound)),
                None => tenants.extend(read.drain(..).map(|tenant| Listed::Placed(Box::new(tenant)))),
            },
        }
    }
}

impl Sound {
    fn of(read: &[Tenant], file: &Arc<SourceFile>, piece: &Range<usize>, reading: &Reading<'_>) -> Option<Self> {
        let [tenant] = read else { return None };
        let config = tenant.config(fingerprint_of(file, piece))?;
        let database = fingerprint(&tenant.database.as_ref()?.value);
        // What is served already is held once.
        let served = reading.served().and_then(|served| (served.tenant)(&config.slug));
        let config = served.filter(|served| served.is_same(&config)).unwrap_or_else(|| Arc::new(config));
        (tenant.certificates.len() == config.certificates.len()).then(|| Self {
            config,
            database,
            file: Arc::clone(file),
            piece: piece.clone(),
        })
    }
}

impl Listed {
    pub(super) fn slug(&self) -> Option<&str> {
        match self {
            Self::Sound(sound) => Some(&sound.config.slug),
            Self::Placed(tenant) => tenant.slug.as_ref().map(|slug| &*slug.value),
        }
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = &HostName> {
        let (sound, placed) = match self {
            Self::Sound(sound) => (Some(sound.config.hosts()), None),
            Self::Placed(tenant) => (None, Some(tenant.hosts.iter().map(|host| &host.value))),
        };
        sound.into_iter().flatten().chain(placed.into_iter().flatten())
    }

    /// Equal for one database; two may have the same by chance.
    pub(super) fn database(&self) -> Option<u64> {
        match self {
            Self::Sound(sound) => Some(sound.database),
            Self::Placed(tenant) => tenant.database.as_ref().map(|database| fingerprint(&database.value)),
        }
    }

    /// The tenant with the places of all that it says.
    pub(super) fn placed(&self, reading: &Reading<'_>) -> Cow<'_, Tenant> {
        match self {
            Self::Placed(tenant) => Cow::Borrowed(tenant),
            Self::Sound(Sound { file, piece, .. }) => {
                // Its faults were told when it was read first.
                let apart = reading.apart();
                let folder = folder_of(file.path());
                let read = read_piece(file, piece.clone(), &folder, &apart).and_then(|mut read| read.pop());
                Cow::Owned(read.expect("it was read before"))
            }
        }
    }

    pub(super) fn into_config(self) -> Option<Arc<TenantConfig>> {
        match self {
            Self::Sound(sound) => Some(sound.config),
            Self::Placed(tenant) => tenant.config(None).map(Arc::new),
        }
    }
}

fn read_piece(
    file: &Arc<SourceFile>,
    piece: Range<usize>,
    folder: &Path,
    reading: &Reading<'_>,
) -> Option<Vec<Tenant>> {
    let document = parse_tenant(&file.text()[piece.clone()])?;
    let mut root = Table::root(reading, &Source::new(file, piece.start), document);
    Some(root.tables("tenant").into_iter().map(|table| read(table, folder)).collect())
}

/// A number for what a piece says: with the same words in the same folder, it says the same. Variables are those of the
/// process, which don't change.
fn fingerprint_of(file: &SourceFile, piece: &Range<usize>) -> Option<NonZero<u64>> {
    NonZero::new(fingerprint((file.path().parent(), &file.text()[piece.clone()])))
}

/// A number for a value, the same throughout this process.
fn fingerprint(value: impl Hash) -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEYS.hash_one(value)
}

/// Reads a `[[tenant]]` table.
pub(super) fn read(mut table: Table<'_, '_>, folder: &Path) -> Tenant {
    let slug = table.required_text("slug").and_then(|text| read_slug(text, &table));
    let name = table.required_text("name");
    let address = table.required_text("address").and_then(|text| read_host(&text, &table));
    let domains: Vec<_> = table.texts("domains").iter().filter_map(|text| read_host(text, &table)).collect();
    let (database, identity) = table
        .required_text("database")
        .and_then(|text| {
            let read = database::read(&text, folder, table.reading());
            let read = read.map_err(|problem| table.reading().report(problem)).ok()?;
            let placed = Placed { value: read.location, place: text.place.clone() };
            Some((placed, Placed { value: read.identity, place: text.place }))
        })
        .unzip();
    let timezone = table.text("timezone").map_or(Some(TimeZone::UTC), |text| read_timezone(&text, &table));
    let requests_per_minute = table.integer("requests_per_minute", 1..=MOST_REQUESTS_PER_MINUTE, REQUESTS_PER_MINUTE);
    let max_connections = table.integer("max_connections", 1..=MOST_CONNECTIONS, MAX_CONNECTIONS);
    let max_in_flight = table.integer("max_in_flight", 1..=MOST_IN_FLIGHT, MAX_IN_FLIGHT);
    let group_guard = table.table("group_guard").map(read_group_guard);
    let certificates = read_certificates(&mut table, folder);
    table.finish();

    let whole = || {
        address.as_ref().and(slug.as_ref())?;
        let (name, database, timezone) = (name?.value, database?, timezone?);
        Some(Whole { name, database, timezone, requests_per_minute, max_connections, max_in_flight, group_guard })
    };
    Tenant {
        whole: whole(),
        slug,
        hosts: address.into_iter().chain(domains).collect(),
        certificates,
        database: identity,
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

pub(super) fn read_group_guard(mut table: Table<'_, '_>) -> Guard {
    if !table.contains("max_detached_percent") {
        table.reading().report(Problem::at(table.place(), "missing key `max_detached_percent`"));
    }
    let max_detached_percent = table.integer("max_detached_percent", 0..=100, 100);
    table.finish();
    Guard { max_detached_percent }
}

fn read_certificates(table: &mut Table<'_, '_>, folder: &Path) -> Vec<(Placed<HostPattern>, Option<NamedFiles>)> {
    let entries = table.table("tls").map(Table::entries).unwrap_or_default();
    let read = |(key, files): (Text, Table<'_, '_>)| {
        let pattern = read_pattern(key, &files);
        let named = read_files(files, folder);
        Some((pattern?, named))
    };
    entries.into_iter().filter_map(read).collect()
}

/// A host, or `*.` and the name below which hosts are meant.
fn read_pattern(key: Text, table: &Table<'_, '_>) -> Option<Placed<HostPattern>> {
    if !key.value.starts_with("*.") {
        read_host(&key, table)?;
    }
    let pattern = HostPattern::parse(&key.value);
    if pattern.is_err() {
        let label = "expected a name alone, or `*.` and a name";
        table.reading().report(Problem::at(&key.place, "not a host name").label(label));
    }
    Some(Placed { value: pattern.ok()?, place: key.place })
}
