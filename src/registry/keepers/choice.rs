//! Chooses the keeper of a tenant, by hashes that are the same on every node.

use std::collections::HashSet;
use std::sync::Arc;

/// Between how many nodes the tenants of one database server are divided.
///
/// Larger: as many nodes ask the server once a second what was written. Smaller: all the tenants of a server are the work of few
/// nodes, however many there are.
const OF_A_SERVER: usize = 4;

/// What a node has to do for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// It keeps the tenant.
    Keeper,
    /// It does so if the keeper does not.
    Deputy,
    /// Others keep the tenant.
    Nothing,
}

/// A hash that is the same in every version of this program (FNV-1a).
pub(super) fn hash_of(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Mixes the bits of two hashes (the finalizer of `SplitMix64`).
pub(super) fn weight(tenant: u64, node: u64) -> u64 {
    let mut mixed = tenant ^ node.rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A node that keeps tenants, as the choice sees it.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) id: String,
    hash: u64,
    /// The tenants that it can't keep.
    unable: Arc<HashSet<String>>,
    /// The mark of that list.
    pub(super) mark: String,
}

impl Candidate {
    pub(super) fn new(id: &str, unable: HashSet<String>, mark: String) -> Self {
        Self { id: id.to_owned(), hash: hash_of(id), unable: Arc::new(unable), mark }
    }

    /// The subject of the choice between nodes: a tenant, or a server.
    fn weight(&self, of: u64) -> (u64, &str) {
        (weight(of, self.hash), &self.id)
    }
}

/// The duty of a node for a tenant, given the `others` that keep tenants. If none can, each is tried. `server` is a hash
/// of the tenant's database server, if it has one.
pub(super) fn duty(own: &Candidate, others: &[Candidate], slug: &str, server: Option<u64>) -> Duty {
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
        // The nodes of the server are either this many others, or one fewer and this node.
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
}
