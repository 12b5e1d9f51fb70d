//! Parameters out of files: of our own checkpoints, of Hugging Face directories, of PyTorch. In a run rank 0 alone reads them
//! and hands them to the others; programs of one's own call [`load`].

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

use crate::checkpoint::{Part, verify};
use crate::error::TrainError;
use crate::finite::not_finite;
use crate::flat::{self, initial, layout_of};

/// What a directory may hold its weights in, the preferred first.
const FILES: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// What was in the files, against what the model has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Parameters that no file has; they were left as they were.
    pub missing: Vec<String>,
    /// Tensors that are no parameter of the model.
    pub unused: Vec<String>,
}

/// The model with the weights in `path`: a checkpoint, a Hugging Face directory, or a file of safetensors or PyTorch. `rename`
/// says what a tensor of the file is called in the model; none: not wanted. To train it, give a device with autodiff. Parameters that the files do not have begin as
/// the model says ([`Network::init`]), the same at each call.
///
/// ```no_run
/// # use std::path::Path;
/// use burn::tensor::Device;
/// use hetseq_models::bert::{Bert, BertConfig, parameter_name};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let dir = Path::new("runs/bert/checkpoints/last");
/// let config = BertConfig::from_json(&std::fs::read_to_string(dir.join("config.json"))?)?;
/// let device = Device::flex();
/// let (model, found) = hetseq_train::weights::load(Bert::new(&config, &device), dir, &parameter_name, &device)?;
/// assert!(found.missing.is_empty());
/// # Ok(())
/// # }
/// ```
pub fn load<M: Network>(
    model: M,
    path: &Path,
    rename: &dyn Fn(&str) -> Option<String>,
    device: &Device,
) -> Result<(M, Match), TrainError> {
    verify(path, Part::Model)?;
    load_verified(model, path, rename, device)
}

/// [`load`] without a comparison with the checkpoint's manifest, for a path that has had it.
pub(crate) fn load_verified<M: Network>(
    model: M,
    path: &Path,
    rename: &dyn Fn(&str) -> Option<String>,
    device: &Device,
) -> Result<(M, Match), TrainError> {
    // Only where gradients can be had does a parameter tell that it is one.
    let model = model.train();
    let layout = layout_of(&model)?;
    let mut flat = initial(&model, &layout, 0);
    let found = read(path, &layout, rename, &mut flat)
        .map_err(|reason| TrainError::Checkpoint { path: path.to_owned(), reason })?;
    let model = flat::load(model, &flat, &layout, &device.clone().autodiff());
    Ok((if device.is_autodiff() { model } else { model.valid() }, found))
}

/// Fills `flat` from a directory or a file. `rename` says what a tensor of the file is called here; none: not asked for. Values
/// that are not finite are an error.
pub(crate) fn read(
    path: &Path,
    layout: &Layout,
    rename: &dyn Fn(&str) -> Option<String>,
    flat: &mut [f32],
) -> Result<Match, String> {
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
    if let Some(place) = not_finite(layout, flat) {
        return Err(format!("{}: {place}; the run that saved it diverged. Use an earlier one", path.display()));
    }
    unused.sort_unstable();
    let names = layout.entries().iter().map(|entry| &entry.name);
    Ok(Match { missing: names.filter(|name| !found.contains(*name)).cloned().collect(), unused })
}

/// All parameters, or an error that names one that is missing.
pub(crate) fn read_all(
    path: &Path,
    layout: &Layout,
    rename: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<f32>, String> {
    let mut flat = vec![0.0; layout.len()];
    match read(path, layout, rename, &mut flat)?.missing.as_slice() {
        [] => Ok(flat),
        [first, rest @ ..] => {
            let more = if rest.is_empty() { String::new() } else { format!(" (and {} more)", rest.len()) };
            Err(format!("{} has no tensor {first}{more}, which the model of this config has", path.display()))
        }
    }
}

/// A tensor of a file by itself, whatever model it is of.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// All tensors of a directory or a file, by name; their values are finite.
pub(crate) fn read_named(path: &Path) -> Result<Vec<Named>, String> {
    let mut all = Vec::new();
    for_each(path, &mut |tensor| {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        tensor.copy(tensor.shape, &mut values)?;
        if let Some(at) = first_not_finite(&values) {
            return Err(format!("{} is {} at element {at}", tensor.name, values[at]));
        }
        all.push(Named { name: tensor.name.to_owned(), shape: tensor.shape.to_vec(), values });
        Ok(())
    })?;
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Fails unless there are tensors, all of them can be read, and all floating-point values are finite.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    let mut count = 0;
    for_each(path, &mut |tensor| {
        count += 1;
        if matches!(tensor.kind, Kind::Other) {
            return (tensor.bytes)().map(drop);
        }
        let mut values = vec![0.0; tensor.shape.iter().product()];
        tensor.copy(tensor.shape, &mut values)?;
        match first_not_finite(&values) {
            Some(at) => Err(format!("{} is {} at element {at}", tensor.name, values[at])),
            None => Ok(()),
        }
    })?;
    if count == 0 { Err(format!("{} holds no tensors", path.display())) } else { Ok(()) }
}

/// Whether there is something to read: a file, or a directory that holds one.
pub(crate) fn are_at(path: &Path) -> bool {
    let holds = |name: &str| path.join(name).exists() || path.join(index_of(name)).exists();
    path.is_file() || FILES.iter().any(|name| holds(name))
}

/// What lists the files of a model that was saved in several.
fn index_of(name: &str) -> String {
    format!("{name}.index.json")
}

/// The files that hold the weights.
fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.exists() {
        return Err(format!("there is no file or directory {}", path.display()));
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
            return parts(path, &index).map_err(|reason| format!("{}: {reason}", index.display()));
        }
    }
    Err(format!("there is no {} in {}", FILES.join(" or "), path.display()))
}

/// The files of a model that was saved in several.
fn parts(dir: &Path, index: &Path) -> Result<Vec<PathBuf>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    let text = fs::read(index).map_err(|error| error.to_string())?;
    let index: Index = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let names: BTreeSet<&String> = index.weight_map.values().collect();
    let plain = |name: &str| Path::new(name).file_name().is_some_and(|file| file == name);
    match names.iter().find(|name| !plain(name)) {
        Some(name) => Err(format!("`{name}` is not the name of a file beside it")),
        None => Ok(names.into_iter().map(|name| dir.join(name)).collect()),
    }
}

/// Every tensor of a directory or a file, file by file.
fn for_each(path: &Path, take: &mut dyn FnMut(Foreign<'_>) -> Result<(), String>) -> Result<(), String> {
    for file in files(path)? {
        let mut take = |tensor: Foreign<'_>| take(tensor).map_err(|reason| format!("{}: {reason}", file.display()));
        match file.extension().is_some_and(|extension| extension == "safetensors") {
            true => each_of_safetensors(&file, &mut take)?,
            false => each_of_pytorch(&file, &mut take)?,
        }
    }
    Ok(())
}

fn each_of_safetensors(path: &Path, take: &mut dyn FnMut(Foreign<'_>) -> Result<(), String>) -> Result<(), String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| format!("{} is damaged: {error}", path.display()))?;
    let mut names = file.names();
    names.sort_unstable();
    for (name, tensor) in names.into_iter().filter_map(|name| Some((name, file.tensor(name).ok()?))) {
        let kind = match tensor.dtype() {
            Dtype::F32 => Kind::F32,
            Dtype::F64 => Kind::F64,
            Dtype::F16 => Kind::F16,
            Dtype::BF16 => Kind::Bf16,
            _ => Kind::Other,
        };
        take(Foreign { name, kind, shape: tensor.shape(), bytes: &|| Ok(tensor.data().to_vec()) })?;
    }
    Ok(())
}

fn each_of_pytorch(path: &Path, take: &mut dyn FnMut(Foreign<'_>) -> Result<(), String>) -> Result<(), String> {
    let failed =
        |error: &dyn std::fmt::Display| format!("{} cannot be read as a PyTorch file: {error}", path.display());
    let file = PytorchReader::new(path).map_err(|error| failed(&error))?;
    let mut names = file.keys();
    names.sort_unstable();
    for (name, tensor) in names.iter().filter_map(|name| Some((name, file.get(name)?))) {
        let kind = match tensor.dtype() {
            pytorch_reader::DType::F32 => Kind::F32,
            pytorch_reader::DType::F64 => Kind::F64,
            pytorch_reader::DType::F16 => Kind::F16,
            pytorch_reader::DType::BF16 => Kind::Bf16,
            _ => Kind::Other,
        };
        let bytes = || tensor.read().map_err(|error| failed(&error));
        take(Foreign { name, kind, shape: tensor.shape(), bytes: &bytes })?;
    }
    Ok(())
}

/// What numbers a tensor is made of.
#[derive(Debug, Clone, Copy)]
enum Kind {
    F64,
    F32,
    F16,
    Bf16,
    Other,
}

/// A tensor in a file of whatever kind.
struct Foreign<'a> {
    name: &'a str,
    kind: Kind,
    shape: &'a [usize],
    /// Little-endian.
    bytes: &'a dyn Fn() -> Result<Vec<u8>, String>,
}

impl Foreign<'_> {
    fn copy(&self, shape: &[usize], out: &mut [f32]) -> Result<(), String> {
        if self.shape != shape {
            return Err(format!("{} is {:?}, the model of this config wants {shape:?}", self.name, self.shape));
        }
        let bytes = (self.bytes)()?;
        match self.kind {
            Kind::F32 => decode(&bytes, out, f32::from_le_bytes),
            Kind::F64 => decode(&bytes, out, |bytes| f64::from_le_bytes(bytes) as f32),
            Kind::F16 => decode(&bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Kind::Bf16 => decode(&bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Kind::Other => return Err(format!("{} is not made of floating-point numbers", self.name)),
        }
        .map_err(|()| format!("{} is cut short", self.name))
    }
}

fn decode<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) -> Result<(), ()> {
    if bytes.len() != N * out.len() {
        return Err(());
    }
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = value(bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
