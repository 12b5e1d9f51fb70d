//! The `hetseq` command as a library, so that a binary with custom tasks has the same subcommands.
//!
//! Logs and progress go to standard error, results to standard output. Exit codes: 0 success, 1
//! failure, 2 wrong usage, config or data, 75 stopped with a checkpoint saved.

mod allocator;
mod args;
mod average;
mod bench;
mod config_command;
mod demo;
mod devices;
#[cfg(test)]
mod documented_commands;
mod environment;
mod eval;
mod export;
mod generate;
mod inference_output;
mod local_ranks;
mod log_format;
mod migrate;
mod output;
mod plan;
mod predict;
mod prep;
mod process_exit;
mod profile;
mod renamed;
mod report;
mod resume_command;
mod score;
mod selftest;
mod simulate;
mod stop;
mod table;
mod torch_devices;
mod train;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use hetseq_data::DataError;
use hetseq_metrics::terminal;
use hetseq_train::{Tasks, TrainError};

use args::{Command, Hetseq};

/// Parses the command line and runs the subcommand.
pub fn main(tasks: Tasks) -> ExitCode {
    allocator::keep_freed_memory();
    environment::silence_mesa();
    let args = match Hetseq::try_parse_from(std::env::args_os().map(args::with_home)) {
        Ok(args) => args,
        Err(error) => {
            _ = error.print();
            let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if is_help { ExitCode::SUCCESS } else { usage() };
        }
    };
    log_format::log_to_stderr(args.verbose, args.quiet);
    renamed::warn(&args.command, std::env::args().skip(1));
    let code = run(&tasks, args).unwrap_or_else(|error| {
        terminal::hide();
        output::eprint_line(&format!("error: {error:#}"));
        let is_usage = error.downcast_ref::<TrainError>().is_some_and(TrainError::is_usage)
            || error.downcast_ref::<DataError>().is_some_and(DataError::is_usage)
            || error.downcast_ref::<args::UsageError>().is_some();
        let is_cut_off = match error.downcast_ref() {
            Some(TrainError::CutOff { rejoin, .. }) => {
                if !rejoin.is_empty() {
                    output::flush();
                    let failed = train::rejoin(rejoin);
                    output::eprint_line(&format!("error: this process could not be started again: {failed}"));
                }
                true
            }
            _ => false,
        };
        match (is_usage, is_cut_off) {
            (true, _) => usage(),
            (_, true) => stopped(),
            _ => ExitCode::FAILURE,
        }
    });
    output::flush();
    process_exit::end(code)
}

fn run(tasks: &Tasks, args: Hetseq) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Train(args) => train::train(tasks, &args),
        Command::Eval(args) => eval::eval(tasks, &args),
        Command::Export(args) => export::run(&args),
        Command::Generate(args) => generate::generate(tasks, &args),
        Command::Predict(args) => predict::predict(tasks, &args),
        Command::Average(args) => average::run(&args),
        Command::Score(args) => score::score(&args),
        Command::Migrate(args) => migrate::migrate(tasks, &args),
        Command::Demo(args) => demo::demo(&args),
        Command::Config(command) => config_command::config(&command),
        Command::Devices(args) => devices::devices(&args),
        Command::Selftest(args) => selftest::selftest(tasks, &args),
        Command::Plan(args) => plan::plan(&args),
        Command::Simulate(args) => simulate::simulate(&args),
        Command::Stop(args) => stop::stop(&args),
        Command::Report(args) => report::report(&args),
        Command::Bench(args) => bench::bench(tasks, &args),
        Command::Prep(args) => prep::prep(&args),
    }
}

/// Exit code for wrong usage, config or data: a retry without a change cannot succeed.
fn usage() -> ExitCode {
    ExitCode::from(2)
}

/// Exit code for a run that a signal stopped and that was saved, and for a rank that must stop
/// because too few others are left. Schedulers take it as a request to
/// restart (EX_TEMPFAIL).
fn stopped() -> ExitCode {
    ExitCode::from(75)
}
