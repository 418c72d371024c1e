//! The few open connections of a listener of the operator's.
//!
//! Where there is no room for a new connection, those that have been without a request for longest are asked to leave. So
//! connections that send nothing, or no whole request, lock nobody out, however many there are. A connection that is
//! asked reads first what has arrived: one whose request is whole stays and is answered.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

/// How long a connection may take to send its request before it is asked to leave.
///
/// Larger: many connections that send nothing hold up new ones for longer. Smaller: a caller far away is cut off.
const GRACE: Duration = Duration::from_millis(250);

/// How long a connection that was asked to leave reads: the runtime looks at the sockets before it looks at the clock.
///
/// Larger: many connections that send nothing hold up new ones for longer. Smaller: the clock has no such times.
const LAST_READ: Duration = Duration::from_millis(2);

/// How long a connection that was asked to leave may leave its response unread.
///
/// Larger: callers that do not read hold up new ones for longer. Smaller: a large response over a slow line is cut.
const UNREAD_LIMIT: Duration = Duration::from_secs(5);

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
    state: Mutex<State>,
    asked: Notify,
    freed: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its request is not whole, since this instant.
    Reading(Instant),
    /// Its request is being answered.
    Answering,
    /// Its request was answered at this instant; the next one may be on its way, and the response too.
    Answered(Instant),
    /// It was asked to leave, and does.
    Leaving,
}

/// How a connection leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    /// At once.
    Now,
    /// When its last response is written.
    AfterResponse,
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
            let waiting = self.open.iter().filter_map(|(slot, _)| Some((slot.waits_since()?, slot)));
            let pause = waiting.min_by_key(|(since, _)| *since).map(|(since, slot)| {
                let grace = GRACE.saturating_sub(since.elapsed());
                if grace.is_zero() {
                    slot.asked.notify_one();
                }
                grace.max(2 * LAST_READ)
            });
            tokio::select! {
                _ = self.connections.join_next() => {}
                () = self.freed.notified() => {}
                () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            }
        }
    }

    /// Serves a connection.
    pub(super) fn serve<C: Future<Output = ()> + Send + 'static>(&mut self, connection: impl FnOnce(Arc<Slot>) -> C) {
        let (asked, freed) = (Notify::new(), Arc::clone(&self.freed));
        let slot = Arc::new(Slot { state: Mutex::new(State::Reading(Instant::now())), asked, freed });
        let handle = self.connections.spawn(connection(Arc::clone(&slot)));
        self.open.push((slot, handle));
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when it has no whole request, unless one is being answered.
    fn waits_since(&self) -> Option<Instant> {
        match *self.state() {
            State::Reading(since) | State::Answered(since) => Some(since),
            State::Answering | State::Leaving => None,
        }
    }

    /// Serves the connection until it ends or leaves. `shut_down` lets it end when its last response is written.
    pub(super) async fn drive<C: Future<Output = hyper::Result<()>>>(
        &self,
        connection: C,
        shut_down: impl FnOnce(Pin<&mut C>),
    ) -> hyper::Result<()> {
        let mut connection = pin!(connection);
        tokio::select! {
            // In this order, so that it has read what has arrived before it leaves.
            biased;
            served = &mut connection => served,
            leave = self.leaves() => match leave {
                Leave::Now => Ok(()),
                Leave::AfterResponse => {
                    shut_down(connection.as_mut());
                    timeout(UNREAD_LIMIT, connection).await.unwrap_or(Ok(()))
                }
            }
        }
    }

    /// Waits until the connection has to leave.
    async fn leaves(&self) -> Leave {
        loop {
            self.asked.notified().await;
            sleep(LAST_READ).await;
            let mut state = self.state();
            let leave = match *state {
                State::Answering => continue,
                State::Reading(_) | State::Leaving => Leave::Now,
                State::Answered(_) => Leave::AfterResponse,
            };
            *state = State::Leaving;
            return leave;
        }
    }

    /// Begins a request, which ends when the value is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        *self.state() = State::Answering;
        Busy(Arc::clone(self))
    }
}

impl Busy {
    /// The rest of the request has still to come: until it is there, the connection may be asked to leave.
    pub(super) fn read_on(&self) {
        *self.0.state() = State::Reading(Instant::now());
    }

    /// The request is whole.
    pub(super) fn answer(&self) {
        *self.0.state() = State::Answering;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.state() = State::Answered(Instant::now());
        self.0.freed.notify_one();
    }
}
