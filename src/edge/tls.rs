//! The TLS handshake: the ClientHello selects the certificate, and ALPN the protocol.
//!
//! Owns the time until a connection must be ready for requests, and the alert for a name that no tenant has.
//! [`Certificates`] decides which certificate a name gets.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::server::Acceptor;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use super::certificates::Certificates;
use crate::acme::TLS_ALPN_PROTOCOL;
use crate::host::{CertificateNames, HostName, InvalidHost};

/// A stream that is ready for requests.
pub(super) struct TlsConnection<IO> {
    pub(super) stream: TlsStream<IO>,
    /// The names that the served certificate covers.
    pub(super) names: Arc<CertificateNames>,
    pub(super) protocol: Protocol,
}

/// The protocol that ALPN selected; a client that offers none speaks HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("no tenant has the name")]
    UnknownName,
    /// An authority has verified the name; it sends no request.
    #[error("an authority verified the name")]
    Verified,
    #[error("the handshake took too long")]
    TimedOut,
    #[error("the handshake failed")]
    Failed(#[from] io::Error),
}

/// The alert for a name that no tenant has. RFC 6066, section 3.
const UNRECOGNIZED_NAME: u8 = 112;

/// The alert for a certificate that can't be read now. RFC 8446, section 6.2.
const INTERNAL_ERROR: u8 = 80;

/// Performs the handshake and, in HTTP/2, waits for the first bytes of the preface, all within `limit`: hyper
/// would wait for them forever.
pub(super) async fn handshake<IO>(
    io: IO,
    certificates: &Certificates,
    limit: Duration,
) -> Result<TlsConnection<IO>, HandshakeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let ready = async {
        let mut connection = choose_and_handshake(io, certificates).await?;
        if connection.protocol == Protocol::Http2 {
            connection.stream.fill_buf().await?;
        }
        Ok(connection)
    };
    timeout(limit, ready).await.unwrap_or(Err(HandshakeError::TimedOut))
}

async fn choose_and_handshake<IO>(io: IO, certificates: &Certificates) -> Result<TlsConnection<IO>, HandshakeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut start = LazyConfigAcceptor::new(Acceptor::default(), io).await?;
    if start.client_hello().alpn().is_some_and(|mut offered| offered.any(|protocol| protocol == TLS_ALPN_PROTOCOL)) {
        return Err(answer_authority(start, certificates).await);
    }
    let served = match start.client_hello().server_name().map(HostName::parse).transpose() {
        Ok(name) => certificates.choose(name.as_ref()).await,
        Err(InvalidHost) => Ok(None),
    };
    // The refusal holds even if the peer is no longer there to read the alert.
    let served = match served {
        Ok(Some(served)) => served,
        Ok(None) => {
            let _ = alert(&mut start.io, UNRECOGNIZED_NAME).await;
            return Err(HandshakeError::UnknownName);
        }
        Err(error) => {
            let _ = alert(&mut start.io, INTERNAL_ERROR).await;
            return Err(HandshakeError::Failed(io::Error::other(error)));
        }
    };
    let stream = start.into_stream(Arc::clone(&served.tls)).await?;
    let protocol = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        _ => Protocol::Http1,
    };
    Ok(TlsConnection { stream, names: Arc::clone(&served.names), protocol })
}

/// Performs the handshake in which an authority verifies a name (RFC 8737). Nothing follows it.
async fn answer_authority<IO>(mut start: StartHandshake<IO>, certificates: &Certificates) -> HandshakeError
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let name = start.client_hello().server_name().and_then(|name| HostName::parse(name).ok());
    let answer = match &name {
        Some(name) => certificates.answer_authority(name).await,
        None => None,
    };
    let Some(tls) = answer else {
        let _ = alert(&mut start.io, UNRECOGNIZED_NAME).await;
        return HandshakeError::UnknownName;
    };
    match start.into_stream(tls).await {
        Ok(mut stream) => {
            let _ = stream.shutdown().await;
            HandshakeError::Verified
        }
        Err(error) => error.into(),
    }
}

/// Sends a fatal alert, in plaintext because no keys exist yet: content type 21, version 3.3, two bytes, fatal
/// (2), and the description (RFC 8446, sections 5.1 and 6.2).
async fn alert<IO: AsyncWrite + Unpin>(io: &mut IO, which: u8) -> io::Result<()> {
    io.write_all(&[21, 3, 3, 0, 2, 2, which]).await?;
    io.shutdown().await
}
