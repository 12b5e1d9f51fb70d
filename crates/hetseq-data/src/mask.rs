//! Masking for masked language modelling: which tokens of a sample to predict, and what the model
//! sees in their place.
//!
//! A pure function of (ids, key, settings). The key is derived from (seed, epoch, sample), so a
//! sample has the same mask on every machine and another one in the next epoch. Called when
//! [`pretrain`](crate::pretrain) builds a sample. Masks stored with the data do not go through this
//! module.
//!
//! As in BERT: 15 % of the tokens are chosen. Of these, 80 % become `[MASK]`, 10 % become another
//! token, and 10 % stay. Special tokens are never chosen and never used as replacements. `[UNK]`
//! counts as special: predicting it teaches nothing.

use hetseq_random::Key;
use serde::{Deserialize, Serialize};

use crate::tokenize::Vocabulary;

/// Masking settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Masking {
    /// The fraction of a sample's tokens to choose; at least one token, or one whole word, is
    /// chosen.
    pub probability: f64,
    /// The largest number of tokens to choose in one sample.
    pub max_predictions: Option<u32>,
    /// Choose whole words instead of single word pieces. If every word has more pieces than
    /// `max_predictions`, no word is chosen.
    pub whole_word: bool,
}

impl Default for Masking {
    fn default() -> Self {
        Masking { probability: 0.15, max_predictions: None, whole_word: false }
    }
}

impl Masking {
    /// The number of tokens to choose out of `tokens`. The fractional part is rounded up with that
    /// probability, so that the fraction is exact on average over many samples.
    fn budget(&self, tokens: usize, key: Key) -> usize {
        let wanted = (self.probability.clamp(0.0, 1.0) * tokens as f64 + f64::from(key.unit(0))) as usize;
        wanted.max(1).min(self.limit()).min(tokens)
    }

    fn limit(&self) -> usize {
        self.max_predictions.map_or(usize::MAX, |limit| limit as usize)
    }
}

/// A masked token: its position and its original id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Masked {
    pub position: u32,
    pub id: u32,
}

/// Masks `ids` in place. `masked` is overwritten with the chosen tokens, in order of position.
pub fn mask(ids: &mut [u32], key: Key, masking: &Masking, vocabulary: &Vocabulary, masked: &mut Vec<Masked>) {
    masked.clear();
    // First all candidates; then reduced to the chosen ones.
    let candidate = |(position, &id): (usize, &u32)| Masked { position: position as u32, id };
    masked.extend(ids.iter().enumerate().filter(|&(_, &id)| !vocabulary.is_special(id)).map(candidate));
    let budget = masking.budget(masked.len(), key.name("budget"));
    let choice = key.name("choice");
    if masking.whole_word {
        choose_words(masked, budget, masking.limit(), choice, vocabulary);
    } else {
        choose_tokens(masked, budget, choice);
    }
    masked.sort_unstable();

    let (fate, other) = (key.name("fate"), key.name("other"));
    for Masked { position, .. } in masked.iter() {
        let id = &mut ids[*position as usize];
        match fate.unit(*position) {
            x if x < 0.8 => *id = vocabulary.special.mask,
            x if x < 0.9 => {
                let ordinary = vocabulary.ordinary_tokens() as u64;
                *id = vocabulary.ordinary(other.below(u64::from(*position), ordinary) as u32);
            }
            _ => {}
        }
    }
}

/// Keeps the first `budget` candidates of a partial shuffle.
fn choose_tokens(candidates: &mut Vec<Masked>, budget: usize, key: Key) {
    let count = candidates.len();
    for at in 0..budget.min(count) {
        candidates.swap(at, at + key.below(at as u64, (count - at) as u64) as usize);
    }
    candidates.truncate(budget);
}

/// Keeps whole words in shuffled order, skipping words that exceed the remaining budget. If the
/// budget is too small for any word, keeps the first one within `limit`: a sample without a masked
/// token teaches nothing.
fn choose_words(candidates: &mut Vec<Masked>, budget: usize, limit: usize, key: Key, vocabulary: &Vocabulary) {
    let mut words: Vec<std::ops::Range<usize>> = Vec::with_capacity(candidates.len());
    for (at, token) in candidates.iter().enumerate() {
        let follows = at > 0 && candidates[at - 1].position + 1 == token.position;
        match words.last_mut() {
            Some(word) if follows && vocabulary.continues_word(token.id) => word.end = at + 1,
            _ => words.push(at..at + 1),
        }
    }
    key.shuffle(&mut words);
    let mut chosen = Vec::with_capacity(budget);
    for word in &words {
        if chosen.len() + word.len() <= budget {
            chosen.extend_from_slice(&candidates[word.clone()]);
        }
    }
    if chosen.is_empty()
        && let Some(word) = words.into_iter().find(|word| word.len() <= limit)
    {
        chosen.extend_from_slice(&candidates[word]);
    }
    *candidates = chosen;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::SpecialTokens;

    /// 1,000 ids: the special tokens first; every third of the others continues a word.
    fn vocabulary() -> Vocabulary {
        let special = SpecialTokens { pad: 0, unk: 1, cls: 2, sep: 3, mask: 4 };
        Vocabulary::new(1000, special, [], (5..1000).filter(|id| id % 3 == 0))
    }

    /// A typical sample: [CLS] 60 tokens [SEP] 60 tokens [SEP], with one unknown token.
    fn sample(seed: u64) -> Vec<u32> {
        let token = |i: u64| 5 + Key::root(seed).below(i, 995) as u32;
        let mut ids = vec![2];
        ids.extend((0..60).map(token));
        ids.push(3);
        ids.extend((60..120).map(token));
        ids.push(3);
        ids[7] = 1;
        ids
    }

    /// The length of the longest word, in tokens.
    fn longest_word(ids: &[u32]) -> usize {
        let vocabulary = vocabulary();
        ids.chunk_by(|_, &next| vocabulary.continues_word(next)).map(<[u32]>::len).max().unwrap_or(0)
    }

    fn masked(ids: &[u32], key: Key, masking: &Masking) -> (Vec<u32>, Vec<Masked>) {
        let (mut ids, mut chosen) = (ids.to_vec(), Vec::new());
        mask(&mut ids, key, masking, &vocabulary(), &mut chosen);
        (ids, chosen)
    }

    #[test]
    fn fractions_match_the_settings_over_a_hundred_thousand_tokens() {
        for masking in [Masking::default(), Masking { whole_word: true, ..Masking::default() }] {
            let (mut tokens, mut chosen, mut hidden, mut kept) = (0.0, 0.0, 0.0, 0.0);
            for seed in 0..900 {
                let original = sample(seed);
                let (ids, masks) = masked(&original, Key::root(1).index(seed), &masking);
                tokens += original.iter().filter(|&&id| id > 4).count() as f64;
                chosen += masks.len() as f64;
                for mask in masks {
                    let (before, after) = (original[mask.position as usize], ids[mask.position as usize]);
                    assert_eq!(before, mask.id);
                    assert!(before > 4, "a special token was chosen");
                    hidden += f64::from(after == 4);
                    kept += f64::from(after == before);
                }
            }
            assert!(tokens > 100_000.0);
            // The share of n independent draws with probability p is farther than
            // 5 sqrt(p (1 - p) / n) from p only once in two million. Choosing without replacement
            // and random rounding only make it narrower.
            let near = |share: f64, p: f64, n: f64| (share - p).abs() < 5.0 * (p * (1.0 - p) / n).sqrt();
            let share = chosen / tokens;
            if masking.whole_word {
                // Words that no longer fit are skipped: each sample lacks less than its longest
                // word.
                let longest = (0..900).map(|seed| longest_word(&sample(seed)) as f64).sum::<f64>();
                assert!(share < 0.15 && chosen > 0.15 * tokens - longest, "{masking:?}: chosen {share}");
            } else {
                assert!(near(share, 0.15, tokens), "{masking:?}: chosen {share}");
            }
            assert!(near(hidden / chosen, 0.8, chosen), "{masking:?}: hidden {}", hidden / chosen);
            // One in 995 of the replaced tokens is replaced by itself.
            assert!(near(kept / chosen, 0.1001, chosen), "{masking:?}: kept {}", kept / chosen);
        }
    }

    #[test]
    fn every_position_is_chosen_equally_often() {
        let mut counts = [0u32; 123];
        let original = sample(1);
        for i in 0..20_000 {
            masked(&original, Key::root(3).index(i), &Masking::default())
                .1
                .iter()
                .for_each(|m| counts[m.position as usize] += 1);
        }
        for (position, &count) in counts.iter().enumerate() {
            let expected = if original[position] > 4 { 3000.0 } else { 0.0 };
            // Five standard deviations of sqrt(20,000 * 0.15 * 0.85) = 50.5.
            assert!((f64::from(count) - expected).abs() < 253.0, "position {position} was chosen {count} times");
        }
    }

    #[test]
    fn replacements_are_uniform_over_the_ordinary_tokens() {
        let mut counts = vec![0u32; 1000];
        for i in 0..20_000 {
            let original = sample(i);
            let (ids, masks) = masked(&original, Key::root(4).index(i), &Masking::default());
            for mask in masks {
                let after = ids[mask.position as usize];
                if after != 4 && after != mask.id {
                    counts[after as usize] += 1;
                }
            }
        }
        assert_eq!(counts[..5], [0; 5]);
        let expected = f64::from(counts.iter().sum::<u32>()) / 995.0;
        let chi: f64 = counts[5..].iter().map(|&c| (f64::from(c) - expected).powi(2) / expected).sum();
        // Chi-squared with 994 degrees of freedom: mean 994, standard deviation 44.6.
        assert!((994.0 - 223.0..994.0 + 223.0).contains(&chi), "chi-squared {chi}");
    }

    #[test]
    fn whole_words_are_never_split() {
        let (masking, vocabulary) = (Masking { whole_word: true, ..Masking::default() }, vocabulary());
        for seed in 0..200 {
            let original = sample(seed);
            let (_, masks) = masked(&original, Key::root(5).index(seed), &masking);
            let is_chosen = |at: usize| masks.iter().any(|m| m.position as usize == at);
            for at in 1..original.len() {
                let same_word = vocabulary.continues_word(original[at]) && original[at - 1] > 4;
                assert!(!same_word || is_chosen(at) == is_chosen(at - 1), "a word was split at {at}");
            }
        }
    }

    #[test]
    fn the_mask_depends_on_the_key_only() {
        let original = sample(1);
        let first = masked(&original, Key::root(9), &Masking::default());
        assert_eq!(first, masked(&original, Key::root(9), &Masking::default()));
        assert_ne!(first, masked(&original, Key::root(10), &Masking::default()));
        assert!(first.1.is_sorted());
    }

    #[test]
    fn limits_hold_and_at_least_one_token_is_chosen() {
        let few = Masking { max_predictions: Some(3), ..Masking::default() };
        assert_eq!(masked(&sample(1), Key::root(1), &few).1.len(), 3);
        for i in 0..50 {
            assert_eq!(masked(&[2, 9, 3], Key::root(i), &Masking::default()).1.len(), 1);
        }
        assert_eq!(masked(&[2, 3, 1, 4], Key::root(1), &Masking::default()).1, []);
        assert_eq!(masked(&[], Key::root(1), &Masking { whole_word: true, ..few }).1, []);
        assert_eq!(masked(&[2, 9, 3], Key::root(1), &Masking { max_predictions: Some(0), ..few }).1, []);
    }

    #[test]
    fn a_sample_with_only_long_words_still_has_a_masked_word() {
        // Words of three and two pieces, and a budget of one.
        let (ids, whole) = ([2, 7, 9, 12, 3, 8, 15, 3], Masking { whole_word: true, ..Masking::default() });
        let positions = |i, masking: &Masking| {
            masked(&ids, Key::root(i), masking).1.iter().map(|m| m.position).collect::<Vec<u32>>()
        };
        let first: Vec<Vec<u32>> = (0..50).map(|i| positions(i, &whole)).collect();
        assert!(first.iter().all(|chosen| *chosen == [1, 2, 3] || *chosen == [5, 6]), "{first:?}");
        assert!(first.contains(&vec![1, 2, 3]) && first.contains(&vec![5, 6]));
        for i in 0..50 {
            assert_eq!(
                positions(i, &Masking { max_predictions: Some(2), ..whole }),
                [5, 6],
                "the only word within the limit"
            );
            assert!(positions(i, &Masking { max_predictions: Some(1), ..whole }).is_empty(), "a word is never split");
        }
    }
}
