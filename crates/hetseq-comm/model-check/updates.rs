//! An abstract training over the generations: who has applied which sum, and what is published.
//!
//! A generation first gathers the applied updates of all members and resumes from the largest
//! number; the others apply the sums that they lack. Then it sums one more update. A member can
//! apply it once all members have contributed, whether or not they still run. An update is
//! published when all members of the generation have applied it.

use crate::group_state::{GroupState, Status, Violation};
use crate::regroup::RankSet;

/// For each applied update, the generation that summed it.
pub(crate) type Applied = Vec<usize>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Updates {
    generations: Vec<Progress>,
}

/// One generation's progress. What a member has sent counts, also if it crashed later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Progress {
    /// The applied updates of each member at its start, by id; none of a newcomer without state.
    reports: Vec<(usize, Option<Applied>)>,
    contributed: RankSet,
    applied: RankSet,
    /// What all members have applied.
    published: Applied,
}

impl Updates {
    pub(crate) fn new(world: usize, applied: &RankSet) -> Updates {
        let published = if applied.len() == world { vec![0] } else { Vec::new() };
        let first = Progress { applied: applied.clone(), published, ..Progress::default() };
        Updates { generations: vec![first] }
    }

    pub(crate) fn report(&mut self, generation: usize, id: usize, applied: Option<&Applied>) {
        if self.generations.len() <= generation {
            self.generations.resize(generation + 1, Progress::default());
        }
        let reports = &mut self.generations[generation].reports;
        reports.push((id, applied.cloned()));
        reports.sort();
    }
}

impl GroupState {
    fn progress(&self, id: usize) -> &Progress {
        &self.updates.generations[self.nodes[id].generation]
    }

    fn is_training(&self, id: usize) -> bool {
        self.is_running(id) && self.nodes[id].machine.is_none()
    }

    /// Returns whether the reports of all members have arrived.
    pub(crate) fn can_resume(&self, id: usize) -> bool {
        self.is_training(id) && !self.nodes[id].has_resumed && self.progress(id).reports.len() == self.members(id).len()
    }

    pub(crate) fn resume(&mut self, id: usize) {
        let reports = &self.progress(id).reports;
        let applied = || reports.iter().filter_map(|(_, applied)| applied.as_ref());
        // All that had the state of the run are lost.
        let Some(resumed) = applied().max_by_key(|applied| applied.len()).cloned() else {
            return self.leave(id, Status::Stopped);
        };
        if applied().any(|applied| !resumed.starts_with(applied)) {
            self.violation = Some(Violation::TwoLineages);
        }
        let earlier = &self.updates.generations[..self.nodes[id].generation];
        if earlier.iter().any(|progress| !resumed.starts_with(&progress.published)) {
            self.violation = Some(Violation::LostPublished);
        }
        let node = &mut self.nodes[id];
        node.applied = resumed;
        (node.has_resumed, node.has_state) = (true, true);
        self.updates.generations[node.generation].contributed.insert(id);
    }

    /// Generation 0 has applied its update from the start.
    pub(crate) fn can_apply(&self, id: usize) -> bool {
        let (node, progress) = (&self.nodes[id], self.progress(id));
        self.is_training(id)
            && node.has_resumed
            && node.applied.last() != Some(&node.generation)
            && progress.contributed == *self.members(id)
    }

    pub(crate) fn apply(&mut self, id: usize) {
        let node = &mut self.nodes[id];
        node.applied.push(node.generation);
        let progress = &mut self.updates.generations[node.generation];
        progress.applied.insert(id);
        if progress.applied == self.generations[node.generation] {
            progress.published = node.applied.clone();
            // Also if it comes late: a later generation may have published before.
            let published = self.updates.generations.iter().map(|progress| &progress.published);
            let published = published.filter(|published| !published.is_empty());
            if !published.is_sorted_by(|earlier, later| later.starts_with(earlier)) {
                self.violation = Some(Violation::LostPublished);
            }
        }
    }
}
