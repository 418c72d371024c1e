//! What is compared: two ways to keep a window in Redis, and two floors below which no script can go. The check knows
//! short logs only; `tests/it/quota/window.rs` compares long ones with the definition.
//!
//! A candidate whose decisions differ from those of the packed log is not measured: [`Candidate::check`].

use anyhow::{Context, bail, ensure};
use rand::RngExt;
use redis::{Cmd, Connection, Value};

/// What a candidate answers: admitted, remaining, wait, log.
type Answer = (u8, u32, u64, Vec<u8>);

/// One way to decide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A plain `INCR`.
    Increment,
    /// A script that decides nothing.
    Nothing(&'static str),
    /// The gateway's window, which decides many requests in one call; here it is always one.
    InUse(&'static str),
    /// An exact window, with the bytes of an entry in the log that it tells.
    Window { script: &'static str, entry: usize },
}

/// The floor that all are compared with.
pub(crate) const FLOOR: Candidate = Candidate { name: "plain `INCR`", kind: Kind::Increment };

/// What every script costs before it does anything.
pub(crate) const EMPTY_SCRIPT: Candidate =
    Candidate { name: "script `return 1`", kind: Kind::Nothing("return 1 -- KEYS[1]") };

/// The script that the gateway runs.
pub(crate) const PACKED_LOG: Candidate =
    Candidate { name: "packed log (in use)", kind: Kind::InUse(include_str!("../../src/quota/window.lua")) };

const SORTED_SET: Candidate =
    Candidate { name: "sorted set", kind: Kind::Window { script: include_str!("sorted_set.lua"), entry: 10 } };

/// Every exact window.
pub(crate) const WINDOWS: [Candidate; 2] = [PACKED_LOG, SORTED_SET];

/// The limit from which on an account's log is long, as in `quota::shared`.
const LONG: u32 = 640;

/// The clock of a script, which the check takes into its own hands.
const CLOCK: &str = "redis.call('TIME')";

impl Candidate {
    /// Whether it keeps a window, and so admits and refuses.
    pub(crate) fn is_window(self) -> bool {
        matches!(self.kind, Kind::InUse(_) | Kind::Window { .. })
    }

    /// The command for one decision at a key, for a window of so many milliseconds.
    pub(crate) fn decision(self, key: &str, limit: u32, window: u64, token: u32) -> Cmd {
        match self.kind {
            Kind::Increment => {
                let mut command = redis::cmd("INCR");
                command.arg(key);
                command
            }
            Kind::InUse(_) => self.request(key, limit, window, "spend", token),
            Kind::Nothing(script) | Kind::Window { script, .. } => {
                let mut command = redis::cmd("EVALSHA");
                command.arg(redis::Script::new(script).get_hash()).arg(1).arg(key);
                command.arg(limit).arg(window).arg("spend").arg(token);
                command
            }
        }
    }

    /// The command for an operation of the script in use.
    pub(crate) fn request(self, key: &str, limit: u32, window: u64, operation: &str, token: u32) -> Cmd {
        let Kind::InUse(script) = self.kind else { panic!("only the script in use has operations") };
        let mut command = redis::cmd("EVALSHA");
        command.arg(redis::Script::new(script).get_hash());
        if limit < LONG {
            command.arg(1).arg(key).arg(window).arg(expiry(window)).arg(question(limit, operation, token));
        } else {
            let operation = operation.to_ascii_uppercase();
            command.arg(2).arg(key).arg(format!("{key}:tally"));
            command.arg(window).arg(expiry(window)).arg(question(limit, &operation, token));
        }
        command
    }

    /// What a reply says of one request: whether it is admitted, and what remains.
    pub(crate) fn decided(self, reply: &Value) -> Option<(bool, i64)> {
        match (self.kind, reply) {
            (Kind::InUse(_), Value::Array(texts)) => match &texts[..] {
                [Value::BulkString(head), ..] => {
                    numbers(head).ok().map(|(remaining, wait, _)| (wait == 0, remaining.into()))
                }
                _ => None,
            },
            (Kind::Window { .. }, Value::Array(parts)) => match parts[..] {
                [Value::Int(admitted), Value::Int(remaining), ..] => Some((admitted == 1, remaining)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Makes the server know the script.
    pub(crate) fn load(self, redis: &mut Connection) -> redis::RedisResult<()> {
        match self.kind {
            Kind::Increment => Ok(()),
            Kind::InUse(script) | Kind::Nothing(script) | Kind::Window { script, .. } => {
                redis::Script::new(script).load(redis).map(drop)
            }
        }
    }

    /// Takes both scripts through the same random steps, with the clock in our hands and a limit that changes now and
    /// then, and fails where they answer differently.
    pub(crate) fn check(self, redis: &mut Connection) -> anyhow::Result<()> {
        const STEPS: u32 = 4000;
        const WINDOW: u64 = 60_000;
        let mut random = rand::rng();
        // Begins so that the stamps wrap around midway.
        let (mut now, mut limit) = ((1_u64 << 32) - u64::from(STEPS) / 2 * 500, 10);
        for step in 0..STEPS {
            now += random.random_range(0..1000) * random.random_range(0..=2);
            if step % 200 == 0 {
                limit = random.random_range(1..=60);
            }
            let (kind, token) = (["spend", "report", "look"][random.random_range(0..3)], random.random_range(0..4));
            let time = [now / 1000, now % 1000 * 1000];
            let mut ask = |candidate: Self, key: &str| -> anyhow::Result<_> {
                let with_clock = |script: &str, clock| {
                    let text = script.replace(CLOCK, clock);
                    ensure!(text != script, "{} has no clock", candidate.name);
                    Ok(redis::Script::new(&text))
                };
                let (answer, entry) = match candidate.kind {
                    Kind::InUse(script) => {
                        let script = with_clock(script, "{ARGV[4], ARGV[5]}")?;
                        let mut invocation = script.key(key);
                        invocation.arg(WINDOW).arg(expiry(WINDOW)).arg(question(limit, kind, token)).arg(&time);
                        let mut answer = in_use(&invocation.invoke::<Vec<Vec<u8>>>(redis)?)?;
                        if kind == "report" && answer.0 == 1 {
                            // It tells what was before.
                            answer
                                .3
                                .extend(((now % (1 << 32)) as u32).to_be_bytes().iter().chain(&token.to_be_bytes()));
                        }
                        (answer, 8)
                    }
                    Kind::Window { script, entry } => {
                        let script = with_clock(script, "{ARGV[5], ARGV[6]}")?;
                        let mut invocation = script.key(key);
                        invocation.arg(limit).arg(WINDOW).arg(kind).arg(token).arg(&time);
                        (invocation.invoke(redis)?, entry)
                    }
                    Kind::Increment | Kind::Nothing(_) => return Ok(None),
                };
                let (admitted, remaining, wait, log): Answer = answer;
                let mut log: Vec<_> = log.chunks(entry).map(|entry| entry[..8].to_owned()).collect();
                log.sort();
                Ok(Some((admitted, remaining, wait, log)))
            };
            let (ours, reference) = (ask(self, "ours")?, ask(PACKED_LOG, "reference")?);
            ensure!(ours == reference, "{} answers {ours:?} at step {step}, not {reference:?}", self.name);
        }
        redis::cmd("FLUSHALL").exec(redis).context("the server takes commands")
    }
}

/// The expiry that the gateway gives a log.
fn expiry(window: u64) -> u64 {
    2 * (window + 1000)
}

/// One request as the script in use is asked.
fn question(limit: u32, what: &str, token: u32) -> Vec<u8> {
    [&limit.to_be_bytes(), &what.as_bytes()[..1], &token.to_be_bytes()].concat()
}

/// What the script in use says of one request: what remains, how long to wait, and how much of its log has left.
fn numbers(head: &[u8]) -> anyhow::Result<(u32, u32, i32)> {
    let ([remaining, wait, left], []) = head.as_chunks::<4>() else { bail!("no three numbers") };
    Ok((u32::from_be_bytes(*remaining), u32::from_be_bytes(*wait), i32::from_be_bytes(*left)))
}

/// The answer of the script in use to one request, in the form of the others.
fn in_use(texts: &[Vec<u8>]) -> anyhow::Result<Answer> {
    let (head, logs) = texts.split_first().context("numbers come first")?;
    let (remaining, wait, left) = numbers(head)?;
    let log = match (usize::try_from(left), logs) {
        (Err(_), []) => Vec::new(),
        (Ok(left), [log]) => log.get(left..).context("no more has left than there was")?.to_owned(),
        _ => bail!("one answer to one request"),
    };
    Ok((u8::from(wait == 0), remaining, wait.into(), log))
}
