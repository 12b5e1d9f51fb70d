//! The typed form of `run.toml`: sections, keys, defaults. `file.rs` reads it, `validate.rs` checks
//! values.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::devices::PrecisionPolicy;
use hetseq_balance::SplitMode;
use hetseq_comm::{Algorithm, TransportKind, WireFormat};
use hetseq_data::GlobalBatch;
use hetseq_kernels::Dtype;
use serde::{Deserialize, Serialize};

use super::every::Every;
use super::optim::Optim;

/// The config of a run; `C` is the task's table. An `Option` that is not given is `None` and is not
/// written, since TOML has no null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config<C> {
    pub run: Run,
    pub task: C,
    pub batch: Batching,
    pub optim: Optim,
    #[serde(default)]
    pub valid: Valid,
    #[serde(default)]
    pub checkpoint: Checkpoint,
    #[serde(default)]
    pub comm: Comm,
    #[serde(default)]
    pub elastic: Elastic,
    #[serde(default)]
    pub emulate: Emulate,
    #[serde(default)]
    pub debug: Debug,
}

impl<C> Config<C> {
    /// The same config with another table for the task.
    pub(crate) fn with_task<D>(self, task: D) -> Config<D> {
        let Config { run, task: _, batch, optim, valid, checkpoint, comm, elastic, emulate, debug } = self;
        Config { run, task, batch, optim, valid, checkpoint, comm, elastic, emulate, debug }
    }
}

/// The config of a run whose task is opened: the trainer does not read the task's table.
pub(crate) type RunConfig = Config<toml::Table>;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The task: `images`, `bert-pretrain`, or a custom one.
    pub task: String,
    /// The run directory, for metrics and checkpoints; `runs/<name of the config>` if not given.
    pub dir: Option<PathBuf>,
    #[serde(default = "one")]
    pub seed: u64,
    pub max_updates: Option<u64>,
    pub max_epochs: Option<u64>,
    /// End the run when the learning rate has fallen to this or below.
    pub stop_min_lr: Option<f64>,
    /// The devices: `all` (every GPU and the remaining cores), `cpu`, `cpu:4`, `cpu:2x8`,
    /// `cpu:0-3`, `gpu:0`, ...; see `hetseq devices`.
    #[serde(default = "all")]
    pub devices: String,
    /// The precision of products: `f32`, `f16`, `bf16`, or `auto` for what each device can do. A
    /// device may have another one: `gpu:0@f16`.
    #[serde(default)]
    pub precision: PrecisionPolicy,
    /// The Python interpreter for PyTorch devices and Python tasks; by default `python3`.
    pub python: Option<String>,
    /// Updates between log lines on plain output.
    #[serde(default = "fifty")]
    pub log_every: u64,
    /// Threads that read and prepare samples; by default the cores that the devices do not use, at
    /// least one.
    pub loader_threads: Option<usize>,
    /// Updates to load ahead of the one that is computed. The split of an update follows from times
    /// measured before it was loaded.
    #[serde(default = "one")]
    pub prefetch: u64,
    /// The most memory, in MiB, that this process may use; by default what its control group or the
    /// machine allows.
    pub memory_mib: Option<u64>,
    /// The most memory of each GPU, in MiB, that it may use; by default what its driver reports as
    /// free.
    pub gpu_memory_mib: Option<u64>,
    /// Updates in a row that may be skipped because their gradients are infinite or NaN. One more ends
    /// the run.
    #[serde(default = "five")]
    pub max_bad_updates: u64,
    /// Updates between comparisons of the parameters' checksums over all ranks; 0 is never.
    #[serde(default = "hundred")]
    pub checksum_every: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batching {
    /// Samples per update over all machines, or `"4096 tokens"`.
    pub global: GlobalBatch,
    /// The most padded tokens in one micro-batch on this machine's devices.
    pub max_tokens: Option<u32>,
    /// The most samples in one micro-batch on this machine's devices.
    pub micro: Option<u32>,
    #[serde(default)]
    pub split: SplitMode,
    /// With `split = "measured"`, or a memory limit: seconds for probing the devices before the
    /// first update. With 0 their speeds are learned from the first updates.
    #[serde(default = "twenty")]
    pub probe_s: f64,
    /// With `split = "measured"`: split evenly for this many updates first.
    #[serde(default)]
    pub even_updates: u64,
    /// Epochs at the start that keep the order of the data (short samples first) instead of
    /// shuffling.
    #[serde(default)]
    pub curriculum_epochs: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Valid {
    pub every: Every,
    /// End the run when this many validations in a row have not improved on the best one.
    pub patience: Option<u64>,
}

impl Default for Valid {
    fn default() -> Self {
        Valid { every: Every::Epochs(1), patience: None }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checkpoint {
    pub every: Every,
    /// How many of the newest checkpoints to keep, besides the best one.
    pub keep: usize,
    /// The metric that decides which is best: `loss`, or a metric of the task.
    pub best: String,
    /// What to do when a checkpoint cannot be written.
    pub on_error: OnSaveError,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Checkpoint { every: Every::Epochs(1), keep: 3, best: "loss".to_owned(), on_error: OnSaveError::Continue }
    }
}

/// What to do when a checkpoint cannot be written during a run. If the last one cannot be written,
/// the run fails in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnSaveError {
    /// Warn, continue and retry: computed updates are valuable, and the disk may have space again
    /// in an hour.
    Continue,
    /// End the run on all ranks.
    Stop,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Comm {
    /// How ranks exchange data: `tcp` or `mpi`. The same on all ranks.
    pub transport: TransportKind,
    /// The longest outage of the network that a run survives. A peer that sends nothing for this
    /// long, heartbeats included, and for as long as TCP may need to recover, is lost.
    pub silence_s: f64,
    /// A peer that is alive but makes no progress for this long is stuck.
    pub progress_s: f64,
    /// How long to wait for all ranks at the start.
    pub join_s: f64,
    /// Encrypt all traffic between the ranks.
    pub encrypt: bool,
    /// Network interface or address to listen on.
    pub interface: Option<String>,
    /// First and last port that ranks may listen on.
    pub ports: Option<[u16; 2]>,
    /// The dtype of gradients on the network: `f32`, or `bf16` for half the bytes on a slow
    /// network. The same on all ranks.
    #[serde(alias = "wire")]
    pub wire_dtype: Dtype,
    /// The all-reduce algorithm: `auto`, `direct` or `ring`. The same on all ranks.
    #[serde(alias = "route")]
    pub algorithm: Algorithm,
    /// The size of the shard of the sum that this rank adds up, relative to the other ranks; 0 for
    /// a host with a slow link. By default it follows from the measured speed of the links.
    #[serde(alias = "own")]
    pub shard_weight: Option<f64>,
    /// Measure the speed of the links between the ranks before the first update.
    #[serde(alias = "measure")]
    pub measure_links: bool,
}

/// The wire format of a vector whose last `exact_tail` values must not be rounded.
pub fn wire_format(dtype: Dtype, exact_tail: usize) -> WireFormat {
    match dtype {
        Dtype::Bf16 => WireFormat::Bf16 { exact_tail },
        _ => WireFormat::F32,
    }
}

impl Comm {
    pub(crate) fn progress_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.progress_s)
    }

    /// The time limit of a device for one micro-batch. Less than other ranks wait for this one, so
    /// that its other devices can take over from one that hangs.
    pub(crate) fn device_timeout(&self) -> Duration {
        self.progress_timeout() / 3
    }
}

impl Default for Comm {
    fn default() -> Self {
        Comm {
            transport: TransportKind::default(),
            silence_s: 10.0,
            progress_s: 1800.0,
            join_s: 300.0,
            encrypt: false,
            interface: None,
            ports: None,
            wire_dtype: Dtype::default(),
            algorithm: Algorithm::default(),
            shard_weight: None,
            measure_links: true,
        }
    }
}

/// What a run does when it loses ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Elastic {
    /// Continue with the ranks that are left. Otherwise all stop, and the run resumes from its last
    /// checkpoint.
    pub enabled: bool,
    /// Stop if fewer ranks than this are left.
    pub min_workers: usize,
    /// Start with this many ranks; the others join later. By default with all.
    pub start_with: Option<NonZeroUsize>,
    /// When this machine leaves by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leave_when: Option<LeaveWhen>,
}

/// When a borrowed machine is needed for something else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LeaveWhen {
    /// A command of the shell exits with 0.
    pub command: Option<String>,
    /// The load average is above this, without the threads of this run on this machine.
    pub load: Option<f64>,
    /// Another user than the one who runs this process is logged in.
    pub user: bool,
    /// For how long one of these must hold before the machine leaves.
    pub after_s: f64,
    /// For how long none may hold before it returns.
    pub free_s: f64,
}

impl Default for LeaveWhen {
    fn default() -> Self {
        LeaveWhen { command: None, load: None, user: false, after_s: 10.0, free_s: 300.0 }
    }
}

impl Default for Elastic {
    fn default() -> Self {
        Elastic { enabled: true, min_workers: 1, start_with: None, leave_when: None }
    }
}

/// Emulated slow or faulty machines, for demonstrations and tests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Emulate {
    /// One factor per rank: after computing, the rank sleeps until it has taken that many times as
    /// long.
    pub slowdown: Vec<f64>,
    /// One number per rank: micro-batches of more tokens do not fit into its memory; 0 is no limit.
    pub memory_tokens: Vec<u64>,
    /// Devices that fail in an update, as if they were unplugged.
    pub lost: Vec<FaultAt>,
    /// Devices that hang in an update and never answer again.
    pub hung: Vec<FaultAt>,
    /// Devices whose gradients are NaN in an update.
    pub not_finite: Vec<FaultAt>,
    /// Updates in which the gradients of devices that compute in `f16` overflow.
    pub overflow: Vec<u64>,
    /// Ranks of whose parameters one bit changes after an update, as in faulty memory.
    pub flipped_bit: Vec<RankFault>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankFault {
    pub rank: usize,
    pub update: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultAt {
    pub rank: usize,
    pub device: String,
    pub update: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Debug {
    /// Write the reduced gradient of each update to `gradients/update-N.safetensors`.
    pub gradients: bool,
    /// Write which samples each rank computed in each update to `audit-rank-R.jsonl`.
    pub audit: bool,
}

/// `--resume`: where to start from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Resume {
    /// From the newest checkpoint of the run directory, if there is one.
    #[default]
    Auto,
    /// A new run. Files of an earlier run in the directory are archived.
    Never,
    From(PathBuf),
}

impl FromStr for Resume {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Resume::Auto,
            "never" => Resume::Never,
            path => Resume::From(PathBuf::from(path)),
        })
    }
}

/// `--reset`: parts of the checkpoint that a resume ignores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    pub optimizer: bool,
    pub schedule: bool,
    pub data: bool,
}

fn one() -> u64 {
    1
}
fn five() -> u64 {
    5
}
fn twenty() -> f64 {
    20.0
}
fn fifty() -> u64 {
    50
}
fn hundred() -> u64 {
    100
}
fn all() -> String {
    "all".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_not_given_are_not_written() {
        let text = "[run]\ntask = 'x'\nmax_epochs = 2\n[task]\n[batch]\nglobal = 8\n[optim]\nname = 'sgd'\nlr = 1.0\n";
        let config: Config<toml::Table> = toml::from_str(text).unwrap();
        let table = toml::Table::try_from(&config).unwrap();
        let keys = |section: &str| table[section].as_table().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(
            keys("run"),
            "checksum_every devices log_every max_bad_updates max_epochs precision prefetch seed task"
        );
        assert_eq!(keys("optim"), "betas lr momentum name nesterov weight_decay");
        assert_eq!((keys("valid").as_str(), keys("batch").contains("micro")), ("every", false));
        // As it is written to the run directory.
        assert_eq!(toml::from_str::<Config<toml::Table>>(&toml::to_string(&config).unwrap()).unwrap(), config);
    }
}
