//! New connections, with a whole TLS 1.3 handshake each.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::order::{Order, Protocol};

/// Opens connections to one address.
pub(super) struct Dialer {
    address: std::net::SocketAddr,
    tls: TlsConnector,
}

impl Dialer {
    pub(super) fn new(order: &Order) -> anyhow::Result<Self> {
        let mut provider = aws_lc_rs::default_provider();
        // What every server here can do; the hybrid with ML-KEM would cost only those that know it.
        provider.kx_groups = vec![kx_group::X25519];
        let config = ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
        let mut config = config.dangerous().with_custom_certificate_verifier(Arc::new(Believer)).with_no_client_auth();
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![match order.protocol {
            Protocol::Http1 => b"http/1.1".to_vec(),
            Protocol::Http2 => b"h2".to_vec(),
        }];
        Ok(Self { address: order.address, tls: TlsConnector::from(Arc::new(config)) })
    }

    pub(super) async fn dial(&self, host: &str) -> anyhow::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(self.tls.connect(ServerName::try_from(host.to_owned())?, stream).await?)
    }
}

/// Takes every certificate for good.
#[derive(Debug)]
struct Believer;

impl ServerCertVerifier for Believer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
