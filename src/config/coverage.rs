//! Whether every host has a certificate that vouches for it.
//!
//! Owns the reading of all certificates for the check, each pair of files once, and the choice that the edge makes
//! too: a host's own certificate, else the gateway's. Keeps no certificate; serving reads them again.

use std::collections::HashMap;
use std::sync::Arc;

use super::CertificateFiles;
use super::file::Reading;
use super::gateway::{Gateway, NamedFiles};
use super::problem::Problem;
use super::source::Place;
use super::tenant::Tenant;
use crate::tenant::certificate::{self, CertificateError};
use crate::tenant::host::{CertificateNames, HostName};

/// Reports files that are no certificate, and hosts that none covers.
pub(super) fn check(gateway: Option<&Gateway>, tenants: &[Tenant], reading: &Reading<'_>) {
    let mut certificates = Certificates { read: HashMap::new(), reading };
    let shared = gateway.and_then(|gateway| gateway.certificate.as_ref());
    let shared = shared.and_then(|files| certificates.names(files));
    for tenant in tenants {
        let own: HashMap<&HostName, (&Place, Option<Arc<CertificateNames>>)> = tenant
            .certificates
            .iter()
            .map(|(host, files)| {
                let names = files.as_ref().and_then(|files| certificates.names(files));
                (&host.value, (&host.place, names))
            })
            .collect();
        for host in &tenant.hosts {
            let problem = || Problem::at(&host.place, format!("no certificate covers `{}`", host.value));
            // A certificate that could not be read is reported by itself; what it would have covered is not known.
            match (own.get(&host.value), &shared) {
                (Some((given, Some(names))), _) if !names.covers(&host.value) => {
                    reading.report(problem().earlier(given, "the certificate given for it has other names"));
                }
                (None, Some(names)) if !names.covers(&host.value) => {
                    let table = format!("[tenant.tls.\"{}\"]", host.value);
                    reading.report(problem().help(format!("add {table} or a gateway certificate with that name")));
                }
                _ => {}
            }
        }
    }
}

/// The names of each pair of files, read when first asked for; none when a file is faulty.
struct Certificates<'r> {
    read: HashMap<CertificateFiles, Option<Arc<CertificateNames>>>,
    reading: &'r Reading<'r>,
}

impl Certificates<'_> {
    fn names(&mut self, named: &NamedFiles) -> Option<Arc<CertificateNames>> {
        if let Some(names) = self.read.get(&named.files) {
            return names.clone();
        }
        let names = self.read_names(named);
        self.read.insert(named.files.clone(), names.clone());
        names
    }

    /// Both files are looked at before giving up, so that both faults are told.
    fn read_names(&self, named: &NamedFiles) -> Option<Arc<CertificateNames>> {
        let chain = self.told(certificate::read_chain(&named.files.certificate), named);
        let key = self.told(certificate::read_key(&named.files.private_key), named);
        let (chain, key) = chain.zip(key)?;
        let certificate = self.told(certificate::pair(chain, key, &named.files), named)?;
        Some(certificate.names)
    }

    fn told<T>(&self, result: Result<T, CertificateError>, named: &NamedFiles) -> Option<T> {
        result.map_err(|error| self.reading.report(problem(&error, named))).ok()
    }
}

/// The paths stand in the help only: see [`NamedFiles::from_environment`].
fn problem(error: &CertificateError, named: &NamedFiles) -> Problem {
    let NamedFiles { files, certificate, private_key, from_environment } = named;
    let (place, path, title) = match error {
        CertificateError::CertificateUnreadable { .. } => {
            (certificate, &files.certificate, "can't read the certificate")
        }
        CertificateError::NoCertificate { .. } => (certificate, &files.certificate, "no certificate in PEM form"),
        CertificateError::CertificateMalformed { .. } => {
            (certificate, &files.certificate, "the first certificate is malformed")
        }
        CertificateError::KeyUnreadable { .. } => (private_key, &files.private_key, "can't read the private key"),
        CertificateError::NoKey { .. } => (private_key, &files.private_key, "no private key in PEM form"),
        CertificateError::KeyUnusable { .. } => (private_key, &files.private_key, "the private key can't be used"),
        CertificateError::KeyMismatch { .. } => {
            (private_key, &files.private_key, "the private key does not fit the certificate")
        }
    };
    let mut problem = Problem::at(place, title);
    if let Some(cause) = std::error::Error::source(error) {
        problem = problem.label(cause.to_string());
    }
    if *from_environment { problem } else { problem.help(format!("the file is `{}`", path.display())) }
}
