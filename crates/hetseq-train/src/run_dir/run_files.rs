//! Small files of the run directory: the config and the environment, with the ids of the run and of
//! the process that leads it. Written once at the start, on rank 0, and by a rank that takes over.

use std::path::Path;

use fs_err as fs;

use crate::error::TrainError;
use crate::run_dir::stop_file::lead_id;

pub(crate) const ENVIRONMENT: &str = "env.json";

/// Writes the resolved config, which alone reproduces the run, and a description of the machine.
/// `run` is the id of the run. This process leads it from now on.
pub(crate) fn write_run_files(dir: &Path, config: &str, world: usize, run: Option<&str>) -> Result<(), TrainError> {
    let env = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "run": run,
        "lead": lead_id()?,
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
        "cores": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "world": world,
    });
    let write = || {
        fs::create_dir_all(dir)?;
        for (name, text) in [("config.toml", config.to_owned()), (ENVIRONMENT, format!("{env:#}\n"))] {
            hetseq_fs::replace(&dir.join(name), text.as_bytes())?;
        }
        Ok(())
    };
    write().map_err(TrainError::io(format!("writing to the run directory {}", dir.display())))
}

/// The id of the run in `dir`; none if there is no run, or one of an older version.
pub(crate) fn run_in(dir: &Path) -> Option<String> {
    let env: serde_json::Value = serde_json::from_slice(&fs::read(dir.join(ENVIRONMENT)).ok()?).ok()?;
    env["run"].as_str().map(str::to_owned)
}

/// A new id for a run.
pub(crate) fn new_run_id() -> Result<String, TrainError> {
    let id = getrandom::u64().map_err(|error| TrainError::io("drawing the id of the run")(error.into()))?;
    Ok(format!("{id:016x}"))
}
