//! The stop: what is told to end, what is waited for, and what is cut.
//!
//! Owns the tasks of the edge. Every one is spawned through [`Lifecycle::spawn`] by a task that is itself tracked, so the
//! wait can't end between an accepted connection and its task; and a cancelled token stays cancelled, so a task that
//! starts late still learns of the stop.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// What each task of the edge needs to know of the stop.
#[derive(Clone, Debug)]
pub(super) struct Lifecycle {
    tasks: TaskTracker,
    draining: CancellationToken,
    cut: CancellationToken,
}

impl Lifecycle {
    /// Spawns a task that is waited for in a drain, and cut at its deadline.
    pub(super) fn spawn(&self, task: impl Future + Send + 'static) {
        // Boxed, since the futures around it would each take its place a second time.
        let (cut, task) = (self.cut.clone(), Box::pin(task));
        self.tasks.spawn(async move {
            cut.run_until_cancelled_owned(task).await;
        });
    }

    /// Ready once the edge drains, and from then on.
    pub(super) async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Whether the edge drains.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Ready once the edge drains, but not before an instant.
    pub(super) async fn last_call(&self, until: Instant) {
        self.draining().await;
        sleep_until(until).await;
    }
}

/// HTTP/2 requests are tasks of their own, so they are tracked like connections.
impl<F: Future + Send + 'static> hyper::rt::Executor<F> for Lifecycle {
    fn execute(&self, task: F) {
        self.spawn(task);
    }
}

/// A running edge. Dropping it cuts every connection at once.
#[derive(Debug)]
pub struct Serving {
    addresses: Vec<SocketAddr>,
    lifecycle: Lifecycle,
    slots: Arc<Semaphore>,
    connections: usize,
    _drop: (DropGuard, DropGuard),
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Everything in flight was answered.
    Finished,
    /// The patience ended, and that many connections were cut.
    Cut(usize),
}

impl Serving {
    pub(super) fn new(addresses: Vec<SocketAddr>, slots: Arc<Semaphore>, connections: usize) -> Self {
        let (draining, cut) = (CancellationToken::new(), CancellationToken::new());
        let lifecycle = Lifecycle { tasks: TaskTracker::new(), draining: draining.clone(), cut: cut.clone() };
        Self { addresses, lifecycle, slots, connections, _drop: (draining.drop_guard(), cut.drop_guard()) }
    }

    pub(super) fn lifecycle(&self) -> Lifecycle {
        self.lifecycle.clone()
    }

    /// Where the edge listens, with the ports that the system chose.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Stops: closes the listeners, closes connections without a request, lets requests in flight finish
    /// (`Connection: close`, GOAWAY), and cuts what is left once the patience ends.
    pub async fn drain(self, patience: impl Future<Output = ()>) -> Drained {
        let Lifecycle { tasks, draining, cut } = &self.lifecycle;
        draining.cancel();
        tasks.close();
        tokio::select! {
            biased;
            () = tasks.wait() => return Drained::Finished,
            () = patience => {}
        }
        let open = self.connections.saturating_sub(self.slots.available_permits());
        cut.cancel();
        tasks.wait().await;
        Drained::Cut(open)
    }
}
