//! Splits a line into words for BLEU, as sacrebleu does. Each tokenizer is a chain of rules that
//! are applied to the whole line one after the other. The kinds of rules are here, the rules of
//! each tokenizer in its file.

mod intl;
mod v13a;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::scores::words::{is_space, words};

/// The tokenizer of a BLEU score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BleuTokenizer {
    /// Used by WMT for Western languages since 2009 (mteval-v13a).
    #[default]
    #[serde(rename = "13a")]
    V13a,
    /// By Unicode character classes (mteval-v14 with `--international-tokenization`).
    #[serde(rename = "intl")]
    Intl,
    /// At spaces only: for text that is already tokenized.
    #[serde(rename = "none")]
    None,
}

impl BleuTokenizer {
    /// The name in signatures.
    pub fn name(self) -> &'static str {
        match self {
            BleuTokenizer::V13a => "13a",
            BleuTokenizer::Intl => "intl",
            BleuTokenizer::None => "none",
        }
    }

    /// The words of a line, from which n-grams are built.
    pub fn words(self, line: &str) -> Vec<String> {
        words(&self.apply(line)).map(str::to_owned).collect()
    }

    /// The line with its words separated by spaces, of any number and kind.
    pub(super) fn apply(self, line: &str) -> Cow<'_, str> {
        // Rules look at neighbours, so trailing spaces would change the result.
        let line = line.trim_end_matches(is_space);
        match self {
            BleuTokenizer::V13a => v13a::apply(line).into(),
            BleuTokenizer::Intl => intl::apply(line).into(),
            BleuTokenizer::None => line.into(),
        }
    }
}

/// The character of a pair around which a rule inserts spaces.
#[derive(Clone, Copy)]
enum Around {
    First,
    Second,
}

/// Inserts spaces around each separate character.
fn space_out(line: &str, is_separate: impl Fn(char) -> bool) -> String {
    let mut spaced = String::with_capacity(2 * line.len());
    for c in line.chars() {
        if is_separate(c) {
            spaced.extend([' ', c, ' ']);
        } else {
            spaced.push(c);
        }
    }
    spaced
}

/// Inserts spaces around one of two neighbours that are a pair. Pairs are found from left to right
/// and do not overlap: the second character of one is not the first of another.
fn space_out_pairs(line: &str, around: Around, is_pair: impl Fn(char, char) -> bool) -> String {
    let mut spaced = String::with_capacity(2 * line.len());
    let mut rest = line.chars().peekable();
    while let Some(first) = rest.next() {
        match rest.next_if(|&second| is_pair(first, second)) {
            None => spaced.push(first),
            Some(second) => match around {
                Around::First => spaced.extend([' ', first, ' ', second]),
                Around::Second => spaced.extend([first, ' ', second, ' ']),
            },
        }
    }
    spaced
}
