//! The messages of the protocol. Fields that are not listed are ignored, so that either side can add
//! some.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;

/// Floats that may be infinite or NaN travel as their bits: JSON has no such numbers.
pub fn bits(value: f64) -> u64 {
    value.to_bits()
}

/// The float with these bits.
pub fn from_bits(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// What a process is started for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineRole {
    /// Computes gradients on one device.
    Device,
    /// Reads and collates samples.
    Data,
}

/// The first request.
#[derive(Debug, Clone, Serialize)]
pub struct EngineHello {
    pub version: String,
    pub role: EngineRole,
    /// The engine's own name of the device, such as `cuda:0`. Empty for a data process.
    pub device: String,
    pub threads: usize,
    /// `f32`, `bf16`, `f16` or `auto`.
    pub precision: String,
    pub seed: u64,
}

/// The answer to [`EngineHello`].
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EngineWelcome {
    pub(crate) protocol: Option<u32>,
    pub engine: String,
    pub version: Option<String>,
    /// Versions of libraries, recorded with the run.
    pub versions: serde_json::Map<String, Value>,
    pub device_name: Option<String>,
    /// Of a device with its own memory.
    pub memory_bytes: Option<u64>,
    /// The precision that it computes in; `f32` if not given.
    pub precision: Option<String>,
    /// The engine's names of all devices of this machine that are worth using.
    pub devices: Vec<String>,
}

/// A message of the engine: exactly one field is set.
#[derive(Debug, Deserialize)]
pub(crate) struct EngineReply {
    pub(crate) ok: Option<Value>,
    pub(crate) error: Option<ErrorMessage>,
    /// Micro-batches computed so far.
    pub(crate) done: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ErrorMessage {
    #[serde(default)]
    pub(crate) kind: String,
    pub(crate) message: String,
}

/// The answer to `open` of a data process: the task and its model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TaskInfo {
    pub parameters: Vec<ParameterInfo>,
    pub terms: Vec<TermMessage>,
    #[serde(default)]
    pub scores: Vec<String>,
    pub splits: SplitInfos,
    /// Of the data, and of whatever of the model is not in `parameters`.
    pub fingerprint: String,
    /// A fingerprint of the user's code.
    #[serde(default)]
    pub code: String,
    /// The `[task]` table with absolute paths.
    pub config: Value,
    #[serde(default)]
    pub path_keys: Vec<String>,
    pub export_dir: Option<std::path::PathBuf>,
    #[serde(default)]
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct SplitInfos {
    pub train: SplitInfo,
    #[serde(default)]
    pub valid: SplitInfo,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct SplitInfo {
    pub samples: usize,
    /// Whether the file that comes with the answer holds a length for each sample.
    #[serde(default)]
    pub has_lengths: bool,
}

/// A parameter, or a buffer that is saved with them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ParameterInfo {
    pub name: String,
    pub shape: Vec<usize>,
    #[serde(default = "yes")]
    pub trainable: bool,
    #[serde(default = "one")]
    pub lr_scale: f32,
    /// Whether it decays; by default weights of two or more dimensions do.
    pub decays: Option<bool>,
}

fn yes() -> bool {
    true
}

fn one() -> f32 {
    1.0
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TermMessage {
    pub name: String,
    #[serde(default = "full")]
    pub weight: f64,
}

fn full() -> f64 {
    1.0
}

/// A parameter in `layout`.
#[derive(Debug, Clone, Serialize)]
pub struct LayoutEntryMessage {
    pub name: String,
    pub shape: Vec<usize>,
    pub offset: usize,
    pub trainable: bool,
}

/// Where an array is in the file of its batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArrayMessage {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    /// In bytes.
    pub offset: u64,
}

/// The answer to `collate`. Only the engine can read the arrays.
#[derive(Debug, Deserialize)]
pub struct CollatedReply {
    pub counts: Vec<u64>,
    pub(crate) arrays: Value,
    #[serde(default)]
    pub(crate) tree: Value,
}

/// A micro-batch of `compute` or `evaluate`.
#[derive(Debug, Serialize)]
pub struct MicroRequest<'a> {
    #[serde(rename = "do")]
    request: &'static str,
    samples: &'a [u32],
    counts: &'a [u64],
    arrays: Cow<'a, Value>,
    tree: &'a Value,
}

impl<'a> MicroRequest<'a> {
    /// A batch of named arrays.
    pub fn of_arrays(samples: &'a [u32], counts: &'a [u64], arrays: &[ArrayMessage]) -> serde_json::Result<Self> {
        let arrays = Cow::Owned(serde_json::to_value(arrays)?);
        Ok(MicroRequest { request: "micro", samples, counts, arrays, tree: &Value::Null })
    }

    /// A batch that a data process has collated.
    pub fn of_collated(samples: &'a [u32], collated: &'a CollatedReply) -> Self {
        let CollatedReply { counts, arrays, tree } = collated;
        MicroRequest { request: "micro", samples, counts, arrays: Cow::Borrowed(arrays), tree }
    }
}

/// The answer to `compute`. The gradients are in the gradient file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ComputeReply {
    /// Per term, as bits.
    pub losses: Vec<u64>,
    pub seconds: f64,
    #[serde(default)]
    pub overflow: bool,
    pub held_bytes: Option<u64>,
}

/// The answer to `evaluate`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct EvaluateReply {
    /// Per term, as bits.
    pub losses: Vec<u64>,
    /// As bits.
    #[serde(default)]
    pub scores: Vec<u64>,
    pub seconds: f64,
}

/// A metric in the answer to `metrics`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct MetricMessage {
    pub name: String,
    /// As bits.
    pub value: u64,
    pub better: String,
}
