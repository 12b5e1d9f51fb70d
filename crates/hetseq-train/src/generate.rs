//! Translating lines of text with a trained model. Each device is a thread with a replica of its own; batches of sentences of
//! similar length are handed out to whoever is free, the longest first, and come back in the order of the lines. A device that
//! fails is done without while there are others.

mod hand_out;

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use hetseq_data::TranslateTokenizer;
use hetseq_models::beam::BeamSettings;
use hetseq_models::transformer::{Transformer, TransformerConfig, parameter_name};
use rayon::ThreadPool;

use crate::checkpoint::Checkpoints;
use crate::devices::{DeviceSpec, guarded};
use crate::engine;
use crate::error::TrainError;
use crate::tasks::translation::{self, Sentence};
use crate::weights;

/// How to translate.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    pub devices: Vec<DeviceSpec>,
    /// How many hypotheses of a sentence are followed; 1 is greedy.
    pub beam: usize,
    /// Scores are divided by length to this power.
    pub length_penalty: f64,
    /// Tokens of the source in one batch, padding included.
    pub batch_tokens: usize,
    /// A translation has at most `most_per_token * source tokens + most_more` tokens.
    pub most_per_token: f64,
    pub most_more: usize,
}

impl GenerateOptions {
    pub fn new(devices: Vec<DeviceSpec>) -> Self {
        let beam = translation::USUAL_BEAM;
        GenerateOptions { devices, beam, length_penalty: 1.0, batch_tokens: 1024, most_per_token: 2.0, most_more: 10 }
    }

    /// The most tokens of a translation of so many source tokens; at least one.
    fn most_tokens(&self, source_tokens: usize) -> usize {
        let by_ratio = (self.most_per_token * source_tokens as f64) as usize;
        by_ratio.saturating_add(self.most_more).max(1)
    }
}

/// What became of a line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Translation {
    /// Best first: text and score. Of a line without words one that is empty.
    pub hypotheses: Vec<(String, f64)>,
    /// There was nothing to translate.
    pub had_no_words: bool,
    /// It had more tokens than the model has positions, and was cut to so many.
    pub was_cut: Option<Cut>,
    /// Without start and end, of the best one.
    pub tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    pub tokens: usize,
    pub kept: usize,
}

/// A model that is ready to translate.
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
    /// Of a run (its best checkpoint, else the newest), a checkpoint, or a Hugging Face directory of a Marian model with a
    /// `tokenizer.json`.
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
            let device = match engine::open(&spec.place) {
                Ok(device) => device,
                Err(reason) if spec.is_optional => {
                    tracing::warn!("{name} is left out: {reason}");
                    continue;
                }
                Err(reason) => return Err(failed(reason)),
            };
            let shares = config.share_encoder_decoder_embeddings;
            let rename = |theirs: &str| parameter_name(theirs, shares);
            let (model, found) =
                weights::load_verified(Transformer::new(&config, &device), &checkpoint, &rename, &device)?;
            if let Some(missing) = found.missing.iter().find(|name| *name != "final_logits_bias") {
                let reason = format!("there is no tensor {missing}, which the model of its config.json has");
                return Err(TrainError::Checkpoint { path: checkpoint, reason });
            }
            workers.push(Worker { name, pool, model, device });
        }
        if workers.is_empty() {
            return Err(TrainError::Config(
                "none of the devices can be used (see above); say --devices cpu".to_owned(),
            ));
        }
        Ok(Generator { checkpoint, config, tokenizer, workers, options })
    }

    /// Which checkpoint it is.
    pub fn checkpoint(&self) -> &Path {
        &self.checkpoint
    }

    /// One translation per line, in their order. `done` is told how many lines more are done, and is asked whether to go on.
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
            let limit = self.options.most_tokens(source.len());
            sentences.push((line, Sentence { source, limit }));
        }
        done(empty);
        let batches = batches(sentences, self.options.batch_tokens);
        for (line, hypotheses) in self.run(batches, done)? {
            if !hypotheses.first().is_some_and(|best| best.score.is_finite()) {
                return Err(self.no_score(&lines[line]));
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

    /// The weights are finite, but what is computed with them is not.
    fn no_score(&self, line: &str) -> TrainError {
        let line: String = line.chars().take(60).collect();
        let reason = format!("its scores of translations of `{line}` are not finite. Use an earlier checkpoint");
        TrainError::Checkpoint { path: self.checkpoint.clone(), reason }
    }

    /// No longer than the model has positions; the end stays.
    fn fitting(&self, mut source: Vec<u32>) -> (Vec<u32>, Option<Cut>) {
        let (tokens, kept) = (source.len(), self.config.max_position_embeddings);
        if tokens <= kept {
            return (source, None);
        }
        source.truncate(kept - 1);
        source.push(self.tokenizer.source_special().eos);
        (source, Some(Cut { tokens, kept }))
    }

    fn run(&mut self, batches: Vec<Batch>, done: &(dyn Fn(usize) -> bool + Sync)) -> Result<Vec<Found>, TrainError> {
        let settings = translation::settings(&self.config, self.options.beam, self.options.length_penalty);
        let config = &self.config;
        let found = hand_out::hand_out(
            &mut self.workers,
            batches,
            |worker, batch| worker.translate(config, batch, &settings),
            |answers: &Vec<Found>| done(answers.len()),
            |error| tracing::warn!("{error}; the other devices go on without it"),
        )?;
        Ok(found.into_iter().flatten().collect())
    }
}

/// A line and its hypotheses.
type Found = (usize, Vec<hetseq_models::beam::Hypothesis>);
type Batch = Vec<(usize, Sentence)>;

impl Worker {
    fn translate(
        &mut self,
        config: &TransformerConfig,
        batch: &Batch,
        settings: &BeamSettings,
    ) -> Result<Vec<Found>, TrainError> {
        let sentences: Vec<Sentence> = batch.iter().map(|(_, sentence)| sentence.clone()).collect();
        let Worker { name, pool, model, device } = self;
        let translate = || pool.install(|| translation::translate(model, config, &sentences, settings, device));
        let failed = |reason| TrainError::Device { device: name.clone(), doing: "translating", reason };
        let found = guarded(|| Ok(translate())).map_err(failed)?;
        Ok(batch.iter().map(|(line, _)| *line).zip(found).collect())
    }
}

/// The longest first, so that what is left for the end is short; each at most so many tokens with its padding.
fn batches(mut sentences: Vec<(usize, Sentence)>, most_tokens: usize) -> Vec<Batch> {
    sentences.sort_by_key(|(line, sentence)| (std::cmp::Reverse(sentence.source.len()), *line));
    let mut batches: Vec<Batch> = Vec::new();
    for (line, sentence) in sentences {
        match batches.last_mut() {
            // The first of a batch is its longest.
            Some(batch) if (batch.len() + 1) * batch[0].1.source.len() <= most_tokens => batch.push((line, sentence)),
            _ => batches.push(vec![(line, sentence)]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_translation_never_wraps_around() {
        let options = |most_per_token, most_more| GenerateOptions {
            most_per_token,
            most_more,
            ..GenerateOptions::new(Vec::new())
        };
        assert_eq!(options(2.0, 10).most_tokens(7), 24);
        assert_eq!(options(0.0, 0).most_tokens(7), 1);
        for (ratio, more) in [(1e30, 10), (2.0, usize::MAX), (f64::INFINITY, 1)] {
            assert_eq!(options(ratio, more).most_tokens(7), usize::MAX);
        }
    }

    #[test]
    fn batches_hold_each_line_once_and_no_more_than_they_may() {
        let lengths = [3, 9, 1, 40, 9, 8, 2, 7, 7, 7];
        let sentences = lengths.iter().enumerate().map(|(line, &length)| (line, Sentence::new(vec![5; length])));
        let batches = batches(sentences.collect(), 20);
        let mut lines: Vec<usize> = batches.iter().flatten().map(|(line, _)| *line).collect();
        assert_eq!(batches[0].len(), 1, "one that is too long is a batch of its own");
        for batch in &batches[1..] {
            let longest = batch.iter().map(|(_, sentence)| sentence.source.len()).max().unwrap();
            assert!(longest * batch.len() <= 20, "{batch:?}");
        }
        lines.sort_unstable();
        assert_eq!(lines, (0..lengths.len()).collect::<Vec<_>>());
    }
}
