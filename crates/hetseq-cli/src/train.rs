//! `hetseq train`.

use std::process::ExitCode;

use hetseq_train::{Outcome, Reset, Resume, RunOptions, Tasks};

use crate::args::{ResetWhat, TrainArgs, UsageError};
use crate::stopped;

pub(crate) fn train(tasks: &Tasks, args: &TrainArgs) -> anyhow::Result<ExitCode> {
    let source = args.config.source()?;
    if !(args.weight.is_finite() && args.weight >= 0.0) {
        return Err(UsageError(format!("--weight {}: say a number of at least 0", args.weight)).into());
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
        secret: secret(),
    };
    Ok(match tasks.train(&source, &options)? {
        Outcome::Finished => ExitCode::SUCCESS,
        Outcome::Stopped => stopped(),
    })
}

/// The secret that ranks of a run share. From the environment only: arguments are visible to everybody on a machine.
pub(crate) fn secret() -> Option<String> {
    std::env::var("HETSEQ_SECRET").ok()
}
