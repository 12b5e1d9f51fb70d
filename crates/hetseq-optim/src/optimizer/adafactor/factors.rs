//! The factored second moments: row and column means of squared gradients, and what follows from them.
//!
//! A matrix is summed in bands of rows, whose heights follow from its shape alone; sums of the bands are
//! added in order. So the result does not depend on who summed a band. The first of Adafactor's three
//! passes.

use std::ops::Range;

use rayon::prelude::*;

use super::super::pieces::{Pieces, Tensor, cut};
use super::{Moments, Scalars};
use crate::norm::{CHUNK, sum_of_squares};

/// Elements in a band, about: 128 KiB of gradients. Part of the result's definition.
const BAND: usize = 32 * 1024;

/// Rows in a band of a wide matrix, so that its column sums, in `f64`, stay far smaller than the band.
const LEAST_ROWS: usize = 32;

/// A parameter as `batch` matrices: its last two dimensions, for each index of those before.
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

    /// Of all its matrices.
    pub(super) fn rows(&self) -> usize {
        self.batch * self.height
    }

    pub(super) fn cols(&self) -> usize {
        self.batch * self.width
    }

    /// Its rows in parts that are summed each by itself: of one matrix, or whole matrices.
    fn bands(&self) -> Vec<Range<usize>> {
        let matrix = self.height * self.width;
        if matrix <= BAND {
            let rows = BAND / matrix * self.height;
            return (0..self.rows()).step_by(rows).map(|at| at..self.rows().min(at + rows)).collect();
        }
        let rows = LEAST_ROWS.max(BAND / self.width);
        let matrices = (0..self.rows()).step_by(self.height).map(|at| at..at + self.height);
        let cut = |m: Range<usize>| m.clone().step_by(rows).map(move |at| at..m.end.min(at + rows));
        matrices.flat_map(cut).collect()
    }

    /// Sums over `band`, whose elements are `values`.
    fn squares(&self, band: Range<usize>, values: &[f32]) -> Squares {
        let first = band.start / self.height;
        let matrices = band.end.div_ceil(self.height) - first;
        let mut squares =
            Squares { rows: Vec::with_capacity(band.len()), cols: vec![0.0; matrices * self.width], band };
        for (row, values) in squares.band.clone().zip(values.chunks(self.width)) {
            squares.rows.push(values.chunks(CHUNK).map(sum_of_squares).fold(0.0, |total, sum| total + sum));
            let cols = &mut squares.cols[(row / self.height - first) * self.width..][..self.width];
            for (col, value) in cols.iter_mut().zip(values) {
                *col += f64::from(*value) * f64::from(*value);
            }
        }
        squares
    }
}

/// Sums of squares over a band of rows.
struct Squares {
    band: Range<usize>,
    /// One for each row.
    rows: Vec<f64>,
    /// One for each column of the matrices that the band touches, over the rows of the band.
    cols: Vec<f64>,
}

/// What a gradient is multiplied by: the factor of its row times that of its column.
pub(super) struct Factors {
    factoring: Factoring,
    rows: Vec<f32>,
    cols: Vec<f32>,
}

/// Moves the second moments of the factored parameters in `range` and returns their factors; none for others.
pub(super) fn update(
    all: &Pieces,
    range: &Range<usize>,
    gradients: &[f32],
    moments: &mut Moments,
    scalars: &Scalars,
) -> Vec<Option<Factors>> {
    let Moments { exp_avg_sq_row, exp_avg_sq_col, factorings, .. } = moments;
    let size = |size: fn(&Factoring) -> usize| factorings.iter().map(move |f| f.as_ref().map_or(0, size));
    let rows = cut(exp_avg_sq_row, size(Factoring::rows));
    let cols = cut(exp_avg_sq_col, size(Factoring::cols));
    let is_here = |tensor: &Tensor| range.start <= tensor.range.start && tensor.range.end <= range.end;
    let tensors = (&all.tensors, &*factorings, rows, cols).into_par_iter();
    let factors = tensors.map(|(tensor, factoring, rows, cols)| {
        let factoring = factoring.filter(|_| is_here(tensor))?;
        let values = &gradients[tensor.range.start - range.start..tensor.range.end - range.start];
        let sum = |band: Range<usize>| {
            let values = &values[band.start * factoring.width..band.end * factoring.width];
            factoring.squares(band, values)
        };
        let squares: Vec<Squares> = factoring.bands().into_par_iter().map(sum).collect();
        average(factoring, &squares, rows, cols, scalars);
        Some(Factors::new(factoring, rows, cols))
    });
    factors.collect()
}

/// Takes the sums of a parameter's bands into its second moments.
fn average(factoring: Factoring, squares: &[Squares], rows: &mut [f32], cols: &mut [f32], scalars: &Scalars) {
    let scale = f64::from(scalars.scale) * f64::from(scalars.scale);
    let (keep, add) = (scalars.beta2 as f32, (1.0 - scalars.beta2) as f32);
    let average = |moment: &mut f32, sum: f64, count: usize| {
        let mean = sum * scale / count as f64 + scalars.eps;
        *moment = *moment * keep + mean as f32 * add;
    };
    let mut totals = vec![0.0; factoring.cols()];
    for Squares { band, rows: row_sums, cols: col_sums } in squares {
        for (row, sum) in rows[band.clone()].iter_mut().zip(row_sums) {
            average(row, *sum, factoring.width);
        }
        let first = band.start / factoring.height * factoring.width;
        for (total, sum) in totals[first..].iter_mut().zip(col_sums) {
            *total += sum;
        }
    }
    for (col, total) in cols.iter_mut().zip(totals) {
        average(col, total, factoring.height);
    }
}

impl Factors {
    fn new(factoring: Factoring, rows: &[f32], cols: &[f32]) -> Factors {
        let mut row_factors = Vec::with_capacity(rows.len());
        for rows in rows.chunks(factoring.height) {
            let sum = rows.iter().fold(0.0, |total, row| total + f64::from(*row));
            let mean = (sum / rows.len() as f64) as f32;
            row_factors.extend(rows.iter().map(|row| 1.0 / (*row / mean).sqrt()));
        }
        let cols = cols.iter().map(|col| 1.0 / col.sqrt()).collect();
        Factors { factoring, rows: row_factors, cols }
    }

    /// The unscaled step for the gradients `g` of the elements from `first` on, counted from the parameter's first.
    pub(super) fn direct(&self, first: usize, g: &[f32], scale: f32, step: &mut [f32]) {
        let Factoring { height, width, .. } = self.factoring;
        let (mut row, mut col, mut done) = (first / width, first % width, 0);
        while done < g.len() {
            let end = g.len().min(done + width - col);
            let cols = &self.cols[row / height * width + col..];
            multiply(&g[done..end], cols, self.rows[row], scale, &mut step[done..end]);
            (row, col, done) = (row + 1, 0, end);
        }
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
    fn bands_cover_the_rows_and_keep_to_matrices() {
        for shape in [
            vec![1, 1],
            vec![7, 5],
            vec![3, 5, 3, 3],
            vec![500, 300, 3, 3],
            vec![4, 200, 300],
            vec![1000, 1024],
            vec![40, 50_000],
            vec![2, 70, 1000],
        ] {
            let factoring = Factoring::of(&shape).unwrap();
            let mut at = 0;
            for band in factoring.bands() {
                assert_eq!(band.start, at, "{shape:?}");
                let (first, last) = (band.start / factoring.height, (band.end - 1) / factoring.height);
                let is_whole = band.start % factoring.height == 0 && band.end % factoring.height == 0;
                assert!(first == last || is_whole, "{shape:?} {band:?}");
                at = band.end;
            }
            assert_eq!(at, factoring.rows(), "{shape:?}");
        }
        assert_eq!(Factoring::of(&[5]), None);
        assert_eq!(Factoring::of(&[]), None);
    }

    #[test]
    fn squares_of_a_band_are_summed_by_row_and_column() {
        let factoring = Factoring::of(&[2, 2, 3]).unwrap();
        let values: Vec<f32> = (1..=12u8).map(f32::from).collect();
        let squares = factoring.squares(0..4, &values);
        assert_eq!(squares.rows, [14.0, 77.0, 194.0, 365.0]);
        assert_eq!(squares.cols, [17.0, 29.0, 45.0, 149.0, 185.0, 225.0]);
        let second = factoring.squares(3..4, &values[9..]);
        assert_eq!((second.rows, second.cols), (vec![365.0], vec![100.0, 121.0, 144.0]));
    }
}
