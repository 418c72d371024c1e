//! Listening: sockets at the addresses of the configuration.
//!
//! Owns where a socket comes from, its own or the supervisor's, because that decides what becomes of its queue in a stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use crate::config::ListenConfig;
use crate::supervisor::Inherited;

/// A listening socket, and what is spoken there.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: TcpListener,
    pub(super) entry: Arc<ListenConfig>,
    pub(super) origin: Origin,
}

/// Where a listening socket comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// This process opened it, and its queue ends with it.
    Own,
    /// A supervisor opened it and keeps it: what is queued waits for the next process.
    Inherited,
}

/// An address can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address}")]
pub struct BindError {
    /// The address as configured.
    pub address: SocketAddr,
    /// What the system says.
    pub source: io::Error,
}

/// Listens where every entry says, or nowhere.
///
/// # Errors
/// The first address that fails, with the system's reason.
pub async fn listen(entries: &[ListenConfig], inherited: &mut Inherited) -> Result<Vec<Listener>, BindError> {
    let mut listeners = Vec::with_capacity(entries.len());
    for entry in entries {
        let (socket, origin) = open(entry.address, inherited).await?;
        listeners.push(Listener { socket, entry: Arc::new(entry.clone()), origin });
    }
    Ok(listeners)
}

/// Listens on one address.
///
/// # Errors
/// The system's reason.
pub async fn bind(address: SocketAddr, inherited: &mut Inherited) -> Result<TcpListener, BindError> {
    open(address, inherited).await.map(|(socket, _)| socket)
}

async fn open(address: SocketAddr, inherited: &mut Inherited) -> Result<(TcpListener, Origin), BindError> {
    let opened = match inherited.claim(address) {
        Some(socket) => {
            // A supervisor hands over blocking sockets.
            let socket = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
            socket.map(|socket| (socket, Origin::Inherited))
        }
        // Tokio sets SO_REUSEADDR, so that a restart does not wait for the old connections' TIME_WAIT.
        None => TcpListener::bind(address).await.map(|socket| (socket, Origin::Own)),
    };
    opened.map_err(|source| BindError { address, source })
}
