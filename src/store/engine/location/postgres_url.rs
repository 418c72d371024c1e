//! Parses the URL of a Postgres database by libpq's grammar (PostgreSQL documentation, 32.1.1.2).
//!
//! The driver's own parser accepts fewer forms and ignores unknown parameters. So the URL is parsed here, and the
//! driver gets only parameters that it supports. What a URL omits, the driver takes from the environment and from a
//! password file, unless [`Omitted::Fixed`] says otherwise.

mod parameters;
mod settings;

use std::net::Ipv6Addr;
use std::sync::LazyLock;

use percent_encoding::percent_decode_str;
use url::Url;

use super::InvalidLocation;
use crate::store::engine::postgres::PostgresServer;
use crate::store::engine::session_source::Omitted;
pub(super) use parameters::SUPPORTED;
use parameters::{Parameters, SSL_MODES};

/// Parses a URL.
///
/// # Errors
/// [`InvalidLocation`] for everything that libpq refuses and everything that would be ignored: a mistyped `sslmode`
/// must not turn verification off, and a password that is not percent-encoded must not be mistaken for a host.
pub(super) fn parse(text: &str, omitted: Omitted) -> Result<PostgresServer, InvalidLocation> {
    let (host, url) = split(text)?;
    let mut parameters = Parameters::default();
    let (host, port) = host_and_port(host)?;
    parameters.set("host", &host);
    parameters.set("port", port);
    parameters.set("user", &decoded(url.username())?);
    parameters.set("password", &decoded(url.password().unwrap_or_default())?);
    parameters.set("dbname", &decoded(url.path().trim_start_matches('/'))?);
    for (index, (name, value)) in url.query_pairs().enumerate() {
        parameters.read(index + 1, &name, &value)?;
    }
    parameters.into_server(omitted)
}

/// The host and port as written, and the rest as a URL with a placeholder host: the URL parser refuses a URL with a
/// user and no host, which for libpq means the local socket.
fn split(text: &str) -> Result<(&str, Url), InvalidLocation> {
    let (_, after) = text.split_once("://").ok_or(InvalidLocation::NotAUrl)?;
    let end = after.find(['/', '?', '#']).unwrap_or(after.len());
    let (authority, rest) = after.split_at(end);
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let at = if user.is_empty() { "" } else { "@" };
    let url = Url::parse(&format!("postgres://{user}{at}host{rest}")).map_err(|_| InvalidLocation::NotAUrl)?;
    if has_stray_parts(&url) { Err(InvalidLocation::NotAUrl) } else { Ok((host, url)) }
}

/// A URL of a database has no fragment, and the name of the database contains no `/` or `@`. If there are such parts,
/// a password with unencoded characters was split.
fn has_stray_parts(url: &Url) -> bool {
    url.fragment().is_some() || url.path().trim_start_matches('/').contains(['/', '@'])
}

/// The host without the brackets of an IPv6 literal, and the port. Each is empty if omitted.
fn host_and_port(text: &str) -> Result<(String, &str), InvalidLocation> {
    if text.contains(',') {
        return Err(InvalidLocation::SeveralHosts);
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(literal) => {
            let (literal, after) = literal.split_once(']').ok_or(InvalidLocation::NotAUrl)?;
            let (address, _zone) = literal.split_once('%').unwrap_or((literal, ""));
            address.parse::<Ipv6Addr>().map_err(|_| InvalidLocation::NotAUrl)?;
            let port = if after.is_empty() { Some("") } else { after.strip_prefix(':') };
            (literal, port.ok_or(InvalidLocation::NotAUrl)?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    if !port.is_empty() && port.parse::<u16>().is_err() {
        return Err(InvalidLocation::NotAUrl);
    }
    // A zone is written `%25eth0` by RFC 6874, and `%eth0` by libpq.
    Ok((if host.contains("%25") || !text.starts_with('[') { decoded(host)? } else { host.to_owned() }, port))
}

fn decoded(text: &str) -> Result<String, InvalidLocation> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| InvalidLocation::NotAUrl)?;
    if text.contains('\0') { Err(InvalidLocation::NotAUrl) } else { Ok(text.into_owned()) }
}

/// The identity of a simple URL that leaves nothing to the environment. None for any other URL, which the driver has
/// to parse. The driver looks for sockets, files and a dozen variables each time, which adds up when a gateway with
/// 100,000 tenants starts.
pub(super) fn plain_identity(text: &str, omitted: Omitted) -> Option<String> {
    static OPTIONS_GIVEN: LazyLock<bool> = LazyLock::new(|| std::env::var_os("PGOPTIONS").is_some());
    static PORT_GIVEN: LazyLock<bool> = LazyLock::new(|| std::env::var_os("PGPORT").is_some());
    let asks_environment = omitted == Omitted::FromEnvironment;
    if asks_environment && *OPTIONS_GIVEN {
        return None;
    }
    let (host, url) = split(text).ok()?;
    let is_encoded =
        [host, url.username(), url.password().unwrap_or_default(), url.path()].iter().any(|part| part.contains('%'));
    let is_plain_query = url.query().is_none_or(|query| query.split('&').all(is_plain_parameter));
    let (host, port) = host_and_port(host).ok()?;
    let database = url.path().trim_start_matches('/');
    let port = match port {
        "" if asks_environment && *PORT_GIVEN => return None,
        "" => "5432",
        port => port,
    };
    let is_plain = !is_encoded
        && is_plain_query
        && parameters::is_host(&host)
        && !url.username().is_empty()
        && !database.is_empty();
    let mut schemas = url.query_pairs().filter(|(name, _)| name == "schema").map(|(_, schema)| schema);
    let schema = schemas.next();
    if schemas.next().is_some() {
        return None;
    }
    let setting = schema.filter(|schema| schema != "public").map(|schema| format!(" -c search_path={schema}"));
    let setting = setting.unwrap_or_default();
    is_plain.then(|| format!("postgres {host}:{port}/{database} {setting}"))
}

fn is_plain_parameter(parameter: &str) -> bool {
    match parameter.split_once('=') {
        Some(("schema", name)) => {
            let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            is_plain && parameters::is_schema(name)
        }
        Some(("sslmode", mode)) => SSL_MODES.contains(&mode),
        Some(("pooler", mode)) => ["session", "transaction"].contains(&mode),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
