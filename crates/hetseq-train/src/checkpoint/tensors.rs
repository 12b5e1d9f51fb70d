//! Writes flat buffers as safetensors files with the names and shapes of the layout, and reads
//! optimizer slots. Called by `store.rs` and, for weights alone, by `average.rs`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use fs_err as fs;
use hetseq_optim::{Layout, LayoutEntry};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, SafeTensors, View};

use super::weights_error::{TensorProblem, WeightsError};

/// A borrowed f32 tensor.
struct F32View<'a> {
    shape: Vec<usize>,
    values: &'a [f32],
}

impl View for F32View<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if cfg!(target_endian = "little") {
            return Cow::Borrowed(bytemuck::cast_slice(self.values));
        }
        Cow::Owned(self.values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        4 * self.values.len()
    }
}

/// Writes one tensor per layout entry. Values behind the end of the layout in `flat` are not
/// written.
pub(crate) fn write_flat(path: &Path, layout: &Layout, flat: &[f32]) -> std::io::Result<()> {
    write_entries(path, layout.entries(), flat)
}

/// Writes one tensor per entry.
pub(crate) fn write_entries(path: &Path, entries: &[LayoutEntry], flat: &[f32]) -> std::io::Result<()> {
    let view = |entry: &LayoutEntry| F32View { shape: entry.shape.clone(), values: &flat[entry.range.clone()] };
    write(path, entries.iter().map(|entry| (&entry.name, view(entry))))
}

/// Writes one vector per optimizer slot.
pub(super) fn write_slots(path: &Path, slots: &[(String, Vec<f32>)]) -> std::io::Result<()> {
    write(path, slots.iter().map(|(name, values)| (name, F32View { shape: vec![values.len()], values })))
}

fn write<'a>(path: &Path, tensors: impl Iterator<Item = (&'a String, F32View<'a>)>) -> std::io::Result<()> {
    // Other programs check `format` before they read a model.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    // The crate creates files that only their owner may read. An ordinary file shows what the
    // user's umask allows.
    let permissions = fs::File::create(path)?.metadata()?.permissions();
    let name = path.file_name().unwrap_or_default().display();
    safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(|error| match error {
        // `SaveError` chooses its advice by the error kind.
        SafeTensorError::IoError(error) => std::io::Error::new(error.kind(), format!("{name}: {error}")),
        error => std::io::Error::other(format!("{name}: {error}")),
    })?;
    fs::set_permissions(path, permissions)
}

pub(super) fn read_slots(path: &Path) -> Result<Vec<(String, Vec<f32>)>, WeightsError> {
    let bytes = fs::read(path)?;
    let file =
        SafeTensors::deserialize(&bytes).map_err(|reason| WeightsError::Damaged { path: path.to_owned(), reason })?;
    let slot = |(name, tensor): (String, safetensors::tensor::TensorView<'_>)| {
        if tensor.dtype() != Dtype::F32 {
            let problem = TensorProblem::NotF32(format!("{:?}", tensor.dtype()));
            return Err(WeightsError::Tensor { path: path.to_owned(), tensor: name, problem });
        }
        let mut values = vec![0.0; tensor.data().len() / 4];
        copy_le(tensor.data(), &mut values);
        Ok((name, values))
    };
    file.tensors().into_iter().map(slot).collect()
}

/// Number of tensors in `bytes`, which must be the whole content of a file.
pub(super) fn count(bytes: &[u8]) -> Result<usize, SafeTensorError> {
    SafeTensors::deserialize(bytes).map(|file| file.len())
}

fn copy_le(bytes: &[u8], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
        *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
}
