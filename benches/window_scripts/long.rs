//! What a window of 100,000 requests costs Redis, compared with one of 60: a request, `GET /me`, which reports the usage,
//! and a refusal, which reports it too.
//!
//! An account with the largest limit must not slow down the others, so each of these should cost about the same whatever the
//! limit is.

use redis::{Connection, ConnectionLike};

use crate::candidate::PACKED_LOG;
use crate::redis_server::Server;
use crate::rounds::Rounds;

/// Milliseconds of the window. Nothing leaves it meanwhile.
const WINDOW: u64 = 3_600_000;

/// Requests of each kind in a round, in batches like those of the gateway.
const REQUESTS: usize = 3_200;
const BATCH: usize = 32;

/// The shares of a few tokens are reported.
const TOKENS: u32 = 3;

const ROUNDS: usize = 9;

/// What is measured: its name, the operation, and whether the window is full.
pub(crate) const KINDS: [(&str, &str, bool); 3] =
    [("a request", "spend", false), ("`GET /me`", "report", false), ("a refusal", "spend", true)];

/// Microseconds of Redis for each kind, at a limit of 60 and at one of 100,000.
pub(crate) fn measure(server: &Server) -> anyhow::Result<[[Rounds; 2]; 3]> {
    let mut redis = server.connect()?;
    PACKED_LOG.load(&mut redis)?;
    let mut rounds: [[Rounds; 2]; 3] = Default::default();
    // The first round is not counted: it grows the server's buffers.
    for round in 0..=ROUNDS {
        for ((_, operation, is_full), rounds) in KINDS.iter().zip(&mut rounds) {
            for (limit, rounds) in [60, 100_000].into_iter().zip(rounds) {
                let cost = pass(server, &mut redis, limit, operation, *is_full)?;
                if round > 0 {
                    rounds.push(cost);
                }
            }
        }
    }
    Ok(rounds)
}

/// Half of a short window is free and is filled; of a long one, as much as is asked for.
fn pass(server: &Server, redis: &mut Connection, limit: u32, operation: &str, is_full: bool) -> anyhow::Result<f64> {
    let free = if is_full { 0 } else { (limit / 2).min(u32::try_from(REQUESTS)?) };
    let accounts = if is_full { 1 } else { REQUESTS / free as usize + 1 };
    redis::cmd("FLUSHALL").exec(redis)?;
    for account in 0..accounts {
        fill(redis, &key(account), limit - free)?;
        // Counts a long log for the first time.
        redis.req_command(&PACKED_LOG.request(&key(account), limit, WINDOW, "look", 0))?;
    }
    let requests = (0..REQUESTS).map(|n| {
        let account = if is_full { 0 } else { n / free as usize };
        PACKED_LOG.request(&key(account), limit, WINDOW, operation, 1).get_packed_command()
    });
    let requests: Vec<_> = requests.collect();
    let before = server.cpu()?;
    for batch in requests.chunks(BATCH) {
        for reply in redis.req_packed_commands(&batch.concat(), 0, batch.len())? {
            let (admitted, _) = PACKED_LOG.decided(&reply).ok_or_else(|| anyhow::anyhow!("not a window: {reply:?}"))?;
            anyhow::ensure!(admitted != is_full, "a request of {limit} was decided otherwise");
        }
    }
    Ok((server.cpu()? - before).as_secs_f64() * 1e6 / REQUESTS as f64)
}

fn key(account: usize) -> String {
    format!("account:{account}")
}

/// A log of this many requests, made just now.
fn fill(redis: &mut Connection, key: &str, held: u32) -> anyhow::Result<()> {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(redis)?;
    let now = u32::try_from((seconds * 1000 + micros / 1000) % (1 << 32))?;
    let entries: Vec<u8> = (0..held).flat_map(|n| [now.to_be_bytes(), (n % TOKENS).to_be_bytes()].concat()).collect();
    Ok(redis::cmd("SET").arg(key).arg(entries).arg("PX").arg(WINDOW).exec(redis)?)
}
