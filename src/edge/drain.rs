//! The stop: what is told to end, what is waited for, and what is cut.
//!
//! Owns the tasks of the edge. Every one is spawned through [`Lifecycle::spawn`] by a task that is itself tracked, so the
//! wait can't end between an accepted connection and its task; and a cancelled token stays cancelled, so a task that
//! starts late still learns of the stop.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// What each task of the edge needs to know of the stop.
#[derive(Clone, Debug)]
pub(super) struct Lifecycle {
    tasks: Arc<Mutex<JoinSet<()>>>,
    draining: CancellationToken,
    /// What [`Self::draining`] says, without its lock: it is asked with each request.
    is_draining: Arc<AtomicBool>,
}

impl Lifecycle {
    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spawns a task that is waited for in a drain, and cut at its deadline.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks();
        // Those that have ended make room.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Tells all tasks, those that begin later, too.
    fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
        self.draining.cancel();
    }

    /// Ready once every task has ended. A panic ended its own.
    async fn ended(&self) {
        while poll_fn(|cx| self.tasks().poll_join_next(cx)).await.is_some() {}
    }

    /// Ready once the edge drains, and from then on.
    pub(super) async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Whether the edge drains.
    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// Ready once the edge drains, but not before an instant.
    pub(super) async fn last_call(&self, until: Instant) {
        self.draining().await;
        sleep_until(until).await;
    }
}

/// A running edge. Dropping it cuts every connection at once.
#[derive(Debug)]
pub struct Serving {
    addresses: Vec<SocketAddr>,
    lifecycle: Lifecycle,
    slots: Arc<Semaphore>,
    connections: usize,
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
        let lifecycle =
            Lifecycle { tasks: Arc::default(), draining: CancellationToken::new(), is_draining: Arc::default() };
        Self { addresses, lifecycle, slots, connections }
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
        self.lifecycle.drain();
        tokio::select! {
            biased;
            () = self.lifecycle.ended() => return Drained::Finished,
            () = patience => {}
        }
        let open = self.connections.saturating_sub(self.slots.available_permits());
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
