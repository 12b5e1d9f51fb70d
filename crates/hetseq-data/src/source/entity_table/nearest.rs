//! The entity whose vector has the smallest angle to a given one: exact search over all entities.

use rayon::prelude::*;

use super::{EntityTable, scale_to_unit};

/// Entities per piece of parallel work.
const CHUNK_ENTITIES: usize = 1024;
/// Partial sums of a product, so that the compiler can use vector instructions.
const LANES: usize = 8;
/// Loses against every entity.
const NO_ENTITY: (u32, f32) = (u32::MAX, f32::NEG_INFINITY);

impl EntityTable {
    /// The entity that is most similar to a vector of [`dim`](EntityTable::dim) values, and their
    /// cosine similarity. Of equally similar ones, that with the lowest id.
    ///
    /// A vector without a direction, because it is zero or not finite, has the similarity 0 to all
    /// entities. Missing values count as 0, and further values are ignored.
    pub fn nearest(&self, vector: &[f32]) -> (u32, f32) {
        let mut row = vector.to_vec();
        row.resize(self.dim(), 0.0);
        self.nearest_of_rows(&row).first().copied().unwrap_or((0, 0.0))
    }

    /// As [`nearest`](EntityTable::nearest), for each row of `[rows, dim]` values. Values after the
    /// last complete row are ignored.
    ///
    /// Works in parallel, and the result does not depend on the number of threads: each product is
    /// added up in one order.
    pub fn nearest_of_rows(&self, rows: &[f32]) -> Vec<(u32, f32)> {
        let dim = self.dim();
        let mut rows = rows[..rows.len() - rows.len() % dim].to_vec();
        for row in rows.chunks_exact_mut(dim) {
            if scale_to_unit(row).is_err() {
                row.fill(0.0);
            }
        }
        let nothing = || vec![NO_ENTITY; rows.len() / dim];
        let search = |(chunk, vectors): (usize, &[f32])| {
            let mut best = nothing();
            for (id, vector) in (chunk * CHUNK_ENTITIES..).zip(vectors.chunks_exact(dim)) {
                for (best, row) in best.iter_mut().zip(rows.chunks_exact(dim)) {
                    *best = better(*best, (id as u32, product(row, vector)));
                }
            }
            best
        };
        let merge = |a: Vec<_>, b: Vec<_>| a.into_iter().zip(b).map(|(a, b)| better(a, b)).collect();
        let chunks = self.vectors.par_chunks(CHUNK_ENTITIES * dim).enumerate();
        let best = chunks.map(search).reduce(nothing, merge);
        // Rounding can give slightly more than 1.
        best.into_iter().map(|(id, cosine)| (id, cosine.clamp(-1.0, 1.0))).collect()
    }
}

fn better(a: (u32, f32), b: (u32, f32)) -> (u32, f32) {
    if b.1 > a.1 || (b.1 == a.1 && b.0 < a.0) { b } else { a }
}

fn product(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}
