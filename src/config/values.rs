//! Values that keys of several tables have: keys that seal, DNS servers, files of certificate authorities.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use rustls::pki_types::CertificateDer;
use x509_parser::x509::X509Version;

use super::context::LoadContext;
use super::problem::Problem;
use super::table::StringValue;
use crate::certificate::parse_chain;
use crate::regular_file::{self, MAX_PEM};
use crate::seal::SealKey;

/// The port of DNS.
const DNS_PORT: u16 = 53;

/// How to make a key that seals.
pub(super) const MAKE_KEY: &str = "make one: `openssl rand -base64 32`";

pub(super) fn read_key(text: &StringValue, context: &LoadContext<'_>) -> Option<SealKey> {
    let key = SealKey::parse(&text.value);
    if let Err(error) = &key {
        let problem = Problem::at(&text.span, error.to_string());
        context.report(problem.help(MAKE_KEY));
    }
    key.ok()
}

pub(super) fn read_dns_server(text: &StringValue, context: &LoadContext<'_>) -> Option<SocketAddr> {
    let address = text.value.parse::<IpAddr>().map(|address| SocketAddr::new(address, DNS_PORT));
    let address = address.ok().or_else(|| text.value.parse().ok());
    if address.is_none() {
        let problem = Problem::at(&text.span, "not the address of a DNS server");
        context.report(problem.label("expected an IP address, or `IP:PORT`"));
    }
    address
}

pub(super) fn read_authorities(
    path: &StringValue,
    folder: &Path,
    context: &LoadContext<'_>,
) -> Option<Vec<CertificateDer<'static>>> {
    let file = folder.join(&path.value);
    let (title, cause) = match authorities_of(&file) {
        Ok(authorities) => return Some(authorities),
        Err(fault) => fault,
    };
    let problem = Problem::at(&path.span, title);
    let problem = cause.into_iter().fold(problem, Problem::label);
    // The variable may contain the certificates themselves.
    context.report(match path.from_environment {
        true => problem.help("check the variable, the path in it, and the rights to the file"),
        false => problem.help(format!("the file is `{}`", file.display())),
    });
    None
}

/// The certificates of a file, or the title and label of its fault.
fn authorities_of(file: &Path) -> Result<Vec<CertificateDer<'static>>, (&'static str, Option<String>)> {
    let read = regular_file::read(file, MAX_PEM);
    let text = read.map_err(|error| ("can't read the certificate authorities", Some(error.to_string())))?;
    let authorities = parse_chain(&text).ok_or(("no certificate in PEM form", None))?;
    for (number, authority) in (1..).zip(&authorities) {
        if webpki::anchor_from_trusted_cert(authority).is_err() {
            return Err(("a certificate authority is malformed", Some(format!("it is number {number}"))));
        }
        if let Some(subject) = subject_of_other(authority) {
            let label = format!("number {number} is for `{subject}`: its basic constraints lack `CA:TRUE`");
            return Err(("a certificate is not that of a certificate authority", Some(label)));
        }
    }
    Ok(authorities)
}

/// The subject of a certificate that can't issue any (RFC 5280, section 4.2.1.9), such as that of a server. `None` for one of an
/// authority, and for those that are trusted without it: a server's that is signed by itself, and old roots without extensions.
fn subject_of_other(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, read) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let is_of_itself = read.subject().as_raw() == read.issuer().as_raw();
    let is_authority = read.is_ca() || is_of_itself || read.version() == X509Version::V1;
    (!is_authority).then(|| read.subject().to_string())
}
