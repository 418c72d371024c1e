//! Whether the gateway should get traffic, and which parts of it don't work. Reads what the parts already know and
//! starts no check.
//!
//! A tenant that can't be served does not make the node unready: the others are served, and another node would do no
//! better. Only from its start, a node is not ready until it serves every row of the registry that another node serves. A
//! Redis that is down makes it unready only if the policy is to deny.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::databases::Databases;
use crate::config::{Mode, OnRedisFailure};
use crate::edge::Certificates;
use crate::edge::admin::{Readiness, Share};
use crate::registry::{Following, KeptTenants, Rows, Unready};
use crate::request::Pipeline;

/// How many tenants are named.
///
/// Larger: a probe that comes every second gets a very large answer. Smaller: fewer faults are visible without the
/// log, which names all.
const NAMED: usize = 100;

/// The state of a part that works.
const OK: &str = "ok";

/// The parts that readiness is read from.
#[derive(Clone, Debug)]
pub(super) struct ReadinessParts {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) certificates: Arc<Certificates>,
    pub(super) databases: Arc<Databases>,
    pub(super) draining: Arc<AtomicBool>,
    /// The policy when Redis fails, if one is configured.
    pub(super) redis: Option<OnRedisFailure>,
    /// The registry, if there is one.
    pub(super) following: Option<Arc<Following>>,
    /// What the node is for.
    pub(super) mode: Mode,
}

impl ReadinessParts {
    pub(super) fn readiness(&self) -> Readiness {
        let metrics = &self.pipeline.metrics;
        let draining = self.draining.load(Ordering::Relaxed);
        let mut ready = !draining;
        let mut parts = BTreeMap::new();
        parts.insert("edge", if draining { "draining" } else { OK }.to_owned());
        let current = metrics.last_reload_successful.get() == 1;
        let config = if current { OK } else { "the last change was refused; the one before it is served" };
        parts.insert("config", config.to_owned());
        if self.mode == Mode::Drill {
            parts.insert("drill", Mode::TURNED_OFF.to_owned());
        }
        if let Some(policy) = self.redis {
            let up = metrics.redis.up.get() == 1;
            ready &= up || policy != OnRedisFailure::Deny;
            let state = match (policy, metrics.redis.shards_down.get()) {
                (_, 0) if up && metrics.redis.evicts.get() == 1 => {
                    "it may evict budgets; set maxmemory-policy to noeviction".to_owned()
                }
                (_, 0) if up && metrics.redis.refuses.get() == 1 => {
                    "it refuses calls of this node; its log has the reason".to_owned()
                }
                (_, 0) if up => OK.to_owned(),
                (_, 1) if up => "1 shard is away".to_owned(),
                (_, down) if up => format!("{down} shards are away"),
                (OnRedisFailure::Local, _) => "away; this node limits alone".to_owned(),
                (OnRedisFailure::Deny, _) => "away; every request is refused".to_owned(),
                (OnRedisFailure::Allow, _) => "away; nothing is limited".to_owned(),
            };
            parts.insert("redis", state);
        }
        let mut tenants = BTreeMap::new();
        parts.insert("databases", note(self.databases.faulty(), &mut tenants));
        let altered = note(self.databases.altered(), &mut tenants);
        if altered != OK {
            parts.insert("schemas", "altered; `formgate check` names the remedy".to_owned());
        }
        parts.insert("certificates", note(self.certificates.faulty(), &mut tenants));
        if let Some(following) = &self.following {
            let (count, refused) = following.refused();
            let first: Vec<_> = refused.iter().take(NAMED).map(|(slug, _)| Arc::clone(slug)).collect();
            note(refused, &mut tenants);
            let state = match summary(count) {
                _ if following.away().is_some() => "away; what was read of it is served".to_owned(),
                _ if following.is_unlisted() => {
                    "it takes no writes of this node; callers do not wait for it".to_owned()
                }
                state => state,
            };
            // The cause of what else there is, often.
            let state = match following.missing_rights() {
                Some(missing) if state == OK => missing,
                Some(missing) => format!("{missing}; {state}"),
                None => state,
            };
            parts.insert("registry", state);
            let unready = following.unready();
            ready &= unready.is_none();
            let rows = match &unready {
                Some(unready) => describe(unready),
                None if count == 0 => OK.to_owned(),
                None => {
                    let until = if following.stays_ready() { "" } else { ", until another node serves them" };
                    format!("this node can't read {}; it is ready{until}", Rows { count, first })
                }
            };
            parts.insert("rows", rows);
        }
        if let Some(domains) = &self.pipeline.domains {
            let failing = note(domains.failing(), &mut tenants);
            let account = domains.unopened_account().map(|_| {
                "the account key can't be opened, see the log; no certificates are obtained or renewed".to_owned()
            });
            let unasked = match domains.unasked() {
                0 => None,
                count => Some(format!("DNS can't be asked for {count}; check the resolvers")),
            };
            let without_account = match domains.without_account() {
                0 => None,
                1 => Some("a CA has deactivated the account: 1 waits for `formgate acme account new`".to_owned()),
                more => Some(format!("a CA has deactivated the account: {more} wait for `formgate acme account new`")),
            };
            let trouble = domains.trouble().map(|cause| format!("can't be checked or renewed: {cause}"));
            let faults = [trouble, Some(failing).filter(|failing| failing != OK), account, without_account, unasked];
            let faults: Vec<_> = faults.into_iter().flatten().collect();
            let state = if faults.is_empty() { OK.to_owned() } else { faults.join("; ") };
            parts.insert("domains", state);
        }
        tenants = tenants.into_iter().take(NAMED).collect();
        let share = self.following.as_ref().map(|following| {
            let KeptTenants { keeper, deputy, nodes } = following.kept();
            Share { keeper, deputy, nodes }
        });
        Readiness { ready, parts, tenants, share }
    }
}

/// Records the tenants for which a part does not work, and returns a summary.
fn note(faulty: impl IntoIterator<Item = (Arc<str>, String)>, tenants: &mut BTreeMap<String, Vec<String>>) -> String {
    let mut count = 0;
    for (tenant, fault) in faulty {
        count += 1;
        tenants.entry(tenant.to_string()).or_default().push(fault);
    }
    summary(count)
}

fn summary(count: usize) -> String {
    match count {
        0 => OK.to_owned(),
        1 => "1 does not work".to_owned(),
        more => format!("{more} do not work"),
    }
}

/// Why the node is not ready yet.
fn describe(unready: &Unready) -> String {
    let (what, rows) = match unready {
        Unready::Starting => return "this node has not compared itself with the others yet".to_owned(),
        Unready::ServesNone(rows) => ("this node serves no tenant; its log has the reason. It can't read", rows),
        Unready::LacksRows(rows) => {
            ("other nodes serve rows that this one can't; its log has the reason. It lacks", rows)
        }
    };
    format!("{what} {rows}")
}
