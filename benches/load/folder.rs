//! The temporary folder of a site: its certificate, and where configurations, logs and SQLite files go.
//!
//! It is below everything that writes into it, so that a server is started without knowing the site.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The folder; removed on drop.
pub(crate) struct SiteFolder(TempDir);

impl SiteFolder {
    /// Makes the folder with a certificate for a wildcard host and its private key.
    pub(crate) fn make(host: &str) -> anyhow::Result<Self> {
        let folder = Self(tempfile::Builder::new().prefix("formgate-load-").tempdir()?);
        let issued = rcgen::generate_simple_self_signed([host.to_owned()])?;
        fs::write(folder.certificate(), issued.cert.pem())?;
        fs::write(folder.private_key(), issued.signing_key.serialize_pem())?;
        fs::create_dir(folder.path().join("data"))?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.path().join("certificate.pem")
    }

    pub(crate) fn private_key(&self) -> PathBuf {
        self.path().join("key.pem")
    }

    /// The URL of an account's SQLite database.
    pub(crate) fn database(&self, slug: &str) -> String {
        format!("sqlite:{}", self.path().join(format!("data/{slug}.db")).display())
    }
}
