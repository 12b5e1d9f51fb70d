//! Embedding lookup: rows of a table by id.

use burn::tensor::{Int, Tensor};

use crate::gradient_buffer::add_in_place;
use crate::host::{BackwardRule, Target, Values, attach, indices, input};

/// Looks up `ids` [sample, position] in `table` [entry, feature]. Appends the features as the third
/// dimension.
pub fn embedding(table: Tensor<2>, ids: Tensor<2, Int>) -> Tensor<3> {
    let ([entries, width], [samples, positions]) = (table.dims(), ids.dims());
    match input(&table).and_then(|input| Some((input, indices(&ids, entries)?))) {
        Some((input, ids)) => {
            let mut output = Vec::with_capacity(ids.len() * width);
            for &id in &ids {
                output.extend_from_slice(&input.values.get()[id * width..][..width]);
            }
            let output = Values::from_vec(output, vec![samples, positions, width]);
            attach([input.node], output, Embedding { entries, ids })
        }
        None => burn::tensor::module::embedding(table, ids),
    }
}

#[derive(Debug, Clone)]
struct Embedding {
    entries: usize,
    ids: Vec<usize>,
}

impl BackwardRule<1> for Embedding {
    /// Single-threaded: an id may occur more than once, so threads would wait for each other.
    fn gradients(self, upstream: Values, [target]: [Target; 1]) -> [Option<Values>; 1] {
        let width = upstream.width();
        let add = |sums: &mut [f32]| {
            for (&id, row) in self.ids.iter().zip(upstream.get().chunks_exact(width)) {
                for (sum, g) in sums[id * width..][..width].iter_mut().zip(row) {
                    *sum += g;
                }
            }
        };
        [match target {
            Target::Nowhere => None,
            Target::Graph => {
                let mut sums = vec![0.0; self.entries * width];
                add(&mut sums);
                Some(Values::from_vec(sums, vec![self.entries, width]))
            }
            Target::Slot(slot) => {
                add_in_place(slot, add);
                None
            }
        }]
    }
}
