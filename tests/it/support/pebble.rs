//! A real certificate authority on loopback: Pebble.
//!
//! Tests share one ([`Pebble::shared`]), unless they need options of their own. It looks names up as the test's
//! [`Zones`](super::zones::Zones) do, and verifies challenges at the [`ports`] of the address that they have. No nonce
//! is refused unless a test asks for it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use formgate::acme::AccountKey;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::child::{self, Child, GLANCE};
use super::connection::{Connection, Protocol};
use super::{certificate, folder, zones};

/// It is up within 0.1 s on a quiet machine.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A port is taken by another process between our look and the server's bind very rarely, not three times.
const ATTEMPTS: u32 = 3;

/// Every Pebble refuses this domain, with all below it.
pub(crate) const BLOCKED: &str = "blocked.org";

/// Where HTTP-01 and TLS-ALPN-01 are verified.
pub(crate) fn ports() -> [u16; 2] {
    // Held at an address that no test uses, so that no other process takes a port at all addresses.
    static PORTS: LazyLock<[TcpListener; 2]> = LazyLock::new(|| {
        [(); 2].map(|()| TcpListener::bind(local(child::free_port())).expect("the port was free just now"))
    });
    PORTS.each_ref().map(|port| port.local_addr().expect("a bound socket has an address").port())
}

/// What a test may want of an authority of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// How many percent of valid nonces are refused.
    pub(crate) refused_nonces: u8,
    /// How long certificates are valid; Pebble's own default is five years.
    pub(crate) validity: Option<Duration>,
    /// The external accounts, as key id and key; if there are any, an account has to be bound to one.
    pub(crate) external_accounts: Vec<(String, String)>,
}

/// A running authority; killed on drop.
pub(crate) struct Pebble {
    /// Where ACME is.
    pub(crate) address: SocketAddr,
    /// The name in its TLS certificate that no other server has. `127.0.0.1` and `localhost` are in there too.
    pub(crate) name: String,
    /// The root of the certificates that it issues.
    pub(crate) root: CertificateDer<'static>,
    server: Mutex<Child>,
    _folder: TempDir,
}

impl Pebble {
    /// The authority that the tests of the process share.
    pub(crate) async fn shared() -> Arc<Self> {
        static SHARED: OnceCell<Arc<Pebble>> = OnceCell::const_new();
        Arc::clone(SHARED.get_or_init(|| Self::with(|_| ())).await)
    }

    /// Starts an authority of the test's own.
    pub(crate) async fn with(differ: impl FnOnce(&mut Options)) -> Arc<Self> {
        let mut options = Options::default();
        differ(&mut options);
        for _ in 0..ATTEMPTS {
            if let Some(pebble) = Self::serve(&options).await {
                return Arc::new(pebble);
            }
        }
        panic!("Pebble does not start (Debian: apt-get install pebble, or run tests/run); its log is above");
    }

    /// The URL of the directory, past any proxy.
    pub(crate) fn directory(&self) -> String {
        format!("https://{}/dir", self.address)
    }

    /// Sends a signal by name, such as `STOP` and `CONT`.
    pub(crate) fn signal(&self, name: &str) {
        self.server.lock().expect("a signal does not panic").signal(name);
    }

    /// Sends a request that was made for the directory's host, as a proxy does.
    pub(crate) async fn send(address: SocketAddr, name: &str, request: Request<Bytes>) -> io::Result<Response<Bytes>> {
        let mut connection = Connection::open(address, name, Protocol::Http1).await?;
        let response = connection.send(request.map(Full::new)).await.map_err(io::Error::other)?;
        let (head, body) = response.into_parts();
        Ok(Response::from_parts(head, body.collect().await.map_err(io::Error::other)?.to_bytes()))
    }

    /// Fails unless a chain in PEM leads from a valid certificate for the host to the root.
    pub(crate) fn verify(&self, pem: &str, host: &str) {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).expect("a root");
        let provider = Arc::new(default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).map(|one| one.expect("PEM")).collect();
        let name = ServerName::try_from(host.to_owned()).expect("a host");
        let (leaf, rest) = chain.split_first().expect("a chain has a leaf");
        let verified = verifier.expect("one root").verify_server_cert(leaf, rest, &name, &[], UnixTime::now());
        assert!(verified.is_ok(), "{host}: {verified:?}");
    }

    /// Deactivates an account, as its owner may do by any client (RFC 8555, section 7.3.6).
    pub(crate) async fn deactivate(&self, key: &AccountKey) {
        let found = self.post("/sign-me-up", key, None, &json!({ "onlyReturnExisting": true })).await;
        let account = found.headers()["location"].to_str().expect("a URL").to_owned();
        let path = account.strip_prefix("https://localhost").expect("the host of the request");
        let ended = self.post(path, key, Some(&account), &json!({ "status": "deactivated" })).await;
        assert_eq!(ended.status(), StatusCode::OK, "{ended:?}");
    }

    /// Sends a signed request: with the public key, or of an account.
    async fn post(&self, path: &str, key: &AccountKey, account: Option<&str>, payload: &Value) -> Response<Bytes> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.pkcs8()).expect("a P-256 key");
        let nonce = Self::get(self.address, &self.name, "/nonce-plz").await.expect("an answer");
        let nonce = nonce.headers()["replay-nonce"].to_str().expect("ASCII").to_owned();
        let mut protected = json!({ "alg": "ES256", "nonce": nonce, "url": format!("https://localhost{path}") });
        match account {
            Some(account) => protected["kid"] = account.into(),
            None => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                let [x, y] = [x, y].map(|coordinate| URL_SAFE_NO_PAD.encode(coordinate));
                protected["jwk"] = json!({ "crv": "P-256", "kty": "EC", "x": x, "y": y });
            }
        }
        let [protected, payload] = [&protected, payload].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let text = format!("{protected}.{payload}");
        let signature = pair.sign(&SystemRandom::new(), text.as_bytes()).expect("the system has random bytes");
        let signature = URL_SAFE_NO_PAD.encode(signature);
        let body = json!({ "protected": protected, "payload": payload, "signature": signature }).to_string();
        let request = Request::post(path).header("Host", "localhost").header("Content-Type", "application/jose+json");
        let request = request.body(body.into()).expect("a valid request");
        Self::send(self.address, &self.name, request).await.expect("an answer")
    }

    async fn get(address: SocketAddr, name: &str, path: &str) -> io::Result<Response<Bytes>> {
        let request = Request::get(path).header("Host", "localhost").body(Bytes::new()).expect("a valid request");
        Self::send(address, name, request).await
    }

    /// None if the server ends, since one of its ports was taken.
    async fn serve(options: &Options) -> Option<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let folder = folder::temporary("pebble");
        let name = format!("pebble-{}.example.test", STARTED.fetch_add(1, Ordering::SeqCst));
        let identity = certificate::issue(folder.path(), &[&name, "localhost", "127.0.0.1"]);
        let [address, management] = [child::free_port(), child::free_port()].map(local);
        let [http_port, tls_port] = ports();
        let mut pebble = json!({
            "listenAddress": address,
            "managementListenAddress": management,
            "certificate": identity.certificate,
            "privateKey": identity.private_key,
            "httpPort": http_port,
            "tlsPort": tls_port,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": !options.external_accounts.is_empty(),
            "externalAccountMACKeys": options.external_accounts.iter().cloned().collect::<HashMap<_, _>>(),
            "domainBlocklist": [BLOCKED],
        });
        if let Some(validity) = options.validity {
            pebble["certificateValidityPeriod"] = validity.as_secs().into();
        }
        let config = folder.path().join("pebble.json");
        fs::write(&config, json!({ "pebble": pebble }).to_string()).expect("the folder of this run can be written");
        let path = folder.path().join("pebble.log");
        let log = File::create(&path).expect("the folder of this run can be written");
        let mut command = child::bound_to_us("pebble", "KILL", &[]);
        command.arg("-config").arg(&config).arg("-dnsserver").arg(zones::shared_resolver().await.to_string());
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_VA_ALWAYS_VALID", "0");
        command.env("PEBBLE_WFE_NONCEREJECT", options.refused_nonces.to_string());
        // Of 0 percent of valid authorizations that are used again, Pebble makes 1: tests that need a new one in each
        // order use another host.
        command.env("PEBBLE_AUTHZREUSE", "0");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file has handles")).stderr(log);
        let mut server = Child::spawn(command);
        let start = Instant::now();
        while start.elapsed() < START_LIMIT && server.exited().is_none() {
            let directory = Self::get(address, &name, "/dir").await;
            if let (Ok(_), Ok(root)) = (directory, Self::get(management, &name, "/roots/0").await)
                && server.exited().is_none()
            {
                assert_eq!(root.status(), StatusCode::OK);
                let root = CertificateDer::from_pem_slice(root.body()).expect("a certificate");
                return Some(Self { address, name, root, server: Mutex::new(server), _folder: folder });
            }
            tokio::time::sleep(GLANCE).await;
        }
        eprintln!("{}", fs::read_to_string(path).unwrap_or_default());
        None
    }
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
