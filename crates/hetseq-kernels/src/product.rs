//! Matrix products in host memory with the `gemm` crate, which Burn uses too. Contains the `unsafe`
//! GEMM calls: Burn's own product clears its output twice before writing, which took 7 % of a step.

use std::mem::MaybeUninit;

use gemm::Parallelism;

/// A matrix with a fixed row stride, or its transpose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows one after the other. An incomplete last row is ignored.
    pub(crate) fn new(values: &'a [f32], columns: usize) -> Self {
        Self::columns(values, columns, 0, columns)
    }

    /// `columns` columns, starting at `from`, of a matrix of `width` columns.
    pub(crate) fn columns(values: &'a [f32], width: usize, from: usize, columns: usize) -> Self {
        assert_columns(width, from, columns);
        let rows = values.len() / width.max(1);
        let values = values.get(from..).unwrap_or_default();
        Matrix { values, rows, columns, row_stride: width, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        let Matrix { values, rows, columns, row_stride, column_stride } = self;
        Matrix { values, rows: columns, columns: rows, row_stride: column_stride, column_stride: row_stride }
    }
}

/// An output matrix.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a> {
    values: &'a mut [MaybeUninit<f32>],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// Rows one after the other.
    pub(crate) fn new(values: &'a mut [f32], columns: usize) -> Self {
        Self::columns(values, columns, 0, columns)
    }

    /// See [`Matrix::columns`].
    #[allow(unsafe_code)]
    pub(crate) fn columns(values: &'a mut [f32], width: usize, from: usize, columns: usize) -> Self {
        // SAFETY: the same values, and `multiply` only writes initialised values.
        let values = unsafe { &mut *(std::ptr::from_mut(values) as *mut [MaybeUninit<f32>]) };
        Self::uninit(values, width, from, columns)
    }

    fn uninit(values: &'a mut [MaybeUninit<f32>], width: usize, from: usize, columns: usize) -> Self {
        assert_columns(width, from, columns);
        let rows = values.len() / width.max(1);
        let values = values.get_mut(from..).unwrap_or_default();
        MatrixMut { values, rows, columns, row_stride: width }
    }
}

fn assert_columns(width: usize, from: usize, columns: usize) {
    assert!(from + columns <= width, "columns {from} to {} of {width}", from + columns);
}

/// `a b`, rows one after the other.
#[allow(unsafe_code)]
pub(crate) fn product(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f32> {
    let count = a.rows * b.columns;
    let mut out = Vec::with_capacity(count);
    init_product(a, b, &mut out.spare_capacity_mut()[..count]);
    // SAFETY: `init_product` has written all elements.
    unsafe { out.set_len(count) };
    out
}

/// `out = a b`, rows one after the other. Writes all of `out`.
pub(crate) fn init_product(a: Matrix<'_>, b: Matrix<'_>, out: &mut [MaybeUninit<f32>]) {
    assert_eq!(out.len(), a.rows * b.columns, "the output size of a product");
    match a.columns {
        0 => out.fill(MaybeUninit::new(0.0)),
        _ => multiply(a, b, 1.0, MatrixMut::uninit(out, b.columns, 0, b.columns), false),
    }
}

/// `out += a b`, rows one after the other.
pub(crate) fn add_product(a: Matrix<'_>, b: Matrix<'_>, out: &mut [f32]) {
    multiply(a, b, 1.0, MatrixMut::new(out, b.columns), true);
}

/// `out = scale a b`. Leaves `out` unchanged if the inner dimension is empty.
pub(crate) fn write_product(a: Matrix<'_>, b: Matrix<'_>, scale: f32, out: MatrixMut<'_>) {
    if a.columns > 0 {
        multiply(a, b, scale, out, false);
    }
}

/// `out += scale a b`.
pub(crate) fn add_scaled_product(a: Matrix<'_>, b: Matrix<'_>, scale: f32, out: MatrixMut<'_>) {
    multiply(a, b, scale, out, true);
}

/// Number of multiplications from which several threads are used.
const PARALLEL: usize = 192 * 192 * 192;

/// `out = scale a b`, or `out += scale a b` if `add`; then `out` must be initialised.
///
/// # Panics
/// If the sizes do not match.
#[allow(unsafe_code)]
fn multiply(a: Matrix<'_>, b: Matrix<'_>, scale: f32, out: MatrixMut<'_>, add: bool) {
    let (rows, inner, columns) = (a.rows, a.columns, b.columns);
    assert_eq!(inner, b.rows, "a product of {rows} x {inner} and {} x {columns}", b.rows);
    assert_eq!((out.rows, out.columns), (rows, columns), "the output size of a product");
    let is_large = rows.saturating_mul(columns).saturating_mul(inner) >= PARALLEL;
    let parallelism = if is_large { Parallelism::Rayon(0) } else { Parallelism::None };
    // SAFETY: only `columns` and `transposed` create matrices, so the largest index,
    // `(rows - 1) * row_stride + (columns - 1) * column_stride`, is within the values, and no two
    // elements have the same index. `out` has the size asserted above and is borrowed mutably, so
    // it overlaps neither input. It is read only if `add`. Each element is written, because the
    // inner dimension is not empty.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            out.values.as_mut_ptr().cast::<f32>(),
            1,
            out.row_stride as isize,
            add,
            a.values.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.values.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            scale,
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
        let (a_transposed, b_transposed) = ([1.0, 4.0, 2.0, 5.0, 3.0, 6.0], [1.0, -1.0, 0.5, 0.0, 2.0, 1.0]);
        for a in [Matrix::new(&a, 3), Matrix::new(&a_transposed, 2).transposed()] {
            for b in [Matrix::new(&b, 2), Matrix::new(&b_transposed, 3).transposed()] {
                assert_eq!(product(a, b), expected);
                let mut sum = [1.0; 4];
                add_product(a, b, &mut sum);
                assert_eq!(sum, expected.map(|x| x + 1.0));
            }
        }
    }

    #[test]
    fn products_of_column_ranges() {
        // The last two columns of a 2 x 3, times the middle column of a 2 x 3, into the middle
        // column of a 2 x 3.
        let (a, b) = ([9.0, 1.0, 2.0, 9.0, 3.0, 4.0], [9.0, 1.0, 9.0, 9.0, -1.0, 9.0]);
        let mut out = [7.0; 6];
        let target = MatrixMut::columns(&mut out, 3, 1, 1);
        write_product(Matrix::columns(&a, 3, 1, 2), Matrix::columns(&b, 3, 1, 1), 0.5, target);
        assert_eq!(out, [7.0, -0.5, 7.0, 7.0, -0.5, 7.0]);
    }

    #[test]
    #[should_panic(expected = "columns 2 to 4 of 3")]
    fn columns_beyond_a_matrix_are_refused() {
        Matrix::columns(&[0.0; 6], 3, 2, 2);
    }

    #[test]
    fn empty_matrices_are_valid() {
        assert_eq!(product(Matrix::new(&[], 3), Matrix::new(&[0.0; 6], 2)), [0.0; 0]);
        // The transpose of a 0 x 3 matrix has an empty inner dimension.
        assert_eq!(product(Matrix::new(&[], 3).transposed(), Matrix::new(&[], 2)), [0.0; 6]);
    }

    #[test]
    #[should_panic(expected = "a product of 1 x 2 and 3 x 1")]
    fn mismatched_sizes_are_refused() {
        product(Matrix::new(&[1.0; 2], 2), Matrix::new(&[1.0; 3], 1));
    }
}
