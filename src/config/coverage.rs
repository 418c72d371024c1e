//! Checks that every host has a certificate that names it and is currently valid.
//!
//! Owns reading certificates for the check, each pair of files once. A host's certificate is chosen as the edge
//! chooses it: the host's own, else the tenant's wildcard, else the gateway's. Keeps no certificate; the edge reads
//! them again.
//!
//! Anything already served is not checked again. A reload answers for its changes only: a certificate that someone
//! meanwhile replaced by a bad file must not block it. If no listener uses TLS, certificates are not read at all.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::certificate_files::NamedFiles;
use super::context::LoadContext;
use super::gateway::GatewayTable;
use super::problem::Problem;
use super::source::SourceSpan;
use super::tenant::TenantTable;
use super::{CertificateFiles, GatewayConfig, ServedConfig, TenantConfig};
use crate::certificate::{self, Certificate, CertificateError, Validity};
use crate::host::{CertificateNames, HostName, HostPattern};

/// Reports files that are not valid certificates or keys, and hosts that no certificate covers.
pub(super) fn check(gateway: Option<&GatewayTable>, tenants: &[TenantTable], context: &LoadContext<'_>) {
    if gateway.is_some_and(|gateway| !gateway.speaks_tls) {
        return;
    }
    let shared = gateway.and_then(|gateway| gateway.certificate.as_ref());
    let now = Timestamp::now();
    let are_obtained = gateway.is_some_and(|gateway| gateway.obtains_certificates);
    let (read, reported) = (HashMap::new(), HashSet::new());
    let mut coverage = Coverage { read, reported, shared: None, are_obtained, context, now };
    let is_new = shared.is_some_and(|named| context.served.is_none_or(|served| served.gateway != Some(&named.files)));
    coverage.shared = shared.and_then(|named| {
        let names = if is_new { coverage.names(named) } else { coverage.names_of(&named.files) };
        Some((is_new, names?))
    });
    coverage.check(tenants);
}

/// Checks tenants of the registry, with a gateway's table that has no fault.
pub(super) fn check_registered(gateway: &GatewayConfig, tenants: &[TenantTable], context: &LoadContext<'_>) {
    let are_obtained = gateway.acme.is_some();
    if gateway.certificate.is_none() && !are_obtained {
        return;
    }
    let (read, reported, now) = (HashMap::new(), HashSet::new(), Timestamp::now());
    let mut coverage = Coverage { read, reported, shared: None, are_obtained, context, now };
    coverage.shared = gateway.certificate.as_ref().and_then(|files| Some((true, coverage.names_of(files)?)));
    coverage.check(tenants);
}

struct Coverage<'r> {
    /// Each valid pair of files, with its names and validity.
    read: HashMap<CertificateFiles, (Arc<CertificateNames>, Validity)>,
    /// Invalid or expired pairs that have been reported.
    reported: HashSet<CertificateFiles>,
    /// The names of the gateway's certificate, and whether it differs from the served one.
    shared: Option<(bool, Arc<CertificateNames>)>,
    /// Whether a host that no file covers gets a certificate of its own.
    are_obtained: bool,
    context: &'r LoadContext<'r>,
    now: Timestamp,
}

impl Coverage<'_> {
    fn check(&mut self, tenants: &[TenantTable]) {
        for tenant in tenants {
            if !self.is_unchanged(tenant) {
                self.report(tenant);
            }
        }
    }

    /// Whether nothing is new: the tenant is already served, and with the same certificates.
    fn is_unchanged(&self, tenant: &TenantTable) -> bool {
        let Some(config) = &tenant.config else { return false };
        let served = || self.served(&config.slug).is_some_and(|served| Arc::ptr_eq(&served, config));
        self.shared.as_ref().is_none_or(|(is_new, _)| !is_new) && served()
    }

    /// Whether the gateway's certificate covers a host, or need not; true if that certificate could not be read.
    fn is_shared(&self, served: Option<&TenantConfig>, host: &HostName) -> bool {
        let Some((is_new, names)) = &self.shared else { return true };
        self.are_obtained || (!is_new && is_served(served, host, None)) || names.covers(host)
    }

    fn report(&mut self, tenant: &TenantTable) {
        let served = tenant.slug.as_ref().and_then(|slug| self.served(&slug.value));
        let read = |(pattern, named): &(super::tenant::Located<HostPattern>, Option<NamedFiles>)| {
            let names = named.as_ref().and_then(|named| match &served {
                Some(served) if has(served, &named.files) => self.names_of(&named.files),
                _ => self.names(named),
            });
            let files = named.as_ref().map(|named| named.files.clone());
            (pattern.value.clone(), (pattern.span.clone(), files, names))
        };
        let own: Vec<TenantCertificate> = tenant.certificates.iter().map(read).collect();
        for host in &tenant.hosts {
            let problem = || Problem::at(&host.span, format!("no certificate covers `{}`", host.value));
            // An unreadable certificate has its own report; the names it would cover are unknown.
            match HostPattern::choose(&own, &host.value) {
                Some((_, (given, files, Some(names))))
                    if !names.covers(&host.value) && !is_served(served.as_deref(), &host.value, files.as_ref()) =>
                {
                    let problem = problem().earlier(given, "the certificate given for it has other names");
                    self.context.report(problem.help(certificate::not_covered_help(&host.value, "it", names)));
                }
                None if !self.is_shared(served.as_deref(), &host.value) => {
                    let no_names = CertificateNames::default();
                    let names = self.shared.as_ref().map_or(&no_names, |(_, names)| names);
                    let help = certificate::not_covered_help(&host.value, "the gateway's", names);
                    self.context.report(problem().help(help));
                }
                _ => {}
            }
        }
    }

    fn served(&self, slug: &str) -> Option<Arc<TenantConfig>> {
        self.context.served.and_then(|served: &ServedConfig<'_>| (served.tenant)(slug))
    }

    /// The names and the validity of a pair of files, if it is valid.
    fn read(&mut self, files: &CertificateFiles) -> Option<&(Arc<CertificateNames>, Validity)> {
        if !self.read.contains_key(files) {
            let Certificate { names, validity, .. } = certificate::read(files).ok()?;
            self.read.insert(files.clone(), (names, validity));
        }
        self.read.get(files)
    }

    fn names_of(&mut self, files: &CertificateFiles) -> Option<Arc<CertificateNames>> {
        self.read(files).map(|(names, _)| Arc::clone(names))
    }

    fn is_in_date(&mut self, files: &CertificateFiles) -> bool {
        let now = self.now;
        self.read(files).is_some_and(|(_, validity)| validity.check(now).is_ok())
    }

    /// The names of a pair of files, if it is valid. Reports each faulty pair once.
    fn names(&mut self, named: &NamedFiles) -> Option<Arc<CertificateNames>> {
        if !self.is_in_date(&named.files) && self.reported.insert(named.files.clone()) {
            self.report_files(named);
        }
        self.names_of(&named.files)
    }

    /// Reads both files even if the first is faulty, so that both faults are reported.
    fn report_files(&self, named: &NamedFiles) {
        let files = &named.files;
        let report = |error: CertificateError| self.context.report(problem(&error, named));
        let chain = certificate::read_chain(&files.certificate).map_err(report).ok();
        let key = certificate::read_key(&files.private_key).map_err(report).ok();
        let Some((chain, key)) = chain.zip(key) else { return };
        let paired = certificate::pair(&chain, &key, files);
        if let Err(error) = paired.and_then(|read| certificate::check_date(read.validity, files, self.now)) {
            report(error);
        }
    }
}

/// A certificate of a tenant: where it is configured, its files, and its names if they could be read.
type TenantCertificate = (HostPattern, (SourceSpan, Option<CertificateFiles>, Option<Arc<CertificateNames>>));

/// Whether the served tenant already uses these files.
fn has(served: &TenantConfig, files: &CertificateFiles) -> bool {
    served.certificates.iter().any(|(_, given)| given == files)
}

/// Whether the served tenant has this host, with the same files.
fn is_served(served: Option<&TenantConfig>, host: &HostName, files: Option<&CertificateFiles>) -> bool {
    let has_files = |served: &TenantConfig| served.certificate(host).map(|(_, files)| files) == files;
    served.is_some_and(|served| has_files(served) && served.hosts().any(|own| own == host))
}

/// The paths are quoted in the help only: see [`NamedFiles::from_environment`].
fn problem(error: &CertificateError, named: &NamedFiles) -> Problem {
    let NamedFiles { files, certificate, private_key, from_environment } = named;
    let (span, path, title) = match error {
        CertificateError::CertificateUnreadable { .. } => {
            (certificate, &files.certificate, "can't read the certificate")
        }
        CertificateError::NoCertificate { .. } => (certificate, &files.certificate, "no certificate in PEM form"),
        CertificateError::CertificateMalformed { .. } => {
            (certificate, &files.certificate, "the first certificate is malformed")
        }
        CertificateError::KeyUnreadable { .. } => (private_key, &files.private_key, "can't read the private key"),
        CertificateError::NoKey { .. } => (private_key, &files.private_key, "no private key in PEM form"),
        CertificateError::KeyEncrypted { .. } => (private_key, &files.private_key, "the private key is encrypted"),
        CertificateError::KeyUnusable { .. } => (private_key, &files.private_key, "the private key can't be used"),
        CertificateError::KeyMismatch { .. } => {
            (private_key, &files.private_key, "the private key does not fit the certificate")
        }
        CertificateError::LeafNotFirst { .. } => {
            (certificate, &files.certificate, "the certificate of the private key is not the first in its file")
        }
        CertificateError::OutOfDate { .. } | CertificateError::Obtained { .. } => {
            (certificate, &files.certificate, "the certificate is out of date")
        }
    };
    let mut problem = Problem::at(span, title);
    if let CertificateError::LeafNotFirst { position, .. } = error {
        problem = problem.label(format!("it is number {position}"));
    } else if let Some(cause) = std::error::Error::source(error) {
        problem = problem.label(cause.to_string());
    }
    match (error, from_environment) {
        (CertificateError::CertificateUnreadable { .. } | CertificateError::KeyUnreadable { .. }, true) => {
            problem.help("check the variable, the path in it, and the rights to the file")
        }
        (_, true) => problem.help(error.remedy()),
        (_, false) => problem.help(format!("{}; the file is `{}`", error.remedy(), path.display())),
    }
}
