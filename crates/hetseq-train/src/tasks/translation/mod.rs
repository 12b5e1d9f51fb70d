//! `translation`: translation with an encoder-decoder transformer. `config` holds the settings,
//! `hetseq_data::translate` provides the data and `hetseq_models::transformer` the network. Every
//! checkpoint is a Hugging Face directory.

mod config;
mod translator;

use std::path::Path;

use burn::tensor::{Device, Int, Tensor};
use hetseq_data::source::data_kind::DataKind;
use hetseq_data::{Batch, ChecksummedFile, ParallelData, SampleLengths, TranslateTokenizer};
use hetseq_metrics::scores::bleu::BleuTokenizer;
use hetseq_metrics::{BleuSums, Smoothing};
use hetseq_models::loss::{cross_entropy_sum, smoothed_cross_entropy_sum};
use hetseq_models::transformer::{Transformer, TransformerConfig, TransformerInput, parameter_name};

use crate::task::{ForwardContext, HuggingFace, Metric, Samples, Split, StepOutput, Task, TaskData, TaskError, Totals};

use super::splits::Splits;
use config::MODEL_CONFIG;
pub use config::TranslationConfig;
pub use translator::Translator;
use translator::{settings, translate, usual_limit};

/// Default beam width of `hetseq generate`, and in the `generation_config.json` of our checkpoints.
pub const DEFAULT_BEAM: usize = 5;

/// The task.
pub struct TranslationTask {
    config: TranslationConfig,
    model: TransformerConfig,
    tokenizer: TranslateTokenizer,
    data: Splits<ParallelData>,
    files: Vec<(String, Vec<u8>)>,
}

impl TaskData for TranslationTask {
    fn fingerprint(&self) -> String {
        self.data.fingerprint(ParallelData::fingerprint)
    }

    fn checksummed_files(&self) -> Vec<ChecksummedFile> {
        self.data.iter().flat_map(ParallelData::checksummed_files).collect()
    }

    fn lengths(&self, split: Split) -> SampleLengths {
        let (pad_to_multiple, positions) = (self.config.pad_to_multiple, self.model.max_position_embeddings);
        self.data.lengths(split, |data| data.lengths(pad_to_multiple, positions))
    }

    /// The count is target tokens.
    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
        let data = self.data.of(samples.split);
        Ok(data.collate(samples.ids, self.config.pad_to_multiple, self.model.max_position_embeddings)?.into())
    }
}

impl Task for TranslationTask {
    const NAME: &'static str = "translation";
    const PATH_KEYS: &'static [&'static str] = &["data", "config", "init"];
    type Config = TranslationConfig;
    type Model = Transformer;

    fn open(config: &TranslationConfig) -> Result<Self, TaskError> {
        DataKind::check(&config.data, &[DataKind::Pairs])?;
        let tokenizer = TranslateTokenizer::read(&config.data)?;
        let model = config.model(&tokenizer)?;
        let data = Splits::open(|split| ParallelData::open(&config.data, split))?;
        for split in data.iter() {
            let (source, target) = split.longest();
            let (longest, positions) = (source.max(target), model.max_position_embeddings);
            if longest > positions {
                return Err(TaskError::Other(format!(
                    "the model has {positions} positions, but sentences have up to {longest} tokens: set \
                     task.max_positions, or prepare the data with --max-length"
                )));
            }
        }
        let files = files(&model, &tokenizer)?;
        Ok(TranslationTask { config: config.clone(), model, tokenizer, data, files })
    }

    fn model(&self, device: &Device) -> Transformer {
        Transformer::new(&self.model, device)
    }

    fn forward(&self, model: &Transformer, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError> {
        let source = sequences(batch, "source", "source_lengths", &ctx.device)?;
        let target = sequences(batch, "target_in", "target_lengths", &ctx.device)?;
        let hidden = model.hidden(&source, &target, &ctx.keys);
        let (at, labels) = target_positions(batch)?;
        let tensor = |values: &[i32]| Tensor::<1, Int>::from_data(values, &ctx.device);
        let logits = model.logits_at(hidden, tensor(&at));
        let smoothing = self.config.label_smoothing as f32;
        if ctx.is_training() {
            let loss = smoothed_cross_entropy_sum(logits, tensor(&labels), smoothing);
            return Ok(StepOutput { losses: vec![loss], ..StepOutput::default() });
        }
        let loss = smoothed_cross_entropy_sum(logits.clone(), tensor(&labels), smoothing);
        let mut scores = vec![cross_entropy_sum(logits, tensor(&labels))];
        if self.config.bleu {
            let sums = self.bleu(model, batch, ctx)?;
            // The counts of one micro-batch are small enough to be exact in f32.
            scores.extend(sums.to_counts().map(|count| Tensor::from_data([count as f32], &ctx.device)));
        }
        Ok(StepOutput { losses: vec![loss], scores, ..StepOutput::default() })
    }

    fn metrics(&self, totals: &Totals) -> Vec<Metric> {
        let mut counts = [0; 10];
        for (count, &sum) in counts.iter_mut().zip(totals.scores.iter().skip(1)) {
            *count = sum as u64;
        }
        let bleu = || Metric::higher("bleu", BleuSums::from_counts(counts).bleu(Smoothing::default()).score);
        let perplexity = Metric::lower("perplexity", totals.mean_score(0, 0).exp());
        [perplexity].into_iter().chain(self.config.bleu.then(bleu)).collect()
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        self
    }
}

impl HuggingFace for TranslationTask {
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        self.files.clone()
    }

    fn init_from(&self) -> Option<&Path> {
        self.config.init.as_deref()
    }

    fn parameter_name(&self, theirs: &str) -> Option<String> {
        parameter_name(theirs, self.model.share_encoder_decoder_embeddings)
    }

    fn allow_missing(&self, name: &str) -> bool {
        may_be_missing(name)
    }
}

/// Some files omit it if it is zero.
fn may_be_missing(parameter: &str) -> bool {
    parameter == "final_logits_bias"
}

impl TranslationTask {
    /// Translates a batch of validation pairs and returns its BLEU sums.
    fn bleu(&self, model: &Transformer, batch: &Batch, ctx: &ForwardContext) -> Result<BleuSums, TaskError> {
        let settings = settings(&self.model, self.config.bleu_beam, 1.0);
        let mut sums = BleuSums::default();
        let found = translate(model, &self.model, batch, &usual_limit, &settings, &ctx.device)?;
        for (hypotheses, &pair) in found.iter().zip(&ctx.samples) {
            let Some(reference) = self.data.valid.as_ref().and_then(|valid| valid.reference(pair)) else { continue };
            let tokens = hypotheses.first().map_or(&[][..], |best| &best.tokens);
            let text = self.tokenizer.decode_target(tokens).unwrap_or_default();
            sums.add(&BleuSums::of(BleuTokenizer::V13a, &text, &[reference]));
        }
        Ok(sums)
    }
}

fn sequences(batch: &Batch, ids: &str, lengths: &str, device: &Device) -> Result<TransformerInput, TaskError> {
    let lengths: Vec<usize> = batch.i32s(lengths)?.iter().map(|&length| length as usize).collect();
    Ok(TransformerInput::new(batch.i32s(ids)?, &lengths, device))
}

/// Positions of the target tokens (`row * positions + column`), and their labels.
fn target_positions(batch: &Batch) -> Result<(Vec<i32>, Vec<i32>), TaskError> {
    let [_, positions] = batch.shape("target_out")?;
    let labels = batch.i32s("target_out")?;
    let of_row = |(row, &length): (usize, &i32)| row * positions..row * positions + length as usize;
    let indices: Vec<usize> = batch.i32s("target_lengths")?.iter().enumerate().flat_map(of_row).collect();
    Ok((indices.iter().map(|&at| at as i32).collect(), indices.iter().map(|&at| labels[at]).collect()))
}

/// The files that make a checkpoint a Hugging Face directory.
fn files(model: &TransformerConfig, tokenizer: &TranslateTokenizer) -> Result<Vec<(String, Vec<u8>)>, TaskError> {
    let failed = |error: serde_json::Error| TaskError::Other(format!("{MODEL_CONFIG}: {error}"));
    let mut files = vec![(MODEL_CONFIG.to_owned(), model.to_json().map_err(failed)?.into_bytes())];
    if model.is_marian() {
        let generation = model.generation_json(DEFAULT_BEAM).map_err(failed)?;
        files.push(("generation_config.json".to_owned(), generation.into_bytes()));
    }
    files.extend(tokenizer.files(model.max_position_embeddings));
    Ok(files)
}
