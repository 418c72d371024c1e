//! Reasons why some clients may refuse a chain that can be served.
//!
//! A chain with a concern is served nevertheless: clients differ, and an operator may know theirs. `check` and
//! `explain` warn. Faults that every client refuses are a [`super::CertificateError`].

use std::collections::HashSet;

use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::x509::X509Name;

use super::unusable::{MIN_RSA_BITS, rsa_bits};
use super::validity::{OutOfDate, Validity};

/// A reason why clients may refuse a chain. Positions count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainConcern {
    /// The next certificate is not the issuer, and the issuer is not a known root.
    #[error(
        "the chain lacks the issuer of certificate {position}, `{issuer}`: clients that do not have that certificate refuse the connection"
    )]
    NoIssuer {
        /// The position of the certificate whose issuer is missing.
        position: usize,
        /// The issuer's name.
        issuer: String,
    },
    /// The issuer is in the file, but not the next certificate.
    #[error("certificate {position} is not followed by its issuer, which is further down")]
    Unordered {
        /// The position of the certificate whose issuer is elsewhere.
        position: usize,
    },
    /// A signature with a broken hash.
    #[error("certificate {position} is signed with {hash}, which clients refuse")]
    WeakSignature {
        /// Of the certificate.
        position: usize,
        /// The broken hash.
        hash: &'static str,
    },
    /// A short key above the leaf.
    #[error("certificate {position} has an RSA key of {bits} bits, and clients want at least {MIN_RSA_BITS}")]
    ShortRsa {
        /// Of the certificate.
        position: usize,
        /// Of the modulus.
        bits: usize,
    },
    /// A certificate above the leaf is out of date.
    #[error("certificate {position} is out of date: {out_of_date}")]
    IssuerOutOfDate {
        /// Of the certificate.
        position: usize,
        /// On which side of its validity now is.
        out_of_date: OutOfDate,
    },
    /// The extended key usage of the leaf does not allow servers.
    #[error("the certificate is not issued for servers: its extended key usage lacks serverAuth")]
    NotForServers,
}

impl ChainConcern {
    /// How to fix it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoIssuer { .. } => {
                "append the intermediate certificate of the issuer; authorities deliver it as `fullchain.pem` or `chain.pem`"
            }
            Self::Unordered { .. } => "order the file: the leaf, its issuer, then the issuer of that",
            Self::WeakSignature { .. } => "have it issued again with SHA-256",
            Self::ShortRsa { .. } | Self::IssuerOutOfDate { .. } => {
                "replace it by the current intermediate certificate of the authority"
            }
            Self::NotForServers => "have it issued again for servers (serverAuth)",
        }
    }
}

/// The names of the roots that this machine trusts.
#[derive(Debug, Default)]
pub struct Roots(HashSet<Vec<u8>>);

impl Roots {
    /// Reads them; blocks on files. Empty on a machine without root certificates.
    #[must_use]
    pub fn of_system() -> Self {
        let roots = rustls_native_certs::load_native_certs().certs;
        let name = |root: &CertificateDer<'_>| Some(parse(root)?.subject().as_raw().to_vec());
        Self(roots.iter().filter_map(name).collect())
    }

    fn has(&self, name: &X509Name<'_>) -> bool {
        self.0.contains(name.as_raw())
    }
}

/// Every concern about a chain, leaf first.
#[must_use]
pub fn concerns(chain: &[CertificateDer<'_>], roots: &Roots, now: Timestamp) -> Vec<ChainConcern> {
    let chain: Vec<_> = chain.iter().filter_map(parse).collect();
    let mut concerns = Vec::new();
    for (index, certificate) in chain.iter().enumerate() {
        let position = index + 1;
        let is_root = is_same(certificate.subject(), certificate.issuer());
        concerns.extend(link(&chain, index, roots).filter(|_| !is_root));
        // Clients do not verify the signature of a root.
        let hash = weak_hash(certificate).filter(|_| !is_root);
        concerns.extend(hash.map(|hash| ChainConcern::WeakSignature { position, hash }));
        if index == 0 {
            concerns.extend((!is_for_servers(certificate)).then_some(ChainConcern::NotForServers));
            continue;
        }
        let bits = rsa_bits(certificate.public_key()).filter(|bits| *bits < MIN_RSA_BITS);
        concerns.extend(bits.map(|bits| ChainConcern::ShortRsa { position, bits }));
        let out_of_date = Validity::of(certificate.validity()).check(now).err();
        concerns.extend(out_of_date.map(|out_of_date| ChainConcern::IssuerOutOfDate { position, out_of_date }));
    }
    concerns
}

/// What is wrong between a certificate that is not a root and the next one.
fn link(chain: &[X509Certificate<'_>], index: usize, roots: &Roots) -> Option<ChainConcern> {
    let (certificate, position) = (&chain[index], index + 1);
    let issuer = certificate.issuer();
    let is_issuer = |other: &X509Certificate<'_>| is_same(other.subject(), issuer);
    let missing = || ChainConcern::NoIssuer { position, issuer: issuer.to_string() };
    match chain.get(index + 1) {
        Some(next) if is_issuer(next) => None,
        Some(_) if chain.iter().any(is_issuer) => Some(ChainConcern::Unordered { position }),
        _ if roots.has(issuer) => None,
        Some(_) => Some(missing()),
        // Clients may know a private root that this machine does not. But a certificate that says where its issuer is
        // available was not issued by a root that may be omitted.
        None if index == 0 || says_where_issuer_is(certificate) => Some(missing()),
        None => None,
    }
}

fn parse<'c>(certificate: &'c CertificateDer<'_>) -> Option<X509Certificate<'c>> {
    x509_parser::parse_x509_certificate(certificate).ok().map(|(_, certificate)| certificate)
}

/// Compares names as encoded and as displayed: authorities encode the same name with different string types.
fn is_same(one: &X509Name<'_>, other: &X509Name<'_>) -> bool {
    one.as_raw() == other.as_raw() || one.to_string() == other.to_string()
}

fn weak_hash(certificate: &X509Certificate<'_>) -> Option<&'static str> {
    match certificate.signature_algorithm.algorithm.to_id_string().as_str() {
        "1.2.840.113549.1.1.2" => Some("MD2"),
        "1.2.840.113549.1.1.4" => Some("MD5"),
        "1.2.840.113549.1.1.5" | "1.3.14.3.2.29" | "1.2.840.10045.4.1" | "1.2.840.10040.4.3" => Some("SHA-1"),
        _ => None,
    }
}

fn is_for_servers(leaf: &X509Certificate<'_>) -> bool {
    let usage = leaf.extended_key_usage().ok().flatten();
    usage.is_none_or(|usage| usage.value.server_auth || usage.value.any)
}

fn says_where_issuer_is(certificate: &X509Certificate<'_>) -> bool {
    let ca_issuers = "1.3.6.1.5.5.7.48.2";
    certificate.extensions().iter().any(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityInfoAccess(access) => {
            access.accessdescs.iter().any(|described| described.access_method.to_id_string() == ca_issuers)
        }
        _ => false,
    })
}
