//! Parses the script's reply.
//!
//! A reply has one text with 12 bytes per request, then a text for each request that reports the usage: a log or a
//! tally. Anything else is an error, never a panic.

use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};

use super::{Failure, Operation, WindowRequest};
use crate::quota::outcome::{Outcome, Outcomes};
use crate::quota::usage::{ENTRY, LogEntry, Usage};
use crate::shared::CallError;

/// The third number of a request whose report is a tally.
const IS_TALLY: i32 = -2;

/// The replies to the requests of a call, in their order.
pub(super) struct ScriptReplies(pub(super) Vec<ScriptReply>);

/// The reply to one request.
pub(super) struct ScriptReply {
    /// Places that remain; negative if the key holds something else.
    remaining: i32,
    wait: Duration,
    report: UsageReport,
}

/// What a reply reports of a window.
enum UsageReport {
    Nothing,
    /// The entries that count, as they were before the request. A message if the key holds something else.
    Log(Vec<u8>),
    /// Numbers of requests of tokens, to be added up; this request is included.
    Tally(Vec<u8>),
}

impl FromRedisValue for ScriptReplies {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::Array(texts) = value else { return Err("the script replies with texts".into()) };
        let mut texts = texts.into_iter();
        let Some(Value::BulkString(heads)) = texts.next() else { return Err("the script's numbers come first".into()) };
        let (heads, []) = heads.as_chunks::<12>() else { return Err("the script's numbers end too soon".into()) };
        let mut next_text = || match texts.next() {
            Some(Value::BulkString(text)) => Ok(text),
            _ => Err("a report is missing"),
        };
        let mut reply = |head: &[u8; 12]| {
            let number = |at: usize| i32::from_be_bytes(*head[at..].first_chunk().expect("a head has three numbers"));
            let report = match (number(8), usize::try_from(number(8))) {
                (IS_TALLY, _) => UsageReport::Tally(next_text()?),
                (_, Err(_)) => UsageReport::Nothing,
                (_, Ok(left)) => {
                    let mut log = next_text()?;
                    if left > log.len() {
                        return Err("more of a log has left than there was");
                    }
                    log.drain(..left);
                    UsageReport::Log(log)
                }
            };
            let wait = Duration::from_millis(number(4).cast_unsigned().into());
            Ok(ScriptReply { remaining: number(0), wait, report })
        };
        Ok(Self(heads.iter().map(&mut reply).collect::<Result<_, _>>()?))
    }
}

impl ScriptReply {
    /// What the next replies mean for their request.
    pub(super) fn outcomes(
        replies: &mut impl Iterator<Item = Self>,
        request: &WindowRequest,
    ) -> Result<Outcomes, Failure> {
        let mut next = |operation| {
            let reply = replies.next().ok_or_else(|| Failure::Call(CallError::Unavailable.into()));
            reply.and_then(|reply| reply.outcome(operation, request.token))
        };
        // Both, so that the replies to the next request are not mistaken for its.
        let token = request.own.as_ref().map(|_| next(Operation::Spend));
        let is_full = matches!(&token, Some(Ok(Outcome { wait: Some(_), .. })));
        let account = next(if is_full { Operation::Peek } else { request.operation });
        Ok(Outcomes { token: token.transpose()?, account: account? })
    }

    /// What the reply means for a window.
    fn outcome(self, operation: Operation, token: u32) -> Result<Outcome, Failure> {
        let Ok(remaining) = u32::try_from(self.remaining) else {
            let message = if let UsageReport::Log(message) = self.report { message } else { Vec::new() };
            return Err(Failure::NoWindow(String::from_utf8_lossy(&message).into_owned()));
        };
        let wait = (!self.wait.is_zero()).then_some(self.wait);
        let usage = match &self.report {
            UsageReport::Nothing => Usage::default(),
            UsageReport::Log(log) => {
                let before = log.as_chunks::<ENTRY>().0.iter().map(|entry| LogEntry::token_of(*entry));
                let own = (wait.is_none() && operation == Operation::SpendAndReport).then_some(token);
                Usage::of(before.chain(own))
            }
            UsageReport::Tally(tally) => {
                let shares = tally.as_chunks::<8>().0.iter().map(|share| {
                    let (token, requests) = share.split_first_chunk().expect("a share has two numbers");
                    (u32::from_be_bytes(*token), i32::from_be_bytes(*requests.first_chunk().expect("of 4 bytes")))
                });
                Usage::added_up(shares)
            }
        };
        Ok(Outcome { remaining, wait, usage })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The script's numbers for one request.
    fn head(remaining: i32, wait: u32, report: i32) -> [u8; 12] {
        let [remaining, wait, report] = [remaining.to_be_bytes(), wait.to_be_bytes(), report.to_be_bytes()];
        [remaining, wait, report].concat().try_into().unwrap()
    }

    fn read(heads: &[[u8; 12]], reports: &[&[u8]]) -> Result<Vec<ScriptReply>, ParsingError> {
        let heads = heads.concat();
        let texts = std::iter::once(&heads[..]).chain(reports.iter().copied());
        ScriptReplies::from_redis_value(Value::Array(texts.map(|text| Value::BulkString(text.to_owned())).collect()))
            .map(|replies| replies.0)
    }

    #[test]
    fn each_reply_has_its_own_report() {
        let entry = |token: u32| [[0; 4], token.to_be_bytes()].concat();
        let share = |token: u32, requests: i32| [token.to_be_bytes(), requests.to_be_bytes()].concat();
        let log = [entry(9), entry(7), entry(7), entry(3)].concat();
        let tally = [share(3, 1), share(7, 398), share(9, 2), share(9, -2), share(7, 2)].concat();
        let heads = [
            head(59, 0, -1),
            head(56, 0, 8),
            head(0, 1500, 0),
            head(57, 0, 8),
            head(-1, 0, 0),
            head(599, 0, -2),
            head(0, 20, -2),
        ];
        let replies = read(&heads, &[&log, &log, &log, b"no log", &tally, b""]).unwrap();
        let operations = [
            Operation::Spend,
            Operation::SpendAndReport,
            Operation::SpendAndReport,
            Operation::Peek,
            Operation::Spend,
            Operation::SpendAndReport,
            Operation::Spend,
        ];
        let outcomes: Vec<_> =
            replies.into_iter().zip(operations).map(|(reply, operation)| reply.outcome(operation, 7)).collect();
        let assert_outcome = |at: usize, remaining: u32, wait: Option<u64>, shares: &[(u32, u32)]| {
            let outcome = outcomes[at].as_ref().unwrap();
            assert_eq!((outcome.remaining, outcome.wait), (remaining, wait.map(Duration::from_millis)));
            let reported: Vec<_> = outcome.usage.shares().map(|share| (share.token, share.requests)).collect();
            assert_eq!(reported, shares);
        };
        assert_outcome(0, 59, None, &[]);
        // Includes the request itself and excludes requests that have left the window.
        assert_outcome(1, 56, None, &[(7, 3), (3, 1)]);
        assert_outcome(2, 0, Some(1500), &[(7, 2), (3, 1), (9, 1)]);
        assert_outcome(3, 57, None, &[(7, 2), (3, 1)]);
        assert!(matches!(&outcomes[4], Err(Failure::NoWindow(message)) if message == "no log"), "{outcomes:?}");
        assert_outcome(5, 599, None, &[(7, 400), (3, 1)]);
        assert_outcome(6, 0, Some(20), &[]);
    }

    #[test]
    fn a_malformed_reply_is_an_error_and_no_panic() {
        let cut = ScriptReplies::from_redis_value(Value::Array(vec![Value::BulkString(head(1, 0, -1)[..11].to_vec())]));
        assert!(cut.is_err());
        assert!(read(&[head(0, 1, 0)], &[]).is_err(), "no log");
        assert!(read(&[head(0, 1, -2)], &[]).is_err(), "no tally");
        assert!(read(&[head(0, 1, 9)], &[b"12345678"]).is_err(), "less of a log than has left");
        for value in [Value::Int(1), Value::Array(Vec::new()), Value::Array(vec![Value::Int(1)])] {
            assert!(ScriptReplies::from_redis_value(value.clone()).is_err(), "{value:?}");
        }
    }
}
