//! Where the run stands and what comes next: the plan of the epoch at the cursor, and of the next one when the loader
//! looks ahead over an epoch's end. Pure but for the cache.

use hetseq_data::{Costs, Cursor, EpochPlan, PlanSpec};

pub(crate) struct Itinerary {
    costs: Costs,
    spec: PlanSpec,
    max_updates: u64,
    max_epochs: u64,
    /// The plans of the last two epochs asked for.
    plans: Vec<EpochPlan>,
}

/// One update as the trainer needs it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Planned {
    pub(crate) epoch: u64,
    /// Ascending in length, so that micro-batches pad little.
    pub(crate) samples: Vec<u32>,
    /// Their lengths, as micro-batches pad them.
    pub(crate) tokens: Vec<u32>,
    pub(crate) fingerprint: u64,
    pub(crate) updates_in_epoch: usize,
}

impl Itinerary {
    pub(crate) fn new(costs: Costs, spec: PlanSpec, max_updates: Option<u64>, max_epochs: Option<u64>) -> Self {
        Itinerary {
            costs,
            spec,
            max_updates: max_updates.unwrap_or(u64::MAX),
            max_epochs: max_epochs.unwrap_or(u64::MAX),
            plans: Vec::new(),
        }
    }

    /// The update at `cursor`; none when the run is at its end.
    pub(crate) fn at(&mut self, cursor: &Cursor) -> Option<Planned> {
        if cursor.updates >= self.max_updates || cursor.epoch >= self.max_epochs {
            return None;
        }
        let index = cursor.update_in_epoch as usize;
        let plan = position(&mut self.plans, &self.costs, &self.spec, cursor.epoch);
        let update = plan.update(index);
        if update.samples.is_empty() {
            return None;
        }
        let mut samples = update.samples.to_vec();
        samples.sort_by_key(|&sample| self.costs.padded(sample));
        Some(Planned {
            epoch: cursor.epoch,
            tokens: samples.iter().map(|&sample| self.costs.padded(sample)).collect(),
            samples,
            fingerprint: plan.fingerprint(index),
            updates_in_epoch: plan.updates(),
        })
    }

    /// A position that this epoch does not have was made by another planner.
    pub(crate) fn check(&mut self, cursor: &Cursor) -> Result<(), String> {
        let updates = self.updates_per_epoch(cursor.epoch);
        if cursor.update_in_epoch < updates as u64 {
            return Ok(());
        }
        let at = cursor.update_in_epoch;
        Err(format!(
            "the checkpoint stands at update {at} of an epoch of {updates}; start the data afresh with --reset data"
        ))
    }

    pub(crate) fn updates_per_epoch(&mut self, epoch: u64) -> usize {
        position(&mut self.plans, &self.costs, &self.spec, epoch).updates()
    }

    /// What part of an epoch's tokens is padding, if each update is padded to its longest sample.
    pub(crate) fn padding(&mut self, epoch: u64) -> f64 {
        position(&mut self.plans, &self.costs, &self.spec, epoch).padding().waste()
    }

    /// The last update of the run, for the schedule and the progress bar. With a batch in tokens epochs may differ in
    /// length a little; the present one speaks for all.
    pub(crate) fn total_updates(&mut self, cursor: &Cursor) -> u64 {
        let per_epoch = self.updates_per_epoch(cursor.epoch) as u64;
        let epochs_left = self.max_epochs.saturating_sub(cursor.epoch);
        let rest = per_epoch.saturating_mul(epochs_left).saturating_sub(cursor.update_in_epoch);
        self.max_updates.min(cursor.updates.saturating_add(rest))
    }
}

fn position<'a>(plans: &'a mut Vec<EpochPlan>, costs: &Costs, spec: &PlanSpec, epoch: u64) -> &'a EpochPlan {
    let found = plans.iter().position(|plan| plan.epoch == epoch);
    let index = found.unwrap_or_else(|| {
        if plans.len() == 2 {
            plans.remove(0);
        }
        plans.push(EpochPlan::new(costs, spec, epoch));
        plans.len() - 1
    });
    &plans[index]
}

#[cfg(test)]
mod tests {
    use hetseq_data::GlobalBatch;

    use super::*;

    fn itinerary(max_updates: Option<u64>, max_epochs: Option<u64>) -> Itinerary {
        let spec = PlanSpec { seed: 1, batch: GlobalBatch::Sequences(4), curriculum_epochs: 0, shuffle: true };
        Itinerary::new(Costs::Uniform { samples: 10, tokens: 1 }, spec, max_updates, max_epochs)
    }

    #[test]
    fn each_sample_once_per_epoch_and_then_the_end() {
        let mut itinerary = itinerary(None, Some(2));
        let mut cursor = Cursor::default();
        assert_eq!(itinerary.total_updates(&cursor), 6);
        let mut seen = Vec::new();
        while let Some(stop) = itinerary.at(&cursor) {
            seen.extend(&stop.samples);
            cursor.advance(stop.samples.len() as u64, stop.updates_in_epoch);
        }
        assert_eq!((cursor.updates, cursor.epoch), (6, 2));
        let mut first: Vec<u32> = seen[..10].to_vec();
        first.sort_unstable();
        assert_eq!(first, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn the_total_counts_from_where_the_run_stands() {
        let mut cursor = Cursor::default();
        let mut itinerary = itinerary(Some(5), Some(9));
        assert_eq!(itinerary.total_updates(&cursor), 5);
        for _ in 0..5 {
            cursor.advance(4, 3);
        }
        assert!(itinerary.at(&cursor).is_none());
    }
}
