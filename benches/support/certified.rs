//! Accounts with a certificate each. Their databases don't exist: callers have no token.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};

use crate::world::{PROGRAM, World};

/// Keys are slow to generate and don't matter beyond their number: so many are shared by all certificates.
const KEYS: usize = 1000;

/// The Base64 of 32 bytes.
pub(crate) const SEAL_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// Keys of `[gateway]` for callers over TLS.
const LISTEN: &str = "listen = [\"127.0.0.1:0\"]\n";

/// Callers have no token, and are not to be slowed for that.
const TABLES: &str = "[gateway.limits]\nbad_tokens_burst = 1000000\nbad_tokens_per_second = 100000\n[gateway.tls]\n\
    certificate = \"certs/wildcard.pem\"\nprivate_key = \"certs/wildcard.key\"\n";

pub(crate) struct Certified {
    world: World,
    pub(crate) tenants: usize,
    pub(crate) authority: CertifiedIssuer<'static, KeyPair>,
    /// The URL of the registry that has the tenants.
    pub(crate) registry: Option<String>,
    /// Whether the hosts of the tenants are below one name, and share its certificate.
    are_below: bool,
}

impl Certified {
    /// Tenants of a file, each with a host and a certificate of its own.
    pub(crate) fn new(tenants: usize) -> anyhow::Result<Self> {
        let world = World::new(Path::new(PROGRAM), tenants, ["postgres://t@db.internal/t", ""])?;
        fs::create_dir(world.path("certs"))?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let keys = (0..KEYS.min(tenants + 1)).map(|_| KeyPair::generate()).collect::<Result<Vec<_>, _>>()?;
        let certified = Self { world, tenants, authority, registry: None, are_below: false };
        certified.issue("wildcard", "*.example.com", &keys[0])?;
        // One more than are served at first.
        for n in 0..=tenants {
            certified.issue(&format!("t{n}"), &certified.host(n), &keys[n % keys.len()])?;
        }
        certified.write(tenants, "Tenant")?;
        Ok(certified)
    }

    /// Tenants in a registry, which share a certificate.
    pub(crate) fn in_registry(tenants: usize, registry: &str) -> anyhow::Result<Self> {
        Self::by_import(tenants, registry, true, "")
    }

    /// Tenants in a registry with a host each that no file covers.
    pub(crate) fn with_domains(domains: usize, registry: &str) -> anyhow::Result<Self> {
        let tables = format!(
            "[gateway.domains]\naddresses = [\"127.0.0.1\"]\nresolvers = [\"127.0.0.1:1\"]\n[gateway.acme]\n\
             contact = [\"it@example.com\"]\naccept_terms = true\nseal_keys = [\"{SEAL_KEY}\"]\n\
             [[gateway.acme.ca]]\nname = \"none\"\ndirectory = \"https://127.0.0.1:1/\"\n"
        );
        Self::by_import(domains, registry, false, &tables)
    }

    fn by_import(tenants: usize, registry: &str, are_below: bool, tables: &str) -> anyhow::Result<Self> {
        let mut certified = Self::new(0)?;
        (certified.tenants, certified.registry, certified.are_below) = (tenants, Some(registry.to_owned()), are_below);
        let gateway = format!(
            "{LISTEN}registry = \"{registry}\"\n[gateway.operator]\nlisten = [\"unix:operator.sock\"]\n{TABLES}{tables}"
        );
        certified.world.write(&certified.config(), &gateway, "")?;
        let mut text = String::new();
        for n in 0..tenants {
            let (host, database) = (certified.host(n), Self::database(n));
            write!(
                text,
                "[[tenant]]\nslug = \"t{n}\"\nname = \"Tenant {n}\"\naddress = \"{host}\"\ndatabase = \"{database}\"\n\n"
            )?;
        }
        fs::write(certified.world.path("import.txt"), text)?;
        Ok(certified)
    }

    /// A chain for a host, and its key, in PEM.
    pub(crate) fn pair(&self, host: &str) -> anyhow::Result<(String, String)> {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new([host.to_owned()])?.signed_by(&key, &self.authority)?;
        Ok((certificate.pem() + &self.authority.pem(), key.serialize_pem()))
    }

    pub(crate) fn database(n: usize) -> String {
        format!("postgres://t{n}:secret-{n}@db.internal/t{n}")
    }

    /// Fills the registry, by the command.
    pub(crate) fn import(&self) -> anyhow::Result<()> {
        let file = self.world.path("import.txt");
        self.world.formgate(&["tenant", "import", file.to_str().expect("a plain name")]).map(drop)
    }

    fn issue(&self, file: &str, name: &str, key: &KeyPair) -> anyhow::Result<()> {
        let certificate = CertificateParams::new([name.to_owned()])?.signed_by(key, &self.authority)?;
        // As long as what a public authority gives: the leaf and one above it.
        let chain = certificate.pem() + &self.authority.pem();
        fs::write(self.world.path(&format!("certs/{file}.pem")), chain)?;
        fs::write(self.world.path(&format!("certs/{file}.key")), key.serialize_pem())?;
        Ok(())
    }

    /// The host of a tenant that has a certificate of its own.
    pub(crate) fn host(&self, n: usize) -> String {
        if self.are_below { format!("t{n}.example.com") } else { format!("forms.customer-{n}.org") }
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.world.config()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.world.folder()
    }

    pub(crate) fn config_size(&self) -> anyhow::Result<u64> {
        Ok(fs::metadata(self.config())?.len())
    }

    /// Changes the configuration: nothing, one tenant more, the name of one.
    pub(crate) fn change(&self, change: usize) -> anyhow::Result<()> {
        match change {
            0 => Ok(()),
            1 => self.write(self.tenants + 1, "Tenant"),
            _ => self.write(self.tenants + 1, "Another name of tenant"),
        }
    }

    fn write(&self, tenants: usize, name_of_first: &str) -> anyhow::Result<()> {
        let mut text = String::new();
        for n in 0..tenants {
            let name = if n == 0 { name_of_first } else { "Tenant" };
            let (host, database) = (self.host(n), Self::database(n));
            write!(
                text,
                "\n[[tenant]]\nslug = \"t{n}\"\nname = \"{name} {n}\"\naddress = \"t{n}.example.com\"\n\
                 domains = [\"{host}\"]\ndatabase = \"{database}\"\n\
                 [tenant.tls.\"{host}\"]\ncertificate = \"certs/t{n}.pem\"\nprivate_key = \"certs/t{n}.key\"\n"
            )?;
        }
        self.world.write(&self.config(), &format!("{LISTEN}{TABLES}"), &text)
    }
}
