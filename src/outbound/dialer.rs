//! Connects to a receiver: DNS, the guard, TCP, TLS. Each step is a function, so that the probe can report on each.
//!
//! Invariant: a connection is opened only to an address that the guard has just checked, and the address is not looked
//! up again in between. The peer of the open connection is checked as well.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustix::net::sockopt::set_tcp_user_timeout;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::{ConnectFault, SendError, TlsFault};
use super::guard::{BlockedAddress, Guard};
use super::resolver::Resolver;
use super::target::{Target, TargetHost};

/// How many addresses of a host are tried.
///
/// Larger: a host with very many addresses causes that many connections. Smaller: fewer of its addresses may be down.
const MAX_ADDRESSES: usize = 8;

/// How long to wait for a connection before the next address is tried too (RFC 8305, section 5).
///
/// Larger: a family of addresses that does not work delays every request. Smaller: more connections are opened than
/// used.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// How long the kernel keeps trying to send bytes that the receiver does not acknowledge or has no window for.
///
/// Larger: connections that were given up hold their sockets for longer, if the receiver reads nothing. Smaller:
/// connections with a lost packet or two break.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(30);

/// Opens connections to receivers.
#[derive(Debug)]
pub(super) struct Dialer {
    resolver: Resolver,
    guard: Arc<Guard>,
    tls: Arc<ClientConfig>,
}

impl Dialer {
    pub(super) fn new(resolver: Resolver, guard: Arc<Guard>, tls: Arc<ClientConfig>) -> Self {
        Self { resolver, guard, tls }
    }

    /// The TLS configuration.
    pub(super) fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.tls)
    }

    /// The addresses of a target's host.
    pub(super) async fn resolve(&self, target: &Target) -> Result<Vec<IpAddr>, SendError> {
        Ok(self.resolver.resolve(target.host()).await?)
    }

    /// The addresses that the guard allows.
    pub(super) fn allowed(&self, target: &Target, addresses: &[IpAddr]) -> Result<Vec<SocketAddr>, SendError> {
        let addresses = addresses.iter().map(|address| SocketAddr::new(*address, target.port()));
        let allowed = addresses.filter(|address| self.guard.check(target.host(), *address).is_ok());
        let allowed: Vec<_> = allowed.take(MAX_ADDRESSES).collect();
        if allowed.is_empty() { Err(BlockedAddress.into()) } else { Ok(allowed) }
    }

    /// Opens a TCP connection to one of the addresses.
    pub(super) async fn connect(&self, target: &Target, addresses: &[SocketAddr]) -> Result<TcpStream, SendError> {
        let stream = connect_first(addresses).await?;
        let peer = stream.peer_addr().map_err(ConnectFault::from)?;
        self.guard.check(target.host(), peer)?;
        // A request is written whole; Nagle's algorithm would only delay it.
        let _ = stream.set_nodelay(true);
        let limit = u32::try_from(UNACKNOWLEDGED_LIMIT.as_millis()).expect("it is short");
        let _ = set_tcp_user_timeout(&stream, limit);
        Ok(stream)
    }

    /// Resolves, checks and connects.
    pub(super) async fn dial(&self, target: &Target) -> Result<TcpStream, SendError> {
        let addresses = self.resolve(target).await?;
        let allowed = self.allowed(target, &addresses)?;
        self.connect(target, &allowed).await
    }

    /// Performs a TLS handshake and verifies the certificate.
    pub(super) async fn handshake(
        &self,
        target: &Target,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, SendError> {
        let name = match target.host() {
            TargetHost::Name(name) => {
                ServerName::try_from(name.as_str().to_owned()).map_err(|_| TlsFault::WrongHost)?
            }
            TargetHost::Address(address) => ServerName::IpAddress((*address).into()),
        };
        let connected = TlsConnector::from(self.tls()).connect(name, stream).await;
        Ok(connected.map_err(|error| TlsFault::of(&error))?)
    }
}

/// The first connection that opens. A new attempt starts whenever one fails, or all are silent for a moment.
async fn connect_first(addresses: &[SocketAddr]) -> Result<TcpStream, ConnectFault> {
    let mut attempts = FuturesUnordered::new();
    let mut rest = addresses.iter();
    let mut fault = ConnectFault::Failed;
    loop {
        let is_last = match rest.next() {
            Some(address) => {
                attempts.push(TcpStream::connect(*address));
                false
            }
            None => true,
        };
        tokio::select! {
            connected = attempts.next() => match connected {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => fault = error.into(),
                None => return Err(fault),
            },
            () = sleep(ATTEMPT_DELAY), if !is_last => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_next_address_is_tried_when_one_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let connected = connect_first(&[closed, closed, open]).await.unwrap();
        assert_eq!(connected.peer_addr().unwrap(), open);
        assert_eq!(connect_first(&[closed, closed]).await.unwrap_err(), ConnectFault::Refused);
        assert_eq!(connect_first(&[]).await.unwrap_err(), ConnectFault::Failed);
    }
}
