//! Pearson and Spearman correlation and the mean squared error of predicted numbers, equal to
//! SciPy's. For tasks that predict a number for a text or a pair of texts, in validation.
//!
//! [`CorrelationSums`] holds means and moments about them, which merge without cancellation.
//! Spearman correlation compares ranks among *all* pairs and has no sums: [`spearman`] needs the
//! pairs of all ranks.
//!
//! As in SciPy, the correlation of constant values is NaN, and so is that of non-finite ones. So is
//! that of fewer than two pairs, which is an error in SciPy's `pearsonr`.

use crate::scores::error::{ScoreError, check_lengths};

/// Moments of pairs of a gold and a predicted number; [`CorrelationSums::add`] adds those of other
/// pairs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CorrelationSums {
    pairs: u64,
    gold: Moments,
    predicted: Moments,
    /// The sum of the products of both differences from their means.
    products: f64,
    squared_errors: f64,
}

/// The mean, and the sum of the squared differences from it. That is exactly 0 if all values are
/// equal: updates by a difference of 0 do not round.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Moments {
    mean: f64,
    squares: f64,
}

impl CorrelationSums {
    pub fn of(gold: &[f64], predicted: &[f64]) -> Result<Self, ScoreError> {
        check_lengths(gold.len(), predicted.len())?;
        let mut sums = CorrelationSums::default();
        for (&gold, &predicted) in gold.iter().zip(predicted) {
            sums.add(&CorrelationSums::of_pair(gold, predicted));
        }
        Ok(sums)
    }

    /// One pair.
    pub fn of_pair(gold: f64, predicted: f64) -> Self {
        let at = |mean: f64| Moments { mean, squares: 0.0 };
        let squared_errors = (gold - predicted).powi(2);
        CorrelationSums { pairs: 1, gold: at(gold), predicted: at(predicted), products: 0.0, squared_errors }
    }

    /// Merges means and moments by the formulas of Chan, Golub and LeVeque (1979).
    pub fn add(&mut self, other: &Self) {
        if other.pairs == 0 {
            return;
        }
        if self.pairs == 0 {
            *self = *other;
            return;
        }
        let (own, others) = (self.pairs as f64, other.pairs as f64);
        let share = others / (own + others);
        let (gold, predicted) = (other.gold.mean - self.gold.mean, other.predicted.mean - self.predicted.mean);
        self.gold.merge(&other.gold, gold, own, share);
        self.predicted.merge(&other.predicted, predicted, own, share);
        self.products += other.products + gold * predicted * own * share;
        self.squared_errors += other.squared_errors;
        self.pairs = self.pairs.saturating_add(other.pairs);
    }

    /// The number of pairs.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// From -1 to 1, or NaN: see the module.
    pub fn pearson(&self) -> f64 {
        if self.gold.squares == 0.0 || self.predicted.squares == 0.0 {
            return f64::NAN;
        }
        // Rounding can exceed 1 slightly.
        (self.products / (self.gold.squares.sqrt() * self.predicted.squares.sqrt())).clamp(-1.0, 1.0)
    }

    /// NaN without pairs.
    pub fn mean_squared_error(&self) -> f64 {
        self.squared_errors / self.pairs as f64
    }
}

impl Moments {
    /// `difference` is that of the means, `own` the number of values, and `share` the other's part
    /// of all values.
    fn merge(&mut self, other: &Self, difference: f64, own: f64, share: f64) {
        self.mean += difference * share;
        self.squares += other.squares + difference * difference * own * share;
    }
}

/// Computes Spearman's rank correlation; equal values share the mean of their ranks. From -1 to 1,
/// or NaN: see the module. Infinite values have ranks like others.
pub fn spearman(gold: &[f64], predicted: &[f64]) -> Result<f64, ScoreError> {
    check_lengths(gold.len(), predicted.len())?;
    if gold.iter().chain(predicted).any(|value| value.is_nan()) {
        return Ok(f64::NAN);
    }
    Ok(CorrelationSums::of(&ranks(gold), &ranks(predicted))?.pearson())
}

/// Returns the ranks of values, from 1. No value may be NaN.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|&a, &b| values[a].total_cmp(&values[b]));
    let (mut ranks, mut smaller) = (vec![0.0; values.len()], 0);
    // `==`, because 0.0 and -0.0 are equal.
    for ties in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let rank = smaller as f64 + (ties.len() as f64 + 1.0) / 2.0;
        ties.iter().for_each(|&at| ranks[at] = rank);
        smaller += ties.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ties_share_the_mean_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0, 3.0]), [4.0, 1.0, 4.0, 2.0, 4.0]);
        assert_eq!(ranks(&[0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY]), [2.5, 2.5, 4.0, 1.0]);
        let infinite = spearman(&[1.0, 2.0, 3.0], &[-1.0, f64::INFINITY, 7.0]).unwrap();
        assert!((infinite - 0.5).abs() < 1e-15, "{infinite}");
    }

    #[test]
    fn values_without_a_correlation_are_nan() {
        let nan = |gold: &[f64], predicted: &[f64]| {
            let sums = CorrelationSums::of(gold, predicted).unwrap();
            assert!(sums.pearson().is_nan(), "{gold:?} {predicted:?}");
        };
        nan(&[], &[]);
        nan(&[1.0], &[2.0]);
        nan(&[0.1; 7], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        nan(&[1.0, 2.0, 4.0], &[1e9 + 0.1; 3]);
        nan(&[1.0, f64::INFINITY, 2.0], &[1.0, 2.0, 3.0]);
        nan(&[1.0, 3.0, 2.0], &[1.0, f64::NAN, 3.0]);
        assert!(spearman(&[1.0, f64::NAN], &[1.0, 2.0]).unwrap().is_nan());
        assert!(spearman(&[1.0, 1.0], &[1.0, 2.0]).unwrap().is_nan());
        assert!(CorrelationSums::default().mean_squared_error().is_nan());
        assert_eq!(CorrelationSums::of(&[1.0, 2.0], &[2.0, 4.0]).unwrap().mean_squared_error(), 2.5);
    }

    #[test]
    fn different_lengths_are_an_error() {
        let error = ScoreError::UnequalLengths { gold: 1, predicted: 0 };
        assert_eq!(CorrelationSums::of(&[1.0], &[]), Err(error.clone()));
        assert_eq!(spearman(&[1.0], &[]), Err(error));
    }

    /// Digits that plain sums of squares would lose.
    #[test]
    fn far_from_zero_no_digits_are_lost() {
        let near: Vec<f64> = (0..100u32).map(|i| f64::from(i * 37 % 101)).collect();
        let other: Vec<f64> = near.iter().map(|value| value * value / 64.0).collect();
        let far: Vec<f64> = near.iter().map(|value| value + f64::from(1 << 30)).collect();
        let expected = CorrelationSums::of(&near, &other).unwrap().pearson();
        let found = CorrelationSums::of(&far, &other).unwrap().pearson();
        assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
    }

    proptest! {
        #[test]
        fn parts_in_any_order_add_up_to_the_whole(
            pairs in prop::collection::vec((-5.0f64..5.0, -5.0f64..5.0, 0usize..4), 3..60), reverse: bool,
        ) {
            let column = |column: fn(&(f64, f64, usize)) -> f64| pairs.iter().map(column).collect::<Vec<_>>();
            let (gold, predicted) = (column(|pair| pair.0), column(|pair| pair.1));
            let whole = CorrelationSums::of(&gold, &predicted).unwrap();
            let mut parts = [CorrelationSums::default(); 4];
            for &(gold, predicted, rank) in &pairs {
                parts[rank].add(&CorrelationSums::of_pair(gold, predicted));
            }
            if reverse {
                parts.reverse();
            }
            let mut merged = CorrelationSums::default();
            for part in &parts {
                merged.add(part);
            }
            prop_assert_eq!(merged.pairs(), pairs.len() as u64);
            prop_assert!((merged.pearson() - whole.pearson()).abs() < 1e-9);
            prop_assert!((merged.mean_squared_error() / whole.mean_squared_error() - 1.0).abs() < 1e-12);
        }

        #[test]
        fn no_numbers_panic(gold in any::<[f64; 4]>(), predicted in any::<[f64; 4]>()) {
            let found = CorrelationSums::of(&gold, &predicted).unwrap().pearson();
            prop_assert!(found.is_nan() || (-1.0..=1.0).contains(&found));
            let found = spearman(&gold, &predicted).unwrap();
            prop_assert!(found.is_nan() || (-1.0..=1.0).contains(&found));
        }
    }
}
