//! `hetseq train`: turns the arguments into the options of a run.

use std::env::VarError;
use std::process::ExitCode;

use hetseq_comm::{Secret, unused_slurm_tasks};
use hetseq_train::{Reset, Resume, RunOptions, RunOutcome, Tasks};

use crate::args::{ResetWhat, TrainArgs, UsageError};
use crate::migrate::{self, MigrateArgs};
use crate::output::eprint_line;
use crate::resume_command::resume_command;
use crate::stopped;

pub(crate) fn train(tasks: &Tasks, args: &TrainArgs) -> anyhow::Result<ExitCode> {
    if let Some(line) = &args.from_flags.from_flags {
        eprint_line(
            "warning: `hetseq train --from-flags` is now `hetseq migrate`; the old name will be removed in the next release",
        );
        let world = args.rank_args.distributed_world_size;
        let old_args = &args.from_flags;
        let new_args = MigrateArgs::from_old_flags(line, old_args.output.clone(), old_args.overwrite, world);
        return migrate::migrate(tasks, &new_args);
    }
    let mut source = args.source()?;
    if let Some(overrides) = &args.optimizer_overrides {
        source = source.override_optimizer(overrides)?;
    }
    if let Some(weight) = args.weight
        && !(weight.is_finite() && weight >= 0.0)
    {
        return Err(UsageError(format!("--weight {weight}: expected a number of at least 0")).into());
    }
    if !args.rank_args.is_given()
        && let Some(tasks) = unused_slurm_tasks(&|name| std::env::var(name).ok())
    {
        tracing::warn!(
            "SLURM_NTASKS is {tasks}, but this process was not started by srun: it trains alone, without the other tasks. To \
             use all of them, start it with `srun hetseq train ...`"
        );
    }
    let options = RunOptions {
        rank_env: args.rank_args.rank_env(source.transport()?)?,
        weight: args.weight,
        resume: args.resume.parse::<Resume>().unwrap_or_default(),
        reset: Reset {
            optimizer: args.reset.contains(&ResetWhat::Optimizer),
            schedule: args.reset.contains(&ResetWhat::Schedule),
            data: args.reset.contains(&ResetWhat::Data),
        },
        overrides: source.has_overrides(),
        secret: secret()?,
    };
    match tasks.train(&source, &options)? {
        RunOutcome::Finished => Ok(ExitCode::SUCCESS),
        RunOutcome::Stopped => {
            if !args.no_resume_hint {
                let program = std::env::args().next().unwrap_or_else(|| "hetseq".to_owned());
                let ranks = if options.rank_env.world > 1 { ", on each rank as before" } else { "" };
                eprint_line(&format!("resume with{ranks}: {}", resume_command(&program, args)));
            }
            Ok(stopped())
        }
    }
}

/// The secret that all ranks of a run share. From the environment only: every user of a machine can
/// see arguments.
pub(crate) fn secret() -> Result<Option<String>, UsageError> {
    match std::env::var("HETSEQ_SECRET") {
        Ok(secret) => match Secret::weakness(&secret) {
            Some(problem) => Err(UsageError(problem)),
            None => Ok(Some(secret)),
        },
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => {
            Err(UsageError("HETSEQ_SECRET is not valid UTF-8: set another value on all ranks, or unset it".to_owned()))
        }
    }
}
