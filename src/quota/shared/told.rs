//! Parses the script's answers.
//!
//! A reply is one text with 12 bytes per question, then the logs of those questions that return one. Anything else is
//! an error, never a panic.

use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};

use super::{Answer, Ask, Failure, Question};
use crate::quota::usage::{ENTRY, LogEntry, Usage};

/// The script's answers to the questions of a call.
pub(super) struct Told(pub(super) Vec<Part>);

/// The answer to one question.
pub(super) struct Part {
    /// Places that remain; negative if the key holds something else.
    remaining: i32,
    wait: Duration,
    /// The log before the question, if it is returned, or a message if the key holds something else.
    log: Option<Vec<u8>>,
    /// How many bytes at the head of the log have left the window.
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
    pub(super) fn answer(self, question: &Question) -> Result<Answer, Failure> {
        let log = self.log.as_deref().unwrap_or_default();
        let Ok(remaining) = u32::try_from(self.remaining) else {
            return Err(Failure::NoWindow(String::from_utf8_lossy(log).into_owned()));
        };
        let wait = (!self.wait.is_zero()).then_some(self.wait);
        let before = log[self.left..].as_chunks::<ENTRY>().0.iter().map(|entry| LogEntry::token_of(*entry));
        let own = (wait.is_none() && question.ask == Ask::SpendAndTell).then_some(question.token);
        Ok(Answer { remaining, wait, usage: Usage::of(before.chain(own)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The script's numbers for one question.
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
        // Includes the request itself and excludes requests that have left the window.
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
