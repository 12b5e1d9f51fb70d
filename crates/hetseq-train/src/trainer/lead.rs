//! Taking over the lead: what only rank 0 does, after the old rank 0 was lost or has left. From here
//! on this rank writes checkpoints and events and shows the progress. Called by `recovery.rs`.
//!
//! The old rank 0 may only be stopped and wake up later. It is not a member any more, and what it
//! still writes does no harm: checkpoints of updates that were applied are valid and never replace
//! others, and it has lost its `metrics.jsonl`.

use hetseq_metrics::Event;

use crate::error::TrainError;
use crate::run::run_dir;
use crate::run_dir::archive::archive_run;
use crate::run_dir::lock::RunLock;
use crate::run_dir::run_files::{run_in, write_run_files};
use crate::run_dir::stop_file::StopFileWatch;

use super::Trainer;
use super::setup::start_writer;

impl Trainer {
    pub(super) fn take_over_lead(&mut self) -> Result<(), TrainError> {
        let (dir, updates) = (run_dir(&self.config), self.learner.updates());
        hetseq_fs::create_dir_all(&dir).map_err(TrainError::io(format!("opening {}", dir.display())))?;
        let run = self.learner.state.run.clone();
        // Without a shared run directory, this one may hold later checkpoints of an earlier start,
        // or another run.
        let is_other = run_in(&dir).is_some_and(|other| Some(other) != run);
        archive_run(&dir, (!is_other).then_some(updates))?;
        self.checkpointing.store().prepare()?;
        write_run_files(&dir, &self.session.task.config, self.session.group.world(), run.as_deref())?;
        self.stop_file_watch = Some(StopFileWatch::start(&dir, self.stop.clone())?);
        let written = self.observer.events.take_over(&self.config, &dir, updates, self.boundary.is_some())?;
        let store = self.checkpointing.store().clone();
        let steps = store.steps()?;
        let saved = steps.last().copied();
        let writer = start_writer(&self.observer.events, &store, self.config.checkpoint.keep, &dir, saved)?;
        self.checkpointing.take_over(writer, RunLock::try_take(&dir), &steps, &mut self.learner.state);
        let host = self.session.group.host(0).to_owned();
        self.observer.emit_unwritten(&written);
        self.observer.events.emit(&Event::Lead { update: updates, host, total_updates: self.learner.total_updates() });
        Ok(())
    }
}
