//! The script of the shared window, against its definition in plain words, in a real Redis.
//!
//! A random test needs a clock of its own: the script is run unchanged except for the place where it reads the time, and
//! its keys expire late. The clock and the expiry have tests of their own.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::{Script, ScriptInvocation};

use crate::support::redis::Redis;

const SOURCE: &str = include_str!("../../../src/quota/window.lua");

/// What the script replies to a request: whether it admits, what remains, how long to wait, and what it reports.
type Answer = (bool, u64, u64, Option<Report>);

/// What the script reports of a window.
#[derive(Debug, PartialEq)]
enum Report {
    /// What a short log held before the request.
    Log(Vec<u8>),
    /// The requests of each token in a long log, after the request.
    Tally(BTreeMap<u32, u32>),
}

impl Report {
    fn into_log(self) -> Vec<u8> {
        let Self::Log(log) = self else { panic!("not a log: {self:?}") };
        log
    }
}

/// One request as the script reads it. Its operation is the first letter of a word, in upper case for a long log.
fn question(limit: u64, operation: &str, token: u32) -> Vec<u8> {
    question_of(limit, operation, token, 1)
}

/// The same of a request for several places.
fn question_of(limit: u64, operation: &str, token: u32, places: u16) -> Vec<u8> {
    let limit = u32::try_from(limit).expect("a limit").to_be_bytes();
    [&limit[..], &operation.as_bytes()[..1], &token.to_be_bytes(), &places.to_be_bytes()].concat()
}

/// Asks the script, and returns what it replies to each request: what remains, how long to wait, and what it reports.
fn replies(call: &ScriptInvocation<'_>, redis: &mut redis::Connection) -> Vec<(i32, u32, Option<Report>)> {
    let texts: Vec<Vec<u8>> = call.invoke(redis).expect("the script has no fault");
    let (heads, reports) = texts.split_first().expect("numbers come first");
    let (heads, []) = heads.as_chunks::<12>() else { panic!("half a head in {heads:?}") };
    let mut reports = reports.iter();
    let replies = heads.iter().map(|head| {
        let number = |at: usize| i32::from_be_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let report = match number(8) {
            -1 => None,
            -2 => Some(Report::Tally(added_up(pairs(reports.next().expect("a tally"))))),
            left => Some(Report::Log(reports.next().expect("a log")[left as usize..].to_owned())),
        };
        (number(0), number(4).cast_unsigned(), report)
    });
    let replies = replies.collect();
    assert_eq!(reports.len(), 0, "a report of no request");
    replies
}

/// Adds up the shares of a tally.
fn added_up(shares: Vec<(u32, u32)>) -> BTreeMap<u32, u32> {
    let mut sums = BTreeMap::<u32, u32>::new();
    for (token, requests) in shares {
        let sum = sums.entry(token).or_default();
        *sum = sum.wrapping_add(requests);
    }
    sums.retain(|_, sum| *sum != 0);
    sums
}

/// Asks the script, whose keys hold windows.
fn answers(call: &ScriptInvocation<'_>, redis: &mut redis::Connection) -> Vec<Answer> {
    let answer = |(remaining, wait, report): (i32, u32, Option<Report>)| {
        (wait == 0, u64::try_from(remaining).expect("a window"), wait.into(), report)
    };
    replies(call, redis).into_iter().map(answer).collect()
}

/// A window whose clock the test sets.
struct Window {
    script: Script,
    redis: redis::Connection,
    key: String,
    limit: u64,
    span: u64,
    expiry: u64,
}

impl Window {
    fn new(redis: &Redis, key: &str, limit: u64, span: u64) -> Self {
        const CLOCK: &str = "redis.call('TIME')";
        assert_eq!(SOURCE.matches(CLOCK).count(), 1);
        let source = SOURCE.replace(CLOCK, "{ARGV[4], ARGV[5]}");
        let (script, redis) = (Script::new(&source), redis.connect());
        Self { script, redis, key: key.to_owned(), limit, span, expiry: 86_400_000 }
    }

    /// Asks at an instant in milliseconds.
    fn ask(&mut self, now: u64, what: &str, token: u32) -> Answer {
        let mut call = self.script.key(&self.key);
        if what.starts_with(char::is_uppercase) {
            call.key(format!("{}:tally", self.key));
        }
        call.arg(self.span).arg(self.expiry).arg(question(self.limit, what, token));
        call.arg(now / 1000).arg(now % 1000 * 1000 + 999);
        answers(&call, &mut self.redis).pop().expect("an answer")
    }
}

/// The entries of a log (stamp and token), or the shares of a tally (token and requests).
fn pairs(log: &[u8]) -> Vec<(u32, u32)> {
    let (entries, []) = log.as_chunks::<8>() else { panic!("half an entry in {log:?}") };
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    entries.iter().map(|entry| (number(&entry[..4]), number(&entry[4..]))).collect()
}

/// The operations on a short log, then those on a long one. The random tests mix them at one window, as nodes do while
/// its limit changes.
const OPERATIONS: [&str; 6] = ["look", "spend", "report", "Look", "Spend", "Report"];

/// Limits from one to sixty, now and then some hundreds, and the spans that tests and callers know.
fn sizes(random: &mut StdRng, round: u64) -> (u64, u64) {
    let limit = if round % 8 == 7 { random.random_range(200..=900) } else { random.random_range(1..=60) };
    (limit, [50, 1000, 2000, 60_000][random.random_range(0..4)])
}

#[test]
fn the_script_does_what_the_definition_says() {
    let (redis, mut random) = (Redis::start(), StdRng::seed_from_u64(1));
    for round in 0..24 {
        let (limit, span) = sizes(&mut random, round);
        let mut window = Window::new(&redis, &format!("window {round}"), limit, span);
        let operations = if round % 4 == 1 { 3..OPERATIONS.len() } else { 0..OPERATIONS.len() };
        let mut admitted: Vec<(u64, u32)> = Vec::new();
        // Some rounds pass the instant at which the 32 bits of a stamp begin anew.
        let mut now = if round % 3 == 0 { (401 << 32) - span * 2 } else { 1_700_000_000_000 + round };
        for _ in 0..400.max(limit * 4) {
            // Often nothing, mostly about one request's part of the span, now and then all of it, to the millisecond.
            now += match random.random_range(0..10.max(limit)) {
                0 => span + random.random_range(0..=2),
                other if other % 3 == 0 => 0,
                _ => random.random_range(0..=2 * span / limit),
            };
            let counted: Vec<(u64, u32)> = admitted.iter().copied().filter(|(at, _)| now - at <= span).collect();
            let used = counted.len() as u64;
            let wait = if used < limit { 0 } else { counted[(used - limit) as usize].0 + span + 1 - now };
            // Few tokens have shares of several requests; with many, an entry is found by its token.
            let token = if round % 2 == 0 { random.random() } else { random.random_range(0..4) };
            let what = OPERATIONS[random.random_range(operations.clone())];
            let (admits, left, waits, report) = window.ask(now, what, token);
            let case = format!("limit {limit}, span {span}, at {now}: {counted:?}");
            assert_eq!((admits, waits), (used < limit, wait), "{case}");
            let spends = admits && !what.eq_ignore_ascii_case("look");
            assert_eq!(left, limit - used - u64::from(spends), "{case}");
            if spends {
                admitted.push((now, token));
            }
            let is_reported = !admits || !what.eq_ignore_ascii_case("spend");
            assert_eq!(report.is_some(), is_reported, "{case}");
            match report {
                None => {}
                Some(Report::Log(log)) => {
                    let expected: Vec<_> = counted.iter().map(|(at, token)| (*at as u32, *token)).collect();
                    assert_eq!(pairs(&log), expected, "{case}");
                }
                Some(Report::Tally(tally)) => {
                    let mut expected = BTreeMap::new();
                    let own = spends.then_some(token);
                    counted
                        .iter()
                        .map(|(_, token)| *token)
                        .chain(own)
                        .for_each(|token| *expected.entry(token).or_default() += 1);
                    assert_eq!(tally, expected, "{case}");
                }
            }
        }
    }
}

/// The clock is set back at random. In time as it truly passes, no span has more than the limit, and a request after the
/// reported wait is admitted.
#[test]
fn a_clock_that_is_set_back_neither_exceeds_the_limit_nor_locks_clients_out() {
    let (redis, mut random) = (Redis::start(), StdRng::seed_from_u64(2));
    for round in 0..24 {
        let (limit, span) = sizes(&mut random, round);
        let mut window = Window::new(&redis, &format!("window {round}"), limit, span);
        let (mut passed, mut clock) = (0u64, 1_700_000_000_000u64);
        let mut admitted: Vec<u64> = Vec::new();
        for _ in 0..300.max(limit * 4) {
            let what = OPERATIONS[[1, 2, 4, 5][random.random_range(0..4)]];
            let step = random.random_range(0..=2 * span / limit);
            (passed, clock) = (passed + step, clock + step);
            if random.random_range(0..20.max(limit / 4)) == 0 {
                clock -= random.random_range(1..=span * 100);
            }
            let (mut admits, _, wait, _) = window.ask(clock, what, 1);
            if !admits {
                assert!((1..=span + 1).contains(&wait), "a wait of {wait} in {span}");
                (passed, clock) = (passed + wait, clock + wait);
                admits = window.ask(clock, what, 1).0;
                assert!(admits, "refused after the wait");
            }
            admitted.push(passed);
        }
        let crowded = admitted.windows(limit as usize + 1).find(|window| window[limit as usize] - window[0] <= span);
        assert_eq!(crowded, None, "limit {limit}, span {span}");
    }
}

/// A limit that was lowered by a new configuration counts what was admitted before.
#[test]
fn a_lowered_limit_admits_when_enough_have_left() {
    let redis = Redis::start();
    let mut window = Window::new(&redis, "window", 4, 1000);
    for now in [0, 10, 20, 30] {
        assert!(window.ask(5_000_000 + now, "spend", 1).0);
    }
    window.limit = 2;
    let (admits, left, wait, report) = window.ask(5_000_040, "spend", 1);
    let entries = report.map(|report| pairs(&report.into_log()).len());
    assert_eq!((admits, left, wait, entries), (false, 0, 1000 + 20 + 1 - 40, Some(4)));
    assert!(!window.ask(5_000_040 + wait - 1, "spend", 1).0);
    assert!(window.ask(5_000_040 + wait, "spend", 1).0);
}

/// As it is written: by the server's clock, and no longer than it is needed.
#[test]
fn a_window_is_stamped_by_the_server_and_leaves_nothing_behind() {
    let redis = Redis::start();
    let mut connection = redis.connect();
    let time = || -> u64 {
        let (seconds, micros): (u64, u64) = redis.run(&["TIME"]);
        seconds * 1000 + micros / 1000
    };
    for span in [50, 1500] {
        let (key, before) = (format!("window {span}"), time());
        let script = Script::new(SOURCE);
        let mut call = script.key(&key);
        call.arg(span).arg(2 * (span + 500)).arg(question(3, "spend", u32::MAX));
        let (admits, left, ..) = answers(&call, &mut connection).pop().expect("an answer");
        let after = time();
        let log: Vec<u8> = redis.run(&["GET", &key]);
        let [(at, u32::MAX)] = pairs(&log)[..] else { panic!("one entry: {log:?}") };
        assert!((before..=after).any(|time| time as u32 == at), "{before} {at} {after}");
        assert_eq!((admits, left), (true, 2));
        let expiry: u64 = redis.run(&["PTTL", &key]);
        assert!((span + 500..=2 * (span + 500)).contains(&expiry), "{expiry} of {span}");
    }
    std::thread::sleep(Duration::from_millis(1200));
    assert_eq!(redis.run::<u64>(&["EXISTS", "window 50"]), 0);
}

/// However a log came to its expiry, the first request in a sixteenth of what a new one has renews it where it would not
/// outlast the requests of that time.
#[test]
fn a_request_is_kept_for_long_enough_whatever_the_expiry_was() {
    const EXPIRY: u64 = 122_000;
    let redis = Redis::start();
    let mut window = Window::new(&redis, "window", 1000, 60_000);
    window.expiry = EXPIRY;
    let part = EXPIRY / 16;
    let mut now = part * 1_000_000;
    let mut ask_after = |passed: u64| {
        now += passed;
        assert!(window.ask(now, "spend", 1).0);
        redis.run::<u64>(&["PTTL", "window"])
    };
    assert!((EXPIRY - 1000..=EXPIRY).contains(&ask_after(0)), "of a new one");
    for (expiry, renewed) in [(EXPIRY / 2 + part - 1, true), (EXPIRY / 2 + part + 5000, false), (5000, true)] {
        redis.run::<()>(&["PEXPIRE", "window", &expiry.to_string()]);
        let then = ask_after(part);
        assert_eq!(then > EXPIRY - 1000, renewed, "{expiry}: {then}");
    }
    redis.run::<()>(&["PERSIST", "window"]);
    assert!(ask_after(part) > EXPIRY - 1000, "one that never expired");
    for _ in 0..4 {
        // By the clock of the test alone, the rest of this part.
        assert!(ask_after(part / 5) > EXPIRY / 2);
    }
    redis.run::<()>(&["PEXPIRE", "window", &(EXPIRY / 2 + part - 1).to_string()]);
    assert!(ask_after(0) < EXPIRY / 2 + part, "it was looked at in this part");
}

/// What has left stays at the head of a log for a while, and not for long: sixteen requests of one that is read whole, else a
/// sixteenth.
#[test]
fn a_log_does_not_keep_much_of_what_has_left() {
    const STEPS: u64 = 3000;
    let redis = Redis::start();
    // A request each 40 ms: so many of them count.
    for (what, span, counted, kept) in [("spend", 10_000, 251, 17), ("Spend", 40_000, 1001, 68)] {
        let mut window = Window::new(&redis, what, counted + 1, span);
        let (mut longest, mut rewritten) = (0, 0);
        for step in 0..STEPS {
            let before: u64 = redis.run(&["STRLEN", what]);
            assert!(window.ask(5_000_000 + step * 40, what, 1).0);
            let length: u64 = redis.run(&["STRLEN", what]);
            if step > counted {
                assert!((counted * 8..=(counted + kept) * 8).contains(&length), "{length} bytes at step {step}");
                longest = longest.max(length);
                rewritten += u64::from(length < before + 8);
            }
        }
        assert!(longest > counted * 8, "{longest} bytes at most");
        assert!(rewritten <= (STEPS - counted) / (kept - 2), "{what}: {rewritten} times written anew");
    }
}

/// Requests that share a call are decided one after the other, each by its own limit.
#[test]
fn one_call_decides_many_requests_in_their_order() {
    let redis = Redis::start();
    let mut connection = redis.connect();
    let script = Script::new(SOURCE);
    let mut call = script.prepare_invoke();
    let mut questions = Vec::new();
    for (key, limit, what, token) in [
        ("a", 2, "spend", 1),
        ("b", 1, "report", 2),
        ("a", 2, "report", 3),
        ("b", 1, "spend", 4),
        ("a", 3, "look", 0),
        ("a", 2, "spend", 5),
    ] {
        call.key(key);
        questions.extend(question(limit, what, token));
    }
    call.arg(60_000).arg(122_000).arg(&questions);
    let answered: Vec<_> = answers(&call, &mut connection)
        .into_iter()
        .map(|(admits, left, _, report)| {
            let tokens =
                |report: Report| pairs(&report.into_log()).into_iter().map(|(_, token)| token).collect::<Vec<_>>();
            (admits, left, report.map(tokens))
        })
        .collect();
    let expected: [(bool, u64, Option<&[u32]>); 6] = [
        (true, 1, None),
        (true, 0, Some(&[])),
        (true, 0, Some(&[1])),
        (false, 0, Some(&[2])),
        (true, 1, Some(&[1, 3])),
        (false, 0, Some(&[1, 3])),
    ];
    assert_eq!(answered, expected.map(|(admits, left, tokens)| (admits, left, tokens.map(<[u32]>::to_vec))));
}

/// Something else at one key is told of that key, and the requests beside it are decided.
#[test]
fn a_key_that_holds_something_else_does_not_fail_the_others() {
    let redis = Redis::start();
    let mut connection = redis.connect();
    let _: u64 = redis.run(&["RPUSH", "list", "x"]);
    let script = Script::new(SOURCE);
    let mut call = script.prepare_invoke();
    for key in ["a", "list", "b"] {
        call.key(key);
    }
    call.arg(60_000).arg(122_000).arg(question(5, "spend", 1).repeat(3));
    let mut replies = replies(&call, &mut connection);
    assert_eq!(replies.iter().map(|reply| reply.0).collect::<Vec<_>>(), [4, -1, 4]);
    let message = replies.remove(1).2.expect("a message").into_log();
    assert!(String::from_utf8_lossy(&message).contains("WRONGTYPE"), "{message:?}");
}

/// A request of a token with a budget asks for two windows.
#[test]
fn a_token_with_a_budget_takes_a_place_in_both_windows_or_in_neither() {
    const CLOCK: &str = "redis.call('TIME')";
    let (redis, mut random) = (Redis::start(), StdRng::seed_from_u64(3));
    let script = Script::new(&SOURCE.replace(CLOCK, "{ARGV[4], ARGV[5]}"));
    let mut connection = redis.connect();
    for round in 0..16 {
        let span = [50, 1000, 60_000][random.random_range(0..3)];
        let limit = if round % 4 == 3 { random.random_range(700..=900) } else { random.random_range(1..=40) };
        let own_limit = random.random_range(1..=limit);
        let (key, own_key) = (format!("window {round}"), format!("window {round}:token:7"));
        // What each window admitted.
        let (mut admitted, mut own): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        let mut now = 1_700_000_000_000 + round;
        for _ in 0..300.max(limit * 3) {
            now += match random.random_range(0..10.max(limit)) {
                0 => span + random.random_range(0..=2),
                other if other % 3 == 0 => 0,
                _ => random.random_range(0..=2 * span / limit),
            };
            let left_and_wait = |admitted: &[u64], limit: u64| {
                let counted: Vec<u64> = admitted.iter().copied().filter(|at| now - at <= span).collect();
                let used = counted.len() as u64;
                if used < limit { (limit - used, 0) } else { (0, counted[(used - limit) as usize] + span + 1 - now) }
            };
            let is_limited = random.random_bool(0.6);
            let ((left, wait), (own_left, own_wait)) =
                (left_and_wait(&admitted, limit), left_and_wait(&own, own_limit));
            // Each as short or long, as nodes know it.
            let mut call = script.prepare_invoke();
            let mut questions = Vec::new();
            let mut ask = |key: &str, limit: u64, operation: &str, token: u32| {
                let is_long = random.random_bool(0.5);
                call.key(key);
                if is_long {
                    call.key(format!("{key}:tally"));
                }
                let operation = if is_long { operation.to_uppercase() } else { operation.to_owned() };
                questions.extend(question(limit, &operation, token));
            };
            if is_limited {
                ask(&own_key, own_limit, "o", 7);
            }
            let operation = if now % 2 == 0 { "s" } else { "r" };
            ask(&key, limit, operation, if is_limited { 7 } else { 8 });
            call.arg(span).arg(86_400_000).arg(&questions).arg(now / 1000).arg(now % 1000 * 1000 + 999);
            let answered = answers(&call, &mut connection);
            let case = format!("{limit} and {own_limit} in {span} at {now}, limited: {is_limited}: {answered:?}");
            let admits = wait == 0 && (!is_limited || own_wait == 0);
            let told = |(_, left, wait, _): &Answer| (*left, *wait);
            assert_eq!(told(answered.last().expect("an answer")), (left - u64::from(admits), wait), "{case}");
            if is_limited {
                assert_eq!(told(&answered[0]), (own_left - u64::from(admits), own_wait), "{case}");
                assert_eq!(answered[0].3.is_some(), own_wait > 0, "{case}");
            }
            if admits {
                admitted.push(now);
                own.extend(is_limited.then_some(now));
            }
        }
        assert!(own.len() as u64 > own_limit.min(20) && admitted.len() > own.len(), "{limit} {own_limit}");
    }
}

/// Requests that spend more take all further places in both windows, or give back the oldest of their token.
#[test]
fn further_places_are_taken_together_in_both_windows_or_one_is_given_back() {
    const CLOCK: &str = "redis.call('TIME')";
    let (redis, mut random) = (Redis::start(), StdRng::seed_from_u64(4));
    let script = Script::new(&SOURCE.replace(CLOCK, "{ARGV[4], ARGV[5]}"));
    let mut connection = redis.connect();
    let (mut taken, mut refused) = (0, 0);
    for round in 0..24 {
        let span = [50, 1000, 60_000][random.random_range(0..3)];
        let limit = if round % 4 == 3 { random.random_range(700..=900) } else { random.random_range(2..=40) };
        let own_limit = random.random_range(limit / 2..=limit).max(2);
        let (key, own_key) = (format!("window {round}"), format!("window {round}:token:7"));
        // What each window holds: instants and tokens.
        let [mut held, mut own]: [Vec<(u64, u32)>; 2] = [Vec::new(), Vec::new()];
        let mut now = 1_700_000_000_000 + round;
        for _ in 0..200.max(limit) {
            now += random.random_range(0..=4 * span / limit);
            for window in [&mut held, &mut own] {
                window.retain(|(at, _)| now - at <= span);
            }
            let (is_limited, places) = (random.random_bool(0.5), random.random_range(1..=own_limit / 2).max(1));
            let token = if is_limited { 7 } else { 8 };
            let mut ask = |operation: &str, places: u16| {
                let mut call = script.prepare_invoke();
                let mut questions = Vec::new();
                let mut add = |key: &str, limit: u64, operation: &str| {
                    let is_long = random.random_bool(0.5);
                    call.key(key);
                    if is_long {
                        call.key(format!("{key}:tally"));
                    }
                    let operation = if is_long { operation.to_uppercase() } else { operation.to_owned() };
                    questions.extend(question_of(limit, &operation, token, places));
                };
                if is_limited {
                    add(&own_key, own_limit, "o");
                }
                add(&key, limit, operation);
                call.arg(span).arg(86_400_000).arg(&questions).arg(now / 1000).arg(now % 1000 * 1000 + 999);
                answers(&call, &mut connection)
            };
            let wait_of = |window: &[(u64, u32)], limit: u64, places: u64| {
                let beyond = (window.len() as u64 + places).saturating_sub(limit);
                if beyond == 0 { 0 } else { window[beyond as usize - 1].0 + span + 1 - now }
            };
            // The one that every request spends.
            let answered = ask("s", 1);
            if answered.iter().any(|(admits, ..)| !admits) {
                continue;
            }
            held.push((now, token));
            own.extend(is_limited.then_some((now, token)));
            let waits = [wait_of(&held, limit, places), if is_limited { wait_of(&own, own_limit, places) } else { 0 }];
            let answered = ask("m", u16::try_from(places).expect("few"));
            let case = format!("{places} of {limit} and {own_limit} in {span}, limited: {is_limited}: {answered:?}");
            let admits = waits == [0, 0];
            let told = answered.last().expect("an answer");
            let left = limit - held.len() as u64 - if admits { places } else { 0 };
            // A window that is only looked at, since the token's own has too few, says when it has one place.
            let wait = if waits[1] > 0 { wait_of(&held, limit, 1) } else { waits[0] };
            assert_eq!((told.1, told.2), (left, wait), "{case}");
            if is_limited {
                let left = own_limit - own.len() as u64 - if admits { places } else { 0 };
                assert_eq!((answered[0].1, answered[0].2), (left, waits[1]), "{case}");
            }
            if admits {
                taken += 1;
                for _ in 0..places {
                    held.push((now, token));
                    own.extend(is_limited.then_some((now, token)));
                }
            } else {
                refused += 1;
                for (window, holds) in [(&mut held, true), (&mut own, is_limited)] {
                    if let Some(oldest) = window.iter().position(|(_, of)| *of == token).filter(|_| holds) {
                        window.remove(oldest);
                    }
                }
            }
            let stored: Vec<u8> = redis.run(&["GET", &key]);
            let stored: Vec<(u32, u32)> = pairs(&stored);
            let expected: Vec<(u32, u32)> = held.iter().map(|(at, token)| (*at as u32, *token)).collect();
            assert_eq!(stored[stored.len() - expected.len()..], expected, "{case}");
        }
    }
    assert!(taken > 200 && refused > 200, "{taken} {refused}");
}

/// A key of a token that holds something else fails that request alone, which spends nothing.
#[test]
fn a_budget_whose_key_holds_something_else_spends_nothing_of_the_account() {
    let redis = Redis::start();
    let mut connection = redis.connect();
    let _: u64 = redis.run(&["RPUSH", "own", "x"]);
    let script = Script::new(SOURCE);
    let mut call = script.prepare_invoke();
    for key in ["own", "account", "account"] {
        call.key(key);
    }
    let questions = [question(5, "o", 1), question(5, "spend", 1), question(5, "spend", 2)].concat();
    call.arg(60_000).arg(122_000).arg(questions);
    let remaining: Vec<_> = replies(&call, &mut connection).iter().map(|reply| reply.0).collect();
    assert_eq!(remaining, [-1, 5, 4]);
}
