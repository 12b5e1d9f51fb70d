//! The best words of each row of logits, computed on the host for beam search.

use burn::tensor::Tensor;
use rayon::prelude::*;

use crate::cross_entropy::log_sum_exp;
use crate::host::input;

/// Returns for each row of `logits` [row, word] the `count` best words as (word, log-probability),
/// best first. Of equal values the smaller word comes first. NaN values are never included.
pub fn top_k_of_rows(logits: Tensor<2>, count: usize) -> Vec<Vec<(u32, f32)>> {
    let [_, words] = logits.dims();
    let all_rows = |values: &[f32]| values.par_chunks_exact(words.max(1)).map(|row| top_k(row, count)).collect();
    match input(&logits) {
        Some(input) => all_rows(input.values.get()),
        None => all_rows(&logits.into_data().convert::<f32>().try_to_vec().unwrap_or_default()),
    }
}

fn top_k(row: &[f32], count: usize) -> Vec<(u32, f32)> {
    // One fast pass tests whether a block has any candidate. Few blocks have.
    const BLOCK: usize = 64;
    let mut found: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    let mut threshold = f32::NEG_INFINITY;
    for (block, values) in row.chunks(BLOCK).enumerate() {
        if !values.iter().fold(false, |any, &x| any | (x > threshold)) {
            continue;
        }
        for (i, &x) in values.iter().enumerate() {
            if x > threshold {
                let at = found.partition_point(|&(_, better)| better >= x);
                found.insert(at, ((block * BLOCK + i) as u32, x));
                found.truncate(count);
                if found.len() == count {
                    threshold = found.last().map_or(f32::NEG_INFINITY, |&(_, worst)| worst);
                }
            }
        }
    }
    let normaliser = log_sum_exp(row);
    found.into_iter().map(|(word, x)| (word, x - normaliser)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetseq_random::Key;

    #[test]
    fn equals_a_full_sort() {
        for (seed, words) in [(0, 1), (1, 5), (2, 64), (3, 1000), (4, 8001)] {
            let key = Key::root(seed);
            // Few different values, so that there are many ties.
            let row: Vec<f32> = (0..words).map(|i| key.below(i, 50) as f32 / 8.0).collect();
            let mut sorted: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
            let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            for count in [1, 4, 11] {
                let found = top_k(&row, count);
                assert_eq!(found.len(), count.min(words as usize));
                for (&(word, score), &(expected, x)) in found.iter().zip(&sorted) {
                    assert_eq!(word, expected);
                    assert!((f64::from(score) - (f64::from(x) - total.ln())).abs() < 1e-5);
                }
            }
        }
    }

    #[test]
    fn nan_is_never_included() {
        let found = top_k(&[f32::NAN, 1.0, f32::NAN, 2.0], 3);
        assert_eq!(found.iter().map(|(word, _)| *word).collect::<Vec<_>>(), [3, 1]);
    }
}
