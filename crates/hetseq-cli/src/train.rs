//! `hetseq train`: turns the arguments into the options of a run.

use std::env::VarError;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use hetseq_comm::{Secret, unused_slurm_tasks};
use hetseq_train::{ConfigSource, Reset, Resume, RunOptions, RunOutcome, Tasks, wait_until_free};

use crate::args::{ResetWhat, TrainArgs, UsageError};
use crate::migrate::{self, MigrateArgs};
use crate::output::{self, eprint_line};
use crate::resume_command::{resume_command, resume_words};
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
    if args.when_free {
        wait_until_this_machine_is_free(&source)?;
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
        join: args.join.clone(),
        rejoin: args.rejoin,
    };
    match tasks.train(&source, &options)? {
        RunOutcome::Finished => Ok(ExitCode::SUCCESS),
        RunOutcome::Left => Ok(stopped()),
        RunOutcome::Busy => start_when_free(args),
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

fn wait_until_this_machine_is_free(source: &ConfigSource) -> anyhow::Result<()> {
    let config = source.parse::<toml::Table>()?;
    let Some(rules) = &config.elastic.leave_when else {
        return Err(
            UsageError("--when-free waits until no condition of elastic.leave_when holds; set one".to_owned()).into()
        );
    };
    tracing::info!("waiting until this machine is free for {} s (elastic.leave_when), then starting", rules.free_s);
    wait_until_free(rules);
    Ok(())
}

/// Starts the same command in place of this process, which thereby gives back all memory. The new one
/// waits until the machine is free.
fn start_when_free(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    output::flush();
    let program = std::env::current_exe().context("finding this program")?;
    let mut words = resume_words(args);
    if !args.join.is_empty() {
        words.push(format!("--join={}", args.join.join(",")));
    }
    words.push("--when-free".to_owned());
    let error = Command::new(&program).args(words).exec();
    Err(anyhow::Error::new(error).context(format!("starting {} again", program.display())))
}

/// Starts this process again as one that joins its run, whose ranks at `addresses` continue without
/// it. Returns only if that fails.
pub(crate) fn rejoin(addresses: &[String]) -> std::io::Error {
    eprint_line("joining the run again");
    let mut args = Vec::new();
    let mut given = std::env::args_os().skip(1);
    while let Some(arg) = given.next() {
        match arg.to_str() {
            Some("--join") => drop(given.next()),
            Some("--rejoin") => {}
            Some(text) if text.starts_with("--join=") => {}
            _ => args.push(arg),
        }
    }
    match std::env::current_exe() {
        Ok(program) => {
            let mut command = std::process::Command::new(program);
            command.args(args).arg("--rejoin").arg(format!("--join={}", addresses.join(",")));
            std::os::unix::process::CommandExt::exec(&mut command)
        }
        Err(error) => error,
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
