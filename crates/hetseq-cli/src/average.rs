//! `hetseq average`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hetseq_train::average::{Averaged, average, last};

use crate::args::UsageError;
use crate::output::{print_line, say};

/// Average the weights of several checkpoints of a run: often a little better than the last of them.
///
/// The new directory holds the mean of the weights and, from the newest of the checkpoints, what lies beside them (config,
/// tokenizer). It is used as an exported one: by `hetseq eval --checkpoint`, as task.init, by `hetseq export`, and by Hugging
/// Face's libraries. Training cannot be resumed from it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq average runs/bert --last 5 --out models/mean
  hetseq average runs/bert/checkpoints/step-{800,900,1000} --out models/mean
Keep enough checkpoints to average: checkpoint.keep = 5.")]
pub(crate) struct AverageArgs {
    /// Checkpoints, or with --last one run directory
    #[arg(required = true, value_name = "CHECKPOINT|RUN")]
    paths: Vec<PathBuf>,
    /// Take the newest N checkpoints of a run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    last: Option<u32>,
    /// The directory to make
    #[arg(long, short, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn run(args: &AverageArgs) -> anyhow::Result<ExitCode> {
    let checkpoints = match (args.last, args.paths.as_slice()) {
        (None, paths) => paths.to_vec(),
        (Some(count), [run]) => last(run, count as usize)?,
        (Some(_), paths) => {
            let text = format!("--last takes the newest checkpoints of one run, but {} paths were given", paths.len());
            return Err(UsageError(text).into());
        }
    };
    let Averaged { newest, files } = average(&checkpoints, &args.out)?;
    let names: Vec<String> = checkpoints.iter().map(|path| path.display().to_string()).collect();
    say(&format!("mean of {}, with the files of {} -> {}", names.join(", "), newest.display(), args.out.display()));
    for file in files {
        print_line(&args.out.join(file).display().to_string());
    }
    Ok(ExitCode::SUCCESS)
}
