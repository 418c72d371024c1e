//! Load: callers that ask without a pause, and what came of it.
//!
//! They are honest callers. A connection that the server closed before a byte of a request was written is replaced, as
//! every HTTP client does; whatever else keeps a request from its answer is a failure, and each is kept with its words.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::answer::Answer;
use super::client::{Client, Unanswered};
use super::connection::Protocol;

/// How long a caller rests between two requests, so that a debug build is not kept busy by the handshakes alone.
const REST: Duration = Duration::from_millis(10);

impl Seen {
    fn add(&mut self, outcome: Result<Answer, Unanswered>, took: Duration) {
        self.longest = self.longest.max(took);
        match outcome {
            Ok(answer) if answer.status == 200 => self.answered += 1,
            Ok(answer) => self.failures.push(format!("{answer:?}")),
            Err(unanswered) => self.failures.push(format!("{unanswered:?}")),
        }
    }
}

/// Callers at work; [`Load::finish`] ends them.
pub(crate) struct Load {
    callers: JoinSet<()>,
    over: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
}

/// What came of the requests.
#[derive(Default)]
pub(crate) struct Seen {
    /// How many were answered with 200.
    pub(crate) answered: usize,
    /// Every other outcome.
    pub(crate) failures: Vec<String>,
    /// The longest that one waited.
    pub(crate) longest: Duration,
}

impl Load {
    /// Lets so many callers ask, a third of each kind: over HTTP/1.1, over HTTP/2, and with a new connection each time.
    /// Each asks whom `choose` names.
    pub(crate) fn start(count: usize, choose: impl Fn() -> Client + Clone + Send + 'static) -> Self {
        let (over, seen) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Seen>>::default());
        let mut callers = JoinSet::new();
        for n in 0..count {
            let (over, seen, choose) = (Arc::clone(&over), Arc::clone(&seen), choose.clone());
            callers.spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let protocol = if n % 3 == 1 { Protocol::Http2 } else { Protocol::Http1 };
                    let call = choose().over(protocol).get("/api/v1/me");
                    let began = Instant::now();
                    let answer = if n % 3 == 2 { call.fresh() } else { call }.try_send().await;
                    seen.lock().unwrap_or_else(PoisonError::into_inner).add(answer, began.elapsed());
                    tokio::time::sleep(REST).await;
                }
            });
        }
        Self { callers, over, seen }
    }

    /// How many were answered so far.
    pub(crate) fn answered(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).answered
    }

    /// Lets the callers finish, and tells what they saw.
    pub(crate) async fn finish(mut self) -> Seen {
        self.over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.callers.join_next().await {
            ended.expect("an answer that breaks a rule fails the test");
        }
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
