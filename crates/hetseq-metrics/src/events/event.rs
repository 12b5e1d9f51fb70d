//! One enum for everything observable in a run. Its JSON form is the content of `metrics.jsonl`,
//! which scripts read. So names are stable: add fields, do not rename them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

/// Everything observable in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A process group started or resumed the run.
    Start {
        version: String,
        task: String,
        seed: u64,
        world: usize,
        devices: usize,
        parameters: usize,
        /// How many of them do not change (`optim.frozen`).
        #[serde(default)]
        frozen_parameters: usize,
        train_samples: usize,
        valid_samples: usize,
        updates_per_epoch: usize,
        /// The part of an epoch's tokens that is padding if each update is padded to its longest
        /// sample; micro-batches pad less.
        #[serde(default)]
        padding: f64,
        /// The last update of this run, if it is known.
        total_updates: u64,
        /// The update after which the checkpoint was taken; zero for a new run.
        resumed_at: u64,
        /// The metric that decides which checkpoint is the best (`checkpoint.best`).
        #[serde(default)]
        best_metric: String,
        /// Config keys whose values differ from those at the time of that checkpoint.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changed: Vec<Change>,
    },
    /// One optimizer step, the same on all ranks.
    Update {
        /// Counts from one: the number of updates so far, including this one.
        update: u64,
        epoch: u64,
        /// The minimised loss: the weighted sum of the terms.
        loss: f64,
        terms: BTreeMap<String, f64>,
        samples: u64,
        /// The tokens of these samples, without padding. None if samples have no length, such as
        /// images.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tokens: Option<u64>,
        grad_norm: f64,
        /// Gradients overflowed, so the parameters did not change.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        skipped: bool,
        lr: f64,
        seconds: f64,
        /// The part of `seconds` in which a rank waited for its samples; the maximum over the
        /// ranks.
        #[serde(default)]
        data_wait_s: f64,
        /// The plan's prediction of `seconds`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        predicted_s: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checksum: Option<String>,
    },
    /// An update that was skipped, because its gradient was infinite or NaN.
    NotFinite {
        update: u64,
        /// The ranks whose gradients were not finite, by their numbers at the start, and the samples
        /// that they computed.
        ranks: Vec<usize>,
        samples: Vec<u32>,
        /// Skipped updates in a row, with this one.
        in_a_row: u64,
    },
    /// A plan: the first one, or a new one because devices became faster or slower.
    Plan {
        /// The first update with this plan.
        update: u64,
        /// The predicted time of an update.
        predicted_s: f64,
        /// The predicted time with the old plan, and the relative gain: 0.08 is 8 %. `None` for the
        /// first plan.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before_s: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gain: Option<f64>,
        /// The samples of each device in this update, in the order of `Workers`.
        samples: Vec<u64>,
        /// Each device's time divided by the time measured at the start.
        factors: Vec<f64>,
    },
    /// A validation.
    Valid {
        update: u64,
        epoch: u64,
        loss: f64,
        terms: BTreeMap<String, f64>,
        samples: u64,
        seconds: f64,
        #[serde(flatten, deserialize_with = "numbers_only")]
        metrics: BTreeMap<String, f64>,
    },
    /// A complete checkpoint on the disk.
    Checkpoint {
        update: u64,
        path: PathBuf,
        best: bool,
        /// The time of writing it, in the background.
        seconds: f64,
        /// The time for which training paused.
        #[serde(default)]
        paused_seconds: f64,
    },
    /// Totals per device and rank since the start of this process group, or since it regrouped.
    /// Emitted at the end, and before `Lost`, `Left`, `Regrouped` and `Joined`. Ranks are numbered as in the current
    /// group: those that are left keep their order and are numbered from zero again.
    Workers {
        update: u64,
        /// The number of updates in the totals, and their time.
        #[serde(default)]
        updates: u64,
        #[serde(default)]
        wall_s: f64,
        workers: Vec<WorkerReport>,
        #[serde(default)]
        ranks: Vec<RankReport>,
    },
    /// A rank was lost.
    Lost {
        /// Updates done before.
        update: u64,
        /// Its number at the start of this process group.
        rank: usize,
        host: String,
        reason: String,
    },
    /// A rank has left, because its machine is needed for something else.
    Left {
        /// Updates done before.
        update: u64,
        /// Its number at the start of this process group.
        rank: usize,
        host: String,
        /// What asked it to leave.
        reason: String,
        /// Of all ranks before.
        shares: Vec<ShareChange>,
    },
    /// The ranks that are left continue as a new group.
    Regrouped {
        /// Updates done before. An update that was in progress is computed again.
        update: u64,
        /// How many times the group has changed since the start.
        regroups: u64,
        world: usize,
        devices: usize,
        /// From noticing the loss until training continues.
        seconds: f64,
        /// Before that: from the end of the last update until the loss was noticed. 0 in events of
        /// older versions.
        #[serde(default)]
        interrupted_s: f64,
    },
    /// A newcomer has got the state of the run.
    CaughtUp {
        /// Updates done before.
        update: u64,
        rank: usize,
        host: String,
        bytes: u64,
        seconds: f64,
    },
    /// A process has joined the run: it is a rank from now on.
    Joined {
        /// Updates done before.
        update: u64,
        /// Its number: the lowest that no current rank has, as at the start of this process group.
        rank: usize,
        host: String,
        /// All ranks and devices, with it.
        world: usize,
        devices: usize,
        /// How long the others waited.
        seconds: f64,
        /// Of all ranks.
        #[serde(default)]
        shares: Vec<ShareChange>,
    },
    /// The parameters of a rank differed from those of the majority. It has taken their state.
    Healed {
        /// Updates done before. The update in progress is computed again where that rank had a part.
        update: u64,
        /// Its number at the start of this process group.
        rank: usize,
        host: String,
        seconds: f64,
    },
    /// Another rank writes checkpoints and events from now on, because rank 0 was lost or has left.
    Lead {
        update: u64,
        host: String,
        /// The last update of this run, if it is known.
        total_updates: u64,
    },
    /// A problem that does not stop the run.
    Warning { message: String },
    /// The run ends before its last planned update; it counts as finished.
    EarlyStop {
        update: u64,
        /// The config key that caused it: `run.stop_min_lr` or `valid.patience`.
        rule: String,
        message: String,
    },
    /// The last event of a process group.
    End {
        update: u64,
        /// `finished`, `stopped` (with a checkpoint saved, by a signal or because too few ranks are
        /// left), `left` (the other ranks continue) or `failed`.
        outcome: String,
        seconds: f64,
        /// The total time for which updates waited for samples.
        #[serde(default)]
        data_wait_s: f64,
        /// The number of distinct samples that could not be read and were left out.
        #[serde(default)]
        skipped: u64,
    },
}

impl Event {
    /// The update that an event of a single update is about.
    pub fn update(&self) -> Option<u64> {
        match self {
            Event::Update { update, .. } | Event::Valid { update, .. } | Event::NotFinite { update, .. } => {
                Some(*update)
            }
            _ => None,
        }
    }
}

/// The metrics of a validation are all its other fields that are numbers. A line of `metrics.jsonl`
/// also has the time at which it was written, as text.
fn numbers_only<'de, D: Deserializer<'de>>(fields: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let fields = BTreeMap::<String, serde_json::Value>::deserialize(fields)?;
    Ok(fields.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect())
}

/// The part of an update that a rank computes, before and after the group has changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ShareChange {
    /// Its number at the start of the process group.
    pub rank: usize,
    pub before: f64,
    /// 0 if it is no member any more.
    pub after: f64,
}

/// A config key with its old and new value, as TOML; `None` if it is not set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub key: String,
    pub was: Option<String>,
    pub is: Option<String>,
}

/// One device's totals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    pub rank: usize,
    pub host: String,
    pub device: String,
    /// Its samples in the last update, and their part of that update.
    pub samples: u64,
    pub share: f64,
    /// Its speed while computing.
    pub samples_per_second: f64,
    /// The part of the time in which it did not compute and its rank only waited for others.
    pub idle: f64,
    /// Total time of computing.
    #[serde(default)]
    pub compute_s: f64,
}

/// Where one rank's time went, in total.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    pub rank: usize,
    pub host: String,
    /// Until its slowest device was done.
    pub compute_s: f64,
    /// Waiting for samples.
    pub data_s: f64,
    /// Moving gradients.
    pub exchange_s: f64,
    /// Waiting for other ranks or for the link.
    pub wait_s: f64,
    /// Summing over its devices, the optimizer, loading parameters.
    pub host_s: f64,
}
