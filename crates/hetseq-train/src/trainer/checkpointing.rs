//! Saving: takes a snapshot at an update boundary, which rank 0 writes in the background
//! ([`CheckpointWriter`]), and handles failed saves. All ranks call [`Checkpointing::save`] after
//! the same update: nothing is saved unless all replicas are equal.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hetseq_metrics::{Event, duration};

use crate::checkpoint::{CheckpointWriter, Checkpoints, RETRY, RunConstants, SaveError, SaveStatus, Snapshot};
use crate::config::{Checkpoint, Every, OnSaveError};
use crate::error::TrainError;
use crate::run_dir::events::at_update;
use crate::run_dir::lock::RunLock;
use crate::run_dir::run_files::write_run_files;
use crate::trainer::header::MergedHeader;
use crate::trainer::state::{Best, State};

use super::healing::odd_ranks;
use super::learner::Learner;
use super::observer::Observer;
use super::session::Session;

/// Shorter waits for the previous save are not reported.
const MIN_REPORTED_WAIT_S: f64 = 0.5;

pub(crate) struct Checkpointing {
    config: Checkpoint,
    constants: Arc<RunConstants>,
    store: Checkpoints,
    /// On rank 0.
    writer: Option<CheckpointWriter>,
    /// How long to wait for a checkpoint that is being written.
    timeout: Duration,
    /// Every best so far, oldest first. If one cannot be saved, the one before it is the best.
    bests: Vec<Best>,
    /// The update of the last complete checkpoint, of this process or the one it resumed from.
    last_saved: Option<u64>,
    /// The update whose checkpoint, the one that this process resumed from, was saved before its
    /// validation was complete. It is saved again after that.
    before_validation: Option<u64>,
    /// Whether a warning about saves that wait for earlier saves was emitted.
    warned_of_waiting: bool,
    /// Warnings about saved checkpoints that were already reported.
    reported_warnings: BTreeSet<String>,
    /// Held while this process uses the run directory (rank 0).
    lock: Option<RunLock>,
}

impl Checkpointing {
    /// `state` is that of the start of this process.
    pub(super) fn new(
        config: &Checkpoint,
        constants: RunConstants,
        store: Checkpoints,
        writer: Option<CheckpointWriter>,
        lock: Option<RunLock>,
        timeout: Duration,
        state: &State,
    ) -> Self {
        Checkpointing {
            config: config.clone(),
            constants: Arc::new(constants),
            store,
            writer,
            timeout,
            bests: state.best.iter().cloned().collect(),
            last_saved: Some(state.cursor.updates).filter(|&updates| updates > 0),
            before_validation: state.unfinished_validation.map(|_| state.cursor.updates),
            warned_of_waiting: false,
            reported_warnings: BTreeSet::new(),
            lock,
        }
    }

    /// The update of the newest complete checkpoint; on rank 0.
    pub(super) fn saved(&self) -> Option<u64> {
        self.writer.as_ref().and_then(CheckpointWriter::saved)
    }

    pub(super) fn store(&self) -> &Checkpoints {
        &self.store
    }

    /// Starts to save on this rank, which leads from now on. Its disk holds the checkpoints `steps`.
    /// What is not on its disk is not saved.
    pub(super) fn take_over(
        &mut self,
        writer: Option<CheckpointWriter>,
        lock: Option<RunLock>,
        steps: &[u64],
        state: &mut State,
    ) {
        (self.writer, self.lock) = (writer, lock);
        self.last_saved = steps.last().copied();
        self.bests.retain(|best| steps.contains(&best.update));
        self.reconsider_best(state);
    }

    /// Stops to save on this rank, which does not lead any more.
    pub(super) fn hand_over(&mut self) {
        (self.writer, self.lock) = (None, None);
    }

    /// The number of bests so far.
    pub(super) fn bests(&self) -> usize {
        self.bests.len()
    }

    /// Forgets the bests after the first `count`.
    pub(super) fn restore_bests(&mut self, count: usize) {
        self.bests.truncate(count);
    }

    /// Takes the best of a state that was copied from another rank.
    pub(super) fn follow_best(&mut self, state: &State) {
        let is_new = |best: &&Best| self.bests.iter().all(|other| other.update != best.update);
        if let Some(best) = state.best.as_ref().filter(is_new) {
            self.bests.push(best.clone());
        }
    }

    /// Adds the validation just done, which is the best so far.
    pub(super) fn add_best(&mut self, best: Best) {
        self.bests.push(best);
    }

    /// Takes what rank 0 has saved, and which is the best of that, from a merged header.
    pub(super) fn follow(&mut self, merged: &MergedHeader, state: &mut State) {
        self.last_saved = merged.saved;
        if state.best.as_ref().map(|best| best.update) != merged.best {
            state.best = self.bests.iter().find(|best| Some(best.update) == merged.best).cloned();
        }
    }

    /// At each update boundary: reports a save that ended, and retries one that failed.
    pub(super) fn poll(&mut self, state: &mut State, observer: &mut Observer) -> Result<(), TrainError> {
        let now = Instant::now();
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if let Some(status) = writer.poll(now)? {
            self.handle_status(status, state, observer)?;
        }
        self.writer.as_mut().map_or(Ok(()), |writer| writer.retry_if_due(now))
    }

    /// Starts to save the state after the current update, unless it is saved already. A collective.
    pub(super) fn save(
        &mut self,
        learner: &mut Learner,
        session: &mut Session,
        observer: &mut Observer,
    ) -> Result<(), TrainError> {
        let (started, updates) = (Instant::now(), learner.updates());
        session.group.at(format!("the checkpoint after {}", at_update(updates)));
        session.finish_data_check(self.timeout)?;
        self.wait_for_previous(&mut learner.state, observer)?;
        self.compare_replicas(learner, session)?;
        self.restore_run_dir(session.group.world(), learner.state.run.as_deref(), observer)?;
        // All ranks are here, so this boundary is not repeated. The validation must be in the journal
        // before the writer flushes it: a resume from this checkpoint does not validate again.
        observer.release_held();
        let Some(writer) = &mut self.writer else { return Ok(()) };
        if writer.saved() == Some(updates) && self.before_validation != Some(updates) {
            return Ok(());
        }
        self.before_validation = None;
        if let Some(lost) = writer.drop_failed() {
            self.bests.retain(|best| best.update != lost);
        }
        learner.complete_state();
        let spare = writer.spare();
        let snapshot = Snapshot::take(&self.constants, &learner.state, &learner.parameters, &learner.slots(), spare);
        writer.begin(snapshot, started.elapsed())
    }

    /// On rank 0: writes the files of a run directory that was removed, and locks it again. Fails if
    /// another process trains there now.
    fn restore_run_dir(&mut self, world: usize, run: Option<&str>, observer: &mut Observer) -> Result<(), TrainError> {
        let (Some(lock), Some(dir)) = (&self.lock, self.store.dir().parent()) else { return Ok(()) };
        if lock.is_in_place(dir) {
            return Ok(());
        }
        observer.warn(format!("{} was removed: restoring config.toml, env.json and the lock", dir.display()));
        let lock = RunLock::take(dir)?;
        write_run_files(dir, &self.constants.config, world, run)?;
        self.lock = Some(lock);
        Ok(())
    }

    /// Saves the current state in this rank's own run directory, without the other ranks.
    pub(super) fn save_alone(&self, learner: &mut Learner) -> Result<PathBuf, TrainError> {
        self.store.prepare()?;
        learner.complete_state();
        let snapshot = Snapshot::take(&self.constants, &learner.state, &learner.parameters, &learner.slots(), None);
        let saved = self.store.save(&snapshot, self.config.keep);
        saved.map(|saved| saved.path).map_err(|error| self.unsaved(error, "This rank stops"))
    }

    /// Waits for the checkpoint under way: only one is written at a time.
    fn wait_for_previous(&mut self, state: &mut State, observer: &mut Observer) -> Result<(), TrainError> {
        let started = Instant::now();
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let Some(earlier) = writer.in_progress() else { return Ok(()) };
        let status = writer.wait(self.timeout)?;
        let waited = started.elapsed().as_secs_f64();
        if waited >= MIN_REPORTED_WAIT_S && !std::mem::replace(&mut self.warned_of_waiting, true) {
            observer.warn(format!(
                "training waited {} at {} because the checkpoint after {} was still being written: save less often \
                 (checkpoint.every) or to a faster disk",
                duration(waited),
                at_update(state.cursor.updates),
                at_update(earlier)
            ));
        }
        status.map_or(Ok(()), |status| self.handle_status(status, state, observer))
    }

    fn compare_replicas(&self, learner: &Learner, session: &mut Session) -> Result<(), TrainError> {
        if session.group.world() == 1 {
            return Ok(());
        }
        let sums = session.group.all_gather_bytes(&learner.checksum().to_le_bytes())?;
        match sums.iter().position(|sum| *sum != sums[0]) {
            None => Ok(()),
            Some(rank) => Err(TrainError::Disagreement {
                update: learner.updates(),
                what: "the parameters",
                detail: format!("rank {rank}'s differ from rank 0's"),
                last: self.last_checkpoint(),
                odd_ranks: odd_ranks(&sums),
            }),
        }
    }

    /// On rank 0: the best is the best of what is on disk or being written. The other ranks get it
    /// in the next header, before they compare anything with it.
    fn reconsider_best(&mut self, state: &mut State) {
        let failed = self.writer.as_ref().and_then(CheckpointWriter::failed);
        let best = best_saved(&self.bests, failed);
        if state.best.as_ref().map(|best| best.update) != best.map(|best| best.update) {
            state.best = best.cloned();
        }
    }

    fn handle_status(
        &mut self,
        status: SaveStatus,
        state: &mut State,
        observer: &mut Observer,
    ) -> Result<(), TrainError> {
        self.reconsider_best(state);
        match status {
            SaveStatus::Saved { update, saved, is_best, took, paused } => {
                self.last_saved = Some(update);
                observer.events.emit(&Event::Checkpoint {
                    update,
                    path: saved.path,
                    best: is_best,
                    seconds: took.as_secs_f64(),
                    paused_seconds: paused.as_secs_f64(),
                });
                for message in saved.warnings {
                    // A disk that is too small would be reported at every save.
                    if self.reported_warnings.insert(message.clone()) {
                        observer.warn(message);
                    }
                }
            }
            SaveStatus::Failed { save_error, .. } if self.config.on_error == OnSaveError::Stop => {
                return Err(self.unsaved(save_error, "checkpoint.on_error = \"stop\" ends the run here"));
            }
            SaveStatus::Failed { update, epoch, save_error, tries: 1 } => observer.warn(format!(
                "{save_error}. Training continues without a checkpoint later than {}; this one (after {}) is retried \
                 every {} minutes{}",
                self.last_checkpoint(),
                at_update(update),
                RETRY.as_secs() / 60,
                next_save(self.config.every, update, epoch)
            )),
            SaveStatus::Failed { update, save_error, tries, .. } => observer.warn(format!(
                "the checkpoint after {} still cannot be saved (attempt {tries}): {}",
                at_update(update),
                save_error.reason()
            )),
        }
        Ok(())
    }

    /// Waits for the checkpoint under way: a run succeeds only with its last checkpoint saved.
    /// Called before the last exchange, so that all ranks end as rank 0 does.
    pub(super) fn finish(&mut self, state: &mut State, observer: &mut Observer) -> Result<(), TrainError> {
        match self.writer.as_mut().map_or(Ok(None), |writer| writer.wait(self.timeout))? {
            None => Ok(()),
            Some(SaveStatus::Failed { save_error, .. }) => {
                Err(self.unsaved(save_error, "This was the last checkpoint of the run"))
            }
            Some(status) => self.handle_status(status, state, observer),
        }
    }

    /// After a failure: waits for the checkpoint under way, which is still useful.
    pub(super) fn finish_after_failure(&mut self, state: &mut State, observer: &mut Observer) {
        if let Some(writer) = &mut self.writer
            && let Ok(Some(status @ SaveStatus::Saved { .. })) = writer.wait(self.timeout)
        {
            _ = self.handle_status(status, state, observer);
        }
    }

    fn unsaved(&self, save_error: SaveError, consequence: &'static str) -> TrainError {
        TrainError::Unsaved { save_error: Box::new(save_error), consequence, last: self.last_checkpoint() }
    }

    /// The checkpoint to resume from, for messages. Only rank 0 has the files.
    pub(super) fn last_checkpoint(&self) -> String {
        match self.last_saved {
            None => "the start (there is no checkpoint yet)".to_owned(),
            Some(update) if self.writer.is_some() => {
                let newest = self.store.newest().ok().flatten();
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
