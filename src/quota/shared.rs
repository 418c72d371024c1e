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

use self::replies::{ScriptReplies, ScriptReply};
use super::millis;
use super::outcome::Outcomes;
use crate::shared::{CallError, RedisConnections};
use crate::telemetry::step;

const SCRIPT_TEXT: &str = include_str!("window.lua");

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SCRIPT_TEXT));

/// Maximum number of requests in one call. Each asks for one window, or for two if its token has a budget.
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
    /// Takes further places for a request that has taken one, or gives that one back.
    SpendMore,
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
    /// How many places are taken, all or none. 1, unless more are taken.
    pub(super) places: u16,
    /// The token that a place is for.
    pub(super) token: u32,
    /// How many requests the window held at this node's last peek. More than the limit after the limit was lowered.
    pub(super) held: u32,
    /// The token's own window, in which a place is taken too.
    pub(super) own: Option<OwnWindow>,
}

/// The window of a token that has a budget of its own.
#[derive(Clone, Debug)]
pub(super) struct OwnWindow {
    /// The key of the window's log: in the same cluster slot as that of the account.
    pub(super) log: String,
    /// The window's limit.
    pub(super) limit: u32,
    /// How many requests the window held when this node last asked.
    pub(super) held: u32,
}

/// A window as the script reads it.
struct Asked<'r> {
    log: &'r str,
    limit: u32,
    letter: u8,
    is_long: bool,
}

impl<'r> Asked<'r> {
    /// Whether the log is long is what this node knows. A node that has just started reads a long one whole, once.
    fn new(log: &'r str, limit: u32, letter: u8, held: u32) -> Self {
        let is_long = held >= LONG;
        Self { log, limit, letter: if is_long { letter.to_ascii_uppercase() } else { letter }, is_long }
    }

    /// The key of the tally that a long log has: in the same cluster slot as the log.
    fn tally(&self) -> Option<String> {
        self.is_long.then(|| format!("{}:tally", self.log))
    }
}

impl WindowRequest {
    /// The windows that it asks for: a token's own comes right before its account's.
    fn windows(&self) -> impl Iterator<Item = Asked<'_>> {
        let letter = match self.operation {
            Operation::Peek => b'l',
            Operation::Spend => b's',
            Operation::SpendAndReport => b'r',
            Operation::SpendMore => b'm',
        };
        let own = self.own.as_ref().map(|own| Asked::new(&own.log, own.limit, b'o', own.held));
        own.into_iter().chain([Asked::new(&self.log, self.limit, letter, self.held)])
    }
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
    outcome: oneshot::Sender<Result<Outcomes, Failure>>,
}

impl SharedWindows {
    /// Windows of `span`.
    pub(super) fn new(connections: Arc<RedisConnections>, span: Duration) -> Self {
        Self(Arc::new(Inner { connections, span, queue: Mutex::default() }))
    }

    /// The connections.
    pub(super) fn connections(&self) -> &Arc<RedisConnections> {
        &self.0.connections
    }

    /// Makes a request to a window.
    pub(super) async fn request(&self, request: WindowRequest) -> Result<Outcomes, Failure> {
        self.batch(request).instrument(step!("redis")).await
    }

    async fn batch(&self, request: WindowRequest) -> Result<Outcomes, Failure> {
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
    ) -> Result<Vec<Result<Outcomes, Failure>>, Failure> {
        let by_hash = self.command("EVALSHA", SCRIPT.get_hash(), &requests);
        let key = requests.clone().next().map_or("", |request| &*request.log);
        let call =
            self.connections.call(key, async |mut connection| match by_hash.query_async(&mut connection).await {
                // `SCRIPT LOAD` would need every master of a cluster, and one of them may be down.
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    self.command("EVAL", SCRIPT_TEXT, &requests).query_async(&mut connection).await
                }
                replies => replies,
            });
        let ScriptReplies(replies) = call.await.map_err(|error| Failure::Call(Arc::new(error)))?;
        let mut replies = replies.into_iter();
        Ok(requests.map(|request| ScriptReply::outcomes(&mut replies, request)).collect())
    }

    /// The command that runs the script, named by its hash or given as text. [`Script`] itself would allocate each argument, and each argument costs
    /// Redis an object and Lua a string, so all requests are packed into one.
    fn command<'q>(
        &self,
        name: &str,
        script: &str,
        requests: &(impl ExactSizeIterator<Item = &'q WindowRequest> + Clone),
    ) -> Cmd {
        let mut command = redis::cmd(name);
        let windows = || requests.clone().flat_map(|request| request.windows().map(move |asked| (asked, request)));
        command.arg(script).arg(windows().map(|(asked, _)| 1 + usize::from(asked.is_long)).sum::<usize>());
        for (asked, _) in windows() {
            command.arg(asked.log).arg(asked.tally());
        }
        command.arg(millis(self.span)).arg(2 * millis(self.span + EXPIRY_MARGIN));
        let mut packed = Vec::with_capacity(11 * requests.len());
        for (asked, request) in windows() {
            packed.extend_from_slice(&asked.limit.to_be_bytes());
            packed.push(asked.letter);
            packed.extend_from_slice(&request.token.to_be_bytes());
            packed.extend_from_slice(&request.places.to_be_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(limit: u32, held: u32) -> WindowRequest {
        WindowRequest { log: "log".into(), limit, operation: Operation::Spend, places: 1, token: 7, held, own: None }
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
            let asked: Vec<_> = request.windows().map(|asked| (asked.letter, asked.tally())).collect();
            assert_eq!(asked, [(letter, tally)], "{held} of {limit}");
        }
    }

    #[test]
    fn a_tokens_own_window_comes_before_its_accounts() {
        let own = Some(OwnWindow { log: "log:token:7".to_owned(), limit: 5, held: LONG });
        let request = WindowRequest { own, ..request(60, 0) };
        let asked: Vec<_> = request.windows().map(|asked| (asked.log, asked.limit, asked.letter)).collect();
        assert_eq!(asked, [("log:token:7", 5, b'O'), ("log", 60, b's')]);
    }
}
