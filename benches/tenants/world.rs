//! Tenants with a certificate each, in a temporary folder.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use tempfile::TempDir;

/// Keys are slow to make and don't matter beyond their number: so many are shared by all certificates.
const KEYS: usize = 1000;

/// The Base64 of 32 bytes.
pub(crate) const SEAL_KEY: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

pub(crate) struct World {
    pub(crate) tenants: usize,
    pub(crate) authority: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
    /// The URL of the registry that has the tenants.
    pub(crate) registry: Option<String>,
    /// Whether the hosts of the tenants are below one name, and share its certificate.
    are_below: bool,
}

impl World {
    pub(crate) fn make(tenants: usize) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join("certs"))?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let keys = (0..KEYS.min(tenants + 1)).map(|_| KeyPair::generate()).collect::<Result<Vec<_>, _>>()?;
        let world = Self { tenants, authority, folder, registry: None, are_below: false };
        world.issue("wildcard", "*.example.com", &keys[0])?;
        // One more than are served at first.
        for n in 0..=tenants {
            world.issue(&format!("t{n}"), &world.host(n), &keys[n % keys.len()])?;
        }
        world.write(tenants, "Tenant")?;
        Ok(world)
    }

    /// Tenants in a registry, which share a certificate.
    pub(crate) fn make_registry(tenants: usize, registry: &str) -> anyhow::Result<Self> {
        let mut world = Self::make(0)?;
        (world.tenants, world.registry, world.are_below) = (tenants, Some(registry.to_owned()), true);
        let tables = format!(
            "registry = \"{registry}\"\n[gateway.operator]\nlisten = [\"unix:operator.sock\"]\n[gateway.limits]"
        );
        let mut text = fs::read_to_string(world.config())?.replace("[gateway.limits]", &tables);
        fs::write(world.config(), &text)?;
        text.clear();
        for n in 0..tenants {
            let host = world.host(n);
            let database = Self::database(n);
            write!(
                text,
                "[[tenant]]\nslug = \"t{n}\"\nname = \"Tenant {n}\"\naddress = \"{host}\"\ndatabase = \"{database}\"\n\n"
            )?;
        }
        fs::write(world.folder.path().join("import.txt"), text)?;
        Ok(world)
    }

    /// Tenants in a registry with a host each that no file covers.
    pub(crate) fn make_domains(domains: usize, registry: &str) -> anyhow::Result<Self> {
        let mut world = Self::make_registry(domains, registry)?;
        world.are_below = false;
        let text = fs::read_to_string(world.config())?;
        let tables = format!(
            "[gateway.domains]\naddresses = [\"127.0.0.1\"]\nresolvers = [\"127.0.0.1:1\"]\n[gateway.acme]\n\
             contact = [\"it@example.com\"]\naccept_terms = true\nseal_keys = [\"{SEAL_KEY}\"]\n\
             [[gateway.acme.ca]]\nname = \"none\"\ndirectory = \"https://127.0.0.1:1/\"\n"
        );
        fs::write(world.config(), format!("{text}{tables}"))?;
        let import = world.folder.path().join("import.txt");
        let text: String = (0..domains)
            .map(|n| {
                let (host, database) = (world.host(n), Self::database(n));
                format!(
                    "[[tenant]]\nslug = \"t{n}\"\nname = \"T\"\naddress = \"{host}\"\ndatabase = \"{database}\"\n\n"
                )
            })
            .collect();
        fs::write(import, text)?;
        Ok(world)
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
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_formgate"));
        command.args(["tenant", "import"]).arg(self.folder.path().join("import.txt"));
        let output = command.arg("--config").arg(self.config()).output()?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    fn issue(&self, file: &str, name: &str, key: &KeyPair) -> anyhow::Result<()> {
        let certificate = CertificateParams::new([name.to_owned()])?.signed_by(key, &self.authority)?;
        // As long as what a public authority gives: the leaf and one above it.
        let chain = certificate.pem() + &self.authority.pem();
        fs::write(self.folder.path().join(format!("certs/{file}.pem")), chain)?;
        fs::write(self.folder.path().join(format!("certs/{file}.key")), key.serialize_pem())?;
        Ok(())
    }

    /// The host of a tenant that has a certificate of its own.
    pub(crate) fn host(&self, n: usize) -> String {
        if self.are_below { format!("t{n}.example.com") } else { format!("forms.customer-{n}.org") }
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("tenants.toml")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
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

    /// Callers have no token, and are not to be slowed for that.
    fn write(&self, tenants: usize, name_of_first: &str) -> anyhow::Result<()> {
        let mut text = "[gateway]\nlisten = [\"127.0.0.1:0\"]\nadmin_listen = \"127.0.0.1:0\"\n\
            [gateway.limits]\nbad_tokens_burst = 1000000\nbad_tokens_per_second = 100000\n[gateway.tls]\n\
            certificate = \"certs/wildcard.pem\"\nprivate_key = \"certs/wildcard.key\"\n"
            .to_owned();
        for n in 0..tenants {
            let name = if n == 0 { name_of_first } else { "Tenant" };
            let host = self.host(n);
            write!(
                text,
                "\n[[tenant]]\nslug = \"t{n}\"\nname = \"{name} {n}\"\naddress = \"t{n}.example.com\"\n\
                 domains = [\"{host}\"]\ndatabase = \"postgres://t{n}:secret-{n}@db.internal/t{n}\"\n\
                 [tenant.tls.\"{host}\"]\ncertificate = \"certs/t{n}.pem\"\nprivate_key = \"certs/t{n}.key\"\n"
            )?;
        }
        let draft = self.folder.path().join("draft");
        fs::write(&draft, text)?;
        fs::rename(draft, self.config())?;
        Ok(())
    }
}
