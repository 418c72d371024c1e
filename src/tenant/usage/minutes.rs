//! The minutes of the last hour, added up over the nodes through Redis.
//!
//! Each node writes what it counted as absolute numbers: a hash for each account and hour, and in it a field for each
//! minute and node. So writing twice changes nothing, no node changes a field of another, and Redis forgets an hour by
//! itself. Written behind by a task, several accounts in a call, and never for a request. Without Redis a node knows its
//! own minutes only, and reports it ([`NodesIncluded`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use rand::RngExt;
use redis::{Pipeline, RedisResult};

use super::{MINUTES, MinuteUsage, RateOutcome};
use crate::background::{Run, Task};
use crate::quota::{Account, Interface};
use crate::shared::{BackgroundCall, RedisConnections};
use crate::store::{DatabaseIdentity, RequestCounts};
use crate::tenant::last_used::minute_of;
use crate::tenant::{Tenant, Token, Tokens};

/// How often the minutes are published.
///
/// Larger: the chart shows requests of other nodes later. Smaller: Redis gets more writes.
const INTERVAL: Duration = Duration::from_secs(5);

/// How many accounts one call writes.
///
/// Larger: a call may exceed the time limit of Redis, which closes the connection that requests use. Smaller: more calls.
const ACCOUNTS_A_CALL: usize = 50;

/// How long Redis keeps an hour after its last write. Larger: it keeps what no chart shows. Smaller: the beginning of the last hour
/// is gone.
const KEPT_HOURS: i64 = 2;

/// The same in milliseconds.
const KEPT: i64 = KEPT_HOURS * 60 * 60 * 1000;

/// How long a page waits for Redis.
///
/// Larger: a page takes longer while Redis hangs. Smaller: with a slow Redis it shows one node only.
const READ_LIMIT: Duration = Duration::from_millis(500);

/// Which nodes a chart of the last hour includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodesIncluded {
    /// All of them.
    AllNodes,
    /// Only this node: no Redis is configured.
    ThisNode,
    /// Only this node: Redis is unreachable.
    ThisNodeForNow,
}

/// Counts requests, and shares the minutes of all tenants with the other nodes.
#[derive(Debug)]
pub struct SharedMinutes {
    connections: Option<Arc<RedisConnections>>,
    /// Distinguishes this run of this node from all others.
    node: String,
    changed: Mutex<Vec<Changed>>,
}

/// A tenant with minutes to publish. Not the tenant itself: a database that is no longer configured is closed when
/// nothing refers to its tenant.
#[derive(Clone, Debug)]
struct Changed {
    tokens: Arc<Tokens>,
    account: Arc<Account>,
}

impl SharedMinutes {
    /// Shares minutes through Redis, if it is configured.
    #[must_use]
    pub fn new(connections: Option<Arc<RedisConnections>>) -> Self {
        let node = format!("{:012x}", rand::rng().random::<u64>() >> 16);
        Self { connections, node, changed: Mutex::default() }
    }

    /// Counts a request of a tenant.
    pub fn count(&self, tenant: &Tenant, token: &Token, outcome: RateOutcome) {
        let is_first = tenant.tokens.usage.count(token.id, outcome, Timestamp::now());
        // A request is admitted or refused only after the account is known.
        if is_first
            && self.connections.is_some()
            && let Some(account) = tenant.shared_account()
        {
            self.changed().push(Changed { tokens: Arc::clone(&tenant.tokens), account });
        }
    }

    /// The minutes of the last hour that had requests, oldest first, and which nodes they include.
    pub async fn last_hour(&self, tenant: &Tenant, now: Timestamp) -> (Vec<MinuteUsage>, NodesIncluded) {
        let Some(connections) = &self.connections else {
            return (tenant.tokens.usage.minutes(now), NodesIncluded::ThisNode);
        };
        let reading = tokio::time::timeout(READ_LIMIT, self.read(connections, tenant, now));
        match reading.await.ok().flatten() {
            Some(minutes) => (minutes, NodesIncluded::AllNodes),
            None => (tenant.tokens.usage.minutes(now), NodesIncluded::ThisNodeForNow),
        }
    }

    async fn read(&self, connections: &RedisConnections, tenant: &Tenant, now: Timestamp) -> Option<Vec<MinuteUsage>> {
        let account = tenant.account(Interface::Api)?;
        let (last, first) = (minute_of(now), minute_of(now) - MINUTES + 1);
        let mut reads = Pipeline::new();
        let mut hours = vec![first.div_euclid(MINUTES), last.div_euclid(MINUTES)];
        hours.dedup();
        for hour in &hours {
            reads.cmd("HGETALL").arg(key(account.id(), *hour));
        }
        let key = key(account.id(), hours[0]);
        let read = async |mut redis| Ok(reads.query_async::<Vec<Vec<(String, String)>>>(&mut redis).await.ok());
        let fields = connections.call(&key, read).await.ok().flatten()?.into_iter().flatten();
        let mut sums: BTreeMap<i64, BTreeMap<i64, RequestCounts>> = BTreeMap::new();
        // What this node knows of itself is newer than what it published.
        let others = fields.filter_map(|(field, counts)| {
            let (minute, node) = field.split_once('.')?;
            (node != self.node).then_some((minute.parse().ok()?, parse(&counts)))
        });
        let own = tenant.tokens.usage.minutes(now).into_iter().map(|own| (own.minute, own.tokens));
        for (minute, tokens) in others.chain(own).filter(|(minute, _)| (first..=last).contains(minute)) {
            let sums = sums.entry(minute).or_default();
            tokens.into_iter().for_each(|(token, counts)| sums.entry(token).or_default().add(counts));
        }
        let minutes = sums.into_iter();
        Some(minutes.map(|(minute, tokens)| MinuteUsage { minute, tokens: tokens.into_iter().collect() }).collect())
    }

    /// Publishes what changed. Returns whether Redis took all of it; what it did not is published the next time.
    pub async fn publish(&self) -> bool {
        let Some(connections) = &self.connections else { return true };
        let mut changed = std::mem::take(&mut *self.changed());
        // Nobody else has those of a tenant that was removed, of which nothing may come back.
        changed.retain(|changed| Arc::strong_count(&changed.tokens) > 1);
        let accounts = if connections.carry_many_keys() { ACCOUNTS_A_CALL } else { 1 };
        let mut all = true;
        for some in changed.chunks(accounts) {
            all &= self.publish_some(connections, some).await;
        }
        all
    }

    async fn publish_some(&self, connections: &RedisConnections, changed: &[Changed]) -> bool {
        let taken: Vec<_> = changed.iter().map(|changed| (changed, changed.tokens.usage.take_unpublished())).collect();
        let (mut writes, mut first) = (Pipeline::new(), None);
        for (changed, minutes) in &taken {
            for by_hour in minutes.chunk_by(|one, next| hour_of(one) == hour_of(next)) {
                let key = key(changed.account.id(), hour_of(&by_hour[0]));
                let write = writes.cmd("HSET").arg(&key);
                for MinuteUsage { minute, tokens } in by_hour {
                    write.arg(format!("{minute}.{}", self.node)).arg(text(tokens));
                }
                write.ignore().cmd("PEXPIRE").arg(&key).arg(KEPT).ignore();
                first.get_or_insert(key);
            }
        }
        let Some(first) = first else { return true };
        // A refusal says nothing about the connection: an ACL may lack the commands.
        let write = async |mut redis| match writes.query_async::<()>(&mut redis).await {
            Err(refusal) if refusal.code().is_some() => Ok(Err(refusal)),
            outcome => outcome.map(Ok),
        };
        let outcome: Result<RedisResult<()>, _> = connections.call(&first, write).await;
        let cause = match outcome {
            Ok(Ok(())) => {
                connections.note_background(BackgroundCall::Usage, None);
                return true;
            }
            Ok(Err(refusal)) => {
                let cause = refusal.to_string();
                connections.note_background(BackgroundCall::Usage, Some(&cause));
                cause
            }
            Err(failure) => failure.to_string(),
        };
        tracing::debug!(cause, "could not publish usage by the minute; retrying");
        for (changed, minutes) in taken {
            if changed.tokens.usage.put_back(&minutes) {
                self.changed().push(changed.clone());
            }
        }
        false
    }

    fn changed(&self) -> MutexGuard<'_, Vec<Changed>> {
        // A list is consistent between any two calls.
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes the minutes regularly.
#[derive(Debug)]
pub struct PublishMinutes(pub Arc<SharedMinutes>);

impl Task for PublishMinutes {
    const NAME: &'static str = "usage";

    fn interval(&self) -> Duration {
        INTERVAL
    }

    async fn run(&mut self) -> Run {
        self.0.publish().await;
        // An unreachable Redis has an alert of its own.
        Run::Succeeded
    }
}

/// Every key that Redis may have of an account's minutes.
#[must_use]
pub fn keys_of(slug: &str, database: &DatabaseIdentity, now: Timestamp) -> Vec<String> {
    let account = Account::new(slug, database, Interface::Api);
    let hour = minute_of(now).div_euclid(MINUTES);
    // Clocks of nodes differ.
    (hour - KEPT_HOURS - 1..=hour + 1).map(|hour| key(account.id(), hour)).collect()
}

fn hour_of(usage: &MinuteUsage) -> i64 {
    usage.minute.div_euclid(MINUTES)
}

fn key(account: &str, hour: i64) -> String {
    format!("formgate:minutes:{account}:{hour}")
}

/// Numbers of requests as a field holds them: `<token>:<admitted>:<refused>`, joined by commas.
fn text(tokens: &[(i64, RequestCounts)]) -> String {
    let token = |(token, counts): &(i64, RequestCounts)| format!("{token}:{}:{}", counts.admitted, counts.refused);
    tokens.iter().map(token).collect::<Vec<_>>().join(",")
}

/// Leaves out what a newer version may have written in another form.
fn parse(text: &str) -> Vec<(i64, RequestCounts)> {
    let token = |text: &str| {
        let mut numbers = text.split(':').map(|number| number.parse::<i64>().ok());
        let (token, admitted, refused) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some((token, RequestCounts { admitted, refused }))
    };
    text.split(',').filter_map(token).collect()
}
