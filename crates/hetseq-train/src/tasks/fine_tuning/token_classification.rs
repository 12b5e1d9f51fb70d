//! `token-classification`: a label for each word of CoNLL files, such as named entities. Scores
//! entities as seqeval does.

use std::path::PathBuf;

use burn::tensor::{Device, Int, Tensor};
use hetseq_data::finetune::{
    ConllColumns, ConllFile, ConllLabels, LabelSet, LongSentences, TagReport, TokenSampleConfig, TokenSamples,
};
use hetseq_data::{Batch, SampleLengths};
use hetseq_metrics::{EntitySums, TagScheme, entity_types};
use hetseq_models::bert::{BertClassifier, BertInput, BertSize};
use hetseq_models::loss::cross_entropy_sum;
use serde::{Deserialize, Serialize};

use super::{ClassifierFiles, Pretrained, TOKEN_CLASSIFIER};
use crate::task::{ForwardContext, HuggingFace, Metric, Samples, Split, StepOutput, Task, TaskData, TaskError, Totals};
use crate::tasks::bert::ModelKeys;

/// The `[task]` table of `token-classification`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenClassificationConfig {
    /// A CoNLL file: a word and its label per line, a blank line between sentences.
    pub train: PathBuf,
    /// The same, for validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid: Option<PathBuf>,
    /// Initial weights: a Hugging Face directory, or a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<PathBuf>,
    /// Start with a new classifier, also if `init` has one.
    #[serde(default)]
    pub new_head: bool,
    /// A published size (`tiny`, ...) or a `config.json`, instead of the model of `init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<BertSize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// A directory, a `tokenizer.json` or a `vocab.txt`. By default that of `init`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// Replaces both dropout rates of the model's config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<f64>,
    /// Columns of the files, from 0; negative numbers count from the last.
    #[serde(default)]
    pub token_column: i32,
    #[serde(default = "last")]
    pub label_column: i32,
    /// All labels, in the order of the model's outputs. By default those of the training data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Vec<String>>,
    /// How entities are found in tags: `conlleval` (seqeval's default), or strictly by one scheme:
    /// `iob1`, `iob2`, `ioe1`, `ioe2`, `iobes`, `bilou`.
    #[serde(default)]
    pub scheme: TagScheme,
    /// Label all pieces of a word, not only the first.
    #[serde(default)]
    pub label_all: bool,
    /// Maximum tokens of a sample, including special tokens.
    #[serde(default = "default_length")]
    pub max_seq_length: usize,
    /// What to do with longer sentences: `windows` that overlap, or `truncate`.
    #[serde(default = "windows")]
    pub long_sentences: LongSentences,
    /// Words that a window shares with the next.
    #[serde(default = "sixteen")]
    pub overlap_words: usize,
    /// Micro-batches are padded to a multiple of this.
    #[serde(default = "eight")]
    pub pad_to_multiple: usize,
    /// Recompute the layers in the backward pass: less memory, about a third more time.
    #[serde(default)]
    pub recompute: bool,
}

/// The task.
pub struct TokenClassification {
    config: TokenClassificationConfig,
    start: Pretrained,
    labels: LabelSet,
    /// The types of entities, in the order of their scores.
    types: Vec<String>,
    train: TokenSamples,
    valid: Option<TokenSamples>,
    hub: ClassifierFiles,
}

impl TaskData for TokenClassification {
    fn fingerprint(&self) -> String {
        let valid = self.valid.as_ref().map_or_else(|| "none".to_owned(), TokenSamples::fingerprint);
        format!("{} {valid}", self.train.fingerprint())
    }

    fn lengths(&self, split: Split) -> SampleLengths {
        self.samples(split).map_or(SampleLengths::PerSample(Vec::new()), TokenSamples::lengths)
    }

    /// The count is labelled tokens.
    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
        Ok(self.samples(samples.split).unwrap_or(&self.train).collate(samples.ids)?)
    }
}

impl Task for TokenClassification {
    const NAME: &'static str = "token-classification";
    const PATH_KEYS: &'static [&'static str] = &["train", "valid", "init", "config", "tokenizer"];
    const LOCAL_KEYS: &'static [&'static str] = &["recompute"];
    type Config = TokenClassificationConfig;
    type Model = BertClassifier;

    fn open(config: &TokenClassificationConfig) -> Result<Self, TaskError> {
        let keys = ModelKeys {
            size: config.model,
            config: config.config.as_deref(),
            init: config.init.as_deref(),
            dropout: config.dropout,
        };
        let start = Pretrained::open(&keys, config.tokenizer.as_deref(), config.max_seq_length)?;
        let columns = ConllColumns { token_column: config.token_column, label_column: config.label_column };
        let read = |path: &PathBuf| ConllFile::read(path, &columns, ConllLabels::Required);
        let train = read(&config.train)?;
        let valid = config.valid.as_ref().map(read).transpose()?;
        let labels = match &config.labels {
            Some(names) => LabelSet::given(names.clone())?,
            None => LabelSet::found(train.label_names()),
        };
        let types = entity_types(config.scheme, labels.names()).map_err(|error| format!("task.scheme: {error}"))?;
        let samples = config.samples();
        let of_file = |file: &ConllFile| {
            let report = TagReport::new(file, None);
            if report.malformed_tags > 0 {
                tracing::warn!("{}: {report}", file.path().display());
            }
            let samples = TokenSamples::new(file, Some(&labels), &start.tokenizer, &samples)?;
            tracing::info!("{}: {}", file.path().display(), described(&samples));
            Ok::<_, TaskError>(samples)
        };
        let (train, valid) = (of_file(&train)?, valid.as_ref().map(of_file).transpose()?);
        let init = config.init.as_deref();
        let hub = ClassifierFiles::new(&start, TOKEN_CLASSIFIER, labels.names(), init, config.new_head)?;
        Ok(TokenClassification { config: config.clone(), start, labels, types, train, valid, hub })
    }

    fn model(&self, device: &Device) -> BertClassifier {
        BertClassifier::of_tokens(&self.start.model, self.labels.len(), device)
    }

    fn forward(&self, model: &BertClassifier, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError> {
        let labels = batch.i32s("labels")?;
        // Not every backend supports empty tensors.
        if labels.is_empty() {
            let zeros = || Tensor::zeros([1], &ctx.device);
            let scores = if ctx.is_training() { 0 } else { 1 + 3 * self.types.len() };
            return Ok(StepOutput { losses: vec![zeros()], scores: (0..scores).map(|_| zeros()).collect() });
        }
        let lengths: Vec<usize> = batch.i32s("lengths")?.iter().map(|&length| length as usize).collect();
        let input = BertInput::new(batch.i32s("input_ids")?, batch.i32s("segment_ids")?, &lengths, &ctx.device);
        let at = Tensor::<1, Int>::from_data(batch.i32s("label_positions")?, &ctx.device);
        let tape = (self.config.recompute && ctx.is_training()).then_some(&ctx.tape);
        let logits = model.token_logits(&input, at, &ctx.keys, tape);
        let targets = Tensor::<1, Int>::from_data(labels, &ctx.device);
        let loss = cross_entropy_sum(logits.clone(), targets);
        let scores = if ctx.is_training() { Vec::new() } else { self.scores(logits, labels, ctx)? };
        Ok(StepOutput { losses: vec![loss], scores })
    }

    /// Precision, recall and F1 of entities over all types, then F1 of each type, and the accuracy
    /// of labels.
    fn metrics(&self, totals: &Totals) -> Vec<Metric> {
        let count = |at: usize| totals.scores.get(at).copied().unwrap_or(0.0) as u64;
        let counts: Vec<u64> = (1..=3 * self.types.len()).map(count).collect();
        let report = EntitySums::from_counts(&self.types, &counts).unwrap_or_default().report();
        let micro = report.averages.micro_average;
        let mut metrics = vec![
            Metric::higher("f1", micro.f1),
            Metric::higher("precision", micro.precision),
            Metric::higher("recall", micro.recall),
            Metric::higher("accuracy", totals.mean_score(0, 0)),
        ];
        if (2..=MOST_TYPES_SHOWN).contains(&self.types.len()) {
            let f1 = |name: &String| report.types.get(name).map_or(0.0, |score| score.f1);
            metrics.extend(self.types.iter().map(|name| Metric::higher(format!("f1.{name}"), f1(name))));
        }
        metrics
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        &self.hub
    }
}

/// With more types, only the averages are reported.
const MOST_TYPES_SHOWN: usize = 20;

impl TokenClassification {
    fn samples(&self, split: Split) -> Option<&TokenSamples> {
        if split == Split::Train { Some(&self.train) } else { self.valid.as_ref() }
    }

    /// The number of correct labels, then three counts for each type of entity. Entities are those
    /// of a sample: in a sentence that is split into windows, one that crosses two windows counts
    /// as two.
    fn scores(&self, logits: Tensor<2>, labels: &[i32], ctx: &ForwardContext) -> Result<Vec<Tensor<1>>, TaskError> {
        let failed = |error: &dyn std::fmt::Debug| TaskError::Other(format!("reading the predictions: {error:?}"));
        let predicted: Vec<i32> = logits.argmax(1).try_into_vec_as().map_err(|error| failed(&error))?;
        let correct = predicted.iter().zip(labels).filter(|(predicted, label)| predicted == label).count();
        let name = |id: &i32| self.labels.name(*id as u32).unwrap_or("O");
        let data = self.valid.as_ref().unwrap_or(&self.train);
        let (mut sums, mut at) = (EntitySums::default(), 0);
        for &sample in &ctx.samples {
            // The prediction for a word is that of its first position.
            let mut firsts = Vec::new();
            for positions in data.positions_per_word(sample) {
                firsts.push(at);
                at += positions;
            }
            let tags = |ids: &[i32]| -> Vec<&str> { firsts.iter().filter_map(|&at| ids.get(at)).map(name).collect() };
            let of_sample = EntitySums::of(self.config.scheme, &tags(labels), &tags(&predicted));
            sums.add(&of_sample.map_err(|error| error.to_string())?);
        }
        let counts = sums.to_counts(&self.types).map_err(|error| error.to_string())?;
        // The counts of one micro-batch are small enough to be exact in f32.
        let all = std::iter::once(correct as u64).chain(counts);
        Ok(all.map(|count| Tensor::from_data([count as f32], &ctx.device)).collect())
    }
}

impl TokenClassificationConfig {
    fn samples(&self) -> TokenSampleConfig {
        TokenSampleConfig {
            max_seq_length: self.max_seq_length,
            pad_to_multiple: self.pad_to_multiple,
            label_all: self.label_all,
            long_sentences: self.long_sentences,
            overlap_words: self.overlap_words,
        }
    }
}

/// What became of the sentences of a file.
fn described(samples: &TokenSamples) -> String {
    let counts = samples.counts();
    let mut text = format!("{} sentences, {} words", counts.sentences, counts.words);
    for (count, what) in [
        (counts.split_sentences, "sentences split into windows"),
        (counts.truncated_sentences, "sentences truncated"),
        (counts.lost_words, "labelled words lost"),
        (counts.empty_words, "words without a known character"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}

fn last() -> i32 {
    -1
}
fn default_length() -> usize {
    128
}
fn windows() -> LongSentences {
    LongSentences::Windows
}
fn sixteen() -> usize {
    16
}
fn eight() -> usize {
    8
}
