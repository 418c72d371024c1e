//! Listens on sockets at the configured addresses.
//!
//! Owns the origin of a socket, this process or systemd, because that decides what happens to its queue in a
//! drain.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use crate::config::ListenConfig;
use crate::systemd::InheritedSockets;

/// A listening socket and its configuration.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: TcpListener,
    pub(super) config: Arc<ListenConfig>,
    pub(super) origin: SocketOrigin,
}

/// The origin of a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketOrigin {
    /// This process opened it, and its queue ends with it.
    Own,
    /// systemd opened it and keeps it: queued connections wait for the next process.
    Inherited,
}

/// Listening on an address failed.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address}")]
pub struct BindError {
    /// The address as configured.
    pub address: SocketAddr,
    /// The system's error.
    pub source: io::Error,
}

/// Listens on the address of every configuration, or on none.
///
/// # Errors
/// The first address that fails, with the system's error.
pub async fn listen(configs: &[ListenConfig], inherited: &mut InheritedSockets) -> Result<Vec<Listener>, BindError> {
    let mut listeners = Vec::with_capacity(configs.len());
    for config in configs {
        let (socket, origin) = open(config.address, inherited).await?;
        listeners.push(Listener { socket, config: Arc::new(config.clone()), origin });
    }
    Ok(listeners)
}

/// Listens on one address.
///
/// # Errors
/// The system's error.
pub async fn bind(address: SocketAddr, inherited: &mut InheritedSockets) -> Result<TcpListener, BindError> {
    open(address, inherited).await.map(|(socket, _)| socket)
}

async fn open(address: SocketAddr, inherited: &mut InheritedSockets) -> Result<(TcpListener, SocketOrigin), BindError> {
    let opened = match inherited.claim(address) {
        Some(socket) => {
            // systemd passes blocking sockets.
            let socket = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
            socket.map(|socket| (socket, SocketOrigin::Inherited))
        }
        // Tokio sets SO_REUSEADDR, so that a restart does not wait for old connections in TIME_WAIT.
        None => TcpListener::bind(address).await.map(|socket| (socket, SocketOrigin::Own)),
    };
    opened.map_err(|source| BindError { address, source })
}
