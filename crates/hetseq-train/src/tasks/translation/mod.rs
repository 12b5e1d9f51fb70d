//! `translation`: translation with an encoder-decoder transformer. `config` holds the settings,
//! `hetseq_data::translate` provides the data and `hetseq_models::transformer` the network. Every
//! checkpoint is a Hugging Face directory.

mod config;
mod translator;

use std::path::Path;

use burn::tensor::{Device, Int, Tensor};
use hetseq_data::error::CorpusError;
use hetseq_data::{
    ChecksummedFile, CorpusSplit, DataError, ParallelData, SampleLengths, TranslateBatch, TranslateTokenizer,
};
use hetseq_metrics::scores::bleu::BleuTokenizer;
use hetseq_metrics::{BleuSums, Smoothing};
use hetseq_models::loss::{cross_entropy_sum, smoothed_cross_entropy_sum};
use hetseq_models::transformer::{Transformer, TransformerConfig, TransformerInput, parameter_name};

use crate::task::{ForwardContext, Metric, Samples, Split, StepOutput, Task, TaskError, Totals};

use config::MODEL_CONFIG;
pub use config::TranslationConfig;
pub(crate) use config::{fits, read as read_model_config};
pub(crate) use translator::{Sentence, settings, translate};

/// Default beam width of `hetseq generate`, and in the `generation_config.json` of our checkpoints.
pub const DEFAULT_BEAM: usize = 5;

/// The task.
pub struct TranslationTask {
    config: TranslationConfig,
    model: TransformerConfig,
    tokenizer: TranslateTokenizer,
    train: ParallelData,
    /// `None` if the data has no validation split.
    valid: Option<ParallelData>,
    files: Vec<(String, Vec<u8>)>,
}

impl Task for TranslationTask {
    const NAME: &'static str = "translation";
    const PATH_KEYS: &'static [&'static str] = &["data", "config", "init"];
    type Config = TranslationConfig;
    type Model = Transformer;
    type Batch = TranslateBatch;

    fn open(config: &TranslationConfig) -> Result<Self, TaskError> {
        let tokenizer = TranslateTokenizer::read(&config.data)?;
        let model = config.model(&tokenizer)?;
        let train = ParallelData::open(&config.data, CorpusSplit::Train)?;
        let valid = match ParallelData::open(&config.data, CorpusSplit::Valid) {
            Ok(data) => Some(data),
            Err(DataError::Corpus(CorpusError::NoSuchSplit { .. })) => None,
            Err(error) => return Err(error.into()),
        };
        for data in [Some(&train), valid.as_ref()].into_iter().flatten() {
            let (source, target) = data.longest();
            let (longest, positions) = (source.max(target), model.max_position_embeddings);
            if longest > positions {
                return Err(TaskError::Other(format!(
                    "the model has {positions} positions, but sentences have up to {longest} tokens: set \
                     task.max_positions, or prepare the data with --max-length"
                )));
            }
        }
        let files = files(&model, &tokenizer)?;
        Ok(TranslationTask { config: config.clone(), model, tokenizer, train, valid, files })
    }

    fn fingerprint(&self) -> String {
        let valid = self.valid.as_ref().map_or_else(|| "none".to_owned(), ParallelData::fingerprint);
        format!("{} {valid}", self.train.fingerprint())
    }

    fn checksummed_files(&self) -> Vec<ChecksummedFile> {
        [Some(&self.train), self.valid.as_ref()]
            .into_iter()
            .flatten()
            .flat_map(ParallelData::checksummed_files)
            .collect()
    }

    fn lengths(&self, split: Split) -> SampleLengths {
        let (pad_to_multiple, positions) = (self.config.pad_to_multiple, self.model.max_position_embeddings);
        match (split, &self.valid) {
            (Split::Train, _) => self.train.lengths(pad_to_multiple, positions),
            (Split::Valid, Some(valid)) => valid.lengths(pad_to_multiple, positions),
            (Split::Valid, None) => SampleLengths::PerSample(Vec::new()),
        }
    }

    fn model(&self, device: &Device) -> Transformer {
        Transformer::new(&self.model, device)
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<TranslateBatch, TaskError> {
        let data = match (samples.split, &self.valid) {
            (Split::Valid, Some(valid)) => valid,
            _ => &self.train,
        };
        Ok(data.collate(samples.ids, self.config.pad_to_multiple, self.model.max_position_embeddings)?)
    }

    /// Target tokens.
    fn counts(&self, batch: &TranslateBatch) -> Vec<u64> {
        vec![batch.target_lengths.iter().map(|&length| u64::from(length)).sum()]
    }

    fn forward(&self, model: &Transformer, batch: &TranslateBatch, ctx: &ForwardContext) -> StepOutput {
        let source = sequences(&batch.source, &batch.source_lengths, &ctx.device);
        let target = sequences(&batch.target_in, &batch.target_lengths, &ctx.device);
        let hidden = model.hidden(&source, &target, &ctx.keys);
        let (at, labels) = target_positions(batch);
        let tensor = |values: &[i32]| Tensor::<1, Int>::from_data(values, &ctx.device);
        let logits = model.logits_at(hidden, tensor(&at));
        let smoothing = self.config.label_smoothing as f32;
        if ctx.is_training() {
            let loss = smoothed_cross_entropy_sum(logits, tensor(&labels), smoothing);
            return StepOutput { losses: vec![loss], scores: Vec::new() };
        }
        let loss = smoothed_cross_entropy_sum(logits.clone(), tensor(&labels), smoothing);
        let mut scores = vec![cross_entropy_sum(logits, tensor(&labels))];
        if self.config.bleu {
            let sums = self.bleu(model, batch, &ctx.device);
            // The counts of one micro-batch are small enough to be exact in f32.
            scores.extend(sums.to_counts().map(|count| Tensor::from_data([count as f32], &ctx.device)));
        }
        StepOutput { losses: vec![loss], scores }
    }

    fn files(&self) -> Vec<(String, Vec<u8>)> {
        self.files.clone()
    }

    fn init_from(&self) -> Option<&Path> {
        self.config.init.as_deref()
    }

    fn parameter_name(&self, theirs: &str) -> Option<String> {
        parameter_name(theirs, self.model.share_encoder_decoder_embeddings)
    }

    /// Some files omit it if it is zero.
    fn allow_missing(&self, name: &str) -> bool {
        name == "final_logits_bias"
    }

    fn metrics(&self) -> Vec<Metric> {
        let bleu = self.config.bleu.then_some(Metric::higher("bleu"));
        [Metric::lower("perplexity")].into_iter().chain(bleu).collect()
    }

    fn measure(&self, totals: &Totals) -> Vec<f64> {
        let tokens = totals.counts.first().copied().unwrap_or(0).max(1) as f64;
        let cross_entropy = totals.scores.first().copied().unwrap_or(0.0) / tokens;
        let mut counts = [0; 10];
        for (count, &sum) in counts.iter_mut().zip(totals.scores.iter().skip(1)) {
            *count = sum as u64;
        }
        let bleu = self.config.bleu.then(|| BleuSums::from_counts(counts).bleu(Smoothing::default()).score);
        [cross_entropy.exp()].into_iter().chain(bleu).collect()
    }
}

impl TranslationTask {
    /// Translates a batch and returns its BLEU sums.
    fn bleu(&self, model: &Transformer, batch: &TranslateBatch, device: &Device) -> BleuSums {
        let rows = batch.source.chunks(batch.source_width().max(1)).zip(&batch.source_lengths);
        let sentences = rows.map(|(row, &length)| row[..length as usize].iter().map(|&id| id as u32).collect());
        let sentences: Vec<Sentence> = sentences.map(Sentence::new).collect();
        let settings = settings(&self.model, self.config.bleu_beam, 1.0);
        let mut sums = BleuSums::default();
        let found = translate(model, &self.model, &sentences, &settings, device);
        for (hypotheses, reference) in found.iter().zip(&batch.references) {
            let tokens = hypotheses.first().map_or(&[][..], |best| &best.tokens);
            let text = self.tokenizer.decode_target(tokens).unwrap_or_default();
            sums.add(&BleuSums::of(BleuTokenizer::V13a, &text, &[reference]));
        }
        sums
    }
}

fn sequences(ids: &[i32], lengths: &[u32], device: &Device) -> TransformerInput {
    let lengths: Vec<usize> = lengths.iter().map(|&length| length as usize).collect();
    TransformerInput::new(ids, &lengths, device)
}

/// Positions of the target tokens (`row * positions + column`), and their labels.
fn target_positions(batch: &TranslateBatch) -> (Vec<i32>, Vec<i32>) {
    let positions = batch.target_width();
    let of_row = |(row, &length): (usize, &u32)| row * positions..row * positions + length as usize;
    let indices: Vec<usize> = batch.target_lengths.iter().enumerate().flat_map(of_row).collect();
    (indices.iter().map(|&at| at as i32).collect(), indices.iter().map(|&at| batch.target_out[at]).collect())
}

/// The files that make a checkpoint a Hugging Face directory.
fn files(model: &TransformerConfig, tokenizer: &TranslateTokenizer) -> Result<Vec<(String, Vec<u8>)>, TaskError> {
    let failed = |error: serde_json::Error| TaskError::Other(format!("{MODEL_CONFIG}: {error}"));
    let mut files = vec![(MODEL_CONFIG.to_owned(), model.to_json().map_err(failed)?.into_bytes())];
    if model.is_marian() {
        let generation = model.generation_json(DEFAULT_BEAM).map_err(failed)?;
        files.push(("generation_config.json".to_owned(), generation.into_bytes()));
    }
    files.extend(tokenizer.files());
    Ok(files)
}
