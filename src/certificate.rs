//! A certificate chain and its private key, read from two PEM files.
//!
//! Owns reading and pairing the files, and every error of that. Neither chooses between certificates nor keeps any. A
//! [`Certificate`] exists only if its key matches its leaf, so a handshake never uses a mismatched pair. It may be out
//! of date; callers decide what that means.

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
use crate::host::{CertificateNames, HostName};
use crate::regular_file::{self, MAX_PEM};

pub use self::concerns::{ChainConcern, Roots, concerns};
pub use self::contents::Contents;
pub use self::remedy::not_covered_help;
pub use self::unusable::UnusableKey;
pub use self::validity::{OutOfDate, Validity};

/// The paths of a certificate chain and its private key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateFiles {
    /// The chain, leaf first.
    pub certificate: Box<Path>,
    /// The key of the leaf.
    pub private_key: Box<Path>,
}

impl CertificateFiles {
    /// A stamp of the current state of both files. A missing or unreadable file has a stamp too, since its error may
    /// be new.
    #[must_use]
    pub fn stamp(&self) -> FilesStamp {
        FilesStamp([&self.certificate, &self.private_key].map(|path| FileStamp::of(path)))
    }
}

/// The state of a pair of files; equal if neither file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilesStamp([Option<FileStamp>; 2]);

/// A certificate as used in handshakes, with its names and validity.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The chain and the key that signs for its leaf.
    pub key: Arc<CertifiedKey>,
    /// The DNS names in the leaf.
    pub names: Arc<CertificateNames>,
    /// The validity of the leaf.
    pub validity: Validity,
}

/// Why two files are not a usable certificate. Messages contain the paths, but nothing of a key.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The certificate file can't be read.
    #[error("can't read the certificate `{}`", path.display())]
    CertificateUnreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The certificate file has no `CERTIFICATE` section, or a damaged one.
    #[error("`{}` holds no certificate in PEM form", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
        /// What it holds instead.
        source: Contents,
    },
    /// The first section is not an X.509 certificate of a server.
    #[error("the first certificate in `{}` is malformed", path.display())]
    CertificateMalformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: MalformedCertificate,
    },
    /// The key file can't be read.
    #[error("can't read the private key `{}`", path.display())]
    KeyUnreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The key file has no `PRIVATE KEY` section, or a damaged one.
    #[error("`{}` holds no private key in PEM form", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// What it holds instead.
        source: Contents,
    },
    /// The key needs a passphrase.
    #[error("the private key in `{}` is encrypted", path.display())]
    KeyEncrypted {
        /// The file.
        path: PathBuf,
    },
    /// TLS does not support this kind of key, or the key is damaged.
    #[error("the private key in `{}` can't be used", path.display())]
    KeyUnusable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: UnusableKey,
    },
    /// Both files are valid, but the key belongs to another certificate.
    #[error("the private key in `{}` does not fit the certificate in `{}`", key.display(), certificate.display())]
    KeyMismatch {
        /// The file of the chain.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// Both files are valid, but the key belongs to a later certificate of the file.
    #[error("the certificate in `{}` that belongs to the private key is not the first, but number {position}", path.display())]
    LeafNotFirst {
        /// The file of the chain.
        path: PathBuf,
        /// The position of the leaf, from 1.
        position: usize,
    },
    /// A certificate that was obtained for a host can't be read or used.
    #[error("the certificate that was obtained for `{host}` can't be used: {cause}")]
    Obtained {
        /// The host.
        host: String,
        /// Why.
        cause: String,
    },
    /// Both files are valid and match, but the certificate is not valid now.
    #[error("the certificate in `{}` is out of date", path.display())]
    OutOfDate {
        /// The file of the chain.
        path: PathBuf,
        /// Whether it has expired or is not valid yet.
        source: OutOfDate,
    },
}

/// What is wrong with a certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedCertificate {
    /// TLS can't verify it.
    #[error(transparent)]
    Unverifiable(#[from] webpki::Error),
    /// It is not valid X.509.
    #[error("not an X.509 certificate")]
    NotX509,
}

/// Reads a chain and its key. Blocks on the files.
///
/// # Errors
/// The first [`CertificateError`] that applies, except `OutOfDate`, for which see [`check_date`]. [`read_chain`] and
/// [`read_key`] report on each file separately.
pub fn read(files: &CertificateFiles) -> Result<Certificate, CertificateError> {
    let chain = read_chain(&files.certificate)?;
    let key = read_key(&files.private_key)?;
    pair(&chain, &key, files)
}

/// Whether a certificate that was read from `files` is valid at `now`.
pub fn check_date(validity: Validity, files: &CertificateFiles, now: Timestamp) -> Result<(), CertificateError> {
    let out_of_date = |source| CertificateError::OutOfDate { path: files.certificate.to_path_buf(), source };
    validity.check(now).map_err(out_of_date)
}

/// Reads a chain: every `CERTIFICATE` section of a PEM file, leaf first.
///
/// # Errors
/// The file can't be read or has no certificate.
pub fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let text = regular_file::read(path, MAX_PEM)
        .map_err(|source| CertificateError::CertificateUnreadable { path: path.to_owned(), source })?;
    let text = strip_byte_order_mark(&text);
    parse_chain(text).ok_or_else(|| CertificateError::NoCertificate {
        path: path.to_owned(),
        source: Contents::in_place_of_certificate(text),
    })
}

/// Every certificate of a PEM text, in its order. `None` if there is none, or a damaged one. Two older labels of OpenSSL
/// are read too; what follows a certificate in a section `TRUSTED CERTIFICATE` is left out.
#[must_use]
pub fn parse_chain(text: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    // The parser passes over sections with other labels, so that a leaf would be missing without a fault.
    let text = String::from_utf8_lossy(text);
    let text = OLD_LABELS.iter().fold(text, |text, old| match text.contains(old) {
        true => text.replace(&format!(" {old}-----"), " CERTIFICATE-----").into(),
        false => text,
    });
    let read: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let only = |der: CertificateDer<'static>| match x509_parser::parse_x509_certificate(&der) {
        Ok((rest @ [_, ..], _)) => der[..der.len() - rest.len()].to_vec().into(),
        _ => der,
    };
    read.ok().filter(|chain| !chain.is_empty()).map(|chain| chain.into_iter().map(only).collect())
}

/// Labels of certificates that OpenSSL reads and RFC 7468 no longer has.
const OLD_LABELS: [&str; 2] = ["X509 CERTIFICATE", "TRUSTED CERTIFICATE"];

/// Reads a key: the first PKCS #8, PKCS #1 or SEC 1 section of a PEM file.
///
/// # Errors
/// The file can't be read or has no key.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let text = regular_file::read(path, MAX_PEM)
        .map_err(|source| CertificateError::KeyUnreadable { path: path.to_owned(), source })?;
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

/// Removes the byte order mark that some editors write before UTF-8.
fn strip_byte_order_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)
}

/// Pairs a chain and a key that were read from `files`.
///
/// # Errors
/// The leaf is malformed, the key is unusable, or they do not match.
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

/// Pairs a chain and a key that were obtained for a host, both PEM.
///
/// # Errors
/// [`CertificateError::Obtained`].
pub fn pair_of_text(host: &HostName, chain: &str, key: &str) -> Result<Certificate, CertificateError> {
    let failed = |cause: &str| CertificateError::Obtained { host: host.to_string(), cause: cause.to_owned() };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty()).ok_or_else(|| failed("it is no chain in PEM form"))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| failed("its key is not in PEM form"))?;
    let nowhere = || Path::new("").into();
    pair(&chain, &key, &CertificateFiles { certificate: nowhere(), private_key: nowhere() })
        .map_err(|_| failed("its chain and key do not fit"))
}

/// Why a chain and a key do not match.
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

/// The validity of the leaf.
fn validity(chain: &[CertificateDer<'static>]) -> Option<Validity> {
    let (_, leaf) = x509_parser::parse_x509_certificate(chain.first()?).ok()?;
    Some(Validity::of(leaf.validity()))
}

/// The DNS names of the leaf; its common name is ignored (RFC 9525, section 2).
fn names(chain: &[CertificateDer<'static>]) -> Result<CertificateNames, webpki::Error> {
    let leaf = chain.first().expect("a chain is read with at least one certificate");
    let leaf = webpki::EndEntityCert::try_from(leaf)?;
    Ok(CertificateNames::new(leaf.valid_dns_names()))
}
