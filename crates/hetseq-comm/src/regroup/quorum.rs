//! Decisions on sets of ranks: whether a set is a quorum, and which ranks to propose.
//!
//! Pure functions, called by `machine.rs`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::rank_set::RankSet;

/// Returns the number of ranks that a set like `ranks` needs to be a quorum of `world` ranks: more
/// than half, or exactly half including rank 0. Any two quorums have a rank in common.
pub(super) fn needed(ranks: &RankSet, world: usize) -> usize {
    if ranks.contains(0) { world.div_ceil(2) } else { world / 2 + 1 }
}

pub(super) fn is_quorum(ranks: &RankSet, world: usize) -> bool {
    ranks.len() >= needed(ranks, world)
}

/// Returns for each rank the others to which its link is lost, according to one end at least: the
/// other end may not have noticed yet. `lost` holds what each rank has lost; ranks without an entry
/// do not count.
pub(super) fn broken_links(lost: &BTreeMap<usize, &RankSet>) -> BTreeMap<usize, RankSet> {
    let mut broken: BTreeMap<usize, RankSet> = lost.keys().map(|&rank| (rank, RankSet::new())).collect();
    for (&rank, peers) in lost {
        for peer in peers.iter().filter(|peer| lost.contains_key(peer)) {
            broken.entry(rank).or_default().insert(peer);
            broken.entry(peer).or_default().insert(rank);
        }
    }
    broken
}

/// Chooses ranks with links to each other from the keys of `broken`: `proposer` first, then
/// greedily the ranks with the fewest broken links, the lower rank first among equals. In plain
/// rank order, rank 1 with a broken network card could displace all ranks that it has lost.
pub(super) fn clique(proposer: usize, broken: &BTreeMap<usize, RankSet>) -> RankSet {
    let mut order: Vec<(&usize, &RankSet)> = broken.iter().collect();
    order.sort_by_key(|&(&rank, peers)| (Reverse(rank == proposer), peers.len(), rank));
    let mut chosen = RankSet::new();
    for (&rank, peers) in order {
        if peers.iter().all(|peer| !chosen.contains(peer)) {
            chosen.insert(rank);
        }
    }
    chosen
}
