//! The URL of a Postgres database: what of it the driver reads, and what it would pass over.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::LazyLock;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use url::Url;

use super::InvalidLocation;

/// The parameters that a URL may have, as libpq names them (PostgreSQL documentation, 32.1.2), as far as the driver knows
/// them; `options[NAME]` besides.
pub(super) const PARAMETERS: [&str; 13] = [
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
    "options",
    "statement-cache-capacity",
];

/// Other names of some, which the driver takes as well.
const ALIASES: [&str; 5] = ["ssl-mode", "ssl-root-cert", "ssl-ca", "ssl-cert", "ssl-key"];

/// The values of `sslmode`.
const SSL_MODES: [&str; 6] = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"];

/// Refuses what the driver refuses, and what it would pass over: a mistyped `sslmode` must not turn verification off, and
/// a password that is not percent-encoded must not be taken for a host.
pub(super) fn check(text: &str) -> Result<(), InvalidLocation> {
    if plain_identity(text).is_some() {
        return Ok(());
    }
    let url = Url::parse(text).map_err(|_| InvalidLocation::NotAUrl)?;
    if has_stray_parts(&url) {
        return Err(InvalidLocation::NotAUrl);
    }
    for (index, (name, value)) in url.query_pairs().enumerate() {
        check_parameter(index + 1, &name, &value)?;
    }
    PgConnectOptions::from_str(text).map_err(|_| InvalidLocation::NotAUrl)?;
    Ok(())
}

/// A database's name does not go on after a `/` or an `@`, and no URL of a database has a fragment: a password with such
/// characters has moved there.
fn has_stray_parts(url: &Url) -> bool {
    url.fragment().is_some() || url.path().trim_start_matches('/').contains(['/', '@'])
}

fn check_parameter(number: usize, name: &str, value: &str) -> Result<(), InvalidLocation> {
    let expect = |good: bool, name, expected| {
        if good { Ok(()) } else { Err(InvalidLocation::InvalidParameter { name, expected }) }
    };
    match name {
        "sslmode" | "ssl-mode" => expect(
            value.parse::<PgSslMode>().is_ok(),
            "sslmode",
            "disable, allow, prefer, require, verify-ca or verify-full",
        ),
        "hostaddr" => expect(value.parse::<IpAddr>().is_ok(), "hostaddr", "an IP address"),
        "port" => expect(value.parse::<u16>().is_ok(), "port", "a number up to 65535"),
        "statement-cache-capacity" => expect(value.parse::<usize>().is_ok(), "statement-cache-capacity", "a number"),
        name if PARAMETERS.contains(&name) || ALIASES.contains(&name) => Ok(()),
        name if name.starts_with("options[") && name.ends_with(']') => Ok(()),
        _ => Err(InvalidLocation::UnknownParameter { number }),
    }
}

/// The identity of a URL that says plainly where its database is and leaves nothing to the environment; none for any
/// other, which the driver has to read. It looks for sockets, files and a dozen variables each time, which is much for a
/// gateway with 100,000 tenants that wants to start.
pub(super) fn plain_identity(text: &str) -> Option<String> {
    static OPTIONS_GIVEN: LazyLock<bool> = LazyLock::new(|| std::env::var_os("PGOPTIONS").is_some());
    static PORT_GIVEN: LazyLock<bool> = LazyLock::new(|| std::env::var_os("PGPORT").is_some());
    let url = Url::parse(text).ok().filter(|url| !*OPTIONS_GIVEN && !has_stray_parts(url))?;
    let encoded =
        [url.username(), url.password().unwrap_or_default(), url.path()].iter().any(|part| part.contains('%'));
    let plain_query =
        url.query().is_none_or(|query| query.strip_prefix("sslmode=").is_some_and(|mode| SSL_MODES.contains(&mode)));
    let host = url.host_str().filter(|host| !host.is_empty() && !host.contains('%'))?;
    let database = url.path().trim_start_matches('/');
    let port = match url.port() {
        Some(port) => port,
        None if *PORT_GIVEN => return None,
        None => 5432,
    };
    let plain = !encoded && plain_query && !url.username().is_empty() && !database.is_empty();
    plain.then(|| format!("postgres {host}:{port}/{database} "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_plainly_means_what_the_driver_reads() {
        let by_driver = |text: &str| {
            let options = PgConnectOptions::from_str(text).expect("a URL");
            let database = options.get_database().unwrap_or(options.get_username());
            format!("postgres {}:{}/{database} ", options.get_host(), options.get_port())
        };
        for text in [
            "postgres://app:secret@db.internal/forms",
            "postgresql://app@10.0.0.1:6432/forms?sslmode=verify-full",
            "postgres://app:@[::1]:6432//forms",
        ] {
            assert_eq!(plain_identity(text), Some(by_driver(text)), "{text}");
        }
        for text in [
            "postgres://app@db",
            "postgres://db/forms",
            "postgres://app:se%63ret@db/forms",
            "postgres://app@%2Frun%2Fpostgresql/forms",
            "postgres:///forms",
            "postgres://app@db/forms?sslmode=maybe",
            "postgres://app@db/forms?host=other",
            "postgres://app@db/forms?sslmode=require&port=7",
        ] {
            assert_eq!(plain_identity(text), None, "{text}");
        }
    }

    #[test]
    fn every_parameter_that_the_driver_knows_is_taken() {
        let names = PARAMETERS.iter().chain(&ALIASES).chain(&["options[work_mem]"]);
        let parameters: Vec<String> = names
            .map(|name| match *name {
                "sslmode" | "ssl-mode" => format!("{name}=verify-full"),
                "hostaddr" => format!("{name}=::1"),
                name => format!("{name}=7"),
            })
            .collect();
        assert!(check(&format!("postgres://app@db/forms?{}", parameters.join("&"))).is_ok());
        for mode in SSL_MODES {
            assert!(check(&format!("postgres://app@db/forms?sslmode={mode}")).is_ok(), "{mode}");
        }
    }

    #[test]
    fn what_the_driver_would_pass_over_is_refused() {
        for (text, told) in [
            ("postgres://app@db/forms?sslmod=verify-full", "parameter 1 is unknown; there are: sslmode, "),
            ("postgres://app@db/forms?sslmode=require&connect_timeout=9", "parameter 2 is unknown; "),
            ("postgres://app@db/forms?options[work_mem=1", "parameter 1 is unknown; "),
            ("postgres://app@db/forms?=", "parameter 1 is unknown; "),
            ("postgres://app@db/forms?sslmode=full", "`sslmode`: expected disable, allow, "),
            ("postgres://app@db/forms?ssl-mode=", "`sslmode`: expected disable, allow, "),
            ("postgres://app@db/forms?port=65536", "`port`: expected a number up to 65535"),
            ("postgres://app@db/forms?hostaddr=db", "`hostaddr`: expected an IP address"),
            ("postgres://app@db/forms?statement-cache-capacity=-1", "`statement-cache-capacity`: expected a number"),
            ("postgres://app:p@ss/w#?@db/forms", "not a Postgres URL"),
            ("postgres://app:p@ss/w@db/forms", "not a Postgres URL"),
            ("postgres://app:7#w@db/forms", "not a Postgres URL"),
            ("postgres://app:secret@db/forms#", "not a Postgres URL"),
            ("postgres://app:p/ss@db/forms", "not a Postgres URL"),
        ] {
            let error = check(text).expect_err(text).to_string();
            assert!(error.starts_with(told), "{text}: {error}");
        }
    }
}
