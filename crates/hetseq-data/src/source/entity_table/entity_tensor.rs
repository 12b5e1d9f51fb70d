//! Reads vectors from a safetensors file, and their names from a text file.
//!
//! The rules:
//! - The file has one tensor, or one named `embeddings` or `weight`. It is a matrix of f32, f16 or
//!   bf16 with one row per entity.
//! - The text has the name of each row in one line, in the order of the rows. Only the text before
//!   the first tab is read.

use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::{EntityTable, NameList, bad_table};
use crate::error::DataError;
use crate::source::bytes::Bytes;
use crate::source::text::Lines;

/// The tensor that is used if there are several.
const NAMES: [&str; 2] = ["embeddings", "weight"];

pub(super) fn read(path: &Path, names: &Path) -> Result<EntityTable, DataError> {
    let bytes = Bytes::map(path)?;
    let bad = |problem: String| bad_table(path, &problem);
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|reason| bad(format!("this is not a valid safetensors file: {reason}; copy it again")))?;
    let (name, tensor) = choose(&file).map_err(bad)?;
    let [rows, dim] = tensor.shape() else {
        let shape = tensor.shape();
        return Err(bad(format!("`{name}` has the shape {shape:?}; use a matrix with one row per entity")));
    };
    let list = read_names(names)?;
    if list.names.len() != *rows {
        let (found, names) = (list.names.len(), list.path.display());
        return Err(bad(format!(
            "`{name}` has {rows} rows, but {names} has {found} names; use the names of this file"
        )));
    }
    let values = values(&tensor)
        .map_err(|dtype| bad(format!("`{name}` has the type {dtype:?}; convert it to F32, F16 or BF16")))?;
    EntityTable::new(list, *dim, values)
}

fn choose<'a>(file: &SafeTensors<'a>) -> Result<(String, TensorView<'a>), String> {
    let mut tensors = file.tensors();
    if tensors.len() == 1 {
        return Ok(tensors.remove(0));
    }
    let position = NAMES.iter().find_map(|wanted| tensors.iter().position(|(name, _)| name == wanted));
    position.map(|at| tensors.swap_remove(at)).ok_or_else(|| {
        let [first, second] = NAMES;
        format!("there are {} tensors, and none is `{first}` or `{second}`; use a file with one", tensors.len())
    })
}

/// The values as f32, or the type that cannot be read.
fn values(tensor: &TensorView<'_>) -> Result<Vec<f32>, Dtype> {
    let (halves, _) = tensor.data().as_chunks::<2>();
    Ok(match tensor.dtype() {
        Dtype::F32 => tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        Dtype::F16 => halves.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
        Dtype::BF16 => halves.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
        other => return Err(other),
    })
}

fn read_names(path: &Path) -> Result<NameList, DataError> {
    let mut lines = Lines::open(path)?;
    let mut list = NameList::new(lines.path());
    while let Some(line) = lines.next() {
        let (line, at) = (line?, list.names.len());
        let name = line.split('\t').next().unwrap_or_default().trim_matches(' ');
        list.push(name.to_owned(), lines.lines_read());
        if name.is_empty() {
            return Err(list.bad(at, "the name is empty; write the name of this row".to_owned()));
        }
    }
    Ok(list)
}
