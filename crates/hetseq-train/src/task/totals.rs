//! Sums and predictions of an evaluation, and the metrics that a task computes from them. Added up by
//! `trainer/evaluate.rs` over devices and ranks: metrics of sums are the same for every split.

use serde::{Deserialize, Serialize};

/// Sums of a whole evaluation over all ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Number of samples, including skipped ones.
    pub samples: u64,
    /// Sums of the batches' counts, per term.
    pub counts: Vec<u64>,
    /// Sums of the losses, per term.
    pub losses: Vec<f64>,
    /// Sums of the scores.
    pub scores: Vec<f64>,
    /// Samples and their values, in no particular order, if the task returns any
    /// ([`StepOutput::predictions`](super::StepOutput)).
    pub predictions: Vec<(u32, f32)>,
}

impl Totals {
    /// The mean loss of a term; 0 if nothing was counted.
    pub fn mean_loss(&self, term: usize) -> f64 {
        self.per_count(&self.losses, term, term)
    }

    /// A score divided by the count of a term; 0 if nothing was counted.
    pub fn mean_score(&self, score: usize, term: usize) -> f64 {
        self.per_count(&self.scores, score, term)
    }

    /// Adds the sums of another part of the evaluation.
    pub(crate) fn merge(&mut self, part: &Totals) {
        self.samples += part.samples;
        add(&mut self.counts, &part.counts);
        add(&mut self.losses, &part.losses);
        add(&mut self.scores, &part.scores);
        self.predictions.extend_from_slice(&part.predictions);
    }

    /// Whether the counts can be added without overflow: a peer may send any number.
    pub(crate) fn can_merge(&self, part: &Totals) -> bool {
        let mut counts = self.counts.iter().zip(&part.counts).chain([(&self.samples, &part.samples)]);
        counts.all(|(sum, more)| sum.checked_add(*more).is_some())
    }

    fn per_count(&self, sums: &[f64], at: usize, term: usize) -> f64 {
        let count = self.counts.get(term).copied().unwrap_or(0).max(1) as f64;
        sums.get(at).copied().unwrap_or(0.0) / count
    }
}

/// Element-wise `sums += more`; grows `sums` where `more` is longer.
pub(crate) fn add<N: Copy + Default + std::ops::AddAssign>(sums: &mut Vec<N>, more: &[N]) {
    sums.resize(sums.len().max(more.len()), N::default());
    for (sum, &value) in sums.iter_mut().zip(more) {
        *sum += value;
    }
}

/// A metric of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    pub name: String,
    pub value: f64,
    pub better: Better,
}

/// Which values of a metric are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Lower,
    Higher,
}

impl Metric {
    /// A metric of which lower values are better.
    pub fn lower(name: impl Into<String>, value: f64) -> Self {
        Metric { name: name.into(), value, better: Better::Lower }
    }

    /// A metric of which higher values are better.
    pub fn higher(name: impl Into<String>, value: f64) -> Self {
        Metric { name: name.into(), value, better: Better::Higher }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_would_overflow_are_detected() {
        let totals = |samples, count| Totals { samples, counts: vec![count], ..Totals::default() };
        assert!(totals(1, 2).can_merge(&totals(3, u64::MAX - 2)));
        assert!(!totals(1, 2).can_merge(&totals(3, u64::MAX - 1)));
        assert!(!totals(1, 2).can_merge(&totals(u64::MAX, 1)));
        assert!(Totals::default().can_merge(&totals(u64::MAX, u64::MAX)));
    }

    #[test]
    fn means_of_nothing_are_zero() {
        let totals =
            Totals { samples: 2, counts: vec![4, 0], losses: vec![2.0, 9.0], scores: vec![3.0], ..Totals::default() };
        assert_eq!([totals.mean_loss(0), totals.mean_loss(2), totals.mean_score(0, 0)], [0.5, 0.0, 0.75]);
        assert_eq!(Totals::default().mean_score(1, 1), 0.0);
    }
}
