//! Command-line arguments of `hetseq bench`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use hetseq_comm::{Algorithm, TransportKind};
use hetseq_train::Dtype;
use hetseq_train::bench::geometries;
use serde::de::{DeserializeOwned, IntoDeserializer};

use crate::args::{RankArgs, at_least_one};

/// Run benchmarks
#[derive(Debug, Subcommand)]
pub(crate) enum BenchArgs {
    Step(BenchStepArgs),
    Comm(BenchCommArgs),
    Data(BenchDataArgs),
}

/// Benchmark the all-reduce of a vector over ranks
///
/// Every timed sum is verified. By default the ranks are processes on this machine. With the
/// --distributed options or with RANK and its companions set, this process is one rank: start the
/// same command on every machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq bench comm --world 2,4 --mb 25                   processes on this machine
  hetseq bench comm --wire-dtype f32,bf16 --json          for scripts
  srun --ntasks-per-node=1 hetseq bench comm --mb 440     one rank per node under Slurm
  mpirun -n 2 hetseq bench comm --transport mpi           over MPI")]
pub(crate) struct BenchCommArgs {
    /// Number of ranks to start on this machine; several values are timed in turn
    #[arg(long, value_delimiter = ',', default_value = "2")]
    pub(crate) world: Vec<usize>,
    /// Vector sizes in megabytes of f32
    #[arg(long, value_delimiter = ',', default_value = "1,25,440")]
    pub(crate) mb: Vec<f64>,
    /// Data type on the wire
    #[arg(long, alias = "wire", value_delimiter = ',', default_value = "f32",
          value_parser = PossibleValuesParser::new(["f32", "bf16"]).try_map(named::<Dtype>))]
    pub(crate) wire_dtype: Vec<Dtype>,
    /// All-reduce algorithm; `ring` needs f32 and equal shards
    #[arg(long, alias = "route", value_delimiter = ',', default_value = "auto",
          value_parser = PossibleValuesParser::new(["auto", "direct", "ring"]).try_map(named::<Algorithm>))]
    pub(crate) algorithm: Vec<Algorithm>,
    /// Weight of each rank's shard of the sum, one per rank; with 1,1,1,0 the last rank sums
    /// nothing
    #[arg(long, alias = "own", value_delimiter = ',', conflicts_with = "measure_links")]
    pub(crate) shard_weight: Vec<f64>,
    /// Measure the links first and weight each rank's shard by its link, as training does
    #[arg(long, alias = "measure")]
    pub(crate) measure_links: bool,
    /// Exchange data over `tcp`, or over `mpi` (feature `mpi`; start it with mpirun or srun)
    #[arg(long, default_value = "tcp",
          value_parser = PossibleValuesParser::new(["tcp", "mpi"]).try_map(named::<TransportKind>))]
    pub(crate) transport: TransportKind,
    /// Encrypt the traffic
    #[arg(long)]
    pub(crate) encrypt: bool,
    /// Number of timed rounds; the median is reported
    #[arg(long, default_value_t = 9, value_parser = at_least_one())]
    pub(crate) rounds: u32,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) rank_args: RankArgs,
}

/// Parses a name as the config does.
fn named<T: DeserializeOwned>(name: String) -> Result<T, serde::de::value::Error> {
    T::deserialize(name.into_deserializer())
}

/// Benchmark reading samples for BERT pre-training
///
/// Reads prepared data in the order of a training epoch.
#[derive(Debug, Args)]
pub(crate) struct BenchDataArgs {
    /// Directories of `hetseq prep bert`, or with shards in NVIDIA's layout (default: both formats,
    /// of generated text)
    pub(crate) dirs: Vec<PathBuf>,
    /// Samples per batch
    #[arg(long, default_value_t = 64, value_parser = at_least_one())]
    pub(crate) batch: u32,
    /// Maximum tokens per sample
    #[arg(long, default_value_t = 128)]
    pub(crate) max_seq_length: usize,
    /// Seconds of reading per round
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Number of rounds over the directories; medians are reported
    #[arg(long, default_value_t = 3, value_parser = at_least_one())]
    pub(crate) rounds: u32,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Benchmark training steps, without network and checkpoints
///
/// A step loads samples, computes forward and backward passes, sums the gradients and runs the
/// optimizer. The task is that of a TOML file (by default the image task on drawn digits) or, with
/// --config, BERT pre-training in a fixed geometry on generated tokens, which needs no data.
/// scripts/bench-pytorch compares the latter with PyTorch.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  hetseq bench step                                        image task: one core against all
  hetseq bench step run.toml --devices cpu --devices gpu:0
  hetseq bench step --config base --threads 8 --json       BERT base without data")]
pub(crate) struct BenchStepArgs {
    /// TOML file of the run whose task to time (default: the image task on drawn digits)
    #[arg(value_name = "RUN.TOML")]
    pub(crate) path: Option<PathBuf>,
    /// Set a key of that file: task.dropout=0
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// Devices, as in run.devices; several choices are timed in turn (default: cpu:1 and cpu; with
    /// --config: cpu)
    #[arg(long)]
    devices: Vec<String>,
    /// Samples per update (default: 1024; with --config: that of the geometry)
    #[arg(long, value_parser = at_least_one())]
    pub(crate) batch: Option<u32>,
    /// BERT geometry to time instead of a TOML file
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(geometries()))]
    #[arg(conflicts_with_all = ["path", "sets"], help_heading = "Options for BERT without data")]
    pub(crate) config: Option<String>,
    /// Dropout rate of --config
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    #[arg(requires = "config", help_heading = "Options for BERT without data")]
    pub(crate) dropout: f64,
    /// Number of single-threaded devices for --config, as --devices cpu:N (default: one per core)
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    #[arg(requires = "config", conflicts_with = "devices", help_heading = "Options for BERT without data")]
    threads: Option<u32>,
    /// Number of timed steps per round
    #[arg(long, default_value_t = 10, value_parser = at_least_one())]
    pub(crate) steps: u32,
    /// Number of steps before the timed ones
    #[arg(long, default_value_t = 3)]
    pub(crate) warmup: u32,
    /// Number of rounds over the devices; medians are reported
    #[arg(long, default_value_t = 5, value_parser = at_least_one())]
    pub(crate) rounds: u32,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchStepArgs {
    /// The choices of devices: from --devices or --threads, else the default.
    pub(crate) fn devices(&self) -> Vec<String> {
        if !self.devices.is_empty() {
            return self.devices.clone();
        }
        match (&self.config, self.threads) {
            (Some(_), Some(threads)) => vec![format!("cpu:{threads}")],
            (Some(_), None) => vec!["cpu".to_owned()],
            (None, _) => ["cpu:1", "cpu"].map(str::to_owned).to_vec(),
        }
    }
}

/// Parses the duration of a measurement, up to a day.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "expected a number from 0 to 86400".to_owned())
}
