//! Which samples form the update at a cursor: from the plan of the cursor's epoch, and of the next
//! epoch when the trainer plans ahead over an epoch's end. Pure except for the cache of plans.

use hetseq_data::{Cursor, EpochPlan, PlanSpec, SampleLengths};

pub(crate) struct UpdateSampler {
    lengths: SampleLengths,
    spec: PlanSpec,
    max_updates: u64,
    max_epochs: u64,
    /// The plans of the last two epochs that were used.
    plans: Vec<EpochPlan>,
}

/// The samples of one update.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlannedUpdate {
    pub(crate) epoch: u64,
    /// Ascending in length, so that micro-batches pad little.
    pub(crate) samples: Vec<u32>,
    /// Their padded lengths.
    pub(crate) tokens: Vec<u32>,
    /// Their tokens without padding, in total. None if samples have no length, such as images.
    pub(crate) real_tokens: Option<u64>,
    pub(crate) fingerprint: u64,
    pub(crate) updates_in_epoch: usize,
}

impl UpdateSampler {
    pub(crate) fn new(
        lengths: SampleLengths,
        spec: PlanSpec,
        max_updates: Option<u64>,
        max_epochs: Option<u64>,
    ) -> Self {
        UpdateSampler {
            lengths,
            spec,
            max_updates: max_updates.unwrap_or(u64::MAX),
            max_epochs: max_epochs.unwrap_or(u64::MAX),
            plans: Vec::new(),
        }
    }

    /// The update at `cursor`; none when the run is at its end.
    pub(crate) fn at(&mut self, cursor: &Cursor) -> Option<PlannedUpdate> {
        if cursor.updates >= self.max_updates || cursor.epoch >= self.max_epochs {
            return None;
        }
        let index = cursor.update_in_epoch as usize;
        let plan = epoch_plan(&mut self.plans, &self.lengths, &self.spec, cursor.epoch);
        let update = plan.update(index);
        if update.samples.is_empty() {
            return None;
        }
        let mut samples = update.samples.to_vec();
        samples.sort_by_key(|&sample| self.lengths.padded(sample));
        let has_length = self.lengths.longest() > 1;
        let real_tokens = || samples.iter().map(|&sample| u64::from(self.lengths.tokens(sample))).sum();
        let real_tokens = has_length.then(real_tokens);
        Some(PlannedUpdate {
            epoch: cursor.epoch,
            tokens: samples.iter().map(|&sample| self.lengths.padded(sample)).collect(),
            samples,
            real_tokens,
            fingerprint: plan.fingerprint(index),
            updates_in_epoch: plan.updates(),
        })
    }

    /// Rejects a position beyond the end of its epoch, which another version must have saved.
    pub(crate) fn check(&mut self, cursor: &Cursor) -> Result<(), String> {
        let updates = self.updates_per_epoch(cursor.epoch);
        if cursor.update_in_epoch < updates as u64 {
            return Ok(());
        }
        let at = cursor.update_in_epoch;
        Err(format!(
            "the checkpoint is at update {at} of an epoch of {updates} updates; restart the data with --reset data"
        ))
    }

    pub(crate) fn updates_per_epoch(&mut self, epoch: u64) -> usize {
        epoch_plan(&mut self.plans, &self.lengths, &self.spec, epoch).updates()
    }

    /// The fraction of an epoch's tokens that is padding, if each update is padded to its longest
    /// sample.
    pub(crate) fn padding(&mut self, epoch: u64) -> f64 {
        epoch_plan(&mut self.plans, &self.lengths, &self.spec, epoch).padding().waste()
    }

    /// The last update of the run, for the schedule and the progress bar. With a batch in tokens,
    /// epochs may differ a little in length; this estimate uses the current one.
    pub(crate) fn total_updates(&mut self, cursor: &Cursor) -> u64 {
        let per_epoch = self.updates_per_epoch(cursor.epoch) as u64;
        let epochs_left = self.max_epochs.saturating_sub(cursor.epoch);
        let rest = per_epoch.saturating_mul(epochs_left).saturating_sub(cursor.update_in_epoch);
        self.max_updates.min(cursor.updates.saturating_add(rest))
    }
}

fn epoch_plan<'a>(
    plans: &'a mut Vec<EpochPlan>,
    lengths: &SampleLengths,
    spec: &PlanSpec,
    epoch: u64,
) -> &'a EpochPlan {
    let found = plans.iter().position(|plan| plan.epoch == epoch);
    let index = found.unwrap_or_else(|| {
        if plans.len() == 2 {
            plans.remove(0);
        }
        plans.push(EpochPlan::new(lengths, spec, epoch));
        plans.len() - 1
    });
    &plans[index]
}

#[cfg(test)]
mod tests {
    use hetseq_data::GlobalBatch;

    use super::*;

    fn sampler(max_updates: Option<u64>, max_epochs: Option<u64>) -> UpdateSampler {
        let spec = PlanSpec { seed: 1, batch: GlobalBatch::Sequences(4), curriculum_epochs: 0, shuffle: true };
        UpdateSampler::new(SampleLengths::Uniform { samples: 10, tokens: 1 }, spec, max_updates, max_epochs)
    }

    #[test]
    fn each_sample_comes_once_per_epoch_until_the_end() {
        let mut sampler = sampler(None, Some(2));
        let mut cursor = Cursor::default();
        assert_eq!(sampler.total_updates(&cursor), 6);
        let mut seen = Vec::new();
        while let Some(update) = sampler.at(&cursor) {
            seen.extend(&update.samples);
            cursor.advance(update.samples.len() as u64, update.updates_in_epoch);
        }
        assert_eq!((cursor.updates, cursor.epoch), (6, 2));
        let mut first: Vec<u32> = seen[..10].to_vec();
        first.sort_unstable();
        assert_eq!(first, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn the_total_is_limited_by_max_updates() {
        let mut cursor = Cursor::default();
        let mut sampler = sampler(Some(5), Some(9));
        assert_eq!(sampler.total_updates(&cursor), 5);
        for _ in 0..5 {
            cursor.advance(4, 3);
        }
        assert!(sampler.at(&cursor).is_none());
    }
}
