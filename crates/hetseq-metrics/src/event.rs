//! One enum: everything observable in a run. Its JSON form is what `metrics.jsonl` holds and what scripts read, so names
//! are kept once given: add fields, do not rename them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A process group began or resumed the run.
    Start {
        version: String,
        task: String,
        seed: u64,
        world: usize,
        devices: usize,
        parameters: usize,
        train_samples: usize,
        valid_samples: usize,
        updates_per_epoch: usize,
        /// What part of the tokens of an epoch is padding, if each update is padded to its longest sample; micro-batches pad less.
        #[serde(default)]
        padding: f64,
        /// The last update this run will do, if it can be known.
        total_updates: u64,
        /// The update that the checkpoint was taken after; zero for a new run.
        resumed_at: u64,
        /// Keys of the config that are not what they were when that checkpoint was saved.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changed: Vec<Change>,
    },
    /// One optimizer step, the same on all ranks.
    Update {
        /// Counts from one: the number of updates done, this one included.
        update: u64,
        epoch: u64,
        /// The weighted sum over the terms that is minimised.
        loss: f64,
        terms: BTreeMap<String, f64>,
        samples: u64,
        grad_norm: f64,
        /// Gradients overflowed, and so it changed nothing.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        skipped: bool,
        lr: f64,
        seconds: f64,
        /// The part of it in which a rank, the slowest in this, waited for its samples to be read.
        #[serde(default)]
        data_wait_s: f64,
        /// What the plan expected `seconds` to be.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        predicted_s: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checksum: Option<String>,
    },
    /// Who does how much was decided, at the start or anew, because devices have become faster or slower.
    Plan {
        /// The first update that is shared so.
        update: u64,
        /// What an update is expected to take.
        predicted_s: f64,
        /// What it would have taken without the change, and how much less that is: 0.08 is 8 %. None for the first plan.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before_s: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gain: Option<f64>,
        /// Of each device in the order of `Workers`, in this update.
        samples: Vec<u64>,
        /// How many times as long as measured at the start each device takes.
        factors: Vec<f64>,
    },
    Valid {
        update: u64,
        epoch: u64,
        loss: f64,
        terms: BTreeMap<String, f64>,
        samples: u64,
        seconds: f64,
        #[serde(flatten)]
        metrics: BTreeMap<String, f64>,
    },
    Checkpoint {
        update: u64,
        path: PathBuf,
        best: bool,
        /// To write it, in the background; the event comes when it is complete.
        seconds: f64,
        /// How long training stood still for it.
        #[serde(default)]
        paused_seconds: f64,
    },
    /// Who does how much, since the start of this process group. Emitted now and then, and at the end.
    Workers {
        update: u64,
        /// How many updates it is about, and how long they took.
        #[serde(default)]
        updates: u64,
        #[serde(default)]
        wall_s: f64,
        workers: Vec<WorkerReport>,
        #[serde(default)]
        ranks: Vec<RankReport>,
    },
    Warning {
        message: String,
    },
    /// The run ends before its last planned update; it counts as finished.
    EarlyStop {
        update: u64,
        /// The key of the config that says so: `run.stop_min_lr` or `valid.patience`.
        rule: String,
        message: String,
    },
    /// The last event of a process group.
    End {
        update: u64,
        /// `finished`, `stopped` (by a signal, with a checkpoint saved) or `failed`.
        outcome: String,
        seconds: f64,
        /// How long updates waited for samples, in all.
        #[serde(default)]
        data_wait_s: f64,
        /// Different samples that could not be read and were left out.
        #[serde(default)]
        skipped: u64,
    },
}

/// A key of the config with its values then and now, as TOML; none where it is not set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub key: String,
    pub was: Option<String>,
    pub is: Option<String>,
}

/// One device's part in the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    pub rank: usize,
    pub host: String,
    pub device: String,
    /// Samples it computed in the last update, and their part of that update.
    pub samples: u64,
    pub share: f64,
    /// Own speed while computing.
    pub samples_per_second: f64,
    /// The part of the time in which it neither computed nor its rank did anything else than wait for others.
    pub idle: f64,
    /// How long it computed, in all.
    #[serde(default)]
    pub compute_s: f64,
}

/// Where one rank's time went, in all.
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
    /// Waiting for other ranks, or for the line.
    pub wait_s: f64,
    /// Adding its devices up, the optimizer, loading parameters.
    pub host_s: f64,
}
