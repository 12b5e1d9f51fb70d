//! Updates whose gradient is infinite or NaN: all ranks skip them, name the rank and the samples, and
//! stop after too many in a row. Called by the loop before the optimizer steps, so the parameters
//! are those of the last good update.

use hetseq_metrics::Event;

use crate::error::TrainError;

use super::exchange::ReducedGradient;
use super::header::MergedHeader;
use super::losses::{mean_losses, weighted};
use super::{Trainer, messages};

impl Trainer {
    /// Skips the update in progress. A collective: all ranks have the same gradient.
    pub(super) fn skip_bad_update(
        &mut self,
        gradient: &mut ReducedGradient,
        header: &MergedHeader,
    ) -> Result<(), TrainError> {
        let update = self.learner.updates() + 1;
        // A single rank's contribution is the sum.
        let own = self.session.group.contribution().unwrap_or(&gradient.flat);
        let is_bad = !own.iter().all(|value| value.is_finite());
        let samples = self.in_progress.as_ref().filter(|_| is_bad).map(|in_progress| &in_progress.samples);
        let reports = messages::all_gather(&mut self.session.group, &samples.cloned())?;
        let ranks = reports.iter().zip(&self.session.cluster.original_ranks);
        let ranks = ranks.filter(|(report, _)| report.is_some()).map(|(_, &rank)| rank).collect();
        self.bad_updates += 1;
        let in_a_row = self.bad_updates;
        let samples: Vec<u32> = reports.into_iter().flatten().flatten().collect();
        self.observer.record(Event::NotFinite { update, ranks, samples, in_a_row });
        if in_a_row > self.config.run.max_bad_updates {
            let loss = weighted(&self.terms, &mean_losses(&gradient.losses, &header.counts));
            self.save()?;
            self.finish_saves()?;
            let last = self.checkpointing.last_checkpoint();
            return Err(TrainError::NotFinite { update, norm: gradient.norm, loss, in_a_row, last });
        }
        (gradient.is_skipped, gradient.norm) = (true, 0.0);
        Ok(())
    }
}
