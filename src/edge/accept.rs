//! Accepting: from a listener to a task per connection.
//!
//! Owns the cap on open connections, the answer to a failing `accept`, and what becomes of the queue in a stop. The invariant: the loop ends only in a drain,
//! and never spins, whatever the system answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use super::drain::Lifecycle;
use super::listener::{Listener, Origin};
use super::{Edge, Serve, connection};

/// How long accepting rests when the system has no descriptor or no memory left.
///
/// Larger: callers wait although something was closed meanwhile. Smaller: a starved process burns its CPU on failing
/// calls, because the connection stays in the queue and wakes it again.
const REST: Duration = Duration::from_millis(75);

/// How many connections of the queue are taken in a stop, beyond the cap on connections if need be.
///
/// Larger: callers who keep connecting hold up the stop. Smaller than the queue, whose length Tokio sets to 1024: those
/// at its end are reset.
const QUEUE: usize = 1024;

/// How long a listener that failed to accept is quiet about failing again.
///
/// A process without descriptors gets one each time a connection ends, and fails again at the next: larger, and an
/// operator who looks at the last lines of the log misses it; smaller, and the log is full of it.
const QUIET: Duration = Duration::from_secs(60);

/// A listener whose failures are told once in a while.
pub(super) struct Acceptor {
    listener: TcpListener,
    untaken: Duration,
    told: Option<Instant>,
}

/// Accepts until the drain, at most as many at once as there are slots.
pub(super) async fn every<S: Serve>(
    listener: Listener,
    edge: Arc<Edge<S>>,
    slots: Arc<Semaphore>,
    lifecycle: Lifecycle,
) {
    let Listener { socket, entry, origin } = listener;
    let mut acceptor = Acceptor::new(socket, edge.limits.write);
    let serve = |stream, client, slot: Option<OwnedSemaphorePermit>| {
        edge.metrics.edge.connections_accepted.inc();
        let (entry, edge, its_lifecycle) = (Arc::clone(&entry), Arc::clone(&edge), lifecycle.clone());
        lifecycle.spawn(async move {
            connection::serve(stream, client, entry, edge, its_lifecycle).await;
            drop(slot);
        });
    };
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await.expect("the slots are never closed");
            (slot, acceptor.next().await)
        };
        let (slot, (stream, client)) = tokio::select! {
            biased;
            () = lifecycle.draining() => break,
            accepted = accepted => accepted,
        };
        serve(stream, client, Some(slot));
    }
    if origin == Origin::Own {
        // What the kernel completed before we close would be reset, and its callers took it for accepted. An inherited
        // socket keeps its queue for the next process.
        for (stream, client) in queued(acceptor.listener, acceptor.untaken).take(QUEUE) {
            serve(stream, client, Arc::clone(&slots).try_acquire_owned().ok());
        }
    }
}

/// The connections that wait in a listener's queue, which is closed after the last one.
fn queued(listener: TcpListener, untaken: Duration) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
    // Asked for directly: Tokio may not have heard of the newest ones yet.
    let listener = listener.into_std().ok();
    std::iter::from_fn(move || {
        loop {
            match listener.as_ref()?.accept() {
                Ok((stream, client)) => {
                    let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)).ok()?;
                    set_up(&stream, client, untaken);
                    return Some((stream, client));
                }
                Err(error) if concerns_one_connection(&error) => {}
                Err(_) => return None,
            }
        }
    })
}

impl Acceptor {
    /// Accepts connections that the kernel ends once their peer has taken none of what was sent to it for `untaken`. An
    /// answer that fits into the buffers of the kernel is written at once, and only the kernel sees whether it is taken: a
    /// thousand readers who take nothing would otherwise be a thousand idle connections.
    pub(super) fn new(listener: TcpListener, untaken: Duration) -> Self {
        Self { listener, untaken, told: None }
    }

    /// The next connection, however often the system fails to give one.
    pub(super) async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, client)) => {
                    set_up(&stream, client, self.untaken);
                    return (stream, client);
                }
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    self.tell(&error);
                    sleep(REST).await;
                }
            }
        }
    }

    fn tell(&mut self, error: &io::Error) {
        if self.told.is_none_or(|told| told.elapsed() >= QUIET) {
            tracing::warn!(%error, "accepting fails; trying again until it works");
            self.told = Some(Instant::now());
        }
    }
}

fn set_up(stream: &TcpStream, client: SocketAddr, untaken: Duration) {
    // Not set on the listener, from which a socket would inherit it: connections that were queued before would not have it.
    if let Err(error) = set_tcp_user_timeout(stream, u32::try_from(untaken.as_millis()).unwrap_or(u32::MAX)) {
        tracing::debug!(%client, %error, "TCP_USER_TIMEOUT could not be set");
    }
    // Answers are written whole; waiting for more to send along (Nagle) only delays them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%client, %error, "TCP_NODELAY could not be set");
    }
}

/// Whether the error is about the connection that was to be accepted, so that the next one can be had at once. All
/// others, out of descriptors (EMFILE, ENFILE) above all, will come back at once.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_error_of_one_connection_is_skipped_without_a_rest() {
        let (eintr, econnaborted, emfile, enfile, enomem) = (4, 103, 24, 23, 12);
        for code in [eintr, econnaborted] {
            assert!(concerns_one_connection(&io::Error::from_raw_os_error(code)), "{code}");
        }
        for code in [emfile, enfile, enomem] {
            assert!(!concerns_one_connection(&io::Error::from_raw_os_error(code)), "{code}");
        }
    }
}
