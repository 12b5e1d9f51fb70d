//! Training of WordPiece and byte pair encoding vocabularies by merging: starting from characters,
//! the most frequent pair of adjacent pieces becomes a new piece. Called by [`prep`](crate::prep).
//!
//! [`train_word_piece`] and [`train_bpe`] differ in how a word is split into characters, and in
//! whether the list of merges is part of the result. The algorithm is that of the trainers in the
//! `tokenizers` crate, and tests compare the vocabularies. We have our own because those number
//! characters in the order of a hash map, which differs from run to run, and count in 32 bits.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::{CONTINUATION, SPECIAL_TOKENS};

/// Limits of a trained vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainOptions {
    /// Number of tokens to stop at, including the special ones.
    pub size: usize,
    /// Pairs that occur less often are not merged.
    pub min_count: u64,
    /// Maximum number of distinct characters. Rarer ones become unknown.
    pub max_alphabet: usize,
}

impl TrainOptions {
    /// Limits of BERT's vocabularies. A small vocabulary is not filled with rare characters.
    pub fn for_word_piece(size: usize) -> Self {
        TrainOptions { size, min_count: 2, max_alphabet: 1000.min(size / 8).max(26) }
    }

    /// Limits for subwords. The alphabet may be large, as some scripts need, because text in
    /// missing characters is lost.
    pub fn for_subwords(size: usize) -> Self {
        TrainOptions { size, min_count: 2, max_alphabet: (size / 4).max(26) }
    }
}

/// How words are split into characters.
#[derive(Debug, Clone, Copy)]
struct PieceFormat {
    /// The first tokens of the vocabulary.
    special: &'static [&'static str],
    /// Prefix of a character that is not the first of its word.
    continuation: &'static str,
    /// Whether one unknown character makes the whole word unknown, so that training skips it.
    /// Otherwise only the character is unknown.
    skips_unknown_words: bool,
}

const WORD_PIECE: PieceFormat =
    PieceFormat { special: &SPECIAL_TOKENS, continuation: CONTINUATION, skips_unknown_words: true };

type Pair = (u32, u32);

/// Trains a WordPiece vocabulary and returns it in the order of ids: special tokens, characters,
/// characters inside words, then pieces in the order of their merges.
///
/// `words` are the distinct words of the corpus with their counts, in any order. The vocabulary is
/// smaller than requested if no pair is left that occurs often enough.
pub fn train_word_piece(words: &[(Box<str>, u64)], options: &TrainOptions) -> Vec<String> {
    merge_pairs(words, options, &WORD_PIECE).0.names
}

/// A byte pair encoding: tokens in the order of their ids, and merges in the order of application.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BpeVocabulary {
    pub tokens: Vec<String>,
    pub merges: Vec<(String, String)>,
}

/// Trains a byte pair encoding: `special` tokens, characters, then pieces in the order of their
/// merges. Its words and size follow the rules of [`train_word_piece`].
pub fn train_bpe(words: &[(Box<str>, u64)], options: &TrainOptions, special: &'static [&'static str]) -> BpeVocabulary {
    let format = PieceFormat { special, continuation: "", skips_unknown_words: false };
    let (pieces, merges) = merge_pairs(words, options, &format);
    let name = |id: u32| pieces.names[id as usize].clone();
    let merges = merges.into_iter().map(|(left, right)| (name(left), name(right))).collect();
    BpeVocabulary { merges, tokens: pieces.names }
}

fn merge_pairs(words: &[(Box<str>, u64)], options: &TrainOptions, format: &PieceFormat) -> (Pieces, Vec<Pair>) {
    let mut pieces = Pieces::new(words, options.max_alphabet, format);
    let mut corpus = PieceCorpus::new(words, &pieces);
    let mut merges = Vec::new();
    let mut queue: BinaryHeap<(u64, Reverse<Pair>)> =
        corpus.pairs.iter().map(|(&pair, uses)| (uses.count, Reverse(pair))).collect();
    while pieces.names.len() < options.size {
        let Some((count, Reverse(pair))) = queue.pop() else { break };
        let current = corpus.pairs.get(&pair).map_or(0, |uses| uses.count);
        if current != count {
            // Counts fall as other merges use the same pieces. A pair whose count rose was queued
            // again at that time.
            if current > 0 && current < count {
                queue.push((current, Reverse(pair)));
            }
            continue;
        }
        if count < options.min_count.max(1) {
            break;
        }
        let piece = pieces.merge(pair);
        merges.push(pair);
        for increased in corpus.merge(pair, piece) {
            queue.push((corpus.pairs.get(&increased).map_or(0, |uses| uses.count), Reverse(increased)));
        }
    }
    (pieces, merges)
}

/// Returns the `max` most frequent characters of words, sorted.
pub(super) fn alphabet(words: &[(Box<str>, u64)], max: usize) -> Vec<char> {
    let mut counts: HashMap<char, u64> = HashMap::new();
    for (word, count) in words {
        word.chars().for_each(|c| *counts.entry(c).or_default() += count);
    }
    let mut by_count: Vec<(char, u64)> = counts.into_iter().collect();
    by_count.sort_unstable_by_key(|&(c, count)| (Reverse(count), c));
    by_count.truncate(max);
    let mut alphabet: Vec<char> = by_count.into_iter().map(|(c, _)| c).collect();
    alphabet.sort_unstable();
    alphabet
}

/// Tokens and their ids.
struct Pieces {
    names: Vec<String>,
    ids: HashMap<String, u32>,
    format: PieceFormat,
}

impl Pieces {
    fn new(words: &[(Box<str>, u64)], max_alphabet: usize, format: &PieceFormat) -> Self {
        let mut pieces = Pieces { names: Vec::new(), ids: HashMap::new(), format: *format };
        format.special.iter().for_each(|token| pieces.add((*token).to_owned()));
        alphabet(words, max_alphabet).iter().for_each(|c| pieces.add(c.to_string()));
        let spans = words.iter().flat_map(|(word, _)| pieces.known_spans(word));
        let mut inner: Vec<char> = spans.flat_map(|span| span.chars().skip(1)).collect();
        inner.sort_unstable();
        inner.dedup();
        inner.into_iter().for_each(|c| pieces.add(format!("{}{c}", format.continuation)));
        pieces
    }

    fn add(&mut self, name: String) {
        if !self.ids.contains_key(&name) {
            self.ids.insert(name.clone(), self.names.len() as u32);
            self.names.push(name);
        }
    }

    fn is_known(&self, c: char) -> bool {
        self.ids.contains_key(c.encode_utf8(&mut [0; 4]) as &str)
    }

    /// The spans of a word that training uses.
    fn known_spans<'w>(&self, word: &'w str) -> impl Iterator<Item = &'w str> {
        let is_known = word.chars().all(|c| self.is_known(c));
        let whole = is_known.then_some(word);
        let split_word = !is_known && !self.format.skips_unknown_words;
        let parts = split_word.then(|| known_spans(word, |c| self.is_known(c)));
        whole.into_iter().chain(parts.into_iter().flatten())
    }

    /// Returns the id of the merged pair. Different pairs can give the same piece.
    fn merge(&mut self, (left, right): Pair) -> u32 {
        let right = &self.names[right as usize];
        let right = right.strip_prefix(self.format.continuation).unwrap_or(right);
        let name = format!("{}{right}", self.names[left as usize]);
        self.add(name.clone());
        self.ids[&name]
    }
}

/// The words split into pieces, and the occurrences of each pair.
struct PieceCorpus {
    words: Vec<(Vec<u32>, u64)>,
    pairs: HashMap<Pair, PairUses>,
}

#[derive(Default)]
struct PairUses {
    count: u64,
    /// Indices of words that have or had this pair, possibly with duplicates.
    words: Vec<u32>,
}

impl PieceCorpus {
    fn new(words: &[(Box<str>, u64)], pieces: &Pieces) -> Self {
        let char_id = |(at, c): (usize, char)| match at {
            0 => pieces.ids[c.encode_utf8(&mut [0; 4]) as &str],
            _ => pieces.ids[format!("{}{c}", pieces.format.continuation).as_str()],
        };
        let spans = words.iter().flat_map(|(word, count)| pieces.known_spans(word).map(move |span| (span, *count)));
        let words = spans.map(|(span, count)| (span.chars().enumerate().map(char_id).collect(), count)).collect();
        let mut corpus = PieceCorpus { words, pairs: HashMap::new() };
        for (at, (word, count)) in corpus.words.iter().enumerate() {
            for pair in word.windows(2) {
                let uses = corpus.pairs.entry((pair[0], pair[1])).or_default();
                uses.count += count;
                if uses.words.last() != Some(&(at as u32)) {
                    uses.words.push(at as u32);
                }
            }
        }
        corpus
    }

    /// Replaces `pair` by `piece` everywhere. Returns the pairs whose counts increased.
    fn merge(&mut self, pair: Pair, piece: u32) -> Vec<Pair> {
        let mut indices = self.pairs.remove(&pair).map(|uses| uses.words).unwrap_or_default();
        indices.sort_unstable();
        indices.dedup();
        let mut increased = Vec::new();
        for index in indices {
            let (word, count) = &mut self.words[index as usize];
            if !word.windows(2).any(|two| (two[0], two[1]) == pair) {
                continue;
            }
            for old in word.windows(2) {
                if let Some(uses) = self.pairs.get_mut(&(old[0], old[1])) {
                    uses.count = uses.count.saturating_sub(*count);
                }
            }
            replace(word, pair, piece);
            for new in word.windows(2) {
                let new = (new[0], new[1]);
                let uses = self.pairs.entry(new).or_default();
                uses.count += *count;
                if new.0 == piece || new.1 == piece {
                    uses.words.push(index);
                    increased.push(new);
                }
            }
        }
        increased.sort_unstable();
        increased.dedup();
        increased
    }
}

/// Splits a word at its unknown characters and drops these.
pub(super) fn known_spans(word: &str, is_known: impl Fn(char) -> bool) -> Vec<&str> {
    word.split(|c| !is_known(c)).filter(|span| !span.is_empty()).collect()
}

/// Replaces pairs from the left, so that `aaa` has one `aa`, not two.
fn replace(word: &mut Vec<u32>, (left, right): Pair, piece: u32) {
    let mut length = 0;
    let mut at = 0;
    while at < word.len() {
        let is_pair = word[at] == left && word.get(at + 1) == Some(&right);
        word[length] = if is_pair { piece } else { word[at] };
        length += 1;
        at += if is_pair { 2 } else { 1 };
    }
    word.truncate(length);
}

#[cfg(test)]
mod tests {
    use hetseq_random::Key;
    use tokenizers::models::bpe::{BPE, BpeTrainer};
    use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainer};
    use tokenizers::{AddedToken, Model, Trainer};

    use super::*;

    /// Random words made of syllables, frequent and rare ones.
    fn words(seed: u64, kinds: usize) -> Vec<(Box<str>, u64)> {
        let key = Key::root(seed);
        let mut counts: HashMap<Box<str>, u64> = HashMap::new();
        for i in 0..kinds as u64 {
            let key = key.index(i);
            let syllables = 1 + key.below(0, 4);
            let word: String = (1..=syllables)
                .map(|s| ["ka", "lo", "mi", "ss", "an", "ra", "te", "u"][key.below(s, 8) as usize])
                .collect();
            *counts.entry(word.into()).or_default() += 1 + 1000 / (1 + key.below(9, 500));
        }
        let mut words: Vec<_> = counts.into_iter().collect();
        words.sort();
        words
    }

    /// What a trainer of the `tokenizers` crate learns from `words`.
    fn trained<T: Trainer>(trainer: &mut T, words: &[(Box<str>, u64)]) -> T::Model
    where
        T::Model: Default,
    {
        let all = words.iter().flat_map(|(word, count)| std::iter::repeat_n(word.to_string(), *count as usize));
        trainer.feed(all, |word| Ok(vec![word.to_owned()])).unwrap();
        let mut model = T::Model::default();
        trainer.train(&mut model).unwrap();
        model
    }

    /// The trainer of the `tokenizers` crate, made deterministic by passing all characters as
    /// special tokens.
    fn reference(words: &[(Box<str>, u64)], options: &TrainOptions) -> Vec<String> {
        let characters = Pieces::new(words, options.max_alphabet, &WORD_PIECE).names;
        let special = characters.into_iter().map(|token| AddedToken::from(token, true)).collect();
        let mut trainer = WordPieceTrainer::builder()
            .vocab_size(options.size)
            .min_frequency(options.min_count)
            .show_progress(false)
            .special_tokens(special)
            .build();
        let model: WordPiece = trained(&mut trainer, words);
        (0..model.get_vocab_size() as u32).map(|id| model.id_to_token(id).unwrap()).collect()
    }

    #[test]
    fn word_piece_equals_the_reference() {
        for (seed, kinds, size) in [(1, 50, 60), (2, 400, 200), (3, 2000, 500), (4, 2000, 5000)] {
            let (words, options) =
                (words(seed, kinds), TrainOptions { min_count: 2, ..TrainOptions::for_word_piece(size) });
            assert_eq!(train_word_piece(&words, &options), reference(&words, &options), "{kinds} words, {size} tokens");
        }
    }

    /// The crate's trainer of byte pair encoding, made deterministic in the same way.
    fn reference_bpe(words: &[(Box<str>, u64)], options: &TrainOptions) -> (Vec<String>, Vec<(u32, u32)>) {
        let special = ["</s>", "<unk>"].map(str::to_owned).into_iter();
        let characters = alphabet(words, options.max_alphabet).into_iter().map(|c| c.to_string());
        let special = special.chain(characters).map(|token| AddedToken::from(token, true)).collect();
        let mut trainer = BpeTrainer::builder()
            .vocab_size(options.size)
            .min_frequency(options.min_count)
            .show_progress(false)
            .special_tokens(special)
            .build();
        let model: BPE = trained(&mut trainer, words);
        let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&model).unwrap()).unwrap();
        let id = |token: &serde_json::Value| model.token_to_id(token.as_str().unwrap()).unwrap();
        let merges = json["merges"].as_array().unwrap().iter().map(|pair| (id(&pair[0]), id(&pair[1]))).collect();
        ((0..model.get_vocab_size() as u32).map(|id| model.id_to_token(id).unwrap()).collect(), merges)
    }

    #[test]
    fn bpe_equals_the_reference() {
        for (seed, kinds, size) in [(1, 50, 60), (2, 400, 200), (3, 2000, 500), (4, 2000, 5000)] {
            let (words, options) =
                (words(seed, kinds), TrainOptions { min_count: 2, ..TrainOptions::for_word_piece(size) });
            let trained = train_bpe(&words, &options, &["</s>", "<unk>"]);
            let id = |token: &String| trained.tokens.iter().position(|other| other == token).unwrap() as u32;
            let merges: Vec<(u32, u32)> = trained.merges.iter().map(|(left, right)| (id(left), id(right))).collect();
            assert_eq!(
                (trained.tokens.clone(), merges),
                reference_bpe(&words, &options),
                "{kinds} words, {size} tokens"
            );
        }
    }

    #[test]
    fn bpe_learns_from_the_known_parts_of_words() {
        let words: Vec<(Box<str>, u64)> = vec![("ababx".into(), 5), ("bb".into(), 1)];
        let trained = train_bpe(&words, &TrainOptions { size: 100, min_count: 2, max_alphabet: 2 }, &["</s>"]);
        assert_eq!(trained.tokens, ["</s>", "a", "b", "ab", "abab"]);
    }

    #[test]
    fn the_order_of_the_words_does_not_matter() {
        let (mut words, options) = (words(7, 500), TrainOptions::for_word_piece(300));
        let vocabulary = train_word_piece(&words, &options);
        assert_eq!(vocabulary.len(), 300);
        words.reverse();
        assert_eq!(train_word_piece(&words, &options), vocabulary);
    }

    #[test]
    fn training_ends_when_no_pair_is_left() {
        let words: Vec<(Box<str>, u64)> = vec![("aaaa".into(), 3), ("b".into(), 1), ("once".into(), 1)];
        let vocabulary = train_word_piece(&words, &TrainOptions::for_word_piece(1000));
        assert_eq!(vocabulary[..5], SPECIAL_TOKENS);
        assert!(vocabulary.contains(&"aaaa".to_owned()) && !vocabulary.contains(&"on".to_owned()), "{vocabulary:?}");
        assert_eq!(train_word_piece(&[], &TrainOptions::for_word_piece(1000)), SPECIAL_TOKENS);
    }

    #[test]
    fn word_piece_skips_words_with_rare_characters() {
        let words: Vec<(Box<str>, u64)> = vec![("ab".into(), 9), ("ax".into(), 5)];
        let vocabulary = train_word_piece(&words, &TrainOptions { size: 100, min_count: 2, max_alphabet: 2 });
        assert_eq!(vocabulary[5..], ["a", "b", "##b", "ab"]);
    }
}
