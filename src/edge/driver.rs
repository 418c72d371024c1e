//! Polls a connection to its end, and ends it in a drain, when it is idle or too old, or when the peer stalls.
//!
//! hyper's connection is polled until it completes; only a stalled one is dropped. [`Activity::outlook`] decides
//! what is due and when.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use super::activity::{Abuse, Activity, Outlook};
use super::drain::Lifecycle;
use super::executor::Poller;
use super::goaway::Goaway;
use crate::metrics::EdgeMetrics;

/// Why the polling of a connection is interrupted.
enum Interruption {
    /// The edge drains.
    Drain,
    /// The outlook may have changed.
    Outlook,
}

/// What polls a connection to its end.
pub(super) struct Attendant<'a> {
    pub(super) activity: Arc<Activity>,
    pub(super) metrics: &'a EdgeMetrics,
    pub(super) lifecycle: &'a Lifecycle,
}

impl Attendant<'_> {
    /// Polls a connection to its end, starts its graceful shutdown when that is due, and gives up on a peer that
    /// stalls.
    pub(super) async fn attend<C>(
        self,
        mut poller: Box<Poller>,
        mut connection: Pin<Box<C>>,
        say_goodbye: impl Fn(Pin<&mut C>),
    ) -> hyper::Result<()>
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let (mut leaving, mut goodbye_due) = (false, false);
        loop {
            match self.activity.outlook(Instant::now()) {
                Outlook::Stalled => {
                    self.count("stalled");
                    return Ok(());
                }
                Outlook::Idle => {
                    // A connection that the drain ends is not counted as idle.
                    if !self.lifecycle.is_draining() {
                        self.count("idle");
                    }
                    goodbye_due = true;
                }
                Outlook::Warned => goodbye_due = true,
                Outlook::Worn => {
                    self.count_worn();
                    goodbye_due = true;
                }
                Outlook::Until(then) => {
                    // Polled only after it was woken, not with every read and write of the connection.
                    let mut interruption = FuturesUnordered::from_iter([self.interruption(then, leaving)]);
                    tokio::select! {
                        biased;
                        ended = poll_fn(|context| poller.poll(connection.as_mut(), context)) => {
                            match self.activity.abuse() {
                                Some(Abuse::Flood) => self.count("flood"),
                                Some(Abuse::Resets) => self.count("resets"),
                                Some(Abuse::Stall) => self.count("stalled"),
                                None if self.activity.ended_worn() => self.count_worn(),
                                None => {}
                            }
                            return ended;
                        }
                        interruption = interruption.next() => if let Some(Interruption::Drain) = interruption {
                            leaving = true;
                            self.activity.call_last();
                            // After such a warning, the peer still sends what it has begun. Without one, a request
                            // that crosses the shutdown is lost, so the connection gets some time to send one.
                            goodbye_due = self.activity.goaway() == Goaway::Warning;
                        }
                    }
                }
            }
            if goodbye_due {
                (leaving, goodbye_due) = (true, false);
                self.activity.leave();
                say_goodbye(connection.as_mut());
                poller.poll_soon();
            }
        }
    }

    /// Waits for what interrupts the polling: the drain, the instant of the outlook, or the connection's last
    /// request.
    async fn interruption(&self, then: Instant, leaving: bool) -> Interruption {
        tokio::select! {
            biased;
            () = self.lifecycle.draining(), if !leaving => Interruption::Drain,
            () = self.activity.last_request() => Interruption::Outlook,
            () = sleep_until(then) => Interruption::Outlook,
        }
    }

    fn count_worn(&self) {
        if !self.lifecycle.is_draining() {
            self.count("age");
        }
    }

    fn count(&self, reason: &str) {
        self.metrics.connections_ended.with_label_values(&[reason]).inc();
    }
}
