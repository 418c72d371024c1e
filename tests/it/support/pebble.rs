//! A real certificate authority on loopback: Pebble, and the DNS server of pebble-challtestsrv that it asks.
//!
//! Every name resolves to 127.0.0.1 unless a test says otherwise, and challenges are verified at the ports of
//! [`Options`]. No nonce is refused and no authorization is used again, unless a test asks for it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::child::{self, Child, GLANCE};
use super::connection::{Connection, Protocol};
use super::{certificate, folder};

/// Both are up within 0.1 s on a quiet machine.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A port is taken by another process between our look and the server's bind very rarely, not three times.
const ATTEMPTS: u32 = 3;

/// What a test may want of the authority.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Where HTTP-01 is verified; a port that is free when Pebble starts, by default.
    pub(crate) http_port: u16,
    /// Where TLS-ALPN-01 is verified; as above.
    pub(crate) tls_port: u16,
    /// How many percent of valid nonces are refused.
    pub(crate) refused_nonces: u8,
    /// How many percent of valid authorizations are used again in the next order. Of 0, Pebble makes 1: tests that need a new
    /// one in each order use another host.
    pub(crate) reused_authorizations: u8,
    /// How long certificates are valid; Pebble's own default is five years.
    pub(crate) validity: Option<Duration>,
    /// The external accounts, as key id and key; if there are any, an account has to be bound to one.
    pub(crate) external_accounts: Vec<(String, String)>,
    /// Domains that it refuses, with all below them.
    pub(crate) blocked_domains: Vec<String>,
    /// The DNS server to ask instead of pebble-challtestsrv's.
    pub(crate) dns_server: Option<SocketAddr>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            http_port: child::free_port(),
            tls_port: child::free_port(),
            refused_nonces: 0,
            reused_authorizations: 0,
            validity: None,
            external_accounts: Vec::new(),
            blocked_domains: Vec::new(),
            dns_server: None,
        }
    }
}

/// A running authority; killed on drop.
pub(crate) struct Pebble {
    /// Where ACME is.
    pub(crate) address: SocketAddr,
    /// The name in its TLS certificate that no other server has. `127.0.0.1` and `localhost` are in there too.
    pub(crate) name: String,
    management: SocketAddr,
    server: Child,
    dns: Option<Dns>,
    _folder: TempDir,
}

/// The DNS server.
struct Dns {
    address: SocketAddr,
    management: SocketAddr,
    _server: Child,
}

impl Pebble {
    /// Starts one with options other than the default ones.
    pub(crate) async fn with(differ: impl FnOnce(&mut Options)) -> Self {
        let mut options = Options::default();
        differ(&mut options);
        for _ in 0..ATTEMPTS {
            if let Some(pebble) = Self::serve(options.clone()).await {
                return pebble;
            }
        }
        panic!("Pebble does not start (Debian: apt-get install pebble, or run tests/run); its log is above");
    }

    /// The URL of the directory, past any proxy.
    pub(crate) fn directory(&self) -> String {
        format!("https://{}/dir", self.address)
    }

    /// The DNS server, which knows addresses and answers NOTIMP to questions about zones.
    pub(crate) fn dns_server(&self) -> SocketAddr {
        self.dns.as_ref().expect("this Pebble asks the test's own DNS server").address
    }

    /// Sends a signal by name, such as `STOP` and `CONT`.
    pub(crate) fn signal(&mut self, name: &str) {
        self.server.signal(name);
    }

    /// Sends a request that was made for the directory's host, as a proxy does.
    pub(crate) async fn send(address: SocketAddr, name: &str, request: Request<Bytes>) -> io::Result<Response<Bytes>> {
        let mut connection = Connection::open(address, name, Protocol::Http1).await?;
        let response = connection.send(request.map(Full::new)).await.map_err(io::Error::other)?;
        let (head, body) = response.into_parts();
        Ok(Response::from_parts(head, body.collect().await.map_err(io::Error::other)?.to_bytes()))
    }

    /// The root of the certificates that it issues.
    pub(crate) async fn root(&self) -> CertificateDer<'static> {
        let request = Request::get("/roots/0").header("Host", "localhost").body(Bytes::new());
        let answer = Self::send(self.management, &self.name, request.expect("a valid request")).await;
        let answer = answer.expect("Pebble answers");
        assert_eq!(answer.status(), StatusCode::OK);
        CertificateDer::from_pem_slice(answer.body()).expect("a certificate")
    }

    /// Fails unless a chain in PEM leads from a valid certificate for the host to the root.
    pub(crate) async fn verify(&self, pem: &str, host: &str) {
        let mut roots = RootCertStore::empty();
        roots.add(self.root().await).expect("a root");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).map(|one| one.expect("PEM")).collect();
        let name = ServerName::try_from(host.to_owned()).expect("a host");
        let (leaf, rest) = chain.split_first().expect("a chain has a leaf");
        let verified = verifier.expect("one root").verify_server_cert(leaf, rest, &name, &[], UnixTime::now());
        assert!(verified.is_ok(), "{host}: {verified:?}");
    }

    /// Gives a name other addresses than 127.0.0.1: IPv4 ones, at least one.
    pub(crate) async fn resolve(&self, host: &str, addresses: &[Ipv4Addr]) {
        self.change_dns("/add-a", &json!({ "host": host, "addresses": addresses })).await;
    }

    /// Lets look-ups of a name fail with SERVFAIL.
    pub(crate) async fn fail_dns(&self, host: &str) {
        self.change_dns("/set-servfail", &json!({ "host": host })).await;
    }

    async fn change_dns(&self, path: &str, change: &Value) {
        let dns = self.dns.as_ref().expect("this Pebble asks the test's own DNS server");
        let status = manage(dns.management, path, change).await.expect("the DNS server takes changes");
        assert_eq!(status, StatusCode::OK, "{path} {change}");
    }

    async fn serve(options: Options) -> Option<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let folder = folder::temporary("pebble");
        let dns = match options.dns_server {
            Some(_) => None,
            None => Some(Dns::serve(folder.path()).await?),
        };
        let dns_address = options.dns_server.or(dns.as_ref().map(|dns| dns.address)).expect("one of them");
        let name = format!("pebble-{}.example.test", STARTED.fetch_add(1, Ordering::SeqCst));
        let identity = certificate::issue(folder.path(), &[&name, "localhost", "127.0.0.1"]);
        let [address, management] = [child::free_port(), child::free_port()].map(local);
        let mut pebble = json!({
            "listenAddress": address,
            "managementListenAddress": management,
            "certificate": identity.certificate,
            "privateKey": identity.private_key,
            "httpPort": options.http_port,
            "tlsPort": options.tls_port,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": !options.external_accounts.is_empty(),
            "externalAccountMACKeys": options.external_accounts.iter().cloned().collect::<HashMap<_, _>>(),
            "domainBlocklist": options.blocked_domains,
        });
        if let Some(validity) = options.validity {
            pebble["certificateValidityPeriod"] = validity.as_secs().into();
        }
        let config = folder.path().join("pebble.json");
        fs::write(&config, json!({ "pebble": pebble }).to_string()).expect("the folder of this run can be written");
        let log = folder.path().join("pebble.log");
        let mut command = child::bound_to_us("pebble", "KILL", &[]);
        command.arg("-config").arg(&config).arg("-dnsserver").arg(dns_address.to_string());
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_VA_ALWAYS_VALID", "0");
        command.env("PEBBLE_WFE_NONCEREJECT", options.refused_nonces.to_string());
        command.env("PEBBLE_AUTHZREUSE", options.reused_authorizations.to_string());
        let mut server = Child::spawn(logged(command, &log));
        let request = || Request::get("/dir").header("Host", "localhost").body(Bytes::new()).expect("a valid request");
        let is_ready = async || {
            let answers = [Self::send(address, &name, request()).await, Self::send(management, &name, request()).await];
            answers.iter().all(Result::is_ok)
        };
        if wait_until_ready(&mut server, &log, is_ready).await {
            Some(Self { address, name, management, server, dns, _folder: folder })
        } else {
            None
        }
    }
}

impl Dns {
    async fn serve(folder: &std::path::Path) -> Option<Self> {
        let [address, management] = [child::free_port(), child::free_port()].map(local);
        let log = folder.join("challtestsrv.log");
        let mut command = child::bound_to_us("pebble-challtestsrv", "KILL", &[]);
        command.arg("-dns01").arg(address.to_string()).arg("-management").arg(management.to_string());
        command.args([
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
            "-defaultIPv4",
            "127.0.0.1",
            "-defaultIPv6",
            "",
        ]);
        let mut server = Child::spawn(logged(command, &log));
        let is_ready = async || manage(management, "/clear-request-history", &json!({ "host": "a" })).await.is_ok();
        let is_up = wait_until_ready(&mut server, &log, is_ready).await;
        is_up.then_some(Self { address, management, _server: server })
    }
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn logged(mut command: std::process::Command, log: &std::path::Path) -> std::process::Command {
    let log = File::create(log).expect("the folder of this run can be written");
    command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file has handles")).stderr(log);
    command
}

/// Whether the server answers; not when it ends instead, since its port was taken.
async fn wait_until_ready(server: &mut Child, log: &std::path::Path, is_ready: impl AsyncFn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < START_LIMIT && server.exited().is_none() {
        if is_ready().await && server.exited().is_none() {
            return true;
        }
        tokio::time::sleep(GLANCE).await;
    }
    eprintln!("{}", fs::read_to_string(log).unwrap_or_default());
    false
}

/// Sends a change to pebble-challtestsrv.
async fn manage(address: SocketAddr, path: &str, change: &Value) -> io::Result<StatusCode> {
    let stream = TokioIo::new(TcpStream::connect(address).await?);
    let (mut sender, driver) = http1::handshake(stream).await.map_err(io::Error::other)?;
    tokio::spawn(driver);
    let request = Request::post(path).header("Host", "localhost").body(Full::new(Bytes::from(change.to_string())));
    let response = sender.send_request(request.expect("a valid request")).await.map_err(io::Error::other)?;
    Ok(response.status())
}
