//! The handshake: a ClientHello chooses the certificate, ALPN the protocol.
//!
//! Owns the time that a peer has until its connection is ready for requests, and the alert for a name that no tenant
//! has. Which certificate a name gets is [`Certificates`]' to say.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::server::Acceptor;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificates::Certificates;
use crate::host::{CertificateNames, HostName, InvalidHost};

/// A stream that is ready for requests.
pub(super) struct Secured<IO> {
    pub(super) stream: TlsStream<IO>,
    /// What the served certificate vouches for.
    pub(super) names: Arc<CertificateNames>,
    pub(super) protocol: Protocol,
}

/// What ALPN chose; a peer that offers nothing speaks HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("no tenant has the name")]
    UnknownName,
    #[error("the handshake took too long")]
    TimedOut,
    #[error("the handshake failed")]
    Failed(#[from] io::Error),
}

/// The alert for a name that no tenant has. RFC 6066, section 3.
const UNRECOGNIZED_NAME: u8 = 112;

/// The alert for a certificate that can't be read now. RFC 8446, section 6.2.
const INTERNAL_ERROR: u8 = 80;

/// Shakes hands, and in HTTP/2 waits for the first bytes of the preface, all within one limit: hyper would wait for them
/// without end.
pub(super) async fn shake<IO>(io: IO, certificates: &Certificates, limit: Duration) -> Result<Secured<IO>, Refused>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let ready = async {
        let mut secured = choose_and_shake(io, certificates).await?;
        if secured.protocol == Protocol::Http2 {
            secured.stream.fill_buf().await?;
        }
        Ok(secured)
    };
    timeout(limit, ready).await.unwrap_or(Err(Refused::TimedOut))
}

async fn choose_and_shake<IO>(io: IO, certificates: &Certificates) -> Result<Secured<IO>, Refused>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let mut start = LazyConfigAcceptor::new(Acceptor::default(), io).await?;
    let served = match start.client_hello().server_name().map(HostName::parse).transpose() {
        Ok(name) => certificates.choose(name.as_ref()).await,
        Err(InvalidHost) => Ok(None),
    };
    // A refusal stands, whether or not the peer is still there to read it.
    let served = match served {
        Ok(Some(served)) => served,
        Ok(None) => {
            let _ = alert(&mut start.io, UNRECOGNIZED_NAME).await;
            return Err(Refused::UnknownName);
        }
        Err(error) => {
            let _ = alert(&mut start.io, INTERNAL_ERROR).await;
            return Err(Refused::Failed(io::Error::other(error)));
        }
    };
    let stream = start.into_stream(Arc::clone(&served.tls)).await?;
    let protocol = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        _ => Protocol::Http1,
    };
    Ok(Secured { stream, names: Arc::clone(&served.names), protocol })
}

/// A fatal alert, in plaintext since no keys exist yet: content type 21, version 3.3, two bytes, fatal (2), and which. RFC
/// 8446, sections 5.1 and 6.2.
async fn alert<IO: AsyncWrite + Unpin>(io: &mut IO, which: u8) -> io::Result<()> {
    io.write_all(&[21, 3, 3, 0, 2, 2, which]).await?;
    io.shutdown().await
}
