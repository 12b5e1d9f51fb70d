//! Finds the Python package `hetseq` and starts its engine: `python -m hetseq.engine`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::EngineCommand;

/// A Python interpreter, and the directory of our package if it is not installed there.
#[derive(Debug, Clone, PartialEq)]
pub struct Python {
    interpreter: OsString,
    package_parent: Option<PathBuf>,
}

impl Python {
    /// `interpreter` is `run.python`; by default `python3`.
    pub fn new(interpreter: Option<&str>) -> Self {
        let beside = std::env::current_exe().ok().and_then(|program| package_near(&program));
        Python { interpreter: interpreter.unwrap_or("python3").into(), package_parent: beside }
    }

    /// The command that prints PyTorch's devices as one line of JSON.
    pub fn list_devices(&self) -> std::process::Command {
        let EngineCommand { program, arguments, environment, .. } = self.launch("python", 1, &["--devices"]);
        let mut command = std::process::Command::new(program);
        command.args(arguments).envs(environment);
        command
    }

    /// Runs the engine. `threads` is for libraries that read it when they are loaded.
    pub fn launch(&self, name: &str, threads: usize, arguments: &[&str]) -> EngineCommand {
        let mut environment: Vec<(OsString, OsString)> = vec![
            ("PYTHONUNBUFFERED".into(), "1".into()),
            ("OMP_NUM_THREADS".into(), threads.to_string().into()),
            // Otherwise idle threads of PyTorch spin, and slow down the optimizer and the other devices.
            ("OMP_WAIT_POLICY".into(), "PASSIVE".into()),
            // Counting GPUs then uses none of their memory.
            ("PYTORCH_NVML_BASED_CUDA_CHECK".into(), "1".into()),
        ];
        if let Some(parent) = &self.package_parent {
            let mut path = parent.clone().into_os_string();
            if let Some(rest) = std::env::var_os("PYTHONPATH").filter(|rest| !rest.is_empty()) {
                path.push(":");
                path.push(rest);
            }
            environment.push(("PYTHONPATH".into(), path));
        }
        let arguments = ["-m", "hetseq.engine"].iter().chain(arguments).map(OsString::from).collect();
        EngineCommand { name: name.to_owned(), program: self.interpreter.clone(), arguments, environment }
    }
}

/// In a checkout or an unpacked archive, `python/` is beside the program or beside one of the
/// directories that it is in. An installed package needs no path.
fn package_near(program: &Path) -> Option<PathBuf> {
    let program = program.canonicalize().ok()?;
    let parents = program.ancestors().skip(1).map(|directory| directory.join("python"));
    parents.take(5).find(|parent| parent.join("hetseq/engine.py").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_of_a_checkout_is_found() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let program = root.join("target/release/deps/hetseq");
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        std::fs::write(&program, "").unwrap();
        assert_eq!(package_near(&program), None);
        std::fs::create_dir_all(root.join("python/hetseq")).unwrap();
        std::fs::write(root.join("python/hetseq/engine.py"), "").unwrap();
        assert_eq!(package_near(&program), Some(root.join("python")));
    }

    #[test]
    fn the_command_names_the_interpreter_and_the_module() {
        let launch = Python::new(Some("/opt/python")).launch("torch:cpu:0", 2, &["--devices"]);
        assert_eq!(launch.command(), "/opt/python -m hetseq.engine --devices");
        assert!(launch.environment.contains(&("OMP_NUM_THREADS".into(), "2".into())));
    }
}
