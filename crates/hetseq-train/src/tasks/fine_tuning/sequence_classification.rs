//! `sequence-classification`: a class or a number for each text, or pair of texts, of a table (TSV,
//! CSV, JSONL).

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor};
use hetseq_data::finetune::{
    LabelSet, SequenceColumns, SequenceFile, SequenceSampleConfig, SequenceSamples, SequenceTarget, TableColumn,
    TableFormat, TableOptions,
};
use hetseq_metrics::{ClassSums, CorrelationSums, spearman};
use hetseq_models::bert::{BertClassifier, BertConfig, ClassifierArchitecture};
use hetseq_models::loss::cross_entropy_sum;

use super::predict::sorted;
use super::shared_keys::{FineTuningConfig, Pretrained, fine_tuning_config};
use super::{BertHead, ForwardPass, Predicted, unreadable};
use crate::inference::PredictionFormat;
use crate::task::{Answer, Metric, StepOutput, TaskError, Totals};

fine_tuning_config! {
    /// The `[task]` table of `sequence-classification`.
    pub struct SequenceClassificationConfig {
        /// A table with one sample per line: TSV, CSV or JSONL, as its name ends. Texts longer than
        /// `max_seq_length` are truncated.
        pub train: PathBuf,
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
    }
}

/// What is learned.
pub struct SequenceHead {
    /// `None` for regression.
    classes: Option<LabelSet>,
    samples: SequenceSampleConfig,
}

/// The name that transformers gives to the one output of a regression.
const REGRESSION_LABEL: &str = "LABEL_0";

impl BertHead for SequenceHead {
    const TASK: &'static str = "sequence-classification";
    const ARCHITECTURE: ClassifierArchitecture = ClassifierArchitecture::Sequences;
    type Config = SequenceClassificationConfig;
    type File = SequenceFile;
    type Samples = SequenceSamples;

    fn read(config: &Self::Config, path: &Path, with_labels: bool) -> Result<SequenceFile, TaskError> {
        let SequenceClassificationConfig { text, second_text, label, format, header, .. } = config.clone();
        let columns = SequenceColumns { text, second_text, label };
        Ok(SequenceFile::read(path, &columns, &TableOptions { format, header }, with_labels)?)
    }

    fn open(config: &Self::Config, train: &SequenceFile) -> Result<Self, TaskError> {
        if config.regression && config.labels.is_some() {
            return Err("task.labels are classes, but task.regression = true; remove one".into());
        }
        let classes = match config.regression {
            true => None,
            false => Some(config.shared().label_set(train.labels())?),
        };
        Ok(SequenceHead { classes, samples: config.samples() })
    }

    fn of_checkpoint(config: &Self::Config, labels: LabelSet) -> Result<Self, TaskError> {
        Ok(SequenceHead { classes: (labels.len() > 1).then_some(labels), samples: config.samples() })
    }

    fn samples(
        &self,
        file: &SequenceFile,
        start: &Pretrained,
        with_labels: bool,
    ) -> Result<SequenceSamples, TaskError> {
        let target = match (&self.classes, with_labels) {
            (_, false) => SequenceTarget::None,
            (Some(classes), true) => SequenceTarget::Class(classes),
            (None, true) => SequenceTarget::Number,
        };
        let samples = SequenceSamples::new(file, target, &start.tokenizer, &self.samples)?;
        let counts = samples.counts();
        let cut = match counts.truncated_samples {
            0 => String::new(),
            cut => format!(", {cut} truncated to {} tokens", self.samples.max_seq_length),
        };
        tracing::info!("{}: {} samples{cut}", file.path().display(), counts.samples);
        Ok(samples)
    }

    fn labels(&self) -> Vec<String> {
        self.classes.as_ref().map_or_else(|| vec![REGRESSION_LABEL.to_owned()], |classes| classes.names().to_vec())
    }

    fn model(&self, config: &BertConfig, device: &Device) -> BertClassifier {
        BertClassifier::of_samples(config, self.labels().len(), device)
    }

    /// The count is samples. The loss of a number is its squared error.
    fn forward(&self, pass: &ForwardPass<'_, Self>) -> Result<StepOutput, TaskError> {
        let logits = sample_logits(pass);
        let Some(classes) = &self.classes else {
            let targets = pass.ctx.floats::<1>(pass.batch, "targets")?.unsqueeze_dim(1);
            let error = logits.clone() - targets;
            let losses = vec![(error.clone() * error).sum()];
            let predictions = if pass.ctx.is_training() { Vec::new() } else { numbers(logits)? };
            return Ok(StepOutput { losses, predictions, ..StepOutput::default() });
        };
        let losses = vec![cross_entropy_sum(logits.clone(), pass.ctx.ints(pass.batch, "labels")?)];
        let mut scores = Vec::new();
        if !pass.ctx.is_training() {
            let predicted: Vec<i32> = logits.argmax(1).try_into_vec_as().map_err(|error| unreadable(&error))?;
            let ids = |ids: &[i32]| -> Vec<usize> { ids.iter().map(|&id| id as usize).collect() };
            let sums = ClassSums::of(classes.len(), &ids(pass.batch.i32s("labels")?), &ids(&predicted));
            scores = pass.scores(sums.map_err(|error| error.to_string())?.to_counts());
        }
        Ok(StepOutput { losses, scores, ..StepOutput::default() })
    }

    /// For classes: accuracy, F1 (of the second class if there are two, else the mean over classes)
    /// and Matthews correlation. For numbers: Pearson and Spearman correlation and the mean squared
    /// error.
    fn metrics(&self, totals: &Totals, samples: &SequenceSamples) -> Vec<Metric> {
        let Some(classes) = &self.classes else { return number_metrics(totals, samples) };
        let score = |at: usize| totals.scores.get(at).copied().unwrap_or(0.0);
        let counts: Vec<u64> = (0..3 * classes.len()).map(|at| score(at) as u64).collect();
        let Ok(sums) = ClassSums::from_counts(classes.len(), &counts) else { return Vec::new() };
        let f1 = match classes.len() {
            2 => sums.score(1).map_or(0.0, |score| score.f1),
            _ => sums.averages().macro_average.f1,
        };
        vec![
            Metric::higher("accuracy", sums.accuracy()),
            Metric::higher("f1", f1),
            Metric::higher("matthews", sums.matthews()),
        ]
    }

    /// All classes with their probabilities, the most likely first; or a number.
    fn answers(&self, pass: &ForwardPass<'_, Self>) -> Result<Vec<Answer>, TaskError> {
        let logits = sample_logits(pass);
        let Some(classes) = &self.classes else {
            let of_number = |number: f32| Answer { texts: vec![(String::new(), number.into())], tokens: 1 };
            return Ok(numbers(logits)?.into_iter().map(of_number).collect());
        };
        let probabilities: Vec<f32> = softmax(logits, 1).try_into_vec_as().map_err(|error| unreadable(&error))?;
        let name = |class: usize| classes.name(class as u32).unwrap_or_default().to_owned();
        let rows = probabilities.chunks_exact(classes.len().max(1));
        Ok(rows.map(|row| Answer { texts: sorted(row, name), tokens: 1 }).collect())
    }

    /// A line per sample: the class and its probability, or the number.
    fn write(&self, predicted: &Predicted<'_, Self>, format: PredictionFormat, out: &mut dyn Write) -> io::Result<()> {
        let Predicted { file, answers, .. } = predicted;
        let is_text = format == PredictionFormat::Text;
        if is_text {
            writeln!(out, "{}", if self.classes.is_some() { "label\tprobability" } else { "prediction" })?;
        }
        for (sample, answer) in answers.iter().enumerate() {
            let Some((label, score)) = answer.texts.first() else { continue };
            match (is_text, &self.classes) {
                (true, Some(_)) => writeln!(out, "{label}\t{score:.6}")?,
                (true, None) => writeln!(out, "{score}")?,
                (false, Some(_)) => {
                    let all: serde_json::Map<_, _> =
                        answer.texts.iter().map(|(label, score)| (label.clone(), (*score).into())).collect();
                    let text = file.text(sample, 0);
                    let line = serde_json::json!({
                        "text": text, "label": label, "probability": score, "probabilities": all,
                    });
                    writeln!(out, "{line}")?;
                }
                (false, None) => {
                    writeln!(out, "{}", serde_json::json!({ "text": file.text(sample, 0), "prediction": score }))?;
                }
            }
        }
        Ok(())
    }
}

/// Logits [sample, class].
fn sample_logits(pass: &ForwardPass<'_, SequenceHead>) -> Tensor<2> {
    pass.model.sample_logits(&pass.input, &pass.ctx.keys, pass.tape)
}

fn numbers(logits: Tensor<2>) -> Result<Vec<f32>, TaskError> {
    logits.try_into_vec_as().map_err(|error| unreadable(&error))
}

/// Correlations compare all samples, so they are computed from the predictions and not from sums.
fn number_metrics(totals: &Totals, samples: &SequenceSamples) -> Vec<Metric> {
    let mut pairs: Vec<(u32, f32)> = totals.predictions.clone();
    pairs.sort_by_key(|(sample, _)| *sample);
    let target = |&(sample, predicted): &(u32, f32)| Some((f64::from(samples.number(sample)?), f64::from(predicted)));
    let (gold, predicted): (Vec<f64>, Vec<f64>) = pairs.iter().filter_map(target).unzip();
    let sums = CorrelationSums::of(&gold, &predicted).unwrap_or_default();
    vec![
        Metric::higher("pearson", sums.pearson()),
        Metric::higher("spearman", spearman(&gold, &predicted).unwrap_or(f64::NAN)),
        Metric::lower("mse", sums.mean_squared_error()),
    ]
}

impl SequenceClassificationConfig {
    fn samples(&self) -> SequenceSampleConfig {
        SequenceSampleConfig { max_seq_length: self.max_seq_length, pad_to_multiple: self.pad_to_multiple }
    }
}

fn text() -> TableColumn {
    TableColumn::Name("text".to_owned())
}
fn label() -> TableColumn {
    TableColumn::Name("label".to_owned())
}
