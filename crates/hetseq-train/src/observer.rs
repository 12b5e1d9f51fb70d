//! The run's directory and what is told to people: on rank 0 it carries events to the sinks, on other ranks it is mute.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fs_err as fs;
use hetseq_metrics::sink::{JsonLines, Overflow};
use hetseq_metrics::{Background, Event, Journal, terminal, thousands};
use serde::Serialize;

use crate::checkpoint::{Checkpoints, write_flat};
use crate::config::Config;
use crate::error::TrainError;
use crate::run_files;
use hetseq_optim::Layout;

pub(crate) struct Observer {
    dir: PathBuf,
    /// On rank 0, which also shows events on its terminal.
    journal: Option<Arc<Background>>,
    /// Why the journal takes no more events.
    overflow: Option<Overflow>,
    audit: Option<JsonLines>,
    gradients: bool,
}

/// How long the end of a run waits for what is not yet written and not yet shown.
const LAST_EVENTS: Duration = Duration::from_secs(10);
const LAST_LINES: Duration = Duration::from_secs(2);

impl Observer {
    /// `at`: the updates that are done already.
    pub(crate) fn start<C: Serialize>(
        config: &Config<C>,
        dir: &Path,
        rank: usize,
        at: u64,
    ) -> Result<Self, TrainError> {
        let doing = || format!("opening the run directory {}", dir.display());
        let journal = if rank == 0 {
            fs::create_dir_all(dir).map_err(TrainError::io(doing()))?;
            let journal = Journal::open(&dir.join(JOURNAL), at).map_err(TrainError::io(doing()))?;
            terminal::show(config.run.log_every);
            Some(Arc::new(Background::start(JOURNAL, Box::new(journal)).map_err(TrainError::io(doing()))?))
        } else {
            None
        };
        let audit = if config.debug.audit {
            fs::create_dir_all(dir).map_err(TrainError::io(doing()))?;
            let path = dir.join(format!("audit-rank-{rank}.jsonl"));
            Some(JsonLines::open(&path, at).map_err(TrainError::io(doing()))?)
        } else {
            None
        };
        let gradients = config.debug.gradients && rank == 0;
        Ok(Observer { dir: dir.to_owned(), journal, overflow: None, audit, gradients })
    }

    /// Never blocks, except for the last event of a run. What went wrong with earlier events becomes a warning.
    pub(crate) fn tell(&mut self, event: &Event) {
        if matches!(event, Event::End { .. }) {
            return self.finish(event);
        }
        self.warn_of_trouble();
        self.pass_on(event);
    }

    fn pass_on(&mut self, event: &Event) {
        let Some(journal) = &self.journal else { return };
        if let Err(overflow) = journal.event(event) {
            self.overflow.get_or_insert(overflow);
        }
        terminal::event(event);
    }

    fn warn_of_trouble(&mut self) {
        for message in self.journal.as_ref().map_or_else(Vec::new, |journal| journal.take_notes()) {
            self.pass_on(&Event::Warning { message });
        }
    }

    /// Waits for earlier events first, so that `end` is the last line.
    fn finish(&mut self, end: &Event) {
        let Some(journal) = self.journal.clone() else { return };
        let limit = if journal.flush(LAST_EVENTS) > 0 { Duration::ZERO } else { LAST_EVENTS };
        self.warn_of_trouble();
        self.pass_on(end);
        let unwritten = journal.flush(limit);
        self.warn_of_trouble();
        if unwritten > 0 {
            terminal::print(&format!(
                "warning: {unwritten} events were not written to {JOURNAL} within {} s: the disk is too slow or hangs",
                LAST_EVENTS.as_secs()
            ));
        }
        terminal::flush(LAST_LINES);
    }

    /// Fails when `metrics.jsonl` has taken no event for so long that the queue is full.
    pub(crate) fn check(&mut self) -> Result<(), TrainError> {
        match self.overflow.take() {
            None => Ok(()),
            Some(overflow) => Err(TrainError::io(format!("writing to the run directory {}", self.dir.display()))(
                io::Error::other(overflow),
            )),
        }
    }

    /// On rank 0: for those who must know that events are on the disk.
    pub(crate) fn journal(&self) -> Option<Arc<Background>> {
        self.journal.clone()
    }

    pub(crate) fn is_telling(&self) -> bool {
        self.journal.is_some()
    }

    /// `debug.audit`: this rank computes `samples` for update number `update`.
    pub(crate) fn audit(
        &mut self,
        update: u64,
        epoch: u64,
        samples: impl FnOnce() -> Vec<u32>,
    ) -> Result<(), TrainError> {
        let Some(audit) = &mut self.audit else { return Ok(()) };
        let line = serde_json::json!({ "update": update, "epoch": epoch, "samples": samples() });
        audit.write(&line).map_err(TrainError::io("writing the audit"))
    }

    /// `debug.gradients`: the reduced gradient of update number `update`, before clipping.
    pub(crate) fn gradient(&self, update: u64, layout: &Layout, flat: &[f32]) -> Result<(), TrainError> {
        if !self.gradients {
            return Ok(());
        }
        let dir = self.dir.join("gradients");
        let write = || {
            fs::create_dir_all(&dir)?;
            write_flat(&dir.join(format!("update-{update}.safetensors")), layout, flat)
        };
        write().map_err(TrainError::io("writing a gradient"))
    }
}

/// The resolved config, which alone reproduces the run, and what it ran on.
pub(crate) fn write_run_files(dir: &Path, config: &str, world: usize) -> Result<(), TrainError> {
    let env = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "world": world,
    });
    let write = || {
        fs::create_dir_all(dir)?;
        for (name, text) in [("config.toml", config.to_owned()), ("env.json", format!("{env:#}\n"))] {
            run_files::replace(dir, name, text.as_bytes())?;
        }
        Ok(())
    };
    write().map_err(TrainError::io(format!("writing to the run directory {}", dir.display())))
}

/// What an earlier run, or an abandoned branch of this one, left behind goes to `before-N`: never overwritten, and never
/// taken for a part of what comes now. All of it with `after` none; else checkpoints of later updates than `after`, with a
/// copy of the metrics, which are about to be cut.
pub(crate) fn move_aside(dir: &Path, after: Option<u64>) -> Result<Option<PathBuf>, TrainError> {
    let doing = || format!("moving an earlier run in {} aside", dir.display());
    let moving = match after {
        None => everything(dir).map_err(TrainError::io(doing()))?,
        Some(after) => {
            let checkpoints = Checkpoints::at(dir);
            checkpoints.steps().into_iter().filter(|&step| step > after).map(|step| checkpoints.path(step)).collect()
        }
    };
    if moving.is_empty() {
        return Ok(None);
    }
    let aside = (1..u64::MAX).map(|n| dir.join(format!("{ASIDE}{n}"))).find(|path| !path.exists());
    let aside = aside.unwrap_or_else(|| dir.join(ASIDE));
    let move_all = || {
        for path in &moving {
            let target = aside.join(path.strip_prefix(dir).unwrap_or(path));
            fs::create_dir_all(target.parent().unwrap_or(&aside))?;
            fs::rename(path, target)?;
        }
        let journal = dir.join(JOURNAL);
        if journal.exists() {
            fs::copy(&journal, aside.join(JOURNAL))?;
        }
        Ok(())
    };
    move_all().map_err(TrainError::io(doing()))?;
    Ok(Some(aside))
}

/// One event a line.
const JOURNAL: &str = "metrics.jsonl";

/// How the directories are named that hold what was moved aside.
const ASIDE: &str = "before-";

/// What a run leaves in its directory, if it has left anything worth keeping.
fn everything(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = ["checkpoints", "config.toml", "env.json", JOURNAL, "gradients"].contains(&name.as_str());
        if is_ours || name.starts_with("audit-rank-") {
            paths.push(entry.path());
        }
    }
    let is_run = !Checkpoints::at(dir).steps().is_empty() || dir.join(JOURNAL).exists();
    Ok(if is_run { paths } else { Vec::new() })
}

/// `update 8,412`, as it stands in messages.
pub(crate) fn at_update(update: u64) -> String {
    format!("update {}", thousands(update))
}
