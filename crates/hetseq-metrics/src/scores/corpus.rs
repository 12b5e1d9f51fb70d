//! Translations with their references, line by line, scored on all cores. The scores are defined in
//! [`bleu`](crate::scores::bleu) and [`chrf`](crate::scores::chrf); `hetseq score` reads the files
//! and prints the result.

use rayon::prelude::*;

use crate::scores::bleu::{BleuSums, BleuTokenizer, Smoothing};
use crate::scores::chrf::{Chrf, ChrfSums};

/// The version of sacrebleu whose scores these are, as in its signatures.
pub const SACREBLEU: &str = "2.6.0";

/// Hypotheses and references.
pub struct Corpus {
    hypotheses: Vec<String>,
    /// One or more sets, each with one line per hypothesis.
    references: Vec<Vec<String>>,
    is_lowercase: bool,
}

/// A set of references and the hypotheses differ in their number of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there are {hypotheses} hypotheses, but {lines} lines in set {set} of the references")]
pub struct UnequalLines {
    /// Counts from 0.
    pub set: usize,
    pub lines: usize,
    pub hypotheses: usize,
}

impl Corpus {
    pub fn new(hypotheses: Vec<String>, references: Vec<Vec<String>>) -> Result<Self, UnequalLines> {
        let unequal = references.iter().position(|lines| lines.len() != hypotheses.len());
        if let Some(set) = unequal {
            return Err(UnequalLines { set, lines: references[set].len(), hypotheses: hypotheses.len() });
        }
        Ok(Corpus { hypotheses, references, is_lowercase: false })
    }

    /// Converts all lines to lower case, for scores that ignore case.
    pub fn lowercase(&mut self) {
        let lines = self.references.iter_mut().chain([&mut self.hypotheses]).flatten();
        lines.for_each(|line| *line = line.to_lowercase());
        self.is_lowercase = true;
    }

    pub fn bleu(&self, tokenizer: BleuTokenizer) -> BleuSums {
        let of_line = |at: usize| BleuSums::of(tokenizer, &self.hypotheses[at], &self.references_of(at));
        self.lines().map(of_line).reduce(BleuSums::default, |mut sums, more| {
            sums.add(&more);
            sums
        })
    }

    pub fn chrf(&self, kind: Chrf) -> ChrfSums {
        let of_line = |at: usize| ChrfSums::of(kind, &self.hypotheses[at], &self.references_of(at));
        self.lines().map(of_line).reduce(ChrfSums::default, |mut sums, more| {
            sums.add(&more);
            sums
        })
    }

    fn lines(&self) -> impl IndexedParallelIterator<Item = usize> {
        (0..self.hypotheses.len()).into_par_iter()
    }

    fn references_of(&self, at: usize) -> Vec<&str> {
        self.references.iter().map(|lines| lines[at].as_str()).collect()
    }

    /// The settings of a BLEU score, in sacrebleu's format.
    pub fn bleu_signature(&self, tokenizer: BleuTokenizer, smoothing: Smoothing) -> String {
        self.signature(&format!("eff:no|tok:{}|smooth:{}", tokenizer.name(), smoothing.name()))
    }

    /// The settings of a chrF score, in sacrebleu's format.
    pub fn chrf_signature(&self, kind: Chrf) -> String {
        self.signature(&format!("eff:yes|nc:6|nw:{}|space:no", kind.word_orders()))
    }

    fn signature(&self, settings: &str) -> String {
        let case = if self.is_lowercase { "lc" } else { "mixed" };
        format!("nrefs:{}|case:{case}|{settings}|version:{SACREBLEU}", self.references.len())
    }
}
