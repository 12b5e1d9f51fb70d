//! Words as BERT sees them, and how often each occurs.

use std::collections::HashMap;

use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use super::LONGEST_WORD_CHARS;

/// BERT's rule: clean, lower-case and strip accents unless cased, split at white space and punctuation, and put every
/// Chinese character by itself.
#[derive(Debug, Clone, Copy)]
pub struct BertWords {
    normalizer: BertNormalizer,
}

impl BertWords {
    pub fn new(cased: bool) -> Self {
        BertWords { normalizer: BertNormalizer::new(true, true, None, !cased) }
    }

    /// None if that normalizer keeps control characters, which the short cut does not.
    pub(super) fn with(normalizer: BertNormalizer) -> Option<Self> {
        normalizer.clean_text.then_some(BertWords { normalizer })
    }

    /// Calls `found` with each word of `run`, text without spaces, tabs or newlines. `buffer` is overwritten.
    ///
    /// Words may be found run by run: white space parts words whatever stands around it, and normalising looks at single
    /// characters and their combining marks.
    pub fn each(&self, run: &str, buffer: &mut String, mut found: impl FnMut(&str)) {
        if !run.is_ascii() {
            return self.each_in_any_script(run, found);
        }
        let mut take = |word: &mut String| {
            if !word.is_empty() {
                found(word);
                word.clear();
            }
        };
        buffer.clear();
        for &byte in run.as_bytes() {
            // Form feeds and their like are removed, not taken for white space, as there.
            if byte.is_ascii_control() {
                continue;
            }
            if byte.is_ascii_punctuation() {
                take(buffer);
                buffer.push(char::from(byte));
                take(buffer);
            } else {
                buffer.push(char::from(if self.normalizer.lowercase { byte.to_ascii_lowercase() } else { byte }));
            }
        }
        take(buffer);
    }

    fn each_in_any_script(&self, run: &str, mut found: impl FnMut(&str)) {
        let mut normalized = NormalizedString::from(run);
        // Neither of the two can fail on text.
        let _ = self.normalizer.normalize(&mut normalized);
        let mut words = PreTokenizedString::from(normalized);
        let _ = BertPreTokenizer.pre_tokenize(&mut words);
        for (word, ..) in words.get_splits(OffsetReferential::Original, OffsetType::None) {
            found(word);
        }
    }
}

/// Text in runs between the white space that all scripts share.
pub(super) fn runs(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', '\t', '\n', '\r']).filter(|run| !run.is_empty())
}

/// What WikiText writes for a character that it set apart: `red @-@ tipped`, `1 @,@ 000`.
pub(super) fn unescape(run: &str) -> &str {
    match run {
        "@-@" => "-",
        "@,@" => ",",
        "@.@" => ".",
        _ => run,
    }
}

/// What corpora write for a word that they took out.
pub(super) const UNKNOWN_RUN: &str = "<unk>";

/// Words with their counts, never more than a limit: beyond it, the rarest are forgotten.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WordCounts {
    counts: HashMap<Box<str>, u64>,
}

impl WordCounts {
    /// Counts the words of a text.
    pub fn count(&mut self, words: &BertWords, text: &str, buffer: &mut String) {
        for run in runs(text).filter(|&run| run != UNKNOWN_RUN) {
            words.each(unescape(run), buffer, |word| {
                if word.len() <= LONGEST_WORD_CHARS || word.chars().count() <= LONGEST_WORD_CHARS {
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

    /// Adds other counts. If there are more than `limit` words then, the more frequent half of `limit` stays; among
    /// equals the first in the alphabet.
    ///
    /// What is forgotten depends on the order of these calls, so that must not depend on the number of cores.
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

    /// In the order of the alphabet.
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
        runs(text).for_each(|run| BertWords::new(cased).each(run, &mut buffer, |word| found.push(word.to_owned())));
        found
    }

    /// The whole text through the crate's own rules, which know no runs and no short cut.
    fn reference(cased: bool, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        BertWords::new(cased).each_in_any_script(text, |word| found.push(word.to_owned()));
        found
    }

    #[test]
    fn words_are_found_as_bert_finds_them() {
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
    fn counts_add_up_and_the_rarest_are_forgotten() {
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
        assert!(count(&"x".repeat(101)).is_empty(), "a word that can only be unknown");
        assert_eq!(count("red @-@ tipped").into_sorted(), count("red - tipped").into_sorted());
    }
}
