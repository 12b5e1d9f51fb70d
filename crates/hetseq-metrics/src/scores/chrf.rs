//! chrF and chrF++: F-scores of the n-grams of characters (and words) that a translation shares
//! with its reference. Equal to sacrebleu's, and based on sums like [`bleu`](crate::scores::bleu).
//!
//! n-grams have up to six characters, without spaces. Recall counts twice as much as precision.

use serde::{Deserialize, Serialize};

use crate::scores::ngrams::{CHARACTER_BITS, Ngrams, WORD_BITS};
use crate::scores::words::{WordIds, is_space, words};

const CHARACTER_ORDERS: usize = 6;
const WORD_ORDERS: usize = 2;
const ORDERS: usize = CHARACTER_ORDERS + WORD_ORDERS;

/// The weight of recall against precision, squared.
const BETA_SQUARED: f64 = 4.0;

/// The kind of chrF score.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Chrf {
    /// n-grams of characters.
    #[default]
    #[serde(rename = "chrf")]
    Plain,
    /// chrF++: also single words and pairs of words.
    #[serde(rename = "chrf++")]
    PlusPlus,
}

/// n-gram statistics of some lines; [`ChrfSums::add`] adds those of others. Orders are one to six
/// characters, then one and two words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChrfSums {
    /// n-grams of the hypotheses, if the reference has any of that order.
    pub hypothesis: [u64; ORDERS],
    /// n-grams of the references; of several, of the one most similar to the hypothesis.
    pub reference: [u64; ORDERS],
    /// n-grams that both have.
    pub matches: [u64; ORDERS],
}

impl Chrf {
    /// The name of the score in sacrebleu.
    pub fn name(self) -> &'static str {
        match self {
            Chrf::Plain => "chrF2",
            Chrf::PlusPlus => "chrF2++",
        }
    }

    pub(crate) fn word_orders(self) -> usize {
        match self {
            Chrf::Plain => 0,
            Chrf::PlusPlus => WORD_ORDERS,
        }
    }
}

impl ChrfSums {
    /// Counts one line with any number of references. For a score that ignores case, pass lines in
    /// lower case.
    pub fn of(kind: Chrf, hypothesis: &str, references: &[&str]) -> Self {
        let mut word_ids = WordIds::default();
        let found = ngrams(kind, hypothesis, &mut word_ids);
        let mut best = None;
        for reference in references {
            let sums = ChrfSums::between(&found, &ngrams(kind, reference, &mut word_ids));
            let score = sums.score();
            // The first of equals.
            if best.as_ref().is_none_or(|(highest, _)| score > *highest) {
                best = Some((score, sums));
            }
        }
        best.map(|(_, sums)| sums).unwrap_or_default()
    }

    fn between(hypothesis: &[Ngrams], reference: &[Ngrams]) -> Self {
        let mut sums = ChrfSums::default();
        for (order, (found, expected)) in hypothesis.iter().zip(reference).enumerate() {
            sums.reference[order] = expected.len();
            sums.hypothesis[order] = if expected.len() > 0 { found.len() } else { 0 };
            sums.matches[order] = found.shared(expected);
        }
        sums
    }

    pub fn add(&mut self, other: &Self) {
        let (own, others) = (self.to_counts(), other.to_counts());
        *self = ChrfSums::from_counts(std::array::from_fn(|i| own[i].saturating_add(others[i])));
    }

    /// The counts as numbers that can be added up: hypothesis, reference and matches of each order.
    pub fn to_counts(&self) -> [u64; 3 * ORDERS] {
        std::array::from_fn(|i| [&self.hypothesis, &self.reference, &self.matches][i % 3][i / 3])
    }

    pub fn from_counts(counts: [u64; 3 * ORDERS]) -> Self {
        let column = |column: usize| std::array::from_fn(|order| counts[3 * order + column]);
        ChrfSums { hypothesis: column(0), reference: column(1), matches: column(2) }
    }

    /// The score out of 100. Orders without n-grams in the hypotheses or the references do not
    /// count.
    pub fn score(&self) -> f64 {
        let (mut precision, mut recall, mut orders) = (0.0, 0.0, 0.0);
        for order in 0..ORDERS {
            let (found, expected) = (self.hypothesis[order] as f64, self.reference[order] as f64);
            if found > 0.0 && expected > 0.0 {
                precision += self.matches[order] as f64 / found;
                recall += self.matches[order] as f64 / expected;
                orders += 1.0;
            }
        }
        if precision + recall == 0.0 {
            return 0.0;
        }
        let (precision, recall) = (precision / orders, recall / orders);
        100.0 * ((1.0 + BETA_SQUARED) * precision * recall / (BETA_SQUARED * precision + recall))
    }
}

/// The n-grams of each order, the orders of words last.
fn ngrams<'a>(kind: Chrf, line: &'a str, word_ids: &mut WordIds<'a>) -> Vec<Ngrams> {
    let characters: Vec<u32> = line.chars().filter(|&c| !is_space(c)).map(u32::from).collect();
    let of_characters = (1..=CHARACTER_ORDERS).map(|order| Ngrams::new(&characters, order, CHARACTER_BITS));
    let words = match kind {
        Chrf::Plain => Vec::new(),
        Chrf::PlusPlus => word_ids.number(words(line).flat_map(split_punctuation)),
    };
    let of_words = (1..=kind.word_orders()).map(|order| Ngrams::new(&words, order, WORD_BITS));
    of_characters.chain(of_words).collect()
}

/// Splits off the punctuation character at the end of a word, or else at its beginning; never both,
/// as in sacrebleu.
fn split_punctuation(word: &str) -> impl Iterator<Item = &str> {
    let is_punctuation = |c: Option<char>| c.is_some_and(|c| c.is_ascii_punctuation());
    // ASCII punctuation is one byte per character.
    let at = match word.chars().nth(1) {
        Some(_) if is_punctuation(word.chars().next_back()) => word.len() - 1,
        Some(_) if is_punctuation(word.chars().next()) => 1,
        _ => word.len(),
    };
    let (first, second) = word.split_at(at);
    [first, second].into_iter().filter(|part| !part.is_empty())
}
