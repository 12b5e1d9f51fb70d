//! A collated micro-batch: named arrays in host memory, and the counts of its loss terms.
//!
//! Every task returns this one type, so the loader and the devices need not know the task, and a
//! model in another program can take the arrays by name. Nothing here knows tensors: `hetseq-train`
//! copies an array to a device.
//!
//! ```
//! use hetseq_data::Batch;
//!
//! let batch = Batch::new([2]).with_f32("x", [2, 3], vec![0.0; 6]).with_i32("label", [2], vec![4, 7]);
//! assert_eq!((batch.counts(), batch.i32s("label")?), (&[2][..], &[4, 7][..]));
//! assert_eq!(batch.f32s("y").unwrap_err().to_string(), "the batch has no array `y`, only `label`, `x`");
//! # Ok::<(), hetseq_data::ArrayError>(())
//! ```

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

/// Named arrays and one count per loss term.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    counts: Vec<u64>,
    arrays: BTreeMap<String, Array>,
    opaque: Option<Arc<dyn Any + Send + Sync>>,
}

/// A dense array, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    pub shape: Vec<usize>,
    pub values: ArrayValues,
}

/// The values of an [`Array`].
#[derive(Debug, Clone, PartialEq)]
pub enum ArrayValues {
    F32(Vec<f32>),
    I32(Vec<i32>),
}

/// An array that is missing, of the wrong type, or of the wrong size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ArrayError {
    #[error("the batch has no array `{name}`, only {}", listed(.known))]
    Missing { name: String, known: Vec<String> },
    #[error("the array `{name}` holds {found}, not {expected}")]
    WrongType { name: String, found: &'static str, expected: &'static str },
    #[error("the array `{name}` has {values} values, but its shape {shape:?} needs {}", needed(.shape))]
    WrongSize { name: String, values: usize, shape: Vec<usize> },
    #[error("the array `{name}` has the shape {shape:?}, but {dimensions} dimensions are expected")]
    WrongDimensions { name: String, shape: Vec<usize>, dimensions: usize },
}

fn needed(shape: &[usize]) -> String {
    let values = shape.iter().try_fold(1usize, |all, &side| all.checked_mul(side));
    values.map_or_else(|| "more than can be counted".to_owned(), |values| values.to_string())
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { format!("`{}`", names.join("`, `")) }
}

impl Batch {
    /// A batch without arrays. `counts` are what the loss sums are divided by, one per loss term:
    /// samples, masked tokens, ...
    pub fn new(counts: impl Into<Vec<u64>>) -> Self {
        Batch { counts: counts.into(), arrays: BTreeMap::new(), opaque: None }
    }

    /// Adds an array of floats. [`Batch::check`] finds a wrong number of values.
    #[must_use]
    pub fn with_f32(self, name: &str, shape: impl Into<Vec<usize>>, values: Vec<f32>) -> Self {
        self.with(name, shape, ArrayValues::F32(values))
    }

    /// Adds an array of integers.
    #[must_use]
    pub fn with_i32(self, name: &str, shape: impl Into<Vec<usize>>, values: Vec<i32>) -> Self {
        self.with(name, shape, ArrayValues::I32(values))
    }

    /// Adds content that only the compute half of the task can read, such as a batch in another
    /// program's memory.
    #[must_use]
    pub fn with_opaque(mut self, content: Arc<dyn Any + Send + Sync>) -> Self {
        self.opaque = Some(content);
        self
    }

    /// The content of [`Batch::with_opaque`], if it is of this type.
    pub fn opaque<T: Any>(&self) -> Option<&T> {
        self.opaque.as_deref()?.downcast_ref()
    }

    /// Adds the count of another loss term.
    #[must_use]
    pub fn with_count(mut self, count: u64) -> Self {
        self.counts.push(count);
        self
    }

    fn with(mut self, name: &str, shape: impl Into<Vec<usize>>, values: ArrayValues) -> Self {
        self.arrays.insert(name.to_owned(), Array { shape: shape.into(), values });
        self
    }

    /// One per loss term.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// All arrays, sorted by name.
    pub fn arrays(&self) -> impl Iterator<Item = (&str, &Array)> {
        self.arrays.iter().map(|(name, array)| (name.as_str(), array))
    }

    pub fn contains(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    pub fn array(&self, name: &str) -> Result<&Array, ArrayError> {
        let known = || self.arrays.keys().cloned().collect();
        self.arrays.get(name).ok_or_else(|| ArrayError::Missing { name: name.to_owned(), known: known() })
    }

    pub fn f32s(&self, name: &str) -> Result<&[f32], ArrayError> {
        match &self.array(name)?.values {
            ArrayValues::F32(values) => Ok(values),
            ArrayValues::I32(_) => Err(wrong_type(name, "integers", "floats")),
        }
    }

    pub fn i32s(&self, name: &str) -> Result<&[i32], ArrayError> {
        match &self.array(name)?.values {
            ArrayValues::I32(values) => Ok(values),
            ArrayValues::F32(_) => Err(wrong_type(name, "floats", "integers")),
        }
    }

    /// The shape of an array that must have `D` dimensions.
    pub fn shape<const D: usize>(&self, name: &str) -> Result<[usize; D], ArrayError> {
        let shape = &self.array(name)?.shape;
        shape.as_slice().try_into().map_err(|_| ArrayError::WrongDimensions {
            name: name.to_owned(),
            shape: shape.clone(),
            dimensions: D,
        })
    }

    /// Fails if an array has more or fewer values than its shape says.
    pub fn check(&self) -> Result<(), ArrayError> {
        for (name, Array { shape, values }) in &self.arrays {
            let values = match values {
                ArrayValues::F32(values) => values.len(),
                ArrayValues::I32(values) => values.len(),
            };
            if shape.iter().try_fold(1usize, |all, &side| all.checked_mul(side)) != Some(values) {
                return Err(ArrayError::WrongSize { name: name.clone(), values, shape: shape.clone() });
            }
        }
        Ok(())
    }
}

fn wrong_type(name: &str, found: &'static str, expected: &'static str) -> ArrayError {
    ArrayError::WrongType { name: name.to_owned(), found, expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_array_and_the_problem() {
        let batch = Batch::new([1]).with_f32("x", [2, 2], vec![0.0; 3]).with_i32("y", [1], vec![5]);
        let message = |error: ArrayError| error.to_string();
        assert_eq!(message(batch.check().unwrap_err()), "the array `x` has 3 values, but its shape [2, 2] needs 4");
        assert_eq!(message(batch.i32s("x").unwrap_err()), "the array `x` holds floats, not integers");
        assert_eq!(message(batch.f32s("y").unwrap_err()), "the array `y` holds integers, not floats");
        let dimensions = batch.shape::<3>("x").unwrap_err();
        assert_eq!(message(dimensions), "the array `x` has the shape [2, 2], but 3 dimensions are expected");
        assert_eq!(message(Batch::new([]).array("x").unwrap_err()), "the batch has no array `x`, only none");
        assert_eq!(batch.shape("y"), Ok([1]));
    }

    #[test]
    fn a_shape_too_large_to_multiply_is_the_wrong_size() {
        let batch = Batch::new([1]).with_i32("x", [usize::MAX, 2], vec![0; 4]);
        assert!(matches!(batch.check(), Err(ArrayError::WrongSize { .. })));
    }
}
