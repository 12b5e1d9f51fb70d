//! `hetseq average`: averages the weights of checkpoints.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hetseq_train::checkpoint::average::{Averaged, average, last};

use crate::args::UsageError;
use crate::output::{eprint_line, print_line};

/// Average the weights of several checkpoints of a run
///
/// The mean is often slightly better than the last checkpoint. The new directory holds the mean of
/// the weights, and the config and tokenizer files of the newest checkpoint. `hetseq eval
/// --checkpoint`, `hetseq export`, task.init and Hugging Face's libraries can load it. Training
/// cannot resume from it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq average runs/bert --last 5 --out models/mean
  hetseq average runs/bert/checkpoints/step-{800,900,1000} --out models/mean

Set checkpoint.keep high enough: a run keeps only the newest 3 checkpoints by default.")]
pub(crate) struct AverageArgs {
    /// Checkpoints, or with --last one run directory
    #[arg(required = true, value_name = "CHECKPOINT|RUN")]
    paths: Vec<PathBuf>,
    /// Average the newest N checkpoints of a run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    last: Option<u32>,
    /// Directory to create
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
    eprint_line(&format!(
        "mean of {}, with the files of {} -> {}",
        names.join(", "),
        newest.display(),
        args.out.display()
    ));
    for file in files {
        print_line(&args.out.join(file).display().to_string());
    }
    Ok(ExitCode::SUCCESS)
}
