//! What a user implements to train something new: where the samples are, what the model is, what the loss is.
//!
//! The contract that makes any mix of machines train like one device: **sums, never means**. A task returns the *sum* of
//! each loss term over a micro-batch, and the count that term is divided by; the trainer adds both over all machines.
//! And no operation may mix samples (batch norm, in-batch negatives), since a micro-batch is cut as memory allows.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use burn::tensor::{Device, Tensor};
use hetseq_data::{Costs, DataError, Sealed};
use hetseq_models::Network;
use hetseq_models::recompute::Tape;
use hetseq_random::Key;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::skips::Skipped;

pub trait Task: Sized + Send + Sync + 'static {
    /// The value of `run.task` that selects this task.
    const NAME: &'static str;
    /// Keys of the `[task]` table that hold paths. Ranks may have different ones, and a relative
    /// path is made absolute from the current directory, so that the resolved config can be read
    /// from elsewhere. What is at a path must show in [`Task::fingerprint`] or [`Task::files`].
    /// Keys that are not named here or below stay as the user wrote them and must be equal on all
    /// ranks.
    const PATH_KEYS: &'static [&'static str] = &[];
    /// Further keys in which ranks may differ, because they do not change what is computed.
    const LOCAL_KEYS: &'static [&'static str] = &[];
    /// The `[task]` table of the config. Use `#[serde(deny_unknown_fields)]`, so that a misspelt key is named.
    type Config: Serialize + DeserializeOwned + Clone + Send + Sync + 'static;
    type Model: Network + 'static;
    /// The host side of one micro-batch.
    type Batch: Send + Sync + 'static;

    /// Read the data, check the settings.
    fn open(config: &Self::Config) -> Result<Self, TaskError>;

    /// Identifies the data: ranks with other data are refused, a resume on other data too.
    fn fingerprint(&self) -> String;

    /// Files of the data that were stored with checksums. What they hold is compared with these, and no checkpoint is saved
    /// before all match.
    fn sealed_files(&self) -> Vec<Sealed> {
        Vec::new()
    }

    /// How many samples there are, and how many tokens each costs (images: all the same).
    fn costs(&self, which: Which) -> Costs;

    /// The loss terms, in the order of [`Outcome::losses`].
    fn terms(&self) -> Vec<Term> {
        vec![Term { name: "loss".to_owned(), weight: 1.0 }]
    }

    /// Build the model with any values; the trainer fills them in (see [`Network::init`]).
    fn model(&self, device: &Device) -> Self::Model;

    /// Gather samples into a micro-batch. Runs ahead of the device on the loader's threads, several micro-batches at once;
    /// what is done with rayon in here uses the same threads. A sample that cannot be read may be left out: see
    /// [`Samples::skip`].
    fn collate(&self, samples: &Samples<'_>) -> Result<Self::Batch, TaskError>;

    /// What each term's loss sum is divided by, summed over this micro-batch: samples, masked tokens, ...
    fn counts(&self, batch: &Self::Batch) -> Vec<u64>;

    /// One forward pass: the loss *sums*, one scalar per term, and when evaluating also the sums behind the metrics.
    fn forward(&self, model: &Self::Model, batch: &Self::Batch, pass: &Pass) -> Outcome;

    /// Files to lay beside `model.safetensors` in every checkpoint, by name, so that other programs can load it: a
    /// `config.json`, a tokenizer. They must be the same on all ranks.
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        Vec::new()
    }

    /// Weights to begin with instead of random ones: a directory in Hugging Face's layout, or a file of safetensors or PyTorch.
    fn origin(&self) -> Option<&Path> {
        None
    }

    /// What a tensor in the files of others is called in this model; none if it is not wanted.
    fn parameter_name(&self, theirs: &str) -> Option<String> {
        Some(theirs.to_owned())
    }

    /// Whether this parameter may begin at random where the origin does not have it.
    fn may_start_afresh(&self, _name: &str) -> bool {
        false
    }

    /// What an evaluation measures beside the loss; `checkpoint.best` may name one.
    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }

    /// The values of [`Task::metrics`], in that order, from sums over all ranks.
    fn measure(&self, _totals: &Totals) -> Vec<f64> {
        Vec::new()
    }
}

/// A metric's name and which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    pub name: &'static str,
    pub better: Better,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

impl Metric {
    pub const fn lower(name: &'static str) -> Self {
        Metric { name, better: Better::Lower }
    }

    pub const fn higher(name: &'static str) -> Self {
        Metric { name, better: Better::Higher }
    }
}

/// Which part of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Which {
    Train,
    Valid,
}

/// One loss term: minimised is the sum over terms of `weight * sum of losses / count`.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    pub name: String,
    pub weight: f64,
}

/// What to collate.
#[derive(Debug)]
pub struct Samples<'a> {
    pub which: Which,
    pub ids: &'a [u32],
    /// The stream for this epoch; see [`Samples::key`].
    epoch_key: Key,
    skipped: Mutex<Vec<Skipped>>,
}

impl<'a> Samples<'a> {
    pub(crate) fn new(which: Which, ids: &'a [u32], epoch_key: Key) -> Self {
        Samples { which, ids, epoch_key, skipped: Mutex::default() }
    }

    /// Randomness for the sample `id` in this epoch: augmentation, masking. The same on whatever worker it lands.
    pub fn key(&self, id: u32) -> Key {
        self.epoch_key.index(u64::from(id))
    }

    /// Leave the sample `id` out because of `reason`, which names the file. Which samples form an update is fixed, so it
    /// keeps its place in the micro-batch, but the task must give it a weight of zero: no loss, no score, and nothing in
    /// [`Task::counts`]. The reason is logged once, and the end of the run says how many there were.
    pub fn skip(&self, id: u32, reason: impl std::fmt::Display) {
        let mut skipped = self.skipped.lock().unwrap_or_else(PoisonError::into_inner);
        skipped.push(Skipped { sample: id, reason: reason.to_string() });
    }

    /// What was left out, in the order of the samples whichever thread found it.
    pub(crate) fn into_skipped(self) -> Vec<Skipped> {
        let mut skipped = self.skipped.into_inner().unwrap_or_else(PoisonError::into_inner);
        skipped.sort_by_key(|skipped| skipped.sample);
        skipped
    }
}

/// The circumstances of a forward pass.
pub struct Pass {
    pub device: Device,
    /// One key per sample of the micro-batch for dropout; empty when evaluating, which switches dropout off.
    pub keys: Vec<Key>,
    /// For parts of the model to be computed again in the backward pass, instead of keeping what is inside them.
    pub tape: Tape,
}

impl Pass {
    pub(crate) fn new(device: &Device, keys: Vec<Key>) -> Self {
        Pass { device: device.clone(), keys, tape: Tape::default() }
    }

    pub fn is_training(&self) -> bool {
        !self.keys.is_empty()
    }
}

/// What a forward pass gives.
#[derive(Debug)]
pub struct Outcome {
    /// The loss sum of each term.
    pub losses: Vec<Tensor<1>>,
    /// Sums behind the metrics (such as the number of right answers); only looked at when evaluating.
    pub scores: Vec<Tensor<1>>,
}

/// Sums of a whole evaluation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    pub samples: u64,
    pub counts: Vec<u64>,
    pub losses: Vec<f64>,
    pub scores: Vec<f64>,
}

#[derive(Debug, Error)]
pub enum TaskError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("{0}")]
    Other(String),
}
