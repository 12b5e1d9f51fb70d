//! `hetseq eval`: evaluates a checkpoint and prints loss and metrics.

use std::process::ExitCode;

use hetseq_train::{Reset, Resume, RunOptions, Tasks};

use crate::args::EvalArgs;
use crate::output::print_line;
use crate::train::secret;

pub(crate) fn eval(tasks: &Tasks, args: &EvalArgs) -> anyhow::Result<ExitCode> {
    let source = args.config.source()?;
    let (rank_env, secret) = (args.rank_args.rank_env(source.transport()?)?, secret()?);
    let (resume, reset) = (Resume::Auto, Reset::default());
    let options =
        RunOptions { rank_env, weight: None, resume, reset, overrides: false, secret, join: Vec::new(), rejoin: false };
    let (path, evaluation) = tasks.eval(&source, &options, args.checkpoint.as_deref())?;
    // Only rank 0 has the path, so only rank 0 prints.
    if let Some(path) = path {
        if args.json {
            let mut object = serde_json::to_value(&evaluation)?;
            object["checkpoint"] = path.display().to_string().into();
            print_line(&object.to_string());
        } else {
            let width = evaluation.metrics.keys().map(String::len).fold("checkpoint".len(), usize::max);
            print_line(&format!("{:<width$}  {}", "checkpoint", path.display()));
            print_line(&format!("{:<width$}  {}", "samples", evaluation.samples));
            print_line(&format!("{:<width$}  {:.6}", "loss", evaluation.loss));
            for (name, value) in &evaluation.metrics {
                print_line(&format!("{name:<width$}  {value:.6}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
