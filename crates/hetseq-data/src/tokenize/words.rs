//! BERT's word splitting, and word counts for training a vocabulary. Called by the encoder and by
//! [`prep`](crate::prep).

use std::collections::HashMap;

use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use super::MAX_WORD_CHARS;

/// BERT's word splitter: cleans text, lowers case and strips accents unless cased, splits at white
/// space and punctuation, and makes every Chinese character a word.
#[derive(Debug, Clone, Copy)]
pub struct BertWords {
    normalizer: BertNormalizer,
}

impl BertWords {
    pub fn new(cased: bool) -> Self {
        BertWords { normalizer: BertNormalizer::new(true, true, None, !cased) }
    }

    /// `None` if the normalizer keeps control characters: the fast path removes them.
    pub(super) fn with(normalizer: BertNormalizer) -> Option<Self> {
        normalizer.clean_text.then_some(BertWords { normalizer })
    }

    /// Calls `found` with each word of `chunk`, which is text without spaces, tabs or newlines.
    /// `buffer` is overwritten.
    ///
    /// Chunks can be split independently: white space always separates words, and normalisation
    /// only depends on single characters and their combining marks.
    pub fn for_each(&self, chunk: &str, buffer: &mut String, mut found: impl FnMut(&str)) {
        if !chunk.is_ascii() {
            return self.for_each_unicode(chunk, found);
        }
        let mut emit = |word: &mut String| {
            if !word.is_empty() {
                found(word);
                word.clear();
            }
        };
        buffer.clear();
        for &byte in chunk.as_bytes() {
            // As in BERT, form feeds and similar characters are removed and do not count as white
            // space.
            if byte.is_ascii_control() {
                continue;
            }
            if byte.is_ascii_punctuation() {
                emit(buffer);
                buffer.push(char::from(byte));
                emit(buffer);
            } else {
                buffer.push(char::from(if self.normalizer.lowercase { byte.to_ascii_lowercase() } else { byte }));
            }
        }
        emit(buffer);
    }

    fn for_each_unicode(&self, chunk: &str, mut found: impl FnMut(&str)) {
        let mut normalized = NormalizedString::from(chunk);
        // Neither of the two can fail.
        let _ = self.normalizer.normalize(&mut normalized);
        let mut words = PreTokenizedString::from(normalized);
        let _ = BertPreTokenizer.pre_tokenize(&mut words);
        for (word, ..) in words.get_splits(OffsetReferential::Original, OffsetType::None) {
            found(word);
        }
    }
}

/// Splits text at spaces, tabs and newlines.
pub(super) fn chunks(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', '\t', '\n', '\r']).filter(|chunk| !chunk.is_empty())
}

/// Decodes WikiText's escapes for characters inside words: `red @-@ tipped`, `1 @,@ 000`.
pub(super) fn unescape(chunk: &str) -> &str {
    match chunk {
        "@-@" => "-",
        "@,@" => ",",
        "@.@" => ".",
        _ => chunk,
    }
}

/// What corpora write for a removed word.
pub(super) const UNKNOWN_CHUNK: &str = "<unk>";

/// Word counts. [`WordCounts::add`] bounds their number by dropping the rarest words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WordCounts {
    counts: HashMap<Box<str>, u64>,
}

impl WordCounts {
    /// Counts the words of a text.
    pub fn count(&mut self, words: &BertWords, text: &str, buffer: &mut String) {
        for chunk in chunks(text).filter(|&chunk| chunk != UNKNOWN_CHUNK) {
            words.for_each(unescape(chunk), buffer, |word| {
                if word.len() <= MAX_WORD_CHARS || word.chars().count() <= MAX_WORD_CHARS {
                    self.count_word(word);
                }
            });
        }
    }

    pub fn count_word(&mut self, word: &str) {
        match self.counts.get_mut(word) {
            Some(count) => *count += 1,
            None => {
                self.counts.insert(word.into(), 1);
            }
        }
    }

    /// Adds other counts. If there are then more than `limit` words, only the `limit / 2` most
    /// frequent are kept; ties are broken alphabetically.
    ///
    /// The words dropped depend on the order of these calls, so the order must not depend on the
    /// number of cores.
    pub fn add(&mut self, other: WordCounts, limit: usize) {
        for (word, count) in other.counts {
            *self.counts.entry(word).or_default() += count;
        }
        if self.counts.len() > limit {
            let mut words: Vec<(Box<str>, u64)> = self.counts.drain().collect();
            words.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
            words.truncate(limit / 2);
            self.counts = words.into_iter().collect();
        }
    }

    pub fn len(&self) -> usize {
        self.counts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the words in alphabetical order, with their counts.
    pub fn into_sorted(self) -> Vec<(Box<str>, u64)> {
        let mut words: Vec<(Box<str>, u64)> = self.counts.into_iter().collect();
        words.sort_unstable();
        words
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(cased: bool, text: &str) -> Vec<String> {
        let (mut found, mut buffer) = (Vec::new(), String::new());
        chunks(text)
            .for_each(|chunk| BertWords::new(cased).for_each(chunk, &mut buffer, |word| found.push(word.to_owned())));
        found
    }

    /// The whole text split by the `tokenizers` crate, without chunks and without the fast path.
    fn reference(cased: bool, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        BertWords::new(cased).for_each_unicode(text, |word| found.push(word.to_owned()));
        found
    }

    #[test]
    fn words_are_split_as_in_bert() {
        let text =
            "Don't STOP\u{c}now, \u{c9}lan! \u{6211}\u{7231}x a\u{a0}b \u{200b} e\u{301}t\u{e9} \u{0}\u{7f}z\u{b}q";
        let found = words(false, text);
        let expected =
            ["don", "'", "t", "stopnow", ",", "elan", "!", "\u{6211}", "\u{7231}", "x", "a", "b", "ete", "zq"];
        assert_eq!(found, expected);
        assert_eq!(words(true, "STOP \u{c9}lan"), ["STOP", "\u{c9}lan"]);
    }

    proptest! {
        #[test]
        fn any_text_gives_the_words_of_the_reference(text in "(\\PC|[ -~]|[\\x00-\\x1f]|[\u{300}-\u{36f}]|[\u{4e00}-\u{4e20}]|\\s){0,40}", cased: bool) {
            prop_assert_eq!(words(cased, &text), reference(cased, &text));
        }
    }

    #[test]
    fn counts_add_up_and_the_rarest_are_dropped() {
        let rule = BertWords::new(false);
        let count = |text: &str| {
            let mut counts = WordCounts::default();
            counts.count(&rule, text, &mut String::new());
            counts
        };
        let mut all = count("a a a b <unk> b c");
        all.add(count("A d e <unk>"), 100);
        let sorted = all.clone().into_sorted();
        assert_eq!(
            sorted.iter().map(|(word, n)| (&**word, *n)).collect::<Vec<_>>(),
            [("a", 4), ("b", 2), ("c", 1), ("d", 1), ("e", 1)]
        );
        all.add(WordCounts::default(), 4);
        assert_eq!(all.into_sorted().iter().map(|(word, _)| &**word).collect::<Vec<_>>(), ["a", "b"]);
        assert!(count(&"x".repeat(101)).is_empty(), "a word that is always unknown");
        assert_eq!(count("red @-@ tipped").into_sorted(), count("red - tipped").into_sorted());
    }
}
