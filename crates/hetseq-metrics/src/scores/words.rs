//! Splits lines into words, and numbers words. Spaces are those of Python's `str.split`, since
//! scores must equal those of a Python program. Used by [`bleu`](crate::scores::bleu) and
//! [`chrf`](crate::scores::chrf).

use std::collections::HashMap;

/// Python also splits at four old separators that are not white space in Unicode.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(is_space).filter(|word| !word.is_empty())
}

/// Numbers words in the order of their first occurrence.
#[derive(Default)]
pub(crate) struct WordIds<'a>(HashMap<&'a str, u32>);

impl<'a> WordIds<'a> {
    pub(crate) fn number(&mut self, words: impl Iterator<Item = &'a str>) -> Vec<u32> {
        let number = |word| {
            let next = self.0.len() as u32;
            *self.0.entry(word).or_insert(next)
        };
        words.map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_at_spaces_of_any_kind() {
        let line = " a\u{a0}b\u{3000}\u{1c}c\u{1f}d\u{85}e\u{200b}f\t\n";
        assert_eq!(words(line).collect::<Vec<_>>(), ["a", "b", "c", "d", "e\u{200b}f"]);
        let mut word_ids = WordIds::default();
        assert_eq!(word_ids.number(["x", "y", "x"].into_iter()), [0, 1, 0]);
        assert_eq!(word_ids.number(["z", "y"].into_iter()), [2, 1]);
    }
}
