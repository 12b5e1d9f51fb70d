//! Losses from sums and counts. Pure.

use std::collections::BTreeMap;

use crate::task::Term;

/// The factor of each term's loss sum: `weight / global count`, or 0 for a term without counted
/// items.
pub(crate) fn scales(terms: &[Term], counts: &[u64]) -> Vec<f32> {
    let scale = |(term, &count): (&Term, &u64)| if count == 0 { 0.0 } else { (term.weight / count as f64) as f32 };
    terms.iter().zip(counts).map(scale).collect()
}

/// Loss per counted item of each term; 0 for a term without counted items.
pub(crate) fn mean_losses(sums: &[f64], counts: &[u64]) -> Vec<f64> {
    sums.iter().zip(counts).map(|(sum, &count)| if count == 0 { 0.0 } else { sum / count as f64 }).collect()
}

pub(crate) fn weighted(terms: &[Term], means: &[f64]) -> f64 {
    terms.iter().zip(means).map(|(term, mean)| term.weight * mean).sum()
}

pub(crate) fn named(terms: &[Term], means: &[f64]) -> BTreeMap<String, f64> {
    terms.iter().zip(means).map(|(term, mean)| (term.name.clone(), *mean)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_term_contributes_nothing() {
        let terms = [1.0, 0.5].map(|weight| Term { name: String::new(), weight });
        assert_eq!(scales(&terms, &[4, 0]), [0.25, 0.0]);
        assert_eq!(mean_losses(&[2.0, 3.0], &[4, 0]), [0.5, 0.0]);
    }
}
