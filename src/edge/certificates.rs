//! Which certificate a handshake serves.
//!
//! Owns the map from host names to certificates ready to serve. A tenant's host has its own certificate or the gateway's;
//! a name that no tenant has has none, and its handshake ends with an alert.
//!
//! A certificate is served by a `ServerConfig` of its own, because the choice is made before rustls begins the handshake
//! ([`Certificates::choose`] may wait one day, a rustls resolver never). All of them share one key for session tickets,
//! so that a resumed session does not depend on which of them issued it; rustls itself refuses a ticket of another name.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, Ticketer};
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::sign::SingleCertAndKey;

use arc_swap::ArcSwap;

use crate::config::Config;
use crate::tenant::certificate::{self, Certificate, CertificateError};
use crate::tenant::host::{CertificateNames, HostName};

/// A certificate, ready for handshakes.
#[derive(Debug)]
pub struct ServedCertificate {
    /// HTTP/2 and HTTP/1.1 by ALPN, TLS 1.2 and 1.3, this certificate alone.
    pub tls: Arc<ServerConfig>,
    /// The names that it vouches for.
    pub names: Arc<CertificateNames>,
}

/// Every certificate of the gateway, by host name.
pub struct Certificates {
    prepare: Preparation,
    current: ArcSwap<Choice>,
}

/// What a handshake chooses from.
struct Choice {
    by_host: HashMap<HostName, Arc<ServedCertificate>>,
    sign_in: Arc<ServedCertificate>,
}

impl Certificates {
    /// Reads every certificate of the configuration, blocking on the files.
    ///
    /// # Errors
    /// The first certificate that can't be read.
    pub fn from_config(config: &Config) -> Result<Self, CertificateError> {
        let prepare = Preparation::new();
        let choice = prepare.read(config)?;
        Ok(Self { prepare, current: ArcSwap::from_pointee(choice) })
    }

    /// The gateway's certificate, every host of every tenant, and the hosts among them that have a certificate of their
    /// own.
    #[must_use]
    pub fn new(
        sign_in: Certificate,
        hosts: impl IntoIterator<Item = HostName>,
        own: impl IntoIterator<Item = (HostName, Certificate)>,
    ) -> Self {
        let prepare = Preparation::new();
        let choice = prepare.choice(sign_in, hosts, own);
        Self { prepare, current: ArcSwap::from_pointee(choice) }
    }

    /// Reads every certificate of a new configuration, blocking on the files. Handshakes choose from these as soon as
    /// they are [put in place](Self::replace).
    ///
    /// # Errors
    /// The first certificate that can't be read.
    pub fn prepare(&self, config: &Config) -> Result<Prepared, CertificateError> {
        self.prepare.read(config).map(Prepared)
    }

    /// Puts certificates in place. Connections that were served the old ones go on, and so do sessions.
    pub fn replace(&self, prepared: Prepared) {
        self.current.store(Arc::new(prepared.0));
    }

    /// The certificate for the name in a ClientHello: the sign-in certificate when there is none, nothing when no tenant
    /// has the name. It is waited for, so that certificates can be loaded when they are first asked for.
    pub async fn choose(&self, name: Option<&HostName>) -> Option<Arc<ServedCertificate>> {
        let current = self.current.load();
        match name {
            None => Some(Arc::clone(&current.sign_in)),
            Some(name) => current.by_host.get(name).map(Arc::clone),
        }
    }
}

/// Certificates that were read and are not in place yet.
pub struct Prepared(Choice);

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("hosts", &self.0.by_host.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("hosts", &self.current.load().by_host.len()).finish_non_exhaustive()
    }
}

/// What all served certificates share.
struct Preparation {
    provider: Arc<CryptoProvider>,
    ticketer: Arc<dyn ProducesTickets>,
}

impl Preparation {
    fn new() -> Self {
        Self {
            provider: Arc::new(aws_lc_rs::default_provider()),
            ticketer: Ticketer::new().expect("the system gives random bytes"),
        }
    }

    fn read(&self, config: &Config) -> Result<Choice, CertificateError> {
        let sign_in = certificate::read(&config.gateway.certificate)?;
        let hosts = config.tenants.iter().flat_map(|tenant| std::iter::once(&tenant.address).chain(&tenant.domains));
        let mut own = Vec::new();
        for (host, files) in config.tenants.iter().flat_map(|tenant| &tenant.certificates) {
            own.push((host.clone(), certificate::read(files)?));
        }
        Ok(self.choice(sign_in, hosts.cloned(), own))
    }

    fn choice(
        &self,
        sign_in: Certificate,
        hosts: impl IntoIterator<Item = HostName>,
        own: impl IntoIterator<Item = (HostName, Certificate)>,
    ) -> Choice {
        let sign_in = self.ready(sign_in);
        let mut by_host: HashMap<_, _> = hosts.into_iter().map(|host| (host, Arc::clone(&sign_in))).collect();
        by_host.extend(own.into_iter().map(|(host, certificate)| (host, self.ready(certificate))));
        Choice { by_host, sign_in }
    }

    fn ready(&self, certificate: Certificate) -> Arc<ServedCertificate> {
        let mut tls = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .expect("aws-lc-rs has cipher suites for TLS 1.2 and 1.3")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate.key)));
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Sessions live in the peer's tickets alone: a store of sessions per certificate would grow with the tenants.
        tls.ticketer = Arc::clone(&self.ticketer);
        tls.session_storage = Arc::new(NoServerSessionStorage {});
        Arc::new(ServedCertificate { tls: Arc::new(tls), names: certificate.names })
    }
}
