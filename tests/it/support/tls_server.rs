//! A TLS server on loopback, below whatever a test has it say: HTTP, bytes of the test's choice, nothing.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ResolvesServerCert, WantsServerCert};
use rustls::{ConfigBuilder, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{Accept, TlsAcceptor};

use super::certificate::Issued;

/// What a server presents to its clients.
pub(crate) enum Identity {
    /// A leaf and its key.
    Leaf(CertificateDer<'static>, PrivateKeyDer<'static>),
    /// Whatever fits the client's hello.
    Resolved(Arc<dyn ResolvesServerCert>),
}

impl From<Issued> for Identity {
    fn from(issued: Issued) -> Self {
        let leaf = CertificateDer::from_pem_file(issued.certificate).expect("a certificate");
        Self::Leaf(leaf, PrivateKeyDer::from_pem_file(issued.private_key).expect("a key"))
    }
}

/// Accepts connections until the runtime of the test ends, and selects the first of the protocols that a client offers.
/// `serve` is given each connection before its handshake, and awaits that.
pub(crate) fn accept<S>(
    listener: TcpListener,
    identity: impl Into<Identity>,
    protocols: &[&[u8]],
    serve: impl Fn(Accept<TcpStream>) -> S + Send + 'static,
) where
    S: Future<Output = ()> + Send + 'static,
{
    let mut config = match identity.into() {
        Identity::Leaf(leaf, key) => builder().with_single_cert(vec![leaf], key).expect("the key is the leaf's"),
        Identity::Resolved(resolver) => builder().with_cert_resolver(resolver),
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::spawn(serve(acceptor.accept(tcp)));
        }
    });
}

fn builder() -> ConfigBuilder<ServerConfig, WantsServerCert> {
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_no_client_auth()
}
