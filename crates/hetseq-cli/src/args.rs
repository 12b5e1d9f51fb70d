//! What can be typed. What it means is in the file of each subcommand.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use hetseq_comm::{Place, PlaceFlags, Route};
use hetseq_train::bench::geometries;
use hetseq_train::{ConfigSource, TrainError, WireType};
use serde::de::{DeserializeOwned, IntoDeserializer};

use crate::average::AverageArgs;
use crate::generate::GenerateArgs;
use crate::plan::PlanArgs;
use crate::prep::PrepTranslateArgs;
use crate::report::ReportArgs;
use crate::score::ScoreArgs;
use crate::simulate::SimulateArgs;

/// Train neural networks on whatever machines you have: any mix trains like one device.
///
/// Start with `hetseq demo`. A run is described by a TOML file (see configs/mnist.toml); any key of it can be set on the
/// command line with --set section.key=value.
#[derive(Debug, Parser)]
#[command(name = "hetseq", version = hetseq_train::VERSION, max_term_width = 100)]
pub(crate) struct Hetseq {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Show more on standard error, such as new plans of who computes what
    #[arg(long, short, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Train(TrainArgs),
    Eval(EvalArgs),
    Export(ExportArgs),
    Generate(GenerateArgs),
    Average(AverageArgs),
    Score(ScoreArgs),
    Demo(DemoArgs),
    Devices(DevicesArgs),
    Plan(PlanArgs),
    Simulate(SimulateArgs),
    Report(ReportArgs),
    #[command(subcommand)]
    Bench(BenchArgs),
    #[command(subcommand)]
    Prep(PrepArgs),
}

/// Write a trained model for other programs to load: the weights, and of BERT the config and the tokenizer that Hugging Face's
/// libraries ask for.
///
/// Checkpoints can be loaded by them as they are; this leaves out what only a resume needs, and can round.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// A run directory (its best checkpoint, else the newest), or a checkpoint
    #[arg(value_name = "RUN|CHECKPOINT")]
    pub(crate) from: PathBuf,
    /// The directory to make
    #[arg(value_name = "DIR")]
    pub(crate) to: PathBuf,
    /// What the numbers are to be
    #[arg(long, value_enum, default_value_t = PrecisionArg::F32)]
    pub(crate) precision: PrecisionArg,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum PrecisionArg {
    F32,
    F16,
    Bf16,
}

/// Train, alone or as one rank of several. Goes on from the newest checkpoint if there is one.
///
/// Several machines: start the same command on each, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set (or under
/// Slurm or mpirun, which set their own), or with the --distributed flags. If they do not share the run directory, set
/// the same HETSEQ_SECRET on all (openssl rand -hex 16 prints one). Ctrl-C, SIGTERM, SIGUSR1 or SIGHUP on any rank
/// finishes the update on all ranks, saves, and exits with 75; the same command resumes, also with another number of ranks.
/// Ctrl-C again after 2 s quits without saving.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// The run's TOML file, or a run directory (its config.toml)
    #[arg(value_name = "CONFIG", required_unless_present = "from_flags")]
    path: Option<PathBuf>,
    /// Set a key of the config: optim.lr=0.001, batch.global="4096 tokens"
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// This rank's weight when batch.split = "weights": its part of each update
    #[arg(long, value_name = "W")]
    pub(crate) weight: Option<f64>,
    /// Where to go on from: `auto` (newest checkpoint of the run), `never` (start anew, move the old aside), or a path
    #[arg(long, default_value = "auto", value_name = "auto|never|PATH")]
    pub(crate) resume: String,
    /// What not to take over from the checkpoint (comma-separated)
    #[arg(long, value_delimiter = ',')]
    pub(crate) reset: Vec<ResetWhat>,
    /// On a resume, settings of the optimizer instead of the config's: 'lr=1e-4,weight_decay=0.1' or "{'lr': 1e-4}"
    #[arg(long, value_name = "KEY=VALUE,...")]
    pub(crate) optimizer_overrides: Option<String>,
    #[command(flatten)]
    pub(crate) from_flags: FromFlagsArgs,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

impl TrainArgs {
    /// Clap has seen to it that there is one, unless `--from-flags` is given.
    pub(crate) fn source(&self) -> Result<ConfigSource, TrainError> {
        read_config(self.path.as_deref().unwrap_or(Path::new("")), &self.sets)
    }
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Coming from HetSeq or fairseq (docs/migrating.md)")]
pub(crate) struct FromFlagsArgs {
    /// Write a config from the command line of the original HetSeq or of fairseq-train, in quotes, and do not train
    #[arg(long, value_name = "\"COMMAND LINE\"", allow_hyphen_values = true, conflicts_with_all = [
        "path", "sets", "weight", "resume", "reset", "optimizer_overrides", "distributed_init_method", "distributed_rank",
    ])]
    pub(crate) from_flags: Option<String>,
    /// Where to write it (default: run.toml); `-` is standard output
    #[arg(long, value_name = "FILE", requires = "from_flags")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite that file
    #[arg(long, requires = "from_flags")]
    pub(crate) overwrite: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResetWhat {
    /// Moments and step count
    Optimizer,
    /// Warm up and decay again from here
    Schedule,
    /// Start the data at the first epoch
    Data,
}

/// Score a checkpoint on the validation samples; by default the best of the run, else the newest.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// The checkpoint directory to score
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// See it work: three workers of different speed train one model on this machine, on data drawn for the occasion.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Where to keep the run (default: a new directory for temporary files)
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// How many times slower than this machine each worker is
    #[arg(long, value_delimiter = ',', default_value = "1,2,4")]
    pub(crate) slowdown: Vec<f64>,
}

/// List the devices of this machine that can train, with what they can do and how fast, as tried and measured now.
///
/// Names are those that run.devices takes. Each GPU is tried in a process of its own, so that a driver that crashes spoils
/// nothing.
#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// What the processes are started with that try the GPUs
    #[arg(long, hide = true)]
    pub(crate) examine: Option<String>,
}

/// Measure.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchArgs {
    Step(BenchStepArgs),
    Comm(BenchCommArgs),
    Data(BenchDataArgs),
}

/// Time the sum of a vector over ranks, and verify it: processes on this machine, or, with a place among the ranks, the
/// machines that this command was started on.
#[derive(Debug, Args)]
pub(crate) struct BenchCommArgs {
    /// How many ranks to start on this machine; several are timed in turn
    #[arg(long, value_delimiter = ',', default_value = "2")]
    pub(crate) world: Vec<usize>,
    /// Sizes of the vector in megabytes of f32
    #[arg(long, value_delimiter = ',', default_value = "1,25,440")]
    pub(crate) mb: Vec<f64>,
    /// How values travel
    #[arg(long, value_delimiter = ',', default_value = "f32",
          value_parser = PossibleValuesParser::new(["f32", "bf16"]).try_map(named::<WireType>))]
    pub(crate) wire: Vec<WireType>,
    /// Which way they travel; a ring is for f32 and even shares
    #[arg(long, value_delimiter = ',', default_value = "auto",
          value_parser = PossibleValuesParser::new(["auto", "direct", "ring"]).try_map(named::<Route>))]
    pub(crate) route: Vec<Route>,
    /// How much of the sum each rank adds up, one weight per rank: 1,1,1,0 spares the last
    #[arg(long, value_delimiter = ',', conflicts_with = "measure")]
    pub(crate) own: Vec<f64>,
    /// Measure the lines between the ranks first, and let each add up as much as its line allows, as training does
    #[arg(long)]
    pub(crate) measure: bool,
    /// Encrypt what travels
    #[arg(long)]
    pub(crate) encrypt: bool,
    /// Timed rounds; the median is reported
    #[arg(long, default_value_t = 9, value_parser = at_least_one())]
    pub(crate) rounds: u32,
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
}

/// What the config calls the same thing.
fn named<T: DeserializeOwned>(name: String) -> Result<T, serde::de::value::Error> {
    T::deserialize(name.into_deserializer())
}

/// Time how fast samples for pre-training BERT come out of prepared data, in the order of a training epoch.
#[derive(Debug, Args)]
pub(crate) struct BenchDataArgs {
    /// Directories that `hetseq prep bert` wrote, or with shards in NVIDIA's layout (default: both, of made-up text)
    pub(crate) dirs: Vec<PathBuf>,
    /// Samples per batch
    #[arg(long, default_value_t = 64, value_parser = at_least_one())]
    pub(crate) batch: u32,
    /// Tokens per sample at most
    #[arg(long, default_value_t = 128)]
    pub(crate) max_seq_length: usize,
    /// Seconds of collating per round
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Rounds over the directories; medians of the rounds are reported
    #[arg(long, default_value_t = 3, value_parser = at_least_one())]
    pub(crate) rounds: u32,
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Time training steps (load, forward, backward, sum, optimizer), without network or checkpoints.
///
/// What is timed is either the task of a run's TOML file (by default the image task on drawn digits), or with --config
/// pre-training of BERT in a fixed geometry on made-up tokens, which needs no data. scripts/bench-pytorch holds the latter
/// against PyTorch.
#[derive(Debug, Args)]
pub(crate) struct BenchStepArgs {
    /// A run's TOML file whose task to time (default: the image task on drawn digits)
    #[arg(value_name = "RUN.TOML")]
    pub(crate) path: Option<PathBuf>,
    /// Set a key of that file
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) sets: Vec<String>,
    /// As run.devices; several are timed in turn, interleaved (default: cpu:1 and cpu, with --config cpu)
    #[arg(long)]
    devices: Vec<String>,
    /// Samples per update (default: 1024, with --config what the geometry has)
    #[arg(long, value_parser = at_least_one())]
    pub(crate) batch: Option<u32>,
    /// Instead of a TOML file: BERT of this geometry
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(geometries()))]
    #[arg(conflicts_with_all = ["path", "sets"], help_heading = "BERT without data")]
    pub(crate) config: Option<String>,
    /// With --config: so many single-threaded devices share the batch, as --devices cpu:N (default: one per core)
    #[arg(long, value_name = "N", value_parser = at_least_one())]
    #[arg(requires = "config", conflicts_with = "devices", help_heading = "BERT without data")]
    threads: Option<u32>,
    /// Timed steps per round
    #[arg(long, default_value_t = 10, value_parser = at_least_one())]
    pub(crate) steps: u32,
    /// Steps before the timed ones
    #[arg(long, default_value_t = 3)]
    pub(crate) warmup: u32,
    /// Rounds over the devices; medians of the rounds are reported
    #[arg(long, default_value_t = 5, value_parser = at_least_one())]
    pub(crate) rounds: u32,
    /// Print one JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchStepArgs {
    /// What was typed as --devices or --threads, or what is meant without.
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

/// Make training data.
#[derive(Debug, Subcommand)]
pub(crate) enum PrepArgs {
    Digits(PrepDigitsArgs),
    ImageFolder(PrepImageFolderArgs),
    Bert(PrepBertArgs),
    Translate(PrepTranslateArgs),
    Verify(PrepVerifyArgs),
}

/// Draw digits and write them as idx files in the layout of MNIST: data to try things with, without a download.
#[derive(Debug, Args)]
pub(crate) struct PrepDigitsArgs {
    /// Where to write the four files
    pub(crate) dir: PathBuf,
    /// How many training images
    #[arg(long, default_value_t = 9000, value_parser = at_least_one())]
    pub(crate) train: u32,
    /// How many test images
    #[arg(long, default_value_t = 1000, value_parser = at_least_one())]
    pub(crate) test: u32,
    /// Other drawings for another seed
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Draw coloured digits and write them as PNG and JPEG files in class folders (train/<class>/ and valid/<class>/).
#[derive(Debug, Args)]
pub(crate) struct PrepImageFolderArgs {
    /// Where to write the folders `train` and `valid`
    pub(crate) dir: PathBuf,
    /// How many training images
    #[arg(long, default_value_t = 3000, value_parser = at_least_one_each())]
    pub(crate) train: u32,
    /// How many images to validate on
    #[arg(long, default_value_t = 500, value_parser = at_least_one_each())]
    pub(crate) valid: u32,
    /// Other drawings for another seed
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// Of ten classes.
fn at_least_one_each() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(10..)
}

/// Prepare text for pre-training BERT: train a vocabulary, tokenise, and write shards.
///
/// INPUT is plain text, packed by gzip or not: a blank line ends a document (headings of WikiText and <doc> lines of
/// WikiExtractor are understood). The same input and settings give the same bytes on any machine. If it is
/// interrupted, the same command goes on where it stopped.
#[derive(Debug, Args)]
pub(crate) struct PrepBertArgs {
    /// Files, or directories with .txt, .gz or extensionless files
    #[arg(required = true, value_name = "INPUT")]
    pub(crate) inputs: Vec<PathBuf>,
    /// Where to write; a new directory, or one that the same command has begun
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Tokens in the vocabulary that is trained
    #[arg(long, default_value_t = 30522, value_name = "N")]
    pub(crate) vocab_size: usize,
    /// Keep upper case and accents
    #[arg(long)]
    pub(crate) cased: bool,
    /// Take this vocab.txt instead of training one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vocab_size", "tokenizer"])]
    pub(crate) vocab: Option<PathBuf>,
    /// Take this tokenizer.json instead of training one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vocab_size", "cased"])]
    pub(crate) tokenizer: Option<PathBuf>,
    /// What a line of the text is
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) sentences: SentencesArg,
    /// Hold out this part of the documents for validation
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    pub(crate) valid_fraction: f64,
    /// Hold out these files or directories for validation
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) valid: Vec<PathBuf>,
    /// `compact`: tokens, masked anew in every epoch. `hdf5`: masked now, in NVIDIA's layout
    #[arg(long, value_enum, default_value = "compact")]
    pub(crate) format: FormatArg,
    /// MiB of text per shard (default: 128, with hdf5 32)
    #[arg(long, value_name = "N")]
    pub(crate) shard_mb: Option<u64>,
    /// What is held out, and with hdf5 all masks and pairs, follow from it
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    // Last, since its heading would stand above what follows.
    #[command(flatten)]
    pub(crate) hdf5: Hdf5Args,
}

/// What is decided when masked samples are written; with `compact` it is decided when training.
#[derive(Debug, Args)]
#[command(next_help_heading = "With --format hdf5")]
pub(crate) struct Hdf5Args {
    /// Tokens per sample (default: 128)
    #[arg(long, value_name = "N")]
    pub(crate) max_seq_length: Option<usize>,
    /// Masked tokens per sample at most (default: 20)
    #[arg(long, value_name = "N")]
    pub(crate) max_predictions: Option<usize>,
    /// Passes over the text, each with other masks and pairs (default: 5)
    #[arg(long, value_name = "N")]
    pub(crate) dupe_factor: Option<usize>,
    /// How many samples are cut short on purpose (default: 0.1)
    #[arg(long, value_name = "PART")]
    pub(crate) short_seq_prob: Option<f64>,
    /// Mask whole words
    #[arg(long)]
    pub(crate) whole_word: bool,
}

impl Hdf5Args {
    /// One of them that was typed.
    pub(crate) fn typed(&self) -> Option<&'static str> {
        let all = [
            ("--max-seq-length", self.max_seq_length.is_some()),
            ("--max-predictions", self.max_predictions.is_some()),
            ("--dupe-factor", self.dupe_factor.is_some()),
            ("--short-seq-prob", self.short_seq_prob.is_some()),
            ("--whole-word", self.whole_word),
        ];
        all.into_iter().find(|(_, is_typed)| *is_typed).map(|(flag, _)| flag)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SentencesArg {
    /// Look at each file
    Auto,
    /// A sentence
    Lines,
    /// Several whole sentences
    Paragraphs,
    /// A piece of a paragraph that was wrapped
    Wrapped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    Compact,
    Hdf5,
}

/// Read all of a prepared corpus (text for BERT, or pairs for translation), or of shards in NVIDIA's layout, and say whether
/// anything is damaged.
#[derive(Debug, Args)]
pub(crate) struct PrepVerifyArgs {
    /// The directory
    pub(crate) dir: PathBuf,
    /// Ids that the model knows; larger ones in shards are an error
    #[arg(long, value_name = "N")]
    pub(crate) vocab_size: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Of a measurement: neither endless nor a typing error.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "say a number from 0 to 86400".to_owned())
}

fn at_least_one() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The run's TOML file, or a run directory (its config.toml)
    #[arg(value_name = "CONFIG")]
    path: PathBuf,
    /// Set a key of the config: optim.lr=0.001, batch.global="4096 tokens"
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl ConfigArgs {
    pub(crate) fn source(&self) -> Result<ConfigSource, TrainError> {
        read_config(&self.path, &self.sets)
    }
}

/// A directory is a run's: its config is read, and it is where the run goes on, whatever path it had when it began.
pub(crate) fn read_config(path: &Path, sets: &[String]) -> Result<ConfigSource, TrainError> {
    if !path.is_dir() {
        return ConfigSource::read(path, sets);
    }
    let here = format!("run.dir={:?}", path.display().to_string());
    let sets: Vec<String> = std::iter::once(here).chain(sets.iter().cloned()).collect();
    ConfigSource::read(&path.join("config.toml"), &sets)
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Place among the ranks (else from RANK/WORLD_SIZE/MASTER_*, SLURM_*, OMPI_*)")]
pub(crate) struct PlaceArgs {
    /// Where the ranks meet: tcp://host:port of rank 0, or file:///dir, a directory that all share
    #[arg(long, value_name = "URL")]
    distributed_init_method: Option<String>,
    /// How many ranks there are
    #[arg(long, value_name = "N")]
    pub(crate) distributed_world_size: Option<usize>,
    /// Which of them this is, from 0; may be left out with file://
    #[arg(long, value_name = "R")]
    distributed_rank: Option<usize>,
}

impl PlaceArgs {
    /// Whether any of them was typed.
    pub(crate) fn is_given(&self) -> bool {
        self.distributed_init_method.is_some()
            || self.distributed_world_size.is_some()
            || self.distributed_rank.is_some()
    }

    pub(crate) fn find(&self) -> anyhow::Result<Place> {
        let flags = PlaceFlags {
            init_method: self.distributed_init_method.clone(),
            world_size: self.distributed_world_size,
            rank: self.distributed_rank,
        };
        Place::find(&flags, &|name| std::env::var(name).ok()).map_err(|error| UsageError(error.to_string()).into())
    }
}

/// Something typed that cannot be meant: exit code 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}
