//! How an operator fixes files that are not a usable certificate.
//!
//! Used by the reports of `check`, the steps of `explain` and the log. Quotes no path except that of an unreadable
//! file; FILE, KEY and NEW stand for paths.

use std::io::{self, ErrorKind};
use std::path::Path;

use super::contents::Contents;
use super::{CertificateError, MalformedCertificate, OutOfDate};
use crate::host::{CertificateNames, HostName};
use crate::rights;

impl CertificateError {
    /// How to fix it. Renewed files are used without a restart.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::CertificateUnreadable { path, source } | Self::KeyUnreadable { path, source } => unreadable(path, source),
            Self::NoCertificate { source, .. } => source.remedy("x509"),
            Self::NoKey { source, .. } => source.remedy("pkey"),
            Self::KeyEncrypted { .. } => {
                "formgate asks for no passphrase; decrypt it: openssl pkey -in KEY -out NEW; chmod 600 NEW".to_owned()
            }
            Self::CertificateMalformed { source: MalformedCertificate::Unverifiable(webpki::Error::UnsupportedCertVersion), .. } => {
                "it is an X.509 certificate of version 1: have it issued again as version 3, with subjectAltName".to_owned()
            }
            Self::CertificateMalformed { .. } => "copy the file again, whole, or have it issued again".to_owned(),
            Self::KeyUnusable { .. } => {
                "generate another key and have a certificate issued for it: openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out KEY".to_owned()
            }
            Self::KeyMismatch { .. } => {
                "name files that belong together: `openssl x509 -noout -pubkey -in FILE` and `openssl pkey -pubout -in KEY` print the same".to_owned()
            }
            Self::LeafNotFirst { .. } => "write it first, then its issuer, then the issuer of that".to_owned(),
            Self::Obtained { .. } => {
                "keep every key of `seal_keys` with which keys were sealed; `formgate domain check` has it obtained again".to_owned()
            }
            Self::OutOfDate { source: OutOfDate::Expired(_), .. } => {
                "renew it; new files are used without a restart".to_owned()
            }
            Self::OutOfDate { source: OutOfDate::NotYet(_), .. } => "check the clock of this machine".to_owned(),
        }
    }

    /// What the file contains instead, if it is not the expected PEM.
    #[must_use]
    pub fn contents(&self) -> Option<&Contents> {
        match self {
            Self::NoCertificate { source, .. } | Self::NoKey { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// How to fix a certificate that does not cover a host.
#[must_use]
pub fn not_covered_help(host: &HostName, certificate: &str, names: &CertificateNames) -> String {
    let names = match names.listed(MAX_LISTED_NAMES) {
        Some(listed) => format!("{certificate} covers {listed}"),
        None => format!("{certificate} has no DNS name in subjectAltName, and clients ignore a common name"),
    };
    format!("add [tenant.tls.\"{host}\"] or a gateway certificate with that name; {names}")
}

/// How many names of a certificate a report lists. Larger: certificates of many names fill the screen. Smaller: an
/// operator looks them up by hand.
const MAX_LISTED_NAMES: usize = 5;

fn unreadable(path: &Path, error: &io::Error) -> String {
    let relative = "a relative path starts at the folder of the configuration file that names it";
    match error.kind() {
        ErrorKind::NotFound if path.is_symlink() => "the link leads to no file".to_owned(),
        ErrorKind::NotFound => relative.to_owned(),
        ErrorKind::IsADirectory => "it is a folder: name a file".to_owned(),
        ErrorKind::InvalidInput | ErrorKind::FileTooLarge => "name a PEM file".to_owned(),
        ErrorKind::TimedOut => "check the disk, or the server of the file system".to_owned(),
        _ => rights::unreadable(path).unwrap_or_else(|| "check the disk".to_owned()),
    }
}
