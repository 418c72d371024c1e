//! The few open connections of a listener of the operator's.
//!
//! A new connection takes the place of the one that has been without a request for longest. So connections that send
//! nothing, or no whole request, lock nobody out, however many there are.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// Open connections, up to a number.
pub(super) struct Slots {
    connections: JoinSet<()>,
    open: Vec<(Arc<Slot>, AbortHandle)>,
    most: usize,
    /// A request was answered.
    freed: Arc<Notify>,
}

/// One connection.
pub(super) struct Slot {
    /// Since when it has no request, or only the head of one; none while one is being answered.
    idle_since: Mutex<Option<Instant>>,
    freed: Arc<Notify>,
}

/// A request that is being answered.
pub(super) struct Busy(Arc<Slot>);

impl Slots {
    pub(super) fn new(most: usize) -> Self {
        Self { connections: JoinSet::new(), open: Vec::new(), most, freed: Arc::new(Notify::new()) }
    }

    /// Waits until there is room for one more: while each connection has a request that is being answered.
    pub(super) async fn room(&mut self) {
        loop {
            while self.connections.try_join_next().is_some() {}
            self.open.retain(|(_, connection)| !connection.is_finished());
            if self.open.len() < self.most {
                return;
            }
            let idle = self.open.iter().enumerate().filter_map(|(at, (slot, _))| Some((slot.idle_since()?, at)));
            if let Some((_, longest)) = idle.min() {
                self.open.swap_remove(longest).1.abort();
                return;
            }
            tokio::select! {
                _ = self.connections.join_next() => {}
                () = self.freed.notified() => {}
            }
        }
    }

    /// Serves a connection.
    pub(super) fn serve<C: Future<Output = ()> + Send + 'static>(&mut self, connection: impl FnOnce(Arc<Slot>) -> C) {
        let slot = Arc::new(Slot { idle_since: Mutex::new(Some(Instant::now())), freed: Arc::clone(&self.freed) });
        let handle = self.connections.spawn(connection(Arc::clone(&slot)));
        self.open.push((slot, handle));
    }
}

impl Slot {
    fn idle_since(&self) -> Option<Instant> {
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the head of a request whose body is still to come: until it is there, the connection gives way.
    pub(super) fn note_head(&self) {
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Begins a request, which ends when the value is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Busy(Arc::clone(self))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.0.freed.notify_one();
    }
}
