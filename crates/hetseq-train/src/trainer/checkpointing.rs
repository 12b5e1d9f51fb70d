//! Saving: takes a snapshot at an update boundary, which rank 0 writes in the background
//! ([`CheckpointWriter`]), and handles failed saves. All ranks call [`Trainer::save`] after the
//! same update: nothing is saved unless all replicas are equal.

use std::time::Instant;

use hetseq_metrics::{Event, duration};

use crate::checkpoint::finite::{not_finite, state_not_finite};
use crate::checkpoint::{CheckpointWriter, RETRY, SaveError, SaveStatus, Snapshot, free_bytes, size_bytes};
use crate::config::{Every, OnSaveError};
use crate::error::TrainError;
use crate::run_dir::events::at_update;
use crate::task::Task;
use crate::trainer::state::Best;

use super::{Trainer, checksum};

/// Shorter waits for the previous save are not reported.
const MIN_REPORTED_WAIT_S: f64 = 0.5;

impl<T: Task> Trainer<T> {
    /// At each update boundary: reports a save that ended, and retries one that failed.
    pub(super) fn poll_saves(&mut self) -> Result<(), TrainError> {
        let now = Instant::now();
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if let Some(status) = writer.poll(now)? {
            self.handle_save_status(status)?;
        }
        self.writer.as_mut().map_or(Ok(()), |writer| writer.retry_if_due(now))
    }

    /// Starts to save the state after the current update, unless it is saved already.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        let started = Instant::now();
        self.session.group.at(format!("the checkpoint after {}", at_update(self.state.cursor.updates)));
        self.session.finish_data_check(self.config.comm.progress_timeout())?;
        self.wait_for_previous_save()?;
        self.compare_replicas()?;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if writer.saved() == Some(self.state.cursor.updates) {
            return Ok(());
        }
        if let Some(lost) = writer.drop_failed() {
            self.bests.retain(|best| best.update != lost);
        }
        self.state.scalars = self.optimizer.scalars();
        let (slots, spare) = (self.optimizer.state(), writer.spare());
        let snapshot = Snapshot::take(&self.constants, &self.state, &self.parameters, &slots, spare);
        writer.begin(snapshot, started.elapsed())
    }

    /// Waits for the checkpoint under way: only one is written at a time.
    fn wait_for_previous_save(&mut self) -> Result<(), TrainError> {
        let (started, limit) = (Instant::now(), self.config.comm.progress_timeout());
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let Some(earlier) = writer.in_progress() else { return Ok(()) };
        let status = writer.wait(limit)?;
        let waited = started.elapsed().as_secs_f64();
        if waited >= MIN_REPORTED_WAIT_S && !std::mem::replace(&mut self.warned_of_waiting, true) {
            let message = format!(
                "training waited {} at {} because the checkpoint after {} was still being written: save less often \
                 (checkpoint.every) or to a faster disk",
                duration(waited),
                at_update(self.state.cursor.updates),
                at_update(earlier)
            );
            self.events.emit(&Event::Warning { message });
        }
        status.map_or(Ok(()), |status| self.handle_save_status(status))
    }

    fn compare_replicas(&mut self) -> Result<(), TrainError> {
        if self.session.group.world() == 1 {
            return Ok(());
        }
        let sums = self.session.group.all_gather_bytes(&checksum(&self.parameters).to_le_bytes())?;
        match sums.iter().position(|sum| *sum != sums[0]) {
            None => Ok(()),
            Some(rank) => Err(self.disagreement("the parameters", format!("rank {rank}'s differ from rank 0's"))),
        }
    }

    /// On rank 0: the best is the best of what is on disk or being written. The other ranks get it
    /// in the next header, before they compare anything with it.
    fn reconsider_best(&mut self) {
        let failed = self.writer.as_ref().and_then(CheckpointWriter::failed);
        let best = best_saved(&self.bests, failed);
        if self.state.best.as_ref().map(|best| best.update) != best.map(|best| best.update) {
            self.state.best = best.cloned();
        }
    }

    fn handle_save_status(&mut self, status: SaveStatus) -> Result<(), TrainError> {
        self.reconsider_best();
        match status {
            SaveStatus::Saved { update, saved, is_best, took, paused } => {
                self.last_saved = Some(update);
                self.events.emit(&Event::Checkpoint {
                    update,
                    path: saved.path,
                    best: is_best,
                    seconds: took.as_secs_f64(),
                    paused_seconds: paused.as_secs_f64(),
                });
                for message in saved.warnings {
                    // A disk that is too small would be reported at every save.
                    if self.reported_warnings.insert(message.clone()) {
                        self.events.emit(&Event::Warning { message });
                    }
                }
            }
            SaveStatus::Failed { save_error, .. } if self.config.checkpoint.on_error == OnSaveError::Stop => {
                return Err(self.unsaved(save_error, "checkpoint.on_error = \"stop\" ends the run here"));
            }
            SaveStatus::Failed { update, epoch, save_error, tries: 1 } => {
                let message = format!(
                    "{save_error}. Training continues without a checkpoint later than {}; this one (after {}) is retried \
                     every {} minutes{}",
                    self.last_checkpoint(),
                    at_update(update),
                    RETRY.as_secs() / 60,
                    next_save(self.config.checkpoint.every, update, epoch)
                );
                self.events.emit(&Event::Warning { message });
            }
            SaveStatus::Failed { update, save_error, tries, .. } => {
                let message = format!(
                    "the checkpoint after {} still cannot be saved (attempt {tries}): {}",
                    at_update(update),
                    save_error.reason()
                );
                self.events.emit(&Event::Warning { message });
            }
        }
        Ok(())
    }

    /// Waits for the checkpoint under way: a run succeeds only with its last checkpoint saved.
    /// Called before the last exchange, so that all ranks end as rank 0 does.
    pub(crate) fn finish_saves(&mut self) -> Result<(), TrainError> {
        let limit = self.config.comm.progress_timeout();
        match self.writer.as_mut().map_or(Ok(None), |writer| writer.wait(limit))? {
            None => Ok(()),
            Some(SaveStatus::Failed { save_error, .. }) => {
                Err(self.unsaved(save_error, "This was the last checkpoint of the run"))
            }
            Some(status) => self.handle_save_status(status),
        }
    }

    /// After a failure: waits for the checkpoint under way, which is still useful.
    pub(crate) fn finish_save_after_failure(&mut self) {
        let limit = self.config.comm.progress_timeout();
        if let Some(writer) = &mut self.writer
            && let Ok(Some(status @ SaveStatus::Saved { .. })) = writer.wait(limit)
        {
            _ = self.handle_save_status(status);
        }
    }

    fn unsaved(&self, save_error: SaveError, consequence: &'static str) -> TrainError {
        TrainError::Unsaved { save_error: Box::new(save_error), consequence, last: self.last_checkpoint() }
    }

    /// At the start: warns if the first checkpoint does not fit on the disk.
    pub(crate) fn warn_if_disk_is_small(&mut self) {
        if self.writer.is_none() {
            return;
        }
        let needed = size_bytes(self.session.layout.len(), self.optimizer.state().len());
        if let Some(free) = free_bytes(self.checkpoints.dir())
            && free < needed
        {
            let message = format!(
                "a checkpoint takes {} and {} is free in {}: free some space or set another run.dir",
                hetseq_metrics::bytes(needed),
                hetseq_metrics::bytes(free),
                self.checkpoints.dir().display()
            );
            self.events.emit(&Event::Warning { message });
        }
    }

    /// The error for an update that wrote a non-finite value, which must not be saved. All ranks
    /// detect it after the same update, since their parameters and moments are equal.
    pub(super) fn diverged(&self, update: u64) -> TrainError {
        let slots = self.optimizer.state();
        let in_state =
            || state_not_finite(&self.session.layout, slots.iter().map(|(name, values)| (name.as_str(), *values)));
        let what = not_finite(&self.session.layout, &self.parameters).or_else(in_state).unwrap_or_default();
        TrainError::Diverged { update, what, last: self.last_checkpoint() }
    }

    /// The checkpoint to resume from, for messages. Only rank 0 has the files.
    pub(crate) fn last_checkpoint(&self) -> String {
        match self.last_saved {
            None => "the start (there is no checkpoint yet)".to_owned(),
            Some(update) if self.session.group.rank() == 0 => {
                let newest = self.checkpoints.newest();
                newest.map_or_else(|| at_update(update), |path| path.display().to_string())
            }
            Some(update) => format!("rank 0's checkpoint after {}", at_update(update)),
        }
    }
}

/// The newest of `bests`, which is the best, without the one that could not be written (`failed`).
fn best_saved(bests: &[Best], failed: Option<u64>) -> Option<&Best> {
    bests.iter().rev().find(|best| Some(best.update) != failed)
}

/// When the next checkpoint is due after the one of `update`, `epoch` epochs into the run. The end
/// of a sentence.
fn next_save(every: Every, update: u64, epoch: u64) -> String {
    match every {
        Every::Updates(n) => format!(" until the next is due, after {}", at_update((update / n + 1) * n)),
        Every::Epochs(n) => format!(" until the next is due, after epoch {}", (epoch / n + 1) * n),
        Every::Never => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_a_best_cannot_be_written_the_one_before_it_is_the_best() {
        let best = |update: u64| Best { metric: "loss".to_owned(), value: 1.0 / update as f64, update, since: 0 };
        let bests = [best(4), best(6)];
        assert_eq!(best_saved(&bests, None), Some(&bests[1]));
        assert_eq!(best_saved(&bests, Some(6)), Some(&bests[0]));
        // A checkpoint that was not the best changes nothing.
        assert_eq!(best_saved(&bests, Some(8)), Some(&bests[1]));
        assert_eq!(best_saved(&bests[..1], Some(4)), None);
    }

    #[test]
    fn the_message_says_when_the_next_save_is_due() {
        assert_eq!(next_save(Every::Updates(500), 1000, 0), " until the next is due, after update 1,500");
        // The best may have been saved in between.
        assert_eq!(next_save(Every::Updates(500), 1200, 0), " until the next is due, after update 1,500");
        assert_eq!(next_save(Every::Epochs(2), 1200, 2), " until the next is due, after epoch 4");
        assert_eq!(next_save(Every::Never, 1200, 2), "");
    }
}
