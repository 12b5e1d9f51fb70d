//! Corpus BLEU, equal to sacrebleu's. Lines are counted as sums, so they can be scored anywhere,
//! also on several ranks, and the score of all lines is exact. Called by [`Corpus`](crate::Corpus),
//! and by the translation task in validation.
//!
//! All four orders of n-grams count, also for short lines (sacrebleu's `eff:no`). So it is not a
//! score for single lines.

mod tokenize;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use tokenize::BleuTokenizer;

use crate::scores::ngrams::{Ngrams, WORD_BITS};
use crate::scores::words::{WordIds, words};

const ORDERS: usize = 4;

/// n-gram statistics of some lines; [`BleuSums::add`] adds those of others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BleuSums {
    /// n-grams of the hypotheses that also occur in a reference, for n = 1 to 4.
    pub matches: [u64; ORDERS],
    /// All n-grams of the hypotheses.
    pub totals: [u64; ORDERS],
    /// Words of the hypotheses.
    pub hypothesis: u64,
    /// Words of the references; of several references, of the one closest in length.
    pub reference: u64,
}

/// The smoothing of n-gram orders without a match, with sacrebleu's default parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Smoothing {
    /// Half a match for the first such order, a quarter for the next.
    #[default]
    Exp,
    /// A tenth of a match for each.
    Floor,
    /// One additional match and n-gram for all orders but the first.
    AddK,
    /// No smoothing: the score is zero.
    None,
}

const FLOOR: f64 = 0.1;

/// A score out of 100 and its components. Displayed as by sacrebleu.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bleu {
    pub score: f64,
    /// In percent, for n = 1 to 4, smoothed.
    pub precisions: [f64; ORDERS],
    pub brevity_penalty: f64,
    /// Words of the hypotheses divided by words of the references.
    pub ratio: f64,
    pub hypothesis: u64,
    pub reference: u64,
}

impl BleuSums {
    /// Counts one line with any number of references; an empty one is a reference without words.
    /// For a score that ignores case, pass lines in lower case.
    pub fn of(tokenizer: BleuTokenizer, hypothesis: &str, references: &[&str]) -> Self {
        let hypothesis = tokenizer.apply(hypothesis);
        let references: Vec<_> = references.iter().map(|line| tokenizer.apply(line)).collect();
        let mut word_ids = WordIds::default();
        let hypothesis = word_ids.number(words(&hypothesis));
        let references: Vec<_> = references.iter().map(|line| word_ids.number(words(line))).collect();

        let lengths = references.iter().map(Vec::len);
        let closest = lengths.min_by_key(|&length| (length.abs_diff(hypothesis.len()), length)).unwrap_or(0);
        let mut sums =
            BleuSums { hypothesis: hypothesis.len() as u64, reference: closest as u64, ..BleuSums::default() };
        for order in 1..=ORDERS {
            let ngrams = |words: &Vec<u32>| Ngrams::new(words, order, WORD_BITS);
            let found = ngrams(&hypothesis);
            let expected = references.iter().map(ngrams).reduce(Ngrams::union);
            sums.totals[order - 1] = found.len();
            sums.matches[order - 1] = expected.map_or(0, |expected| found.shared(&expected));
        }
        sums
    }

    pub fn add(&mut self, other: &Self) {
        // Counts may come from another rank, so no values may cause an overflow.
        let (own, others) = (self.to_counts(), other.to_counts());
        *self = BleuSums::from_counts(std::array::from_fn(|i| own[i].saturating_add(others[i])));
    }

    /// The counts as numbers that can be added up: words of hypotheses and references, matches,
    /// totals.
    pub fn to_counts(&self) -> [u64; 2 + 2 * ORDERS] {
        let counts = [self.hypothesis, self.reference].into_iter().chain(self.matches).chain(self.totals);
        let mut all = [0; 2 + 2 * ORDERS];
        all.iter_mut().zip(counts).for_each(|(slot, count)| *slot = count);
        all
    }

    pub fn from_counts([hypothesis, reference, counts @ ..]: [u64; 2 + 2 * ORDERS]) -> Self {
        let [m1, m2, m3, m4, t1, t2, t3, t4] = counts;
        BleuSums { matches: [m1, m2, m3, m4], totals: [t1, t2, t3, t4], hypothesis, reference }
    }

    pub fn bleu(&self, smoothing: Smoothing) -> Bleu {
        let (hypothesis, reference) = (self.hypothesis as f64, self.reference as f64);
        let brevity_penalty = match self.hypothesis {
            long if long >= self.reference => 1.0,
            0 => 0.0,
            _ => (1.0 - reference / hypothesis).exp(),
        };
        let precisions = self.precisions(smoothing);
        let score = match precisions.contains(&0.0) {
            true => 0.0,
            false => brevity_penalty * (precisions.iter().map(|precision| precision.ln()).sum::<f64>() / 4.0).exp(),
        };
        let ratio = if self.reference == 0 { 0.0 } else { hypothesis / reference };
        let (hypothesis, reference) = (self.hypothesis, self.reference);
        Bleu { score, precisions, brevity_penalty, ratio, hypothesis, reference }
    }

    fn precisions(&self, smoothing: Smoothing) -> [f64; ORDERS] {
        let mut precisions = [0.0; ORDERS];
        if self.matches == [0; ORDERS] {
            return precisions;
        }
        let mut parts = 1.0;
        for (order, precision) in precisions.iter_mut().enumerate() {
            let more = if smoothing == Smoothing::AddK && order > 0 { 1.0 } else { 0.0 };
            let (matches, total) = (self.matches[order] as f64 + more, self.totals[order] as f64 + more);
            if total == 0.0 {
                break;
            }
            *precision = match smoothing {
                _ if matches > 0.0 => 100.0 * matches / total,
                Smoothing::Exp => {
                    parts *= 2.0;
                    100.0 / (parts * total)
                }
                Smoothing::Floor => 100.0 * FLOOR / total,
                Smoothing::AddK | Smoothing::None => 0.0,
            };
        }
        precisions
    }
}

impl Smoothing {
    /// The name in signatures.
    pub fn name(self) -> &'static str {
        match self {
            Smoothing::Exp => "exp",
            Smoothing::Floor => "floor[0.10]",
            Smoothing::AddK => "add-k[1.00]",
            Smoothing::None => "none",
        }
    }
}

impl Bleu {
    /// The text that sacrebleu prints after the score.
    pub fn details(&self) -> String {
        let precisions = self.precisions.map(|precision| format!("{precision:.1}")).join("/");
        let (penalty, ratio) = (self.brevity_penalty, self.ratio);
        let lengths = format!("hyp_len = {} ref_len = {}", self.hypothesis, self.reference);
        format!("{precisions} (BP = {penalty:.3} ratio = {ratio:.3} {lengths})")
    }
}

impl fmt::Display for Bleu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BLEU = {:.2} {}", self.score, self.details())
    }
}
