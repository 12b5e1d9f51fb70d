//! A replica whose parameters differ from the others': faulty memory is real. The majority of the
//! ranks is right; the odd ones take its state and continue. Called by the loop when a comparison
//! of the replicas has failed.
//!
//! A comparison after update k travels with the sum of update k + 1, to which the odd rank has
//! contributed with wrong parameters. No rank has applied that sum: it is dropped, the others keep
//! their parts of it, and the samples of the odd rank are computed again. So with
//! `run.checksum_every = 1` a changed bit has no effect at all; otherwise the updates since the
//! change contain the wrong gradients of that rank, the same on all ranks.
//!
//! Without a majority, as in a group of two, no one can tell who is right, and the run ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use hetseq_metrics::Event;

use crate::error::TrainError;

use super::Trainer;

/// A rank that is odd more often than this leaves: its machine needs a repair.
const MOST_HEALINGS: u32 = 3;

/// What this rank knows about its own replica.
#[derive(Debug, Default)]
pub(super) struct ReplicaHealth {
    /// Its parameters are known to be wrong.
    pub(super) is_odd: bool,
    /// How often they were.
    times: u32,
}

/// The ranks whose values differ from that of more than half of the ranks; none if there is no such
/// value.
pub(super) fn odd_ranks<T: Ord>(values: &[T]) -> Vec<usize> {
    let mut votes = BTreeMap::new();
    values.iter().for_each(|value| *votes.entry(value).or_insert(0) += 1);
    let Some((majority, _)) = votes.into_iter().find(|(_, votes)| 2 * votes > values.len()) else {
        return Vec::new();
    };
    (0..values.len()).filter(|&rank| values[rank] != *majority).collect()
}

impl Trainer {
    /// Whether ranks can take the state of a majority after this error.
    pub(super) fn can_heal(&self, error: &TrainError) -> bool {
        self.config.elastic.enabled
            && matches!(error, TrainError::Disagreement { odd_ranks, .. } if !odd_ranks.is_empty())
    }

    /// Copies the state of the majority to the ranks that differ from it. A collective.
    pub(super) fn heal(&mut self, error: TrainError) -> Result<(), TrainError> {
        let TrainError::Disagreement { odd_ranks, .. } = &error else { return Err(error) };
        let started = Instant::now();
        tracing::debug!("{error}");
        let named = |&rank: &usize| {
            let at_start = self.session.cluster.original_ranks.get(rank).copied().unwrap_or(rank);
            (at_start, self.session.group.host(rank).to_owned())
        };
        let named: Vec<(usize, String)> = odd_ranks.iter().map(named).collect();
        self.restore_boundary();
        self.hold_contribution()?;
        self.replica_health.is_odd = odd_ranks.contains(&self.session.group.rank());
        if self.replica_health.is_odd {
            // Computed with wrong parameters.
            self.in_progress = None;
            self.replica_health.times += 1;
            let (update, times) = (self.learner.updates(), self.replica_health.times);
            if times > MOST_HEALINGS {
                return Err(TrainError::FaultyReplica { update, times });
            }
            tracing::warn!("the parameters of this machine differ from those of the others: taking theirs");
        }
        self.session.cluster.profile = self.pipeline.planner.profile();
        self.continue_in_new_group()?;
        let (update, seconds) = (self.learner.updates(), started.elapsed().as_secs_f64());
        for (rank, host) in named {
            self.observer.events.emit(&Event::Healed { update, rank, host, seconds });
        }
        Ok(())
    }

    /// Changes one bit of the parameters where `emulate.flipped_bit` says so.
    pub(super) fn emulate_flipped_bit(&mut self, update: u64) {
        let rank = self.session.cluster.original_ranks.get(self.session.group.rank());
        let is_hit = self.config.emulate.flipped_bit.iter().any(|at| (Some(&at.rank), at.update) == (rank, update));
        if is_hit && let Some(value) = Arc::make_mut(&mut self.learner.parameters).first_mut() {
            *value = f32::from_bits(value.to_bits() ^ 1 << 20);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::odd_ranks;

    #[test]
    fn the_majority_is_right() {
        assert_eq!(odd_ranks(&[5, 5, 9]), [2]);
        assert_eq!(odd_ranks(&[9, 5, 5, 5, 7]), [0, 4]);
        assert!(odd_ranks::<u64>(&[]).is_empty());
        assert!(odd_ranks(&[5, 5, 5]).is_empty());
        // Half is not enough.
        assert!(odd_ranks(&[5, 9]).is_empty());
        assert!(odd_ranks(&[5, 5, 9, 9]).is_empty());
        assert!(odd_ranks(&[5, 6, 7]).is_empty());
    }
}
