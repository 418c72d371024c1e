//! Windows in Redis, shared by every node: one atomic script, by the server's clock.
//!
//! Owns the script and how its answers are read; connections and their failures are [`crate::shared`]'s.
//!
//! Requests that come while a call is under way wait for it and share the next one: the busier a node is, the less each
//! of them costs it and Redis, and a lonely one waits for nobody. What fails, fails for all that shared the call.

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

/// How many requests one call carries at most. More saves little, and keeps Redis from others for longer: this many take
/// it a quarter of a millisecond.
const MOST: usize = 64;

/// About how much of logs one call brings at most, in bytes. More stays in a connection's memory once a burst of callers
/// asked who used a long window; less, and the callers of such an account wait for more calls.
const MOST_TOLD: usize = 256 * 1024;

/// From how many requests in a window on its log is read in parts for who is not told of it. More, and long logs are read
/// whole; fewer, and short ones are read in parts, which takes longer.
const LONG: u32 = 640;

/// How many calls are under way at once, however little they carry. More makes each carry less; with one, nothing is on its
/// way to Redis while an answer is.
const CALLS: usize = 2;

/// How many are, where each carries [`MANY`]. More take Redis more time a request; with fewer, requests wait for calls that
/// it could already work on.
const MOST_CALLS: usize = 4;

/// How many requests are worth a call beside the first [`CALLS`]. More, and requests wait longer; fewer, and Redis takes more
/// time for each.
const MANY: usize = 6;

/// How much longer Redis keeps a log than its requests count, at least. The expiry counts from when the script began, the
/// stamps from when it asked for the time: a little later, or a lot on a busy machine.
const KEPT_LONGER: Duration = Duration::from_secs(1);

/// What is asked of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// What is left, and who used the rest.
    Look,
    /// A place.
    Spend,
    /// A place, and who used the others.
    SpendAndTell,
}

/// One request's question.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// Where the window's log stands.
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
    /// As the script is asked.
    fn letter(&self) -> u8 {
        match self.ask {
            Ask::Look => b'l',
            Ask::Spend if self.held >= LONG => b'S',
            Ask::Spend => b's',
            Ask::SpendAndTell => b't',
        }
    }

    /// About how many bytes of the log its answer brings. One that may be refused brings it, too.
    fn told(&self) -> usize {
        let may_be_full = self.held.saturating_add(u32::try_from(MOST_CALLS * MOST).unwrap_or(u32::MAX)) >= self.limit;
        if self.ask == Ask::Spend && !may_be_full { 0 } else { ENTRY * self.held as usize }
    }
}

/// What a window answers.
#[derive(Debug)]
pub(super) struct Answer {
    /// Places that are left.
    pub(super) remaining: u32,
    /// How long until there is a place; nothing where there is, or was, one.
    pub(super) wait: Option<Duration>,
    /// Who used the window, where that is told.
    pub(super) usage: Usage,
}

/// Why a window does not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The call failed.
    #[error(transparent)]
    Call(Arc<CallError>),
    /// Something else stands at the key.
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
    /// Calls that are under way.
    calls: usize,
}

impl Queue {
    /// Whether there is to be another call beside so many.
    fn is_worth_a_call(&self, others: usize) -> bool {
        let least = match others {
            0..CALLS => 1,
            CALLS..MOST_CALLS => MANY,
            _ => return false,
        };
        self.waiting.len() >= least
    }

    /// How many of the questions the next call carries.
    fn share(&self) -> usize {
        let told = self.waiting.iter().take(MOST).scan(0, |told, waiting| {
            *told += waiting.question.told();
            Some(*told)
        });
        // One alone may bring more.
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
            // Boxed: it is large, and a request that shares a call has no need of it.
            let mut answers = Box::pin(self.0.call(std::iter::once(&question))).await?;
            return answers.pop().unwrap_or_else(|| Err(Failure::Call(Arc::new(CallError::Unavailable))));
        }
        let (answer, answered) = oneshot::channel();
        if self.0.wait(Waiting { question, answer }) {
            // A task of its own: the caller may hang up, and others share the call.
            tokio::spawn(Carrier { windows: Arc::clone(&self.0), is_done: false }.carry());
        }
        answered.await.unwrap_or(Err(Failure::Call(Arc::new(CallError::Unavailable))))
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a question in the queue, and tells whether a call is to be made for it.
    fn wait(&self, waiting: Waiting) -> bool {
        let mut queue = self.queue();
        queue.waiting.push(waiting);
        let call = queue.is_worth_a_call(queue.calls);
        queue.calls += usize::from(call);
        call
    }

    /// The questions of the next call in place of one; none when there is to be no such call for now.
    fn next(&self) -> Vec<Waiting> {
        let mut queue = self.queue();
        if !queue.is_worth_a_call(queue.calls - 1) {
            queue.calls -= 1;
            return Vec::new();
        }
        let share = queue.share();
        queue.waiting.drain(..share).collect()
    }

    /// Asks several windows at once, an answer for each.
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

    /// The command that runs the script. By [`Script`]'s own way, each of its words would be allocated; and each costs Redis
    /// an object and Lua a text, so what is asked of all windows is one.
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

/// Who makes calls. One that panics gives its place among the calls back.
#[derive(Debug)]
struct Carrier {
    windows: Arc<Inner>,
    is_done: bool,
}

impl Carrier {
    /// Makes calls for as long as there are questions.
    async fn carry(mut self) {
        loop {
            let waiting = self.windows.next();
            if waiting.is_empty() {
                self.is_done = true;
                return;
            }
            // Who does not wait any more needs no answer.
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
            // Some of them may be refused, and a refusal brings the log.
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
