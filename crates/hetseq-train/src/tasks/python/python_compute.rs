//! The compute half of a Python task, without its devices: layout, initial values, parameter groups,
//! metrics and files of a checkpoint, all as the first worker describes them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use fs_err as fs;
use hetseq_engine::{EngineError, MetricMessage, ParameterInfo, SharedFile, TaskInfo, bits, from_bits};
use hetseq_optim::{Layout, LayoutEntry, OptimError, ParameterGroup, ParameterGroups};
use serde::Deserialize;
use serde_json::{Value, json};

use super::PythonTask;
use crate::devices::DeviceSpec;
use crate::task::compute::ReplicaSetup;
use crate::task::{Better, Compute, ComputeError, HuggingFace, Metric, Replica, TaskError, Totals};

/// Files of a checkpoint are read into memory and sent to no one, but a data set is no such file.
const MAX_EXPORT_BYTES: u64 = 64 << 20;

pub(super) struct PythonCompute {
    task: Arc<PythonTask>,
    info: TaskInfo,
    /// The value of `run.devices` for all devices of this machine.
    devices: String,
    files: CheckpointFiles,
}

impl PythonCompute {
    pub(super) fn new(task: Arc<PythonTask>, info: TaskInfo, devices: String) -> Result<Self, TaskError> {
        let files = match &info.export_dir {
            Some(directory) => CheckpointFiles(exported(directory)?),
            None => CheckpointFiles(Vec::new()),
        };
        Ok(PythonCompute { task, info, devices, files })
    }
}

impl Compute for PythonCompute {
    fn layout(&self) -> Result<Layout, TaskError> {
        let entries = self.info.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.shape.clone()));
        let frozen: Vec<&str> =
            self.info.parameters.iter().filter(|p| !p.trainable).map(|parameter| parameter.name.as_str()).collect();
        let layout = Layout::new(entries)?.freeze(|entry| frozen.contains(&entry.name.as_str()));
        match layout.trainable_len() {
            0 => Err("the model has no parameter with requires_grad = True, so there is nothing to train".into()),
            _ => Ok(layout),
        }
    }

    fn initial(&self, layout: &Layout, seed: u64) -> Result<Vec<f32>, TaskError> {
        let file = SharedFile::create(4 * layout.len() as u64).map_err(EngineError::Memory)?;
        self.task.workers.request::<Value>(&json!({"do": "initial", "seed": seed}), &[&file])?;
        let mut values = vec![0.0; layout.len()];
        file.read(&mut values).map_err(EngineError::Memory)?;
        // The file has the model's order; in the layout, frozen parameters come last.
        let mut ordered = vec![0.0; layout.len()];
        let mut start = 0;
        for ParameterInfo { name, shape, .. } in &self.info.parameters {
            let end = start + shape.iter().product::<usize>();
            if let (Some(entry), Some(values)) = (layout.get(name), values.get(start..end)) {
                ordered[entry.range.clone()].copy_from_slice(values);
            }
            start = end;
        }
        Ok(ordered)
    }

    fn groups(&self, layout: &Layout) -> Option<Result<ParameterGroups, OptimError>> {
        let is_default = |parameter: &ParameterInfo| parameter.lr_scale == 1.0 && parameter.decays.is_none();
        if self.info.parameters.iter().all(is_default) {
            return None;
        }
        let by_name: HashMap<&str, &ParameterInfo> =
            self.info.parameters.iter().map(|parameter| (parameter.name.as_str(), parameter)).collect();
        let group = |entry: &LayoutEntry| {
            let default = ParameterGroup::by_shape(entry);
            by_name.get(entry.name.as_str()).map_or(default, |parameter| ParameterGroup {
                lr_scale: parameter.lr_scale,
                decays: parameter.decays.unwrap_or(default.decays),
            })
        };
        Some(ParameterGroups::new(layout, group))
    }

    fn code(&self) -> Option<String> {
        Some(self.info.code.clone())
    }

    fn all_devices(&self) -> Option<String> {
        Some(if self.devices.is_empty() { "torch:cpu".to_owned() } else { self.devices.clone() })
    }

    fn runs_on_cpu(&self) -> bool {
        false
    }

    fn open(&self, spec: &DeviceSpec, _setup: &ReplicaSetup) -> Result<Box<dyn Replica>, ComputeError> {
        let (name, all) = (&spec.name, self.all_devices().unwrap_or_default());
        Err(ComputeError::Device(format!(
            "a Python task computes on PyTorch's devices, not on {name}: set run.devices = \"{all}\", or leave it out"
        )))
    }

    fn metrics(&self, totals: &Totals) -> Result<Vec<Metric>, TaskError> {
        #[derive(Deserialize)]
        struct Metrics {
            metrics: Vec<MetricMessage>,
        }
        let padded = |values: &[f64], length: usize| -> Vec<u64> {
            (0..length).map(|at| bits(values.get(at).copied().unwrap_or(0.0))).collect()
        };
        let terms = self.info.terms.len();
        let counts: Vec<u64> = (0..terms).map(|at| totals.counts.get(at).copied().unwrap_or(0)).collect();
        let request = json!({
            "do": "metrics", "samples": totals.samples, "counts": counts, "losses": padded(&totals.losses, terms),
            "scores": padded(&totals.scores, self.info.scores.len()),
        });
        let (answer, _) = self.task.workers.request::<Metrics>(&request, &[])?;
        let metric = |MetricMessage { name, value, better }: MetricMessage| Metric {
            name,
            value: from_bits(value),
            better: if better == "lower" { Better::Lower } else { Better::Higher },
        };
        Ok(answer.metrics.into_iter().map(metric).collect())
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        &self.files
    }
}

/// What the task's `export` wrote, besides weights.
struct CheckpointFiles(Vec<(String, Vec<u8>)>);

impl HuggingFace for CheckpointFiles {
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        self.0.clone()
    }
}

/// Reads the files of a directory and removes it.
fn exported(directory: &Path) -> Result<Vec<(String, Vec<u8>)>, TaskError> {
    let failed = |error: std::io::Error| TaskError::Other(format!("the files of its export: {error}"));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        // The trainer saves the weights.
        if !path.is_file() || matches!(&*extension, "safetensors" | "bin" | "pt" | "pth") {
            continue;
        }
        let bytes = path.metadata().map_err(failed)?.len();
        if bytes > MAX_EXPORT_BYTES {
            return Err(format!("its export wrote {name} of {bytes} bytes; at most {MAX_EXPORT_BYTES} are kept").into());
        }
        files.push((name, fs::read(&path).map_err(failed)?));
    }
    fs::remove_dir_all(directory).map_err(failed)?;
    files.sort();
    Ok(files)
}
