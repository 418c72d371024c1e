//! The paths of a certificate and its private key.

use std::path::Path;

use super::CertificateFiles;
use super::declaration::keys;
use super::source::SourceSpan;
use super::table::TableReader;

keys! { key:
    certificate = string(), "a PEM file: the leaf, then its intermediate certificates in order";
    private_key = string(),
        "a PEM file without a passphrase: RSA with 2048 bits or more, EC on P-256, P-384 or P-521, or Ed25519";
}

/// The paths of a certificate and its key, and where they are configured.
#[derive(Clone)]
pub(super) struct NamedFiles {
    pub(super) files: CertificateFiles,
    pub(super) certificate: SourceSpan,
    pub(super) private_key: SourceSpan,
    /// Whether the paths contain environment variables. If so, reports must not quote them: operators do put the key
    /// itself where its path belongs.
    pub(super) from_environment: bool,
}

/// Reads a table of two paths, relative to the folder of the file.
pub(super) fn read(mut table: TableReader<'_, '_>, folder: &Path) -> Option<NamedFiles> {
    let certificate = table.string(&key::certificate);
    let private_key = table.string(&key::private_key);
    table.finish();
    let (certificate, private_key) = certificate.zip(private_key)?;
    Some(NamedFiles {
        from_environment: certificate.from_environment || private_key.from_environment,
        files: CertificateFiles {
            certificate: folder.join(certificate.value).into(),
            private_key: folder.join(private_key.value).into(),
        },
        certificate: certificate.span,
        private_key: private_key.span,
    })
}
