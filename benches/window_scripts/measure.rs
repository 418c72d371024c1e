//! What one decision costs Redis, and what an account weighs.
//!
//! In every account that is measured the oldest request has just left the window, and the request that is measured takes
//! its place: admitting always means to drop one and to add one, whether the log is full or holds a few. Right after it,
//! a full account refuses. Every reply is looked at: a pass that did anything else, as when the machine stood still, is
//! repeated.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use redis::ConnectionLike;

use crate::candidate::Candidate;
use crate::redis_server::Server;

/// How many commands are sent at once. The calls of many requests share their writes on the gateway's connections too;
/// with fewer, the server's reads and writes hide what the scripts cost.
const DEPTH: usize = 32;

/// As many connections as a gateway has.
const CONNECTIONS: usize = 2;

/// The oldest request of an account is so much older than the others. A pass must end within it.
const LEAD: Duration = Duration::from_secs(3);

/// A window that nothing leaves while the bench runs.
const LONG: u64 = 3_600_000;

/// What is no window is this much quicker, and is asked so much more often: a pass of a few milliseconds tells little.
const FLOOR_TIMES: usize = 4;

/// How often a disturbed pass is repeated.
const ATTEMPTS: u32 = 5;

/// How full the accounts are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    /// Requests in the window.
    pub(crate) held: u32,
    /// How many there may be.
    pub(crate) limit: u32,
}

/// Accounts of one candidate that wait to be copied.
pub(crate) struct Template {
    pub(crate) candidate: Candidate,
    fill: Fill,
    /// The server's clock, in ms, just after the oldest request.
    oldest: u64,
}

/// What one decision cost, in a pass over many accounts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Microseconds of Redis' main thread.
    pub(crate) cpu: f64,
    /// Decisions a second, by the clock on the wall.
    pub(crate) rate: f64,
}

impl Template {
    /// Makes an account with each candidate.
    pub(crate) fn make(server: &Server, candidates: &[Candidate], fill: Fill) -> anyhow::Result<Vec<Self>> {
        let mut redis = server.connect()?;
        redis::cmd("FLUSHALL").exec(&mut redis)?;
        let mut templates = Vec::new();
        for &candidate in candidates {
            candidate.load(&mut redis)?;
            let template = Self { candidate, fill, oldest: 0 };
            redis.req_command(&candidate.decision(&template.key(), fill.limit, LONG, 1))?;
            templates.push(Self { oldest: clock(&mut redis)?, ..template });
        }
        thread::sleep(LEAD);
        for template in &templates {
            for token in 1..fill.held {
                redis.req_command(&template.candidate.decision(&template.key(), fill.limit, LONG, token % 4))?;
            }
        }
        Ok(templates)
    }

    fn key(&self) -> String {
        format!("template:{:_<20}", self.candidate.name) // as long for each: a key counts too
    }

    /// The bytes of an account, with its key; none of what keeps nothing.
    pub(crate) fn memory(&self, server: &Server) -> anyhow::Result<u64> {
        let mut command = redis::cmd("MEMORY");
        let usage: Option<u64> =
            command.arg("USAGE").arg(self.key()).arg("SAMPLES").arg(0).query(&mut server.connect()?)?;
        Ok(usage.unwrap_or(0))
    }

    /// Admits one request at each of so many accounts; then lowers the limit to what they hold, and refuses one at each.
    pub(crate) fn pass(&self, server: &Server, accounts: usize) -> anyhow::Result<(Cost, Cost)> {
        let mut redis = server.connect()?;
        for _ in 0..ATTEMPTS {
            self.copy(&mut redis, accounts)?;
            let window = clock(&mut redis)? - self.oldest - 1;
            let admit = self.run(server, accounts, self.fill.limit, window, is_admitted)?;
            let refuse = self.run(server, accounts, self.fill.held, LONG, is_refused)?;
            if let (Some(admit), Some(refuse)) = (admit, refuse) {
                return Ok((admit, refuse));
            }
            eprintln!("a pass of {} was disturbed and is repeated", self.candidate.name);
        }
        bail!("{} was disturbed {ATTEMPTS} times: the machine is too busy to measure on", self.candidate.name)
    }

    /// How many writes, and how many bytes, reach a replica for each request that is admitted.
    pub(crate) fn replication(&self, server: &Server, replica: &Server) -> anyhow::Result<(f64, f64)> {
        const ACCOUNTS: u32 = 500;
        let mut redis = server.connect()?;
        self.copy(&mut redis, ACCOUNTS as usize)?;
        let (bytes_before, writes_before) = (replicated(server, replica)?, writes(replica)?);
        let window = clock(&mut redis)? - self.oldest - 1;
        let admitted = self.run(server, ACCOUNTS as usize, self.fill.limit, window, is_admitted)?;
        admitted.context("the machine is too busy to measure on")?;
        let (bytes, writes) = (replicated(server, replica)? - bytes_before, writes(replica)? - writes_before);
        Ok((writes as f64 / f64::from(ACCOUNTS), bytes as f64 / f64::from(ACCOUNTS)))
    }

    fn copy(&self, redis: &mut redis::Connection, accounts: usize) -> anyhow::Result<()> {
        let mut copies = redis::pipe();
        for account in 0..accounts {
            for part in ["", ":tally"] {
                let (from, to) = (format!("{}{part}", self.key()), format!("account:{account}{part}"));
                copies.cmd("COPY").arg(from).arg(to).arg("REPLACE").ignore();
            }
        }
        Ok(copies.exec(redis)?)
    }

    /// One decision at each account; nothing when a reply is none that is expected.
    fn run(
        &self,
        server: &Server,
        accounts: usize,
        limit: u32,
        window: u64,
        expected: fn(Option<(bool, i64)>, Fill) -> bool,
    ) -> anyhow::Result<Option<Cost>> {
        let candidate = self.candidate;
        let (is_window, fill) = (self.candidate.is_window(), self.fill);
        let decisions = if is_window { accounts } else { accounts * FLOOR_TIMES };
        let commands: Vec<Vec<u8>> = (0..decisions)
            .map(|n| self.candidate.decision(&format!("account:{}", n % accounts), limit, window, 1))
            .map(|decision| decision.get_packed_command())
            .collect();
        let connections = (0..CONNECTIONS).map(|_| server.connect()).collect::<Result<Vec<_>, _>>()?;
        let (cpu, began) = (server.cpu()?, Instant::now());
        let as_expected = thread::scope(|scope| {
            let parts = commands.chunks(decisions.div_ceil(CONNECTIONS));
            let workers: Vec<_> = parts
                .zip(connections)
                .map(|(part, mut redis)| {
                    scope.spawn(move || -> redis::RedisResult<bool> {
                        let mut as_expected = true;
                        for batch in part.chunks(DEPTH) {
                            let replies = redis.req_packed_commands(&batch.concat(), 0, batch.len())?;
                            as_expected &=
                                !is_window || replies.iter().all(|reply| expected(candidate.decided(reply), fill));
                        }
                        Ok(as_expected)
                    })
                })
                .collect();
            let outcomes = workers.into_iter().map(|worker| worker.join().expect("a worker does not panic"));
            outcomes.collect::<redis::RedisResult<Vec<bool>>>()
        })?;
        let took = began.elapsed().as_secs_f64();
        let cpu = (server.cpu()? - cpu).as_secs_f64();
        let cost = Cost { cpu: cpu * 1e6 / decisions as f64, rate: decisions as f64 / took };
        Ok(as_expected.iter().all(|all| *all).then_some(cost))
    }
}

/// Admitted in the place of one that left.
fn is_admitted(decided: Option<(bool, i64)>, fill: Fill) -> bool {
    decided == Some((true, i64::from(fill.limit - fill.held)))
}

fn is_refused(decided: Option<(bool, i64)>, _: Fill) -> bool {
    decided.is_some_and(|(admitted, _)| !admitted)
}

/// The server's clock in ms.
fn clock(redis: &mut redis::Connection) -> redis::RedisResult<u64> {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(redis)?;
    Ok(seconds * 1000 + micros / 1000)
}

/// How many bytes were replicated, once the replica has them all.
fn replicated(server: &Server, replica: &Server) -> anyhow::Result<u64> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        let there = info(replica, "replication")?;
        let (sent, arrived) = (number(&info(server, "replication")?, "master_repl_offset:")?, "slave_repl_offset:");
        if there.contains("master_link_status:up") && number(&there, arrived)? == sent {
            return Ok(sent);
        }
        thread::sleep(Duration::from_millis(20));
    }
    bail!("the replica does not catch up")
}

/// How many writes a replica was sent, without what holds them together.
fn writes(replica: &Server) -> anyhow::Result<u64> {
    let info = info(replica, "commandstats")?;
    let not_written = ["info", "ping", "select", "multi", "exec", "client", "command", "copy", "replconf"];
    let calls = info.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
    let calls = calls.filter(|(command, _)| not_written.iter().all(|name| !command.starts_with(name)));
    calls.map(|(_, line)| number(line, "calls=")).sum()
}

fn info(server: &Server, section: &str) -> redis::RedisResult<String> {
    redis::cmd("INFO").arg(section).query(&mut server.connect()?)
}

fn number(text: &str, name: &str) -> anyhow::Result<u64> {
    let (_, rest) = text.split_once(name).with_context(|| format!("INFO tells no {name}"))?;
    let digits = rest.split(|character: char| !character.is_ascii_digit()).next().unwrap_or_default();
    Ok(digits.parse()?)
}
