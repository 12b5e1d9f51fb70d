//! Samples with a label for each word: `[CLS]`, the sub-tokens of the words, `[SEP]`. Opened by the
//! token-classification task.
//!
//! Each word is tokenized on its own, as Hugging Face does with `is_split_into_words=True`. A word
//! without sub-tokens, such as a control character, gets `[UNK]`: every word needs a position for
//! its label and its prediction.

use std::ops::Range;

use serde::Serialize;

use super::batch::PaddedRows;
use super::config::{LongSentences, TokenSampleConfig, padded};
use super::encoded_texts::EncodedTexts;
use super::label_set::LabelSet;
use super::labelled_samples::LabelledSamples;
use super::windows::{WordWindow, windows, words_that_fit};
use super::{ConllFile, IGNORED_LABEL};
use crate::arrays::Batch;
use crate::error::{CorpusError, DataError};
use crate::plan::SampleLengths;
use crate::tokenize::{SpecialTokens, Tokenizer};

/// `[CLS]` and `[SEP]`.
const SPECIAL_TOKENS: usize = 2;

/// The samples of one file: sentences, or windows of long sentences, in the order of the file.
#[derive(Debug)]
pub struct TokenSamples {
    config: TokenSampleConfig,
    special: SpecialTokens,
    /// The sub-tokens of all words.
    words: EncodedTexts,
    /// The label of each word; `None` for prediction.
    labels: Option<WordLabels>,
    samples: Vec<Sample>,
    counts: TokenSampleCounts,
}

#[derive(Debug)]
struct WordLabels {
    /// One per word.
    ids: Vec<u32>,
    /// For each label, that of the other sub-tokens of its word.
    continued: Vec<u32>,
    /// Of the label set.
    fingerprint: String,
}

/// Words are numbered over the whole file.
#[derive(Debug)]
struct Sample {
    sentence: usize,
    /// The first word of the sentence.
    sentence_start: usize,
    window: WordWindow,
}

/// Where the words of a sample come from. Words are numbered within their sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenWindow {
    /// The sentence in the file, from 0.
    pub sentence: usize,
    /// The words of the sample.
    pub words: Range<usize>,
    /// Those that have labels here. The others are context.
    pub labelled: Range<usize>,
}

/// What became of the sentences of a file, for the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct TokenSampleCounts {
    pub sentences: usize,
    pub words: usize,
    pub samples: usize,
    /// Sentences that became several samples.
    pub split_sentences: usize,
    /// Sentences that lost tokens at their end.
    pub truncated_sentences: usize,
    /// Words without a label in any sample, because their sentences were truncated.
    pub lost_words: usize,
    /// Words with more sub-tokens than fit into a sample; the last ones were dropped.
    pub shortened_words: usize,
    /// Words without sub-tokens, which became `[UNK]`.
    pub empty_words: usize,
}

impl TokenSamples {
    /// Tokenizes a file. `labels` is `None` for prediction: labels of the file are not used then.
    pub fn new(
        file: &ConllFile,
        labels: Option<&LabelSet>,
        tokenizer: &Tokenizer,
        config: &TokenSampleConfig,
    ) -> Result<Self, DataError> {
        config.check()?;
        let word_labels = |set: &LabelSet| {
            let ids = set.word_labels(file)?;
            Ok::<_, DataError>(WordLabels { ids, continued: set.continued(), fingerprint: set.fingerprint() })
        };
        let labels = labels.map(word_labels).transpose()?;
        let special = tokenizer.vocabulary().special;
        let max_tokens = config.max_seq_length - SPECIAL_TOKENS;
        let mut counts = TokenSampleCounts { sentences: file.sentences(), words: file.words(), ..Default::default() };
        let (empty, shortened) = Default::default();
        let words = EncodedTexts::new(
            file.words(),
            |word| file.word(word),
            tokenizer,
            |ids| {
                adjust(ids, special.unk, max_tokens, [&empty, &shortened]);
            },
        )?;
        (counts.empty_words, counts.shortened_words) = (empty.into_inner(), shortened.into_inner());

        let mut samples = Vec::with_capacity(file.sentences());
        for sentence in 0..file.sentences() {
            let range = file.sentence(sentence);
            let start = |word: usize| words.start(range.start + word);
            let is_long = words.range(range.clone()).len() > max_tokens;
            let found = match config.long_sentences {
                LongSentences::Windows => windows(range.len(), start, max_tokens, config.overlap_words),
                LongSentences::Truncate => {
                    let kept = words_that_fit(range.len(), start, max_tokens);
                    counts.truncated_sentences += usize::from(is_long);
                    counts.lost_words += range.len() - kept;
                    vec![WordWindow { words: 0..kept, labelled: 0..kept }]
                }
            };
            counts.split_sentences += usize::from(found.len() > 1);
            samples.extend(found.into_iter().map(|window| Sample { sentence, sentence_start: range.start, window }));
        }
        if samples.len() as u64 >= u64::from(u32::MAX) {
            let (dir, samples) = (file.path().to_owned(), samples.len() as u64);
            return Err(CorpusError::TooManySamples { dir, samples }.into());
        }
        counts.samples = samples.len();
        Ok(TokenSamples { config: config.clone(), special, words, labels, samples, counts })
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    pub fn counts(&self) -> &TokenSampleCounts {
        &self.counts
    }

    /// Where the words of a sample come from.
    pub fn window(&self, sample: u32) -> Option<TokenWindow> {
        let Sample { sentence, window, .. } = self.samples.get(sample as usize)?;
        Some(TokenWindow { sentence: *sentence, words: window.words.clone(), labelled: window.labelled.clone() })
    }

    /// For each labelled word of a sample, the number of its positions in `label_positions`: 1, or
    /// with `label_all` that of its sub-tokens. The prediction for a word is that of its first
    /// position.
    pub fn positions_per_word(&self, sample: u32) -> Vec<usize> {
        let found = self.samples.get(sample as usize);
        found.map_or_else(Vec::new, |sample| self.labelled(sample).map(|(_, columns)| columns.len()).collect())
    }

    /// For each sample of a batch, and for each of its labelled words, the `row * width + column` of
    /// the first sub-token. With `label_all`, `label_positions` also has the others.
    pub fn word_positions(&self, ids: &[u32]) -> Result<Vec<Vec<i32>>, DataError> {
        let (rows, width) = self.rows(ids)?;
        let of_row = |(row, sample): (usize, &&Sample)| {
            self.labelled(sample).map(|(_, columns)| (row * width + columns.start) as i32).collect()
        };
        Ok(rows.iter().enumerate().map(of_row).collect())
    }

    /// The padded length of the longest batch.
    pub fn longest(&self) -> usize {
        self.padded(self.samples.iter().map(|sample| self.tokens(sample)).max().unwrap_or(0))
    }

    /// The tokens of a sample and the label of each, as Hugging Face has them: [`IGNORED_LABEL`]
    /// for special tokens, context and unlabelled sub-tokens.
    pub fn token_labels(&self, sample: u32) -> Result<(Vec<u32>, Vec<i32>), DataError> {
        let sample = self.sample(sample)?;
        let ids: Vec<u32> = self.row(sample).collect();
        let mut labels = vec![IGNORED_LABEL; ids.len()];
        for (word, columns) in self.labelled(sample) {
            let count = columns.len();
            for (column, label) in columns.zip(self.word_labels(word, count)) {
                labels[column] = label;
            }
        }
        Ok((ids, labels))
    }

    fn sample(&self, id: u32) -> Result<&Sample, DataError> {
        let missing = || CorpusError::NoSuchSample { sample: id, samples: self.len() }.into();
        self.samples.get(id as usize).ok_or_else(missing)
    }

    /// The samples of a batch, and its width.
    fn rows(&self, ids: &[u32]) -> Result<(Vec<&Sample>, usize), DataError> {
        let rows: Vec<&Sample> = ids.iter().map(|&id| self.sample(id)).collect::<Result<_, _>>()?;
        let width = self.padded(rows.iter().map(|sample| self.tokens(sample)).max().unwrap_or(0));
        Ok((rows, width))
    }

    /// Where the sub-tokens of a sample are. A truncated sentence may end within a word.
    fn sub_tokens(&self, sample: &Sample) -> Range<usize> {
        let WordWindow { words, .. } = &sample.window;
        let range = self.words.range(sample.sentence_start + words.start..sample.sentence_start + words.end);
        range.start..range.end.min(range.start + self.config.max_seq_length - SPECIAL_TOKENS)
    }

    /// The number of tokens of a sample, special tokens included.
    fn tokens(&self, sample: &Sample) -> usize {
        self.sub_tokens(sample).len() + SPECIAL_TOKENS
    }

    fn row(&self, sample: &Sample) -> impl Iterator<Item = u32> {
        let tokens = &self.words.tokens[self.sub_tokens(sample)];
        [self.special.cls].into_iter().chain(tokens.iter().copied()).chain([self.special.sep])
    }

    /// The labelled words of a sample, numbered over the file, and the columns of their labels.
    fn labelled(&self, sample: &Sample) -> impl Iterator<Item = (usize, Range<usize>)> {
        let (all, labelled) = (self.sub_tokens(sample), &sample.window.labelled);
        (labelled.start..labelled.end).map(move |word| {
            let word = sample.sentence_start + word;
            let tokens = self.words.range(word..word + 1);
            let end = if self.config.label_all { tokens.end.min(all.end) } else { tokens.start + 1 };
            (word, tokens.start - all.start + 1..end - all.start + 1)
        })
    }

    /// The labels of the first sub-tokens of a word; none without labels.
    fn word_labels(&self, word: usize, sub_tokens: usize) -> impl Iterator<Item = i32> {
        let first = self.labels.as_ref().and_then(|labels| Some((*labels.ids.get(word)?, &labels.continued)));
        first.into_iter().flat_map(move |(first, continued)| {
            let other = continued.get(first as usize).copied().unwrap_or(first);
            (0..sub_tokens).map(move |at| if at == 0 { first as i32 } else { other as i32 })
        })
    }

    fn padded(&self, tokens: usize) -> usize {
        padded(tokens, self.config.pad_to_multiple, self.config.max_seq_length)
    }
}

impl LabelledSamples for TokenSamples {
    fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        self.words.hash(&mut hasher);
        for Sample { sentence_start, window: WordWindow { words, labelled }, .. } in &self.samples {
            for number in [sentence_start, &words.start, &words.end, &labelled.start, &labelled.end] {
                hasher.update(&(*number as u64).to_le_bytes());
            }
        }
        hasher.update(&[u8::from(self.config.label_all)]);
        if let Some(labels) = &self.labels {
            hasher.update(labels.fingerprint.as_bytes());
            labels.ids.iter().for_each(|id| {
                hasher.update(&id.to_le_bytes());
            });
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }

    fn lengths(&self) -> SampleLengths {
        let padded = |sample: &Sample| self.padded(self.tokens(sample)) as u32;
        SampleLengths::PerSample(self.samples.iter().map(padded).collect())
    }

    /// Builds a batch with the arrays `input_ids` and `segment_ids` (`[rows, width]`), `lengths`
    /// (`[rows]`), `label_positions` and `labels` (one per labelled sub-token, in the order of rows
    /// and words). A position is `row * width + column`. The count is labelled sub-tokens.
    ///
    /// For prediction there are positions, but no `labels`, and the count is 0.
    fn collate(&self, ids: &[u32]) -> Result<Batch, DataError> {
        let (rows, width) = self.rows(ids)?;
        let mut padded = PaddedRows::new(rows.len(), width, self.special.pad);
        let (mut positions, mut labels) = (Vec::new(), Vec::new());
        for (row, sample) in rows.iter().enumerate() {
            padded.push(self.row(sample), usize::MAX);
            for (word, columns) in self.labelled(sample) {
                labels.extend(self.word_labels(word, columns.len()));
                positions.extend(columns.map(|column| (row * width + column) as i32));
            }
        }
        let batch = padded.into_batch(labels.len() as u64).with_i32("label_positions", [positions.len()], positions);
        Ok(match &self.labels {
            Some(_) => batch.with_i32("labels", [labels.len()], labels),
            None => batch,
        })
    }
}

/// Gives a word at least one sub-token and at most `max_tokens`, and counts what it changed.
fn adjust(ids: &mut Vec<u32>, unknown: u32, max_tokens: usize, counts: [&std::sync::atomic::AtomicUsize; 2]) {
    use std::sync::atomic::Ordering::Relaxed;
    if ids.is_empty() {
        ids.push(unknown);
        counts[0].fetch_add(1, Relaxed);
    }
    if ids.len() > max_tokens {
        ids.truncate(max_tokens);
        counts[1].fetch_add(1, Relaxed);
    }
}
