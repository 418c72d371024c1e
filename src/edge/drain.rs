//! The drain: which tasks are asked to end, which are waited for, and which are cut.
//!
//! Owns the tasks of the edge. Every task is spawned through [`Lifecycle::spawn`] by a task that is itself
//! tracked, so the wait can't end between an accepted connection and its task. A cancelled token stays cancelled,
//! so a task that starts late still learns of the drain.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// What each task of the edge needs to know of the drain.
#[derive(Clone, Debug)]
pub(super) struct Lifecycle {
    tasks: Arc<Mutex<JoinSet<()>>>,
    draining: CancellationToken,
    /// What [`Self::draining`] waits for, without its lock: every request reads it.
    is_draining: Arc<AtomicBool>,
}

impl Lifecycle {
    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spawns a task that a drain waits for, and aborts at its deadline.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks();
        // Finished tasks would otherwise accumulate.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Signals the drain to all tasks, including those that start later.
    fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        self.draining.cancel();
    }

    /// Completes when every task has ended. A panic ends only its own task.
    async fn ended(&self) {
        while poll_fn(|cx| self.tasks().poll_join_next(cx)).await.is_some() {}
    }

    /// Completes when the edge drains, and at once from then on.
    pub(super) async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Whether the edge drains.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// Completes when the edge drains, but not before `until`.
    pub(super) async fn drain_grace_over(&self, until: Instant) {
        self.draining().await;
        sleep_until(until).await;
    }
}

/// A running edge. Dropping it cuts every connection immediately.
#[derive(Debug)]
pub struct Serving {
    addresses: Vec<SocketAddr>,
    lifecycle: Lifecycle,
    permits: Arc<Semaphore>,
    connections: usize,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// All connections ended in time.
    Finished,
    /// The time was up, and this many connections were cut.
    Cut(usize),
}

impl Serving {
    pub(super) fn new(addresses: Vec<SocketAddr>, permits: Arc<Semaphore>, connections: usize) -> Self {
        let lifecycle =
            Lifecycle { tasks: Arc::default(), draining: CancellationToken::new(), is_draining: Arc::default() };
        Self { addresses, lifecycle, permits, connections }
    }

    pub(super) fn lifecycle(&self) -> Lifecycle {
        self.lifecycle.clone()
    }

    /// The addresses on which the edge listens, with the ports that the system chose.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Drains: closes the listeners, closes connections without a request, lets requests in flight finish
    /// (`Connection: close`, GOAWAY), and cuts the remaining connections when `deadline` completes.
    pub async fn drain(self, deadline: impl Future<Output = ()>) -> Drained {
        self.lifecycle.drain();
        tokio::select! {
            biased;
            () = self.lifecycle.ended() => return Drained::Finished,
            () = deadline => {}
        }
        let open = self.connections.saturating_sub(self.permits.available_permits());
        self.lifecycle.tasks().abort_all();
        self.lifecycle.ended().await;
        Drained::Cut(open)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.lifecycle.drain();
        self.lifecycle.tasks().abort_all();
    }
}
