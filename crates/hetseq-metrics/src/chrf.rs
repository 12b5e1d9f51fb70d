//! chrF and chrF++: how many n-grams of characters (and of words) a translation shares with its reference. With the numbers of
//! sacrebleu, and in sums as [`bleu`](crate::bleu).
//!
//! Up to six characters, without the spaces between them; recall counts twice as much as precision.

use serde::{Deserialize, Serialize};

use crate::ngrams::{CHARACTER_BITS, Ngrams, WORD_BITS};
use crate::words::{Vocabulary, is_space, words};

const CHARACTER_ORDERS: usize = 6;
const WORD_ORDERS: usize = 2;
const ORDERS: usize = CHARACTER_ORDERS + WORD_ORDERS;

/// By how much recall counts more, squared.
const FACTOR: f64 = 4.0;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Chrf {
    /// n-grams of characters.
    #[default]
    #[serde(rename = "chrf")]
    Plain,
    /// chrF++: single words and pairs of them too.
    #[serde(rename = "chrf++")]
    PlusPlus,
}

/// n-gram statistics of some lines; [`ChrfSums::add`] adds those of others. First one to six characters, then one and two words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChrfSums {
    /// n-grams of the hypotheses, where the reference has any of that order.
    pub hypothesis: [u64; ORDERS],
    /// n-grams of the references; of several, of the one that the hypothesis resembles most.
    pub reference: [u64; ORDERS],
    /// n-grams that both have.
    pub matches: [u64; ORDERS],
}

impl Chrf {
    /// As sacrebleu calls the score.
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
    /// Of one line with any number of references. For chrF without regard to case give lines in lower case.
    pub fn of(kind: Chrf, hypothesis: &str, references: &[&str]) -> Self {
        let mut vocabulary = Vocabulary::default();
        let found = ngrams(kind, hypothesis, &mut vocabulary);
        let mut best = None;
        for reference in references {
            let sums = ChrfSums::between(&found, &ngrams(kind, reference, &mut vocabulary));
            let score = sums.score();
            // Of equals the first.
            if best.as_ref().is_none_or(|(highest, _)| score > *highest) {
                best = Some((score, sums));
            }
        }
        best.map(|(_, sums)| sums).unwrap_or_default()
    }

    fn between(hypothesis: &[Ngrams], reference: &[Ngrams]) -> Self {
        let mut sums = ChrfSums::default();
        for (order, (found, wanted)) in hypothesis.iter().zip(reference).enumerate() {
            sums.reference[order] = wanted.len();
            sums.hypothesis[order] = if wanted.len() > 0 { found.len() } else { 0 };
            sums.matches[order] = found.shared(wanted);
        }
        sums
    }

    pub fn add(&mut self, other: &Self) {
        let (mine, theirs) = (self.to_counts(), other.to_counts());
        *self = ChrfSums::from_counts(std::array::from_fn(|i| mine[i].saturating_add(theirs[i])));
    }

    /// As numbers to be added up: of each order hypothesis, reference and matches.
    pub fn to_counts(&self) -> [u64; 3 * ORDERS] {
        std::array::from_fn(|i| [&self.hypothesis, &self.reference, &self.matches][i % 3][i / 3])
    }

    pub fn from_counts(counts: [u64; 3 * ORDERS]) -> Self {
        let column = |column: usize| std::array::from_fn(|order| counts[3 * order + column]);
        ChrfSums { hypothesis: column(0), reference: column(1), matches: column(2) }
    }

    /// Out of 100. Orders that hypotheses or references have no n-grams of do not count.
    pub fn score(&self) -> f64 {
        let (mut precision, mut recall, mut orders) = (0.0, 0.0, 0.0);
        for order in 0..ORDERS {
            let (found, wanted) = (self.hypothesis[order] as f64, self.reference[order] as f64);
            if found > 0.0 && wanted > 0.0 {
                precision += self.matches[order] as f64 / found;
                recall += self.matches[order] as f64 / wanted;
                orders += 1.0;
            }
        }
        if precision + recall == 0.0 {
            return 0.0;
        }
        let (precision, recall) = (precision / orders, recall / orders);
        100.0 * ((1.0 + FACTOR) * precision * recall / (FACTOR * precision + recall))
    }
}

/// Of each order, the orders of words last.
fn ngrams<'a>(kind: Chrf, line: &'a str, vocabulary: &mut Vocabulary<'a>) -> Vec<Ngrams> {
    let characters: Vec<u32> = line.chars().filter(|&c| !is_space(c)).map(u32::from).collect();
    let of_characters = (1..=CHARACTER_ORDERS).map(|order| Ngrams::new(&characters, order, CHARACTER_BITS));
    let words = match kind {
        Chrf::Plain => Vec::new(),
        Chrf::PlusPlus => vocabulary.number(words(line).flat_map(part_sign)),
    };
    let of_words = (1..=kind.word_orders()).map(|order| Ngrams::new(&words, order, WORD_BITS));
    of_characters.chain(of_words).collect()
}

/// A word without the sign at its end, or else at its beginning, and that sign; never both, as sacrebleu has it.
fn part_sign(word: &str) -> impl Iterator<Item = &str> {
    let is_sign = |c: Option<char>| c.is_some_and(|c| c.is_ascii_punctuation());
    // Signs are one byte each.
    let at = match word.chars().nth(1) {
        Some(_) if is_sign(word.chars().next_back()) => word.len() - 1,
        Some(_) if is_sign(word.chars().next()) => 1,
        _ => word.len(),
    };
    let (first, second) = word.split_at(at);
    [first, second].into_iter().filter(|part| !part.is_empty())
}
