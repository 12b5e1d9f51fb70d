//! Training a vocabulary by joining: from letters upwards, the most frequent pair of neighbours becomes a piece.
//!
//! [`train`] makes a WordPiece vocabulary, [`train_merges`] one of byte pair encoding; they differ in how a word is spelt
//! in letters, and in whether the joins themselves are of use. The same algorithm as the trainers of the `tokenizers`
//! crate, and the same vocabularies in tests. Ours is here because those number letters by the order of a hash map, which
//! differs from run to run, and count in 32 bits.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::{CONTINUATION, SPECIAL_TOKENS};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainOptions {
    /// How many tokens to stop at, with the special ones.
    pub size: usize,
    /// A pair that occurs less often does not become a piece.
    pub least_count: u64,
    /// At most so many letters; others will be unknown.
    pub most_letters: usize,
}

impl TrainOptions {
    /// As BERT's vocabularies are made; a small one is not filled with rare letters.
    pub fn of_size(size: usize) -> Self {
        TrainOptions { size, least_count: 2, most_letters: 1000.min(size / 8).max(26) }
    }

    /// For pieces of whole lines: scripts of thousands of letters have room, since a letter that is missing is text lost.
    pub fn of_subwords(size: usize) -> Self {
        TrainOptions { size, least_count: 2, most_letters: (size / 4).max(26) }
    }
}

/// How words are spelt.
#[derive(Debug, Clone, Copy)]
struct Spelling {
    /// The first tokens.
    special: &'static [&'static str],
    /// What a letter that is not the first of its word begins with.
    continuation: &'static str,
    /// A word with a letter too many is unknown as a whole, so there is nothing to learn from it; else only that letter is.
    is_whole: bool,
}

const WORD_PIECE: Spelling = Spelling { special: &SPECIAL_TOKENS, continuation: CONTINUATION, is_whole: true };

type Pair = (u32, u32);

/// A vocabulary in the order of its ids: special tokens, letters, letters inside words, then pieces as they were found.
///
/// `words` are the words of the corpus with their counts, each once; their order does not matter. It is smaller than
/// asked for if no pair is left that occurs often enough.
pub fn train(words: &[(Box<str>, u64)], options: &TrainOptions) -> Vec<String> {
    join(words, options, &WORD_PIECE).0.names
}

/// Tokens in the order of their ids, and the joins that make them, first to last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Merges {
    pub tokens: Vec<String>,
    pub joins: Vec<(String, String)>,
}

/// A vocabulary of byte pair encoding: `special` tokens, letters, then pieces as they were found. Of its words and its size
/// the same is true as of [`train`]'s.
pub fn train_merges(words: &[(Box<str>, u64)], options: &TrainOptions, special: &'static [&'static str]) -> Merges {
    let spelling = Spelling { special, continuation: "", is_whole: false };
    let (pieces, joins) = join(words, options, &spelling);
    let name = |id: u32| pieces.names[id as usize].clone();
    let joins = joins.into_iter().map(|(left, right)| (name(left), name(right))).collect();
    Merges { joins, tokens: pieces.names }
}

fn join(words: &[(Box<str>, u64)], options: &TrainOptions, spelling: &Spelling) -> (Pieces, Vec<Pair>) {
    let mut pieces = Pieces::new(words, options.most_letters, spelling);
    let mut text = Corpus::new(words, &pieces);
    let mut joins = Vec::new();
    let mut queue: BinaryHeap<(u64, Reverse<Pair>)> =
        text.pairs.iter().map(|(&pair, uses)| (uses.count, Reverse(pair))).collect();
    while pieces.names.len() < options.size {
        let Some((count, Reverse(pair))) = queue.pop() else { break };
        let now = text.pairs.get(&pair).map_or(0, |uses| uses.count);
        if now != count {
            // Counts fall as other pairs take the letters away; one that has risen was queued again when it did.
            if now > 0 && now < count {
                queue.push((now, Reverse(pair)));
            }
            continue;
        }
        if count < options.least_count.max(1) {
            break;
        }
        let piece = pieces.join(pair);
        joins.push(pair);
        for risen in text.merge(pair, piece) {
            queue.push((text.pairs.get(&risen).map_or(0, |uses| uses.count), Reverse(risen)));
        }
    }
    (pieces, joins)
}

/// The most frequent letters of words, in the order of the alphabet.
pub(super) fn letters(words: &[(Box<str>, u64)], most: usize) -> Vec<char> {
    let mut counts: HashMap<char, u64> = HashMap::new();
    for (word, count) in words {
        word.chars().for_each(|letter| *counts.entry(letter).or_default() += count);
    }
    let mut letters: Vec<(char, u64)> = counts.into_iter().collect();
    letters.sort_unstable_by_key(|&(letter, count)| (Reverse(count), letter));
    letters.truncate(most);
    let mut letters: Vec<char> = letters.into_iter().map(|(letter, _)| letter).collect();
    letters.sort_unstable();
    letters
}

/// Tokens and their ids.
struct Pieces {
    names: Vec<String>,
    ids: HashMap<String, u32>,
    spelling: Spelling,
}

impl Pieces {
    fn new(words: &[(Box<str>, u64)], most_letters: usize, spelling: &Spelling) -> Self {
        let mut pieces = Pieces { names: Vec::new(), ids: HashMap::new(), spelling: *spelling };
        spelling.special.iter().for_each(|token| pieces.add((*token).to_owned()));
        letters(words, most_letters).iter().for_each(|letter| pieces.add(letter.to_string()));
        let stretches = words.iter().flat_map(|(word, _)| pieces.spelt(word));
        let mut inner: Vec<char> = stretches.flat_map(|stretch| stretch.chars().skip(1)).collect();
        inner.sort_unstable();
        inner.dedup();
        inner.into_iter().for_each(|letter| pieces.add(format!("{}{letter}", spelling.continuation)));
        pieces
    }

    fn add(&mut self, name: String) {
        if !self.ids.contains_key(&name) {
            self.ids.insert(name.clone(), self.names.len() as u32);
            self.names.push(name);
        }
    }

    fn knows(&self, letter: char) -> bool {
        self.ids.contains_key(letter.encode_utf8(&mut [0; 4]) as &str)
    }

    /// The stretches of a word that there is something to learn from.
    fn spelt<'w>(&self, word: &'w str) -> impl Iterator<Item = &'w str> {
        let is_known = word.chars().all(|letter| self.knows(letter));
        let whole = is_known.then_some(word);
        let cut = (!is_known && !self.spelling.is_whole).then(|| known_stretches(word, |letter| self.knows(letter)));
        whole.into_iter().chain(cut.into_iter().flatten())
    }

    /// The id of two pieces in one. Two ways can lead to one piece.
    fn join(&mut self, (left, right): Pair) -> u32 {
        let right = &self.names[right as usize];
        let right = right.strip_prefix(self.spelling.continuation).unwrap_or(right);
        let name = format!("{}{right}", self.names[left as usize]);
        self.add(name.clone());
        self.ids[&name]
    }
}

/// The words as pieces, and where each pair occurs.
struct Corpus {
    words: Vec<(Vec<u32>, u64)>,
    pairs: HashMap<Pair, Uses>,
}

#[derive(Default)]
struct Uses {
    count: u64,
    /// Words that have or had this pair, some more than once.
    words: Vec<u32>,
}

impl Corpus {
    fn new(words: &[(Box<str>, u64)], pieces: &Pieces) -> Self {
        let letter_id = |(at, letter): (usize, char)| match at {
            0 => pieces.ids[letter.encode_utf8(&mut [0; 4]) as &str],
            _ => pieces.ids[format!("{}{letter}", pieces.spelling.continuation).as_str()],
        };
        let stretches = words.iter().flat_map(|(word, count)| pieces.spelt(word).map(move |stretch| (stretch, *count)));
        let words = stretches.map(|(word, count)| (word.chars().enumerate().map(letter_id).collect(), count)).collect();
        let mut corpus = Corpus { words, pairs: HashMap::new() };
        for (at, (letters, count)) in corpus.words.iter().enumerate() {
            for pair in letters.windows(2) {
                let uses = corpus.pairs.entry((pair[0], pair[1])).or_default();
                uses.count += count;
                if uses.words.last() != Some(&(at as u32)) {
                    uses.words.push(at as u32);
                }
            }
        }
        corpus
    }

    /// Replaces `pair` by `piece` everywhere. Returns the pairs that are more frequent than before.
    fn merge(&mut self, pair: Pair, piece: u32) -> Vec<Pair> {
        let mut at = self.pairs.remove(&pair).map(|uses| uses.words).unwrap_or_default();
        at.sort_unstable();
        at.dedup();
        let mut risen = Vec::new();
        for index in at {
            let (letters, count) = &mut self.words[index as usize];
            if !letters.windows(2).any(|two| (two[0], two[1]) == pair) {
                continue;
            }
            for old in letters.windows(2) {
                if let Some(uses) = self.pairs.get_mut(&(old[0], old[1])) {
                    uses.count = uses.count.saturating_sub(*count);
                }
            }
            replace(letters, pair, piece);
            for new in letters.windows(2) {
                let new = (new[0], new[1]);
                let uses = self.pairs.entry(new).or_default();
                uses.count += *count;
                if new.0 == piece || new.1 == piece {
                    uses.words.push(index);
                    risen.push(new);
                }
            }
        }
        risen.sort_unstable();
        risen.dedup();
        risen
    }
}

/// What is left of a word between letters that are not known.
pub(super) fn known_stretches(word: &str, is_known: impl Fn(char) -> bool) -> Vec<&str> {
    word.split(|letter| !is_known(letter)).filter(|stretch| !stretch.is_empty()).collect()
}

/// From the left, so that `aaa` has one `aa` and not two.
fn replace(letters: &mut Vec<u32>, (left, right): Pair, piece: u32) {
    let mut kept = 0;
    let mut at = 0;
    while at < letters.len() {
        let is_pair = letters[at] == left && letters.get(at + 1) == Some(&right);
        letters[kept] = if is_pair { piece } else { letters[at] };
        kept += 1;
        at += if is_pair { 2 } else { 1 };
    }
    letters.truncate(kept);
}

#[cfg(test)]
mod tests {
    use hetseq_random::Key;
    use tokenizers::models::bpe::{BPE, BpeTrainer};
    use tokenizers::models::wordpiece::{WordPiece, WordPieceTrainer};
    use tokenizers::{AddedToken, Model, Trainer};

    use super::*;

    /// Words of a made-up language: syllables, frequent and rare ones.
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

    /// The crate's trainer, made repeatable by telling it all letters beforehand.
    fn reference(words: &[(Box<str>, u64)], options: &TrainOptions) -> Vec<String> {
        let letters = Pieces::new(words, options.most_letters, &WORD_PIECE).names;
        let special = letters.into_iter().map(|token| AddedToken::from(token, true)).collect();
        let mut trainer = WordPieceTrainer::builder()
            .vocab_size(options.size)
            .min_frequency(options.least_count)
            .show_progress(false)
            .special_tokens(special)
            .build();
        let all = words.iter().flat_map(|(word, count)| std::iter::repeat_n(word.to_string(), *count as usize));
        trainer.feed(all, |word| Ok(vec![word.to_owned()])).unwrap();
        let mut model = WordPiece::default();
        trainer.train(&mut model).unwrap();
        (0..model.get_vocab_size() as u32).map(|id| model.id_to_token(id).unwrap()).collect()
    }

    #[test]
    fn the_vocabulary_is_that_of_the_reference() {
        for (seed, kinds, size) in [(1, 50, 60), (2, 400, 200), (3, 2000, 500), (4, 2000, 5000)] {
            let (words, options) = (words(seed, kinds), TrainOptions { least_count: 2, ..TrainOptions::of_size(size) });
            assert_eq!(train(&words, &options), reference(&words, &options), "{kinds} words, {size} tokens");
        }
    }

    /// The crate's trainer of byte pair encoding, made repeatable in the same way.
    fn reference_merges(words: &[(Box<str>, u64)], options: &TrainOptions) -> (Vec<String>, Vec<(u32, u32)>) {
        let special = ["</s>", "<unk>"].map(str::to_owned).into_iter();
        let letters = letters(words, options.most_letters).into_iter().map(|letter| letter.to_string());
        let special = special.chain(letters).map(|token| AddedToken::from(token, true)).collect();
        let mut trainer = BpeTrainer::builder()
            .vocab_size(options.size)
            .min_frequency(options.least_count)
            .show_progress(false)
            .special_tokens(special)
            .build();
        let all = words.iter().flat_map(|(word, count)| std::iter::repeat_n(word.to_string(), *count as usize));
        trainer.feed(all, |word| Ok(vec![word.to_owned()])).unwrap();
        let mut model = BPE::default();
        trainer.train(&mut model).unwrap();
        let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&model).unwrap()).unwrap();
        let id = |token: &serde_json::Value| model.token_to_id(token.as_str().unwrap()).unwrap();
        let joins = json["merges"].as_array().unwrap().iter().map(|join| (id(&join[0]), id(&join[1]))).collect();
        ((0..model.get_vocab_size() as u32).map(|id| model.id_to_token(id).unwrap()).collect(), joins)
    }

    #[test]
    fn the_merges_are_those_of_the_reference() {
        for (seed, kinds, size) in [(1, 50, 60), (2, 400, 200), (3, 2000, 500), (4, 2000, 5000)] {
            let (words, options) = (words(seed, kinds), TrainOptions { least_count: 2, ..TrainOptions::of_size(size) });
            let trained = train_merges(&words, &options, &["</s>", "<unk>"]);
            let id = |token: &String| trained.tokens.iter().position(|other| other == token).unwrap() as u32;
            let joins: Vec<(u32, u32)> = trained.joins.iter().map(|(left, right)| (id(left), id(right))).collect();
            assert_eq!(
                (trained.tokens.clone(), joins),
                reference_merges(&words, &options),
                "{kinds} words, {size} tokens"
            );
        }
    }

    #[test]
    fn merges_learn_from_what_is_left_of_words_with_rare_letters() {
        let words: Vec<(Box<str>, u64)> = vec![("ababx".into(), 5), ("bb".into(), 1)];
        let trained = train_merges(&words, &TrainOptions { size: 100, least_count: 2, most_letters: 2 }, &["</s>"]);
        assert_eq!(trained.tokens, ["</s>", "a", "b", "ab", "abab"]);
    }

    #[test]
    fn the_order_of_the_words_does_not_matter() {
        let (mut words, options) = (words(7, 500), TrainOptions::of_size(300));
        let vocabulary = train(&words, &options);
        assert_eq!(vocabulary.len(), 300);
        words.reverse();
        assert_eq!(train(&words, &options), vocabulary);
    }

    #[test]
    fn it_ends_when_nothing_is_left_to_join() {
        let words: Vec<(Box<str>, u64)> = vec![("aaaa".into(), 3), ("b".into(), 1), ("once".into(), 1)];
        let vocabulary = train(&words, &TrainOptions::of_size(1000));
        assert_eq!(vocabulary[..5], SPECIAL_TOKENS);
        assert!(vocabulary.contains(&"aaaa".to_owned()) && !vocabulary.contains(&"on".to_owned()), "{vocabulary:?}");
        assert_eq!(train(&[], &TrainOptions::of_size(1000)), SPECIAL_TOKENS);
    }

    #[test]
    fn words_with_rare_letters_teach_nothing() {
        let words: Vec<(Box<str>, u64)> = vec![("ab".into(), 9), ("ax".into(), 5)];
        let vocabulary = train(&words, &TrainOptions { size: 100, least_count: 2, most_letters: 2 });
        assert_eq!(vocabulary[5..], ["a", "b", "##b", "ab"]);
    }
}
