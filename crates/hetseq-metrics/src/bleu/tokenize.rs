//! How BLEU takes a line apart into words, as sacrebleu does. Each tokeniser is a chain of rules, applied one after the other
//! to the whole line; the kinds of rules are here, the rules in the file of each.

mod intl;
mod v13a;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::words::{is_space, words};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tokenizer {
    /// What WMT has used for Western languages since 2009 (mteval-v13a).
    #[default]
    #[serde(rename = "13a")]
    V13a,
    /// By Unicode's classes of characters (mteval-v14 with `--international-tokenization`).
    #[serde(rename = "intl")]
    Intl,
    /// At spaces alone: for text that was taken apart before.
    #[serde(rename = "none")]
    None,
}

impl Tokenizer {
    /// As signatures call it.
    pub fn name(self) -> &'static str {
        match self {
            Tokenizer::V13a => "13a",
            Tokenizer::Intl => "intl",
            Tokenizer::None => "none",
        }
    }

    /// What n-grams are made of.
    pub fn words(self, line: &str) -> Vec<String> {
        words(&self.apply(line)).map(str::to_owned).collect()
    }

    /// The line with spaces, of any number and kind, between its words.
    pub(super) fn apply(self, line: &str) -> Cow<'_, str> {
        // The end of the line is a rule's last neighbour, so what it is matters.
        let line = line.trim_end_matches(is_space);
        match self {
            Tokenizer::V13a => v13a::apply(line).into(),
            Tokenizer::Intl => intl::apply(line).into(),
            Tokenizer::None => line.into(),
        }
    }
}

/// Where a rule puts spaces.
#[derive(Clone, Copy)]
enum Around {
    First,
    Second,
}

/// Puts spaces around each character that is `apart`.
fn part(line: &str, apart: impl Fn(char) -> bool) -> String {
    let mut parted = String::with_capacity(2 * line.len());
    for c in line.chars() {
        if apart(c) {
            parted.extend([' ', c, ' ']);
        } else {
            parted.push(c);
        }
    }
    parted
}

/// Puts spaces around one of two neighbours that are a pair. Pairs are looked for from left to right and do not overlap:
/// the second of one is not the first of another.
fn part_pairs(line: &str, around: Around, is_pair: impl Fn(char, char) -> bool) -> String {
    let mut parted = String::with_capacity(2 * line.len());
    let mut rest = line.chars().peekable();
    while let Some(first) = rest.next() {
        match rest.next_if(|&second| is_pair(first, second)) {
            None => parted.push(first),
            Some(second) => match around {
                Around::First => parted.extend([' ', first, ' ', second]),
                Around::Second => parted.extend([first, ' ', second, ' ']),
            },
        }
    }
    parted
}
