//! `bert-pretrain`: BERT pre-training with masked-word and next-sentence prediction, each loss with
//! its own exact denominator. `config` holds the settings, `hetseq_data::pretrain` provides the
//! data and `hetseq_models::bert` the network. Every checkpoint is a Hugging Face directory.

mod config;
mod model_keys;
#[cfg(test)]
mod tests;

use std::path::Path;

use burn::tensor::Device;
use hetseq_data::source::data_kind::DataKind;
use hetseq_data::tokenize::{TOKENIZER_FILE, Tokenizer};
use hetseq_data::{Batch, ChecksummedFile, PretrainData, SampleLengths};
use hetseq_models::bert::{Bert, BertConfig, BertInput, Labelled, parameter_name};

use crate::task::{
    ForwardContext, HuggingFace, Metric, Samples, Split, StepOutput, Task, TaskData, TaskError, Term, Totals,
};

use super::splits::Splits;
pub use config::BertTaskConfig;
pub(crate) use model_keys::{MODEL_CONFIG, ModelKeys};

/// The task.
pub struct BertTask {
    config: BertTaskConfig,
    model: BertConfig,
    data: Splits<PretrainData>,
    files: Vec<(String, Vec<u8>)>,
}

impl TaskData for BertTask {
    fn fingerprint(&self) -> String {
        self.data.fingerprint(PretrainData::fingerprint)
    }

    fn checksummed_files(&self) -> Vec<ChecksummedFile> {
        self.data.iter().flat_map(PretrainData::checksummed_files).collect()
    }

    fn lengths(&self, split: Split) -> SampleLengths {
        self.data.lengths(split, PretrainData::lengths)
    }

    fn terms(&self) -> Vec<Term> {
        let terms: &[&str] = if self.config.next_sentence { &["mlm", "nsp"] } else { &["mlm"] };
        terms.iter().map(|&name| Term { name: name.to_owned(), weight: 1.0 }).collect()
    }

    /// Counts are masked tokens and, with next-sentence prediction, samples.
    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
        Ok(self.data.of(samples.split).collate(samples.ids, &|id| samples.key(id))?.into())
    }
}

impl Task for BertTask {
    const NAME: &'static str = "bert-pretrain";
    const PATH_KEYS: &'static [&'static str] = &["data", "config", "init", "tokenizer", "unpack_dir"];
    const LOCAL_KEYS: &'static [&'static str] = &["recompute", "memory_mib"];
    type Config = BertTaskConfig;
    type Model = Bert;

    fn open(config: &BertTaskConfig) -> Result<Self, TaskError> {
        DataKind::check(&config.data, &[DataKind::Text, DataKind::Shards])?;
        let tokenizer = tokenizer(config)?;
        let vocabulary = tokenizer.as_ref().map(|tokenizer| tokenizer.vocabulary());
        let (mut model, file) = config.model_keys().model(vocabulary.map(|vocabulary| vocabulary.size()))?;
        if let (Some(vocabulary), None) = (vocabulary, &file) {
            model.pad_token_id = Some(vocabulary.special.pad as usize);
        }
        let named = file.map_or_else(|| "the model".to_owned(), |file| file.display().to_string());
        let samples = config.samples(model.vocab_size);
        let data = Splits::open(|split| PretrainData::open(&config.data, split, &samples))?;
        for split in data.iter() {
            fits(&model, split, config).map_err(|reason| TaskError::Other(format!("{named}: {reason}")))?;
        }
        let text = model.to_json("BertForPreTraining", &[]);
        let text = text.map_err(|error| format!("{MODEL_CONFIG}: {error}"))?;
        let files = model_files(text, tokenizer.as_ref(), model.max_position_embeddings)?;
        Ok(BertTask { config: config.clone(), model, data, files })
    }

    fn model(&self, device: &Device) -> Bert {
        Bert::new(&self.model, device)
    }

    fn forward(&self, model: &Bert, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError> {
        forward(model, batch, ctx, self.config.recompute)
    }

    fn metrics(&self, totals: &Totals) -> Vec<Metric> {
        let mut metrics = vec![
            Metric::lower("perplexity", totals.mean_loss(0).exp()),
            Metric::higher("masked_accuracy", totals.mean_score(0, 0)),
        ];
        if self.config.next_sentence {
            metrics.push(Metric::higher("next_sentence_accuracy", totals.mean_score(1, 1)));
        }
        metrics
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        self
    }
}

impl HuggingFace for BertTask {
    fn files(&self) -> Vec<(String, Vec<u8>)> {
        self.files.clone()
    }

    fn init_from(&self) -> Option<&Path> {
        self.config.init.as_deref()
    }

    fn parameter_name(&self, theirs: &str) -> Option<String> {
        parameter_name(theirs)
    }

    /// Most published models lack these.
    fn allow_missing(&self, name: &str) -> bool {
        name.starts_with("cls.") || name.starts_with("bert.pooler.")
    }
}

/// Predicts the masked words, and next sentences if the batch has labels for them.
pub(crate) fn forward(
    model: &Bert,
    batch: &Batch,
    ctx: &ForwardContext,
    recompute: bool,
) -> Result<StepOutput, TaskError> {
    let input = input(batch, &ctx.device)?;
    let words = Labelled::new(batch.i32s("masked_positions")?, batch.i32s("masked_ids")?, &ctx.device);
    let has_sentences = batch.contains("next_sentence");
    let follows = if has_sentences { batch.i32s("next_sentence")? } else { &[] };
    let rows: Vec<i32> = (0..follows.len() as i32).collect();
    let sentences = Labelled::new(&rows, follows, &ctx.device);
    let tape = (recompute && ctx.is_training()).then_some(&ctx.tape);
    let predictions = model.predict(&input, &words, &sentences, &ctx.keys, tape);
    let labels = [words, sentences];
    let mut output = StepOutput::default();
    for (prediction, labels) in predictions.into_iter().zip(&labels).take(1 + usize::from(has_sentences)) {
        if !ctx.is_training() {
            output.scores.push(prediction.correct(labels));
        }
        output.losses.push(prediction.loss);
    }
    Ok(output)
}

/// The sequences of a batch, for BERT.
pub(crate) fn input(batch: &Batch, device: &Device) -> Result<BertInput, TaskError> {
    let lengths: Vec<usize> = batch.i32s("lengths")?.iter().map(|&length| length as usize).collect();
    Ok(BertInput::new(batch.i32s("input_ids")?, batch.i32s("segment_ids")?, &lengths, device))
}

/// The configured tokenizer, else that of the data directory. Shards in NVIDIA's format have none.
fn tokenizer(config: &BertTaskConfig) -> Result<Option<Tokenizer>, TaskError> {
    let of_data = config.data.join(TOKENIZER_FILE);
    let of_data = if of_data.exists() { Some(Tokenizer::read_json(&of_data)?) } else { None };
    let Some(path) = &config.tokenizer else { return Ok(of_data) };
    let configured = Tokenizer::read(path)?;
    if of_data.is_some_and(|of_data| !of_data.same_ids(&configured)) {
        let reason = "task.tokenizer differs from the tokenizer that the data was prepared with; remove it";
        return Err(TaskError::Other(reason.to_owned()));
    }
    Ok(Some(configured))
}

/// Checks that the network has embeddings for all tokens, positions and segments of the data.
fn fits(model: &BertConfig, data: &PretrainData, config: &BertTaskConfig) -> Result<(), String> {
    let (size, needed) = (model.vocab_size, data.vocabulary_size());
    if needed > size {
        return Err(format!("vocab_size = {size}, but the data in {} has {needed} tokens", config.data.display()));
    }
    let (positions, longest) = (model.max_position_embeddings, data.longest());
    if longest > positions {
        return Err(format!(
            "max_position_embeddings = {positions}, but samples have up to {longest} tokens (task.max_seq_length)"
        ));
    }
    let two_segments = config.next_sentence || matches!(data, PretrainData::Stored(_));
    if two_segments && model.type_vocab_size < 2 {
        return Err("type_vocab_size = 1, but samples have two segments".to_owned());
    }
    Ok(())
}

/// The files that make a checkpoint a Hugging Face directory: the model's `config.json`, and the
/// tokenizer. `positions` is the number of tokens that the model reads.
pub(crate) fn model_files(
    config: String,
    tokenizer: Option<&Tokenizer>,
    positions: usize,
) -> Result<Vec<(String, Vec<u8>)>, TaskError> {
    let mut files = vec![(MODEL_CONFIG.to_owned(), config.into_bytes())];
    if let Some(tokenizer) = tokenizer {
        files.extend(tokenizer.files(positions)?.map(|(name, content)| (name.to_owned(), content.into_bytes())));
    }
    Ok(files)
}
