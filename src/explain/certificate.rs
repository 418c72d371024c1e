//! Checks the certificate that a handshake for a host gets, and when it expires.
//!
//! Chooses and reads it with the same code as the edge.

use jiff::{Timestamp, Unit};

use super::Finding;
use crate::certificate::{self, Roots};
use crate::config::{Config, TenantConfig};
use crate::host::HostName;
use crate::instant::Rfc3339Micros;
use crate::store::with_causes;

/// How many days before expiry to warn. Automatic renewal runs a month before, so by now it has been failing for a
/// week. Larger: certificates are reported that are about to be renewed. Smaller: less time to fix the renewal.
const SOON_DAYS: i64 = 21;

/// Reads the certificate of a host as a handshake would.
pub(super) fn find(config: &Config, tenant: &TenantConfig, host: &HostName, roots: &Roots, now: Timestamp) -> Finding {
    let own = tenant.certificate(host).map(|(_, files)| files);
    let Some(files) = own.or(config.gateway.certificate.as_ref()) else {
        return Finding::passes("none is needed: no entry of `listen` speaks TLS");
    };
    let file = files.certificate.display();
    let certificate = match certificate::read(files) {
        Ok(certificate) => certificate,
        Err(error) => {
            let what = format!("{}: handshakes for `{host}` fail", with_causes(&error));
            return Finding::stops(what, format!("{}; new files are used without a restart", error.remedy()));
        }
    };
    if !certificate.names.covers(host) {
        let what = format!("`{file}` does not cover `{host}`: clients refuse it, and a request is answered with 421");
        return Finding::stops(what, certificate::not_covered_help(host, "it", &certificate.names));
    }
    if let Err(error) = certificate::check_date(certificate.validity, files, now) {
        return Finding::stops(format!("clients refuse it: {}", with_causes(&error)), error.remedy());
    }
    let concern = certificate::concerns(&certificate.key.cert, roots, now).into_iter().next();
    let Ok(expires) = Timestamp::from_second(certificate.validity.until) else {
        return Finding::passes(format!("`{file}`, which never expires"));
    };
    let days = now.until((Unit::Second, expires)).map_or(0, |left| left.get_seconds() / 86_400);
    let until = Rfc3339Micros(expires);
    if days < SOON_DAYS {
        Finding::warns(
            format!("`{file}` for `{host}` expires on {until}, in {days} days"),
            "renew it; new files are used without a restart",
        )
    } else if let Some(concern) = concern {
        Finding::warns(format!("`{file}`: {concern}"), concern.remedy())
    } else {
        Finding::passes(format!("`{file}`, until {until} ({days} days)"))
    }
}
