//! The key of a certificate, and the signing request (PKCS #10) for it.
//!
//! Both are created before the order and stored, so that a finalized order is completed with the same key.

use std::net::IpAddr;

use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use secrecy::zeroize::Zeroizing;

use crate::host::HostName;

/// A key on P-256, and a request for a certificate that covers one host.
pub struct CertificateRequest {
    /// The private key, as DER of PKCS #8.
    pub key_pkcs8: Zeroizing<Vec<u8>>,
    /// The signing request, as DER.
    pub csr: Vec<u8>,
}

impl CertificateRequest {
    /// Generates a key and signs a request with it.
    ///
    /// # Panics
    /// If the system has no random bytes.
    #[must_use]
    pub fn generate(host: &HostName) -> Self {
        let key = KeyPair::generate().expect("the system has random bytes");
        let mut params = CertificateParams::new([without_brackets(host).to_owned()]).expect("a host name is ASCII");
        // The name is in the subject alternative names; a common name has at most 64 characters.
        params.distinguished_name = DistinguishedName::new();
        let csr = params.serialize_request(&key).expect("the key signs").der().to_vec();
        Self { key_pkcs8: Zeroizing::new(key.serialize_der()), csr }
    }
}

/// What a host is called in certificates and orders.
pub(super) fn without_brackets(host: &HostName) -> &str {
    host.as_str().trim_start_matches('[').trim_end_matches(']')
}

/// The address, if the host is one.
pub(super) fn address_of(host: &HostName) -> Option<IpAddr> {
    without_brackets(host).parse().ok()
}

impl std::fmt::Debug for CertificateRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateRequest").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::extensions::{GeneralName, ParsedExtension};
    use x509_parser::prelude::FromDer;

    use super::*;

    #[test]
    fn a_request_names_the_host_and_nothing_else() {
        let long = format!("{}.example.com", "a".repeat(63));
        for (host, named) in [
            ("forms.example.com", GeneralName::DNSName("forms.example.com")),
            (&*long, GeneralName::DNSName(&long)),
            ("a_b.example.com", GeneralName::DNSName("a_b.example.com")),
            ("192.0.2.1", GeneralName::IPAddress(&[192, 0, 2, 1])),
            ("[::1]", GeneralName::IPAddress(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])),
        ] {
            let made = CertificateRequest::generate(&HostName::parse(host).unwrap());
            let (_, csr) = X509CertificationRequest::from_der(&made.csr).unwrap();
            assert_eq!(csr.certification_request_info.subject.iter().count(), 0);
            let names = csr.requested_extensions().unwrap().find_map(|extension| match extension {
                ParsedExtension::SubjectAlternativeName(names) => Some(names.general_names.clone()),
                _ => None,
            });
            assert_eq!(names.unwrap(), [named], "{host}");
        }
    }
}
