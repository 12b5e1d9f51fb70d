//! Events of a run: rank 0 sends them to `metrics.jsonl` and to the terminal, other ranks only to
//! their terminal, which shows few of them. Also writes the debug output of `debug.audit` and `debug.gradients`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fs_err as fs;
use hetseq_comm::Group;
use hetseq_metrics::events::sink::{JsonLines, Overflow};
use hetseq_metrics::{Background, Event, Journal, terminal, thousands};
use hetseq_optim::Layout;

use crate::checkpoint::write_entries;
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::run_dir::audit::{Audit, AuditLine};

/// The file of all events, one per line.
pub(super) const JOURNAL: &str = "metrics.jsonl";

/// How long the end of a run waits for events that are not yet written and not yet shown.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(10);
const TERMINAL_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) struct RunEvents {
    dir: PathBuf,
    /// On rank 0, which also shows events on its terminal.
    journal: Option<Arc<Background>>,
    /// Set when the journal's queue is full.
    overflow: Option<Overflow>,
    /// On all ranks, with `debug.audit`.
    pub(crate) audit: Option<Audit>,
    gradients: bool,
}

impl RunEvents {
    /// Opens the sinks for a run that has done `at` updates.
    pub(crate) fn start(config: &RunConfig, dir: &Path, group: &Group, at: u64) -> Result<Self, TrainError> {
        let rank = group.rank();
        let doing = || format!("opening the run directory {}", dir.display());
        let journal = if rank == 0 {
            fs::create_dir_all(dir).map_err(TrainError::io(doing()))?;
            let journal = Journal::open(&dir.join(JOURNAL), at).map_err(TrainError::io(doing()))?;
            terminal::show(config.run.log_every);
            Some(Arc::new(Background::start(JOURNAL, Box::new(journal)).map_err(TrainError::io(doing()))?))
        } else {
            terminal::follow(&format!("rank {rank} ({})", group.host(rank)));
            None
        };
        let audit = config.debug.audit.then(|| Audit::new(dir));
        let audit = match audit {
            Some(audit) if rank == 0 => Some(audit.writing(at, JsonLines::open)),
            audit => audit,
        };
        let gradients = config.debug.gradients && rank == 0;
        Ok(RunEvents { dir: dir.to_owned(), journal, overflow: None, audit, gradients })
    }

    /// Continues on this rank what the lost rank 0 did. The run has done `at` updates; if
    /// `repeats_boundary`, the validation after the last one is repeated. Returns the events that the
    /// lost rank has written.
    pub(crate) fn take_over(
        &mut self,
        config: &RunConfig,
        dir: &Path,
        at: u64,
        repeats_boundary: bool,
    ) -> Result<Vec<Event>, TrainError> {
        let doing = || format!("taking over {}", dir.join(JOURNAL).display());
        let journal = Journal::take_over(&dir.join(JOURNAL), at, repeats_boundary).map_err(TrainError::io(doing()))?;
        terminal::show(config.run.log_every);
        self.journal = Some(Arc::new(Background::start(JOURNAL, Box::new(journal)).map_err(TrainError::io(doing()))?));
        if let Some(audit) = self.audit.take() {
            let mut audit = audit.writing(at, JsonLines::take_over);
            audit.write_missing().map_err(TrainError::io("writing the audit"))?;
            self.audit = Some(audit);
        }
        self.gradients = config.debug.gradients;
        let text = fs::read_to_string(dir.join(JOURNAL)).map_err(TrainError::io(doing()))?;
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Writes what is queued, and no event after that: another rank takes over the file.
    pub(crate) fn close(&mut self) {
        if let Some(journal) = self.journal.take() {
            journal.flush(EVENTS_TIMEOUT);
        }
    }

    /// Queues `event`. Never blocks, except for the last event of a run. Errors of earlier events
    /// become warnings.
    pub(crate) fn emit(&mut self, event: &Event) {
        if matches!(event, Event::End { .. }) {
            return self.finish(event);
        }
        self.emit_sink_warnings();
        self.send(event);
    }

    fn send(&mut self, event: &Event) {
        if let Some(journal) = &self.journal
            && let Err(overflow) = journal.event(event)
        {
            self.overflow.get_or_insert(overflow);
        }
        terminal::event(event);
    }

    fn emit_sink_warnings(&mut self) {
        for message in self.journal.as_ref().map_or_else(Vec::new, |journal| journal.take_notes()) {
            self.send(&Event::Warning { message });
        }
    }

    /// Waits for earlier events first, so that `end` is the last event.
    fn finish(&mut self, end: &Event) {
        let Some(journal) = self.journal.clone() else {
            terminal::event(end);
            return terminal::flush(TERMINAL_TIMEOUT);
        };
        let limit = if journal.flush(EVENTS_TIMEOUT) > 0 { Duration::ZERO } else { EVENTS_TIMEOUT };
        self.emit_sink_warnings();
        self.send(end);
        let unwritten = journal.flush(limit);
        self.emit_sink_warnings();
        if unwritten > 0 {
            terminal::print(&format!(
                "warning: {unwritten} events were not written to {JOURNAL} within {} s: the disk is too slow or hangs",
                EVENTS_TIMEOUT.as_secs()
            ));
        }
        terminal::flush(TERMINAL_TIMEOUT);
    }

    /// Fails when no event could be written to `metrics.jsonl` for so long that the queue is full.
    pub(crate) fn check(&mut self) -> Result<(), TrainError> {
        match self.overflow.take() {
            None => Ok(()),
            Some(overflow) => Err(TrainError::io(format!("writing to the run directory {}", self.dir.display()))(
                io::Error::other(overflow),
            )),
        }
    }

    /// The journal, on rank 0, to wait until events are on disk.
    pub(crate) fn journal(&self) -> Option<Arc<Background>> {
        self.journal.clone()
    }

    /// Whether this rank emits events.
    pub(crate) fn is_enabled(&self) -> bool {
        self.journal.is_some()
    }

    /// `debug.audit`: records which samples each rank has computed in an update.
    pub(crate) fn audit(&mut self, line: impl FnOnce() -> AuditLine) -> Result<(), TrainError> {
        let Some(audit) = &mut self.audit else { return Ok(()) };
        audit.record(line()).map_err(TrainError::io("writing the audit"))
    }

    /// `debug.gradients`: writes the reduced gradient of update number `update`, before clipping.
    /// Frozen parameters have none.
    pub(crate) fn gradient(&self, update: u64, layout: &Layout, flat: &[f32]) -> Result<(), TrainError> {
        if !self.gradients {
            return Ok(());
        }
        let dir = self.dir.join("gradients");
        let write = || {
            fs::create_dir_all(&dir)?;
            write_entries(&dir.join(format!("update-{update}.safetensors")), layout.trainable_entries(), flat)
        };
        write().map_err(TrainError::io("writing a gradient"))
    }
}

/// An update number for messages, such as `update 8,412`.
pub(crate) fn at_update(update: u64) -> String {
    format!("update {}", thousands(update))
}
