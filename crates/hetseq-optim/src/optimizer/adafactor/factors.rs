//! Factored second moments: row and column means of squared gradients, and the factors of the step.
//! The first of Adafactor's three passes.
//!
//! A large matrix is summed in bands of rows. The height of a band depends on the shape only, and
//! the band sums are added in order, so the result does not depend on the threads.

use std::ops::Range;

use rayon::prelude::*;

use super::super::pieces::{Pieces, Tensor, cut};
use super::{AdafactorMoments, AdafactorScalars};
use crate::norm::{CHUNK, LANES};

/// The approximate number of elements per band: 128 KiB of gradients. Part of the definition of the
/// result.
const BAND: usize = 32 * 1024;

/// The smallest number of rows per band, so that the column sums of a wide matrix, in `f64`, stay
/// far smaller than the band.
const MIN_ROWS: usize = 32;

/// A parameter as `batch` matrices of its last two dimensions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Factoring {
    batch: usize,
    height: usize,
    width: usize,
}

impl Factoring {
    /// None for fewer than two dimensions.
    pub(super) fn of(shape: &[usize]) -> Option<Factoring> {
        let [batch @ .., height, width] = shape else { return None };
        Some(Factoring { batch: batch.iter().product(), height: *height, width: *width })
    }

    /// The number of rows of all matrices.
    pub(super) fn rows(&self) -> usize {
        self.batch * self.height
    }

    /// The number of columns of all matrices.
    pub(super) fn cols(&self) -> usize {
        self.batch * self.width
    }
}

/// Sums of squares of a matrix by row and by column.
#[derive(Default)]
struct Sums {
    rows: Vec<f64>,
    cols: Vec<f64>,
}

impl Sums {
    /// Sums another matrix, in bands if it is large.
    fn compute(&mut self, matrix: &[f32], width: usize) {
        if matrix.len() <= BAND {
            return self.compute_band(matrix, width);
        }
        let rows = MIN_ROWS.max(BAND / width);
        let sum = |band| {
            let mut sums = Sums::default();
            sums.compute_band(band, width);
            sums
        };
        let bands: Vec<Sums> = matrix.par_chunks(rows * width).map(sum).collect();
        self.clear(width);
        for band in bands {
            self.rows.extend(band.rows);
            for (total, sum) in self.cols.iter_mut().zip(band.cols) {
                *total += sum;
            }
        }
    }

    fn compute_band(&mut self, band: &[f32], width: usize) {
        self.clear(width);
        let (rows, cols) = (band.chunks_exact(width), &mut self.cols[..]);
        if width < LANES {
            self.rows.extend(rows.map(|row| add_squares_short(row, cols)));
        } else {
            self.rows.extend(rows.map(|row| add_squares(row, cols)));
        }
    }

    fn clear(&mut self, width: usize) {
        self.rows.clear();
        self.cols.clear();
        self.cols.resize(width, 0.0);
    }
}

/// Adds the squares of a row to the column sums and returns their sum, in the order of `norm.rs`.
#[inline(never)]
fn add_squares(row: &[f32], cols: &mut [f64]) -> f64 {
    let mut total = 0.0;
    for (row, cols) in row.chunks(CHUNK).zip(cols.chunks_mut(CHUNK)) {
        let mut lanes = [0f64; LANES];
        let ((groups, rest), (col_groups, col_rest)) = (row.as_chunks::<LANES>(), cols.as_chunks_mut::<LANES>());
        for (group, cols) in groups.iter().zip(col_groups) {
            for ((lane, x), col) in lanes.iter_mut().zip(group).zip(cols) {
                let square = f64::from(*x) * f64::from(*x);
                *lane += square;
                *col += square;
            }
        }
        total = lanes.iter().fold(total, |total, lane| total + lane) + add_squares_short(rest, col_rest);
    }
    total
}

/// The same for fewer than [`LANES`] elements, such as a row of a convolution kernel.
fn add_squares_short(row: &[f32], cols: &mut [f64]) -> f64 {
    let mut total = 0.0;
    for (x, col) in row.iter().zip(cols) {
        let square = f64::from(*x) * f64::from(*x);
        total += square;
        *col += square;
    }
    total
}

/// Updates the second moments of the factored parameters in `range` and returns their factors;
/// `None` for other parameters.
pub(super) fn update(
    all: &Pieces,
    range: &Range<usize>,
    gradients: &[f32],
    moments: &mut AdafactorMoments,
    scalars: &AdafactorScalars,
) -> Vec<Option<Factors>> {
    let AdafactorMoments { exp_avg_sq_row, exp_avg_sq_col, factorings, .. } = moments;
    let size = |size: fn(&Factoring) -> usize| factorings.iter().map(move |f| f.as_ref().map_or(0, size));
    let rows = cut(exp_avg_sq_row, size(Factoring::rows));
    let cols = cut(exp_avg_sq_col, size(Factoring::cols));
    let is_here = |tensor: &Tensor| range.start <= tensor.range.start && tensor.range.end <= range.end;
    let tensors = (&all.tensors, &*factorings, rows, cols).into_par_iter();
    let factors = tensors.map(|(tensor, factoring, rows, cols)| {
        let factoring = factoring.filter(|_| is_here(tensor))?;
        let values = &gradients[tensor.range.start - range.start..tensor.range.end - range.start];
        Some(Factors::update(factoring, values, rows, cols, scalars))
    });
    factors.collect()
}

/// The factors of a parameter's gradients: a gradient is multiplied by the factor of its row and by
/// the factor of its column.
pub(super) struct Factors {
    factoring: Factoring,
    rows: Vec<f32>,
    cols: Vec<f32>,
}

impl Factors {
    /// Updates the second moments of a parameter, `rows` and `cols`, with its gradients.
    fn update(
        f: Factoring,
        gradients: &[f32],
        rows: &mut [f32],
        cols: &mut [f32],
        scalars: &AdafactorScalars,
    ) -> Factors {
        let mut factors = Factors { factoring: f, rows: vec![0.0; rows.len()], cols: vec![0.0; cols.len()] };
        // Small matrices are grouped into one task; `Sums::compute` splits a large one further.
        let together = (BAND / (f.height * f.width)).max(1);
        let parts = (
            gradients.par_chunks(together * f.height * f.width),
            rows.par_chunks_mut(together * f.height).zip(factors.rows.par_chunks_mut(together * f.height)),
            cols.par_chunks_mut(together * f.width).zip(factors.cols.par_chunks_mut(together * f.width)),
        );
        parts.into_par_iter().for_each(|(gradients, (rows, row_factors), (cols, col_factors))| {
            let mut sums = Sums::default();
            let rows = rows.chunks_exact_mut(f.height).zip(row_factors.chunks_exact_mut(f.height));
            let cols = cols.chunks_exact_mut(f.width).zip(col_factors.chunks_exact_mut(f.width));
            let matrices = gradients.chunks_exact(f.height * f.width).zip(rows.zip(cols));
            for (matrix, ((rows, row_factors), (cols, col_factors))) in matrices {
                sums.compute(matrix, f.width);
                scalars.average(rows, &sums.rows, f.width);
                scalars.average(cols, &sums.cols, f.height);
                factor_rows(rows, row_factors);
                factor_cols(cols, col_factors);
            }
        });
        factors
    }

    /// The unscaled step for the gradients `g` of the elements from `first` on, counted from the
    /// start of the parameter.
    pub(super) fn unscaled_step(&self, first: usize, mut g: &[f32], scale: f32, mut step: &mut [f32]) {
        let Factoring { height, width, .. } = self.factoring;
        let (mut row, mut col) = (first / width, first % width);
        let (mut row_in_matrix, mut cols) = (row % height, &self.cols[row / height * width..]);
        while !g.is_empty() {
            let (now, later) = g.split_at(g.len().min(width - col));
            let (step_now, step_later) = step.split_at_mut(now.len());
            multiply(now, &cols[col..], self.rows[row], scale, step_now);
            (g, step, row, col) = (later, step_later, row + 1, 0);
            row_in_matrix += 1;
            if row_in_matrix == height {
                (row_in_matrix, cols) = (0, &cols[width..]);
            }
        }
    }
}

impl AdafactorScalars {
    /// Updates running means with sums over `count` squares each.
    fn average(&self, moments: &mut [f32], sums: &[f64], count: usize) {
        let scale = f64::from(self.scale) * f64::from(self.scale) / count as f64;
        let (keep, add) = (self.beta2 as f32, (1.0 - self.beta2) as f32);
        for (moment, sum) in moments.iter_mut().zip(sums) {
            let mean = sum * scale + self.eps;
            *moment = *moment * keep + mean as f32 * add;
        }
    }
}

/// `1 / sqrt(row / mean of the rows)`
fn factor_rows(rows: &[f32], factors: &mut [f32]) {
    let sum = rows.iter().fold(0.0, |total, row| total + f64::from(*row));
    let mean = (sum / rows.len() as f64) as f32;
    for (row, factor) in rows.iter().zip(factors) {
        *factor = (mean / *row).sqrt();
    }
}

/// `1 / sqrt(column)`
fn factor_cols(cols: &[f32], factors: &mut [f32]) {
    for (col, factor) in cols.iter().zip(factors) {
        *factor = 1.0 / col.sqrt();
    }
}

fn multiply(g: &[f32], cols: &[f32], row: f32, scale: f32, step: &mut [f32]) {
    for ((g, col), step) in g.iter().zip(cols).zip(step) {
        *step = row * *col * (*g * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_the_last_two_dimensions() {
        let sizes = |shape: &[usize]| Factoring::of(shape).map(|f| (f.rows(), f.cols()));
        assert_eq!(sizes(&[5, 7]), Some((5, 7)));
        assert_eq!(sizes(&[2, 3, 5, 7]), Some((30, 42)));
        assert_eq!(sizes(&[5]), None);
        assert_eq!(sizes(&[]), None);
    }

    #[test]
    fn squares_are_summed_by_row_and_column() {
        let mut sums = Sums::default();
        sums.compute(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3);
        assert_eq!((&sums.rows[..], &sums.cols[..]), (&[14.0, 77.0][..], &[17.0, 29.0, 45.0][..]));
        // Narrow, wide, in bands, in chunks. The values are integers, so that any order gives the
        // same.
        for (height, width) in [(9, 7), (100, 9), (7, 5000), (500, 70), (33, 3000), (100, 1000)] {
            let matrix: Vec<f32> = (0..height * width).map(|i| (i % 13) as f32).collect();
            let square = |i: usize| f64::from(matrix[i]).powi(2);
            sums.compute(&matrix, width);
            let rows: Vec<f64> = (0..height).map(|r| (0..width).map(|c| square(r * width + c)).sum()).collect();
            let cols: Vec<f64> = (0..width).map(|c| (0..height).map(|r| square(r * width + c)).sum()).collect();
            assert!(sums.rows == rows && sums.cols == cols, "{height} by {width}");
        }
    }
}
