//! Which receivers are trusted: those with a certificate of the system's authorities, or of the operator's own.
//!
//! Certificates are always verified; there is no setting that turns it off.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

/// The protocols to offer. Receivers that speak only one of them work too.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A configuration with the system's authorities, which are read now, and further ones.
pub(super) fn config(authorities: &[CertificateDer<'static>]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(system.certs);
    if added == 0 {
        let causes: Vec<_> = system.errors.iter().map(ToString::to_string).collect();
        tracing::warn!(
            cause = causes.join("; "),
            "the system has no certificate authorities; webhooks reach only receivers with a certificate of `ca_file`"
        );
    }
    roots.add_parsable_certificates(authorities.iter().cloned());
    let mut config = ClientConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    Arc::new(config)
}
