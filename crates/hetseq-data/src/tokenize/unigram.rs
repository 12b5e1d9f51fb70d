//! Training of unigram models: starts with many pieces and removes the least useful ones. Called by
//! [`prep`](crate::prep).
//!
//! The probability of a segmentation of a word is the product of its pieces' probabilities.
//! Expectation maximisation (Kudo 2018, "Subword Regularization") estimates those probabilities,
//! and between its rounds a quarter of the pieces is removed. The trainer of the `tokenizers` crate
//! does the same, but its sums and its numbering differ from run to run and with the number of
//! cores. Here words are divided into a fixed number of parts, whose sums are added in order, and
//! only + - * / and one portable logarithm are used: the same words give the same bits on every
//! machine.
//!
//! Probabilities are multiplied, not added as logarithms. To keep products of up to 64 characters
//! in range, a piece is scaled by [`SCALE`] per character. All segmentations of a word have the
//! same number of characters, so the scale cancels out.

use std::collections::HashMap;

use rayon::prelude::*;

use super::TrainOptions;
use super::pre_tokens::MAX_PRE_TOKEN_CHARS;
use super::training::{alphabet, known_spans};

/// Maximum characters of a piece.
const MAX_PIECE_CHARS: usize = 16;
const SCALE: f64 = 1e4;
/// Minimum probability of a single character, which is always kept. `(MIN_PROBABILITY * SCALE)^64`
/// does not underflow.
const MIN_PROBABILITY: f64 = 1e-8;
/// Number of words used, the most frequent first. The rest would only make training slow.
const MAX_WORDS: usize = 1 << 19;
/// Number of substrings counted as possible pieces, starting with the most frequent word. About 200
/// MB.
const MAX_SUBSTRINGS: usize = 1 << 22;
/// Initial pieces per requested piece.
const SEEDS_PER_PIECE: usize = 20;
const MAX_SEEDS: usize = 500_000;
/// Rounds of expectation maximisation between two removals.
const ROUNDS: usize = 2;
/// Number of parts that words are summed in, independent of the number of cores.
const PARTS: usize = 16;
/// Subtracted from every expected count, which removes rare pieces. Approximates the digamma
/// function of the Bayesian form.
const DISCOUNT: f64 = 0.5;

type Word = (Vec<char>, u64);

/// Trains a unigram model. Returns all characters and the best other pieces with their log
/// probabilities, the most probable first.
///
/// `words` and `options` are as in [`train_word_piece`](super::train_word_piece).
pub fn train_unigram(words: &[(Box<str>, u64)], options: &TrainOptions) -> Vec<(String, f64)> {
    let alphabet = alphabet(words, options.max_alphabet);
    let words = known_words(words, &alphabet);
    let seeds = (SEEDS_PER_PIECE * options.size).min(MAX_SEEDS);
    let mut model = Model::new(&alphabet, seed_pieces(&words, seeds, options.min_count));
    let enough = options.size + options.size / 10;
    loop {
        let mut expected = Vec::new();
        for _ in 0..ROUNDS {
            expected = model.expected_counts(&words);
            model.maximise(&mut expected);
        }
        if model.pieces.len() <= enough.max(alphabet.len()) {
            return model.best(options.size);
        }
        let max_pieces = (model.pieces.len() / 4 * 3).max(enough);
        model.prune(&expected, max_pieces);
    }
}

/// The parts of words in known characters, the most frequent first.
fn known_words(words: &[(Box<str>, u64)], alphabet: &[char]) -> Vec<Word> {
    let mut known: Vec<Word> = Vec::new();
    for (word, count) in words {
        for span in known_spans(word, |c| alphabet.binary_search(&c).is_ok()) {
            let span: Vec<char> = span.chars().collect();
            known.extend(span.chunks(MAX_PRE_TOKEN_CHARS).map(|part| (part.to_vec(), *count)));
        }
    }
    known.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    known.truncate(MAX_WORDS);
    known
}

/// The initial pieces: frequent substrings of two or more characters, with their weights.
fn seed_pieces(words: &[Word], max: usize, min_count: u64) -> Vec<(Vec<char>, f64)> {
    let mut counts: HashMap<&[char], u64> = HashMap::new();
    let mut counted = 0;
    for (word, count) in words {
        for start in 0..word.len() {
            for end in start + 2..=word.len().min(start + MAX_PIECE_CHARS) {
                *counts.entry(&word[start..end]).or_default() += count;
                counted += 1;
            }
        }
        if counted >= MAX_SUBSTRINGS {
            break;
        }
    }
    let mut seeds: Vec<(&[char], u64)> = counts.into_iter().filter(|&(_, count)| count >= min_count.max(1)).collect();
    let weight = |&(piece, count): &(&[char], u64)| count * piece.len() as u64;
    seeds.sort_unstable_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.0.cmp(b.0)));
    seeds.truncate(max);
    seeds.iter().map(|seed| (seed.0.to_vec(), weight(seed) as f64)).collect()
}

struct Piece {
    chars: Vec<char>,
    probability: f64,
}

struct Model {
    /// Single characters come first.
    pieces: Vec<Piece>,
    single_chars: usize,
    trie: Trie,
}

impl Model {
    fn new(alphabet: &[char], seeds: Vec<(Vec<char>, f64)>) -> Self {
        let total: f64 = seeds.iter().map(|(_, weight)| weight).sum();
        // Single characters start with a guess; the first round estimates them.
        let single = alphabet.iter().map(|&c| Piece { chars: vec![c], probability: 1e-3 });
        let seeds = seeds.into_iter().map(|(chars, weight)| Piece { chars, probability: weight / total });
        Self::from_pieces(single.chain(seeds).collect(), alphabet.len())
    }

    fn from_pieces(pieces: Vec<Piece>, single_chars: usize) -> Self {
        Model { trie: Trie::new(&pieces), pieces, single_chars }
    }

    /// Returns the expected count of each piece in the words.
    fn expected_counts(&self, words: &[Word]) -> Vec<f64> {
        let weights = self.weights();
        let of_part = |part: &[Word]| {
            let mut expected = vec![0.0; self.pieces.len()];
            let mut scratch = Scratch::default();
            part.iter().for_each(|word| self.expect_word(word, &weights, &mut scratch, &mut expected));
            expected
        };
        let parts: Vec<Vec<f64>> = words.par_chunks(words.len().div_ceil(PARTS).max(1)).map(of_part).collect();
        let mut total = vec![0.0; self.pieces.len()];
        for part in parts {
            total.iter_mut().zip(part).for_each(|(sum, count)| *sum += count);
        }
        total
    }

    /// Forward-backward algorithm over all segmentations of a word.
    fn expect_word(&self, (word, count): &Word, weights: &[f64], scratch: &mut Scratch, expected: &mut [f64]) {
        let Scratch { edges, forward, backward } = scratch;
        edges.clear();
        (0..word.len())
            .for_each(|start| self.trie.for_each(&word[start..], |end, id| edges.push((start, start + end, id))));
        for sums in [&mut *forward, &mut *backward] {
            sums.clear();
            sums.resize(word.len() + 1, 0.0);
        }
        forward[0] = 1.0;
        for &(start, end, id) in &*edges {
            forward[end] += forward[start] * weights[id as usize];
        }
        backward[word.len()] = 1.0;
        for &(start, end, id) in edges.iter().rev() {
            backward[start] += weights[id as usize] * backward[end];
        }
        let total = forward[word.len()];
        if total > 0.0 && total.is_finite() {
            let factor = *count as f64 / total;
            for &(start, end, id) in &*edges {
                expected[id as usize] += forward[start] * weights[id as usize] * backward[end] * factor;
            }
        }
    }

    /// Computes probabilities from expected counts. Pieces without probability are removed, also
    /// from `expected`.
    fn maximise(&mut self, expected: &mut Vec<f64>) {
        let discounted = |count: f64| (count - DISCOUNT).max(0.0);
        let total: f64 = expected.iter().map(|&count| discounted(count)).sum();
        let (mut pieces, mut kept) = (Vec::new(), Vec::new());
        for (at, (piece, &count)) in std::mem::take(&mut self.pieces).into_iter().zip(&*expected).enumerate() {
            let mut probability = if total > 0.0 { discounted(count) / total } else { 0.0 };
            if at < self.single_chars {
                probability = probability.max(MIN_PROBABILITY);
            }
            if probability > 0.0 {
                pieces.push(Piece { probability, ..piece });
                kept.push(count);
            }
        }
        *self = Self::from_pieces(pieces, self.single_chars);
        *expected = kept;
    }

    /// Keeps single characters and the pieces whose removal would reduce the likelihood of the
    /// words most.
    fn prune(&mut self, expected: &[f64], max_pieces: usize) {
        let weights = self.weights();
        let loss = |at: usize| {
            let (piece, replacement) = (weights[at], self.best_without(at, &weights));
            expected[at] * libm::log(piece / replacement.max(f64::MIN_POSITIVE))
        };
        let mut losses: Vec<(usize, f64)> =
            (self.single_chars..self.pieces.len()).into_par_iter().map(|at| (at, loss(at))).collect();
        losses.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| self.pieces[a.0].chars.cmp(&self.pieces[b.0].chars)));
        losses.truncate(max_pieces.saturating_sub(self.single_chars));
        let mut is_kept: Vec<bool> = (0..self.pieces.len()).map(|at| at < self.single_chars).collect();
        losses.iter().for_each(|&(at, _)| is_kept[at] = true);
        let pieces = std::mem::take(&mut self.pieces);
        let pieces = pieces.into_iter().zip(is_kept).filter_map(|(piece, is_kept)| is_kept.then_some(piece)).collect();
        *self = Self::from_pieces(pieces, self.single_chars);
    }

    /// Returns the weight of the best segmentation of a piece into others.
    fn best_without(&self, removed: usize, weights: &[f64]) -> f64 {
        let word = &self.pieces[removed].chars;
        let mut best = [0.0f64; MAX_PIECE_CHARS + 1];
        best[0] = 1.0;
        for start in 0..word.len() {
            self.trie.for_each(&word[start..], |end, id| {
                if id as usize != removed {
                    let end = start + end;
                    best[end] = best[end].max(best[start] * weights[id as usize]);
                }
            });
        }
        best[word.len()]
    }

    /// Returns the probabilities, scaled by [`SCALE`].
    fn weights(&self) -> Vec<f64> {
        let mut scales = [1.0; MAX_PIECE_CHARS + 1];
        (1..scales.len()).for_each(|length| scales[length] = scales[length - 1] * SCALE);
        self.pieces.iter().map(|piece| piece.probability * scales[piece.chars.len()]).collect()
    }

    /// Returns all single characters and the most probable other pieces.
    fn best(mut self, size: usize) -> Vec<(String, f64)> {
        let by_probability =
            |a: &Piece, b: &Piece| b.probability.total_cmp(&a.probability).then_with(|| a.chars.cmp(&b.chars));
        self.pieces[self.single_chars..].sort_unstable_by(by_probability);
        self.pieces.truncate(size.max(self.single_chars));
        self.pieces.sort_unstable_by(by_probability);
        let score = |piece: Piece| (piece.chars.iter().collect(), libm::log(piece.probability));
        self.pieces.into_iter().map(score).collect()
    }
}

/// Buffers reused from word to word.
#[derive(Default)]
struct Scratch {
    /// Start, end and id of each piece in the word.
    edges: Vec<(usize, usize, u32)>,
    forward: Vec<f64>,
    backward: Vec<f64>,
}

/// Finds all pieces that are a prefix of a word.
struct Trie {
    next: HashMap<(u32, char), u32>,
    /// The piece that ends at a node.
    pieces: Vec<Option<u32>>,
}

impl Trie {
    fn new(pieces: &[Piece]) -> Self {
        let mut trie = Trie { next: HashMap::new(), pieces: vec![None] };
        for (id, piece) in pieces.iter().enumerate() {
            let mut node = 0;
            for &c in &piece.chars {
                let new = trie.pieces.len() as u32;
                node = *trie.next.entry((node, c)).or_insert(new);
                if node == new {
                    trie.pieces.push(None);
                }
            }
            trie.pieces[node as usize] = Some(id as u32);
        }
        trie
    }

    /// Calls `found` with the length and the id of each, the shortest first.
    fn for_each(&self, word: &[char], mut found: impl FnMut(usize, u32)) {
        let mut node = 0;
        for (at, &c) in word.iter().enumerate() {
            let Some(&next) = self.next.get(&(node, c)) else { return };
            node = next;
            if let Some(id) = self.pieces[node as usize] {
                found(at + 1, id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[(&str, u64)]) -> Vec<(Box<str>, u64)> {
        text.iter().map(|&(word, count)| (word.into(), count)).collect()
    }

    fn options(size: usize) -> TrainOptions {
        TrainOptions { size, min_count: 2, max_alphabet: 26 }
    }

    #[test]
    fn frequent_words_become_pieces_and_all_characters_are_kept() {
        let text = words(&[("▁the", 900), ("▁then", 50), ("▁cat", 300), ("▁cats", 200), ("▁hat", 100), ("▁q", 1)]);
        let pieces = train_unigram(&text, &options(14));
        let names: Vec<&str> = pieces.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(pieces.len(), 14);
        for name in ["▁the", "▁cat", "▁", "t", "h", "e", "n", "c", "a", "s", "q"] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
        assert!(pieces.windows(2).all(|two| two[0].1 >= two[1].1), "the most probable first: {pieces:?}");
        let total: f64 = pieces.iter().map(|(_, score)| score.exp()).sum();
        assert!(total < 1.01, "they are probabilities: {total}");
    }

    #[test]
    fn neither_the_order_of_words_nor_the_number_of_cores_matters() {
        let key = hetseq_random::Key::root(3);
        let mut text: Vec<(Box<str>, u64)> = (0..3000u64)
            .map(|at| {
                let key = key.index(at);
                let syllables = 1 + key.below(0, 4);
                let syllable = ["ka", "lo", "mi", "ss", "an", "ra", "te", "u"];
                let word: String = (1..=syllables).map(|s| syllable[key.below(s, 8) as usize]).collect();
                (format!("▁{word}{at}").into(), 1 + 1000 / (1 + key.below(9, 500)))
            })
            .collect();
        let train = |text: &[(Box<str>, u64)], cores: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build().unwrap();
            pool.install(|| train_unigram(text, &options(300)))
        };
        let pieces = train(&text, 1);
        assert_eq!(pieces.len(), 300);
        text.reverse();
        assert_eq!(train(&text, 5), pieces);
    }

    #[test]
    fn long_words_of_rare_characters_do_not_underflow() {
        let rare: String = ('a'..='z').cycle().take(MAX_PRE_TOKEN_CHARS).collect();
        let text = words(&[(&rare, 1), ("▁x", u32::MAX.into())]);
        let pieces = train_unigram(&text, &TrainOptions { size: 40, min_count: 1, max_alphabet: 40 });
        assert!(pieces.len() >= 27 && pieces.iter().all(|(_, score)| score.is_finite()), "{pieces:?}");
        assert_eq!(train_unigram(&[], &options(10)), []);
    }
}
