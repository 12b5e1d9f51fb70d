//! Command-line arguments of `hetseq` itself, of the smaller subcommands, and those that several
//! subcommands share. Larger subcommands have an `args.rs` of their own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use hetseq_comm::{RankEnv, RankFlags, TransportKind};
use hetseq_fs::expand_home;
use hetseq_train::{ConfigSource, Dtype, TrainError};

use crate::average::AverageArgs;
use crate::bench::BenchArgs;
use crate::config_command::ConfigCommand;
use crate::generate::GenerateArgs;
use crate::migrate::MigrateArgs;
use crate::plan::PlanArgs;
use crate::predict::PredictArgs;
use crate::prep::PrepArgs;
use crate::report::ReportArgs;
use crate::score::ScoreArgs;
use crate::selftest::SelftestArgs;
use crate::simulate::SimulateArgs;
use crate::stop::StopArgs;

/// Train neural networks on a mix of machines, with the result of a single device
///
/// Start with `hetseq demo`. A TOML file describes a run (see configs/mnist.toml); --set
/// section.key=value sets any of its keys on the command line.
#[derive(Debug, Parser)]
#[command(name = "hetseq", version = hetseq_train::VERSION, max_term_width = 100)]
pub(crate) struct Hetseq {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Log more to standard error, such as each new plan
    #[arg(long, short, global = true, display_order = 900)]
    pub(crate) verbose: bool,
    /// Log only warnings, errors and the end of a run
    #[arg(long, short, global = true, display_order = 901, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Train(TrainArgs),
    Stop(StopArgs),
    Eval(EvalArgs),
    Export(ExportArgs),
    Generate(GenerateArgs),
    Predict(PredictArgs),
    Average(AverageArgs),
    Score(ScoreArgs),
    Migrate(MigrateArgs),
    Demo(DemoArgs),
    Devices(DevicesArgs),
    Selftest(SelftestArgs),
    #[command(subcommand)]
    Config(ConfigCommand),
    Plan(PlanArgs),
    Simulate(SimulateArgs),
    Report(ReportArgs),
    #[command(subcommand)]
    Bench(BenchArgs),
    #[command(subcommand)]
    Prep(PrepArgs),
}

/// Export a trained model for other programs
///
/// Writes the weights and, for BERT and translation models, the config and tokenizer files that
/// Hugging Face's libraries expect. Checkpoints can be loaded directly too; an export leaves out
/// what only a resume needs, and can store the weights in half precision.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:
  hetseq export runs/bert --out models/bert                      the best checkpoint of a run
  hetseq export runs/bert/checkpoints/step-900 --out models/900  a given checkpoint
  hetseq export runs/bert --out models/bert --precision bf16     half the size",
    override_usage = "hetseq export [OPTIONS] --out <DIR> <RUN|CHECKPOINT>"
)]
pub(crate) struct ExportArgs {
    /// Run directory (its best checkpoint, else the newest) or checkpoint
    #[arg(value_name = "RUN|CHECKPOINT")]
    pub(crate) from: PathBuf,
    #[command(flatten)]
    pub(crate) to: OutDirArgs,
    /// Data type of the weights
    #[arg(long, default_value_t = Dtype::F32,
          value_parser = PossibleValuesParser::new(["f32", "f16", "bf16"]).try_map(|name| name.parse::<Dtype>()))]
    pub(crate) precision: Dtype,
}

/// Train a model, alone or as one rank of several
///
/// Resumes from the newest checkpoint of the run if there is one.
///
/// For several machines, start the same command on each of them: with RANK, WORLD_SIZE, MASTER_ADDR
/// and MASTER_PORT set, under Slurm or mpirun, or with the --distributed options. If the machines
/// do not share the run directory, set HETSEQ_SECRET to the same value on all ranks (`openssl rand
/// -hex 16` generates one).
///
/// Ctrl-C on any rank, or `hetseq stop`, stops the run: all ranks finish the update, save a
/// checkpoint and exit with code 75. A validation in progress is dropped, and repeated by the resume.
/// The same command resumes the run, also with another number of ranks. A second Ctrl-C after 2 s
/// quits without saving. After SIGTERM, SIGUSR1 or SIGHUP only that rank leaves, with code 75, and
/// the others continue; if they cannot, or if all ranks are asked, the run stops.
#[derive(Debug, Args)]
#[command(
    // The config is optional only for the hidden --from-flags.
    override_usage = "hetseq train [OPTIONS] <CONFIG>",
    after_help = "Examples:
  hetseq train configs/mnist.toml
  hetseq train configs/mnist.toml --set optim.lr=0.001 --set batch.global=\"4096 tokens\"
  hetseq train runs/mnist                           resume a run by its directory
  hetseq train run.toml --resume never              start over; the previous run is kept
  hetseq train run.toml --join node-a:29400         one more worker for a run that trains
  srun --ntasks-per-node=1 hetseq train run.toml    one rank per node under Slurm"
)]
pub(crate) struct TrainArgs {
    /// TOML file of the run, or a run directory (its config.toml)
    #[arg(value_name = "CONFIG", required_unless_present = "from_flags")]
    pub(crate) path: Option<PathBuf>,
    /// Set a config key: optim.lr=0.001, batch.global="4096 tokens"
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Weight of this rank with batch.split = "weights": its part of each update
    #[arg(long, value_name = "W")]
    pub(crate) weight: Option<f64>,
    /// Checkpoint to resume from: `auto` (the newest of the run), `never`, or a path
    ///
    /// `never` starts a new run, and moves the files of the previous one to before-N in the run
    /// directory.
    #[arg(long, default_value = "auto", value_name = "auto|never|PATH")]
    pub(crate) resume: String,
    /// Wait until no condition of elastic.leave_when has held for its free_s, then start
    #[arg(long)]
    pub(crate) when_free: bool,
    /// Join a run that trains already, at one of these addresses: those of its ranks
    ///
    /// The process needs the config and the data of that run and its HETSEQ_SECRET, but no rank
    /// number. Nothing is started if there is no such run.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,...")]
    pub(crate) join: Vec<String>,
    /// Set by a process that has lost its run and joins it again
    #[arg(long, hide = true, requires = "join")]
    pub(crate) rejoin: bool,
    /// Parts of the checkpoint not to restore (comma-separated)
    #[arg(long, value_delimiter = ',')]
    pub(crate) reset: Vec<ResetWhat>,
    /// Optimizer settings for a resume: 'lr=1e-4,weight_decay=0.1' or "{'lr': 1e-4}"
    ///
    /// They override those of the config.
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub(crate) optimizer_overrides: Option<String>,
    /// Set by a command that starts the ranks and itself says how to resume
    #[arg(long, hide = true)]
    pub(crate) no_resume_hint: bool,
    #[command(flatten)]
    pub(crate) from_flags: FromFlagsArgs,
    #[command(flatten)]
    pub(crate) rank_args: RankArgs,
}

impl TrainArgs {
    /// The config to train. Clap guarantees a path unless `--from-flags` is given.
    pub(crate) fn source(&self) -> Result<ConfigSource, TrainError> {
        read_config(self.path.as_deref().unwrap_or(Path::new("")), &self.sets)
    }

    #[cfg(test)]
    pub(crate) fn config_path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    #[cfg(test)]
    pub(crate) fn sets(&self) -> &[String] {
        &self.sets
    }
}

/// Hidden flags of `train` that `hetseq migrate` has replaced.
#[derive(Debug, Args)]
pub(crate) struct FromFlagsArgs {
    #[arg(long, hide = true, allow_hyphen_values = true, conflicts_with_all = [
        "path", "sets", "weight", "resume", "reset", "optimizer_overrides", "distributed_init_method", "distributed_rank",
    ])]
    pub(crate) from_flags: Option<String>,
    #[arg(long, hide = true, requires = "from_flags")]
    pub(crate) output: Option<PathBuf>,
    #[arg(long, hide = true, requires = "from_flags")]
    pub(crate) overwrite: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResetWhat {
    /// Moments and step count
    Optimizer,
    /// Warm-up and decay start again at this update
    Schedule,
    /// The data starts again at the first epoch
    Data,
}

/// Evaluate a checkpoint on the validation samples
///
/// By default the best checkpoint of the run, else the newest.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq eval runs/mnist                                          the best checkpoint of a run
  hetseq eval run.toml --checkpoint runs/mnist/checkpoints/step-200 --json")]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Checkpoint directory to evaluate
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) rank_args: RankArgs,
}

/// Train a small model with workers of different speeds on this machine
///
/// Draws its own data. Splits the updates evenly first, then by measured speed, and prints what
/// that gains.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Directory for the data and the run (default: a new temporary directory)
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// Slowdown factor of each worker, from 1 to 100
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    pub(crate) slowdown: Vec<f64>,
}

/// List the devices of this machine, their features and measured speed
///
/// The names are those that run.devices takes. Each GPU is tested in a separate process, so that a
/// driver that crashes does no harm.
#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// The Python to look for PyTorch in, as run.python
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) python: Option<String>,
    /// Passed to the processes that test the GPUs
    #[arg(long, hide = true)]
    pub(crate) examine: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// TOML file of the run, or a run directory (its config.toml)
    #[arg(value_name = "CONFIG")]
    path: PathBuf,
    /// Set a config key: optim.lr=0.001, batch.global="4096 tokens"
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl ConfigArgs {
    pub(crate) fn source(&self) -> Result<ConfigSource, TrainError> {
        read_config(&self.path, &self.sets)
    }
}

/// Reads a config file, or the config in a run directory. The run then continues in that directory,
/// whatever `run.dir` was when it started.
pub(crate) fn read_config(path: &Path, sets: &[String]) -> Result<ConfigSource, TrainError> {
    if !path.is_dir() {
        return ConfigSource::read(path, sets);
    }
    let here = format!("run.dir={:?}", path.display().to_string());
    let sets: Vec<String> = std::iter::once(here).chain(sets.iter().cloned()).collect();
    ConfigSource::read(&path.join("config.toml"), &sets)
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Distributed options (default: from RANK, WORLD_SIZE, MASTER_ADDR, SLURM_*, OMPI_*)")]
pub(crate) struct RankArgs {
    /// Rendezvous of the ranks: tcp://HOST:PORT of rank 0, or file:///DIR, a directory that all
    /// ranks share
    #[arg(long, value_name = "URL")]
    pub(crate) distributed_init_method: Option<String>,
    /// Number of ranks
    #[arg(long, value_name = "N")]
    pub(crate) distributed_world_size: Option<usize>,
    /// Rank of this process, from 0; optional with file://
    #[arg(long, value_name = "R")]
    pub(crate) distributed_rank: Option<usize>,
}

impl RankArgs {
    /// Whether any of the flags was given.
    pub(crate) fn is_given(&self) -> bool {
        self.distributed_init_method.is_some()
            || self.distributed_world_size.is_some()
            || self.distributed_rank.is_some()
    }

    /// The rank and world size from the flags, else from the environment.
    pub(crate) fn rank_env(&self, transport: TransportKind) -> anyhow::Result<RankEnv> {
        let flags = RankFlags {
            init_method: self.distributed_init_method.clone(),
            world_size: self.distributed_world_size,
            rank: self.distributed_rank,
        };
        let find = match transport {
            TransportKind::Tcp => RankEnv::find,
            TransportKind::Mpi => RankEnv::find_for_mpi,
        };
        find(&flags, &|name| std::env::var(name).ok()).map_err(|error| UsageError(error.to_string()).into())
    }
}

/// `--out` of commands that took the directory as their last argument in earlier releases.
#[derive(Debug, Args)]
pub(crate) struct OutDirArgs {
    /// Directory to write to
    #[arg(long, short, value_name = "DIR", required_unless_present = "last_argument")]
    out: Option<PathBuf>,
    #[arg(hide = true, conflicts_with = "out")]
    last_argument: Option<PathBuf>,
}

impl OutDirArgs {
    /// Clap guarantees one of the two.
    pub(crate) fn dir(&self) -> &Path {
        self.out.as_deref().or(self.last_argument.as_deref()).unwrap_or(Path::new(""))
    }

    /// Whether the directory was given as the last argument.
    pub(crate) fn is_old_form(&self) -> bool {
        self.last_argument.is_some()
    }
}

/// An argument with `~` replaced where a shell leaves it: `--dir=~/x`, or in quotes. Paths in `--set`
/// are expanded with those of the config.
pub(crate) fn with_home(arg: OsString) -> OsString {
    let Some(text) = arg.to_str() else { return arg };
    match text.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") && value.starts_with('~') => {
            format!("{flag}={}", expand_home(value)).into()
        }
        _ if text.starts_with('~') => expand_home(text).into(),
        _ => arg,
    }
}

/// A command that was called wrongly: exit code 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// A parser of integers above zero.
pub(crate) fn at_least_one() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}
