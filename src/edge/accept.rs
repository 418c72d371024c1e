//! Accepts connections and spawns a task for each.
//!
//! Owns the cap on open connections, the handling of `accept` errors, and the listen queue in a drain. Invariant:
//! the loop ends only in a drain and never spins, whatever error the system returns.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use super::drain::Lifecycle;
use super::listener::{Listener, SocketOrigin};
use super::{Edge, Serve, connection};

/// The pause in accepting after the system ran out of file descriptors or memory.
///
/// Larger: clients wait although a connection was closed meanwhile. Smaller: a process without descriptors burns
/// CPU on failing calls, because the connection stays in the queue and wakes it again.
const RETRY_PAUSE: Duration = Duration::from_millis(75);

/// How many queued connections are accepted in a drain, beyond the connection cap if necessary.
///
/// Larger: clients that keep connecting hold up the drain. Smaller than the queue, whose length Tokio sets to
/// 1024: the connections at its end are reset.
const DRAINED_QUEUE: usize = 1024;

/// The minimum interval between log messages about a failing `accept`.
///
/// A process without descriptors gets one whenever a connection ends, and fails again at the next `accept`.
/// Larger: an operator who reads only the last lines of the log misses the failure. Smaller: it floods the log.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A listener that limits how often it logs its failures.
pub(super) struct Acceptor {
    listener: TcpListener,
    write_timeout: Duration,
    last_logged: Option<Instant>,
}

/// Accepts connections until the drain, each with a permit of `permits`.
pub(super) async fn accept_all<S: Serve>(
    listener: Listener,
    edge: Arc<Edge<S>>,
    permits: Arc<Semaphore>,
    lifecycle: Lifecycle,
) {
    let Listener { socket, config, origin } = listener;
    let mut acceptor = Acceptor::new(socket, edge.limits.write);
    let serve = |stream, client, permit: Option<OwnedSemaphorePermit>| {
        edge.metrics.edge.connections_accepted.inc();
        let (config, edge, task_lifecycle) = (Arc::clone(&config), Arc::clone(&edge), lifecycle.clone());
        lifecycle.spawn(async move {
            connection::serve(stream, client, config, edge, task_lifecycle).await;
            drop(permit);
        });
    };
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await.expect("the permits are never closed");
            (permit, acceptor.next().await)
        };
        let (permit, (stream, client)) = tokio::select! {
            biased;
            () = lifecycle.draining() => break,
            accepted = accepted => accepted,
        };
        serve(stream, client, Some(permit));
    }
    if origin == SocketOrigin::Own {
        // Closing the socket would reset the connections that the kernel has completed, which their clients take
        // for accepted. An inherited socket keeps its queue for the next process.
        for (stream, client) in queued(acceptor.listener, acceptor.write_timeout).take(DRAINED_QUEUE) {
            serve(stream, client, Arc::clone(&permits).try_acquire_owned().ok());
        }
    }
}

/// Accepts the connections in a listener's queue, and closes the listener after the last one.
fn queued(listener: TcpListener, write_timeout: Duration) -> impl Iterator<Item = (TcpStream, SocketAddr)> {
    // Asks the kernel directly: Tokio may not know of the newest connections yet.
    let listener = listener.into_std().ok();
    std::iter::from_fn(move || {
        loop {
            match listener.as_ref()?.accept() {
                Ok((stream, client)) => {
                    let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)).ok()?;
                    set_options(&stream, client, write_timeout);
                    return Some((stream, client));
                }
                Err(error) if concerns_one_connection(&error) => {}
                Err(_) => return None,
            }
        }
    })
}

impl Acceptor {
    /// The kernel ends an accepted connection once its peer has taken no sent data for `write_timeout`. A response that
    /// fits into the kernel's buffers is written at once, so only the kernel sees whether the peer takes it.
    /// Without this timeout, a thousand clients that read nothing would look like a thousand idle connections.
    pub(super) fn new(listener: TcpListener, write_timeout: Duration) -> Self {
        Self { listener, write_timeout, last_logged: None }
    }

    /// Returns the next connection, however often `accept` fails before.
    pub(super) async fn next(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, client)) => {
                    set_options(&stream, client, self.write_timeout);
                    return (stream, client);
                }
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    self.log_failure(&error);
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    fn log_failure(&mut self, error: &io::Error) {
        if self.last_logged.is_none_or(|last_logged| last_logged.elapsed() >= LOG_INTERVAL) {
            tracing::warn!(%error, "accepting fails; trying again until it works");
            self.last_logged = Some(Instant::now());
        }
    }
}

fn set_options(stream: &TcpStream, client: SocketAddr, write_timeout: Duration) {
    // Not set on the listener: connections that were queued before would not inherit it.
    if let Err(error) = set_tcp_user_timeout(stream, u32::try_from(write_timeout.as_millis()).unwrap_or(u32::MAX)) {
        tracing::debug!(%client, %error, "TCP_USER_TIMEOUT could not be set");
    }
    // Responses are written whole; Nagle's algorithm would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%client, %error, "TCP_NODELAY could not be set");
    }
}

/// Whether the error concerns only the connection being accepted, so that the next `accept` can follow
/// immediately. Any other error, above all running out of descriptors (EMFILE, ENFILE), would recur immediately.
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
