//! `token-classification`: a label for each word of CoNLL files, such as named entities. Scores
//! entities as seqeval does.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Int, Tensor};
use hetseq_data::finetune::{
    ConllColumns, ConllFile, ConllLabels, LabelSet, LongSentences, TagReport, TokenSampleConfig, TokenSamples,
};
use hetseq_metrics::{EntitySums, TagScheme, entity_types};
use hetseq_models::bert::{BertClassifier, BertConfig, ClassifierArchitecture};
use hetseq_models::loss::cross_entropy_sum;

use super::predicted_words::PredictedWords;
use super::shared_keys::{FineTuningConfig, Pretrained, fine_tuning_config};
use super::{BertHead, ForwardPass, Predicted, unreadable};
use crate::inference::PredictionFormat;
use crate::task::{Answer, Metric, StepOutput, TaskError, Totals};

fine_tuning_config! {
    /// The `[task]` table of `token-classification`.
    pub struct TokenClassificationConfig {
        /// A CoNLL file: a word and its label per line, a blank line between sentences.
        pub train: PathBuf,
        /// Columns of the files, from 0; negative numbers count from the last.
        #[serde(default)]
        pub token_column: i32,
        #[serde(default = "last")]
        pub label_column: i32,
        /// How entities are found in tags: `conlleval` (seqeval's default), or strictly by one scheme:
        /// `iob1`, `iob2`, `ioe1`, `ioe2`, `iobes`, `bilou`.
        #[serde(default)]
        pub scheme: TagScheme,
        /// Label all pieces of a word, not only the first.
        #[serde(default)]
        pub label_all: bool,
        /// What to do with longer sentences: `windows` that overlap, or `truncate`.
        #[serde(default)]
        pub long_sentences: LongSentences,
        /// Words that a window shares with the next.
        #[serde(default = "sixteen")]
        pub overlap_words: usize,
    }
}

/// What is learned: labels, and the entities that they mark.
pub struct TokenHead {
    labels: LabelSet,
    scheme: TagScheme,
    /// The types of entities, in the order of their scores.
    types: Vec<String>,
    samples: TokenSampleConfig,
}

/// With more types, only the averages are reported.
const MOST_TYPES_SHOWN: usize = 20;

impl BertHead for TokenHead {
    const TASK: &'static str = "token-classification";
    const ARCHITECTURE: ClassifierArchitecture = ClassifierArchitecture::Tokens;
    type Config = TokenClassificationConfig;
    type File = ConllFile;
    type Samples = TokenSamples;

    fn read(config: &Self::Config, path: &Path, with_labels: bool) -> Result<ConllFile, TaskError> {
        let TokenClassificationConfig { token_column, label_column, .. } = *config;
        let labels = if with_labels { ConllLabels::Required } else { ConllLabels::IfPresent };
        let columns = ConllColumns { token_column, label_column, entity_column: None };
        Ok(ConllFile::read(path, &columns, labels)?)
    }

    fn open(config: &Self::Config, train: &ConllFile) -> Result<Self, TaskError> {
        Self::of_checkpoint(config, config.shared().label_set(train.label_names())?)
    }

    fn of_checkpoint(config: &Self::Config, labels: LabelSet) -> Result<Self, TaskError> {
        let scheme = config.scheme;
        let types = entity_types(scheme, labels.names()).map_err(|error| format!("task.scheme: {error}"))?;
        Ok(TokenHead { labels, scheme, types, samples: config.samples() })
    }

    fn samples(&self, file: &ConllFile, start: &Pretrained, with_labels: bool) -> Result<TokenSamples, TaskError> {
        if !with_labels {
            // Every word gets a prediction.
            let config = TokenSampleConfig { long_sentences: LongSentences::Windows, ..self.samples.clone() };
            return Ok(TokenSamples::new(file, None, &start.tokenizer, &config)?);
        }
        let report = TagReport::new(file, None);
        if report.malformed_tags > 0 {
            tracing::warn!("{}: {report}", file.path().display());
        }
        let samples = TokenSamples::new(file, Some(&self.labels), &start.tokenizer, &self.samples)?;
        tracing::info!("{}: {}", file.path().display(), described(&samples));
        Ok(samples)
    }

    fn labels(&self) -> Vec<String> {
        self.labels.names().to_vec()
    }

    fn model(&self, config: &BertConfig, device: &Device) -> BertClassifier {
        BertClassifier::of_tokens(config, self.labels.len(), device)
    }

    /// The count is labelled tokens.
    fn forward(&self, pass: &ForwardPass<'_, Self>) -> Result<StepOutput, TaskError> {
        let labels = pass.batch.i32s("labels")?;
        // Not every backend supports empty tensors.
        if labels.is_empty() {
            let scores = if pass.ctx.is_training() { 0 } else { 1 + 3 * self.types.len() };
            let losses = vec![Tensor::zeros([1], &pass.ctx.device)];
            return Ok(StepOutput { losses, scores: pass.scores(vec![0; scores]), ..StepOutput::default() });
        }
        let logits = token_logits(pass)?;
        let targets = Tensor::<1, Int>::from_data(labels, &pass.ctx.device);
        let losses = vec![cross_entropy_sum(logits.clone(), targets)];
        let scores = if pass.ctx.is_training() { Vec::new() } else { self.scores(logits, labels, pass)? };
        Ok(StepOutput { losses, scores, ..StepOutput::default() })
    }

    /// Precision, recall and F1 of entities over all types, then F1 of each type, and the accuracy
    /// of labels.
    fn metrics(&self, totals: &Totals, _samples: &TokenSamples) -> Vec<Metric> {
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

    /// The label of each labelled word of a sample, with its probability.
    fn answers(&self, pass: &ForwardPass<'_, Self>) -> Result<Vec<Answer>, TaskError> {
        let classes = self.labels.len();
        let probabilities: Vec<f32> =
            softmax(token_logits(pass)?, 1).try_into_vec_as().map_err(|error| unreadable(&error))?;
        let rows: Vec<&[f32]> = probabilities.chunks_exact(classes.max(1)).collect();
        let of_sample = |firsts: Vec<usize>| {
            let best = |row: &&[f32]| super::predict::best(row, |class| self.name(class).to_owned());
            Answer { texts: firsts.iter().filter_map(|&at| rows.get(at)).map(best).collect(), tokens: firsts.len() }
        };
        Ok(first_positions(pass.samples, &pass.ctx.samples).into_iter().map(of_sample).collect())
    }

    fn write(&self, predicted: &Predicted<'_, Self>, format: PredictionFormat, out: &mut dyn Write) -> io::Result<()> {
        let words = PredictedWords::new(predicted.file, predicted.samples, predicted.answers, 1);
        words.write(format, &[["labels", "probabilities"]], out)
    }
}

impl TokenHead {
    fn name(&self, id: usize) -> &str {
        self.labels.name(id as u32).unwrap_or("O")
    }

    /// The number of correct labels, then three counts for each type of entity. Entities are those
    /// of a sample: in a sentence that is split into windows, one that crosses two windows counts
    /// as two.
    fn scores(
        &self,
        logits: Tensor<2>,
        labels: &[i32],
        pass: &ForwardPass<'_, Self>,
    ) -> Result<Vec<Tensor<1>>, TaskError> {
        let predicted: Vec<i32> = logits.argmax(1).try_into_vec_as().map_err(|error| unreadable(&error))?;
        let correct = predicted.iter().zip(labels).filter(|(predicted, label)| predicted == label).count();
        let mut sums = EntitySums::default();
        for firsts in first_positions(pass.samples, &pass.ctx.samples) {
            let tags = |ids: &[i32]| -> Vec<&str> {
                firsts.iter().filter_map(|&at| ids.get(at)).map(|&id| self.name(id as usize)).collect()
            };
            let of_sample = EntitySums::of(self.scheme, &tags(labels), &tags(&predicted));
            sums.add(&of_sample.map_err(|error| error.to_string())?);
        }
        let counts = sums.to_counts(&self.types).map_err(|error| error.to_string())?;
        Ok(pass.scores(std::iter::once(correct as u64).chain(counts)))
    }
}

/// Logits [position, class] at the positions that have a label.
fn token_logits(pass: &ForwardPass<'_, TokenHead>) -> Result<Tensor<2>, TaskError> {
    let at = pass.ctx.ints::<1>(pass.batch, "label_positions")?;
    Ok(pass.model.token_logits(pass.model.hidden(&pass.input, &pass.ctx.keys, pass.tape), at))
}

/// For each sample of a batch, the first position of each of its labelled words: its prediction is
/// that of the word. Positions are counted over the batch.
pub(super) fn first_positions(samples: &TokenSamples, batch: &[u32]) -> Vec<Vec<usize>> {
    let mut at = 0;
    let mut of_word = |positions: usize| {
        at += positions;
        at - positions
    };
    batch.iter().map(|&sample| samples.positions_per_word(sample).into_iter().map(&mut of_word).collect()).collect()
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
pub(super) fn described(samples: &TokenSamples) -> String {
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
fn sixteen() -> usize {
    16
}
