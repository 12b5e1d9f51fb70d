//! `hetseq train`.

use std::env::VarError;
use std::process::ExitCode;

use hetseq_comm::Secret;
use hetseq_train::{End, Reset, Resume, RunOptions, Tasks};

use crate::args::{ResetWhat, TrainArgs, UsageError};
use crate::{from_flags, stopped};

pub(crate) fn train(tasks: &Tasks, args: &TrainArgs) -> anyhow::Result<ExitCode> {
    if let Some(line) = &args.from_flags.from_flags {
        return from_flags::convert(tasks, line, args);
    }
    let mut source = args.source()?;
    if let Some(overrides) = &args.optimizer_overrides {
        source = source.override_optimizer(overrides)?;
    }
    if let Some(weight) = args.weight
        && !(weight.is_finite() && weight >= 0.0)
    {
        return Err(UsageError(format!("--weight {weight}: say a number of at least 0")).into());
    }
    let options = RunOptions {
        place: args.place.find()?,
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
    Ok(match tasks.train(&source, &options)? {
        End::Finished => ExitCode::SUCCESS,
        End::Stopped => stopped(),
    })
}

/// The secret that ranks of a run share. From the environment only: arguments are visible to everybody on a machine.
pub(crate) fn secret() -> Result<Option<String>, UsageError> {
    match std::env::var("HETSEQ_SECRET") {
        Ok(secret) => match Secret::weakness(&secret) {
            Some(problem) => Err(UsageError(problem)),
            None => Ok(Some(secret)),
        },
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(UsageError(
            "HETSEQ_SECRET is not valid UTF-8: give it another value on every rank, or unset it".to_owned(),
        )),
    }
}
