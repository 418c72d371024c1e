//! The `[gateway.operator]` table: where the operator API is served, which changes the registry.
//!
//! Callers over TCP need tokens, which the registry keeps.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::declaration::keys;
use super::folders::CanonicalFolders;
use super::listen::ListenAddresses;
use super::places::Places;
use super::problem::Problem;
use super::table::{StringValue, TableReader};

/// The longest path of a socket that the system takes, in bytes (`sun_path` of unix(7)).
const MAX_SOCKET_PATH: usize = 107;

keys! { key:
    listen = strings(),
        "the addresses, at least one: `\"unix:PATH\"` for a socket, or `\"IP:PORT\"` for plain HTTP. A socket has mode 0660 and \
         needs no token; its path has at most 107 bytes. TCP needs an operator token, so `registry` must be set; there is no \
         TLS, so use a loopback address or a private network. An address has 64 connections: where they are in use, one that \
         has sent no whole request for 250 ms gives way to a new one; a body may take 30 seconds, and a pause in it 5. Of a \
         caller (a token, or a system user) 16 calls may wait at once, of all callers 48, and of a caller no more than are left \
         for the others; calls that wait are those with `wait`, and `check` of a domain. Further ones to `/v1/changes` get 429, \
         and all others are answered without waiting";
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

/// Reads the table.
pub(super) fn read(
    mut table: TableReader<'_, '_>,
    has_registry: bool,
    folder: &Path,
    taken: &mut ListenAddresses<'_>,
    places: &mut Places,
) -> OperatorConfig {
    let texts = table.strings(&key::listen);
    let mut listen = Vec::with_capacity(texts.len());
    let (folders, mut sockets) = (CanonicalFolders::default(), Vec::<(PathBuf, &StringValue)>::new());
    for text in &texts {
        let Some(address) = read_address(text, has_registry, folder, &table) else { continue };
        match &address {
            OperatorAddress::Unix(path) => {
                let socket = folders.identity(path);
                if let Some((_, first)) = sockets.iter().find(|(other, _)| *other == socket) {
                    let problem =
                        Problem::at(&text.span, format!("`{}` is the socket of an earlier entry", text.value));
                    table.context().report(problem.label("here").earlier(&first.span, "first here"));
                }
                sockets.push((socket, text));
                places.sockets.push((path.clone(), text.span.clone()));
            }
            OperatorAddress::Tcp(address) => taken.take(*address, &text.span),
        }
        listen.push(address);
    }
    table.finish();
    OperatorConfig { listen }
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
