//! Which node looks after a tenant of the registry: watches its database, delivers its webhooks and inspects it.
//!
//! Of the nodes that can, the one with the highest weight is the tenant's *keeper*, and the next one its *deputy*. A weight is a
//! hash of the node and the tenant, so each node gets its share, and when one comes or goes only its own tenants move. Whoever
//! looks after a tenant on Postgres asks its server once a second what was written, so the tenants of one server are divided
//! between a few nodes, chosen in the same way. Nodes need not agree: leases in the tenants' databases decide who sends an event. If two take themselves for the keeper, both look;
//! if none does, the deputy delivers what is still due after a while.
//!
//! A tenant of a file is looked after by every node that has the file.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::config::TenantConfig;
use crate::store::registry::KeepingNode;

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

/// Between how many nodes the tenants of one database server are divided.
///
/// Larger: as many nodes ask the server once a second what was written. Smaller: all the tenants of a server are the work of few
/// nodes, however many there are.
const OF_A_SERVER: usize = 4;

/// What a node has to do for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// It looks after the tenant.
    Keeper,
    /// It does so if the keeper does not.
    Deputy,
    /// Others look after the tenant.
    Nothing,
}

/// A number that looks random and is the same in every version of this program (FNV-1a).
fn hash_of(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Mixes the bits of two hashes (the finalizer of `SplitMix64`).
fn weight(tenant: u64, node: u64) -> u64 {
    let mut mixed = tenant ^ node.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A node that looks after tenants, as the choice sees it.
#[derive(Clone, Debug)]
struct Candidate {
    id: String,
    hash: u64,
    /// The tenants that it can't look after.
    unable: Arc<HashSet<String>>,
    /// The mark of that list.
    mark: String,
}

impl Candidate {
    fn new(id: &str, unable: HashSet<String>, mark: String) -> Self {
        Self { id: id.to_owned(), hash: hash_of(id), unable: Arc::new(unable), mark }
    }

    /// What the choice between nodes is made by: for a tenant, or for a server.
    fn weight(&self, of: u64) -> (u64, &str) {
        (weight(of, self.hash), &self.id)
    }
}

/// The duty of a node for a tenant, next to the `others` that look after tenants. If none can, each is tried. `server` is a hash
/// of the tenant's database server, if it has one.
fn duty(own: &Candidate, others: &[Candidate], slug: &str, server: Option<u64>) -> Duty {
    let is_able = |node: &Candidate| !node.unable.contains(slug);
    let only_able = is_able(own) || others.iter().any(is_able);
    if only_able && !is_able(own) {
        return Duty::Nothing;
    }
    let mut others: Vec<_> = others.iter().filter(|node| !only_able || is_able(node)).collect();
    if let Some(server) = server
        && others.len() >= OF_A_SERVER
    {
        let by_weight = |one: &&Candidate, other: &&Candidate| other.weight(server).cmp(&one.weight(server));
        // Before the last of as many others, those that outweigh it; with this node, they are enough.
        let (before, last, _) = others.select_nth_unstable_by(OF_A_SERVER - 1, by_weight);
        if last.weight(server) > own.weight(server) {
            return Duty::Nothing;
        }
        others = before.to_vec();
    }
    let tenant = hash_of(slug);
    match others.iter().filter(|node| node.weight(tenant) > own.weight(tenant)).count() {
        0 => Duty::Keeper,
        1 => Duty::Deputy,
        _ => Duty::Nothing,
    }
}

/// How many tenants a node looks after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptTenants {
    /// As their keeper.
    pub keeper: usize,
    /// As their deputy.
    pub deputy: usize,
    /// Between how many nodes tenants are divided, this one included.
    pub nodes: usize,
}

/// The nodes that look after tenants, as this one sees them.
#[derive(Debug)]
pub struct Keepers {
    own_id: String,
    nodes: ArcSwap<Nodes>,
    seen: Mutex<HashMap<String, Seen>>,
    unable: Mutex<BTreeSet<Arc<str>>>,
    /// Whether this node looks after tenants.
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

    /// Takes its share from now on. Until then it looks after tenants only as long as no other node does.
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

    /// Notes whether this node can look after tenants. Returns whether others have to know.
    pub(super) fn note_able<'t>(&self, tenants: impl IntoIterator<Item = (&'t Arc<str>, bool)>) -> bool {
        let mut unable = lock(&self.unable);
        let mut is_changed = false;
        for (slug, is_able) in tenants {
            is_changed |= if is_able { unable.remove(slug) } else { unable.insert(Arc::clone(slug)) };
        }
        is_changed
    }

    /// Whether this node can't look after a tenant.
    #[must_use]
    pub fn is_unable(&self, slug: &str) -> bool {
        lock(&self.unable).contains(slug)
    }

    /// What this node can't look after, with those of `refused`, and the mark of that list. None if it looks after none.
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

    fn candidate(id: &str, unable: &[&str]) -> Candidate {
        Candidate::new(id, unable.iter().map(ToString::to_string).collect(), String::new())
    }

    /// The keeper and the deputy of each tenant, as the nodes see it themselves.
    fn chosen(nodes: &[Candidate], tenants: usize) -> Vec<[Option<String>; 2]> {
        chosen_on(nodes, tenants, None)
    }

    /// The same for tenants that all have their databases on one server.
    fn chosen_on(nodes: &[Candidate], tenants: usize, server: Option<u64>) -> Vec<[Option<String>; 2]> {
        let chosen = |slug: String| {
            let mut found = [None, None];
            for own in nodes {
                let others: Vec<_> = nodes.iter().filter(|node| node.id != own.id).cloned().collect();
                let place = match duty(own, &others, &slug, server) {
                    Duty::Keeper => &mut found[0],
                    Duty::Deputy => &mut found[1],
                    Duty::Nothing => continue,
                };
                assert_eq!(place.replace(own.id.clone()), None, "only one");
            }
            found
        };
        (0..tenants).map(|tenant| chosen(format!("tenant-{tenant}"))).collect()
    }

    #[test]
    fn each_tenant_has_one_keeper_and_one_deputy_and_each_node_its_share() {
        let ids = ["5f0c", "5f0d", "90aa", "c3d1", "ffff"];
        let nodes = ids.map(|id| candidate(id, &[]));
        let chosen = chosen(&nodes, 2_000);
        for place in 0..2 {
            for id in ids {
                let share = chosen.iter().filter(|of| of[place].as_deref() == Some(id)).count();
                assert!((320..480).contains(&share), "{id} has {share} of 2,000");
            }
        }
        assert!(chosen.iter().all(|[keeper, deputy]| keeper.is_some() && deputy.is_some()));
    }

    #[test]
    fn when_a_node_goes_only_its_tenants_move_and_to_their_deputies() {
        let nodes = ["5f0c", "5f0d", "90aa", "c3d1"].map(|id| candidate(id, &[]));
        let (before, after) = (chosen(&nodes, 1_000), chosen(&nodes[1..], 1_000));
        for (before, after) in before.iter().zip(&after) {
            let [keeper, deputy] = before;
            let is_gone = keeper.as_deref() == Some("5f0c");
            assert_eq!(&after[0], if is_gone { deputy } else { keeper });
        }
    }

    #[test]
    fn the_tenants_of_a_server_are_divided_between_four_nodes_and_servers_between_all() {
        let ids: Vec<String> = (0..20).map(|node| format!("{node:016x}")).collect();
        let nodes: Vec<_> = ids.iter().map(|id| candidate(id, &[])).collect();
        let mut used = HashSet::new();
        for server in 0..40 {
            let chosen = chosen_on(&nodes, 100, Some(hash_of(&format!("server-{server}:5432"))));
            let of_server: HashSet<_> = chosen.iter().flatten().flatten().cloned().collect();
            assert_eq!(of_server.len(), OF_A_SERVER, "server {server}");
            for place in 0..2 {
                let share = |id: &String| chosen.iter().filter(|of| of[place].as_ref() == Some(id)).count();
                assert!(of_server.iter().map(share).all(|share| (10..45).contains(&share)), "server {server}");
            }
            used.extend(of_server);
        }
        assert_eq!(used.len(), nodes.len());
        assert_eq!(chosen_on(&nodes[..4], 50, Some(7)), chosen(&nodes[..4], 50), "four divide all");
    }

    #[test]
    fn when_a_node_of_a_server_goes_another_takes_its_place_and_each_tenant_has_a_keeper() {
        let ids: Vec<String> = (0..9).map(|node| format!("{node:016x}")).collect();
        let nodes: Vec<_> = ids.iter().map(|id| candidate(id, &[])).collect();
        let of = |nodes: &[Candidate]| -> HashSet<String> {
            chosen_on(nodes, 200, Some(7)).into_iter().flat_map(|of| of.map(|id| id.expect("both are there"))).collect()
        };
        let before = of(&nodes);
        for gone in &before {
            let left: Vec<_> = nodes.iter().filter(|node| node.id != *gone).cloned().collect();
            let after = of(&left);
            assert_eq!((after.len(), after.intersection(&before).count()), (OF_A_SERVER, OF_A_SERVER - 1));
        }
    }

    #[test]
    fn a_node_that_cannot_is_passed_over_unless_no_node_can() {
        let unable = ["tenant-0"];
        let nodes = ["5f0c", "5f0d", "90aa"].map(|id| candidate(id, &[]));
        let [[keeper, deputy]] = chosen(&nodes, 1).try_into().unwrap();
        let without_keeper: Vec<_> = nodes
            .iter()
            .map(|node| candidate(&node.id, if Some(&node.id) == keeper.as_ref() { &unable } else { &[] }))
            .collect();
        let [[next, _]] = chosen(&without_keeper, 1).try_into().unwrap();
        assert_eq!(next, deputy);
        let none = nodes.clone().map(|node| candidate(&node.id, &unable));
        assert_eq!(chosen(&none, 1), [[keeper, deputy]]);
    }

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
