//! Translations beside their references, line by line, scored on all cores. What a score is, is told in
//! [`bleu`](crate::bleu) and [`chrf`](crate::chrf); `hetseq score` reads the files and prints.

use rayon::prelude::*;

use crate::bleu::{BleuSums, Smoothing, Tokenizer};
use crate::chrf::{Chrf, ChrfSums};

/// The program whose numbers these are, as it names itself in a signature.
pub const SACREBLEU: &str = "2.6.0";

pub struct Corpus {
    hypotheses: Vec<String>,
    /// One or several sets, each with a line for each hypothesis.
    references: Vec<Vec<String>>,
    is_lowercase: bool,
}

/// A set of references does not have as many lines as there are hypotheses.
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

    /// Without regard to case from here on.
    pub fn lowercase(&mut self) {
        let lines = self.references.iter_mut().chain([&mut self.hypotheses]).flatten();
        lines.for_each(|line| *line = line.to_lowercase());
        self.is_lowercase = true;
    }

    pub fn bleu(&self, tokenizer: Tokenizer) -> BleuSums {
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

    /// What a BLEU score depends on, in the words of sacrebleu.
    pub fn bleu_signature(&self, tokenizer: Tokenizer, smoothing: Smoothing) -> String {
        self.signature(&format!("eff:no|tok:{}|smooth:{}", tokenizer.name(), smoothing.name()))
    }

    pub fn chrf_signature(&self, kind: Chrf) -> String {
        self.signature(&format!("eff:yes|nc:6|nw:{}|space:no", kind.word_orders()))
    }

    fn signature(&self, own: &str) -> String {
        let case = if self.is_lowercase { "lc" } else { "mixed" };
        format!("nrefs:{}|case:{case}|{own}|version:{SACREBLEU}", self.references.len())
    }
}
