//! `sequence-classification`: a class or a number for each text, or pair of texts, of a table (TSV,
//! CSV, JSONL).

use std::path::PathBuf;

use burn::tensor::{Device, Int, Tensor};
use hetseq_data::finetune::{
    LabelSet, SequenceColumns, SequenceFile, SequenceSampleConfig, SequenceSamples, SequenceTarget, TableColumn,
    TableFormat, TableOptions,
};
use hetseq_data::{Batch, SampleLengths};
use hetseq_metrics::{ClassSums, CorrelationSums};
use hetseq_models::bert::{BertClassifier, BertInput, BertSize};
use hetseq_models::loss::cross_entropy_sum;
use serde::{Deserialize, Serialize};

use super::{ClassifierFiles, Pretrained, SEQUENCE_CLASSIFIER};
use crate::task::{ForwardContext, HuggingFace, Metric, Samples, Split, StepOutput, Task, TaskData, TaskError, Totals};
use crate::tasks::bert::ModelKeys;

/// The `[task]` table of `sequence-classification`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequenceClassificationConfig {
    /// A table with one sample per line: TSV, CSV or JSONL, as its name ends.
    pub train: PathBuf,
    /// The same, for validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid: Option<PathBuf>,
    /// Columns, by name or by number from 0.
    #[serde(default = "text")]
    pub text: TableColumn,
    /// The second text of a pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second_text: Option<TableColumn>,
    #[serde(default = "label")]
    pub label: TableColumn,
    /// The format of the files, if their names do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<TableFormat>,
    /// Whether TSV and CSV have a header; by default if a column is given by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// Learn a number instead of a class.
    #[serde(default)]
    pub regression: bool,
    /// All classes, in the order of the model's outputs. By default those of the training data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Vec<String>>,
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
    /// Maximum tokens of a sample, including special tokens. Longer texts are truncated.
    #[serde(default = "default_length")]
    pub max_seq_length: usize,
    /// Micro-batches are padded to a multiple of this.
    #[serde(default = "eight")]
    pub pad_to_multiple: usize,
    /// Recompute the layers in the backward pass: less memory, about a third more time.
    #[serde(default)]
    pub recompute: bool,
}

/// The task.
pub struct SequenceClassification {
    config: SequenceClassificationConfig,
    start: Pretrained,
    /// `None` for regression.
    labels: Option<LabelSet>,
    train: SequenceSamples,
    valid: Option<SequenceSamples>,
    hub: ClassifierFiles,
}

impl TaskData for SequenceClassification {
    fn fingerprint(&self) -> String {
        let valid = self.valid.as_ref().map_or_else(|| "none".to_owned(), SequenceSamples::fingerprint);
        format!("{} {valid}", self.train.fingerprint())
    }

    fn lengths(&self, split: Split) -> SampleLengths {
        self.samples(split).map_or(SampleLengths::PerSample(Vec::new()), SequenceSamples::lengths)
    }

    /// The count is samples.
    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
        Ok(self.samples(samples.split).unwrap_or(&self.train).collate(samples.ids)?)
    }
}

impl Task for SequenceClassification {
    const NAME: &'static str = "sequence-classification";
    const PATH_KEYS: &'static [&'static str] = &["train", "valid", "init", "config", "tokenizer"];
    const LOCAL_KEYS: &'static [&'static str] = &["recompute"];
    type Config = SequenceClassificationConfig;
    type Model = BertClassifier;

    fn open(config: &SequenceClassificationConfig) -> Result<Self, TaskError> {
        let keys = ModelKeys {
            size: config.model,
            config: config.config.as_deref(),
            init: config.init.as_deref(),
            dropout: config.dropout,
        };
        let start = Pretrained::open(&keys, config.tokenizer.as_deref(), config.max_seq_length)?;
        let train = config.read(&config.train)?;
        let valid = config.valid.as_ref().map(|path| config.read(path)).transpose()?;
        let labels = match (&config.labels, config.regression) {
            (Some(_), true) => return Err("task.labels are classes, but task.regression = true; remove one".into()),
            (None, true) => None,
            (Some(names), false) => Some(LabelSet::given(names.clone())?),
            (None, false) => Some(LabelSet::found(train.labels())),
        };
        let target = labels.as_ref().map_or(SequenceTarget::Number, SequenceTarget::Class);
        let SequenceClassificationConfig { max_seq_length, pad_to_multiple, .. } = *config;
        let settings = SequenceSampleConfig { max_seq_length, pad_to_multiple };
        let of_file = |file: &SequenceFile| {
            let samples = SequenceSamples::new(file, target, &start.tokenizer, &settings)?;
            let counts = samples.counts();
            let cut = match counts.truncated_samples {
                0 => String::new(),
                cut => format!(", {cut} truncated to {max_seq_length} tokens"),
            };
            tracing::info!("{}: {} samples{cut}", file.path().display(), counts.samples);
            Ok::<_, TaskError>(samples)
        };
        let (train, valid) = (of_file(&train)?, valid.as_ref().map(of_file).transpose()?);
        let names = labels.as_ref().map_or(&[][..], LabelSet::names);
        let init = config.init.as_deref();
        let hub = ClassifierFiles::new(&start, SEQUENCE_CLASSIFIER, names, init, config.new_head)?;
        Ok(SequenceClassification { config: config.clone(), start, labels, train, valid, hub })
    }

    fn model(&self, device: &Device) -> BertClassifier {
        BertClassifier::of_samples(&self.start.model, self.labels.as_ref().map_or(1, LabelSet::len), device)
    }

    fn forward(&self, model: &BertClassifier, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError> {
        let lengths: Vec<usize> = batch.i32s("lengths")?.iter().map(|&length| length as usize).collect();
        let input = BertInput::new(batch.i32s("input_ids")?, batch.i32s("segment_ids")?, &lengths, &ctx.device);
        let tape = (self.config.recompute && ctx.is_training()).then_some(&ctx.tape);
        let logits = model.sample_logits(&input, &ctx.keys, tape);
        let Some(labels) = &self.labels else { return numbers(logits, batch, ctx) };
        let targets = Tensor::<1, Int>::from_data(batch.i32s("labels")?, &ctx.device);
        let loss = cross_entropy_sum(logits.clone(), targets);
        let mut scores = Vec::new();
        if !ctx.is_training() {
            let predicted: Vec<i32> = logits.argmax(1).try_into_vec_as().map_err(|error| unreadable(&error))?;
            let ids = |ids: &[i32]| -> Vec<usize> { ids.iter().map(|&id| id as usize).collect() };
            let sums = ClassSums::of(labels.len(), &ids(batch.i32s("labels")?), &ids(&predicted));
            // The counts of one micro-batch are small enough to be exact in f32.
            let counts = sums.map_err(|error| error.to_string())?.to_counts();
            scores = counts.into_iter().map(|count| Tensor::from_data([count as f32], &ctx.device)).collect();
        }
        Ok(StepOutput { losses: vec![loss], scores })
    }

    /// For classes: accuracy, F1 (of the second class if there are two, else the mean over classes)
    /// and Matthews correlation. For numbers: Pearson correlation and mean squared error.
    fn metrics(&self, totals: &Totals) -> Vec<Metric> {
        let score = |at: usize| totals.scores.get(at).copied().unwrap_or(0.0);
        let Some(labels) = &self.labels else {
            let sums: [f64; CorrelationSums::SUMS] = std::array::from_fn(|at| score(2 * at) + score(2 * at + 1));
            let sums = CorrelationSums::from_sums(CENTER, sums);
            return vec![Metric::higher("pearson", sums.pearson()), Metric::lower("mse", sums.mean_squared_error())];
        };
        let counts: Vec<u64> = (0..3 * labels.len()).map(|at| score(at) as u64).collect();
        let Ok(sums) = ClassSums::from_counts(labels.len(), &counts) else { return Vec::new() };
        let f1 = match labels.len() {
            2 => sums.score(1).map_or(0.0, |score| score.f1),
            _ => sums.averages().macro_average.f1,
        };
        vec![
            Metric::higher("accuracy", sums.accuracy()),
            Metric::higher("f1", f1),
            Metric::higher("matthews", sums.matthews()),
        ]
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        &self.hub
    }
}

/// The values about which correlations are summed.
const CENTER: [f64; 2] = [0.0, 0.0];

impl SequenceClassification {
    fn samples(&self, split: Split) -> Option<&SequenceSamples> {
        if split == Split::Train { Some(&self.train) } else { self.valid.as_ref() }
    }
}

impl SequenceClassificationConfig {
    fn read(&self, path: &std::path::Path) -> Result<SequenceFile, TaskError> {
        let columns = SequenceColumns {
            text: self.text.clone(),
            second_text: self.second_text.clone(),
            label: self.label.clone(),
        };
        let options = TableOptions { format: self.format, header: self.header };
        Ok(SequenceFile::read(path, &columns, &options, true)?)
    }
}

/// Regression: the sum of squared errors.
fn numbers(logits: Tensor<2>, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError> {
    let targets = batch.f32s("targets")?;
    let expected = Tensor::<1>::from_data(targets, &ctx.device).unsqueeze_dim(1);
    let error = logits.clone() - expected;
    let loss = (error.clone() * error).sum();
    let mut scores = Vec::new();
    if !ctx.is_training() {
        let predicted: Vec<f32> = logits.try_into_vec_as().map_err(|error| unreadable(&error))?;
        let wide = |values: &[f32]| -> Vec<f64> { values.iter().map(|&value| f64::from(value)).collect() };
        let sums = CorrelationSums::of(&wide(targets), &wide(&predicted)).map_err(|error| error.to_string())?;
        for sum in sums.to_sums(CENTER) {
            // In two parts, since a score is an f32.
            let high = sum as f32;
            let low = (sum - f64::from(high)) as f32;
            scores.extend([high, low].map(|part| Tensor::from_data([part], &ctx.device)));
        }
    }
    Ok(StepOutput { losses: vec![loss], scores })
}

fn unreadable(error: &dyn std::fmt::Debug) -> TaskError {
    TaskError::Other(format!("reading the predictions: {error:?}"))
}

fn text() -> TableColumn {
    TableColumn::Name("text".to_owned())
}
fn label() -> TableColumn {
    TableColumn::Name("label".to_owned())
}
fn default_length() -> usize {
    128
}
fn eight() -> usize {
    8
}
