//! An authority with a proxy before it, the servers at which it verifies challenges, and clients of it.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use formgate::acme::{
    AccountKey, Acme, AcmeError, AcmeSettings, Authority, CertificateRequest, Challenge, ChallengeKind, Checkpoint,
    IssuedChain, LeaseLost, TLS_ALPN_PROTOCOL, tls_alpn_certificate,
};
use formgate::host::HostName;
use formgate::outbound::Target;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::acme_proxy::AcmeProxy;
use crate::support::pebble::{Pebble, ports};
use crate::support::zones::Zones;
use crate::support::{certificate, tls_server};

/// An authority, and the account key of its clients.
pub(super) struct Scene {
    pub(super) pebble: Arc<Pebble>,
    pub(super) proxy: AcmeProxy,
    pub(super) key: AccountKey,
    pub(super) zones: Zones,
    /// Hosts that point to the servers of challenges.
    pub(super) hosts: Vec<String>,
    /// What is answered to TLS-ALPN-01.
    certificates: Arc<Certificates>,
}

/// The order of a certificate, as a caller stores it.
pub(super) struct Stored {
    pub(super) request: CertificateRequest,
    pub(super) url: String,
}

#[derive(Debug, Default)]
struct Certificates(Mutex<HashMap<String, Arc<CertifiedKey>>>);

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.lock().unwrap().get(hello.server_name()?).cloned()
    }
}

/// The owner of an order. It answers challenges until a test stops it.
pub(super) struct Owner {
    certificates: Arc<Certificates>,
    host: HostName,
    /// The challenges that were published.
    pub(super) published: Vec<Challenge>,
    pub(super) stops_before_validation: bool,
    pub(super) stops_before_finalizing: bool,
}

impl Checkpoint for Owner {
    async fn publish(&mut self, challenge: &Challenge) -> Result<(), LeaseLost> {
        if self.stops_before_validation {
            return Err(LeaseLost);
        }
        let certificate = tls_alpn_certificate(&self.host, &challenge.key_authorization);
        self.certificates.0.lock().unwrap().insert(self.host.to_string(), Arc::new(certificate));
        self.published.push(challenge.clone());
        Ok(())
    }

    async fn before_finalize(&mut self) -> Result<(), LeaseLost> {
        if self.stops_before_finalizing { Err(LeaseLost) } else { Ok(()) }
    }
}

impl Scene {
    pub(super) async fn new() -> Self {
        Self::of(Pebble::shared().await).await
    }

    pub(super) async fn of(pebble: Arc<Pebble>) -> Self {
        let (key, certificates) = (AccountKey::generate(), Arc::<Certificates>::default());
        let (proxy, zones) = (AcmeProxy::start(&pebble).await, Zones::start().await);
        let hosts = (0..100).map(|number| zones.name(&format!("h{number}.acme"))).collect();
        let (address, [http_port, tls_port]) = (zones.address(), ports());
        answer_http(&key, (address, http_port)).await;
        answer_tls(&certificates, (address, tls_port)).await;
        let scene = Self { pebble, proxy, key, zones, hosts, certificates };
        scene.point_to(address);
        scene
    }

    /// Lets all hosts have an address.
    pub(super) fn point_to(&self, address: Ipv4Addr) {
        let records: Vec<_> = (0..self.hosts.len()).map(|number| format!("h{number} A {address}\n")).collect();
        self.zones.serve(&self.zones.name("acme"), &[2], &records.concat());
    }

    /// The host that most tests have certificates for.
    pub(super) fn host(&self) -> &str {
        &self.hosts[0]
    }

    /// The authority, as an operator configures it.
    pub(super) fn authority(&self) -> Authority {
        Authority {
            name: "pebble".to_owned(),
            directory: Target::parse(&self.proxy.directory()).unwrap(),
            issuer: None,
            profile: None,
            external_account: None,
            roots: vec![certificate::authority_der()],
        }
    }

    /// A process that knows the account key and nothing else.
    pub(super) fn process(&self) -> Acme {
        self.process_with(|_| ())
    }

    /// The same, with other settings.
    pub(super) fn process_with(&self, differ: impl FnOnce(&mut AcmeSettings)) -> Acme {
        let mut settings = AcmeSettings {
            contact: vec!["mailto:it@example.com".to_owned()],
            challenges: vec![ChallengeKind::Http01],
            authorities: vec![self.authority()],
            ..AcmeSettings::default()
        };
        differ(&mut settings);
        Acme::new(settings, AccountKey::from_pkcs8(self.key.pkcs8()).unwrap())
    }

    /// One that does not wait for long.
    pub(super) fn impatient(&self) -> Acme {
        self.process_with(|settings| settings.timeout = Duration::from_secs(1))
    }

    pub(super) fn owner(&self, name: &str) -> Owner {
        Owner {
            certificates: Arc::clone(&self.certificates),
            host: host(name),
            published: Vec::new(),
            stops_before_validation: false,
            stops_before_finalizing: false,
        }
    }

    /// Advances an order of a host.
    pub(super) async fn advance(&self, acme: &Acme, name: &str, stored: &Stored) -> Result<IssuedChain, AcmeError> {
        acme.advance(0, &stored.url, &stored.request.csr, &mut self.owner(name)).await
    }

    /// Obtains a certificate for a host in one go.
    pub(super) async fn obtain(&self, acme: &Acme, name: &str) -> Result<IssuedChain, AcmeError> {
        let stored = open(acme, name).await?;
        self.advance(acme, name, &stored).await
    }
}

pub(super) fn host(name: &str) -> HostName {
    HostName::parse(name).unwrap()
}

/// Opens an order for a host.
pub(super) async fn open(acme: &Acme, name: &str) -> Result<Stored, AcmeError> {
    let request = CertificateRequest::generate(&host(name));
    let url = acme.open(0, &host(name), None).await?.url;
    Ok(Stored { request, url })
}

/// Answers HTTP-01 for every host and token, as any node does that has the key.
async fn answer_http(key: &AccountKey, address: (Ipv4Addr, u16)) {
    let key = AccountKey::from_pkcs8(key.pkcs8()).unwrap();
    let listener = TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|read| read > 0) {}
            let head = String::from_utf8_lossy(&head).into_owned();
            let token = head.split(' ').nth(1).and_then(|path| path.strip_prefix(formgate::acme::HTTP_PATH));
            let body = token.and_then(|token| key.key_authorization(token)).unwrap_or_default();
            let answer =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
}

/// Answers TLS-ALPN-01 with these certificates.
async fn answer_tls(certificates: &Arc<Certificates>, address: (Ipv4Addr, u16)) {
    let listener = TcpListener::bind(address).await.unwrap();
    let identity = tls_server::Identity::Resolved(Arc::clone(certificates) as _);
    tls_server::accept(listener, identity, &[TLS_ALPN_PROTOCOL], |handshake| async move {
        if let Ok(mut stream) = handshake.await {
            let _ = stream.shutdown().await;
        }
    });
}
