//! Answers lines of text with a trained model, on all devices of this machine. Called by
//! `hetseq generate`, through the task registry.
//!
//! The devices are the pool that also trains. Batches of lines of similar length go to the next
//! free device, the longest first. Results are in the order of the lines. If a device fails, the
//! others continue without it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hetseq_data::Batch;

use super::trained_model::TrainedModel;
use crate::data::loader::{Job, MicroBatch};
use crate::devices::DeviceSpec;
use crate::error::TrainError;
use crate::task::{Answer, EncodedInput, TaskError, TextInference};
use crate::tasks::translation::DEFAULT_BEAM;

/// Settings of a [`Generator`].
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    pub devices: Vec<DeviceSpec>,
    /// Beam width: number of hypotheses per sentence. 1 is greedy search.
    pub beam: usize,
    /// Scores are divided by length to this power.
    pub length_penalty: f64,
    /// Source tokens in one batch, including padding.
    pub batch_tokens: usize,
    /// A translation has at most `max_ratio * source tokens + max_more` tokens.
    pub max_ratio: f64,
    pub max_more: usize,
}

impl GenerateOptions {
    pub fn new(devices: Vec<DeviceSpec>) -> Self {
        let beam = DEFAULT_BEAM;
        GenerateOptions { devices, beam, length_penalty: 1.0, batch_tokens: 1024, max_ratio: 2.0, max_more: 10 }
    }

    /// Limit on the tokens of a translation of this many source tokens. At least one.
    pub fn max_tokens(&self, source_tokens: usize) -> usize {
        let by_ratio = (self.max_ratio * source_tokens as f64) as usize;
        by_ratio.saturating_add(self.max_more).max(1)
    }
}

/// The translation of one line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Translation {
    /// Text and score, best first. For an empty line, one empty hypothesis.
    pub hypotheses: Vec<(String, f64)>,
    /// The line was empty.
    pub had_no_words: bool,
    /// Set if the line had more tokens than the model has positions and was truncated.
    pub was_cut: Option<Cut>,
    /// Tokens of the best hypothesis, without start and end.
    pub tokens: usize,
}

/// The length of a truncated line, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    pub tokens: usize,
    pub kept: usize,
}

/// A trained model that answers lines of text.
pub struct Generator {
    model: TrainedModel,
    encoder: Box<dyn Encoder>,
    batch_tokens: usize,
}

/// The host's part of a [`TextInference`], without its type.
trait Encoder {
    fn encode(&self, line: &str) -> Result<EncodedInput, TaskError>;
    fn collate(&self, lines: &[&EncodedInput]) -> Result<Batch, TaskError>;
}

struct InferenceEncoder<I>(Arc<I>);

impl<I: TextInference> Encoder for InferenceEncoder<I> {
    fn encode(&self, line: &str) -> Result<EncodedInput, TaskError> {
        self.0.encode(line)
    }

    fn collate(&self, lines: &[&EncodedInput]) -> Result<Batch, TaskError> {
        self.0.collate(lines)
    }
}

impl Generator {
    /// Loads the model of a `checkpoint` that has been verified.
    pub(crate) fn open<I: TextInference>(checkpoint: PathBuf, options: GenerateOptions) -> Result<Self, TrainError> {
        let failed = |reason: TaskError| TrainError::Task { task: I::TASK.to_owned(), reason: reason.into() };
        let inference = Arc::new(I::open(&checkpoint, &options).map_err(failed)?);
        let model = TrainedModel::open(checkpoint, &inference, &options.devices)?;
        let (encoder, batch_tokens) = (Box::new(InferenceEncoder(inference)), options.batch_tokens);
        Ok(Generator { model, encoder, batch_tokens })
    }

    /// Path of the loaded checkpoint.
    pub fn checkpoint(&self) -> &Path {
        &self.model.checkpoint
    }

    /// Answers all lines, in their order. `done` is called with the number of lines just completed
    /// and returns whether to continue.
    pub fn translate(
        &mut self,
        lines: &[String],
        done: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<Translation>, TrainError> {
        let mut translations = vec![Translation::default(); lines.len()];
        let mut encoded: Vec<(usize, EncodedInput)> = Vec::new();
        let mut empty = 0;
        for (line, text) in lines.iter().enumerate() {
            if text.trim().is_empty() {
                let hypotheses = vec![(String::new(), 0.0)];
                translations[line] = Translation { hypotheses, had_no_words: true, ..Translation::default() };
                empty += 1;
                continue;
            }
            let input = self.encoder.encode(text).map_err(|reason| self.model.failed(reason))?;
            let kept = input.tokens.len();
            translations[line].was_cut = input.tokens_before_cut.map(|tokens| Cut { tokens, kept });
            encoded.push((line, input));
        }
        done(empty);
        let jobs = self.jobs(encoded)?;
        let mut not_finite = None;
        self.model.devices.predict(jobs, &mut |job, predictions| {
            for (&line, Answer { texts, tokens }) in job.micro.samples.iter().zip(predictions) {
                if !texts.first().is_some_and(|(_, score)| score.is_finite()) {
                    not_finite.get_or_insert(line as usize);
                }
                let translation = &mut translations[line as usize];
                (translation.hypotheses, translation.tokens) = (texts, tokens);
            }
            done(job.micro.samples.len()) && not_finite.is_none()
        })?;
        match not_finite {
            Some(line) => {
                let line: String = lines[line].chars().take(60).collect();
                Err(self.model.score_not_finite(&format!("translations of `{line}`")))
            }
            None => Ok(translations),
        }
    }

    /// One job per batch. Its samples are the numbers of its lines.
    fn jobs(&self, lines: Vec<(usize, EncodedInput)>) -> Result<Vec<Arc<Job>>, TrainError> {
        let job = |lines: Vec<(usize, EncodedInput)>| {
            let inputs: Vec<&EncodedInput> = lines.iter().map(|(_, input)| input).collect();
            let batch = self.encoder.collate(&inputs).map_err(|reason| self.model.failed(reason))?;
            let longest = inputs.iter().map(|input| input.tokens.len()).max().unwrap_or(0) as u32;
            let samples = lines.iter().map(|(line, _)| *line as u32).collect();
            Ok(Arc::new(Job { micro: MicroBatch { samples, longest }, batch }))
        };
        batches(lines, self.batch_tokens).into_iter().map(job).collect()
    }
}

/// Groups lines into batches of at most `max_tokens` tokens with padding. The longest come first,
/// so that the last batches are short.
fn batches(mut lines: Vec<(usize, EncodedInput)>, max_tokens: usize) -> Vec<Vec<(usize, EncodedInput)>> {
    lines.sort_by_key(|(line, input)| (std::cmp::Reverse(input.tokens.len()), *line));
    let mut batches: Vec<Vec<(usize, EncodedInput)>> = Vec::new();
    for (line, input) in lines {
        match batches.last_mut() {
            // The first of a batch is its longest.
            Some(batch) if (batch.len() + 1) * batch[0].1.tokens.len() <= max_tokens => batch.push((line, input)),
            _ => batches.push(vec![(line, input)]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_limit_does_not_overflow() {
        let options = |max_ratio, max_more| GenerateOptions { max_ratio, max_more, ..GenerateOptions::new(Vec::new()) };
        assert_eq!(options(2.0, 10).max_tokens(7), 24);
        assert_eq!(options(0.0, 0).max_tokens(7), 1);
        for (ratio, more) in [(1e30, 10), (2.0, usize::MAX), (f64::INFINITY, 1)] {
            assert_eq!(options(ratio, more).max_tokens(7), usize::MAX);
        }
    }

    #[test]
    fn batches_hold_each_line_once_and_respect_the_limit() {
        let lengths = [3, 9, 1, 40, 9, 8, 2, 7, 7, 7];
        let input = |length| EncodedInput { tokens: vec![5; length], tokens_before_cut: None };
        let sentences = lengths.iter().enumerate().map(|(line, &length)| (line, input(length)));
        let batches = batches(sentences.collect(), 20);
        let mut lines: Vec<usize> = batches.iter().flatten().map(|(line, _)| *line).collect();
        assert_eq!(batches[0].len(), 1, "a sentence that is too long is a separate batch");
        for batch in &batches[1..] {
            let longest = batch.iter().map(|(_, input)| input.tokens.len()).max().unwrap();
            assert!(longest * batch.len() <= 20, "{batch:?}");
        }
        lines.sort_unstable();
        assert_eq!(lines, (0..lengths.len()).collect::<Vec<_>>());
    }
}
