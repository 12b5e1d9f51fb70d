//! Reads parameters from our checkpoints, Hugging Face directories, and safetensors or PyTorch
//! files. In a run, only rank 0 reads them and sends them to the other ranks. User programs call
//! [`load`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use fs_err as fs;
use half::{bf16, f16};
use hetseq_models::Network;
use hetseq_optim::{Layout, first_not_finite};
use pytorch_reader::PytorchReader;
use safetensors::tensor::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::checkpoint::finite::not_finite;
use crate::checkpoint::weights_error::{TensorProblem, WeightsError};
use crate::checkpoint::{CheckpointPart, verify};
use crate::devices::params::{self, initial, layout_of};
use crate::error::TrainError;

/// Weight files looked for in a directory, in order of preference.
const FILES: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// Differences between the files and the model.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Parameters that are in no file. They keep their initial values.
    pub missing: Vec<String>,
    /// Tensors that match no parameter of the model.
    pub unused: Vec<String>,
}

/// Loads the weights at `path` into `model`.
///
/// `path` is a checkpoint, a Hugging Face directory, or a safetensors or PyTorch file. `rename`
/// maps the name of a tensor in the file to its name in the model; with `None` the tensor is
/// skipped. To train the model, pass a device with autodiff. Parameters that are in no file get
/// their initial values ([`Network::init`]), the same ones on each call.
///
/// ```no_run
/// # use std::path::Path;
/// use burn::tensor::Device;
/// use hetseq_models::bert::{Bert, BertConfig, parameter_name};
/// use hetseq_train::checkpoint::weights;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let dir = Path::new("runs/bert/checkpoints/last");
/// let config = BertConfig::from_json(&std::fs::read_to_string(dir.join("config.json"))?)?;
/// let device = Device::flex();
/// let model = Bert::new(&config, &device);
/// let (model, report) = weights::load(model, dir, &parameter_name, &device)?;
/// assert!(report.missing.is_empty());
/// # Ok(())
/// # }
/// ```
pub fn load<M: Network>(
    model: M,
    path: &Path,
    rename: &dyn Fn(&str) -> Option<String>,
    device: &Device,
) -> Result<(M, LoadReport), TrainError> {
    verify(path, CheckpointPart::Model)?;
    // Only on an autodiff device does a parameter report that it requires a gradient.
    let model = model.train();
    let layout = layout_of(&model)?;
    let mut flat = initial(&model, &layout, 0);
    let report = read(path, &layout, rename, &mut flat).map_err(TrainError::checkpoint(path))?;
    let model = params::load(model, &flat, &layout, &device.clone().autodiff());
    Ok((if device.is_autodiff() { model } else { model.valid() }, report))
}

/// Fills `flat` from a directory or a file. `rename` works as in [`load`]. Non-finite values are an
/// error.
pub(crate) fn read(
    path: &Path,
    layout: &Layout,
    rename: &dyn Fn(&str) -> Option<String>,
    flat: &mut [f32],
) -> Result<LoadReport, WeightsError> {
    let mut found = BTreeSet::new();
    let mut unused = Vec::new();
    for_each(path, &mut |tensor| {
        let Some(name) = rename(tensor.name) else { return Ok(()) };
        let Some(entry) = layout.get(&name) else {
            unused.push(tensor.name.to_owned());
            return Ok(());
        };
        tensor.copy(&entry.shape, &mut flat[entry.range.clone()])?;
        found.insert(name);
        Ok(())
    })?;
    if let Some(what) = not_finite(layout, flat) {
        return Err(WeightsError::NotFinite { path: path.to_owned(), what });
    }
    unused.sort_unstable();
    let names = layout.entries().iter().map(|entry| &entry.name);
    Ok(LoadReport { missing: names.filter(|name| !found.contains(*name)).cloned().collect(), unused })
}

/// Reads all parameters. The error names a missing one.
pub(crate) fn read_all(
    path: &Path,
    layout: &Layout,
    rename: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<f32>, WeightsError> {
    let mut flat = vec![0.0; layout.len()];
    match read(path, layout, rename, &mut flat)?.missing.as_slice() {
        [] => Ok(flat),
        [first, rest @ ..] => {
            let (path, first) = (path.to_owned(), first.clone());
            Err(WeightsError::MissingTensor { path, first, others: rest.len() })
        }
    }
}

/// A tensor of a file, read without a model.
pub(crate) struct NamedTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// Reads all tensors of a directory or a file, sorted by name. Non-finite values are an error.
pub(crate) fn read_tensors(path: &Path) -> Result<Vec<NamedTensor>, WeightsError> {
    let mut all = Vec::new();
    for_each(path, &mut |tensor| {
        let values = tensor.finite_values()?;
        all.push(NamedTensor { name: tensor.name.to_owned(), shape: tensor.shape.to_vec(), values });
        Ok(())
    })?;
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Checks that there are tensors, that all can be read, and that all floating-point values are
/// finite.
pub(crate) fn check(path: &Path) -> Result<(), WeightsError> {
    let mut count = 0;
    for_each(path, &mut |tensor| {
        count += 1;
        if tensor.is_float() { tensor.finite_values().map(drop) } else { (tensor.bytes)().map(drop) }
    })?;
    if count == 0 { Err(WeightsError::Empty(path.to_owned())) } else { Ok(()) }
}

/// Whether `path` is a file, or a directory with a weight file.
pub(crate) fn exist_at(path: &Path) -> bool {
    let holds = |name: &str| path.join(name).exists() || path.join(index_of(name)).exists();
    path.is_file() || FILES.iter().any(|name| holds(name))
}

/// Name of the index of a model that is stored in several files.
fn index_of(name: &str) -> String {
    format!("{name}.index.json")
}

/// The files that hold the weights.
fn files(path: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    if !path.exists() {
        return Err(WeightsError::NotFound(path.to_owned()));
    }
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    for name in FILES {
        let (whole, index) = (path.join(name), path.join(index_of(name)));
        if whole.exists() {
            return Ok(vec![whole]);
        }
        if index.exists() {
            return indexed_files(path, &index);
        }
    }
    Err(WeightsError::NoWeights { dir: path.to_owned(), files: FILES.join(" or ") })
}

/// The files of a model that is stored in several files.
fn indexed_files(dir: &Path, index: &Path) -> Result<Vec<PathBuf>, WeightsError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let wrong = |reason| WeightsError::Index { path: index.to_owned(), reason };
    let content: Index = serde_json::from_slice(&fs::read(index)?).map_err(|error| wrong(error.to_string()))?;
    let names: BTreeSet<&String> = content.weight_map.values().collect();
    let is_plain = |name: &str| Path::new(name).file_name().is_some_and(|file| file == name);
    match names.iter().find(|name| !is_plain(name)) {
        Some(name) => Err(wrong(format!("`{name}` is not the name of a file in the same directory"))),
        None => Ok(names.into_iter().map(|name| dir.join(name)).collect()),
    }
}

/// Uses one tensor.
type TakeTensor<'a> = &'a mut dyn FnMut(FileTensor<'_>) -> Result<(), TensorProblem>;

/// Calls `take` for every tensor of a directory or a file, file by file.
fn for_each(path: &Path, take: TakeTensor<'_>) -> Result<(), WeightsError> {
    for file in files(path)? {
        match file.extension().is_some_and(|extension| extension == "safetensors") {
            true => for_each_safetensors(&file, take)?,
            false => for_each_pytorch(&file, take)?,
        }
    }
    Ok(())
}

fn for_each_safetensors(path: &Path, take: TakeTensor<'_>) -> Result<(), WeightsError> {
    let bytes = fs::read(path)?;
    let damaged = |reason| WeightsError::Damaged { path: path.to_owned(), reason };
    let file = SafeTensors::deserialize(&bytes).map_err(damaged)?;
    let mut names = file.names();
    names.sort_unstable();
    for (name, tensor) in names.into_iter().filter_map(|name| Some((name, file.tensor(name).ok()?))) {
        let dtype = Some(tensor.dtype());
        take(FileTensor { name, dtype, shape: tensor.shape(), bytes: &|| Ok(tensor.data().to_vec()) })
            .map_err(|problem| of_tensor(path, name, problem))?;
    }
    Ok(())
}

fn for_each_pytorch(path: &Path, take: TakeTensor<'_>) -> Result<(), WeightsError> {
    let file = PytorchReader::new(path)
        .map_err(|error| WeightsError::PyTorch { path: path.to_owned(), reason: error.to_string() })?;
    let mut names = file.keys();
    names.sort_unstable();
    for (name, tensor) in names.iter().filter_map(|name| Some((name, file.get(name)?))) {
        let dtype = match tensor.dtype() {
            pytorch_reader::DType::F32 => Some(Dtype::F32),
            pytorch_reader::DType::F64 => Some(Dtype::F64),
            pytorch_reader::DType::F16 => Some(Dtype::F16),
            pytorch_reader::DType::BF16 => Some(Dtype::BF16),
            _ => None,
        };
        let bytes = || tensor.read().map_err(|error| TensorProblem::Unreadable(error.to_string()));
        take(FileTensor { name, dtype, shape: tensor.shape(), bytes: &bytes })
            .map_err(|problem| of_tensor(path, name, problem))?;
    }
    Ok(())
}

fn of_tensor(path: &Path, tensor: &str, problem: TensorProblem) -> WeightsError {
    WeightsError::Tensor { path: path.to_owned(), tensor: tensor.to_owned(), problem }
}

/// A tensor of a safetensors or PyTorch file.
struct FileTensor<'a> {
    name: &'a str,
    /// `None` for a type that is not read.
    dtype: Option<Dtype>,
    shape: &'a [usize],
    /// Little-endian.
    bytes: &'a dyn Fn() -> Result<Vec<u8>, TensorProblem>,
}

impl FileTensor<'_> {
    fn is_float(&self) -> bool {
        matches!(self.dtype, Some(Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16))
    }

    /// All values as f32. One that is not finite is an error.
    fn finite_values(&self) -> Result<Vec<f32>, TensorProblem> {
        let mut values = vec![0.0; self.shape.iter().product()];
        self.copy(self.shape, &mut values)?;
        match first_not_finite(&values) {
            Some(at) => Err(TensorProblem::NotFinite { value: values[at], at }),
            None => Ok(values),
        }
    }

    /// Converts the values to f32. The tensor must have this shape.
    fn copy(&self, shape: &[usize], out: &mut [f32]) -> Result<(), TensorProblem> {
        if self.shape != shape {
            return Err(TensorProblem::Shape { found: self.shape.to_vec(), expected: shape.to_vec() });
        }
        let bytes = (self.bytes)()?;
        match self.dtype {
            Some(Dtype::F32) => decode(&bytes, out, f32::from_le_bytes),
            Some(Dtype::F64) => decode(&bytes, out, |bytes| f64::from_le_bytes(bytes) as f32),
            Some(Dtype::F16) => decode(&bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Some(Dtype::BF16) => decode(&bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            _ => Err(TensorProblem::NotFloat),
        }
    }
}

fn decode<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) -> Result<(), TensorProblem> {
    if bytes.len() != N * out.len() {
        return Err(TensorProblem::Truncated);
    }
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = value(bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
