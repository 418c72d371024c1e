//! Accepting: from a listener to a task per connection.
//!
//! Owns the cap on open connections and the answer to a failing `accept`. The invariant: the loop ends only in a drain,
//! and never spins, whatever the system answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::drain::Lifecycle;
use super::listener::Listener;
use super::{Edge, Serve, connection};

/// How long accepting rests when the system has no descriptor or no memory left.
///
/// Larger: callers wait although something was closed meanwhile. Smaller: a starved process burns its CPU on failing
/// calls, because the connection stays in the queue and wakes it again.
const REST: Duration = Duration::from_millis(75);

/// Accepts until the drain, at most as many at once as there are slots.
pub(super) async fn every<S: Serve>(
    Listener { socket, entry }: Listener,
    edge: Arc<Edge<S>>,
    slots: Arc<Semaphore>,
    lifecycle: Lifecycle,
) {
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await.expect("the slots are never closed");
            (slot, next(&socket).await)
        };
        let (slot, (stream, client)) = tokio::select! {
            biased;
            () = lifecycle.draining() => return,
            accepted = accepted => accepted,
        };
        edge.metrics.edge.connections_accepted.inc();
        let serving = connection::serve(stream, client, Arc::clone(&entry), Arc::clone(&edge), lifecycle.clone());
        lifecycle.spawn(async move {
            serving.await;
            drop(slot);
        });
    }
}

/// The next connection, however often the system fails to give one.
pub(super) async fn next(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let mut told = false;
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                // Answers are written whole; waiting for more to send along (Nagle) only delays them.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%client, %error, "TCP_NODELAY could not be set");
                }
                return (stream, client);
            }
            Err(error) if concerns_one_connection(&error) => {}
            Err(error) => {
                if !told {
                    tracing::warn!(%error, "accepting fails; trying again until it works");
                    told = true;
                }
                sleep(REST).await;
            }
        }
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
