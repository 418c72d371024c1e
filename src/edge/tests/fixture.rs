//! An edge with two tenants and a handler that a test controls by the path of its requests.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use rustls::RootCertStore;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::config::ConnectionLimits;
use crate::config::{Config, ListenConfig};
use crate::edge::{Addresses, Certificates, CheckIntervals, Edge, Serve, Serving, listen};
use crate::error::Refusal;
use crate::gate::{Connection, HeadFault, Transport};
use crate::host::HostName;
use crate::metrics::Metrics;
use crate::request::AnswerBody;
use crate::systemd::InheritedSockets;
use crate::tenant::Directory;

/// How long the handler takes for `/slow`.
pub(super) const SLOW: Duration = Duration::from_millis(300);

/// The length of the response to `/big`: more than all buffers on the path hold.
pub(super) const BIG: usize = 32 * 1024 * 1024;

/// The length of the response to `/buffered`: the kernel accepts all of it, but a small receive window does not.
const BUFFERED: usize = 256 * 1024;

/// Answers `/slow` late, `/never` never, `/panic` with a panic, `/big` and `/buffered` at length, `/empty` with an
/// empty body, `/read` with the length of the request body, and `/refuse` with 413 before it reads any of the
/// body. Answers any other path with whichever of two hosts the certificate covers. Refuses what the edge refused,
/// as the gate does.
pub(super) struct Handler;

impl Serve for Handler {
    async fn serve(&self, connection: &Connection, request: Request<Incoming>) -> Response<AnswerBody> {
        if let Some(fault) = request.extensions().get::<HeadFault>() {
            let reply = Refusal::from(*fault).reply();
            let mut refusal = Response::new(Full::from(reply.body).into());
            *refusal.status_mut() = reply.status;
            return refusal;
        }
        let text = match request.uri().path() {
            "/slow" => {
                sleep(SLOW).await;
                "late".to_owned()
            }
            "/big" => "x".repeat(BIG),
            "/buffered" => "x".repeat(BUFFERED),
            "/empty" => String::new(),
            "/never" => std::future::pending().await,
            "/panic" => panic!("as the test wants it"),
            "/read" => match request.into_body().collect().await {
                Ok(body) => body.to_bytes().len().to_string(),
                Err(error) => error.to_string(),
            },
            "/refuse" => {
                let mut refusal = Response::new(Full::from("too large").into());
                *refusal.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
                return refusal;
            }
            _ => {
                let names = match &connection.transport {
                    Transport::Tls(names) => names,
                    other => {
                        let client: SocketAddr = connection.client.parse().expect("an address");
                        return Response::new(Full::from(format!("{:?} {other:?}", client.ip())).into());
                    }
                };
                let covers = |host: &str| names.covers(&HostName::parse(host).unwrap());
                ["acme.example.com", "forms.acme.org"]
                    .into_iter()
                    .find(|host| covers(host))
                    .unwrap_or("none")
                    .to_owned()
            }
        };
        Response::new(Full::from(text).into())
    }
}

/// A running edge.
pub(super) struct Fixture {
    pub(super) serving: Serving,
    pub(super) address: SocketAddr,
    pub(super) metrics: Metrics,
    /// The certificates that a client must trust.
    pub(super) roots: Arc<RootCertStore>,
    /// Holds the certificates, which are read on demand.
    _folder: TempDir,
}

/// Issues a certificate into a folder and adds it to the roots.
pub(super) fn issue(folder: &Path, file: &str, names: &[&str], roots: &mut RootCertStore) {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    let issued = rcgen::generate_simple_self_signed(names).unwrap();
    fs::write(folder.join(format!("{file}.pem")), issued.cert.pem()).unwrap();
    fs::write(folder.join(format!("{file}.key")), issued.signing_key.serialize_pem()).unwrap();
    roots.add(issued.cert.der().clone()).unwrap();
}

const CONFIG: &str = r#"
[gateway]
listen = ["127.0.0.1:0"]
[gateway.tls]
certificate = "wildcard.pem"
private_key = "wildcard.key"

[[tenant]]
slug = "acme"
name = "Acme"
address = "acme.example.com"
domains = ["forms.acme.org"]
database = "sqlite:acme.db"
[tenant.tls."forms.acme.org"]
certificate = "acme.pem"
private_key = "acme.key"
"#;

impl Fixture {
    /// `acme.example.com` uses the gateway's wildcard certificate, `forms.acme.org` its own.
    pub(super) async fn start(limits: ConnectionLimits) -> Self {
        let anywhere: SocketAddr = "127.0.0.1:0".parse().unwrap();
        Self::listening(anywhere.into(), limits, &mut InheritedSockets::default()).await
    }

    /// Like `start`, with any kind of listener.
    pub(super) async fn listening(
        entry: ListenConfig,
        limits: ConnectionLimits,
        inherited: &mut InheritedSockets,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut roots = RootCertStore::empty();
        issue(folder.path(), "wildcard", &["*.example.com"], &mut roots);
        issue(folder.path(), "acme", &["forms.acme.org"], &mut roots);
        let file = folder.path().join("tenants.toml");
        fs::write(&file, CONFIG).unwrap();
        let config = Config::load(&file).unwrap();
        let directory = Arc::new(ArcSwap::from_pointee(Directory::new(&config.tenants, &Directory::default())));
        let metrics = Metrics::default();
        let certificates =
            Certificates::open(&config.gateway, directory, &metrics, CheckIntervals::default(), None).unwrap();
        let edge = Edge {
            certificates: Arc::new(certificates),
            service: Arc::new(Handler),
            limits,
            metrics: metrics.clone(),
            addresses: Addresses::new(limits.connections_per_address),
        };
        let serving = edge.serve(listen(&[entry], inherited).await.unwrap());
        let address = serving.addresses()[0];
        Self { serving, address, metrics, roots: Arc::new(roots), _folder: folder }
    }

    pub(super) fn handshakes(&self, result: &str) -> u64 {
        self.metrics.edge.handshakes.with_label_values(&[result]).get()
    }

    pub(super) fn ended(&self, reason: &str) -> u64 {
        self.metrics.edge.connections_ended.with_label_values(&[reason]).get()
    }

    pub(super) fn open(&self, protocol: &str) -> i64 {
        self.metrics.edge.connections_open.with_label_values(&[protocol]).get()
    }
}
