//! Between updates: validation, checkpoints (`checkpointing.rs`), the end of the run. The loop
//! calls it on all ranks after the same update.

use crate::error::TrainError;
use crate::run_dir::events::at_update;
use crate::task::{Metric, Split};
use crate::trainer::evaluate::{Evaluated, evaluate};
use crate::trainer::state::Best;
use crate::trainer::stop::StopRequest;

use super::boundary::Boundary;
use super::leave::Verdict;
use super::{Pause, RunOutcome, Trainer};

/// What became of a validation.
enum Validated {
    /// Whether it is the best so far.
    Done(bool),
    /// All ranks have dropped it.
    Stopped,
}

impl Trainer {
    /// Validates and saves if they are due after the update just done. A run that ends is validated
    /// and saved. One that stops is always saved, without a validation that is due or in progress:
    /// the resume begins with it. If ranks leave, the others repeat all of this. Returns why the
    /// updates pause here, before their planned end.
    pub(super) fn after_update(&mut self) -> Result<Option<Pause>, TrainError> {
        let Some(next) = self.boundary.as_ref().map(Boundary::decisions) else { return Ok(None) };
        let cursor = self.learner.state.cursor.clone();
        let (updates, epoch, epoch_ended) = (cursor.updates, cursor.epoch, cursor.epoch != next.epoch);
        let is_last = self.pipeline.sampler.at(&cursor).is_none();
        let ends = next.ends || is_last;
        let is_repeated = self.learner.state.unfinished_validation.take().is_some();
        let validates = is_repeated || ends || self.config.valid.every.is_due(updates, epoch, epoch_ended);
        let mut verdict = if next.is_asked_to_stop { self.confer()? } else { Verdict::Continue };
        // None: it must be found out.
        let mut is_best = (!validates).then_some(false);
        while verdict == Verdict::Continue && is_best.is_none() {
            match self.validate()? {
                Validated::Done(best) => is_best = Some(best),
                Validated::Stopped => verdict = self.confer()?,
            }
        }
        match verdict {
            Verdict::Continue => {}
            Verdict::Stop(request) => {
                self.learner.state.unfinished_validation = validates.then_some(next.epoch);
                return self.stop(request).map(Some);
            }
            Verdict::Leave(leaving) => return self.prepare_leave(leaving).map(Some),
        }
        let is_best = is_best == Some(true);
        let ends_early = next.ends || (validates && !is_last && self.patience_has_run_out());
        let is_due = self.config.checkpoint.every.is_due(updates, epoch, epoch_ended);
        if ends || ends_early || is_best || is_due || is_repeated {
            self.save()?;
        }
        self.leave_boundary();
        if ends_early {
            return self.end_early().map(Pause::Ended).map(Some);
        }
        Ok(None)
    }

    /// Saves and ends the run on all ranks.
    fn stop(&mut self, request: StopRequest) -> Result<Pause, TrainError> {
        self.announce_stop(request);
        self.session.group.close_door();
        self.save()?;
        self.leave_boundary();
        self.finish_saves()?;
        self.final_sync()?;
        Ok(Pause::Ended(RunOutcome::Stopped))
    }

    /// Logs that another rank was asked to stop. That rank has already logged it.
    pub(super) fn announce_stop(&self, request: StopRequest) {
        let StopRequest { rank, cause } = request;
        if rank != self.session.group.rank() {
            let host = self.session.group.host(rank);
            tracing::warn!(
                "rank {rank} ({host}) was asked to stop by {cause}: saving after {}, then the run exits with code 75",
                at_update(self.learner.updates())
            );
        }
    }

    /// Returns whether this is the best validation so far. All ranks return the same, since they
    /// hold the same numbers (`evaluate.rs`).
    fn validate(&mut self) -> Result<Validated, TrainError> {
        let updates = self.learner.updates();
        self.session.group.at(format!("validation after {}", at_update(updates)));
        let split = (self.pipeline.split_mode(updates), self.config.batch.global);
        let planner = self.pipeline.planner.clone();
        let evaluation = match evaluate(&mut self.session, &self.valid_loader, planner, split, Some(&self.stop))? {
            Evaluated::Done(evaluation) => evaluation,
            Evaluated::NoSamples => return Ok(Validated::Done(false)),
            Evaluated::Stopped => return Ok(Validated::Stopped),
        };
        if !evaluation.loss.is_finite() {
            let what = format!("the loss of the validation after it is {}", evaluation.loss);
            let last = self.checkpointing.last_checkpoint();
            return Err(TrainError::Diverged { update: updates, what, last });
        }
        let state = &mut self.learner.state;
        let is_best = match evaluation.metric(&self.config.checkpoint.best) {
            None => false,
            Some(metric) => {
                let is_best = Best::is_beaten(state.best.as_ref(), &metric);
                if is_best {
                    let Metric { name, value, .. } = metric.clone();
                    let best = Best { metric: name, value, update: updates, since: 0 };
                    self.checkpointing.add_best(best.clone());
                    state.best = Some(best);
                }
                Best::note(&mut state.record, &metric, updates);
                is_best
            }
        };
        let epoch = state.epoch_shown();
        self.observer.note_skipped(Split::Valid, &evaluation.skipped);
        self.observer.hold(evaluation.event(updates, epoch));
        Ok(Validated::Done(is_best))
    }
}
