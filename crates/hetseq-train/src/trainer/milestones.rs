//! What happens between updates: validation, checkpoints (see `saving.rs`), the end. All ranks come here after the same
//! update.

use hetseq_metrics::Event;

use crate::error::TrainError;
use crate::evaluate::evaluate;
use crate::header::Agreed;
use crate::itinerary::Planned;
use crate::observer::at_update;
use crate::state::Best;
use crate::task::{Task, Which};

use super::{End, Trainer};

impl<T: Task> Trainer<T> {
    /// Validate and save if they are due after the update just done. A run that stops is saved in any case; one that ends
    /// is validated and saved. `next` is what was agreed on the update to come; tells how the run ends, if it does so early.
    pub(super) fn pass_milestones(&mut self, update: &Planned, next: &Agreed) -> Result<Option<End>, TrainError> {
        let cursor = self.state.cursor.clone();
        let (updates, epoch, epoch_ended) = (cursor.updates, cursor.epoch, cursor.epoch != update.epoch);
        let is_last = self.itinerary.at(&cursor).is_none();
        let ends = next.ends || is_last;
        let validates = ends || self.config.valid.every.is_due(updates, epoch, epoch_ended);
        let is_best = validates && self.validate()?;
        let ends_early = next.ends || (validates && !is_last && self.patience_is_out());
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
            self.settle()?;
            return Ok(Some(End::Stopped));
        }
        Ok(None)
    }

    /// The rank that got the signal has said so itself.
    pub(super) fn announce_stop(&self, rank: usize) {
        if rank != self.crew.group.rank() {
            let host = self.crew.group.host(rank);
            tracing::warn!(
                "rank {rank} ({host}) was asked to stop: saving after {}",
                at_update(self.state.cursor.updates)
            );
        }
    }

    /// Whether this is the best of those on the disk: on all ranks or on none, as they hold the same numbers (`evaluate.rs`).
    fn validate(&mut self) -> Result<bool, TrainError> {
        let updates = self.state.cursor.updates;
        self.crew.group.at(format!("validation after {}", at_update(updates)));
        let split = self.split_of(updates);
        let Some(evaluation) =
            evaluate(&mut self.crew, &self.valid_loader, self.planner.clone(), split, self.config.batch.global)?
        else {
            return Ok(false);
        };
        if !evaluation.loss.is_finite() {
            let place = format!("the loss of the validation after it is {}", evaluation.loss);
            return Err(TrainError::Diverged { update: updates, place, last: self.last_checkpoint() });
        }
        let value = evaluation.metric(self.best_metric.name).unwrap_or(f64::NAN);
        let is_best = Best::is_beaten(self.state.best.as_ref(), self.best_metric, value);
        if is_best {
            let best = Best { metric: self.best_metric.name.to_owned(), value, update: updates, since: 0 };
            self.bests.push(best.clone());
            self.state.best = Some(best);
        }
        Best::note(&mut self.state.record, self.best_metric, value, updates);
        for message in self.skips.note(Which::Valid, &evaluation.skipped) {
            self.observer.tell(&Event::Warning { message });
        }
        self.observer.tell(&evaluation.event(updates, self.state.epoch_shown()));
        Ok(is_best)
    }
}
