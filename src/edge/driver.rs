//! Polls a connection to its end, and ends it in a drain, when it is idle or too old, or when the peer stalls.
//!
//! hyper's connection is polled until it completes; only a stalled one is dropped. [`Activity::check_timeouts`] decides
//! what is due and when.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use super::activity::{Abuse, Activity, TimeoutCheck};
use super::drain::Lifecycle;
use super::executor::Poller;
use super::goaway::GoawayReaction;
use crate::metrics::EdgeMetrics;

/// Why the polling of a connection is interrupted.
enum Interruption {
    /// The edge drains.
    Drain,
    /// The timeouts may have changed.
    Timeouts,
}

/// What polls a connection to its end.
pub(super) struct ConnectionDriver<'a> {
    pub(super) activity: Arc<Activity>,
    pub(super) metrics: &'a EdgeMetrics,
    pub(super) lifecycle: &'a Lifecycle,
}

impl ConnectionDriver<'_> {
    /// Polls a connection to its end, starts its graceful shutdown when that is due, and gives up on a peer that
    /// stalls.
    pub(super) async fn drive<C>(
        self,
        mut poller: Box<Poller>,
        mut connection: Pin<Box<C>>,
        shut_down: impl Fn(Pin<&mut C>),
    ) -> hyper::Result<()>
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let (mut is_shutting_down, mut shutdown_due) = (false, false);
        loop {
            match self.activity.check_timeouts(Instant::now()) {
                TimeoutCheck::Stalled => {
                    self.count("stalled");
                    return Ok(());
                }
                TimeoutCheck::Idle => {
                    // A connection that the drain ends is not counted as idle.
                    if !self.lifecycle.is_draining() {
                        self.count("idle");
                    }
                    shutdown_due = true;
                }
                TimeoutCheck::Warned => shutdown_due = true,
                TimeoutCheck::AgedOut => {
                    self.count_aged();
                    shutdown_due = true;
                }
                TimeoutCheck::NextAt(then) => {
                    // Polled only after it was woken, not with every read and write of the connection.
                    let mut interruption = FuturesUnordered::from_iter([self.interruption(then, is_shutting_down)]);
                    tokio::select! {
                        biased;
                        ended = poll_fn(|context| poller.poll(connection.as_mut(), context)) => {
                            match self.activity.abuse() {
                                Some(Abuse::Flood) => self.count("flood"),
                                Some(Abuse::Resets) => self.count("resets"),
                                Some(Abuse::Stall) => self.count("stalled"),
                                None if self.activity.ended_aged_out() => self.count_aged(),
                                None => {}
                            }
                            return ended;
                        }
                        interruption = interruption.next() => if let Some(Interruption::Drain) = interruption {
                            is_shutting_down = true;
                            self.activity.note_drain();
                            // After such a warning, the peer still sends what it has begun. Without one, a request
                            // that crosses the shutdown is lost, so the connection gets some time to send one.
                            shutdown_due = self.activity.goaway_reaction() == GoawayReaction::KeepsReading;
                        }
                    }
                }
            }
            if shutdown_due {
                (is_shutting_down, shutdown_due) = (true, false);
                self.activity.begin_shutdown();
                shut_down(connection.as_mut());
                poller.poll_soon();
            }
        }
    }

    /// Waits for what interrupts the polling: the drain, the next timeout check, or the connection's last
    /// request.
    async fn interruption(&self, then: Instant, is_shutting_down: bool) -> Interruption {
        tokio::select! {
            biased;
            () = self.lifecycle.draining(), if !is_shutting_down => Interruption::Drain,
            () = self.activity.last_request() => Interruption::Timeouts,
            () = sleep_until(then) => Interruption::Timeouts,
        }
    }

    fn count_aged(&self) {
        if !self.lifecycle.is_draining() {
            self.count("age");
        }
    }

    fn count(&self, reason: &str) {
        self.metrics.connections_ended.with_label_values(&[reason]).inc();
    }
}
