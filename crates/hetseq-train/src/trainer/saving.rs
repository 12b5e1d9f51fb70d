//! How the trainer saves: a snapshot at an update boundary, written in the background ([`Saver`], on rank 0), and what
//! follows when that fails. All ranks come to [`Trainer::save`] together: only what all replicas agree on is saved.

use std::time::Instant;

use hetseq_metrics::{Event, duration};

use crate::checkpoint::{News, RETRY, Saver, Snapshot, Trouble, free_bytes, size_bytes};
use crate::config::{Every, OnError};
use crate::error::TrainError;
use crate::finite::{not_finite, state_not_finite};
use crate::observer::at_update;
use crate::state::Best;
use crate::task::Task;

use super::{Trainer, checksum};

/// Waiting for the last save for less than this is not worth a word.
const WORTH_TELLING_S: f64 = 0.5;

impl<T: Task> Trainer<T> {
    /// At each update boundary: tell how the save under way ended, and try again what failed.
    pub(super) fn look_after_saves(&mut self) -> Result<(), TrainError> {
        let now = Instant::now();
        let Some(saver) = &mut self.saver else { return Ok(()) };
        if let Some(news) = saver.poll(now)? {
            self.take_news(news)?;
        }
        self.saver.as_mut().map_or(Ok(()), |saver| saver.retry_if_due(now))
    }

    /// Begin to save what the run is after the present update, unless that is saved already.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        let started = Instant::now();
        self.crew.group.at(format!("the checkpoint after {}", at_update(self.state.cursor.updates)));
        self.crew.finish_data_check(self.config.comm.progress())?;
        self.wait_for_the_last_save()?;
        self.compare_replicas()?;
        let Some(saver) = &mut self.saver else { return Ok(()) };
        if saver.saved() == Some(self.state.cursor.updates) {
            return Ok(());
        }
        if let Some(lost) = saver.give_up() {
            self.bests.retain(|best| best.update != lost);
        }
        self.state.scalars = self.optimizer.scalars();
        let (slots, spare) = (self.optimizer.state(), saver.spare());
        let snapshot = Snapshot::take(&self.common, &self.state, &self.parameters, &slots, spare);
        saver.begin(snapshot, started.elapsed())
    }

    /// Only one is written at a time.
    fn wait_for_the_last_save(&mut self) -> Result<(), TrainError> {
        let (started, limit) = (Instant::now(), self.config.comm.progress());
        let Some(saver) = &mut self.saver else { return Ok(()) };
        let Some(earlier) = saver.under_way() else { return Ok(()) };
        let news = saver.wait(limit)?;
        let waited = started.elapsed().as_secs_f64();
        if waited >= WORTH_TELLING_S && !std::mem::replace(&mut self.told_of_waiting, true) {
            let message = format!(
                "training waited {} at {} because the checkpoint after {} was still being written: save less often \
                 (checkpoint.every) or to a faster disk",
                duration(waited),
                at_update(self.state.cursor.updates),
                at_update(earlier)
            );
            self.observer.tell(&Event::Warning { message });
        }
        news.map_or(Ok(()), |news| self.take_news(news))
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

    /// Rank 0: the best is the best of what is on the disk or on the way there. The others hear of it in the next
    /// header, before they compare anything with it.
    fn reconsider_best(&mut self) {
        let held = self.saver.as_ref().and_then(Saver::held);
        let best = best_but(&self.bests, held);
        if self.state.best.as_ref().map(|best| best.update) != best.map(|best| best.update) {
            self.state.best = best.cloned();
        }
    }

    fn take_news(&mut self, news: News) -> Result<(), TrainError> {
        self.reconsider_best();
        match news {
            News::Saved { update, saved, is_best, took, paused } => {
                self.last_saved = Some(update);
                self.observer.tell(&Event::Checkpoint {
                    update,
                    path: saved.path,
                    best: is_best,
                    seconds: took.as_secs_f64(),
                    paused_seconds: paused.as_secs_f64(),
                });
                for message in saved.remarks {
                    // A disk that is too small is so at every save.
                    if self.remarks_told.insert(message.clone()) {
                        self.observer.tell(&Event::Warning { message });
                    }
                }
            }
            News::Failed { trouble, .. } if self.config.checkpoint.on_error == OnError::Stop => {
                return Err(self.unsaved(trouble, "checkpoint.on_error = \"stop\" ends the run here"));
            }
            News::Failed { update, epoch, trouble, tries: 1 } => {
                let message = format!(
                    "{trouble}. Training goes on, without a checkpoint later than {}; this one (after {}) is tried \
                     again every {} minutes{}",
                    self.last_checkpoint(),
                    at_update(update),
                    RETRY.as_secs() / 60,
                    next_save(self.config.checkpoint.every, update, epoch)
                );
                self.observer.tell(&Event::Warning { message });
            }
            News::Failed { update, trouble, tries, .. } => {
                let message = format!(
                    "the checkpoint after {} still cannot be saved ({tries} tries): {}",
                    at_update(update),
                    trouble.reason()
                );
                self.observer.tell(&Event::Warning { message });
            }
        }
        Ok(())
    }

    /// The run ends well only with all of it saved. Before the last exchange, so that all ranks end as rank 0 does.
    pub(crate) fn finish_saves(&mut self) -> Result<(), TrainError> {
        let limit = self.config.comm.progress();
        match self.saver.as_mut().map_or(Ok(None), |saver| saver.wait(limit))? {
            None => Ok(()),
            Some(News::Failed { trouble, .. }) => {
                Err(self.unsaved(trouble, "This was to be the last checkpoint of the run"))
            }
            Some(news) => self.take_news(news),
        }
    }

    /// The run has failed: a checkpoint that is being written is still worth having.
    pub(crate) fn let_the_last_save_end(&mut self) {
        let limit = self.config.comm.progress();
        if let Some(saver) = &mut self.saver
            && let Ok(Some(news @ News::Saved { .. })) = saver.wait(limit)
        {
            _ = self.take_news(news);
        }
    }

    fn unsaved(&self, trouble: Trouble, consequence: &'static str) -> TrainError {
        TrainError::Unsaved { trouble: Box::new(trouble), consequence, last: self.last_checkpoint() }
    }

    /// At the start: whether the first checkpoint will find room.
    pub(crate) fn warn_of_little_room(&mut self) {
        if self.saver.is_none() {
            return;
        }
        let needed = size_bytes(self.crew.layout.len(), self.optimizer.state().len());
        if let Some(free) = free_bytes(self.checkpoints.dir())
            && free < needed
        {
            let message = format!(
                "a checkpoint takes {} and {} is free in {}: free some space or set another run.dir",
                hetseq_metrics::bytes(needed),
                hetseq_metrics::bytes(free),
                self.checkpoints.dir().display()
            );
            self.observer.tell(&Event::Warning { message });
        }
    }

    /// The update has written what must not be saved. All ranks find this after the same update, since their parameters and
    /// moments are the same.
    pub(super) fn diverged(&self, update: u64) -> TrainError {
        let slots = self.optimizer.state();
        let in_state =
            || state_not_finite(&self.crew.layout, slots.iter().map(|(name, values)| (name.as_str(), *values)));
        let place = not_finite(&self.crew.layout, &self.parameters).or_else(in_state).unwrap_or_default();
        TrainError::Diverged { update, place, last: self.last_checkpoint() }
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

/// The newest of `bests`, which is the best, unless it is the one that could not be written.
fn best_but(bests: &[Best], held: Option<u64>) -> Option<&Best> {
    bests.iter().rev().find(|best| Some(best.update) != held)
}

/// When a newer checkpoint is due than the one after `update`, when `epoch` epochs were over: the end of a sentence.
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
    fn a_best_that_could_not_be_written_gives_way_to_the_one_before_it() {
        let best = |update: u64| Best { metric: "loss".to_owned(), value: 1.0 / update as f64, update, since: 0 };
        let bests = [best(4), best(6)];
        assert_eq!(best_but(&bests, None), Some(&bests[1]));
        assert_eq!(best_but(&bests, Some(6)), Some(&bests[0]));
        // A checkpoint that was not the best changes nothing.
        assert_eq!(best_but(&bests, Some(8)), Some(&bests[1]));
        assert_eq!(best_but(&bests[..1], Some(4)), None);
    }

    #[test]
    fn when_the_next_is_due() {
        assert_eq!(next_save(Every::Updates(500), 1000, 0), " until the next is due, after update 1,500");
        // The best may have been saved in between.
        assert_eq!(next_save(Every::Updates(500), 1200, 0), " until the next is due, after update 1,500");
        assert_eq!(next_save(Every::Epochs(2), 1200, 2), " until the next is due, after epoch 4");
        assert_eq!(next_save(Every::Never, 1200, 2), "");
    }
}
