//! What a supervisor hands over to the process, and what it is told: systemd's protocols, and whoever else speaks them.
//!
//! Owns the environment variables of both. Without a supervisor there is nothing handed over and nobody to tell, and
//! everything here does nothing. A socket that was handed over belongs to the supervisor: it goes on to listen when this
//! process leaves, and what it has queued waits for the next one.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio_util::task::AbortOnDropHandle;

/// Why sockets that were handed over can't be used.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// One that is none of TCP.
    #[error("the supervisor hands over a socket that is not a TCP one (number {number} of its sockets)")]
    NotTcp {
        /// Which one, from 1.
        number: usize,
        /// What the system says.
        source: io::Error,
    },
    /// One that stands nowhere in the configuration.
    #[error(
        "the supervisor hands over a socket at {address}, but no entry of `listen` and no `admin_listen` has that address"
    )]
    Unclaimed {
        /// Where it listens.
        address: SocketAddr,
    },
}

/// Listening sockets that the supervisor opened, until each is claimed by its address.
#[derive(Debug, Default)]
pub struct Inherited(Vec<(SocketAddr, TcpListener)>);

impl Inherited {
    /// Takes what was handed over (`LISTEN_FDS`), once a process and before it has other threads that read its
    /// environment.
    ///
    /// # Errors
    /// [`HandOverError::NotTcp`].
    pub fn take() -> Result<Self, HandOverError> {
        let mut sockets = ListenFd::from_env();
        let mut inherited = Self::default();
        for index in 0..sockets.len() {
            let not_tcp = |source| HandOverError::NotTcp { number: index + 1, source };
            let socket = sockets.take_tcp_listener(index).map_err(not_tcp)?.expect("each is taken once");
            inherited.add(socket).map_err(not_tcp)?;
        }
        Ok(inherited)
    }

    fn add(&mut self, socket: TcpListener) -> io::Result<()> {
        self.0.push((socket.local_addr()?, socket));
        Ok(())
    }

    /// Sockets as a test's own supervisor hands them over.
    #[cfg(test)]
    pub(crate) fn of(sockets: impl IntoIterator<Item = TcpListener>) -> Self {
        let mut inherited = Self::default();
        sockets.into_iter().for_each(|socket| inherited.add(socket).unwrap());
        inherited
    }

    /// The socket at an address, if the supervisor opened one there.
    pub(crate) fn claim(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let index = self.0.iter().position(|(at, _)| *at == address)?;
        Some(self.0.swap_remove(index).1)
    }

    /// Passes when every socket will be claimed: one that nobody accepts from would hold its callers for ever.
    pub(crate) fn check_use(&self, addresses: &[SocketAddr]) -> Result<(), HandOverError> {
        match self.0.iter().find(|(address, _)| !addresses.contains(address)) {
            Some((address, _)) => Err(HandOverError::Unclaimed { address: *address }),
            None => Ok(()),
        }
    }
}

/// Tells that requests are served, at first and after each reload.
pub fn ready(tenants: usize, note: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("serving {tenants} tenants{note}"))]);
}

/// Tells that a changed configuration is read; [`ready`] follows, whatever comes of it.
pub fn reloading() {
    // systemd tells by the clock whether this is the answer to its own signal.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "systemd not notified of a reload"),
    }
}

/// Tells that the process was told to stop, and does.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing what is in flight")]);
}

/// Tells again and again that the process is alive, where the supervisor wants that (`WATCHDOG_USEC`), until it is
/// dropped. It comes from a task like those of requests, so it stops when they no longer run.
///
/// # Panics
/// Outside of a Tokio runtime.
#[must_use = "dropping it ends the signs of life"]
pub fn keep_watchdog_quiet() -> Option<AbortOnDropHandle<()>> {
    // Twice as often as it is wanted, as sd_watchdog_enabled(3) advises.
    let every = sd_notify::watchdog_enabled()?.checked_div(2).filter(|every| *every > Duration::ZERO)?;
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        let mut ticks = tokio::time::interval(every);
        loop {
            ticks.tick().await;
            tell(&[NotifyState::Watchdog]);
        }
    })))
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "systemd not notified");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_claimed_by_its_address_and_one_without_use_is_a_fault() {
        let sockets = [TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("[::1]:0").unwrap()];
        let [first, second] = sockets.each_ref().map(|socket| socket.local_addr().unwrap());
        let mut inherited = Inherited::of(sockets);
        inherited.check_use(&[second, first]).unwrap();
        let fault = inherited.check_use(&[first]).unwrap_err().to_string();
        assert!(fault.contains(&format!("a socket at {second}")), "{fault}");
        assert!(inherited.claim("127.0.0.1:1".parse().unwrap()).is_none());
        assert_eq!(inherited.claim(first).unwrap().local_addr().unwrap(), first);
        assert!(inherited.claim(first).is_none(), "it is claimed already");
    }
}
