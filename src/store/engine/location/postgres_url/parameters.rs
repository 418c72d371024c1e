//! The parameters of a Postgres URL: which are supported, and how the others are refused.
//!
//! Every parameter that libpq defines or a provider prints is either applied or refused by name. Errors only repeat
//! names from this file, because any other text may be a part of a password.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use url::form_urlencoded::Serializer;

use super::settings;
use crate::store::engine::location::InvalidLocation;
use crate::store::engine::pooler::Pooling;
use crate::store::engine::postgres::{CONNECT_LIMIT, PostgresServer};
use crate::store::engine::session_attributes::SessionAttributes;
use crate::store::engine::session_source::Omitted;

/// The parameters that have an effect, in addition to `options[NAME]`.
pub(in crate::store::engine::location) const SUPPORTED: [&str; 19] = [
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "fallback_application_name",
    "connect_timeout",
    "target_session_attrs",
    "options",
    "schema",
    "statement-cache-capacity",
    "pooler",
    "pgbouncer",
];

/// The parameters that name a file.
const FILES: [&str; 3] = ["sslrootcert", "sslcert", "sslkey"];

/// The name of sessions whose URL gives none.
const APPLICATION_NAME: &str = "formgate";

/// Where the driver finds `sslrootcert` if a URL omits it.
const ROOT_VARIABLE: &str = "PGSSLROOTCERT";

/// The values of `sslmode`.
pub(super) const SSL_MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// Parameters, and the values that describe what happens anyway. Any other value is refused.
const IMPLIED: [(&str, &[&str], &str); 7] = [
    (
        "channel_binding",
        &["disable", "prefer"],
        "disable or prefer: the driver has no channel binding; `sslmode=verify-full` authenticates the server",
    ),
    ("gssencmode", &["disable", "prefer"], "disable or prefer: the driver has no GSSAPI; use TLS"),
    ("sslnegotiation", &["postgres"], "postgres: the driver has no direct TLS negotiation"),
    ("load_balance_hosts", &["disable"], "disable: a URL has one host"),
    ("sslcompression", &["0"], "0: the driver has no TLS compression"),
    ("sslsni", &["1"], "1: the driver always sends the server's name"),
    ("client_encoding", &["UTF8", "utf8", "UTF-8", "utf-8", "auto"], "UTF8: the only encoding of a connection"),
];

const NO_EFFECT: &str = "remove it, it has no effect here";

/// Parameters that would be ignored, with what to do instead.
const UNSUPPORTED: [(&str, &str); 32] = [
    ("passfile", "for a tenant of a file, name it in the environment variable PGPASSFILE"),
    ("service", "put the parameters of the service into the URL"),
    ("servicefile", "put the parameters of the service into the URL"),
    ("sslpassword", "decrypt the key that `sslkey` names"),
    ("sslcrl", "the driver reads no revocation lists"),
    ("sslcrldir", "the driver reads no revocation lists"),
    ("sslcertmode", "name a certificate in `sslcert`, or none"),
    ("requiressl", "write `sslmode=require`"),
    ("ssl", "write `sslmode=require` or `sslmode=verify-full`"),
    ("sslaccept", "write `sslmode=verify-full` or `sslmode=require`"),
    ("ssl_min_protocol_version", "the driver uses TLS 1.2 or newer"),
    ("ssl_max_protocol_version", "the driver uses TLS 1.2 or newer"),
    ("min_protocol_version", "the driver speaks version 3.0"),
    ("max_protocol_version", "the driver speaks version 3.0"),
    ("require_auth", "restrict the methods in the server's pg_hba.conf"),
    ("scram_client_key", "give the password"),
    ("scram_server_key", "give the password"),
    ("requirepeer", "restrict access to the directory of the socket"),
    ("krbsrvname", "the driver has no GSSAPI"),
    ("gsslib", "the driver has no GSSAPI"),
    ("gssdelegation", "the driver has no GSSAPI"),
    ("replication", "a replication connection serves no queries"),
    ("keepalives", NO_EFFECT),
    ("keepalives_idle", NO_EFFECT),
    ("keepalives_interval", NO_EFFECT),
    ("keepalives_count", NO_EFFECT),
    ("tcp_user_timeout", NO_EFFECT),
    ("uselibpqcompat", NO_EFFECT),
    ("connection_limit", "set `max_connections` of the tenant"),
    ("pool_timeout", "remove it; the limits of the gateway apply"),
    ("socket_timeout", "remove it; the limits of the gateway apply"),
    ("search_path", "write `schema=NAME`"),
];

/// The parameters of one URL, collected while it is parsed.
#[derive(Default)]
pub(super) struct Parameters {
    /// For the driver. The last one of a name wins.
    driver: Vec<(&'static str, String)>,
    host: String,
    address: Option<String>,
    /// Settings of the session, and other words of `options`.
    settings: Vec<(String, String)>,
    words: Vec<String>,
    schema: Option<String>,
    fallback_name: Option<String>,
    connect_limit: Option<Duration>,
    attributes: SessionAttributes,
    pooling: Pooling,
}

impl Parameters {
    /// Adds a value for the driver, unless it is empty, which libpq treats as omitted.
    pub(super) fn set(&mut self, name: &'static str, value: &str) {
        if name == "host" {
            value.clone_into(&mut self.host);
        } else if !value.is_empty() {
            self.driver.push((name, value.to_owned()));
        }
    }

    /// Reads parameter `number` of the query, counted from 1.
    pub(super) fn read(&mut self, number: usize, name: &str, value: &str) -> Result<(), InvalidLocation> {
        if let Some(setting) = name.strip_prefix("options[").and_then(|name| name.strip_suffix(']')) {
            self.settings.push((setting.to_owned(), value.to_owned()));
            return Ok(());
        }
        let name = match name {
            "ssl-mode" => "sslmode",
            "ssl-root-cert" | "ssl-ca" => "sslrootcert",
            "ssl-cert" => "sslcert",
            "ssl-key" => "sslkey",
            name => name,
        };
        if let Some(&name) = SUPPORTED.iter().find(|supported| **supported == name) {
            return self.take(name, value);
        }
        if let Some((name, values, expected)) = IMPLIED.iter().find(|(implied, ..)| *implied == name) {
            return expect(values.contains(&value), name, expected);
        }
        match UNSUPPORTED.iter().find(|(unsupported, _)| *unsupported == name) {
            Some(&(name, remedy)) => Err(InvalidLocation::UnsupportedParameter { name, remedy }),
            None => Err(InvalidLocation::UnknownParameter { number }),
        }
    }

    fn take(&mut self, name: &'static str, value: &str) -> Result<(), InvalidLocation> {
        match name {
            "host" | "hostaddr" | "port" if value.contains(',') => return Err(InvalidLocation::SeveralHosts),
            "host" if !value.is_empty() => {
                let literal = value.strip_prefix('[').and_then(|value| value.strip_suffix(']'));
                self.set(name, literal.unwrap_or(value));
            }
            "hostaddr" => {
                expect(value.parse::<IpAddr>().is_ok(), name, "an IP address")?;
                self.address = Some(value.to_owned());
            }
            "connect_timeout" => {
                let seconds = value.trim().parse::<i32>().ok();
                let seconds = seconds.ok_or(invalid(name, "a number of seconds, or 0 for the default"))?;
                self.connect_limit =
                    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
            }
            "target_session_attrs" => {
                self.attributes = SessionAttributes::parse(value)
                    .ok_or(invalid(name, "any, read-write, read-only, primary, standby or prefer-standby"))?;
            }
            "options" => {
                let (settings, words) = settings::split(value);
                self.settings.extend(settings);
                self.words.extend(words);
            }
            "schema" => {
                let expected = "one schema of your own, whose name has at most 63 bytes and no control characters";
                expect(is_schema(value) && self.schema.is_none(), name, expected)?;
                self.settings.push(("search_path".to_owned(), format!("\"{}\"", value.replace('"', "\"\""))));
                self.schema = Some(value.to_owned());
            }
            "fallback_application_name" => self.fallback_name = Some(value.to_owned()).filter(|name| !name.is_empty()),
            "pooler" => {
                self.pooling = Pooling::parse(value).ok_or(invalid(name, "transaction or session"))?;
            }
            // Prisma's spelling.
            "pgbouncer" => {
                expect(["true", "false"].contains(&value), name, "true or false")?;
                if value == "true" {
                    self.pooling = Pooling::Transaction;
                }
            }
            "sslmode" => {
                expect(
                    value.parse::<PgSslMode>().is_ok(),
                    name,
                    "disable, allow, prefer, require, verify-ca or verify-full",
                )?;
                self.set(name, value);
            }
            "sslrootcert" => {
                let expected = "the path of a PEM file, such as /etc/ssl/certs/ca-certificates.crt";
                expect(value != "system", name, expected)?;
                self.set(name, value);
            }
            "port" => {
                expect(value.is_empty() || value.parse::<u16>().is_ok(), name, "a number up to 65535")?;
                self.set(name, value);
            }
            "statement-cache-capacity" => {
                expect(value.parse::<usize>().is_ok(), name, "a number")?;
                self.set(name, value);
            }
            name => self.set(name, value),
        }
        Ok(())
    }

    /// Sets what the driver would take from the environment, the user of this process or a password file.
    fn fix_omitted(&mut self) -> Result<(), InvalidLocation> {
        let given = |name| self.driver.iter().rfind(|(given, _)| *given == name).map(|(_, value)| value.clone());
        let has_host = !self.host.is_empty() || self.address.is_some();
        let user = given("user").filter(|_| has_host).ok_or(InvalidLocation::LacksUserOrHost)?;
        let name = self.fallback_name.clone().unwrap_or_else(|| APPLICATION_NAME.to_owned());
        // An empty password keeps the driver from looking for another one.
        let fixed = [
            ("password", String::new()),
            ("dbname", user),
            ("port", "5432".to_owned()),
            ("sslmode", "prefer".to_owned()),
            ("application_name", name),
        ];
        let fixed: Vec<_> = fixed.into_iter().filter(|(name, _)| given(name).is_none()).collect();
        self.driver.extend(fixed);
        Ok(())
    }

    pub(super) fn into_server(mut self, omitted: Omitted) -> Result<PostgresServer, InvalidLocation> {
        if !self.host.is_empty() && !is_host(&self.host) {
            let expected = "a name, an IP address or the absolute path of the directory of a socket";
            return Err(invalid("host", expected));
        }
        if omitted == Omitted::Fixed {
            self.fix_omitted()?;
        }
        let host = std::mem::take(&mut self.host);
        if host.starts_with('/') {
            // A socket has no TLS, as in libpq.
            self.set("sslmode", "disable");
        }
        let host = self.address.take().unwrap_or(host);
        let mut query = Serializer::new("postgres://?".to_owned());
        let query = query.extend_pairs(&self.driver);
        if !host.is_empty() {
            query.append_pair("host", &host);
        }
        if !self.words.is_empty() {
            let escape = |word: &String| word.replace('\\', r"\\").replace(' ', r"\ ");
            query.append_pair("options", &self.words.iter().map(escape).collect::<Vec<_>>().join(" "));
        }
        let mut options = PgConnectOptions::from_str(&query.finish()).map_err(|_| InvalidLocation::NotAUrl)?;
        if options.get_application_name().is_none() {
            options = options.application_name(self.fallback_name.as_deref().unwrap_or(APPLICATION_NAME));
        }
        let has_root = self.driver.iter().any(|(name, _)| *name == "sslrootcert");
        if omitted == Omitted::Fixed && !has_root && std::env::var_os(ROOT_VARIABLE).is_some() {
            // No certificate in addition to the usual ones.
            options = options.ssl_root_cert_from_pem(Vec::new());
        }
        let files = self.driver.iter().filter(|(name, value)| {
            // The driver also takes the content of a file.
            FILES.contains(name) && !value.trim_start().starts_with("-----BEGIN")
        });
        let files = files.map(|(_, path)| path.into()).collect();
        let connect_limit = self.connect_limit.map_or(CONNECT_LIMIT, |limit| limit.max(CONNECT_LIMIT));
        Ok(PostgresServer::new(
            options.disable_statement_logging(),
            self.settings,
            connect_limit,
            self.attributes,
            self.pooling,
            self.schema,
            files,
        ))
    }
}

/// Whether a text can be the name of an account's own schema. Postgres truncates longer names, so that two of them
/// could be the same.
pub(super) fn is_schema(name: &str) -> bool {
    let is_of_postgres = name.starts_with("pg_") || name == "information_schema";
    (1..=63).contains(&name.len()) && !name.contains(char::is_control) && !is_of_postgres
}

/// Whether a text can be the host of a server: a name, an address, or the directory of a socket.
pub(super) fn is_host(text: &str) -> bool {
    let is_in_name = |character: char| {
        character.is_ascii_alphanumeric()
            || ['-', '.', '_', ':', '%', '~'].contains(&character)
            || !character.is_ascii()
    };
    text.starts_with('/') || (!text.is_empty() && text.chars().all(is_in_name))
}

fn invalid(name: &'static str, expected: &'static str) -> InvalidLocation {
    InvalidLocation::InvalidParameter { name, expected }
}

fn expect(good: bool, name: &'static str, expected: &'static str) -> Result<(), InvalidLocation> {
    if good { Ok(()) } else { Err(invalid(name, expected)) }
}
