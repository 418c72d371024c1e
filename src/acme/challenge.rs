//! The challenges that prove control of a host, and the responses to them.

use instant_acme::ChallengeType;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::certificate_request::without_brackets;
use crate::host::HostName;

/// The path of a response to HTTP-01, on port 80: this and the token (RFC 8555, section 8.3).
pub const HTTP_PATH: &str = "/.well-known/acme-challenge/";

/// The protocol that ALPN selects for TLS-ALPN-01, on port 443 (RFC 8737).
pub const TLS_ALPN_PROTOCOL: &[u8] = b"acme-tls/1";

/// A kind of challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChallengeKind {
    /// A file on port 80.
    #[serde(rename = "http-01")]
    Http01,
    /// A certificate on port 443.
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
}

impl ChallengeKind {
    /// Its name in ACME.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http01 => "http-01",
            Self::TlsAlpn01 => "tls-alpn-01",
        }
    }

    /// The port that the CA connects to.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::Http01 => 80,
            Self::TlsAlpn01 => 443,
        }
    }

    pub(super) fn of_library(self) -> ChallengeType {
        match self {
            Self::Http01 => ChallengeType::Http01,
            Self::TlsAlpn01 => ChallengeType::TlsAlpn01,
        }
    }
}

/// A challenge that a CA is about to verify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// Its kind.
    pub kind: ChallengeKind,
    /// Its token, which is valid (RFC 8555, section 8.1).
    pub token: String,
    /// The response: the body for HTTP-01, and for TLS-ALPN-01 the input of [`tls_alpn_certificate`].
    pub key_authorization: String,
}

/// The certificate that responds to TLS-ALPN-01: self-signed, with the digest of the key authorization (RFC 8737,
/// section 3).
///
/// # Panics
/// If the system has no random bytes.
#[must_use]
pub fn tls_alpn_certificate(host: &HostName, key_authorization: &str) -> CertifiedKey {
    let key = KeyPair::generate().expect("the system has random bytes");
    let mut params = CertificateParams::new([without_brackets(host).to_owned()]).expect("a host name is ASCII");
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(&Sha256::digest(key_authorization))];
    let certificate = params.self_signed(&key).expect("the key signs");
    let private_key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let signing = aws_lc_rs::sign::any_ecdsa_type(&private_key.into()).expect("a key that was just generated");
    // Not `from_der`, which refuses the critical extension that the challenge is about.
    CertifiedKey::new(vec![certificate.der().clone()], signing)
}

#[cfg(test)]
mod tests {
    use x509_parser::oid_registry::asn1_rs::oid;

    use super::*;

    #[test]
    fn a_tls_alpn_certificate_has_the_digest_in_a_critical_extension() {
        let made = tls_alpn_certificate(&HostName::parse("forms.example.com").unwrap(), "token.thumbprint");
        assert!(made.keys_match().is_err(), "rustls can't read such a certificate, so nothing may check it");
        let (_, certificate) = x509_parser::parse_x509_certificate(&made.cert[0]).unwrap();
        let extension = certificate.get_extension_unique(&oid!(1.3.6.1.5.5.7.1.31)).unwrap().unwrap();
        let digest = Sha256::digest("token.thumbprint");
        assert!(extension.critical);
        assert_eq!(extension.value, [&[4, 32], digest.as_slice()].concat(), "an octet string");
        let names = certificate.subject_alternative_name().unwrap().unwrap().value;
        assert_eq!(names.general_names, [x509_parser::extensions::GeneralName::DNSName("forms.example.com")]);
    }
}
