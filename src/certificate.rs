//! A certificate chain and its private key: two PEM files become what a handshake serves.
//!
//! Owns reading and pairing them, and every way in which that fails. Does not choose between certificates, and keeps
//! none. A [`Certificate`] exists only when its key signs for its leaf, so a handshake never meets a broken pair; one that
//! is out of date is whole all the same, and who reads it decides what that means.

mod concerns;
mod contents;
mod remedy;
#[cfg(test)]
mod tests;
mod unusable;
mod validity;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::file_stamp::FileStamp;
use crate::host::CertificateNames;

pub use self::concerns::{ChainConcern, Roots, concerns};
pub use self::contents::Contents;
pub use self::remedy::not_covered_help;
pub use self::unusable::UnusableKey;
pub use self::validity::{OutOfDate, Validity};

/// A certificate chain and its private key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateFiles {
    /// The chain, leaf first.
    pub certificate: Box<Path>,
    /// The key of the leaf.
    pub private_key: Box<Path>,
}

impl CertificateFiles {
    /// What tells the two files, as they are now, from any that were there before. A file that can't be looked at has a
    /// stamp too: its fault is new when it could be before.
    #[must_use]
    pub fn stamp(&self) -> FilesStamp {
        FilesStamp([&self.certificate, &self.private_key].map(|path| FileStamp::of(path)))
    }
}

/// The state of a pair of files; equal for two looks between which neither changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilesStamp([Option<FileStamp>; 2]);

/// What a handshake serves, and the names that it vouches for.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The chain and the key that signs for its leaf.
    pub key: Arc<CertifiedKey>,
    /// The DNS names in the leaf.
    pub names: Arc<CertificateNames>,
    /// When callers take the leaf.
    pub validity: Validity,
}

/// Two files are no certificate to serve. The paths stand in the text, nothing of a key does.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file of the chain can't be read.
    #[error("can't read the certificate `{}`", path.display())]
    CertificateUnreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file of the chain holds no `CERTIFICATE` section, or a broken one.
    #[error("`{}` holds no certificate in PEM form", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
        /// What it holds instead.
        source: Contents,
    },
    /// The first section of the chain is no X.509 certificate of a server.
    #[error("the first certificate in `{}` is malformed", path.display())]
    CertificateMalformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: MalformedCertificate,
    },
    /// The file of the key can't be read.
    #[error("can't read the private key `{}`", path.display())]
    KeyUnreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file of the key holds no `PRIVATE KEY` section, or a broken one.
    #[error("`{}` holds no private key in PEM form", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// What it holds instead.
        source: Contents,
    },
    /// The key is there, and needs a passphrase.
    #[error("the private key in `{}` is encrypted", path.display())]
    KeyEncrypted {
        /// The file.
        path: PathBuf,
    },
    /// The key is of a kind that TLS can't use, or it is damaged.
    #[error("the private key in `{}` can't be used", path.display())]
    KeyUnusable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: UnusableKey,
    },
    /// Both files are sound, but the key is another certificate's.
    #[error("the private key in `{}` does not fit the certificate in `{}`", key.display(), certificate.display())]
    KeyMismatch {
        /// The file of the chain.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// Both files are sound, but the key belongs to a certificate further down in its file.
    #[error("the certificate in `{}` that belongs to the private key is not the first, but number {position}", path.display())]
    LeafNotFirst {
        /// The file of the chain.
        path: PathBuf,
        /// Of the leaf, counted from 1.
        position: usize,
    },
    /// Both files are sound and belong together, but callers refuse the certificate now.
    #[error("the certificate in `{}` is out of date", path.display())]
    OutOfDate {
        /// The file of the chain.
        path: PathBuf,
        /// On which side of its validity now is.
        source: OutOfDate,
    },
}

/// What is wrong with a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedCertificate {
    /// It is not what TLS can verify.
    #[error(transparent)]
    Unverifiable(#[from] webpki::Error),
    /// It is not made as X.509 wants it.
    #[error("not an X.509 certificate")]
    NotX509,
}

/// Reads a chain and its key, blocking on the files.
///
/// # Errors
/// The first condition of [`CertificateError`] that holds, but for being out of date: [`check_date`] asks for that.
/// [`read_chain`] and [`read_key`] tell of each file apart.
pub fn read(files: &CertificateFiles) -> Result<Certificate, CertificateError> {
    let chain = read_chain(&files.certificate)?;
    let key = read_key(&files.private_key)?;
    pair(&chain, &key, files)
}

/// Whether callers take a certificate that was read from `files` at `now`.
///
/// # Errors
/// [`CertificateError::OutOfDate`].
pub fn check_date(validity: Validity, files: &CertificateFiles, now: Timestamp) -> Result<(), CertificateError> {
    let out_of_date = |source| CertificateError::OutOfDate { path: files.certificate.to_path_buf(), source };
    validity.check(now).map_err(out_of_date)
}

/// Reads a chain: every `CERTIFICATE` section of a PEM file, the leaf first.
///
/// # Errors
/// The file can't be read, or it holds no certificate.
pub fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let text = std::fs::read(path)
        .map_err(|source| CertificateError::CertificateUnreadable { path: path.to_owned(), source })?;
    let text = strip_byte_order_mark(&text);
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(text).collect();
    chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| CertificateError::NoCertificate {
        path: path.to_owned(),
        source: Contents::in_place_of_certificate(text),
    })
}

/// Reads a key: the first PKCS #8, PKCS #1 or SEC 1 section of a PEM file.
///
/// # Errors
/// The file can't be read, or it holds no key.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let text =
        std::fs::read(path).map_err(|source| CertificateError::KeyUnreadable { path: path.to_owned(), source })?;
    let text = strip_byte_order_mark(&text);
    PrivateKeyDer::from_pem_slice(text).map_err(|_| {
        let path = path.to_owned();
        if contents::is_encrypted_key(text) {
            CertificateError::KeyEncrypted { path }
        } else {
            CertificateError::NoKey { path, source: Contents::in_place_of_key(text) }
        }
    })
}

/// A text without the byte order mark that some editors write before UTF-8.
fn strip_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// Joins a chain and a key that were read from `files`.
///
/// # Errors
/// The leaf is malformed, the key is unusable, or they do not belong together.
pub fn pair(
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    files: &CertificateFiles,
) -> Result<Certificate, CertificateError> {
    let malformed = |source| CertificateError::CertificateMalformed { path: files.certificate.to_path_buf(), source };
    let names = names(chain).map_err(|source| malformed(source.into()))?;
    let validity = validity(chain).ok_or_else(|| malformed(MalformedCertificate::NotX509))?;
    let paired = CertifiedKey::from_der(chain.to_vec(), key.clone_key(), &aws_lc_rs::default_provider());
    let key = paired.map_err(|fault| unpaired(fault, chain, key, files))?;
    Ok(Certificate { key: Arc::new(key), names: Arc::new(names), validity })
}

/// Why a chain and a key are no pair.
fn unpaired(
    fault: rustls::Error,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    files: &CertificateFiles,
) -> CertificateError {
    let (certificate, private_key) = (files.certificate.to_path_buf(), files.private_key.to_path_buf());
    let rustls::Error::InconsistentKeys(_) = fault else {
        return CertificateError::KeyUnusable { path: private_key, source: UnusableKey::of(chain.first(), fault) };
    };
    let is_leaf = |other: &CertificateDer<'static>| {
        CertifiedKey::from_der(vec![other.clone()], key.clone_key(), &aws_lc_rs::default_provider()).is_ok()
    };
    match chain.iter().position(is_leaf) {
        Some(index) => CertificateError::LeafNotFirst { path: certificate, position: index + 1 },
        None => CertificateError::KeyMismatch { certificate, key: private_key },
    }
}

/// When callers take the leaf.
fn validity(chain: &[CertificateDer<'static>]) -> Option<Validity> {
    let (_, leaf) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    Some(Validity::of(leaf.validity()))
}

/// The DNS names of the leaf; a common name alone counts for nothing (RFC 9525, section 2).
fn names(chain: &[CertificateDer<'static>]) -> Result<CertificateNames, webpki::Error> {
    let leaf = chain.first().expect("a chain is read with at least one certificate");
    let leaf = webpki::EndEntityCert::try_from(leaf)?;
    Ok(CertificateNames::new(leaf.valid_dns_names()))
}
