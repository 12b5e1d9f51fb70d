//! What happens between updates: validation, checkpoints, the end. All ranks come here after the same update.

use std::time::Instant;

use hetseq_metrics::Event;

use crate::checkpoint::Snapshot;
use crate::error::TrainError;
use crate::evaluate::evaluate;
use crate::itinerary::Planned;
use crate::observer::at_update;
use crate::state::Best;
use crate::task::{Task, Which};

use super::{Trainer, checksum};

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
        let split = self.split_of(updates);
        let Some(evaluation) = evaluate(&mut self.crew, &self.valid_loader, &self.pace, split, &self.terms)? else {
            return Ok(false);
        };
        let value = evaluation.metric(self.best_metric.name).unwrap_or(f64::NAN);
        let is_best = Best::is_beaten(self.state.best.as_ref(), self.best_metric, value);
        if is_best {
            self.state.best = Some(Best { metric: self.best_metric.name.to_owned(), value, update: updates });
        }
        for message in self.skips.note(Which::Valid, &evaluation.skipped) {
            self.observer.tell(&Event::Warning { message });
        }
        self.observer.tell(&evaluation.event(updates, self.state.epoch_shown()));
        Ok(is_best)
    }

    /// Only what all replicas agree on is saved.
    fn save(&mut self) -> Result<(), TrainError> {
        let updates = self.state.cursor.updates;
        self.crew.group.at(format!("the checkpoint after {}", at_update(updates)));
        self.compare_replicas()?;
        if self.crew.group.rank() != 0 {
            self.last_saved = Some(updates);
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
        self.last_saved = Some(updates);
        let best = self.state.best.as_ref().map(|best| best.update);
        self.checkpoints.prune(self.config.checkpoint.keep, best)?;
        let seconds = started.elapsed().as_secs_f64();
        self.observer.tell(&Event::Checkpoint { update: updates, path, best: best == Some(updates), seconds });
        Ok(())
    }

    fn compare_replicas(&mut self) -> Result<(), TrainError> {
        if self.crew.group.world() == 1 {
            return Ok(());
        }
        let sums = self.crew.group.agree(&checksum(&self.parameters).to_le_bytes())?;
        match sums.iter().position(|sum| *sum != sums[0]) {
            None => Ok(()),
            Some(rank) => Err(self.disagreement("the parameters", format!("rank {rank}'s are not rank 0's"))),
        }
    }

    /// For messages: where to go on from. Rank 0 has the files; the others know of them.
    pub(crate) fn last_checkpoint(&self) -> String {
        match self.last_saved {
            None => "the start (there is no checkpoint yet)".to_owned(),
            Some(update) if self.crew.group.rank() == 0 => {
                let newest = self.checkpoints.newest();
                newest.map_or_else(|| at_update(update), |path| path.display().to_string())
            }
            Some(update) => format!("rank 0's checkpoint after {}", at_update(update)),
        }
    }
}
