//! The folder of a demo: its configuration, certificate and databases.
//!
//! Writes to an existing folder only if it is empty or belongs to a demo, and keeps the files it finds: the
//! configuration may have been changed, the certificate may be trusted somewhere, and a token may be in use.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::config::Config;
use crate::owner_only;

const CONFIG: &str = include_str!("tenants.toml");

/// The hosts of the configuration, the address of the receiver of webhooks, and others for experiments.
const NAMES: [&str; 6] =
    ["acme.localhost", "globex.localhost", "initech.localhost", "forms.acme.localhost", "localhost", "127.0.0.1"];

/// The longest path of a socket on Linux (unix(7)).
const MAX_SOCKET_PATH: usize = 107;

/// A demo's folder with all files in place. A temporary one is removed on drop.
pub(super) struct DemoFolder {
    path: PathBuf,
    temporary: Option<TempDir>,
    /// Locked until the demo ends.
    _lock: File,
}

impl DemoFolder {
    /// Creates a folder, or continues with an existing one that no running demo uses.
    pub(super) fn prepare(dir: Option<&Path>) -> Result<Self> {
        let (path, temporary) = match dir {
            Some(dir) => (claim(dir)?, None),
            None => {
                let temporary = owner_only::create_temporary_folder("formgate-demo-");
                let temporary = temporary.context("no temporary folder can be made; name one with --dir")?;
                (temporary.path().canonicalize()?, Some(temporary))
            }
        };
        let lock = lock(&path)?;
        let folder = Self { path, temporary, _lock: lock };
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
        let mut config = Config::load(&self.config())?;
        if self.operator_socket().as_os_str().len() > MAX_SOCKET_PATH {
            config.gateway.operator = None;
        }
        Ok(config)
    }

    /// The token of a tenant that an earlier demo in this folder printed.
    pub(super) fn read_token(&self, slug: &str) -> Option<String> {
        fs::read_to_string(self.token(slug)).ok()
    }

    /// Keeps the token of a tenant for the next demo in this folder.
    pub(super) fn write_token(&self, slug: &str, token: &str) -> Result<()> {
        let path = self.token(slug);
        owner_only::write_file(&path, token.as_bytes()).with_context(|| format!("can't write {}", path.display()))
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

    /// The socket of the operator API in the demo's own configuration.
    pub(super) fn operator_socket(&self) -> PathBuf {
        self.path.join("operator.sock")
    }

    fn token(&self, slug: &str) -> PathBuf {
        self.path.join(format!("{slug}.token"))
    }
}

/// Locks a folder, so that two demos don't share its databases, its socket and their output.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("demo.lock");
    let lock = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = lock.with_context(|| format!("can't write to {}", folder.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => {
            bail!("another demo runs in {}; stop it, or name another folder with --dir", folder.display())
        }
        Err(fs::TryLockError::Error(error)) => Err(error).with_context(|| format!("can't lock {}", path.display())),
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
