//! `hetseq stop`: a small file in the run directory asks the process that leads the run to stop it.
//!
//! The file names the process, by the id that `env.json` holds. So a request to an earlier start that
//! was killed stops no later one. The process removes the file when it takes the request.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fs_err as fs;
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::run_dir::run_files::{ENVIRONMENT, new_run_id};
use crate::trainer::stop::{StopCause, StopFlag};

const FILE: &str = "stop-request.json";
/// How often the lead looks for the file.
const INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    /// The process that leads the run.
    lead: String,
}

/// The id of this process, if it leads a run.
pub(crate) fn lead_id() -> Result<&'static str, TrainError> {
    static ID: OnceLock<String> = OnceLock::new();
    match ID.get() {
        Some(id) => Ok(id),
        None => new_run_id().map(|id| ID.get_or_init(|| id).as_str()),
    }
}

/// Looks for requests on the lead, until it is dropped. On a thread of its own: a file system may hang.
pub(crate) struct StopFileWatch {
    has_ended: Arc<AtomicBool>,
}

impl StopFileWatch {
    pub(crate) fn start(dir: &Path, stop: StopFlag) -> Result<Self, TrainError> {
        let (path, id) = (dir.join(FILE), lead_id()?);
        let has_ended: Arc<AtomicBool> = Arc::default();
        let ended = Arc::clone(&has_ended);
        let watch = move || {
            while !ended.load(Ordering::Relaxed) {
                if take(&path, id) {
                    tracing::warn!("hetseq stop: stopping after the update in progress. All ranks exit with code 75");
                    return stop.ask(StopCause::StopCommand);
                }
                std::thread::sleep(INTERVAL);
            }
        };
        std::thread::Builder::new()
            .name("stop-requests".to_owned())
            .spawn(watch)
            .map_err(TrainError::io("starting the thread that looks for requests of `hetseq stop`"))?;
        Ok(StopFileWatch { has_ended })
    }
}

impl Drop for StopFileWatch {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

/// Whether `path` asks the process `id` to stop. Removes the file, also one of an earlier start.
fn take(path: &Path, id: &str) -> bool {
    let Ok(text) = fs::read(path) else { return false };
    let is_meant = serde_json::from_slice::<Content>(&text).is_ok_and(|content| content.lead == id);
    // If it cannot be removed, a later start ignores it.
    _ = fs::remove_file(path);
    is_meant
}

/// A request to stop the run in a directory.
#[derive(Debug)]
pub struct StopFile {
    path: PathBuf,
    environment: PathBuf,
    written: Content,
}

impl StopFile {
    /// Asks the process that leads the run in `dir` to stop it.
    pub fn write(dir: &Path) -> Result<StopFile, TrainError> {
        let (path, environment) = (dir.join(FILE), dir.join(ENVIRONMENT));
        let file = StopFile { written: lead_in(&environment)?, path, environment };
        file.replace()?;
        Ok(file)
    }

    fn replace(&self) -> Result<(), TrainError> {
        let doing = || format!("writing {}", self.path.display());
        let bytes = serde_json::to_vec(&self.written).map_err(std::io::Error::from).map_err(TrainError::io(doing()))?;
        hetseq_fs::replace(&self.path, &bytes).map_err(TrainError::io(doing()))
    }

    /// Whether the request was taken. Asks again if another process leads the run by now.
    pub fn is_taken(&mut self) -> Result<bool, TrainError> {
        let lead = lead_in(&self.environment)?;
        if lead != self.written {
            self.written = lead;
            self.replace()?;
        }
        Ok(!self.path.exists())
    }

    /// Removes the request, which no process has taken.
    pub fn withdraw(self) {
        _ = fs::remove_file(&self.path);
    }
}

fn lead_in(environment: &Path) -> Result<Content, TrainError> {
    let explain = |reason: String| {
        let dir = environment.parent().unwrap_or(environment).display();
        TrainError::Config(format!("{dir} is no run directory that can be asked to stop: {reason}"))
    };
    let text = fs::read(environment).map_err(|error| explain(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| {
        explain(format!("{ENVIRONMENT} does not name the process that leads it ({error}); an earlier version wrote it"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(dir: &Path, lead: &str) {
        fs::write(dir.join(ENVIRONMENT), format!("{{\"run\": \"x\", \"lead\": \"{lead}\"}}")).unwrap();
    }

    #[test]
    fn only_the_lead_takes_a_request() {
        let dir = tempfile::tempdir().unwrap();
        assert!(StopFile::write(dir.path()).unwrap_err().to_string().contains("is no run directory"));
        fs::write(dir.path().join(ENVIRONMENT), "{\"run\": \"x\"}").unwrap();
        assert!(StopFile::write(dir.path()).unwrap_err().to_string().contains("an earlier version wrote it"));
        environment(dir.path(), "a");
        let path = dir.path().join(FILE);
        let mut request = StopFile::write(dir.path()).unwrap();
        assert!(!request.is_taken().unwrap());
        assert!(take(&path, "a") && !take(&path, "a"));
        assert!(request.is_taken().unwrap());
        // Of an earlier start, or damaged: removed and ignored.
        let request = StopFile::write(dir.path()).unwrap();
        assert!(!take(&path, "b") && !path.exists());
        fs::write(&path, "{").unwrap();
        assert!(!take(&path, "a") && !path.exists());
        request.withdraw();
    }

    #[test]
    fn a_new_lead_is_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        environment(dir.path(), "a");
        let mut request = StopFile::write(dir.path()).unwrap();
        environment(dir.path(), "b");
        assert!(!take(&dir.path().join(FILE), "b"));
        assert!(!request.is_taken().unwrap());
        assert!(take(&dir.path().join(FILE), "b"));
        assert!(request.is_taken().unwrap());
    }

    #[test]
    fn a_request_sets_the_flag() {
        let dir = tempfile::tempdir().unwrap();
        environment(dir.path(), lead_id().unwrap());
        let stop = StopFlag::default();
        let _watch = StopFileWatch::start(dir.path(), stop.clone()).unwrap();
        let mut request = StopFile::write(dir.path()).unwrap();
        while !request.is_taken().unwrap() || !stop.is_set() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(stop.get(), Some(StopCause::StopCommand));
    }
}
