//! `hetseq config`: explains the config of a run.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::args::UsageError;
use crate::output::print_line;

/// Explain the keys of a run's config
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    Reference(ReferenceArgs),
}

/// Print all config keys with defaults and meanings, as Markdown tables
///
/// The pages in docs/ contain these tables. Keys with (*) may differ between the machines of a run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq config reference                everything
  hetseq config reference optim batch    two sections
  hetseq config reference images         the [task] keys of a task")]
pub(crate) struct ReferenceArgs {
    /// Sections or tasks (default: all)
    #[arg(value_name = "SECTION|TASK")]
    names: Vec<String>,
}

pub(crate) fn config(command: &ConfigCommand) -> anyhow::Result<ExitCode> {
    let ConfigCommand::Reference(args) = command;
    let text = hetseq_train::config_reference(&args.names).map_err(UsageError)?;
    print_line(text.trim_end());
    Ok(ExitCode::SUCCESS)
}
