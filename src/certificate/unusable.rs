//! Explains why a private key can't be used for TLS.
//!
//! rustls reports the same parse error for every key it does not support. The certificate contains the public key,
//! which shows the kind and size.

use rustls::pki_types::CertificateDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// The smallest RSA key that TLS libraries accept, in bits.
///
/// Larger: keys are refused that clients accept. Smaller: keys pass that no client accepts.
pub(super) const MIN_RSA_BITS: usize = 2048;

/// What is wrong with a key.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum UnusableKey {
    /// RSA with too few bits.
    #[error("it is an RSA key of {bits} bits, which is too short: TLS needs at least {MIN_RSA_BITS}")]
    ShortRsa {
        /// The size of the modulus.
        bits: usize,
    },
    /// A kind of key or a curve that formgate can't serve.
    #[error("it is of the kind {0}: formgate serves RSA, Ed25519, and EC on P-256, P-384 and P-521")]
    Kind(String),
    /// The error of rustls.
    #[error(transparent)]
    Unknown(rustls::Error),
}

impl UnusableKey {
    /// Why the key of a leaf is refused.
    pub(super) fn of(leaf: Option<&CertificateDer<'_>>, fault: rustls::Error) -> Self {
        let parsed = leaf.and_then(|leaf| x509_parser::parse_x509_certificate(leaf).ok());
        match parsed.map(|(_, leaf)| (rsa_bits(leaf.public_key()), kind(leaf.public_key()))) {
            Some((Some(bits), _)) if bits < MIN_RSA_BITS => Self::ShortRsa { bits },
            Some((_, Some(kind))) => Self::Kind(kind),
            _ => Self::Unknown(fault),
        }
    }
}

/// The size of an RSA key.
pub(super) fn rsa_bits(key: &SubjectPublicKeyInfo<'_>) -> Option<usize> {
    match key.parsed() {
        Ok(PublicKey::RSA(rsa)) => Some(rsa.key_size()),
        _ => None,
    }
}

/// The kind of a key that can't be served.
fn kind(key: &SubjectPublicKeyInfo<'_>) -> Option<String> {
    let algorithm = key.algorithm.algorithm.to_id_string();
    match algorithm.as_str() {
        // RSA and Ed25519
        "1.2.840.113549.1.1.1" | "1.3.101.112" => None,
        "1.2.840.10045.2.1" => {
            let curve = key.algorithm.parameters.as_ref()?.as_oid().ok()?.to_id_string();
            let name = match curve.as_str() {
                "1.2.840.10045.3.1.7" | "1.3.132.0.34" | "1.3.132.0.35" => return None,
                "1.2.840.10045.3.1.1" => "P-192",
                "1.3.132.0.33" => "P-224",
                "1.3.132.0.10" => "secp256k1",
                other => other,
            };
            Some(format!("EC on {name}"))
        }
        "1.2.840.10040.4.1" => Some("DSA".to_owned()),
        "1.2.840.113549.1.1.10" => Some("RSASSA-PSS".to_owned()),
        "1.3.101.113" => Some("Ed448".to_owned()),
        other => Some(other.to_owned()),
    }
}
