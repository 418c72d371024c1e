//! The real program with two tenants, in a folder of its own; ended on drop.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustls::RootCertStore;
use tempfile::TempDir;

/// The host of the tenant whose callers must not notice.
pub(crate) const HOST: &str = "acme.example.test";

/// The host of a tenant of which hostile callers have a token: what they hold, they hold of its requests in flight.
pub(crate) const FLOODED: &str = "globex.example.test";

/// The kernel's unit of CPU time in `/proc`; 100 wherever Linux runs.
const TICKS_A_SECOND: u32 = 100;

/// What a caller needs to know.
#[derive(Clone)]
pub(crate) struct Reach {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
    /// A token of the tenant at [`FLOODED`].
    pub(crate) flooders_token: String,
    pub(crate) roots: Arc<RootCertStore>,
}

/// A running gateway.
pub(crate) struct Gateway {
    pub(crate) reach: Reach,
    child: Child,
    _folder: TempDir,
}

impl Gateway {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let issued = rcgen::generate_simple_self_signed([HOST.to_owned(), FLOODED.to_owned()])?;
        fs::write(folder.path().join("certificate.pem"), issued.cert.pem())?;
        fs::write(folder.path().join("key.pem"), issued.signing_key.serialize_pem())?;
        let config = folder.path().join("tenants.toml");
        let text = format!(
            "[gateway]\nlisten = [\"127.0.0.1:0\"]\n[gateway.tls]\ncertificate = \"certificate.pem\"\n\
             private_key = \"key.pem\"\n[[tenant]]\nslug = \"acme\"\nname = \"Acme\"\naddress = \"{HOST}\"\n\
             database = \"sqlite:acme.db\"\nrequests_per_minute = 100000\n\
             [[tenant]]\nslug = \"globex\"\nname = \"Globex\"\naddress = \"{FLOODED}\"\n\
             database = \"sqlite:globex.db\"\nrequests_per_minute = 100000\n"
        );
        fs::write(&config, text)?;
        let run = |arguments: &[&str]| {
            let output =
                Command::new(env!("CARGO_BIN_EXE_formgate")).args(arguments).arg("--config").arg(&config).output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Ok(String::from_utf8(output.stdout)?.trim().to_owned())
        };
        run(&["migrate"])?;
        let token = run(&["token", "create", "--tenant", "acme", "--name", "bench"])?;
        let flooders_token = run(&["token", "create", "--tenant", "globex", "--name", "bench"])?;
        let mut child = Command::new(env!("CARGO_BIN_EXE_formgate"))
            .args(["serve", "--config"])
            .arg(&config)
            .env("FORMGATE_LOG", "info,formgate::access=off")
            .stderr(Stdio::piped())
            .spawn()?;
        let mut log = BufReader::new(child.stderr.take().context("it is piped")?).lines();
        let address = log.by_ref().map_while(Result::ok).find_map(|line| address_in(&line));
        // A full pipe would hold the gateway up.
        std::thread::spawn(move || log.for_each(drop));
        let mut roots = RootCertStore::empty();
        roots.add(issued.cert.der().clone())?;
        let address = address.context("the gateway says where it listens")?;
        Ok(Self { reach: Reach { address, token, flooders_token, roots: Arc::new(roots) }, child, _folder: folder })
    }

    /// The CPU time that it used.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let (_, fields) = stat.rsplit_once(") ").context("the command's name ends")?;
        let ticks: Vec<u32> = fields.split(' ').skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
        Ok(Duration::from_secs(1) * ticks.iter().sum() / TICKS_A_SECOND)
    }

    /// The memory that it holds now.
    pub(crate) fn resident_mib(&self) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("it runs")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib / 1024.0)
    }
}

/// The address in the line that says that the gateway serves.
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("127.0.0.1:")?;
    let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some(SocketAddr::from(([127, 0, 0, 1], port.parse().ok()?)))
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
