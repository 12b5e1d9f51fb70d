//! Translates lines of text with a trained model. Called by `hetseq generate`.
//!
//! Each device is a thread with its own replica. Batches of sentences of similar length go to the
//! next free device, the longest first. Results are in the order of the lines. If a device fails,
//! the others continue without it.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use hetseq_data::TranslateTokenizer;
use hetseq_models::beam::BeamSettings;
use hetseq_models::transformer::{Transformer, TransformerConfig, parameter_name};
use rayon::ThreadPool;

use super::work_queue;
use crate::checkpoint::Checkpoints;
use crate::checkpoint::weights;
use crate::devices::backend;
use crate::devices::{DeviceSpec, catch_panic};
use crate::error::TrainError;
use crate::tasks::translation::{self, Sentence};

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
        let beam = translation::DEFAULT_BEAM;
        GenerateOptions { devices, beam, length_penalty: 1.0, batch_tokens: 1024, max_ratio: 2.0, max_more: 10 }
    }

    /// Limit on the tokens of a translation of this many source tokens. At least one.
    fn max_tokens(&self, source_tokens: usize) -> usize {
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

/// A loaded translation model with its replicas.
pub struct Generator {
    checkpoint: PathBuf,
    config: TransformerConfig,
    tokenizer: TranslateTokenizer,
    workers: Vec<Worker>,
    options: GenerateOptions,
}

struct Worker {
    name: String,
    pool: ThreadPool,
    model: Transformer,
    device: Device,
}

impl Generator {
    /// Loads a model. `path` is a run (its best checkpoint is used, else the newest), a checkpoint,
    /// or a Hugging Face directory of a Marian model with a `tokenizer.json`.
    pub fn open(path: &Path, options: GenerateOptions) -> Result<Self, TrainError> {
        let checkpoint = Checkpoints::resolve(path)?;
        let wrong = |reason| TrainError::Task { task: "generate", reason };
        let config = translation::read_model_config(&checkpoint).map_err(wrong)?;
        let tokenizer = TranslateTokenizer::read(&checkpoint)?;
        translation::fits(&config, &tokenizer)
            .map_err(|reason| TrainError::Config(format!("{}: {reason}", checkpoint.display())))?;
        let mut workers = Vec::new();
        for spec in &options.devices {
            let name = spec.name.clone();
            let failed = |reason: String| TrainError::Device { device: name.clone(), doing: "starting", reason };
            let pool = rayon::ThreadPoolBuilder::new().num_threads(spec.threads()).build();
            let pool = pool.map_err(|error| failed(error.to_string()))?;
            let device = match backend::open(&spec.kind) {
                Ok(device) => device,
                Err(reason) if spec.is_optional => {
                    tracing::warn!("{name} is not used: {reason}");
                    continue;
                }
                Err(reason) => return Err(failed(reason)),
            };
            let shares = config.share_encoder_decoder_embeddings;
            let rename = |theirs: &str| parameter_name(theirs, shares);
            let (model, report) =
                weights::load_verified(Transformer::new(&config, &device), &checkpoint, &rename, &device)?;
            if let Some(missing) = report.missing.iter().find(|name| *name != "final_logits_bias") {
                let reason = format!("the tensor {missing} is missing, which the model of its config.json has");
                return Err(TrainError::Checkpoint { path: checkpoint, reason });
            }
            workers.push(Worker { name, pool, model, device });
        }
        if workers.is_empty() {
            return Err(TrainError::Config(
                "none of the devices can be used (see above); use --devices cpu".to_owned(),
            ));
        }
        Ok(Generator { checkpoint, config, tokenizer, workers, options })
    }

    /// Path of the loaded checkpoint.
    pub fn checkpoint(&self) -> &Path {
        &self.checkpoint
    }

    /// Translates all lines, in their order. `done` is called with the number of lines just
    /// completed and returns whether to continue.
    pub fn translate(
        &mut self,
        lines: &[String],
        done: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<Vec<Translation>, TrainError> {
        let mut translations = vec![Translation::default(); lines.len()];
        let mut sentences: Vec<(usize, Sentence)> = Vec::new();
        let mut empty = 0;
        for (line, text) in lines.iter().enumerate() {
            if text.trim().is_empty() {
                translations[line] = Translation {
                    hypotheses: vec![(String::new(), 0.0)],
                    had_no_words: true,
                    ..Translation::default()
                };
                empty += 1;
                continue;
            }
            let (source, was_cut) = self.fitting(self.tokenizer.encode_source(text)?);
            translations[line].was_cut = was_cut;
            let limit = self.options.max_tokens(source.len());
            sentences.push((line, Sentence { source, limit }));
        }
        done(empty);
        let batches = batches(sentences, self.options.batch_tokens);
        for (line, hypotheses) in self.run(batches, done)? {
            if !hypotheses.first().is_some_and(|best| best.score.is_finite()) {
                return Err(self.score_not_finite(&lines[line]));
            }
            let translation = &mut translations[line];
            translation.tokens = hypotheses.first().map_or(0, |best| best.tokens.len());
            for hypothesis in hypotheses {
                let text = self.tokenizer.decode_target(&hypothesis.tokens)?;
                translation.hypotheses.push((text, hypothesis.score));
            }
        }
        Ok(translations)
    }

    /// The weights are finite, but the scores are not.
    fn score_not_finite(&self, line: &str) -> TrainError {
        let line: String = line.chars().take(60).collect();
        let reason = format!("its scores for translations of `{line}` are not finite. Use an earlier checkpoint");
        TrainError::Checkpoint { path: self.checkpoint.clone(), reason }
    }

    /// Truncates a source to the model's positions. Keeps the end token.
    fn fitting(&self, mut source: Vec<u32>) -> (Vec<u32>, Option<Cut>) {
        let (tokens, kept) = (source.len(), self.config.max_position_embeddings);
        if tokens <= kept {
            return (source, None);
        }
        source.truncate(kept - 1);
        source.push(self.tokenizer.source_special().eos);
        (source, Some(Cut { tokens, kept }))
    }

    fn run(
        &mut self,
        batches: Vec<Batch>,
        done: &(dyn Fn(usize) -> bool + Sync),
    ) -> Result<Vec<TranslatedLine>, TrainError> {
        let settings = translation::settings(&self.config, self.options.beam, self.options.length_penalty);
        let config = &self.config;
        let found = work_queue::run_all(
            &mut self.workers,
            batches,
            |worker, batch| worker.translate(config, batch, &settings),
            |lines: &Vec<TranslatedLine>| done(lines.len()),
            |error| tracing::warn!("{error}; the other devices continue without it"),
        )?;
        Ok(found.into_iter().flatten().collect())
    }
}

/// The index of a line and its hypotheses.
type TranslatedLine = (usize, Vec<hetseq_models::beam::Hypothesis>);
type Batch = Vec<(usize, Sentence)>;

impl Worker {
    fn translate(
        &mut self,
        config: &TransformerConfig,
        batch: &Batch,
        settings: &BeamSettings,
    ) -> Result<Vec<TranslatedLine>, TrainError> {
        let sentences: Vec<Sentence> = batch.iter().map(|(_, sentence)| sentence.clone()).collect();
        let Worker { name, pool, model, device } = self;
        let translate = || pool.install(|| translation::translate(model, config, &sentences, settings, device));
        let failed = |reason| TrainError::Device { device: name.clone(), doing: "translating", reason };
        let found = catch_panic(|| Ok(translate())).map_err(failed)?;
        Ok(batch.iter().map(|(line, _)| *line).zip(found).collect())
    }
}

/// Groups sentences into batches of at most `max_tokens` tokens with padding. The longest come
/// first, so that the last batches are short.
fn batches(mut sentences: Vec<(usize, Sentence)>, max_tokens: usize) -> Vec<Batch> {
    sentences.sort_by_key(|(line, sentence)| (std::cmp::Reverse(sentence.source.len()), *line));
    let mut batches: Vec<Batch> = Vec::new();
    for (line, sentence) in sentences {
        match batches.last_mut() {
            // The first of a batch is its longest.
            Some(batch) if (batch.len() + 1) * batch[0].1.source.len() <= max_tokens => batch.push((line, sentence)),
            _ => batches.push(vec![(line, sentence)]),
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
        let sentences = lengths.iter().enumerate().map(|(line, &length)| (line, Sentence::new(vec![5; length])));
        let batches = batches(sentences.collect(), 20);
        let mut lines: Vec<usize> = batches.iter().flatten().map(|(line, _)| *line).collect();
        assert_eq!(batches[0].len(), 1, "a sentence that is too long is a separate batch");
        for batch in &batches[1..] {
            let longest = batch.iter().map(|(_, sentence)| sentence.source.len()).max().unwrap();
            assert!(longest * batch.len() <= 20, "{batch:?}");
        }
        lines.sort_unstable();
        assert_eq!(lines, (0..lengths.len()).collect::<Vec<_>>());
    }
}
