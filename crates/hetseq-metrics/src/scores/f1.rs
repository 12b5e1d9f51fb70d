//! Precision, recall and F1 of labels from counts, and their averages over labels. Used by
//! [`entities`](crate::scores::entities), [`linking`](crate::scores::linking) and
//! [`classification`](crate::scores::classification), which define what is counted.
//!
//! A ratio without a denominator is 0, the default of seqeval and `zero_division=0` of
//! scikit-learn.

use serde::Serialize;

/// Counts of one label.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LabelCounts {
    /// Items that have the label and were predicted to have it.
    pub true_positives: u64,
    /// Items that were predicted to have the label.
    pub predicted: u64,
    /// Items that have the label.
    pub gold: u64,
}

/// Precision, recall and F1 of a label, or their average over labels; all from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct F1Score {
    pub precision: f64,
    pub recall: f64,
    pub f1: f64,
    /// Gold items.
    pub support: u64,
}

/// Averages over the labels that occur in the gold labels or the predictions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct F1Averages {
    /// Of the sums of the counts: each item counts the same.
    pub micro_average: F1Score,
    /// Each label counts the same. 0 without labels, where seqeval has NaN.
    pub macro_average: F1Score,
    /// Each label counts by its gold items.
    pub weighted_average: F1Score,
}

/// How many numbers a label has in a flat list of counts.
pub(crate) const COUNTS: usize = 3;

impl LabelCounts {
    pub fn add(&mut self, other: &Self) {
        // Counts may come from another rank, so no values may cause an overflow.
        let (own, others) = (self.to_counts(), other.to_counts());
        *self = LabelCounts::from_counts(std::array::from_fn(|i| own[i].saturating_add(others[i])));
    }

    /// The counts as numbers that can be added up: true positives, predicted, gold.
    pub fn to_counts(&self) -> [u64; COUNTS] {
        [self.true_positives, self.predicted, self.gold]
    }

    pub fn from_counts([true_positives, predicted, gold]: [u64; COUNTS]) -> Self {
        LabelCounts { true_positives, predicted, gold }
    }

    /// Whether anything was counted. Averages ignore other labels.
    pub fn occurs(&self) -> bool {
        *self != LabelCounts::default()
    }

    pub fn score(&self) -> F1Score {
        let [correct, predicted, gold] = self.to_counts().map(|count| count as f64);
        let ratio = |part: f64, whole: f64| if whole == 0.0 { 0.0 } else { part / whole };
        F1Score {
            precision: ratio(correct, predicted),
            recall: ratio(correct, gold),
            f1: ratio(2.0 * correct, predicted + gold),
            support: self.gold,
        }
    }
}

impl F1Averages {
    pub fn new<'a>(labels: impl IntoIterator<Item = &'a LabelCounts>) -> Self {
        let mut sums = LabelCounts::default();
        let (mut plain, mut weighted, mut labels_seen, mut weight) = ([0.0; 3], [0.0; 3], 0.0, 0.0);
        for label in labels.into_iter().filter(|label| label.occurs()) {
            sums.add(label);
            let F1Score { precision, recall, f1, support } = label.score();
            labels_seen += 1.0;
            weight += support as f64;
            for (at, value) in [precision, recall, f1].into_iter().enumerate() {
                plain[at] += value;
                weighted[at] += value * support as f64;
            }
        }
        let mean = |values: [f64; 3], by: f64| {
            let [precision, recall, f1] = values.map(|value| if by == 0.0 { 0.0 } else { value / by });
            F1Score { precision, recall, f1, support: sums.gold }
        };
        F1Averages {
            micro_average: sums.score(),
            macro_average: mean(plain, labels_seen),
            weighted_average: mean(weighted, weight),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn swapping_gold_and_predicted_swaps_precision_and_recall() {
        let score = LabelCounts::from_counts([3, 4, 6]).score();
        let swapped = LabelCounts::from_counts([3, 6, 4]).score();
        assert_eq!([score.precision, score.recall, score.f1], [0.75, 0.5, 0.6]);
        assert_eq!([swapped.precision, swapped.recall, swapped.f1], [0.5, 0.75, 0.6]);
    }

    #[test]
    fn ratios_without_a_denominator_are_zero() {
        let nothing = F1Averages::new([]);
        assert_eq!(nothing, F1Averages::default());
        assert_eq!(F1Averages::new([&LabelCounts::default()]), nothing);
        let only_predicted = LabelCounts { predicted: 2, ..LabelCounts::default() };
        assert_eq!(F1Averages::new([&only_predicted]), nothing);
        // A label that does not occur at all does not lower the macro average.
        let right = LabelCounts::from_counts([2, 2, 2]);
        assert_eq!(F1Averages::new([&right, &LabelCounts::default()]).macro_average, right.score());
        assert_eq!(F1Averages::new([&right, &only_predicted]).macro_average.f1, 0.5);
    }

    proptest! {
        #[test]
        fn any_counts_have_averages(labels in prop::collection::vec(any::<[u64; 3]>(), 0..6)) {
            let labels: Vec<_> = labels.into_iter().map(LabelCounts::from_counts).collect();
            let averages = F1Averages::new(&labels);
            prop_assert!(averages.micro_average.f1.is_finite() && averages.weighted_average.f1.is_finite());
            prop_assert!(averages.macro_average.f1.is_finite());
        }
    }
}
