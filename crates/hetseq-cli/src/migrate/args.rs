//! Command-line arguments of `hetseq migrate`.

use std::path::PathBuf;

use clap::Args;

/// Write a run.toml from a command line of the original HetSeq or of fairseq-train
///
/// Put `hetseq migrate` in front of the old command, or pass the command or a whole script as one
/// quoted argument. Options come before the command.
///
/// Every key is written with the flag that it comes from. The summary lists what was converted,
/// what needs your attention, and how to start the run. Nothing is trained, and the old command is
/// not run. See docs/migrating.md.
#[derive(Debug, Args)]
#[command(
    override_usage = "hetseq migrate [OPTIONS] <COMMAND>...",
    after_help = "Examples:
  hetseq migrate python3 train.py --task mnist --data ~/data --max-sentences 64 --max-epoch 20
  hetseq migrate --world-size 4 fairseq-train data-bin/x --arch transformer --max-tokens 4096
  hetseq migrate --out bert.toml \"$(cat run_bert.sh)\""
)]
pub(crate) struct MigrateArgs {
    /// File to write; `-` is standard output
    #[arg(long, short, value_name = "FILE", default_value = "run.toml", alias = "output")]
    pub(super) out: PathBuf,
    /// Overwrite the file if it exists
    #[arg(long)]
    pub(super) overwrite: bool,
    /// Number of GPUs over all machines, if the old command does not give it
    #[arg(long, value_name = "N", visible_alias = "distributed-world-size")]
    pub(super) world_size: Option<u64>,
    /// Old command, or one quoted argument with a command line or script
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

impl MigrateArgs {
    /// The arguments for `hetseq train --from-flags`, which still works.
    pub(crate) fn from_old_flags(line: &str, out: Option<PathBuf>, overwrite: bool, world: Option<usize>) -> Self {
        MigrateArgs {
            out: out.unwrap_or_else(|| PathBuf::from("run.toml")),
            overwrite,
            world_size: world.map(|world| world as u64),
            command: vec![line.to_owned()],
        }
    }
}
