//! Nodes that obtain certificates: a registry, a certificate authority with a proxy before it, and name servers.
//!
//! The first node listens where the authority verifies hosts; the others order all the same.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use formgate::store::registry::{CertificateRecord, DomainAdded, DomainRecord, DomainState, Requester};
use formgate::store::{DatabaseLocation, Registry};
use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio_rustls::TlsConnector;

use crate::support::acme_proxy::AcmeProxy;
use crate::support::database::Database;
use crate::support::fixture::Engine;
use crate::support::pebble::{BLOCKED, Pebble, ports};
use crate::support::process::{Node, Output, formgate};
use crate::support::zones::Zones;
use crate::support::{certificate, folder};

/// How long a step may take, on a machine that others load heavily.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// Everything that nodes need.
pub(super) struct Scene {
    folder: TempDir,
    pub(super) registry_url: String,
    pub(super) zones: Zones,
    pub(super) pebble: Arc<Pebble>,
    pub(super) proxy: AcmeProxy,
    /// The tenant's hosts that point to the first node.
    pub(super) hosts: Vec<String>,
    challenges: Vec<&'static str>,
    seal_keys: Vec<&'static str>,
    /// Further keys of `[[gateway.acme.ca]]`, and further authorities.
    authority: String,
    /// The `[[tenant]]` tables of the files.
    files: String,
    database: String,
}

/// The Base64 of 32 bytes.
pub(super) const SEAL_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
/// Another one.
pub(super) const NEW_SEAL_KEY: &str = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU=";

impl Scene {
    /// The tenant `acme` of a file, with one host.
    pub(super) async fn new(engine: Engine) -> Self {
        Self::of(engine, Pebble::shared().await).await
    }

    pub(super) async fn of(engine: Engine, pebble: Arc<Pebble>) -> Self {
        let folder = folder::temporary("domains");
        let registry_url = engine.empty_database(folder.path(), "registry");
        let database = engine.database(folder.path(), "acme");
        let (zones, proxy) = (Zones::start().await, AcmeProxy::start(&pebble).await);
        let hosts = vec![zones.name("forms.acme")];
        let scene = Self {
            folder,
            registry_url,
            zones,
            pebble,
            proxy,
            hosts,
            challenges: vec!["http-01"],
            seal_keys: vec![SEAL_KEY],
            authority: String::new(),
            files: String::new(),
            database,
        };
        scene.serve("acme", "forms A HERE");
        scene.tenant()
    }

    /// The host of the tenant's table.
    pub(super) fn host(&self) -> &str {
        &self.hosts[0]
    }

    /// Serves a zone of the test's own by its short [`name`](Zones::name). `HERE` is the address of the first node.
    pub(super) fn serve(&self, zone: &str, records: &str) {
        let records = records.replace("HERE", &self.zones.address().to_string());
        self.zones.serve(&self.zones.name(zone), &[2], &records);
    }

    /// Serves a host that points to the first node, and that the authority refuses.
    pub(super) fn serve_blocked(&self) -> String {
        let host = format!("{}.{BLOCKED}", self.host());
        self.zones.serve(&host, &[2], &format!("@ A {}", self.zones.address()));
        host
    }

    /// Sets the table of the tenant, with its first host.
    pub(super) fn tenant(mut self) -> Self {
        let (address, database) = (&self.hosts[0], &self.database);
        self.files = format!(
            "[[tenant]]\nslug = \"acme\"\nname = \"Acme\"\naddress = \"{address}\"\ndatabase = \"{database}\"\ntimezone = \"UTC\"\n"
        );
        self
    }

    /// Gives the tenant's first host a certificate of files, valid from the beginning of a day to that of another, counted from
    /// today.
    pub(super) fn with_files_for_days(&mut self, days: std::ops::Range<i32>) {
        let issued = certificate::issue_for_days(&self.folder.path().join("files"), &[self.host()], days);
        let (certificate, private_key) = (issued.certificate.display(), issued.private_key.display());
        let host = self.host();
        let table =
            format!("[tenant.tls.\"{host}\"]\ncertificate = \"{certificate}\"\nprivate_key = \"{private_key}\"\n");
        self.files += &table;
    }

    /// Gives the tenant further hosts.
    pub(super) fn domains(mut self, domains: &[impl std::fmt::Debug]) -> Self {
        self.files += &format!("domains = {domains:?}\n");
        self
    }

    /// Gives the tenant further hosts that point to the first node.
    pub(super) fn with_hosts(mut self, count: usize) -> Self {
        self.hosts.extend((0..count).map(|number| self.zones.name(&format!("h{number}.acme"))));
        let records: Vec<_> = (0..count).map(|number| format!("h{number} A HERE\n")).collect();
        self.serve("acme", &format!("forms A HERE\n{}", records.concat()));
        let hosts = self.hosts[1..].to_vec();
        self.domains(&hosts)
    }

    /// Verifies hosts in another way.
    pub(super) fn challenges(mut self, challenges: &[&'static str]) -> Self {
        self.challenges = challenges.to_vec();
        self
    }

    /// Seals keys with other keys.
    pub(super) fn seal_keys(&mut self, keys: &[&'static str]) {
        self.seal_keys = keys.to_vec();
    }

    /// Adds lines behind the table of the authority.
    pub(super) fn authority(mut self, lines: &str) -> Self {
        self.authority = lines.to_owned();
        self
    }

    /// Another authority behind the first.
    pub(super) fn and_authority(mut self, name: &str, directory: &str) -> Self {
        let root = certificate::authority(self.folder.path());
        self.authority += &format!(
            "\n[[gateway.acme.ca]]\nname = \"{name}\"\ndirectory = \"{directory}\"\nroot = \"{}\"\n",
            root.display()
        );
        self
    }

    pub(super) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub(super) fn config(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("{node}.toml"))
    }

    pub(super) fn snapshot(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("{node}-snapshot.db"))
    }

    /// Writes the configuration of a node.
    pub(super) fn write(&self, node: usize) {
        let ([http, tls], here) = (ports(), self.zones.address());
        let listen = match node {
            0 => format!("[\"{here}:{tls}\", {{ address = \"{here}:{http}\", redirect_to_https = true }}]"),
            _ => "[\"127.0.0.1:0\"]".to_owned(),
        };
        let root = certificate::authority(self.folder.path());
        let text = format!(
            "[gateway]\nlisten = {listen}\nadmin_listen = \"127.0.0.1:0\"\nregistry = \"{}\"\nregistry_snapshot = \"{}\"\n\
             [gateway.operator]\nlisten = [\"unix:{}\"]\n\
             [gateway.domains]\ntarget = \"edge.example.net\"\naddresses = [\"{here}\"]\nresolvers = [\"{}\"]\n\
             [gateway.acme]\ncontact = [\"it@example.net\"]\naccept_terms = true\nchallenges = {:?}\nseal_keys = {:?}\n\
             [[gateway.acme.ca]]\nname = \"pebble\"\ndirectory = \"{}\"\nroot = \"{}\"\n{}\n{}",
            self.registry_url,
            self.snapshot(node).display(),
            self.folder.path().join(format!("{node}.sock")).display(),
            self.zones.resolver(),
            self.challenges,
            self.seal_keys,
            self.proxy.directory(),
            root.display(),
            self.authority,
            self.files,
        );
        let draft = self.config(node).with_extension("draft");
        fs::write(&draft, text).unwrap();
        fs::rename(&draft, self.config(node)).unwrap();
    }

    pub(super) fn start(&self, node: usize) -> Node {
        self.write(node);
        Node::spawn(&self.config(node))
    }

    /// Runs a command with the configuration of the first node.
    pub(super) fn run(&self, command: &[&str]) -> Output {
        self.write(0);
        formgate(&[command, &["--config", &self.config(0).display().to_string()]].concat())
    }

    /// The same in a thread, for a command that connects to the proxy before the CA.
    pub(super) async fn run_in_thread(&self, command: &[&str]) -> Output {
        self.write(0);
        let config = self.config(0).display().to_string();
        let arguments: Vec<String> = command.iter().chain(&["--config", &config]).map(ToString::to_string).collect();
        spawn_blocking(move || formgate(&arguments)).await.expect("the command ends")
    }

    /// The registry, past every node.
    pub(super) async fn registry(&self) -> Registry {
        Registry::open(&DatabaseLocation::parse(&self.registry_url, std::path::Path::new("")).expect("an address"))
            .await
            .expect("it is there")
    }

    /// Adds a tenant to the registry, with an address that needs no certificate of its own.
    pub(super) fn register(&self, slug: &str) {
        let database = self.folder.path().join(format!("{slug}.db"));
        let file = self.folder.path().join(format!("{slug}.toml"));
        let text = format!(
            "[[tenant]]\nslug = \"{slug}\"\nname = \"{slug}\"\naddress = \"{slug}.sign-in.test\"\n\
             database = \"sqlite:{}\"\ntimezone = \"UTC\"\n",
            database.display()
        );
        fs::write(&file, text).unwrap();
        let output = self.run(&["tenant", "import", &file.display().to_string()]);
        assert_eq!(output.code, 0, "{}{}", output.stdout, output.stderr);
    }

    /// Adds a domain to a tenant of the registry. Returns its proof.
    pub(super) async fn add(&self, slug: &str, host: &str) -> String {
        let registry = self.registry().await;
        let proof = format!("formgate-proof-of-{slug}");
        let added = registry.add_domain(slug, host, &proof, Timestamp::now(), Requester::Operator).await.unwrap();
        assert!(matches!(added, DomainAdded::Added(_)), "{added:?}");
        registry.close().await;
        proof
    }

    /// Makes a host due for a check.
    pub(super) async fn check_soon(&self, host: &str) {
        let registry = self.registry().await;
        registry.ask_for_check(host, "acme", Requester::Operator).await.unwrap();
        registry.close().await;
    }

    /// Lets the renewal of a host be due now. A node that looks at it just then would write its own plan over that.
    pub(super) async fn renew_now(&self, host: &str) {
        let past = if self.registry_url.starts_with("sqlite") { "1" } else { "'2020-01-01Z'" };
        let database = Database::connect(&self.registry_url).await;
        let is_idle = format!("(leased_until IS NULL OR leased_until < {})", database.in_hours(0));
        let change = format!("SET renew_at = {past}, next_at = {past} WHERE host = '{host}' AND {is_idle}");
        let began = Instant::now();
        while database.change(&format!("UPDATE registry_domains {change}")).await == 0 {
            assert!(began.elapsed() < LIMIT, "{host} is looked at all the time");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        database.close().await;
    }

    /// Waits until the certificate of a host is of an authority.
    pub(super) async fn is_issued_by(&self, host: &str, authority: &str) -> CertificateRecord {
        let (registry, began) = (self.registry().await, Instant::now());
        loop {
            let found = registry.find_certificate(host).await.expect("the registry can be read");
            if let Some(certificate) = found.as_ref().filter(|found| found.authority == authority) {
                registry.close().await;
                return certificate.clone();
            }
            let rows = registry.find_domains(host).await;
            assert!(began.elapsed() < LIMIT, "{host} has {found:?}: {rows:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits for a proof, dates it three days back, and waits until a node checks the domain.
    pub(super) async fn pass_days(&self, slug: &str, host: &str) {
        let registry = self.registry().await;
        registry.ask_for_check(host, slug, Requester::Operator).await.unwrap();
        registry.close().await;
        let (database, began) = (Database::connect(&self.registry_url).await, Instant::now());
        let proved = format!("FROM registry_domains WHERE slug = '{slug}' AND proved_since IS NOT NULL");
        while database.integers::<1>(&format!("SELECT count(*) {proved}")).await[0] == 0 {
            assert!(began.elapsed() < LIMIT, "the proof is not seen");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (earlier, now) = match self.registry_url.starts_with("sqlite") {
            true => ("proved_since - 260000000000", "1"),
            false => ("proved_since - interval '73 hours'", "'2020-01-01Z'"),
        };
        let change = format!("SET proved_since = {earlier}, next_at = {now} WHERE slug = '{slug}' AND host = '{host}'");
        database.execute(&format!("UPDATE registry_domains {change}")).await;
        // The next check moves the date.
        let due = format!("SELECT count(*) FROM registry_domains WHERE slug = '{slug}' AND next_at <= {now}");
        while database.integers::<1>(&due).await[0] > 0 {
            assert!(began.elapsed() < LIMIT, "no node checks the domain");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        database.close().await;
    }

    /// Waits until a host of the tenant is in a state for a reason.
    pub(super) async fn becomes(&self, host: &str, state: DomainState, reason: &str) -> DomainRecord {
        self.becomes_of("acme", host, state, reason).await
    }

    /// The same for another tenant.
    pub(super) async fn becomes_of(&self, slug: &str, host: &str, state: DomainState, reason: &str) -> DomainRecord {
        let registry = self.registry().await;
        let began = Instant::now();
        loop {
            let rows = registry.find_domains(host).await.expect("the registry can be read");
            let found = rows.into_iter().find(|row| row.slug == slug);
            if let Some(row) = &found
                && row.state == state
                && reason_of(row)["reason"].as_str().unwrap_or_default() == reason
            {
                registry.close().await;
                return row.clone();
            }
            assert!(began.elapsed() < LIMIT, "{host} is not {state:?} {reason:?}, but: {found:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until a host is live.
    pub(super) async fn goes_live(&self, host: &str) -> DomainRecord {
        self.becomes(host, DomainState::Live, "").await
    }

    /// Makes a handshake for a host that trusts only the authority. Returns the leaf.
    pub(super) async fn shake(&self, node: &Node, host: &str) -> io::Result<CertificateDer<'static>> {
        shake(node.address, host, self.pebble.root.clone()).await
    }

    /// Waits until a node serves a certificate of the authority for a host.
    pub(super) async fn is_served(&self, node: &Node, host: &str) -> CertificateDer<'static> {
        let began = Instant::now();
        loop {
            match self.shake(node, host).await {
                Ok(leaf) => return leaf,
                Err(error) => assert!(began.elapsed() < LIMIT, "{host}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The reason of a row.
pub(super) fn reason_of(row: &DomainRecord) -> Value {
    serde_json::from_str(&row.reason).expect("a JSON object")
}

/// Makes a handshake that trusts one root. Returns the leaf.
pub(super) async fn shake(
    address: SocketAddr,
    host: &str,
    root: CertificateDer<'static>,
) -> io::Result<CertificateDer<'static>> {
    let mut roots = RootCertStore::empty();
    roots.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).expect("a host");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(address).await?).await?;
    let chain = stream.get_ref().1.peer_certificates().expect("the server has a certificate");
    Ok(chain[0].clone().into_owned())
}
