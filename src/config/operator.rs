//! The keys `registry`, `registry_snapshot` and `tenant_variables` of `[gateway]`, and the `[gateway.operator]` table.
//!
//! The registry has tenants in addition to those of the files, and the operator API changes it. Both are optional, but for one
//! rule: callers over TCP need tokens, which the registry keeps.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::database;
use super::listen::ListenAddresses;
use super::places::Places;
use super::problem::Problem;
use super::table::{StringValue, TableReader};
use super::tenant_variables::{self, TenantVariables};
use crate::store::DatabaseLocation;

/// The default of `registry_snapshot`, in the folder of the main file.
const DEFAULT_SNAPSHOT: &str = "registry-snapshot.db";

/// The longest path of a socket that the system takes, in bytes (`sun_path` of unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// The registry.
#[derive(Clone, Debug, PartialEq)]
pub struct RegistryConfig {
    /// Its database.
    pub database: DatabaseLocation,
    /// The SQLite file in which this node keeps what it last read of the registry.
    pub snapshot: DatabaseLocation,
    /// The folder that relative paths of its tenants start at.
    pub folder: PathBuf,
    /// The environment variables that its tenants may use.
    pub variables: TenantVariables,
    /// Whether this node writes to it, and keeps the snapshot.
    pub is_written: bool,
}

impl RegistryConfig {
    /// Which database of the gateway's own one is, or is a file of. Looks at the file system.
    #[must_use]
    pub fn own(&self, wanted: &DatabaseLocation) -> Option<&'static str> {
        let own = [(&self.database, "the registry"), (&self.snapshot, "the snapshot of the registry")];
        own.into_iter().find(|(own, _)| database::is_file_of(wanted, own)).map(|(_, what)| what)
    }

    /// The snapshot, if this node keeps one.
    #[must_use]
    pub fn kept_snapshot(&self) -> Option<&DatabaseLocation> {
        self.is_written.then_some(&self.snapshot)
    }

    /// What a command reports that needs a registry and finds none. Never shows a password.
    #[must_use]
    pub fn missing(&self) -> String {
        format!(
            "the registry `{:?}` does not exist yet: a node creates it when it starts, and `formgate tenant import` when it \
             adds tenants; if it should exist, correct `registry` in `[gateway]`",
            self.database
        )
    }
}

/// The `[gateway.operator]` table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorConfig {
    /// Where the operator API is served; at least one.
    pub listen: Vec<OperatorAddress>,
}

/// An address of the operator API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorAddress {
    /// A socket in the file system; whoever may connect to it is the operator.
    Unix(PathBuf),
    /// TCP, for callers with a token.
    Tcp(SocketAddr),
}

impl std::fmt::Display for OperatorAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// Reads the keys of the registry; `None` if there is no registry.
pub(super) fn read_registry(
    table: &mut TableReader<'_, '_>,
    folder: &Path,
    places: &mut Places,
) -> Option<RegistryConfig> {
    let variables = tenant_variables::read(table);
    let snapshot_at = table.span_of("registry_snapshot");
    let is_given = table.contains("registry");
    let (registry, snapshot) = (table.string("registry"), table.string("registry_snapshot"));
    let Some(text) = registry else {
        if let Some(span) = snapshot_at.filter(|_| !is_given) {
            let problem = Problem::at(&span, "there is no registry to keep a snapshot of");
            table.context().report(problem.help("add `registry`, or remove this key"));
        }
        return None;
    };
    let read = database::read(&text, folder, table.context());
    let address = read.map_err(|problem| table.context().report(problem)).ok()?;
    let snapshot = snapshot.map_or_else(|| DEFAULT_SNAPSHOT.to_owned(), |text| text.value);
    let Ok(snapshot) = DatabaseLocation::parse(&format!("sqlite:{snapshot}"), folder) else {
        let span = snapshot_at.as_ref().unwrap_or(&text.span);
        table.context().report(Problem::at(span, "not the path of a file"));
        return None;
    };
    places.registry = address.location.file().map(|file| (file.to_owned(), text.span.clone()));
    if let Some((file, span)) = snapshot.file().zip(snapshot_at.as_ref()) {
        places.snapshot = Some((file.to_owned(), span.clone()));
    }
    if database::is_file_of(&address.location, &snapshot) {
        table.context().report(Problem::at(&text.span, "the registry can't be its own snapshot"));
        return None;
    }
    let folder = folder.to_owned();
    Some(RegistryConfig { database: address.location, snapshot, folder, variables, is_written: true })
}

/// Reads the table; `None` if it is missing.
pub(super) fn read(
    table: Option<TableReader<'_, '_>>,
    has_registry: bool,
    folder: &Path,
    taken: &mut ListenAddresses<'_>,
    places: &mut Places,
) -> Option<OperatorConfig> {
    let mut table = table?;
    let texts = table.required_strings("listen");
    let mut listen = Vec::with_capacity(texts.len());
    for text in &texts {
        let Some(address) = read_address(text, has_registry, folder, &table) else { continue };
        match &address {
            OperatorAddress::Unix(path) => places.sockets.push((path.clone(), text.span.clone())),
            OperatorAddress::Tcp(address) => taken.take(*address, &text.span),
        }
        listen.push(address);
    }
    table.finish();
    Some(OperatorConfig { listen })
}

fn read_address(
    text: &StringValue,
    has_registry: bool,
    folder: &Path,
    table: &TableReader<'_, '_>,
) -> Option<OperatorAddress> {
    let report = |problem: Problem| table.context().report(problem);
    if let Some(written) = text.value.strip_prefix("unix:") {
        let path = folder.join(written);
        if !written.is_empty() && !written.ends_with('/') && path.as_os_str().len() <= MAX_SOCKET_PATH {
            return Some(OperatorAddress::Unix(path));
        }
        let label = format!("expected the path of a socket after `unix:`, of at most {MAX_SOCKET_PATH} bytes");
        report(Problem::at(&text.span, "not the path of a socket").label(label));
        return None;
    }
    let Ok(address) = text.value.parse() else {
        let label = "expected `unix:PATH` or `IP:PORT`, such as `127.0.0.1:9465`";
        report(Problem::at(&text.span, "not an address to listen on").label(label));
        return None;
    };
    if SocketAddr::ip(&address).is_unspecified() {
        let problem =
            Problem::at(&text.span, "the operator API has no TLS, and every network of this machine reaches it here");
        report(problem.help("listen on a loopback or private address, or on a socket: `unix:PATH`").into_warning());
    }
    if !has_registry {
        let problem = Problem::at(&text.span, "callers over TCP need tokens, which the registry keeps");
        report(problem.help("add `registry` to `[gateway]`, or listen on a socket: `unix:PATH`"));
    }
    Some(OperatorAddress::Tcp(address))
}
