//! Small files of the run directory: the config and the environment. Written once at the start, on
//! rank 0.

use std::path::Path;

use fs_err as fs;

use crate::error::TrainError;

/// Writes the resolved config, which alone reproduces the run, and a description of the machine.
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
            hetseq_fs::replace(&dir.join(name), text.as_bytes())?;
        }
        Ok(())
    };
    write().map_err(TrainError::io(format!("writing to the run directory {}", dir.display())))
}
