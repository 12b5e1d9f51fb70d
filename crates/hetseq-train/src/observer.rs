//! The run's directory and what is told to people: on rank 0 it carries events to the sinks, on other ranks it is mute.

use std::path::{Path, PathBuf};

use fs_err as fs;
use hetseq_metrics::sink::JsonLines;
use hetseq_metrics::{Console, Event, Journal, Sink, thousands};
use serde::Serialize;

use crate::checkpoint::{Checkpoints, write_flat};
use crate::config::Config;
use crate::error::TrainError;
use crate::run_files;
use hetseq_optim::Layout;

pub(crate) struct Observer {
    dir: PathBuf,
    outlets: Vec<Outlet>,
    audit: Option<JsonLines>,
    gradients: bool,
}

/// Where events go, and how many of them it could not take since it last could.
struct Outlet {
    name: &'static str,
    sink: Box<dyn Sink>,
    missed: u64,
    /// Whether its trouble was told of.
    told: bool,
}

impl Observer {
    /// `at`: the updates that are done already.
    pub(crate) fn start<C: Serialize>(
        config: &Config<C>,
        dir: &Path,
        rank: usize,
        at: u64,
    ) -> Result<Self, TrainError> {
        let doing = || format!("opening the run directory {}", dir.display());
        let mut outlets = Vec::new();
        let mut add = |name, sink| outlets.push(Outlet { name, sink, missed: 0, told: false });
        if rank == 0 {
            fs::create_dir_all(dir).map_err(TrainError::io(doing()))?;
            let journal = Journal::open(&dir.join("metrics.jsonl"), at).map_err(TrainError::io(doing()))?;
            add("metrics.jsonl", Box::new(journal) as Box<dyn Sink>);
            add("the terminal", Box::new(Console::new(config.run.log_every)));
        }
        let audit = if config.debug.audit {
            fs::create_dir_all(dir).map_err(TrainError::io(doing()))?;
            let path = dir.join(format!("audit-rank-{rank}.jsonl"));
            Some(JsonLines::open(&path, at).map_err(TrainError::io(doing()))?)
        } else {
            None
        };
        Ok(Observer { dir: dir.to_owned(), outlets, audit, gradients: config.debug.gradients && rank == 0 })
    }

    /// A sink that fails (a full disk) does not end a run: it is complained of once, and what it missed is counted until
    /// it works again, or the run is over.
    pub(crate) fn tell(&mut self, event: &Event) {
        let is_end = matches!(event, Event::End { .. });
        let mut complaints = Vec::new();
        for Outlet { name, sink, missed, told } in &mut self.outlets {
            let lost = |missed: &u64| format!("{missed} events were not written to {name}");
            match sink.event(event) {
                Ok(()) if *missed > 0 => {
                    complaints.push(lost(missed));
                    *missed = 0;
                }
                Ok(()) => {}
                Err(error) => {
                    // A disk with a little room takes some events and not others; that is one trouble.
                    if !std::mem::replace(told, true) {
                        complaints
                            .push(format!("{error}. The run goes on, without the events that {name} cannot take"));
                    }
                    *missed += 1;
                    if is_end {
                        complaints.push(lost(missed));
                    }
                }
            }
        }
        for message in complaints {
            self.tell(&Event::Warning { message });
        }
    }

    pub(crate) fn is_telling(&self) -> bool {
        !self.outlets.is_empty()
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
        let journal = dir.join("metrics.jsonl");
        if journal.exists() {
            fs::copy(&journal, aside.join("metrics.jsonl"))?;
        }
        Ok(())
    };
    move_all().map_err(TrainError::io(doing()))?;
    Ok(Some(aside))
}

/// How the directories are named that hold what was moved aside.
const ASIDE: &str = "before-";

/// What a run leaves in its directory, if it has left anything worth keeping.
fn everything(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = ["checkpoints", "config.toml", "env.json", "metrics.jsonl", "gradients"].contains(&name.as_str());
        if is_ours || name.starts_with("audit-rank-") {
            paths.push(entry.path());
        }
    }
    let is_run = !Checkpoints::at(dir).steps().is_empty() || dir.join("metrics.jsonl").exists();
    Ok(if is_run { paths } else { Vec::new() })
}

/// `update 8,412`, as it stands in messages.
pub(crate) fn at_update(update: u64) -> String {
    format!("update {}", thousands(update))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Keeps messages; fails while `broken`.
    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<(bool, Vec<String>)>>);

    impl Sink for Memory {
        fn event(&mut self, event: &Event) -> io::Result<()> {
            let mut inner = self.0.lock().unwrap();
            if inner.0 {
                return Err(io::Error::from_raw_os_error(28));
            }
            inner.1.push(match event {
                Event::Warning { message } => message.clone(),
                Event::End { .. } => "end".to_owned(),
                _ => String::new(),
            });
            Ok(())
        }
    }

    fn note(message: &str) -> Event {
        Event::Warning { message: message.to_owned() }
    }

    #[test]
    fn what_a_full_disk_swallowed_is_counted() {
        let (file, terminal) = (Memory::default(), Memory::default());
        let outlet = |name, sink: &Memory| Outlet { name, sink: Box::new(sink.clone()), missed: 0, told: false };
        let outlets = vec![outlet("metrics.jsonl", &file), outlet("the terminal", &terminal)];
        let mut observer = Observer { dir: PathBuf::new(), outlets, audit: None, gradients: false };
        let breaks = |broken| file.0.lock().unwrap().0 = broken;
        observer.tell(&note("a"));
        breaks(true);
        observer.tell(&note("b"));
        observer.tell(&note("c"));
        breaks(false);
        observer.tell(&note("d"));
        breaks(true);
        observer.tell(&note("e"));
        observer.tell(&Event::End { update: 1, outcome: String::new(), seconds: 0.0, data_wait_s: 0.0, skipped: 0 });
        let full =
            "No space left on device (os error 28). The run goes on, without the events that metrics.jsonl cannot take";
        // Each complaint is an event of its own, and is missed too.
        let [three, two] = [3, 2].map(|lost| format!("{lost} events were not written to metrics.jsonl"));
        let (three, two) = (&three[..], &two[..]);
        assert_eq!(file.0.lock().unwrap().1, ["a", "d", three]);
        assert_eq!(terminal.0.lock().unwrap().1, ["a", "b", full, "c", "d", three, "e", "end", two]);
    }
}
