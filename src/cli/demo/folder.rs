//! The folder of a demo: its configuration, certificate and databases.
//!
//! Writes to an existing folder only if it is empty or belongs to a demo, and keeps the files it finds: the
//! configuration may have been changed, and the certificate may be trusted somewhere.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::config::Config;
use crate::owner_only;

const CONFIG: &str = include_str!("tenants.toml");

/// The hosts of the configuration, the address of the receiver of webhooks, and others for experiments.
const NAMES: [&str; 5] = ["acme.localhost", "globex.localhost", "forms.acme.localhost", "localhost", "127.0.0.1"];

/// A demo's folder with all files in place. A temporary one is removed on drop.
pub(super) struct DemoFolder {
    path: PathBuf,
    temporary: Option<TempDir>,
}

impl DemoFolder {
    /// Creates a folder, or continues with an existing one.
    pub(super) fn prepare(dir: Option<&Path>) -> Result<Self> {
        let folder = match dir {
            Some(dir) => Self { path: claim(dir)?, temporary: None },
            None => {
                let temporary = owner_only::create_temporary_folder("formgate-demo-");
                let temporary = temporary.context("no temporary folder can be made; name one with --dir")?;
                Self { path: temporary.path().canonicalize()?, temporary: Some(temporary) }
            }
        };
        folder.fill().with_context(|| format!("can't write to {}", folder.path.display()))?;
        Ok(folder)
    }

    fn fill(&self) -> Result<()> {
        if !self.config().exists() {
            fs::write(self.config(), CONFIG)?;
        }
        if !self.certificate().exists() || !self.private_key().exists() {
            let issued = rcgen::generate_simple_self_signed(NAMES.map(str::to_owned))?;
            owner_only::write_file(&self.private_key(), issued.signing_key.serialize_pem().as_bytes())?;
            fs::write(self.certificate(), issued.cert.pem())?;
        }
        Ok(())
    }

    /// Loads the configuration in the folder.
    pub(super) fn load_config(&self) -> Result<Config> {
        Ok(Config::load(&self.config())?)
    }

    pub(super) fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    pub(super) fn config(&self) -> PathBuf {
        self.path.join("tenants.toml")
    }

    pub(super) fn certificate(&self) -> PathBuf {
        self.path.join("certificate.pem")
    }

    pub(super) fn private_key(&self) -> PathBuf {
        self.path.join("certificate.key")
    }
}

/// Creates the folder if needed, readable only by its owner, since it will contain answers and tokens. An existing one
/// must be empty or belong to a demo.
fn claim(dir: &Path) -> Result<PathBuf> {
    owner_only::create_folder(dir).with_context(|| format!("can't make the folder {}", dir.display()))?;
    let path = dir.canonicalize().with_context(|| format!("can't read the folder {}", dir.display()))?;
    let mark = CONFIG.lines().next().expect("the configuration has a first line");
    match fs::read_to_string(path.join("tenants.toml")) {
        Ok(config) if config.starts_with(mark) => {}
        Ok(_) => bail!("{} has a tenants.toml that is no demo's; name another folder with --dir", path.display()),
        Err(_) if path.read_dir()?.next().is_some() => {
            bail!("{} is neither empty nor a demo's; name another folder with --dir", path.display())
        }
        Err(_) => {}
    }
    Ok(path)
}
