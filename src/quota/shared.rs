//! Windows in Redis, shared by every node: one atomic script that uses the server's clock.
//!
//! Owns the script and how its answers are parsed; [`crate::shared`] owns connections and their failures.
//!
//! Requests that arrive while a call is in flight are batched into the next one. The busier a node is, the less each
//! request costs it and Redis; a single request never waits for others. A failed call fails every request in its
//! batch.

mod told;

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, Script, ServerErrorKind};
use tokio::sync::oneshot;
use tracing::Instrument;

use self::told::Told;
use super::usage::{ENTRY, Usage};
use crate::shared::{CallError, Lanes};
use crate::telemetry::step;

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("window.lua")));

/// Maximum number of requests in one call.
///
/// Larger: Redis is blocked for longer (64 take a quarter of a millisecond), for little gain. Smaller: more calls for
/// the same requests.
const MOST: usize = 64;

/// Approximate maximum of log bytes that one call returns.
///
/// Larger: a burst of callers that ask for the usage of a long window leaves more memory in a connection's buffer.
/// Smaller: the callers of such an account wait for more calls.
const MOST_TOLD: usize = 256 * 1024;

/// Number of requests in a window from which on its log is read in parts, unless the answer needs all of it.
///
/// Larger: long logs are read whole. Smaller: short logs are read in parts, which takes longer.
const LONG: u32 = 640;

/// Number of calls in flight at once, however few requests each carries.
///
/// Larger: each call carries fewer requests. Smaller: with one, no request is sent to Redis while an answer is on its
/// way back.
const CALLS: usize = 2;

/// Number of calls in flight at once if each carries at least [`MANY`] requests.
///
/// Larger: Redis spends more time per request. Smaller: requests wait although Redis could already work on them.
const MOST_CALLS: usize = 4;

/// Number of waiting requests that justifies a call in addition to the first [`CALLS`].
///
/// Larger: requests wait longer. Smaller: Redis spends more time per request.
const MANY: usize = 6;

/// Minimum time that Redis keeps a log after its last request stopped counting. The expiry counts from the start of
/// the script, the stamps from its `TIME` call: slightly later, or much later on a busy machine.
///
/// Larger: unused logs take memory for longer. Smaller: a log may expire while a request in it still counts.
const KEPT_LONGER: Duration = Duration::from_secs(1);

/// What a question asks of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// The remainder, and which tokens used the window.
    Look,
    /// A place.
    Spend,
    /// A place, and which tokens used the others.
    SpendAndTell,
}

/// One request's question.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// The key of the window's log.
    pub(super) key: Arc<str>,
    /// The window's limit.
    pub(super) limit: u32,
    /// What is asked.
    pub(super) ask: Ask,
    /// The token that a place is for.
    pub(super) token: u32,
    /// How many requests the window held when it was last asked.
    pub(super) held: u32,
}

impl Question {
    /// The question's letter in the script's argument.
    fn letter(&self) -> u8 {
        match self.ask {
            Ask::Look => b'l',
            Ask::Spend if self.held >= LONG => b'S',
            Ask::Spend => b's',
            Ask::SpendAndTell => b't',
        }
    }

    /// Approximate number of log bytes in the answer. A spend that may be refused counts too, because a refusal
    /// returns the log.
    fn told(&self) -> usize {
        let may_be_full = self.held.saturating_add(u32::try_from(MOST_CALLS * MOST).unwrap_or(u32::MAX)) >= self.limit;
        if self.ask == Ask::Spend && !may_be_full { 0 } else { ENTRY * self.held as usize }
    }
}

/// A window's answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// Places that remain.
    pub(super) remaining: u32,
    /// Time until a place is free; `None` if one is, or was.
    pub(super) wait: Option<Duration>,
    /// Which tokens used the window, if the question asks for it.
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
    lanes: Arc<Lanes>,
    span: Duration,
    queue: Mutex<Queue>,
}

/// Questions that wait for the next call.
#[derive(Debug, Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Calls in flight.
    calls: usize,
}

impl Queue {
    /// Whether the waiting questions justify a call in addition to `others`.
    fn is_worth_a_call(&self, others: usize) -> bool {
        let least = match others {
            0..CALLS => 1,
            CALLS..MOST_CALLS => MANY,
            _ => return false,
        };
        self.waiting.len() >= least
    }

    /// How many of the waiting questions the next call carries.
    fn share(&self) -> usize {
        let told = self.waiting.iter().take(MOST).scan(0, |told, waiting| {
            *told += waiting.question.told();
            Some(*told)
        });
        // A single question may exceed the maximum.
        told.enumerate().take_while(|(at, told)| *at == 0 || *told <= MOST_TOLD).count()
    }
}

#[derive(Debug)]
struct Waiting {
    question: Question,
    answer: oneshot::Sender<Result<Answer, Failure>>,
}

impl SharedWindows {
    /// Windows of `span`.
    pub(super) fn new(lanes: Arc<Lanes>, span: Duration) -> Self {
        Self(Arc::new(Inner { lanes, span, queue: Mutex::default() }))
    }

    /// Asks a window.
    pub(super) async fn ask(&self, question: Question) -> Result<Answer, Failure> {
        self.answer(question).instrument(step!("redis")).await
    }

    async fn answer(&self, question: Question) -> Result<Answer, Failure> {
        if !self.0.lanes.carry_many_keys() {
            // Boxed because it is large, and requests that share a call don't need it.
            let mut answers = Box::pin(self.0.call(std::iter::once(&question))).await?;
            return answers.pop().unwrap_or_else(|| Err(Failure::Call(Arc::new(CallError::Unavailable))));
        }
        let (answer, answered) = oneshot::channel();
        if self.0.wait(Waiting { question, answer }) {
            // A separate task: the caller may disconnect, and others share the call.
            tokio::spawn(Carrier { windows: Arc::clone(&self.0), is_done: false }.carry());
        }
        answered.await.unwrap_or(Err(Failure::Call(Arc::new(CallError::Unavailable))))
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a question and returns whether the caller must start a call.
    fn wait(&self, waiting: Waiting) -> bool {
        let mut queue = self.queue();
        queue.waiting.push(waiting);
        let call = queue.is_worth_a_call(queue.calls);
        queue.calls += usize::from(call);
        call
    }

    /// Takes the questions of a carrier's next call. If no call is due, returns none and frees the carrier's place.
    fn next(&self) -> Vec<Waiting> {
        let mut queue = self.queue();
        if !queue.is_worth_a_call(queue.calls - 1) {
            queue.calls -= 1;
            return Vec::new();
        }
        let share = queue.share();
        queue.waiting.drain(..share).collect()
    }

    /// Asks several windows in one call; one answer each.
    async fn call<'q>(
        &self,
        questions: impl ExactSizeIterator<Item = &'q Question> + Clone,
    ) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let command = self.command(questions.clone());
        let key = questions.clone().next().map_or("", |question| &*question.key);
        let call = self.lanes.call(key, async |mut connection| match command.query_async(&mut connection).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                SCRIPT.prepare_invoke().load_async(&mut connection).await?;
                command.query_async(&mut connection).await
            }
            told => told,
        });
        let Told(parts) = call.await.map_err(|error| Failure::Call(Arc::new(error)))?;
        Ok(parts.into_iter().zip(questions).map(|(part, question)| part.answer(question)).collect())
    }

    /// The command that runs the script. [`Script`] itself would allocate each argument, and each argument costs
    /// Redis an object and Lua a string, so the questions to all windows are packed into one.
    fn command<'q>(&self, questions: impl ExactSizeIterator<Item = &'q Question> + Clone) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(SCRIPT.get_hash()).arg(questions.len());
        for Question { key, .. } in questions.clone() {
            command.arg(&**key);
        }
        command.arg(millis(self.span)).arg(2 * millis(self.span + KEPT_LONGER));
        let mut packed = Vec::with_capacity(9 * questions.len());
        for question in questions {
            packed.extend_from_slice(&question.limit.to_be_bytes());
            packed.push(question.letter());
            packed.extend_from_slice(&question.token.to_be_bytes());
        }
        command.arg(packed);
        command
    }
}

/// Makes calls. If it panics, it gives back its place among the calls.
#[derive(Debug)]
struct Carrier {
    windows: Arc<Inner>,
    is_done: bool,
}

impl Carrier {
    /// Makes calls as long as questions are waiting.
    async fn carry(mut self) {
        loop {
            let waiting = self.windows.next();
            if waiting.is_empty() {
                self.is_done = true;
                return;
            }
            // A requester that stopped waiting needs no answer.
            match self.windows.call(waiting.iter().map(|waiting| &waiting.question)).await {
                Ok(answers) => {
                    for (waiting, answer) in waiting.into_iter().zip(answers) {
                        let _ = waiting.answer.send(answer);
                    }
                }
                Err(failure) => {
                    for waiting in waiting {
                        let _ = waiting.answer.send(Err(failure.clone()));
                    }
                }
            }
        }
    }
}

impl Drop for Carrier {
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

    #[test]
    fn a_call_carries_so_many_questions_that_it_brings_no_more_of_logs_than_it_may() {
        let queue = |ask, held, waiting: usize| {
            let question = Question { key: "log".into(), limit: 100_000, ask, token: 7, held };
            let waiting = (0..waiting).map(|_| Waiting { question: question.clone(), answer: oneshot::channel().0 });
            Queue { waiting: waiting.collect(), calls: 0 }
        };
        for (ask, held, waiting, share) in [
            (Ask::SpendAndTell, 60, 0, 0),
            (Ask::SpendAndTell, 60, 1, 1),
            (Ask::SpendAndTell, 60, 500, MOST),
            (Ask::SpendAndTell, 8_000, 500, 4),
            (Ask::SpendAndTell, 90_000, 500, 1),
            (Ask::Look, 8_000, 3, 3),
            (Ask::Spend, 90_000, 500, MOST),
            // Some of them may be refused, and a refusal returns the log.
            (Ask::Spend, 99_990, 500, 1),
        ] {
            assert_eq!(queue(ask, held, waiting).share(), share, "{ask:?} of {held}, {waiting} waiting");
        }
    }

    #[test]
    fn more_calls_are_under_way_where_each_carries_many() {
        let question = || Question { key: "log".into(), limit: 60, ask: Ask::Spend, token: 7, held: 0 };
        let worth = |waiting, others| {
            let waiting = (0..waiting).map(|_| Waiting { question: question(), answer: oneshot::channel().0 });
            Queue { waiting: waiting.collect(), calls: others }.is_worth_a_call(others)
        };
        let most_beside = |waiting| (0..10).rfind(|others| worth(waiting, *others)).map(|others| others + 1);
        assert_eq!([0, 1, 5, 6, 500].map(most_beside), [None, Some(2), Some(2), Some(4), Some(4)]);
    }

    #[test]
    fn a_long_log_is_read_in_parts_for_who_is_not_told_of_it() {
        let letter = |ask, held| Question { key: "log".into(), limit: 1000, ask, token: 7, held }.letter();
        let told = [Ask::Look, Ask::SpendAndTell].map(|ask| letter(ask, LONG));
        assert_eq!(told, *b"lt");
        assert_eq!([LONG - 1, LONG].map(|held| letter(Ask::Spend, held)), *b"sS");
    }
}
