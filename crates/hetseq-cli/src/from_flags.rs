//! `hetseq train --from-flags "..."`: the command line of the original HetSeq or of fairseq-train becomes a `run.toml`.
//! It writes and explains; it does not train, and it runs nothing of what it reads.
//!
//! ```text
//! text -> commands -> flags -> a run of ours -> run.toml and a report
//!      shell.rs  command.rs  translate.rs, optim.rs, launch.rs by the table in flags.rs   report.rs
//! ```

mod command;
mod flags;
mod launch;
mod numbers;
mod optim;
mod report;
mod shell;
mod translate;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use fs_err as fs;
use hetseq_train::{ConfigSource, Tasks};

use crate::args::{TrainArgs, UsageError};
use crate::output::{print_line, say};
use translate::{Outside, Translation};

pub(crate) fn convert(tasks: &Tasks, line: &str, args: &TrainArgs) -> anyhow::Result<ExitCode> {
    let path = args.from_flags.output.as_deref().unwrap_or(Path::new("run.toml"));
    let to_stdout = path == Path::new("-");
    if !to_stdout && path.exists() && !args.from_flags.overwrite {
        let message =
            format!("{} is there already: name another file with --output, or say --overwrite", path.display());
        return Err(UsageError(message).into());
    }
    let world = args.place.distributed_world_size.map(|world| world as u64);
    let (program, mut translation) = read(line, &tasks.names(), world).map_err(UsageError)?;
    let text = report::toml(&translation, line);
    let config = if to_stdout { "run.toml".to_owned() } else { path.display().to_string() };
    if let Err(error) = tasks.check(&ConfigSource::from_text(&config, text.clone(), &[])) {
        translation.doubt(&config, format!("`hetseq train` will refuse it as it is: {error}"));
    }
    if to_stdout {
        print_line(text.trim_end());
    } else {
        fs::write(path, &text).with_context(|| format!("writing {}", path.display()))?;
    }
    for line in report::lines(&translation, program, &config, !to_stdout) {
        if to_stdout { say(&line) } else { print_line(&line) }
    }
    Ok(ExitCode::SUCCESS)
}

/// Whose command line it is, and what it becomes.
fn read(line: &str, tasks: &[&str], world: Option<u64>) -> Result<(&'static str, Translation), String> {
    let script = shell::parse(line, &|name| std::env::var(name).ok())?;
    let given = command::read(&script)?;
    let program = if given.is_fairseq { "fairseq" } else { "HetSeq (the original)" };
    let outside = Outside { tasks, world, has_idx: &has_idx };
    Ok((program, translate::translate(&given, &outside)))
}

fn has_idx(dir: &Path) -> bool {
    ["", ".gz"].iter().any(|end| dir.join(format!("train-images-idx3-ubyte{end}")).exists())
}

#[cfg(test)]
mod tests;
