//! Products of matrices in host memory, by the `gemm` crate, which Burn uses too. The one file that is not safe by the
//! compiler's word: Burn's own product clears its output twice before it is written, which was 7 % of a step.

use std::mem::MaybeUninit;

use gemm::Parallelism;

/// Rows one after the other, or the transpose of that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// What does not fill a row is left out.
    pub(crate) fn new(values: &'a [f32], columns: usize) -> Self {
        let rows = values.len() / columns.max(1);
        Matrix { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        let Matrix { values, rows, columns, row_stride, column_stride } = self;
        Matrix { values, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }
}

/// `a b`, rows one after the other.
#[allow(unsafe_code)]
pub(crate) fn product(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f32> {
    let count = a.rows * b.columns;
    if a.columns == 0 {
        return vec![0.0; count];
    }
    let mut out = Vec::with_capacity(count);
    multiply(a, b, &mut out.spare_capacity_mut()[..count], false);
    // SAFETY: `multiply` has written all of them.
    unsafe { out.set_len(count) };
    out
}

/// `out += a b`
#[allow(unsafe_code)]
pub(crate) fn add_product(a: Matrix<'_>, b: Matrix<'_>, out: &mut [f32]) {
    // SAFETY: the same numbers, and `multiply` writes nothing but numbers.
    let out = unsafe { &mut *(std::ptr::from_mut(out) as *mut [MaybeUninit<f32>]) };
    multiply(a, b, out, true);
}

/// From here on threads help.
const PARALLEL: usize = 192 * 192 * 192;

/// `out = a b`, or `out += a b` if `add`, and then `out` must have been initialised.
///
/// # Panics
/// If the sizes do not fit.
#[allow(unsafe_code)]
fn multiply(a: Matrix<'_>, b: Matrix<'_>, out: &mut [MaybeUninit<f32>], add: bool) {
    let (rows, inner, columns) = (a.rows, a.columns, b.columns);
    assert_eq!(inner, b.rows, "a product of {rows} x {inner} and {} x {columns}", b.rows);
    assert_eq!(out.len(), rows * columns, "room for a product of {rows} x {columns}");
    let is_large = rows.saturating_mul(columns).saturating_mul(inner) >= PARALLEL;
    let parallelism = if is_large { Parallelism::Rayon(0) } else { Parallelism::None };
    // SAFETY: `Matrix::new` and `transposed` are the only ways to a matrix, so that its largest index,
    // (rows - 1) row_stride + (columns - 1) column_stride, lies within its values; `out` is as large as asserted above, and
    // borrowed mutably, so that it overlaps neither. It is read only if `add`, and each element is written, since the inner
    // dimension is not empty.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            out.as_mut_ptr().cast::<f32>(),
            1,
            columns as isize,
            add,
            a.values.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.values.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_all_orientations() {
        // 2 x 3 and 3 x 2
        let (a, b) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 0.0, -1.0, 2.0, 0.5, 1.0]);
        let expected = [0.5, 7.0, 2.0, 16.0];
        let (a_turned, b_turned) = ([1.0, 4.0, 2.0, 5.0, 3.0, 6.0], [1.0, -1.0, 0.5, 0.0, 2.0, 1.0]);
        for a in [Matrix::new(&a, 3), Matrix::new(&a_turned, 2).transposed()] {
            for b in [Matrix::new(&b, 2), Matrix::new(&b_turned, 3).transposed()] {
                assert_eq!(product(a, b), expected);
                let mut sum = [1.0; 4];
                add_product(a, b, &mut sum);
                assert_eq!(sum, expected.map(|x| x + 1.0));
            }
        }
    }

    #[test]
    fn nothing_is_a_matrix_too() {
        assert_eq!(product(Matrix::new(&[], 3), Matrix::new(&[0.0; 6], 2)), [0.0; 0]);
        // No rows, three columns: turned round, three times nothing.
        assert_eq!(product(Matrix::new(&[], 3).transposed(), Matrix::new(&[], 2)), [0.0; 6]);
    }

    #[test]
    #[should_panic(expected = "a product of 1 x 2 and 3 x 1")]
    fn what_does_not_fit_is_refused() {
        product(Matrix::new(&[1.0; 2], 2), Matrix::new(&[1.0; 3], 1));
    }
}
