//! Windows in Redis, shared by every node: one atomic script, by the server's clock.
//!
//! Owns the script and how its answers are read; connections and their failures are [`crate::shared`]'s.
//!
//! Requests that come while a call is under way wait for it and share the next one: the busier a node is, the less each
//! of them costs it and Redis, and a lonely one waits for nobody. What fails, fails for all that shared the call.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, FromRedisValue, ParsingError, Script, ServerErrorKind, Value};
use tokio::sync::oneshot;
use tracing::Instrument;

use super::usage::{ENTRY, Entry, Usage};
use crate::shared::{CallError, Lanes};
use crate::telemetry::step;

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("window.lua")));

/// How many requests one call carries at most. More saves little, and keeps Redis from others for longer: this many take
/// it a quarter of a millisecond.
const MOST: usize = 64;

/// About how much of logs one call brings at most, in bytes. More stays in a connection's memory once a burst of callers
/// asked who used a long window; less, and the callers of such an account wait for more calls.
const MOST_TOLD: usize = 256 * 1024;

/// How many calls are under way at once. More makes each carry less; with one, nothing is on its way to Redis while an
/// answer is.
const CALLS: usize = 2;

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

impl Ask {
    /// As the script is asked.
    fn letter(self) -> u8 {
        match self {
            Self::Look => b'l',
            Self::Spend => b's',
            Self::SpendAndTell => b't',
        }
    }
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
    /// About how many bytes of the log its answer brings. One that may be refused brings it, too.
    fn told(&self) -> usize {
        let may_be_full = self.held.saturating_add(u32::try_from(CALLS * MOST).unwrap_or(u32::MAX)) >= self.limit;
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
        let call = queue.calls < CALLS;
        queue.calls += usize::from(call);
        call
    }

    /// The questions of the next call; none when this was the last for now.
    fn next(&self) -> Vec<Waiting> {
        let mut queue = self.queue();
        let share = queue.share();
        queue.calls -= usize::from(share == 0);
        queue.waiting.drain(..share).collect()
    }

    /// Asks several windows at once, an answer for each.
    async fn call<'q>(
        &self,
        questions: impl ExactSizeIterator<Item = &'q Question> + Clone,
    ) -> Result<Vec<Result<Answer, Failure>>, Failure> {
        let command = self.command(questions.clone());
        let call = self.lanes.call(async |mut connection| match command.query_async(&mut connection).await {
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
        for Question { limit, ask, token, .. } in questions {
            packed.extend_from_slice(&limit.to_be_bytes());
            packed.push(ask.letter());
            packed.extend_from_slice(&token.to_be_bytes());
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

/// What the script says of the questions of a call.
struct Told(Vec<Part>);

/// What it says of one.
struct Part {
    /// Places that are left, or less than none where something else stands at the key.
    remaining: i32,
    wait: Duration,
    /// What the log held before the question, where that is told, or what stands at the key.
    log: Option<Vec<u8>>,
    /// How many bytes at the log's head have left the window.
    left: usize,
}

impl FromRedisValue for Told {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::Array(texts) = value else { return Err("the script answers with texts".into()) };
        let mut texts = texts.into_iter();
        let Some(Value::BulkString(heads)) = texts.next() else { return Err("the script's numbers come first".into()) };
        let (heads, []) = heads.as_chunks::<12>() else { return Err("the script's numbers end too soon".into()) };
        let part = |head: &[u8; 12]| {
            let number = |at: usize| i32::from_be_bytes(*head[at..].first_chunk().expect("a head has three numbers"));
            let left = usize::try_from(number(8)).ok();
            let log = match left.map(|left| (left, texts.next())) {
                None => None,
                Some((left, Some(Value::BulkString(log)))) if left <= log.len() => Some(log),
                Some(_) => return Err("a log is missing"),
            };
            let wait = Duration::from_millis(number(4).cast_unsigned().into());
            Ok(Part { remaining: number(0), wait, log, left: left.unwrap_or_default() })
        };
        Ok(Self(heads.iter().map(part).collect::<Result<_, _>>()?))
    }
}

impl Part {
    fn answer(self, question: &Question) -> Result<Answer, Failure> {
        let log = self.log.as_deref().unwrap_or_default();
        let Ok(remaining) = u32::try_from(self.remaining) else {
            return Err(Failure::NoWindow(String::from_utf8_lossy(log).into_owned()));
        };
        let wait = (!self.wait.is_zero()).then_some(self.wait);
        let before = log[self.left..].as_chunks::<ENTRY>().0.iter().map(|entry| Entry::token_of(*entry));
        let own = (wait.is_none() && question.ask == Ask::SpendAndTell).then_some(question.token);
        Ok(Answer { remaining, wait, usage: Usage::of(before.chain(own)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the script says of a question.
    fn head(remaining: i32, wait: u32, left: i32) -> [u8; 12] {
        let [remaining, wait, left] = [remaining.to_be_bytes(), wait.to_be_bytes(), left.to_be_bytes()];
        [remaining, wait, left].concat().try_into().unwrap()
    }

    fn read(heads: &[[u8; 12]], logs: &[&[u8]]) -> Result<Vec<Part>, ParsingError> {
        let heads = heads.concat();
        let texts = std::iter::once(&heads[..]).chain(logs.iter().copied());
        Told::from_redis_value(Value::Array(texts.map(|text| Value::BulkString(text.to_owned())).collect()))
            .map(|told| told.0)
    }

    fn question(ask: Ask) -> Question {
        Question { key: "log".into(), limit: 60, ask, token: 7, held: 0 }
    }

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
    fn each_answer_has_its_own_log() {
        let entry = |token: u32| [[0; 4], token.to_be_bytes()].concat();
        let log = [entry(9), entry(7), entry(7), entry(3)].concat();
        let heads = [head(59, 0, -1), head(56, 0, 8), head(0, 1500, 0), head(57, 0, 8), head(-1, 0, 0)];
        let parts = read(&heads, &[&log, &log, &log, b"no log"]).unwrap();
        let asks = [Ask::Spend, Ask::SpendAndTell, Ask::SpendAndTell, Ask::Look, Ask::Spend];
        let answers: Vec<_> = parts.into_iter().zip(asks).map(|(part, ask)| part.answer(&question(ask))).collect();
        let assert_told = |at: usize, remaining: u32, wait: Option<u64>, shares: &[(u32, u32)]| {
            let answer = answers[at].as_ref().unwrap();
            assert_eq!((answer.remaining, answer.wait), (remaining, wait.map(Duration::from_millis)));
            let told: Vec<_> = answer.usage.shares().map(|share| (share.token, share.requests)).collect();
            assert_eq!(told, shares);
        };
        assert_told(0, 59, None, &[]);
        // With the request itself, and without what has left.
        assert_told(1, 56, None, &[(7, 3), (3, 1)]);
        assert_told(2, 0, Some(1500), &[(7, 2), (3, 1), (9, 1)]);
        assert_told(3, 57, None, &[(7, 2), (3, 1)]);
        assert!(matches!(&answers[4], Err(Failure::NoWindow(message)) if message == "no log"), "{answers:?}");
    }

    #[test]
    fn what_the_script_does_not_answer_is_a_fault_and_no_panic() {
        let cut = Told::from_redis_value(Value::Array(vec![Value::BulkString(head(1, 0, -1)[..11].to_vec())]));
        assert!(cut.is_err());
        assert!(read(&[head(0, 1, 0)], &[]).is_err(), "no log");
        assert!(read(&[head(0, 1, 9)], &[b"12345678"]).is_err(), "less of a log than has left");
        for value in [Value::Int(1), Value::Array(Vec::new()), Value::Array(vec![Value::Int(1)])] {
            assert!(Told::from_redis_value(value.clone()).is_err(), "{value:?}");
        }
    }
}
