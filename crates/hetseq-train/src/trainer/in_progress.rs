//! The update in progress: what the ranks have agreed on before it, and what this rank has computed
//! of it. If a rank is lost, the others keep what they have: loss sums are divided by *global*
//! counts, which do not depend on who computes what. Only the samples of lost ranks are computed
//! again (`recovery.rs`).

use hetseq_optim::add;

use crate::devices::LocalSum;
use crate::trainer::header::{LostDevice, MergedHeader};

use super::rank_contribution::lost_devices;

pub(super) struct InProgress {
    /// Merged before the update.
    pub(super) header: MergedHeader,
    /// The samples that this rank computes or has computed.
    pub(super) samples: Vec<u32>,
    /// Sums over samples that were computed before a rank was lost; empty if there are none.
    held: Vec<f32>,
    /// Of all samples of this rank, so far.
    pub(super) overflow: Option<bool>,
    pub(super) lost: Vec<LostDevice>,
}

impl InProgress {
    pub(super) fn new(header: MergedHeader) -> Self {
        InProgress { header, samples: Vec::new(), held: Vec::new(), overflow: None, lost: Vec::new() }
    }

    /// Adds what the devices have computed. Returns this rank's sum.
    pub(super) fn complete(&mut self, local: &mut LocalSum) -> Vec<f32> {
        self.overflow = self.overflow.into_iter().chain(local.overflow).reduce(|any, one| any | one);
        self.lost.extend(lost_devices(local));
        let mut flat = std::mem::take(&mut local.flat);
        if !self.held.is_empty() {
            add(&mut flat, &std::mem::take(&mut self.held));
        }
        flat
    }

    /// Keeps the sum of this rank for the next attempt.
    pub(super) fn hold(&mut self, sum: Vec<f32>) {
        self.held = sum;
    }
}

/// The samples of an update that are in none of the sums that ranks hold, with their positions in
/// it. None if a sample is held twice, or is not of this update.
pub(super) fn missing_samples(samples: &[u32], held: &[&[u32]]) -> Option<Vec<usize>> {
    let mut is_held = vec![false; samples.len()];
    let mut position: std::collections::HashMap<u32, usize> = std::collections::HashMap::new();
    for (at, &sample) in samples.iter().enumerate() {
        position.insert(sample, at);
    }
    for sample in held.iter().flat_map(|samples| samples.iter()) {
        let at = *position.get(sample)?;
        if std::mem::replace(&mut is_held[at], true) {
            return None;
        }
    }
    Some((0..samples.len()).filter(|&at| !is_held[at]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_lost_ranks_are_missing() {
        let samples = [4, 9, 2, 7];
        assert_eq!(missing_samples(&samples, &[&[9], &[7, 4]]), Some(vec![2]));
        assert_eq!(missing_samples(&samples, &[]), Some(vec![0, 1, 2, 3]));
        assert_eq!(missing_samples(&samples, &[&samples]), Some(vec![]));
        assert_eq!(missing_samples(&samples, &[&[9], &[9]]), None);
        assert_eq!(missing_samples(&samples, &[&[5]]), None);
    }
}
