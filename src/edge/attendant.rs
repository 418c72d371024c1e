//! Seeing a connection to its end: in a drain, when it is idle or had its time, or when the peer stalls.
//!
//! hyper's connection is polled until it ends by itself; only a stalled one is dropped. When what is due
//! [`Activity::outlook`] says.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use super::activity::{Abuse, Activity, Outlook};
use super::drain::Lifecycle;
use super::executor::Poller;
use super::parting::Goaway;
use crate::metrics::EdgeMetrics;

/// Why a connection is looked at.
enum Interruption {
    /// The edge drains.
    Drain,
    /// The outlook may be another.
    Outlook,
}

/// What sees a connection to its end.
pub(super) struct Attendant<'a> {
    pub(super) activity: Arc<Activity>,
    pub(super) metrics: &'a EdgeMetrics,
    pub(super) lifecycle: &'a Lifecycle,
}

impl Attendant<'_> {
    /// Polls a connection to its end, says goodbye once when that is due, and gives up on a peer that stalls.
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
                    // In a drain it is the stop that ends it.
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
                    // Polled when it has something to say, and not with every read and write of the connection.
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
                            // The peer still sends what is under way. Without such a warning, a request that crosses the
                            // end is lost, so a connection has a while to bring one.
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

    /// What is to be looked at beside the connection's own work: the stop, the outlook's instant, or that its last request
    /// came.
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
