//! Words between spaces, and words as numbers. What counts as a space is what Python's `str.split` takes for one, since
//! scores are compared with a program in Python. For [`bleu`](crate::bleu) and [`chrf`](crate::chrf).

use std::collections::HashMap;

/// Python also parts words at four separators of old that Unicode does not call white space.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(is_space).filter(|word| !word.is_empty())
}

/// Numbers words in the order in which they first come.
#[derive(Default)]
pub(crate) struct Vocabulary<'a>(HashMap<&'a str, u32>);

impl<'a> Vocabulary<'a> {
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
    fn words_are_what_is_between_spaces_of_any_kind() {
        let line = " a\u{a0}b\u{3000}\u{1c}c\u{1f}d\u{85}e\u{200b}f\t\n";
        assert_eq!(words(line).collect::<Vec<_>>(), ["a", "b", "c", "d", "e\u{200b}f"]);
        let mut vocabulary = Vocabulary::default();
        assert_eq!(vocabulary.number(["x", "y", "x"].into_iter()), [0, 1, 0]);
        assert_eq!(vocabulary.number(["z", "y"].into_iter()), [2, 1]);
    }
}
