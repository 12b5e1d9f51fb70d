//! Training a unigram model: from many pieces downwards, those that are missed least are given up.
//!
//! A word is any sequence of pieces that spells it, as likely as the product of its pieces' probabilities. Expectation
//! maximisation (Kudo 2018, "Subword Regularization") finds those probabilities, and between its rounds a quarter of the
//! pieces go. The trainer of the `tokenizers` crate does the same, but its sums and its numbering differ from run to run and
//! with the number of cores. Here words are cut into a fixed number of parts, which are added in order, and nothing but
//! + - * / decides, with one portable logarithm: the same words give the same bits everywhere.
//!
//! Probabilities are multiplied, not added as logarithms. So that products of up to 64 letters stay within range, every
//! piece counts [`SCALE`] times more per letter; all ways to spell a word have as many letters, so it cancels out.

use std::collections::HashMap;

use rayon::prelude::*;

use super::TrainOptions;
use super::spaced::LONGEST_STRETCH;
use super::training::{known_stretches, letters};

/// In letters.
const LONGEST_PIECE: usize = 16;
const SCALE: f64 = 1e4;
/// Of a letter, which stays whether it is of use or not: `(LEAST * SCALE)^64` is still a number.
const LEAST: f64 = 1e-8;
/// The most frequent words that are learnt from; the rest would only make it slow.
const MOST_WORDS: usize = 1 << 19;
/// Beginnings and ends of possible pieces that are counted, from the most frequent word on. About 200 MB.
const MOST_SUBSTRINGS: usize = 1 << 22;
/// Pieces to begin with, for each that is asked for.
const SEEDS_PER_PIECE: usize = 20;
const MOST_SEEDS: usize = 500_000;
/// Rounds of expectation maximisation before pieces are given up.
const ROUNDS: usize = 2;
/// Parts that words are summed in: of any number of cores the same.
const PARTS: usize = 16;
/// What every expected count loses, which makes rare pieces vanish: close to the digamma function of the Bayesian form.
const DISCOUNT: f64 = 0.5;

type Word = (Vec<char>, u64);

/// Pieces with the logarithms of their probabilities, the most probable first: all letters, and what is best beside them.
///
/// Of `words` and `options` the same is true as for [`train`](super::train).
pub fn train_unigram(words: &[(Box<str>, u64)], options: &TrainOptions) -> Vec<(String, f64)> {
    let letters = letters(words, options.most_letters);
    let words = known_words(words, &letters);
    let seeds = (SEEDS_PER_PIECE * options.size).min(MOST_SEEDS);
    let mut model = Model::new(&letters, seed(&words, seeds, options.least_count));
    let enough = options.size + options.size / 10;
    loop {
        let mut expected = Vec::new();
        for _ in 0..ROUNDS {
            expected = model.expect(&words);
            model.maximise(&mut expected);
        }
        if model.pieces.len() <= enough.max(letters.len()) {
            return model.best(options.size);
        }
        let most = (model.pieces.len() / 4 * 3).max(enough);
        model.prune(&expected, most);
    }
}

/// The words in letters that are known, the most frequent first.
fn known_words(words: &[(Box<str>, u64)], letters: &[char]) -> Vec<Word> {
    let mut known: Vec<Word> = Vec::new();
    for (word, count) in words {
        for stretch in known_stretches(word, |letter| letters.binary_search(&letter).is_ok()) {
            let stretch: Vec<char> = stretch.chars().collect();
            known.extend(stretch.chunks(LONGEST_STRETCH).map(|part| (part.to_vec(), *count)));
        }
    }
    known.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    known.truncate(MOST_WORDS);
    known
}

/// Stretches of two letters and more that occur often, with their weights.
fn seed(words: &[Word], most: usize, least_count: u64) -> Vec<(Vec<char>, f64)> {
    let mut counts: HashMap<&[char], u64> = HashMap::new();
    let mut counted = 0;
    for (word, count) in words {
        for start in 0..word.len() {
            for end in start + 2..=word.len().min(start + LONGEST_PIECE) {
                *counts.entry(&word[start..end]).or_default() += count;
                counted += 1;
            }
        }
        if counted >= MOST_SUBSTRINGS {
            break;
        }
    }
    let mut seeds: Vec<(&[char], u64)> = counts.into_iter().filter(|&(_, count)| count >= least_count.max(1)).collect();
    let weight = |&(piece, count): &(&[char], u64)| count * piece.len() as u64;
    seeds.sort_unstable_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.0.cmp(b.0)));
    seeds.truncate(most);
    seeds.iter().map(|seed| (seed.0.to_vec(), weight(seed) as f64)).collect()
}

struct Piece {
    letters: Vec<char>,
    probability: f64,
}

struct Model {
    /// Letters come first.
    pieces: Vec<Piece>,
    single: usize,
    trie: Trie,
}

impl Model {
    fn new(letters: &[char], seeds: Vec<(Vec<char>, f64)>) -> Self {
        let total: f64 = seeds.iter().map(|(_, weight)| weight).sum();
        // Of letters nothing is known yet; the first round will tell.
        let single = letters.iter().map(|&letter| Piece { letters: vec![letter], probability: 1e-3 });
        let seeds = seeds.into_iter().map(|(letters, weight)| Piece { letters, probability: weight / total });
        Self::of(single.chain(seeds).collect(), letters.len())
    }

    fn of(pieces: Vec<Piece>, single: usize) -> Self {
        Model { trie: Trie::new(&pieces), pieces, single }
    }

    /// How often each piece is expected in the words.
    fn expect(&self, words: &[Word]) -> Vec<f64> {
        let weights = self.weights();
        let of_part = |part: &[Word]| {
            let mut expected = vec![0.0; self.pieces.len()];
            let mut desk = Desk::default();
            part.iter().for_each(|word| self.expect_word(word, &weights, &mut desk, &mut expected));
            expected
        };
        let parts: Vec<Vec<f64>> = words.par_chunks(words.len().div_ceil(PARTS).max(1)).map(of_part).collect();
        let mut total = vec![0.0; self.pieces.len()];
        for part in parts {
            total.iter_mut().zip(part).for_each(|(sum, count)| *sum += count);
        }
        total
    }

    /// Forwards and backwards over all ways to spell a word.
    fn expect_word(&self, (word, count): &Word, weights: &[f64], desk: &mut Desk, expected: &mut [f64]) {
        let Desk { uses, before, after } = desk;
        uses.clear();
        (0..word.len()).for_each(|start| self.trie.each(&word[start..], |end, id| uses.push((start, start + end, id))));
        for sums in [&mut *before, &mut *after] {
            sums.clear();
            sums.resize(word.len() + 1, 0.0);
        }
        before[0] = 1.0;
        for &(start, end, id) in &*uses {
            before[end] += before[start] * weights[id as usize];
        }
        after[word.len()] = 1.0;
        for &(start, end, id) in uses.iter().rev() {
            after[start] += weights[id as usize] * after[end];
        }
        let all = before[word.len()];
        if all > 0.0 && all.is_finite() {
            let each = *count as f64 / all;
            for &(start, end, id) in &*uses {
                expected[id as usize] += before[start] * weights[id as usize] * after[end] * each;
            }
        }
    }

    /// Probabilities from expected counts. What is expected too seldom goes, from `expected` too.
    fn maximise(&mut self, expected: &mut Vec<f64>) {
        let discounted = |count: f64| (count - DISCOUNT).max(0.0);
        let total: f64 = expected.iter().map(|&count| discounted(count)).sum();
        let (mut pieces, mut kept) = (Vec::new(), Vec::new());
        for (at, (piece, &count)) in std::mem::take(&mut self.pieces).into_iter().zip(&*expected).enumerate() {
            let mut probability = if total > 0.0 { discounted(count) / total } else { 0.0 };
            if at < self.single {
                probability = probability.max(LEAST);
            }
            if probability > 0.0 {
                pieces.push(Piece { probability, ..piece });
                kept.push(count);
            }
        }
        *self = Self::of(pieces, self.single);
        *expected = kept;
    }

    /// Keeps letters and those pieces without which the words would be the least likely.
    fn prune(&mut self, expected: &[f64], most: usize) {
        let weights = self.weights();
        let loss = |at: usize| {
            let (own, other) = (weights[at], self.best_without(at, &weights));
            expected[at] * libm::log(own / other.max(f64::MIN_POSITIVE))
        };
        let mut losses: Vec<(usize, f64)> =
            (self.single..self.pieces.len()).into_par_iter().map(|at| (at, loss(at))).collect();
        losses
            .sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| self.pieces[a.0].letters.cmp(&self.pieces[b.0].letters)));
        losses.truncate(most.saturating_sub(self.single));
        let mut is_kept: Vec<bool> = (0..self.pieces.len()).map(|at| at < self.single).collect();
        losses.iter().for_each(|&(at, _)| is_kept[at] = true);
        let pieces = std::mem::take(&mut self.pieces);
        let pieces = pieces.into_iter().zip(is_kept).filter_map(|(piece, is_kept)| is_kept.then_some(piece)).collect();
        *self = Self::of(pieces, self.single);
    }

    /// The weight of the best way to spell a piece with others.
    fn best_without(&self, own: usize, weights: &[f64]) -> f64 {
        let word = &self.pieces[own].letters;
        let mut best = [0.0f64; LONGEST_PIECE + 1];
        best[0] = 1.0;
        for start in 0..word.len() {
            self.trie.each(&word[start..], |end, id| {
                if id as usize != own {
                    let end = start + end;
                    best[end] = best[end].max(best[start] * weights[id as usize]);
                }
            });
        }
        best[word.len()]
    }

    /// Probabilities, [`SCALE`]d.
    fn weights(&self) -> Vec<f64> {
        let mut scales = [1.0; LONGEST_PIECE + 1];
        (1..scales.len()).for_each(|length| scales[length] = scales[length - 1] * SCALE);
        self.pieces.iter().map(|piece| piece.probability * scales[piece.letters.len()]).collect()
    }

    /// All letters and the most probable of the others.
    fn best(mut self, size: usize) -> Vec<(String, f64)> {
        let by_probability =
            |a: &Piece, b: &Piece| b.probability.total_cmp(&a.probability).then_with(|| a.letters.cmp(&b.letters));
        self.pieces[self.single..].sort_unstable_by(by_probability);
        self.pieces.truncate(size.max(self.single));
        self.pieces.sort_unstable_by(by_probability);
        let score = |piece: Piece| (piece.letters.iter().collect(), libm::log(piece.probability));
        self.pieces.into_iter().map(score).collect()
    }
}

/// What is used again from word to word.
#[derive(Default)]
struct Desk {
    /// From letter to letter, with a piece.
    uses: Vec<(usize, usize, u32)>,
    before: Vec<f64>,
    after: Vec<f64>,
}

/// Finds all pieces that a word begins with.
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
            for &letter in &piece.letters {
                let fresh = trie.pieces.len() as u32;
                node = *trie.next.entry((node, letter)).or_insert(fresh);
                if node == fresh {
                    trie.pieces.push(None);
                }
            }
            trie.pieces[node as usize] = Some(id as u32);
        }
        trie
    }

    /// Calls `found` with the length and the id of each, the shortest first.
    fn each(&self, word: &[char], mut found: impl FnMut(usize, u32)) {
        let mut node = 0;
        for (at, &letter) in word.iter().enumerate() {
            let Some(&next) = self.next.get(&(node, letter)) else { return };
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
        TrainOptions { size, least_count: 2, most_letters: 26 }
    }

    #[test]
    fn frequent_words_become_pieces_and_all_letters_stay() {
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
                let letters = ["ka", "lo", "mi", "ss", "an", "ra", "te", "u"];
                let word: String = (1..=syllables).map(|s| letters[key.below(s, 8) as usize]).collect();
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
    fn long_words_of_rare_letters_are_numbers_still() {
        let rare: String = ('a'..='z').cycle().take(LONGEST_STRETCH).collect();
        let text = words(&[(&rare, 1), ("▁x", u32::MAX.into())]);
        let pieces = train_unigram(&text, &TrainOptions { size: 40, least_count: 1, most_letters: 40 });
        assert!(pieces.len() >= 27 && pieces.iter().all(|(_, score)| score.is_finite()), "{pieces:?}");
        assert_eq!(train_unigram(&[], &options(10)), []);
    }
}
