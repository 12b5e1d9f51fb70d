//! Differences between what a device and one CPU core computed, and the tolerances for them. Pure.

use std::ops::Range;

use hetseq_train::Dtype;
use serde::{Deserialize, Serialize};

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CheckStatus {
    Ok,
    /// Outside the tolerance, but near enough that it may be rounding, or not the same bits again.
    Differs,
    Failed,
}

impl CheckStatus {
    pub(super) fn word(self) -> &'static str {
        match self {
            CheckStatus::Ok => "ok",
            CheckStatus::Differs => "differs",
            CheckStatus::Failed => "failed",
        }
    }
}

/// Bounds on a relative difference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tolerance {
    /// The largest difference that counts as rounding.
    pub(super) expected: f64,
    /// A larger one is an error, not rounding.
    pub(super) largest: f64,
}

impl Tolerance {
    /// For a single operation.
    pub(super) fn of_operation(precision: Dtype, has_long_sums: bool) -> Self {
        match precision {
            Dtype::F32 if has_long_sums => Tolerance { expected: 1e-3, largest: 1e-2 },
            Dtype::F32 => Tolerance { expected: 1e-5, largest: 1e-3 },
            Dtype::F16 => Tolerance { expected: 5e-3, largest: 5e-2 },
            Dtype::Bf16 => Tolerance { expected: 3e-2, largest: 0.2 },
        }
    }

    /// For the gradients of a model.
    pub(super) fn of_gradients(precision: Dtype) -> Self {
        match precision {
            Dtype::F32 => Tolerance { expected: 1e-4, largest: 1e-2 },
            Dtype::F16 => Tolerance { expected: 3e-2, largest: 0.2 },
            Dtype::Bf16 => Tolerance { expected: 0.15, largest: 0.6 },
        }
    }

    /// For the losses of a short training.
    pub(super) fn of_losses(precision: Dtype, has_kinks: bool) -> Self {
        match precision {
            Dtype::F32 if has_kinks => Tolerance { expected: 1e-2, largest: 0.1 },
            Dtype::F32 => Tolerance { expected: 1e-4, largest: 1e-2 },
            Dtype::F16 => Tolerance { expected: 2e-2, largest: 0.1 },
            Dtype::Bf16 => Tolerance { expected: 5e-2, largest: 0.2 },
        }
    }

    pub(super) fn judge(self, difference: f64) -> CheckStatus {
        match difference {
            d if d <= self.expected => CheckStatus::Ok,
            d if d <= self.largest => CheckStatus::Differs,
            _ => CheckStatus::Failed,
        }
    }
}

/// The relative difference: the norm of the difference over that of what is expected. Infinite if
/// the lengths differ or a value is not finite.
pub(super) fn difference(found: &[f32], expected: &[f32]) -> f64 {
    relative(found, expected, 0.0)
}

/// As [`difference`], with a lower bound on the norm of what is expected.
fn relative(found: &[f32], expected: &[f32], least_norm: f64) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let square = |x: f64| x * x;
    let error: f64 = found.iter().zip(expected).map(|(&f, &e)| square(f64::from(f) - f64::from(e))).sum();
    if error == 0.0 {
        return 0.0;
    }
    let ratio = error.sqrt() / norm(expected).max(least_norm);
    if ratio.is_nan() { f64::INFINITY } else { ratio }
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
}

/// A parameter whose gradient must be at least this part of the whole to count by itself: some are
/// zero except for rounding, such as those of the biases of attention's keys.
const LEAST_PART: f64 = 1e-3;

/// The largest relative difference of the gradient of one parameter, and its index in `ranges`.
pub(super) fn worst_gradient(found: &[f32], expected: &[f32], ranges: &[Range<usize>]) -> (f64, usize) {
    if found.len() != expected.len() {
        return (f64::INFINITY, 0);
    }
    let least = LEAST_PART * norm(expected);
    let of = |range: &Range<usize>| match (found.get(range.clone()), expected.get(range.clone())) {
        (Some(found), Some(expected)) => relative(found, expected, least),
        _ => f64::INFINITY,
    };
    let all = ranges.iter().enumerate().map(|(at, range)| (of(range), at));
    all.fold((0.0, 0), |worst, next| if next.0 > worst.0 { next } else { worst })
}

/// The largest relative difference of two loss curves.
pub(super) fn worst_loss(found: &[f64], expected: &[f64]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let of = |(found, expected): (&f64, &f64)| {
        let difference = (found / expected - 1.0).abs();
        if difference.is_nan() { f64::INFINITY } else { difference }
    };
    found.iter().zip(expected).map(of).fold(0.0, f64::max)
}

/// Whether both have the same bits.
pub(super) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_relative_and_never_hide_a_bad_value() {
        assert_eq!(difference(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert!((difference(&[3.0, 4.5], &[3.0, 4.0]) - 0.1).abs() < 1e-9);
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(difference(&[3.0, bad], &[3.0, 4.0]), f64::INFINITY);
            assert_eq!(worst_loss(&[1.0, f64::from(bad)], &[1.0, 1.0]), f64::INFINITY);
        }
        assert_eq!(difference(&[1.0], &[1.0, 2.0]), f64::INFINITY);
        assert_eq!(difference(&[1.0], &[0.0]), f64::INFINITY);
        assert_eq!(worst_loss(&[1.0], &[]), f64::INFINITY);
    }

    #[test]
    fn the_worst_parameter_is_found_but_not_one_that_is_nearly_zero() {
        let expected = [10.0, 10.0, 1.0, 1.0, 1e-9];
        let found = [10.0, 10.0, 1.0, 1.5, 3e-9];
        let (worst, at) = worst_gradient(&found, &expected, &[0..2, 2..4, 4..5]);
        assert!(at == 1 && (worst - 0.5 / 2f64.sqrt()).abs() < 1e-6, "{worst} at {at}");
    }

    #[test]
    fn a_tolerance_has_three_outcomes() {
        let tolerance = Tolerance::of_operation(Dtype::F32, false);
        let judged = [1e-7, 1e-4, 1e-2, f64::INFINITY].map(|difference| tolerance.judge(difference));
        assert_eq!(judged, [CheckStatus::Ok, CheckStatus::Differs, CheckStatus::Failed, CheckStatus::Failed]);
        assert_eq!(tolerance.judge(f64::NAN), CheckStatus::Failed);
    }
}
