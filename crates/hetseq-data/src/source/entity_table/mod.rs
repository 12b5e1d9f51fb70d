//! Entity embeddings: a name and a vector for each entity. They are frozen: entity linking learns
//! to point at them, and never changes them. Read by the entity-linking task, which passes the
//! table to [`EntitySamples`](crate::finetune::EntitySamples).
//!
//! Two formats are read:
//! - text as of word2vec and fastText, gzipped or not, see `word2vec.rs`;
//! - a `.safetensors` file with one matrix, and a text file with the names of its rows, see
//!   `entity_tensor.rs`.
//!
//! Only the direction of a vector counts, so all rows are kept with length 1. A vector without
//! a direction, zero or not finite, is refused, and so is a name that occurs twice.

mod entity_tensor;
mod nearest;
mod word2vec;

use std::path::{Path, PathBuf};

use crate::error::{DataError, FinetuneError};

/// Names and unit vectors of entities, numbered from 0. It has at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct EntityTable {
    names: Vec<String>,
    /// The ids of all entities, sorted by name.
    by_name: Vec<u32>,
    dim: usize,
    /// Row by row.
    vectors: Vec<f32>,
    fingerprint: String,
}

/// Names as they were read, and where.
#[derive(Debug)]
struct NameList {
    path: PathBuf,
    names: Vec<String>,
    /// The line of each name, from 1.
    lines: Vec<usize>,
}

impl NameList {
    fn new(path: &Path) -> Self {
        NameList { path: path.to_owned(), names: Vec::new(), lines: Vec::new() }
    }

    fn push(&mut self, name: String, line: usize) {
        self.names.push(name);
        self.lines.push(line);
    }

    /// An error in the line of a name.
    fn bad(&self, at: usize, problem: String) -> DataError {
        let line = self.lines.get(at).copied().unwrap_or(0);
        FinetuneError::BadRecord { path: self.path.clone(), line, problem }.into()
    }
}

impl EntityTable {
    /// Reads a table. `names` is the file with the names of the rows of a `.safetensors` file; text
    /// has them itself.
    pub fn read(vectors: &Path, names: Option<&Path>) -> Result<Self, DataError> {
        let is_tensor = vectors.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors"));
        match (is_tensor, names) {
            (true, Some(names)) => entity_tensor::read(vectors, names),
            (false, None) => word2vec::read(vectors),
            (true, None) => {
                Err(bad_table(vectors, "a safetensors file has no names; set a file with one name per row"))
            }
            (false, Some(_)) => {
                Err(bad_table(vectors, "text has its own names; use a .safetensors file, or no file of names"))
            }
        }
    }

    /// Checks names and vectors, and gives all vectors the length 1. `vectors` has `dim` numbers for
    /// each name.
    fn new(list: NameList, dim: usize, mut vectors: Vec<f32>) -> Result<Self, DataError> {
        if list.names.is_empty() || dim == 0 {
            return Err(bad_table(&list.path, "there are no entities; use a table with at least one"));
        }
        if list.names.len() as u64 >= u64::from(u32::MAX) {
            return Err(bad_table(
                &list.path,
                &format!("{} entities are too many; use a part of them", list.names.len()),
            ));
        }
        for (at, row) in vectors.chunks_exact_mut(dim).enumerate() {
            let name = || list.names.get(at).map_or("", String::as_str);
            scale_to_unit(row).map_err(|problem| list.bad(at, format!("the vector of `{}` {problem}", name())))?;
        }
        let by_name = sorted(&list)?;
        let fingerprint = fingerprint(&list.names, dim, &vectors);
        Ok(EntityTable { names: list.names, by_name, dim, vectors, fingerprint })
    }

    /// The number of entities.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The number of values of a vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    pub fn id(&self, name: &str) -> Option<u32> {
        let name_of = |id: &u32| self.name(*id).unwrap_or_default();
        let at = self.by_name.binary_search_by(|id| name_of(id).cmp(name)).ok()?;
        self.by_name.get(at).copied()
    }

    pub fn name(&self, id: u32) -> Option<&str> {
        self.names.get(id as usize).map(String::as_str)
    }

    /// The vector of an entity, with length 1; empty for an entity that does not exist.
    pub fn vector(&self, id: u32) -> &[f32] {
        let start = (id as usize).saturating_mul(self.dim);
        self.vectors.get(start..start.saturating_add(self.dim)).unwrap_or_default()
    }

    /// 16 hexadecimal digits that differ between tables.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// An error of a whole file. `problem` also says what to do.
fn bad_table(path: &Path, problem: &str) -> DataError {
    FinetuneError::BadFile { path: path.to_owned(), problem: problem.to_owned() }.into()
}

/// The length of a vector, in f64, where the squares of all f32 have room.
fn norm(vector: &[f32]) -> f64 {
    vector.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
}

fn scale_to_unit(vector: &mut [f32]) -> Result<(), &'static str> {
    let norm = norm(vector);
    if !norm.is_finite() {
        return Err("has a number that is not finite; correct it, or remove the entity");
    }
    if norm == 0.0 {
        return Err("is zero, so that it has no direction; correct it, or remove the entity");
    }
    vector.iter_mut().for_each(|value| *value = (f64::from(*value) / norm) as f32);
    Ok(())
}

/// The ids in the order of their names. Of names that occur twice, the error has the first line that
/// repeats one.
fn sorted(list: &NameList) -> Result<Vec<u32>, DataError> {
    let mut ids: Vec<u32> = (0..list.names.len() as u32).collect();
    let name = |id: u32| list.names.get(id as usize);
    ids.sort_by(|&a, &b| name(a).cmp(&name(b)));
    let repeated = ids.windows(2).filter(|pair| name(pair[0]) == name(pair[1])).min_by_key(|pair| pair[1]);
    let Some(&[first, second]) = repeated.and_then(|pair| pair.as_array()) else { return Ok(ids) };
    let line = list.lines.get(first as usize).copied().unwrap_or(0);
    let name = name(second).map_or("", String::as_str);
    Err(list.bad(second as usize, format!("`{name}` is already in line {line}; remove one of the two")))
}

fn fingerprint(names: &[String], dim: usize, vectors: &[f32]) -> String {
    let mut hasher = blake3::Hasher::new();
    for size in [names.len(), dim] {
        hasher.update(&(size as u64).to_le_bytes());
    }
    for name in names {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
    }
    for row in vectors.chunks(dim.max(1)) {
        let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        hasher.update(&bytes);
    }
    hasher.finalize().to_hex()[..16].to_owned()
}
