//! Scalar functions that the compiler can vectorise, unlike calls into the system's math library,
//! and sums in lanes. They use only + - * / and bit operations in a fixed order, so results are
//! equal on every machine.

/// Below this, the exponential is not a normal number and is set to zero.
const EXP_LOWEST: f32 = -87.3;
const EXP_HIGHEST: f32 = 88.0;
/// Adding and subtracting it rounds to an integer. After adding, the integer is in the lowest bits.
const ROUNDING: f32 = 12_582_912.0;
/// ln 2 in two parts. Integer multiples of the first are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// e^x with a relative error below 2e-7. Larger x are clamped to 88. The polynomial is that of
/// Cephes' `expf`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let inside = x.clamp(EXP_LOWEST, EXP_HIGHEST);
    let shifted = inside * std::f32::consts::LOG2_E + ROUNDING;
    let whole = shifted - ROUNDING;
    let r = inside - whole * LN_2[0] - whole * LN_2[1];
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    let y = (p * (r * r) + r + 1.0) * power;
    if x < EXP_LOWEST { 0.0 } else { y }
}

/// The error function with an error below 5e-7: a quotient of two polynomials, as in Eigen's `erf`.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let x = x.clamp(-4.0, 4.0);
    let s = x * x;
    let p = -2.726_142_4e-10;
    let p = p * s + 2.770_681_4e-8;
    let p = p * s - 2.101_024e-6;
    let p = p * s - 5.692_506_4e-5;
    let p = p * s - 7.349_906_5e-4;
    let p = p * s - 2.954_6e-3;
    let p = p * s - 1.609_603_3e-2;
    let q = -1.456_607_2e-5;
    let q = q * s - 2.133_740_6e-4;
    let q = q * s - 1.682_827e-3;
    let q = q * s - 7.373_329e-3;
    let q = q * s - 1.426_473_9e-2;
    x * p / q
}

const LANES: usize = 16;

/// The sum of `term(a, b)` over two equally long slices.
#[inline(always)]
pub(crate) fn sum_of_pairs(a: &[f32], b: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] += term(a[i], b[i]);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(&a, &b)| term(a, b)).sum();
    lanes.iter().sum::<f32>() + rest
}

/// The sum of `term(value)`.
#[inline(always)]
pub(crate) fn sum_of(values: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    sum_of_pairs(values, values, |value, _| term(value))
}

/// The largest value. Ignores NaN.
#[inline(always)]
pub(crate) fn largest(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], chunk[i]);
        }
    }
    lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_matches_the_library() {
        for i in -8_730..=8_800 {
            let x = i as f32 / 100.0;
            let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((ours / exact - 1.0).abs() < 2e-7, "{x}: {ours} for {exact}");
        }
        assert_eq!((exp(0.0), exp(-1e9), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
        assert!(exp(f32::NAN).is_nan());
    }

    /// erf(x) = 2 / sqrt(pi) * sum over n of (-1)^n x^(2n+1) / (n! (2n+1)).
    fn exact_erf(x: f64) -> f64 {
        let (mut power, mut sum) = (x, 0.0);
        for n in 0..120 {
            sum += power / f64::from(2 * n + 1);
            power *= -x * x / f64::from(n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn erf_matches_its_series() {
        for i in -400..=400 {
            let x = i as f32 / 100.0;
            assert!((f64::from(erf(x)) - exact_erf(f64::from(x))).abs() < 5e-7, "{x}: {}", erf(x));
        }
        assert_eq!((erf(0.0), erf(9.0)), (0.0, erf(4.0)));
        assert!((erf(9.0) - 1.0).abs() < 2e-7);
        assert!(erf(f32::NAN).is_nan());
    }

    #[test]
    fn sums_include_lanes_and_remainder() {
        for len in [0, 1, 15, 16, 17, 100] {
            let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
            assert_eq!(sum_of(&values, |x| 2.0 * x), (0..len).sum::<i32>() as f32 * 2.0);
            assert_eq!(largest(&values), if len == 0 { f32::NEG_INFINITY } else { len as f32 - 1.0 });
        }
    }
}
