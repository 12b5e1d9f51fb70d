//! Samples with a label for each text: `[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]`. Opened by the
//! sequence-classification task.
//!
//! Long pairs are truncated as by `BertTokenizerFast` with `truncation=True`: tokens are removed
//! from the longer text first.

use serde::Serialize;

use super::batch::PaddedRows;
use super::config::{SequenceSampleConfig, padded};
use super::encoded_texts::EncodedTexts;
use super::label_set::LabelSet;
use super::labelled_samples::LabelledSamples;
use super::sequence_file::SequenceFile;
use crate::arrays::Batch;
use crate::error::{CorpusError, DataError, FinetuneError};
use crate::plan::SampleLengths;
use crate::tokenize::{SpecialTokens, Tokenizer};

/// What is learned.
#[derive(Debug, Clone, Copy)]
pub enum SequenceTarget<'a> {
    /// One of several classes.
    Class(&'a LabelSet),
    /// A number: regression.
    Number,
    /// Nothing, for prediction.
    None,
}

/// The samples of one file, in its order.
#[derive(Debug)]
pub struct SequenceSamples {
    config: SequenceSampleConfig,
    special: SpecialTokens,
    /// Texts per sample: 1 or 2.
    texts: usize,
    /// The texts of all samples, truncated.
    tokens: EncodedTexts,
    targets: Targets,
    counts: SequenceSampleCounts,
}

/// One per sample.
#[derive(Debug)]
enum Targets {
    Classes { ids: Vec<u32>, fingerprint: String },
    Numbers(Vec<f32>),
    None,
}

/// What became of the texts of a file, for the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct SequenceSampleCounts {
    pub samples: usize,
    /// Samples that lost tokens.
    pub truncated_samples: usize,
    pub lost_tokens: usize,
    /// Texts without tokens.
    pub empty_texts: usize,
}

impl SequenceSamples {
    /// Tokenizes a file.
    pub fn new(
        file: &SequenceFile,
        target: SequenceTarget<'_>,
        tokenizer: &Tokenizer,
        config: &SequenceSampleConfig,
    ) -> Result<Self, DataError> {
        config.check()?;
        if file.len() as u64 >= u64::from(u32::MAX) {
            let (dir, samples) = (file.path().to_owned(), file.len() as u64);
            return Err(CorpusError::TooManySamples { dir, samples }.into());
        }
        let targets = Targets::new(file, target)?;
        let texts = file.texts();
        let all = EncodedTexts::new(file.len() * texts, |at| file.text(at / texts, at % texts), tokenizer, |_| {})?;
        let mut counts = SequenceSampleCounts { samples: file.len(), ..Default::default() };
        let mut tokens = EncodedTexts::default();
        let max_tokens = config.max_seq_length - 1 - texts;
        for sample in 0..file.len() {
            let ranges = [0, 1].map(|text| match text < texts {
                true => all.range(sample * texts + text..sample * texts + text + 1),
                false => 0..0,
            });
            let lengths = ranges.each_ref().map(|range| range.len());
            let kept = longest_first(lengths, max_tokens);
            let lost = lengths[0] + lengths[1] - kept[0] - kept[1];
            counts.lost_tokens += lost;
            counts.truncated_samples += usize::from(lost > 0);
            for (range, kept) in ranges.into_iter().zip(kept).take(texts) {
                counts.empty_texts += usize::from(range.is_empty());
                tokens.tokens.extend_from_slice(&all.tokens[range.start..range.start + kept]);
                tokens.ends.push(tokens.tokens.len());
            }
        }
        let special = tokenizer.vocabulary().special;
        Ok(SequenceSamples { config: config.clone(), special, texts, tokens, targets, counts })
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.counts.samples
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn counts(&self) -> &SequenceSampleCounts {
        &self.counts
    }

    /// The number to be learned for a sample, if the samples have numbers.
    pub fn number(&self, sample: u32) -> Option<f32> {
        match &self.targets {
            Targets::Numbers(numbers) => numbers.get(sample as usize).copied(),
            Targets::Classes { .. } | Targets::None => None,
        }
    }

    /// The padded length of the longest batch.
    pub fn longest(&self) -> usize {
        self.padded((0..self.len()).map(|sample| self.row_tokens(sample)).max().unwrap_or(0))
    }

    /// The number of tokens of a sample, special tokens included.
    fn row_tokens(&self, sample: usize) -> usize {
        self.tokens.range(sample * self.texts..(sample + 1) * self.texts).len() + 1 + self.texts
    }

    fn row(&self, sample: usize) -> impl Iterator<Item = u32> {
        let texts = (0..self.texts).flat_map(move |text| {
            let at = sample * self.texts + text;
            self.tokens.tokens[self.tokens.range(at..at + 1)].iter().copied().chain([self.special.sep])
        });
        [self.special.cls].into_iter().chain(texts)
    }

    fn padded(&self, tokens: usize) -> usize {
        padded(tokens, self.config.pad_to_multiple, self.config.max_seq_length)
    }
}

impl LabelledSamples for SequenceSamples {
    fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[self.texts as u8]);
        self.tokens.hash(&mut hasher);
        match &self.targets {
            Targets::Classes { ids, fingerprint } => {
                hasher.update(fingerprint.as_bytes());
                ids.iter().for_each(|id| {
                    hasher.update(&id.to_le_bytes());
                });
            }
            Targets::Numbers(numbers) => numbers.iter().for_each(|number| {
                hasher.update(&number.to_le_bytes());
            }),
            Targets::None => {}
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }

    fn lengths(&self) -> SampleLengths {
        SampleLengths::PerSample((0..self.len()).map(|sample| self.padded(self.row_tokens(sample)) as u32).collect())
    }

    /// Builds a batch with the arrays `input_ids` and `segment_ids` (`[rows, width]`), `lengths`
    /// (`[rows]`), and `labels` (`[rows]`, classes) or `targets` (`[rows]`, numbers). The count is
    /// samples.
    ///
    /// For prediction there are neither `labels` nor `targets`, and the count is 0.
    fn collate(&self, ids: &[u32]) -> Result<Batch, DataError> {
        if let Some(&sample) = ids.iter().find(|&&id| id as usize >= self.len()) {
            return Err(CorpusError::NoSuchSample { sample, samples: self.len() }.into());
        }
        let samples = || ids.iter().map(|&id| id as usize);
        let width = self.padded(samples().map(|sample| self.row_tokens(sample)).max().unwrap_or(0));
        let mut padded = PaddedRows::new(ids.len(), width, self.special.pad);
        for sample in samples() {
            let first_segment = self.tokens.range(sample * self.texts..sample * self.texts + 1).len() + 2;
            padded.push(self.row(sample), first_segment);
        }
        let count = ids.len() as u64;
        Ok(match &self.targets {
            Targets::Classes { ids, .. } => {
                let labels = samples().map(|sample| ids[sample] as i32).collect();
                padded.into_batch(count).with_i32("labels", [count as usize], labels)
            }
            Targets::Numbers(numbers) => {
                let targets = samples().map(|sample| numbers[sample]).collect();
                padded.into_batch(count).with_f32("targets", [count as usize], targets)
            }
            Targets::None => padded.into_batch(0),
        })
    }
}

impl Targets {
    fn new(file: &SequenceFile, target: SequenceTarget<'_>) -> Result<Self, DataError> {
        let label = |sample: usize| {
            file.label(sample).ok_or_else(|| FinetuneError::Unlabelled { path: file.path().to_owned() })
        };
        Ok(match target {
            SequenceTarget::None => Targets::None,
            SequenceTarget::Class(set) => {
                let class = |sample: usize| {
                    let label = label(sample)?;
                    if label.is_empty() {
                        let (path, column) = (file.path().to_owned(), file.label_column());
                        return Err(FinetuneError::EmptyClass { path, line: file.line(sample), column }.into());
                    }
                    set.id(label).ok_or_else(|| set.unknown(file.path(), file.line(sample), label))
                };
                let ids = (0..file.len()).map(class).collect::<Result<_, DataError>>()?;
                Targets::Classes { ids, fingerprint: set.fingerprint() }
            }
            SequenceTarget::Number => {
                let number = |sample: usize| {
                    let text = label(sample)?;
                    text.parse().ok().filter(|number: &f32| number.is_finite()).ok_or_else(|| {
                        let (path, column) = (file.path().to_owned(), file.label_column());
                        FinetuneError::BadNumber { path, line: file.line(sample), column, text: text.to_owned() }.into()
                    })
                };
                Targets::Numbers((0..file.len()).map(number).collect::<Result<_, DataError>>()?)
            }
        })
    }
}

/// How many tokens of two texts are kept, as by `LongestFirst` of the `tokenizers` crate: tokens
/// are removed from the longer text until both are equally long, then from both.
fn longest_first([first, second]: [usize; 2], max_tokens: usize) -> [usize; 2] {
    if first + second <= max_tokens {
        return [first, second];
    }
    let (shorter, is_swapped) = (first.min(second), first > second);
    let half = max_tokens / 2;
    let kept = if shorter <= half { [shorter, max_tokens - shorter] } else { [half, max_tokens - half] };
    if is_swapped { [kept[1], kept[0]] } else { kept }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::Encoding;
    use tokenizers::utils::truncation::{TruncationParams, truncate_encodings};

    use super::*;

    fn encoding(tokens: usize) -> Encoding {
        let tokens = (0..tokens).map(|id| tokenizers::Token::new(id as u32, "x".to_owned(), (0, 1))).collect();
        Encoding::from_tokens(tokens, 0)
    }

    proptest! {
        #[test]
        fn pairs_are_truncated_as_by_the_tokenizers_crate(
            first in 0usize..40, second in 0usize..40, max in 1usize..40,
        ) {
            let params = TruncationParams { max_length: max, ..TruncationParams::default() };
            let (one, other) = truncate_encodings(encoding(first), Some(encoding(second)), &params).unwrap();
            let expected = [one.get_ids().len(), other.unwrap().get_ids().len()];
            prop_assert_eq!(longest_first([first, second], max), expected);
        }
    }
}
