//! Between updates: validation, checkpoints (`checkpointing.rs`), the end of the run. The loop
//! calls it on all ranks after the same update.

use hetseq_metrics::Event;

use crate::data::update_sampler::PlannedUpdate;
use crate::error::TrainError;
use crate::run_dir::events::at_update;
use crate::task::{Split, Task};
use crate::trainer::evaluate::evaluate;
use crate::trainer::header::MergedHeader;
use crate::trainer::state::Best;

use super::{RunOutcome, Trainer};

impl<T: Task> Trainer<T> {
    /// Validates and saves if they are due after the update just done. A run that stops is always
    /// saved; one that ends is validated and saved. `next` is the header of the next update.
    /// Returns the outcome if the run ends here, before its planned end.
    pub(super) fn after_update(
        &mut self,
        update: &PlannedUpdate,
        next: &MergedHeader,
    ) -> Result<Option<RunOutcome>, TrainError> {
        let cursor = self.state.cursor.clone();
        let (updates, epoch, epoch_ended) = (cursor.updates, cursor.epoch, cursor.epoch != update.epoch);
        let is_last = self.sampler.at(&cursor).is_none();
        let ends = next.ends || is_last;
        let validates = ends || self.config.valid.every.is_due(updates, epoch, epoch_ended);
        let is_best = validates && self.validate()?;
        let ends_early = next.ends || (validates && !is_last && self.patience_has_run_out());
        let is_due = self.config.checkpoint.every.is_due(updates, epoch, epoch_ended);
        if let Some(rank) = next.stop {
            self.announce_stop(rank);
        }
        if next.stop.is_some() || ends || ends_early || is_best || is_due {
            self.save()?;
        }
        if ends_early {
            return self.end_early().map(Some);
        }
        if next.stop.is_some() {
            self.finish_saves()?;
            self.final_sync()?;
            return Ok(Some(RunOutcome::Stopped));
        }
        Ok(None)
    }

    /// Logs that another rank got a signal. That rank has already logged it.
    pub(super) fn announce_stop(&self, rank: usize) {
        if rank != self.session.group.rank() {
            let host = self.session.group.host(rank);
            tracing::warn!(
                "rank {rank} ({host}) was asked to stop: saving after {}",
                at_update(self.state.cursor.updates)
            );
        }
    }

    /// Returns whether this is the best validation so far. All ranks return the same, since they
    /// hold the same numbers (`evaluate.rs`).
    fn validate(&mut self) -> Result<bool, TrainError> {
        let updates = self.state.cursor.updates;
        self.session.group.at(format!("validation after {}", at_update(updates)));
        let split = self.split_mode(updates);
        let Some(evaluation) =
            evaluate(&mut self.session, &self.valid_loader, self.planner.clone(), split, self.config.batch.global)?
        else {
            return Ok(false);
        };
        if !evaluation.loss.is_finite() {
            let what = format!("the loss of the validation after it is {}", evaluation.loss);
            return Err(TrainError::Diverged { update: updates, what, last: self.last_checkpoint() });
        }
        let value = evaluation.metric(self.best_metric.name).unwrap_or(f64::NAN);
        let is_best = Best::is_beaten(self.state.best.as_ref(), self.best_metric, value);
        if is_best {
            let best = Best { metric: self.best_metric.name.to_owned(), value, update: updates, since: 0 };
            self.bests.push(best.clone());
            self.state.best = Some(best);
        }
        Best::note(&mut self.state.record, self.best_metric, value, updates);
        for message in self.skipped_samples.note(Split::Valid, &evaluation.skipped) {
            self.events.emit(&Event::Warning { message });
        }
        self.events.emit(&evaluation.event(updates, self.state.epoch_shown()));
        Ok(is_best)
    }
}
