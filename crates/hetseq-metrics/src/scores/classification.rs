//! Accuracy, precision, recall, F1 and Matthews correlation of predicted classes, equal to
//! scikit-learn's. Based on sums, so that ranks can add them up exactly. For tasks that classify
//! texts, pairs or tokens, in validation.
//!
//! Three counts per class are enough for all of them, so this is not a full confusion matrix: it
//! does not say which classes are mistaken for which.

use crate::scores::error::{ScoreError, check_counts, check_lengths};
use crate::scores::f1::{COUNTS, F1Averages, F1Score, LabelCounts};

/// Counts of each class; [`ClassSums::add`] adds those of other items.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassSums {
    classes: Vec<LabelCounts>,
}

impl ClassSums {
    /// The maximum number of classes, so that a wrong number in a config cannot take all memory.
    pub const MAX_CLASSES: usize = 65_536;

    /// No items yet.
    pub fn new(classes: usize) -> Result<Self, ScoreError> {
        if classes > ClassSums::MAX_CLASSES {
            return Err(ScoreError::TooManyClasses { classes, limit: ClassSums::MAX_CLASSES });
        }
        Ok(ClassSums { classes: vec![LabelCounts::default(); classes] })
    }

    /// Counts items with their gold and predicted classes, which are numbered from 0.
    pub fn of(classes: usize, gold: &[usize], predicted: &[usize]) -> Result<Self, ScoreError> {
        check_lengths(gold.len(), predicted.len())?;
        let mut sums = ClassSums::new(classes)?;
        for (&gold, &predicted) in gold.iter().zip(predicted) {
            let correct = u64::from(gold == predicted);
            sums.class_mut(gold)?.add(&LabelCounts { true_positives: correct, predicted: 0, gold: 1 });
            sums.class_mut(predicted)?.add(&LabelCounts { predicted: 1, ..LabelCounts::default() });
        }
        Ok(sums)
    }

    fn class_mut(&mut self, class: usize) -> Result<&mut LabelCounts, ScoreError> {
        let classes = self.classes.len();
        self.classes.get_mut(class).ok_or(ScoreError::ClassOutOfRange { class, classes })
    }

    /// Fails without a change if the number of classes is another one.
    pub fn add(&mut self, other: &Self) -> Result<(), ScoreError> {
        let (found, expected) = (other.classes.len(), self.classes.len());
        if found != expected {
            return Err(ScoreError::UnequalClasses { found, expected });
        }
        self.classes.iter_mut().zip(&other.classes).for_each(|(own, others)| own.add(others));
        Ok(())
    }

    /// The counts of each class, also of classes that do not occur.
    pub fn classes(&self) -> &[LabelCounts] {
        &self.classes
    }

    /// The counts as numbers that can be added up: true positives, predicted and gold of each class.
    pub fn to_counts(&self) -> Vec<u64> {
        self.classes.iter().flat_map(LabelCounts::to_counts).collect()
    }

    /// Restores the sums from three counts per class.
    pub fn from_counts(classes: usize, counts: &[u64]) -> Result<Self, ScoreError> {
        let mut sums = ClassSums::new(classes)?;
        check_counts(counts.len(), classes.saturating_mul(COUNTS))?;
        let (rows, _) = counts.as_chunks::<COUNTS>();
        sums.classes.iter_mut().zip(rows).for_each(|(class, &row)| *class = LabelCounts::from_counts(row));
        Ok(sums)
    }

    /// The counts of all classes together.
    fn total(&self) -> LabelCounts {
        self.classes.iter().fold(LabelCounts::default(), |mut total, class| {
            total.add(class);
            total
        })
    }

    /// The share of items whose prediction is right; 0 without items. Equal to the micro averages.
    pub fn accuracy(&self) -> f64 {
        self.total().score().recall
    }

    /// Precision, recall and F1 of one class: scikit-learn's `average="binary"` if there are two.
    /// `None` if there is no such class.
    pub fn score(&self, positive_class: usize) -> Option<F1Score> {
        self.classes.get(positive_class).map(LabelCounts::score)
    }

    /// Averages over the classes that occur in the gold labels or the predictions, as by default in
    /// scikit-learn.
    pub fn averages(&self) -> F1Averages {
        F1Averages::new(&self.classes)
    }

    /// Matthews correlation of any number of classes (Gorodkin 2004, R_K), from -1 to 1; 0 if all
    /// items have one class or all predictions are one class.
    pub fn matthews(&self) -> f64 {
        // Integers, because the differences are small compared to the products. Saturating, because
        // counts may come from another rank.
        let total = self.total();
        let product = |a: u64, b: u64| i128::try_from(u128::from(a) * u128::from(b)).unwrap_or(i128::MAX);
        let dot = |pair: fn(&LabelCounts) -> (u64, u64)| {
            let products = self.classes.iter().map(pair).map(|(a, b)| product(a, b));
            products.fold(0i128, i128::saturating_add)
        };
        let both = product(total.true_positives, total.gold) - dot(|class| (class.gold, class.predicted));
        let of_gold = product(total.gold, total.gold) - dot(|class| (class.gold, class.gold));
        let of_predicted = product(total.gold, total.gold) - dot(|class| (class.predicted, class.predicted));
        if of_gold <= 0 || of_predicted <= 0 {
            return 0.0;
        }
        both as f64 / ((of_gold as f64).sqrt() * (of_predicted as f64).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_classes_by_hand() {
        // 3 true positives, 1 false positive, 2 false negatives, 4 true negatives.
        let (gold, predicted) = ([1, 1, 1, 0, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
        let sums = ClassSums::of(2, &gold, &predicted).unwrap();
        assert_eq!(sums.to_counts(), [4, 6, 5, 3, 4, 5]);
        assert_eq!(sums.accuracy(), 0.7);
        let score = sums.score(1).unwrap();
        assert_eq!([score.precision, score.recall, score.f1], [0.75, 0.6, 6.0 / 9.0]);
        assert_eq!(score.support, 5);
        let expected = (3.0 * 4.0 - 1.0 * 2.0) / (4.0f64 * 5.0 * 5.0 * 6.0).sqrt();
        assert!((sums.matthews() - expected).abs() < 1e-15);
        assert_eq!(sums.score(2), None);
    }

    #[test]
    fn wrong_input_is_an_error() {
        let error = |gold: &[usize], predicted: &[usize]| ClassSums::of(3, gold, predicted).unwrap_err();
        assert_eq!(error(&[0, 1], &[0]), ScoreError::UnequalLengths { gold: 2, predicted: 1 });
        assert_eq!(error(&[0, 3], &[0, 1]), ScoreError::ClassOutOfRange { class: 3, classes: 3 });
        assert_eq!(error(&[0, 1], &[0, usize::MAX]), ScoreError::ClassOutOfRange { class: usize::MAX, classes: 3 });
        let too_many = ClassSums::MAX_CLASSES + 1;
        let limit = ClassSums::MAX_CLASSES;
        assert_eq!(ClassSums::new(too_many), Err(ScoreError::TooManyClasses { classes: too_many, limit }));
        assert!(ClassSums::from_counts(usize::MAX, &[]).is_err());
        assert!(ClassSums::new(limit).is_ok());
        let wrong = ClassSums::from_counts(2, &[1; 5]);
        assert_eq!(wrong, Err(ScoreError::WrongNumberOfCounts { found: 5, expected: 6 }));
        let (mut two, three) = (ClassSums::new(2).unwrap(), ClassSums::new(3).unwrap());
        assert_eq!(two.add(&three), Err(ScoreError::UnequalClasses { found: 3, expected: 2 }));
    }

    #[test]
    fn without_items_or_variety_scores_are_zero() {
        for sums in [ClassSums::new(0).unwrap(), ClassSums::new(4).unwrap()] {
            assert_eq!((sums.accuracy(), sums.matthews()), (0.0, 0.0));
            assert_eq!(sums.averages(), F1Averages::default());
        }
        let same = ClassSums::of(2, &[1, 1], &[1, 1]).unwrap();
        assert_eq!((same.accuracy(), same.matthews()), (1.0, 0.0));
    }

    proptest! {
        #[test]
        fn parts_in_any_order_add_up_to_the_whole(
            items in prop::collection::vec((0usize..5, 0usize..5, 0usize..4), 0..60), reverse: bool,
        ) {
            let column = |column: fn(&(usize, usize, usize)) -> usize| items.iter().map(column).collect::<Vec<_>>();
            let whole = ClassSums::of(5, &column(|item| item.0), &column(|item| item.1)).unwrap();
            let mut parts = vec![ClassSums::new(5).unwrap(); 4];
            for &(gold, predicted, rank) in &items {
                parts[rank].add(&ClassSums::of(5, &[gold], &[predicted]).unwrap()).unwrap();
            }
            if reverse {
                parts.reverse();
            }
            let mut sum = ClassSums::new(5).unwrap();
            for part in &parts {
                sum.add(&ClassSums::from_counts(5, &part.to_counts()).unwrap()).unwrap();
            }
            prop_assert_eq!(&sum, &whole);
            prop_assert!((-1.0 - 1e-12..=1.0 + 1e-12).contains(&whole.matthews()));
            prop_assert_eq!(whole.accuracy(), whole.averages().micro_average.f1);
            let swapped = ClassSums::of(5, &column(|item| item.1), &column(|item| item.0)).unwrap();
            prop_assert_eq!(swapped.matthews(), whole.matthews());
            prop_assert_eq!(swapped.averages().macro_average.f1, whole.averages().macro_average.f1);
        }

        #[test]
        fn any_counts_have_scores(counts in any::<[u64; 6]>()) {
            let sums = ClassSums::from_counts(2, &counts).unwrap();
            prop_assert!(sums.matthews().is_finite() && sums.accuracy().is_finite());
        }
    }
}
