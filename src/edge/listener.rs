//! Listening: sockets at the addresses of the configuration.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use crate::config::ListenConfig;

/// A listening socket, and what is spoken there.
#[derive(Debug)]
pub struct Listener {
    pub(super) socket: TcpListener,
    pub(super) entry: Arc<ListenConfig>,
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
pub async fn listen(entries: &[ListenConfig]) -> Result<Vec<Listener>, BindError> {
    let mut listeners = Vec::with_capacity(entries.len());
    for entry in entries {
        let socket = bind(entry.address).await?;
        listeners.push(Listener { socket, entry: Arc::new(entry.clone()) });
    }
    Ok(listeners)
}

/// Listens on one address.
///
/// # Errors
/// The system's reason.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    // Tokio sets SO_REUSEADDR, so that a restart does not wait for the old connections' TIME_WAIT.
    TcpListener::bind(address).await.map_err(|source| BindError { address, source })
}
