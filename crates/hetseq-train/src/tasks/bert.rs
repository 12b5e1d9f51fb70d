//! Pre-training BERT: masked words, and whether the second sentence follows the first, each with its own exact denominator.
//! Here is the task itself; `config` is what can be set, the data comes from `hetseq_data::pretrain`, the network is
//! `hetseq_models::bert`. Every checkpoint is a Hugging Face directory.

mod config;
#[cfg(test)]
mod tests;

use std::path::Path;

use burn::tensor::Device;
use hetseq_data::error::CorpusError;
use hetseq_data::tokenize::{TOKENIZER_FILE, Tokenizer};
use hetseq_data::{CorpusSplit, Costs, DataError, PretrainBatch, PretrainData, Sealed};
use hetseq_models::bert::{Bert, BertConfig, Labelled, Sequences, parameter_name};

use crate::task::{Metric, Outcome, Pass, Samples, Task, TaskError, Term, Totals, Which};

pub use config::BertTaskConfig;
use config::MODEL_CONFIG;

pub struct BertTask {
    config: BertTaskConfig,
    model: BertConfig,
    train: PretrainData,
    /// Where there is text to validate on.
    valid: Option<PretrainData>,
    files: Vec<(String, Vec<u8>)>,
}

impl Task for BertTask {
    const NAME: &'static str = "bert-pretrain";
    const PATH_KEYS: &'static [&'static str] = &["data", "config", "init", "tokenizer", "unpack_dir"];
    const LOCAL_KEYS: &'static [&'static str] = &["recompute", "memory_mib"];
    type Config = BertTaskConfig;
    type Model = Bert;
    type Batch = PretrainBatch;

    fn open(config: &BertTaskConfig) -> Result<Self, TaskError> {
        let tokenizer = tokenizer(config)?;
        let vocabulary = tokenizer.as_ref().map(|tokenizer| tokenizer.vocabulary());
        let (mut model, file) = config.model(vocabulary.map(|vocabulary| vocabulary.size()))?;
        if let (Some(vocabulary), None) = (vocabulary, &file) {
            model.pad_token_id = Some(vocabulary.special.pad as usize);
        }
        let named = file.map_or_else(|| "the model".to_owned(), |file| file.display().to_string());
        let samples = config.samples(model.vocab_size);
        let train = PretrainData::open(&config.data, CorpusSplit::Train, &samples)?;
        let valid = match PretrainData::open(&config.data, CorpusSplit::Valid, &samples) {
            Ok(data) => Some(data),
            Err(DataError::Corpus(CorpusError::NoSuchSplit { .. })) => None,
            Err(error) => return Err(error.into()),
        };
        for data in [Some(&train), valid.as_ref()].into_iter().flatten() {
            fits(&model, data, config).map_err(|reason| TaskError::Other(format!("{named}: {reason}")))?;
        }
        let files = files(&model, tokenizer.as_ref())?;
        Ok(BertTask { config: config.clone(), model, train, valid, files })
    }

    fn fingerprint(&self) -> String {
        let valid = self.valid.as_ref().map_or_else(|| "none".to_owned(), PretrainData::fingerprint);
        format!("{} {valid}", self.train.fingerprint())
    }

    fn sealed_files(&self) -> Vec<Sealed> {
        [Some(&self.train), self.valid.as_ref()].into_iter().flatten().flat_map(PretrainData::sealed).collect()
    }

    fn costs(&self, which: Which) -> Costs {
        match (which, &self.valid) {
            (Which::Train, _) => self.train.costs(),
            (Which::Valid, Some(valid)) => valid.costs(),
            (Which::Valid, None) => Costs::PerSample(Vec::new()),
        }
    }

    fn terms(&self) -> Vec<Term> {
        let terms: &[&str] = if self.config.next_sentence { &["mlm", "nsp"] } else { &["mlm"] };
        terms.iter().map(|&name| Term { name: name.to_owned(), weight: 1.0 }).collect()
    }

    fn model(&self, device: &Device) -> Bert {
        Bert::new(&self.model, device)
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<PretrainBatch, TaskError> {
        let data = match (samples.which, &self.valid) {
            (Which::Valid, Some(valid)) => valid,
            _ => &self.train,
        };
        Ok(data.collate(samples.ids, &|id| samples.key(id))?)
    }

    fn counts(&self, batch: &PretrainBatch) -> Vec<u64> {
        let sentences = batch.next_sentence.as_ref().map(Vec::len);
        [Some(batch.masked_ids.len()), sentences].into_iter().flatten().map(|count| count as u64).collect()
    }

    fn forward(&self, model: &Bert, batch: &PretrainBatch, pass: &Pass) -> Outcome {
        forward(model, batch, pass, self.config.recompute)
    }

    fn files(&self) -> Vec<(String, Vec<u8>)> {
        self.files.clone()
    }

    fn origin(&self) -> Option<&Path> {
        self.config.init.as_deref()
    }

    fn parameter_name(&self, theirs: &str) -> Option<String> {
        parameter_name(theirs)
    }

    /// What most published models were saved without.
    fn may_start_afresh(&self, name: &str) -> bool {
        name.starts_with("cls.") || name.starts_with("bert.pooler.")
    }

    fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![Metric::lower("perplexity"), Metric::higher("masked_accuracy")];
        if self.config.next_sentence {
            metrics.push(Metric::higher("next_sentence_accuracy"));
        }
        metrics
    }

    fn measure(&self, totals: &Totals) -> Vec<f64> {
        let mean = |sums: &[f64], term: usize| {
            let count = totals.counts.get(term).copied().unwrap_or(0).max(1) as f64;
            sums.get(term).copied().unwrap_or(0.0) / count
        };
        let accuracies = (0..self.terms().len()).map(|term| mean(&totals.scores, term));
        std::iter::once(mean(&totals.losses, 0).exp()).chain(accuracies).collect()
    }
}

/// Asks for the masked words, and for the sentences if the batch has labels for them.
pub(crate) fn forward(model: &Bert, batch: &PretrainBatch, pass: &Pass, recompute: bool) -> Outcome {
    let lengths: Vec<usize> = batch.lengths.iter().map(|&length| length as usize).collect();
    let input = Sequences::new(&batch.input_ids, &batch.segment_ids, &lengths, &pass.device);
    let words = Labelled::new(&batch.masked_positions, &batch.masked_ids, &pass.device);
    let follows = batch.next_sentence.as_deref();
    let rows: Vec<i32> = (0..follows.map_or(0, <[i32]>::len) as i32).collect();
    let sentences = Labelled::new(&rows, follows.unwrap_or_default(), &pass.device);
    let tape = (recompute && pass.is_training()).then_some(&pass.tape);
    let answers = model.answer(&input, &words, &sentences, &pass.keys, tape);
    let asked = [words, sentences];
    let terms = if follows.is_some() { 2 } else { 1 };
    let mut outcome = Outcome { losses: Vec::new(), scores: Vec::new() };
    for (answers, asked) in answers.into_iter().zip(&asked).take(terms) {
        if !pass.is_training() {
            outcome.scores.push(answers.right(asked));
        }
        outcome.losses.push(answers.loss);
    }
    outcome
}

/// The one that the config names, else the one that lies beside the data; shards of others have none.
fn tokenizer(config: &BertTaskConfig) -> Result<Option<Tokenizer>, TaskError> {
    let beside = config.data.join(TOKENIZER_FILE);
    let beside = if beside.exists() { Some(Tokenizer::read_json(&beside)?) } else { None };
    let Some(path) = &config.tokenizer else { return Ok(beside) };
    let named = Tokenizer::read(path)?;
    if beside.is_some_and(|beside| !beside.same_ids(&named)) {
        let reason = "task.tokenizer has other tokens than the one that the data was made with; leave it out";
        return Err(TaskError::Other(reason.to_owned()));
    }
    Ok(Some(named))
}

/// Whether the network has a vector for everything that occurs in the data.
fn fits(model: &BertConfig, data: &PretrainData, config: &BertTaskConfig) -> Result<(), String> {
    let (known, needed) = (model.vocab_size, data.vocabulary_size());
    if needed > known {
        return Err(format!("vocab_size = {known}, but the data in {} has {needed} tokens", config.data.display()));
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

/// What makes a checkpoint a Hugging Face directory.
fn files(model: &BertConfig, tokenizer: Option<&Tokenizer>) -> Result<Vec<(String, Vec<u8>)>, TaskError> {
    let text = model.to_json().map_err(|error| TaskError::Other(format!("{MODEL_CONFIG}: {error}")))?;
    let mut files = vec![(MODEL_CONFIG.to_owned(), text.into_bytes())];
    if let Some(tokenizer) = tokenizer {
        files.extend(tokenizer.files()?.map(|(name, content)| (name.to_owned(), content.into_bytes())));
    }
    Ok(files)
}
