//! Parameters out of files: of our own checkpoints, of Hugging Face directories, of PyTorch. In a run rank 0 alone reads them
//! and hands them to the others; programs of one's own call [`load`].

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use fs_err as fs;
use half::{bf16, f16};
use hetseq_models::Network;
use hetseq_optim::Layout;
use pytorch_reader::PytorchReader;
use safetensors::tensor::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::error::TrainError;
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
    // Only where gradients can be had does a parameter tell that it is one.
    let model = model.train();
    let layout = layout_of(&model)?;
    let mut flat = initial(&model, &layout, 0);
    let found = read(path, &layout, rename, &mut flat)
        .map_err(|reason| TrainError::Checkpoint { path: path.to_owned(), reason })?;
    let model = flat::load(model, &flat, &layout, &device.clone().autodiff());
    Ok((if device.is_autodiff() { model } else { model.valid() }, found))
}

/// Fills `flat` from a directory or a file. `rename` says what a tensor of the file is called here; none: not asked for.
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

/// All tensors of a directory or a file, by name.
pub(crate) fn read_named(path: &Path) -> Result<Vec<Named>, String> {
    let mut all = Vec::new();
    for_each(path, &mut |tensor| {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        tensor.copy(tensor.shape, &mut values)?;
        all.push(Named { name: tensor.name.to_owned(), shape: tensor.shape.to_vec(), values });
        Ok(())
    })?;
    all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
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
mod tests {
    use burn::tensor::Tensor;
    use hetseq_models::bert::parameter_name;
    use hetseq_models::convnet::ConvNet;

    use super::*;
    use crate::checkpoint::write_flat;

    fn layout(names: &[&str]) -> Layout {
        Layout::new(names.iter().map(|name| ((*name).to_owned(), vec![2]))).unwrap()
    }

    fn same(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn names_are_translated_and_the_rest_is_told() {
        let dir = tempfile::tempdir().unwrap();
        write_flat(
            &dir.path().join("model.safetensors"),
            &layout(&["x.gamma", "other", "ids"]),
            &[1., 2., 3., 4., 5., 6.],
        )
        .unwrap();
        let rename = |name: &str| if name == "ids" { None } else { Some(name.replace("gamma", "weight")) };
        let mut flat = vec![9.0; 4];
        let found = read(dir.path(), &layout(&["x.weight", "head"]), &rename, &mut flat).unwrap();
        assert_eq!(found, Match { missing: vec!["head".to_owned()], unused: vec!["other".to_owned()] });
        assert_eq!(flat, [1.0, 2.0, 9.0, 9.0]);
        let refusal = read_all(dir.path(), &layout(&["head", "x"]), &rename).unwrap_err();
        assert!(refusal.contains("has no tensor head (and 1 more)"), "{refusal}");
    }

    #[test]
    fn a_model_in_several_files_is_read() {
        let dir = tempfile::tempdir().unwrap();
        for (i, name) in ["a", "b"].into_iter().enumerate() {
            let file = dir.path().join(format!("model-{i}.safetensors"));
            write_flat(&file, &layout(&[name]), &[i as f32 + 1.0; 2]).unwrap();
        }
        let index = dir.path().join("model.safetensors.index.json");
        fs::write(&index, r#"{"weight_map": {"a": "model-0.safetensors", "b": "model-1.safetensors"}}"#).unwrap();
        assert_eq!(read_all(dir.path(), &layout(&["a", "b"]), &same).unwrap(), [1.0, 1.0, 2.0, 2.0]);
        fs::write(&index, r#"{"weight_map": {"a": "../model-0.safetensors"}}"#).unwrap();
        assert!(read_all(dir.path(), &layout(&["a"]), &same).unwrap_err().contains("not the name of a file"));
    }

    /// What scripts/fixtures/weights.py has recorded.
    fn recorded(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/weights").join(name)
    }

    #[test]
    fn files_of_pytorch_are_read_whatever_their_age() {
        let shapes = [
            ("bert.embeddings.word_embeddings.weight", vec![3, 2]),
            ("bert.embeddings.LayerNorm.weight", vec![2]),
            ("bert.embeddings.LayerNorm.bias", vec![2]),
            ("cls.predictions.bias", vec![3]),
        ];
        let layout = Layout::new(shapes.map(|(name, shape)| (name.to_owned(), shape))).unwrap();
        let expected: Vec<f32> = (1..=13).map(|value| value as f32).collect();
        for name in ["today.bin", "old.bin", "others.bin"] {
            let mut flat = vec![0.0; layout.len()];
            let found = read(&recorded(name), &layout, &parameter_name, &mut flat).unwrap();
            assert_eq!((found, flat), (Match::default(), expected.clone()), "{name}");
        }
        // Also as a directory, and in several files.
        let dir = tempfile::tempdir().unwrap();
        assert!(!are_at(dir.path()));
        fs::copy(recorded("today.bin"), dir.path().join("part-1")).unwrap();
        let index = r#"{"metadata": {"total_size": 52}, "weight_map": {"cls.predictions.bias": "part-1"}}"#;
        fs::write(dir.path().join("pytorch_model.bin.index.json"), index).unwrap();
        assert!(are_at(dir.path()));
        assert_eq!(read_all(dir.path(), &layout, &parameter_name).unwrap(), expected);
        let integers = |name: &str| (name == "embeddings.position_ids").then(|| "ids".to_owned());
        let ids = Layout::new([("ids".to_owned(), vec![1, 4])]).unwrap();
        let refusal = read_all(&recorded("old.bin"), &ids, &integers).unwrap_err();
        assert!(refusal.contains("position_ids is not made of floating-point numbers"), "{refusal}");
    }

    #[test]
    fn a_model_takes_its_weights_and_begins_with_its_own_where_there_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let model = |device: &Device| ConvNet::new(1, 8, 8, 3, device);
        let bias = Layout::new([("fc2.bias".to_owned(), vec![3]), ("odd".to_owned(), vec![1])]).unwrap();
        write_flat(&dir.path().join("model.safetensors"), &bias, &[1.0, 2.0, 3.0, 4.0]).unwrap();
        // To use it, and to train it.
        for device in [Device::flex(), Device::flex().autodiff()] {
            let (loaded, found) = load(model(&device), dir.path(), &same, &device).unwrap();
            assert_eq!((found.unused, found.missing.len()), (vec!["odd".to_owned()], 7));
            let answer = |model: &ConvNet, images: Tensor<4>| -> Vec<f32> {
                model.forward(images, 0.0, &[]).into_data().try_to_vec().unwrap()
            };
            let output = loaded.forward(Tensor::ones([1, 1, 8, 8], &device), 0.0, &[]);
            assert_eq!(output.device().is_autodiff(), device.is_autodiff());
            // Biases begin at zero, so that of nothing comes the last one.
            assert_eq!(answer(&loaded, Tensor::zeros([1, 1, 8, 8], &device)), [1.0, 2.0, 3.0]);
            assert_ne!(answer(&loaded, Tensor::ones([1, 1, 8, 8], &device)), [1.0, 2.0, 3.0]);
        }
        let device = Device::flex();
        let absent = load(model(&device), &dir.path().join("absent"), &same, &device).unwrap_err().to_string();
        assert!(absent.contains("absent"), "{absent}");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let nowhere = read_all(&dir.path().join("nowhere"), &layout(&["a"]), &same).unwrap_err();
        assert!(nowhere.starts_with("there is no file or directory"), "{nowhere}");
        let missing = read_all(dir.path(), &layout(&["a"]), &same).unwrap_err();
        assert!(missing.contains("no model.safetensors or pytorch_model.bin in"), "{missing}");
        let file = dir.path().join("model.safetensors");
        write_flat(&file, &Layout::new([("a".to_owned(), vec![3])]).unwrap(), &[0.0; 3]).unwrap();
        let shape = read_all(dir.path(), &layout(&["a"]), &same).unwrap_err();
        assert!(shape.contains("a is [3], the model of this config wants [2]"), "{shape}");
        for name in ["model.safetensors", "pytorch_model.bin"] {
            fs::write(dir.path().join(name), b"not a file of weights").unwrap();
            let damaged = read_all(&dir.path().join(name), &layout(&["a"]), &same).unwrap_err();
            assert!(damaged.contains(name), "{damaged}");
        }
    }

    #[test]
    fn other_numbers_become_f32() {
        let mut out = [0.0; 2];
        decode(&[0x00, 0x3c, 0x00, 0xc0], &mut out, |bytes| f16::from_le_bytes(bytes).to_f32()).unwrap();
        assert_eq!(out, [1.0, -2.0]);
        decode(&[0x80, 0x3f, 0x00, 0xc0], &mut out, |bytes| bf16::from_le_bytes(bytes).to_f32()).unwrap();
        assert_eq!(out, [1.0, -2.0]);
        assert!(decode(&[0; 4], &mut out, f32::from_le_bytes).is_err());
    }
}
