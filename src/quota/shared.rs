//! Windows in Redis, shared by every node: one atomic script that uses the server's clock.
//!
//! Owns the script and how its replies are parsed; [`crate::shared`] owns connections and their failures.
//!
//! Requests that arrive while a call is in flight are batched into the next one. The busier a node is, the less each
//! request costs it and Redis; a single request never waits for others. A failed call fails every request in its
//! batch.

mod replies;

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, Script, ServerErrorKind};
use tokio::sync::oneshot;
use tracing::Instrument;

use self::replies::ScriptReplies;
use super::usage::Usage;
use crate::shared::{CallError, RedisConnections};
use crate::telemetry::step;

const SCRIPT_TEXT: &str = include_str!("window.lua");

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SCRIPT_TEXT));

/// Maximum number of requests in one call.
///
/// Larger: Redis is blocked for longer (64 take a quarter of a millisecond), for little gain, and a call returns more
/// short logs (up to 320 KiB). Smaller: more calls for the same requests.
const MAX_BATCH: usize = 64;

/// Number of requests in a window from which on its log is long: it is not read whole, and has a tally.
///
/// Larger: requests read more of a log. Smaller: windows whose logs are read quickly have a second key, and a request
/// needs more commands.
const LONG: u32 = 640;

/// Number of calls in flight at once, however few requests each carries.
///
/// Larger: each call carries fewer requests. Smaller: with one, no request is sent to Redis while a reply is on its
/// way back.
const CALLS: usize = 2;

/// Number of calls in flight at once if each carries at least [`MANY`] requests.
///
/// Larger: Redis spends more time per request. Smaller: requests wait although Redis could already work on them.
const MAX_CALLS: usize = 4;

/// Number of queued requests that justifies a call in addition to the first [`CALLS`].
///
/// Larger: requests wait longer. Smaller: Redis spends more time per request.
const MANY: usize = 6;

/// Minimum time that Redis keeps a log after its last request stopped counting. The expiry counts from the start of
/// the script, the stamps from its `TIME` call: slightly later, or much later on a busy machine.
///
/// Larger: unused logs take memory for longer. Smaller: a log may expire while a request in it still counts.
const EXPIRY_MARGIN: Duration = Duration::from_secs(1);

/// What is done with a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Reports what remains, and which tokens used the window.
    Peek,
    /// Takes a place.
    Spend,
    /// Takes a place, and reports which tokens used the window.
    SpendAndReport,
}

/// One request to a window.
#[derive(Clone, Debug)]
pub(super) struct WindowRequest {
    /// The key of the window's log.
    pub(super) log: Arc<str>,
    /// The window's limit.
    pub(super) limit: u32,
    /// What is done.
    pub(super) operation: Operation,
    /// The token that a place is for.
    pub(super) token: u32,
    /// How many requests the window held at this node's last peek. More than the limit after the limit was lowered.
    pub(super) held: u32,
}

impl WindowRequest {
    /// Whether the log is long as far as this node knows. A node that has just started reads a long one whole, once.
    fn is_long(&self) -> bool {
        self.held >= LONG
    }

    /// The request's letter in the script's argument.
    fn letter(&self) -> u8 {
        let letter = match self.operation {
            Operation::Peek => b'l',
            Operation::Spend => b's',
            Operation::SpendAndReport => b'r',
        };
        if self.is_long() { letter.to_ascii_uppercase() } else { letter }
    }

    /// The key of the tally that a long log has: in the same cluster slot as the log.
    fn tally(&self) -> Option<String> {
        self.is_long().then(|| format!("{}:tally", self.log))
    }
}

/// What became of a request to a window.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Places that remain.
    pub(super) remaining: u32,
    /// Time until a place is free; `None` if one is, or was.
    pub(super) wait: Option<Duration>,
    /// Which tokens used the window, if the operation reports it or the window is full.
    pub(super) usage: Usage,
}

/// Why a window does not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The call failed.
    #[error(transparent)]
    Call(Arc<CallError>),
    /// The key holds something else.
    #[error("the key holds no window: {0}")]
    NoWindow(String),
}

/// All windows in one Redis.
#[derive(Clone, Debug)]
pub(super) struct SharedWindows(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connections: Arc<RedisConnections>,
    span: Duration,
    queue: Mutex<Queue>,
}

/// Requests that wait for the next call.
#[derive(Debug, Default)]
struct Queue {
    queued: Vec<Queued>,
    /// Calls in flight.
    calls: usize,
}

impl Queue {
    /// Whether the queued requests justify a call in addition to `others`.
    fn is_worth_a_call(&self, others: usize) -> bool {
        let least = match others {
            0..CALLS => 1,
            CALLS..MAX_CALLS => MANY,
            _ => return false,
        };
        self.queued.len() >= least
    }
}

#[derive(Debug)]
struct Queued {
    request: WindowRequest,
    outcome: oneshot::Sender<Result<Outcome, Failure>>,
}

impl SharedWindows {
    /// Windows of `span`.
    pub(super) fn new(connections: Arc<RedisConnections>, span: Duration) -> Self {
        Self(Arc::new(Inner { connections, span, queue: Mutex::default() }))
    }

    /// Makes a request to a window.
    pub(super) async fn request(&self, request: WindowRequest) -> Result<Outcome, Failure> {
        self.batch(request).instrument(step!("redis")).await
    }

    async fn batch(&self, request: WindowRequest) -> Result<Outcome, Failure> {
        if !self.0.connections.carry_many_keys() {
            // Boxed because it is large, and requests that share a call don't need it.
            let mut outcomes = Box::pin(self.0.call(std::iter::once(&request))).await?;
            return outcomes.pop().unwrap_or_else(|| Err(Failure::Call(Arc::new(CallError::Unavailable))));
        }
        let (outcome, receiver) = oneshot::channel();
        if self.0.enqueue(Queued { request, outcome }) {
            // A separate task: the client may disconnect, and others share the call.
            tokio::spawn(Batcher { windows: Arc::clone(&self.0), is_done: false }.run());
        }
        receiver.await.unwrap_or(Err(Failure::Call(Arc::new(CallError::Unavailable))))
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request and returns whether its task must start a call.
    fn enqueue(&self, queued: Queued) -> bool {
        let mut queue = self.queue();
        queue.queued.push(queued);
        let call = queue.is_worth_a_call(queue.calls);
        queue.calls += usize::from(call);
        call
    }

    /// Takes the requests of a batcher's next call. If no call is due, returns none and frees the batcher's place.
    fn next_batch(&self) -> Vec<Queued> {
        let mut queue = self.queue();
        if !queue.is_worth_a_call(queue.calls - 1) {
            queue.calls -= 1;
            return Vec::new();
        }
        let batch = queue.queued.len().min(MAX_BATCH);
        queue.queued.drain(..batch).collect()
    }

    /// Makes requests to several windows in one call; one outcome each.
    async fn call<'q>(
        &self,
        requests: impl ExactSizeIterator<Item = &'q WindowRequest> + Clone,
    ) -> Result<Vec<Result<Outcome, Failure>>, Failure> {
        let by_hash = self.command("EVALSHA", SCRIPT.get_hash(), requests.clone());
        let key = requests.clone().next().map_or("", |request| &*request.log);
        let call =
            self.connections.call(key, async |mut connection| match by_hash.query_async(&mut connection).await {
                // `SCRIPT LOAD` would need every master of a cluster, and one of them may be down.
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    self.command("EVAL", SCRIPT_TEXT, requests.clone()).query_async(&mut connection).await
                }
                replies => replies,
            });
        let ScriptReplies(replies) = call.await.map_err(|error| Failure::Call(Arc::new(error)))?;
        Ok(replies.into_iter().zip(requests).map(|(reply, request)| reply.outcome(request)).collect())
    }

    /// The command that runs the script, named by its hash or given as text. [`Script`] itself would allocate each argument, and each argument costs
    /// Redis an object and Lua a string, so all requests are packed into one.
    fn command<'q>(
        &self,
        name: &str,
        script: &str,
        requests: impl ExactSizeIterator<Item = &'q WindowRequest> + Clone,
    ) -> Cmd {
        let mut command = redis::cmd(name);
        let tallies = requests.clone().filter(|request| request.is_long()).count();
        command.arg(script).arg(requests.len() + tallies);
        for request in requests.clone() {
            command.arg(&*request.log).arg(request.tally());
        }
        command.arg(millis(self.span)).arg(2 * millis(self.span + EXPIRY_MARGIN));
        let mut packed = Vec::with_capacity(9 * requests.len());
        for request in requests {
            packed.extend_from_slice(&request.limit.to_be_bytes());
            packed.push(request.letter());
            packed.extend_from_slice(&request.token.to_be_bytes());
        }
        command.arg(packed);
        command
    }
}

/// Makes calls. If it panics, it gives back its place among the calls.
#[derive(Debug)]
struct Batcher {
    windows: Arc<Inner>,
    is_done: bool,
}

impl Batcher {
    /// Makes calls as long as requests are queued.
    async fn run(mut self) {
        loop {
            let batch = self.windows.next_batch();
            if batch.is_empty() {
                self.is_done = true;
                return;
            }
            // A receiver may be gone: its client has disconnected.
            match self.windows.call(batch.iter().map(|queued| &queued.request)).await {
                Ok(outcomes) => {
                    for (queued, outcome) in batch.into_iter().zip(outcomes) {
                        let _ = queued.outcome.send(outcome);
                    }
                }
                Err(failure) => {
                    for queued in batch {
                        let _ = queued.outcome.send(Err(failure.clone()));
                    }
                }
            }
        }
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        if !self.is_done {
            self.windows.queue().calls -= 1;
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(limit: u32, held: u32) -> WindowRequest {
        WindowRequest { log: "log".into(), limit, operation: Operation::Spend, token: 7, held }
    }

    #[test]
    fn more_calls_are_in_flight_if_each_carries_many_requests() {
        let worth = |queued, others| {
            let queued = (0..queued).map(|_| Queued { request: request(60, 0), outcome: oneshot::channel().0 });
            Queue { queued: queued.collect(), calls: others }.is_worth_a_call(others)
        };
        let most_with = |queued| (0..10).rfind(|others| worth(queued, *others)).map(|others| others + 1);
        assert_eq!([0, 1, 5, 6, 500].map(most_with), [None, Some(2), Some(2), Some(4), Some(4)]);
    }

    #[test]
    fn a_log_is_long_by_what_it_held_whatever_the_limit_is() {
        let tally = Some("log:tally".to_owned());
        for (limit, held, letter, tally) in
            [(100_000, LONG - 1, b's', None), (100_000, LONG, b'S', tally.clone()), (60, LONG, b'S', tally)]
        {
            let request = request(limit, held);
            assert_eq!((request.letter(), request.tally()), (letter, tally), "{held} of {limit}");
        }
    }
}
