//! Socket activation by systemd, and notifications to it (sd_notify). Other service managers that implement these
//! protocols work too.
//!
//! Owns the environment variables of both protocols. Without a service manager no socket is passed, and notifications
//! do nothing. A passed socket belongs to systemd: it keeps listening when this process exits, and queued connections
//! wait for the next one.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio_util::task::AbortOnDropHandle;

/// Why sockets that systemd passed can't be used.
#[derive(Debug, thiserror::Error)]
pub enum SocketActivationError {
    /// A socket is not TCP.
    #[error("systemd passes a socket that is not TCP (number {number} of its sockets)")]
    NotTcp {
        /// Its position, from 1.
        number: usize,
        /// The system's error.
        source: io::Error,
    },
    /// A socket's address is not in the configuration.
    #[error("systemd passes a socket at {address}, but no entry of `listen` and no `admin_listen` has that address")]
    Unclaimed {
        /// Its address.
        address: SocketAddr,
    },
}

/// Sockets that systemd opened and passed, until each is claimed by its address.
#[derive(Debug, Default)]
pub struct InheritedSockets(Vec<(SocketAddr, TcpListener)>);

impl InheritedSockets {
    /// Takes the passed sockets (`LISTEN_FDS`). Call it once per process, before other threads read
    /// the environment.
    ///
    /// # Errors
    /// [`SocketActivationError::NotTcp`].
    pub fn take() -> Result<Self, SocketActivationError> {
        let mut sockets = ListenFd::from_env();
        let mut inherited = Self::default();
        for index in 0..sockets.len() {
            let not_tcp = |source| SocketActivationError::NotTcp { number: index + 1, source };
            let socket = sockets.take_tcp_listener(index).map_err(not_tcp)?.expect("each is taken once");
            inherited.add(socket).map_err(not_tcp)?;
        }
        Ok(inherited)
    }

    fn add(&mut self, socket: TcpListener) -> io::Result<()> {
        self.0.push((socket.local_addr()?, socket));
        Ok(())
    }

    /// Sockets as if passed by systemd, for tests.
    #[cfg(test)]
    pub(crate) fn of(sockets: impl IntoIterator<Item = TcpListener>) -> Self {
        let mut inherited = Self::default();
        sockets.into_iter().for_each(|socket| inherited.add(socket).unwrap());
        inherited
    }

    /// The socket at an address, if systemd opened one.
    pub(crate) fn claim(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let index = self.0.iter().position(|(at, _)| *at == address)?;
        Some(self.0.swap_remove(index).1)
    }

    /// Checks that every socket will be claimed: one that is never accepted from would hang its clients forever.
    pub(crate) fn check_use(&self, addresses: &[SocketAddr]) -> Result<(), SocketActivationError> {
        match self.0.iter().find(|(address, _)| !addresses.contains(address)) {
            Some((address, _)) => Err(SocketActivationError::Unclaimed { address: *address }),
            None => Ok(()),
        }
    }
}

/// Notifies systemd that the gateway serves requests, at startup and after each reload.
pub fn notify_ready(tenants: usize, note: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(&format!("serving {tenants} tenants{note}"))]);
}

/// Notifies systemd that a changed configuration is being read. [`notify_ready`] follows, whatever the outcome.
pub fn notify_reloading() {
    // By this time, systemd decides whether the notification answers its own signal.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "systemd not notified of a reload"),
    }
}

/// Notifies systemd that the process is stopping.
pub fn notify_stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("finishing what is in flight")]);
}

/// Sends watchdog notifications if systemd wants them (`WATCHDOG_USEC`), until it is dropped. They are sent from a
/// task like those of requests, so they stop when such tasks no longer run.
///
/// # Panics
/// Outside of a Tokio runtime.
#[must_use = "dropping it ends the watchdog notifications"]
pub fn notify_watchdog() -> Option<AbortOnDropHandle<()>> {
    // Twice per watchdog interval, as sd_watchdog_enabled(3) recommends.
    let every = sd_notify::watchdog_enabled()?.checked_div(2).filter(|every| *every > Duration::ZERO)?;
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        let mut ticks = tokio::time::interval(every);
        loop {
            ticks.tick().await;
            notify(&[NotifyState::Watchdog]);
        }
    })))
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd not notified");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_claimed_by_its_address_and_an_unclaimed_one_is_a_fault() {
        let sockets = [TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("[::1]:0").unwrap()];
        let [first, second] = sockets.each_ref().map(|socket| socket.local_addr().unwrap());
        let mut inherited = InheritedSockets::of(sockets);
        inherited.check_use(&[second, first]).unwrap();
        let fault = inherited.check_use(&[first]).unwrap_err().to_string();
        assert!(fault.contains(&format!("a socket at {second}")), "{fault}");
        assert!(inherited.claim("127.0.0.1:1".parse().unwrap()).is_none());
        assert_eq!(inherited.claim(first).unwrap().local_addr().unwrap(), first);
        assert!(inherited.claim(first).is_none(), "it is claimed already");
    }
}
