//! Which node is the keeper of a tenant of the registry: watches its database, delivers its webhooks and inspects it.
//!
//! Of the nodes that can, the one with the highest weight is the tenant's *keeper*, and the next one its *deputy*. A weight is a
//! hash of the node and the tenant, so each node gets its share, and when one comes or goes only its own tenants move. Whoever
//! looks after a tenant on Postgres asks its server once a second what was written, so the tenants of one server are divided
//! between a few nodes, chosen in the same way (`choice`). Nodes need not agree: leases in the tenants' databases decide who sends
//! an event. If two nodes act as the keeper, both poll; if none does, the deputy delivers what is still due after a while.
//!
//! Every node that has a file keeps its tenants.

mod choice;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::config::TenantConfig;
use crate::store::registry::KeepingNode;
pub use choice::Duty;
use choice::{Candidate, duty, hash_of, weight};

/// How long a node that no longer writes still looks after its tenants, in the eyes of the others. It is several times as
/// long as the time between two beats.
///
/// Larger: after a crash its deputies do its work for longer, each event late. Smaller: a node that stalls for a moment is
/// replaced, and what it did is done twice.
const GONE_AFTER: Duration = Duration::from_secs(12);

/// The same for a node that was never seen to write: its row may be that of a process that died before.
///
/// Larger: after a crash of all nodes, their successors leave tenants to the dead for longer. Smaller: a node that starts
/// looks after the tenants of the others for a moment.
const UNSEEN_GONE_AFTER: Duration = Duration::from_secs(3);

/// How many tenants a node keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptTenants {
    /// As their keeper.
    pub keeper: usize,
    /// As their deputy.
    pub deputy: usize,
    /// Between how many nodes tenants are divided, this one included.
    pub nodes: usize,
}

/// The nodes that keep tenants, as this one sees them.
#[derive(Debug)]
pub struct Keepers {
    own_id: String,
    nodes: ArcSwap<Nodes>,
    seen: Mutex<HashMap<String, Seen>>,
    unable: Mutex<BTreeSet<Arc<str>>>,
    /// Whether this node keeps tenants.
    is_keeping: AtomicBool,
    /// Grows with each change of what this node has to do.
    generation: AtomicU64,
}

/// This node and the others that live.
#[derive(Debug)]
struct Nodes {
    own: Candidate,
    others: Vec<Candidate>,
}

/// When a node was seen.
#[derive(Debug)]
struct Seen {
    beat: String,
    mark: String,
    /// When its beat changed last, or when it was first seen.
    at: Instant,
    /// Whether it was seen to write.
    is_confirmed: bool,
}

impl Seen {
    fn is_present(&self, now: Instant) -> bool {
        now.duration_since(self.at) < if self.is_confirmed { GONE_AFTER } else { UNSEEN_GONE_AFTER }
    }
}

impl Keepers {
    /// A node that sees no other one, and takes no share yet.
    pub(super) fn new(own_id: &str) -> Self {
        let own = Candidate::new(own_id, HashSet::new(), String::new());
        Self {
            own_id: own_id.to_owned(),
            nodes: ArcSwap::from_pointee(Nodes { own, others: Vec::new() }),
            seen: Mutex::default(),
            unable: Mutex::default(),
            is_keeping: AtomicBool::new(false),
            generation: AtomicU64::new(0),
        }
    }

    /// What this node has to do for a tenant.
    #[must_use]
    pub fn duty(&self, tenant: &TenantConfig) -> Duty {
        match tenant.origin.is_registered() {
            true => self.duty_of(&tenant.slug, tenant.database.server_hash()),
            false => Duty::Keeper,
        }
    }

    fn duty_of(&self, slug: &str, server: Option<u64>) -> Duty {
        let nodes = self.nodes.load();
        if !self.is_keeping.load(Ordering::Acquire) && !nodes.others.is_empty() {
            return Duty::Nothing;
        }
        duty(&nodes.own, &nodes.others, slug, server)
    }

    /// Grows whenever the duty for any tenant may be another one.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Between how many nodes tenants are divided, this one included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.load().others.len() + 1
    }

    /// Counts what this node has to do for tenants.
    pub(super) fn count<'t>(&self, tenants: impl Iterator<Item = &'t Arc<TenantConfig>>) -> KeptTenants {
        let mut kept = KeptTenants { nodes: self.nodes(), ..KeptTenants::default() };
        for tenant in tenants {
            match self.duty(tenant) {
                Duty::Keeper => kept.keeper += 1,
                Duty::Deputy => kept.deputy += 1,
                Duty::Nothing => {}
            }
        }
        kept
    }

    /// Takes its share from now on. Until then it keeps tenants only as long as no other node does.
    pub fn begin(&self) {
        if !self.is_keeping.swap(true, Ordering::AcqRel) {
            self.note_change();
        }
    }

    /// Leaves tenants to the other nodes.
    pub(super) fn rest(&self) {
        if self.is_keeping.swap(false, Ordering::AcqRel) {
            self.note_change();
        }
    }

    /// Notes whether this node can keep tenants. Returns whether others have to know.
    pub(super) fn note_able<'t>(&self, tenants: impl IntoIterator<Item = (&'t Arc<str>, bool)>) -> bool {
        let mut unable = lock(&self.unable);
        let mut is_changed = false;
        for (slug, is_able) in tenants {
            is_changed |= if is_able { unable.remove(slug) } else { unable.insert(Arc::clone(slug)) };
        }
        is_changed
    }

    /// Whether this node can't keep a tenant.
    #[must_use]
    pub fn is_unable(&self, slug: &str) -> bool {
        lock(&self.unable).contains(slug)
    }

    /// The tenants that this node can't keep, including `refused`, and the mark of that list. `None` if it keeps none.
    pub(super) fn own_list(&self, refused: impl Iterator<Item = String>) -> Option<(String, Vec<String>)> {
        if !self.is_keeping.load(Ordering::Acquire) {
            return None;
        }
        let mut list: Vec<String> = lock(&self.unable).iter().map(ToString::to_string).chain(refused).collect();
        list.sort_unstable();
        list.dedup();
        let mark = format!("{:016x}", list.iter().fold(list.len() as u64, |mark, slug| weight(hash_of(slug), mark)));
        Some((mark, list))
    }

    /// Notes which nodes wrote, and returns those whose lists have to be read.
    pub(super) fn note_seen(&self, nodes: Vec<KeepingNode>) -> Vec<String> {
        let now = Instant::now();
        let mut seen = lock(&self.seen);
        let mut before = std::mem::take(&mut *seen);
        for node in nodes.into_iter().filter(|node| node.id != self.own_id) {
            let KeepingNode { id, beat, mark, is_recent } = node;
            let known = before.remove(&id);
            let (at, is_confirmed) = match known {
                Some(known) if known.beat == beat => (known.at, known.is_confirmed),
                Some(_) => (now, true),
                None if is_recent => (now, false),
                // It may write again, and is confirmed then.
                None => (now.checked_sub(UNSEEN_GONE_AFTER).unwrap_or(now), false),
            };
            seen.insert(id, Seen { beat, mark, at, is_confirmed });
        }
        let known = self.nodes.load();
        let marks: HashMap<_, _> = known.others.iter().map(|node| (&node.id, &node.mark)).collect();
        let present = seen.iter().filter(|(_, seen)| seen.is_present(now));
        present.filter(|(id, seen)| marks.get(id) != Some(&&seen.mark)).map(|(id, _)| id.clone()).collect()
    }

    /// Takes over the lists that were read, and leaves out the nodes that are gone. `own` is this node's own list.
    pub(super) fn divide(&self, read: Vec<(String, String, Vec<String>)>, own: Option<(String, Vec<String>)>) {
        let now = Instant::now();
        let before = self.nodes.load_full();
        let mut lists: HashMap<String, Candidate> =
            before.others.iter().map(|node| (node.id.clone(), node.clone())).collect();
        for (id, mark, unable) in read {
            let node = Candidate::new(&id, unable.into_iter().collect(), mark);
            lists.insert(id, node);
        }
        let mut others: Vec<_> = {
            let seen = lock(&self.seen);
            let is_present = |node: &Candidate| seen.get(&node.id).is_some_and(|seen| seen.is_present(now));
            lists.into_values().filter(is_present).collect()
        };
        others.sort_unstable_by(|one, other| one.id.cmp(&other.id));
        let own = match own {
            Some((mark, _)) if mark == before.own.mark => before.own.clone(),
            Some((mark, unable)) => Candidate::new(&self.own_id, unable.into_iter().collect(), mark),
            None => before.own.clone(),
        };
        let marks =
            |nodes: &[Candidate]| nodes.iter().map(|node| (node.id.clone(), node.mark.clone())).collect::<Vec<_>>();
        if own.mark != before.own.mark || marks(&others) != marks(&before.others) {
            if others.len() != before.others.len() {
                tracing::info!(
                    nodes = others.len() + 1,
                    "tenants of the registry are divided between the nodes that live"
                );
            }
            self.nodes.store(Arc::new(Nodes { own, others }));
            self.note_change();
        }
    }

    pub(super) fn note_change(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, beat: &str, is_recent: bool) -> KeepingNode {
        KeepingNode { id: id.to_owned(), beat: beat.to_owned(), mark: String::new(), is_recent }
    }

    fn see(keepers: &Keepers, nodes: Vec<KeepingNode>) -> usize {
        let read = keepers.note_seen(nodes);
        let read = read.into_iter().map(|id| (id, String::new(), Vec::new())).collect();
        keepers.divide(read, None);
        keepers.nodes()
    }

    #[test]
    fn a_node_counts_while_it_writes_and_one_of_an_earlier_crash_does_not() {
        let keepers = Keepers::new("own");
        assert_eq!(see(&keepers, vec![row("own", "1", true)]), 1);
        assert_eq!(see(&keepers, vec![row("own", "2", true), row("old", "1", false)]), 1);
        let generation = keepers.generation();
        assert_eq!(see(&keepers, vec![row("new", "1", true), row("old", "1", false)]), 2);
        assert_eq!(keepers.generation(), generation + 1);
        assert_eq!(see(&keepers, vec![row("new", "2", true), row("old", "2", true)]), 3, "it writes again");
        assert_eq!(see(&keepers, vec![row("old", "2", true)]), 2, "one has ended");
    }

    #[test]
    fn a_node_that_ends_leaves_tenants_to_the_others_and_keeps_them_without() {
        let keepers = Keepers::new("own");
        keepers.begin();
        assert_eq!(keepers.own_list(std::iter::empty()).map(|(_, list)| list), Some(Vec::new()));
        keepers.rest();
        assert_eq!(keepers.duty_of("acme", None), Duty::Keeper);
        assert_eq!(keepers.own_list(std::iter::empty()), None);
        see(&keepers, vec![row("new", "1", true)]);
        assert_eq!(keepers.duty_of("acme", None), Duty::Nothing);
    }
}
