//! `run.toml`, typed. What was typed there and how it is read is in [`crate::source`]; here is what it means.

mod optim;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::devices::Wanted;
use hetseq_balance::Split;
use hetseq_comm::{Route, Wire};
use hetseq_data::GlobalBatch;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use optim::Optim;

/// A whole run; `C` is the task's own table. An `Option` that is not given is none, and is not written: TOML knows no such
/// value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config<C> {
    pub run: Run,
    pub task: C,
    pub batch: Batch,
    pub optim: Optim,
    #[serde(default)]
    pub valid: Valid,
    #[serde(default)]
    pub checkpoint: Checkpoint,
    #[serde(default)]
    pub comm: Comm,
    #[serde(default)]
    pub emulate: Emulate,
    #[serde(default)]
    pub debug: Debug,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Which task: `images`, `bert-pretrain`, or one of your own.
    pub task: String,
    /// Where metrics and checkpoints go; `runs/<name of the config>` if not given.
    pub dir: Option<PathBuf>,
    #[serde(default = "one")]
    pub seed: u64,
    pub max_updates: Option<u64>,
    pub max_epochs: Option<u64>,
    /// End the run when the learning rate has fallen to this or below.
    pub stop_min_lr: Option<f64>,
    /// What computes: `all` (every GPU and the cores that are left), `cpu`, `cpu:4`, `cpu:2x8`, `cpu:0-3`, `gpu:0`, ...; see
    /// `hetseq devices`.
    #[serde(default = "all")]
    pub devices: String,
    /// In which precision products are computed: `f32`, `f16`, `bf16`, or `auto` for what each device can do. A device may have
    /// its own: `gpu:0@f16`.
    #[serde(default)]
    pub precision: Wanted,
    /// On plain output, a line per that many updates.
    #[serde(default = "fifty")]
    pub log_every: u64,
    /// Threads that read and prepare samples; by default the cores that the devices leave, at least one.
    pub loader_threads: Option<usize>,
    /// How many updates are loaded ahead of the one that is computed. The split of an update follows from what was measured
    /// before it was loaded.
    #[serde(default = "one")]
    pub prefetch: u64,
    /// The most memory, in MiB, that this process may use; by default what its control group or the machine allows.
    pub memory_mib: Option<u64>,
    /// The most of each GPU's memory, in MiB, that it may use; by default what its driver says is free.
    pub gpu_memory_mib: Option<u64>,
    /// Take a checksum of the parameters on every rank each so many updates, and compare; 0 is never.
    #[serde(default = "hundred")]
    pub checksum_every: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Samples per update over all machines, or `"4096 tokens"`.
    pub global: GlobalBatch,
    /// The most padded tokens in one micro-batch on this machine's devices.
    pub max_tokens: Option<u32>,
    /// The most samples in one micro-batch on this machine's devices.
    pub micro: Option<u32>,
    #[serde(default)]
    pub split: Split,
    /// With `split = "measured"`, or a limit of memory: how many seconds the devices may be measured before the first update. 0 is
    /// not at all: their speeds are then learnt from the first updates.
    #[serde(default = "twenty")]
    pub probe_s: f64,
    /// With `split = "measured"`: split evenly for that many updates first.
    #[serde(default)]
    pub even_updates: u64,
    /// The first epochs keep the order of the data (short samples first) instead of shuffling.
    #[serde(default)]
    pub curriculum_epochs: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Valid {
    pub every: Every,
    /// End the run when so many validations in a row have not improved on the best one.
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
    /// How many of the newest to keep; the best one is kept beside them.
    pub keep: usize,
    /// What decides which is best: `loss`, or a metric of the task.
    pub best: String,
    /// What to do when one cannot be written.
    pub on_error: OnError,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Checkpoint { every: Every::Epochs(1), keep: 3, best: "loss".to_owned(), on_error: OnError::Continue }
    }
}

/// When a checkpoint cannot be written in mid-run. The last one of a run must be written in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// Warn, go on, try again: computed updates are worth more than a disk that may have room again in an hour.
    Continue,
    /// End the run on all ranks.
    Stop,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Comm {
    /// The longest outage of the network that a run survives. A peer that sends nothing for this
    /// long, heartbeats included, and for as long as TCP may need to recover, is lost.
    pub silence_s: f64,
    /// A peer that is alive but does not come forward for so long is stuck.
    pub progress_s: f64,
    /// How long to wait for all ranks at the start.
    pub join_s: f64,
    /// Encrypt everything between the ranks.
    pub encrypt: bool,
    /// Network interface or address to listen on.
    pub interface: Option<String>,
    /// First and last port that ranks may listen on.
    pub ports: Option<[u16; 2]>,
    /// How gradients travel: `f32`, or `bf16` for half the bytes on a slow network. The same on all ranks.
    pub wire: WireType,
    /// Which way they travel: `auto`, `direct` or `ring`. The same on all ranks.
    pub route: Route,
    /// How much of the sum this rank adds up, against the others; 0 for a host with a slow line. By default it follows from
    /// how fast the lines are found to be.
    pub own: Option<f64>,
    /// Measure how fast the lines between the ranks are before the first update.
    pub measure: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireType {
    #[default]
    F32,
    Bf16,
}

impl WireType {
    /// How a vector travels whose last `exact_tail` values must not be rounded.
    pub fn wire(self, exact_tail: usize) -> Wire {
        match self {
            WireType::F32 => Wire::F32,
            WireType::Bf16 => Wire::Bf16 { exact_tail },
        }
    }
}

/// As it is called in configs.
impl fmt::Display for WireType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            WireType::F32 => "f32",
            WireType::Bf16 => "bf16",
        })
    }
}

impl Comm {
    pub(crate) fn progress(&self) -> Duration {
        Duration::from_secs_f64(self.progress_s)
    }

    /// How long a device may take over one micro-batch: less than others wait for this rank, so that its other devices can
    /// take over from one that hangs.
    pub(crate) fn device_patience(&self) -> Duration {
        self.progress() / 3
    }
}

impl Default for Comm {
    fn default() -> Self {
        Comm {
            silence_s: 60.0,
            progress_s: 1800.0,
            join_s: 300.0,
            encrypt: false,
            interface: None,
            ports: None,
            wire: WireType::default(),
            route: Route::default(),
            own: None,
            measure: true,
        }
    }
}

/// Pretend to be another machine. For demonstrations and tests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Emulate {
    /// One factor per rank: after computing it sleeps until it has taken that many times as long.
    pub slowdown: Vec<f64>,
    /// One number per rank: micro-batches of more tokens do not fit into its memory; 0 is no limit.
    pub memory_tokens: Vec<u64>,
    /// Devices that fail in an update, as if they were pulled out.
    pub lost: Vec<FaultAt>,
    /// Devices that hang in an update: they never answer again.
    pub hung: Vec<FaultAt>,
    /// Updates in which the gradients of devices that compute in `f16` overflow.
    pub overflow: Vec<u64>,
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
    /// Write who computed which samples in each update to `audit-rank-R.jsonl`.
    pub audit: bool,
}

/// `"10 updates"`, `"1 epoch"`, `"never"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Every {
    Updates(u64),
    Epochs(u64),
    Never,
}

impl Every {
    /// Whether it is due after `updates` updates in all, the last of which may have ended the epoch before `epoch`.
    pub fn is_due(self, updates: u64, epoch: u64, epoch_ended: bool) -> bool {
        match self {
            Every::Updates(n) => updates.is_multiple_of(n),
            Every::Epochs(n) => epoch_ended && epoch.is_multiple_of(n),
            Every::Never => false,
        }
    }
}

impl FromStr for Every {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an interval: say \"10 updates\", \"1 epoch\" or \"never\"");
        if text.trim() == "never" {
            return Ok(Every::Never);
        }
        let (number, unit) = text.trim().split_once(char::is_whitespace).ok_or_else(wrong)?;
        let number: u64 = number.replace(['_', ','], "").parse().map_err(|_| wrong())?;
        match (number, unit.trim()) {
            (0, _) => Err(wrong()),
            (n, "update" | "updates") => Ok(Every::Updates(n)),
            (n, "epoch" | "epochs") => Ok(Every::Epochs(n)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Every::Updates(n) => write!(f, "{n} update{}", if *n == 1 { "" } else { "s" }),
            Every::Epochs(n) => write!(f, "{n} epoch{}", if *n == 1 { "" } else { "s" }),
            Every::Never => f.write_str("never"),
        }
    }
}

impl Serialize for Every {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Every {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// `--resume`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Resume {
    /// From the newest checkpoint of the run directory, if there is one.
    #[default]
    Auto,
    /// From the start; what an earlier run left in the directory is moved aside.
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

/// `--reset`: what not to take over from the checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reset {
    pub optimizer: bool,
    pub schedule: bool,
    pub data: bool,
}

impl<C> Config<C> {
    /// What no type can say.
    pub fn check(&self) -> Result<(), String> {
        if self.run.max_updates.is_none() && self.run.max_epochs.is_none() {
            return Err("set run.max_updates or run.max_epochs: a run needs an end".to_owned());
        }
        self.optim.check()?;
        if let Some(least) = self.run.stop_min_lr {
            self.optim.check_stop(least)?;
        }
        if self.valid.patience == Some(0) {
            return Err("valid.patience must be at least 1; leave it out to train on regardless".to_owned());
        }
        if self.valid.patience.is_some() && self.valid.every == Every::Never {
            return Err("valid.patience counts validations, but valid.every = \"never\"".to_owned());
        }
        if self.run.loader_threads.is_some_and(|threads| !(1..=1024).contains(&threads)) {
            return Err(
                "run.loader_threads must be 1 to 1024; leave it out for as many as there are cores to spare".to_owned()
            );
        }
        if !(1..=64).contains(&self.run.prefetch) {
            return Err(format!("run.prefetch = {} must be 1 to 64 updates", self.run.prefetch));
        }
        if self.batch.micro == Some(0) || self.batch.max_tokens == Some(0) {
            return Err("batch.micro and batch.max_tokens must be at least 1".to_owned());
        }
        if self.batch.even_updates > 0 && self.batch.split != Split::Measured {
            return Err("batch.even_updates only counts with batch.split = \"measured\"".to_owned());
        }
        if self.comm.ports.is_some_and(|[first, last]| first > last || first == 0) {
            return Err("comm.ports: say the first and the last port, such as [29500, 29510]".to_owned());
        }
        if let Some(own) = self.comm.own.filter(|own| !(own.is_finite() && *own >= 0.0)) {
            return Err(format!("comm.own = {own} must be zero or more"));
        }
        if !(0.0..=3600.0).contains(&self.batch.probe_s) {
            return Err(format!("batch.probe_s = {} must be 0 to 3600 seconds", self.batch.probe_s));
        }
        for (key, mib) in [("run.memory_mib", self.run.memory_mib), ("run.gpu_memory_mib", self.run.gpu_memory_mib)] {
            if mib == Some(0) {
                return Err(format!("{key} must be at least 1; leave it out for what there is"));
            }
            if mib.is_some() && self.batch.probe_s == 0.0 {
                return Err(format!(
                    "{key} needs batch.probe_s above 0: what fits is measured before the first update"
                ));
            }
        }
        if self.comm.wire == WireType::Bf16 && self.comm.route == Route::Ring {
            return Err(
                "comm.route = \"ring\" would round at every hop; with comm.wire = \"bf16\" leave it out".to_owned()
            );
        }
        if self.checkpoint.keep == 0 {
            return Err("checkpoint.keep must be at least 1".to_owned());
        }
        if let Some(factor) = self.emulate.slowdown.iter().find(|factor| !(1.0..=1000.0).contains(*factor)) {
            return Err(format!("emulate.slowdown: {factor} is not in 1..1000"));
        }
        for (name, seconds) in
            [("silence_s", self.comm.silence_s), ("progress_s", self.comm.progress_s), ("join_s", self.comm.join_s)]
        {
            if !(0.1..=1e7).contains(&seconds) {
                return Err(format!("comm.{name} = {seconds} must be between 0.1 and 10,000,000 seconds"));
            }
        }
        Ok(())
    }
}

fn one() -> u64 {
    1
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
    fn what_is_not_given_is_not_written() {
        let text = "[run]\ntask = 'x'\nmax_epochs = 2\n[task]\n[batch]\nglobal = 8\n[optim]\nname = 'sgd'\nlr = 1.0\n";
        let config: Config<toml::Table> = toml::from_str(text).unwrap();
        let table = toml::Table::try_from(&config).unwrap();
        let keys = |section: &str| table[section].as_table().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(keys("run"), "checksum_every devices log_every max_epochs precision prefetch seed task");
        assert_eq!(keys("optim"), "betas lr momentum name nesterov weight_decay");
        assert_eq!((keys("valid").as_str(), keys("batch").contains("micro")), ("every", false));
        // As the run directory keeps it.
        assert_eq!(toml::from_str::<Config<toml::Table>>(&toml::to_string(&config).unwrap()).unwrap(), config);
    }

    #[test]
    fn intervals() {
        assert_eq!("10 updates".parse(), Ok(Every::Updates(10)));
        assert_eq!("1 epoch".parse(), Ok(Every::Epochs(1)));
        for bad in ["", "10", "0 updates", "ten updates", "5 minutes"] {
            assert!(bad.parse::<Every>().is_err(), "{bad}");
        }
        assert!(Every::Updates(5).is_due(10, 0, false));
        assert!(!Every::Updates(5).is_due(11, 1, true));
        assert!(Every::Epochs(2).is_due(11, 2, true));
        assert!(!Every::Epochs(2).is_due(11, 2, false));
    }
}
