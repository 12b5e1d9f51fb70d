//! `hetseq migrate`: converts a command line of the original HetSeq or of fairseq-train into a
//! `run.toml`, and prints a summary. It does not train, and does not run the old command.
//!
//! ```text
//! text -> commands    words.rs
//!      -> flags       command.rs
//!      -> config keys convert.rs, optim.rs, launch.rs, with the table in flags/
//!      -> run.toml    summary.rs
//! ```

mod args;
mod command;
mod convert;
mod flags;
mod launch;
mod numbers;
mod optim;
mod summary;
mod words;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use fs_err as fs;
use hetseq_train::{ConfigSource, Tasks};

pub(crate) use args::MigrateArgs;

use crate::args::UsageError;
use crate::output::{eprint_line, print_line};
use convert::{ConvertContext, Converted};

pub(crate) fn migrate(tasks: &Tasks, args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    let path = args.out.as_path();
    let to_stdout = path == Path::new("-");
    if !to_stdout && path.exists() && !args.overwrite {
        let message = format!("{} already exists: choose another file with --out, or add --overwrite", path.display());
        return Err(UsageError(message).into());
    }
    let (program, mut converted) = read(&args.command, &tasks.names(), args.world_size).map_err(UsageError)?;
    let text = summary::toml(&converted, &args.command.join(" "));
    let config = if to_stdout { "run.toml".to_owned() } else { path.display().to_string() };
    if let Err(error) = tasks.check(&ConfigSource::from_text(&config, text.clone(), &[])) {
        converted.warn(&config, format!("`hetseq train` will reject this file: {error}"));
    }
    if to_stdout {
        print_line(text.trim_end());
    } else {
        fs::write(path, &text).with_context(|| format!("writing {}", path.display()))?;
    }
    for line in summary::lines(&converted, program, &config, !to_stdout) {
        if to_stdout { eprint_line(&line) } else { print_line(&line) }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the program that the command line is for, and the converted run. A single argument is a
/// whole line or script.
fn read(command: &[String], tasks: &[&str], world: Option<u64>) -> Result<(&'static str, Converted), String> {
    let script = match command {
        [text] => words::parse(text, &|name| std::env::var(name).ok())?,
        words => words::from_words(words),
    };
    let given = command::read(&script)?;
    let program = if given.is_fairseq { "fairseq" } else { "HetSeq (the original)" };
    let context = ConvertContext { tasks, world, has_idx: &has_idx };
    Ok((program, convert::convert(&given, &context)))
}

fn has_idx(dir: &Path) -> bool {
    ["", ".gz"].iter().any(|end| dir.join(format!("train-images-idx3-ubyte{end}")).exists())
}

#[cfg(test)]
mod tests;
