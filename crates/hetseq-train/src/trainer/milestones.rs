//! What happens between updates: validation, checkpoints, the end. All ranks come here after the same update.

use std::time::Instant;

use hetseq_metrics::Event;

use crate::checkpoint::Snapshot;
use crate::error::TrainError;
use crate::evaluate::{Evaluation, evaluate};
use crate::itinerary::Planned;
use crate::observer::at_update;
use crate::state::Best;
use crate::task::Task;

use super::Trainer;

impl<T: Task> Trainer<T> {
    /// Validate and save if they are due after the update just done. A run that stops is saved in any case; one that ends
    /// is validated and saved.
    pub(super) fn pass_milestones(&mut self, update: &Planned, stops: bool) -> Result<(), TrainError> {
        let cursor = self.state.cursor.clone();
        let (updates, epoch, ended) = (cursor.updates, cursor.epoch, cursor.epoch != update.epoch);
        let ends = self.itinerary.at(&cursor).is_none();
        let is_best = (ends || self.config.valid.every.is_due(updates, epoch, ended)) && self.validate()?;
        if stops || ends || is_best || self.config.checkpoint.every.is_due(updates, epoch, ended) {
            self.save()?;
        }
        Ok(())
    }

    /// Whether this is the best so far.
    fn validate(&mut self) -> Result<bool, TrainError> {
        let updates = self.state.cursor.updates;
        self.crew.group.at(format!("validation after {}", at_update(updates)));
        let split = self.split();
        let Some(evaluation) = evaluate(&mut self.crew, &self.valid_loader, &self.pace, split, &self.terms)? else {
            return Ok(false);
        };
        let metric = self.config.checkpoint.best.clone();
        let value = evaluation.metric(&metric).ok_or_else(|| unknown_metric(&metric, &evaluation))?;
        let is_best = Best::is_better(self.state.best.as_ref(), &metric, value);
        if is_best {
            self.state.best = Some(Best { metric, value, update: updates });
        }
        self.observer.tell(&evaluation.event(updates, self.state.epoch_shown()));
        Ok(is_best)
    }

    fn save(&mut self) -> Result<(), TrainError> {
        let updates = self.state.cursor.updates;
        if self.crew.group.rank() != 0 {
            return Ok(());
        }
        let started = Instant::now();
        self.state.scalars = self.optimizer.scalars();
        let path = self.checkpoints.save(&Snapshot {
            layout: &self.crew.layout,
            parameters: &self.parameters,
            slots: self.optimizer.state(),
            state: &self.state,
            config: &self.config_text,
        })?;
        let best = self.state.best.as_ref().map(|best| best.update);
        self.checkpoints.prune(self.config.checkpoint.keep, best)?;
        let seconds = started.elapsed().as_secs_f64();
        self.observer.tell(&Event::Checkpoint { update: updates, path, best: best == Some(updates), seconds });
        Ok(())
    }

    /// For messages: where to go on from.
    pub(super) fn last_checkpoint(&self) -> String {
        match self.checkpoints.newest() {
            Some(path) => path.display().to_string(),
            None => "the start (there is no checkpoint yet)".to_owned(),
        }
    }
}

fn unknown_metric(metric: &str, evaluation: &Evaluation) -> TrainError {
    let known: Vec<&str> = evaluation.metrics.keys().map(String::as_str).chain(["loss"]).collect();
    TrainError::Config(format!("checkpoint.best = \"{metric}\": this task measures {}", known.join(", ")))
}
