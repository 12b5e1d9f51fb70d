//! Fine-tuning of BERT: a label for each word (`token-classification`), also with the entity of each
//! mention (`entity-linking`), or for each text (`sequence-classification`). [`FineTuning`] is what the tasks share: a pre-trained model,
//! labelled samples and the exchange with Hugging Face. A [`BertHead`] is what differs.
//! `predict.rs` labels new files with a trained model.

mod classifier_files;
mod entity_linking;
mod predict;
mod predicted_words;
mod sequence_classification;
mod shared_keys;
mod token_classification;

use std::io::{self, Write};
use std::path::Path;

use burn::tensor::{Device, Tensor};
use hetseq_data::finetune::{LabelSet, LabelledSamples};
use hetseq_data::{Batch, SampleLengths};
use hetseq_models::bert::{BertClassifier, BertConfig, BertInput, ClassifierArchitecture};
use hetseq_models::recompute::Tape;
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::classifier_files::ClassifierFiles;
use self::shared_keys::{FineTuningConfig, Pretrained, SharedKeys};
use super::bert;
use super::splits::Splits;
use crate::inference::PredictionFormat;
use crate::task::{
    Answer, ForwardContext, HuggingFace, Metric, Samples, Split, StepOutput, Task, TaskData, TaskError, Term, Totals,
};

pub use entity_linking::{EntityHead, EntityLinkingConfig};
pub use predict::FineTuned;
pub(crate) use predict::sorted;
pub use sequence_classification::{SequenceClassificationConfig, SequenceHead};
pub use token_classification::{TokenClassificationConfig, TokenHead};

/// The task `token-classification`.
pub type TokenClassification = FineTuning<TokenHead>;
/// The task `entity-linking`.
pub type EntityLinking = FineTuning<EntityHead>;
/// The task `sequence-classification`.
pub type SequenceClassification = FineTuning<SequenceHead>;

/// A fine-tuning task.
pub struct FineTuning<H: BertHead> {
    head: H,
    start: Pretrained,
    samples: Splits<H::Samples>,
    hub: ClassifierFiles,
    recompute: bool,
}

/// What differs between the fine-tuning tasks: data, the layers on top of BERT, and scores.
pub trait BertHead: Sized + Send + Sync + 'static {
    const TASK: &'static str;
    /// The class of `transformers` that loads a checkpoint.
    const ARCHITECTURE: ClassifierArchitecture;
    const PATH_KEYS: &'static [&'static str] = shared_keys::PATH_KEYS;
    type Config: FineTuningConfig + Serialize + DeserializeOwned;
    /// A file of samples, as read.
    type File: Send + Sync;
    type Samples: LabelledSamples + 'static;

    /// Reads a file. Without `with_labels`, for prediction, it need not have any.
    fn read(config: &Self::Config, path: &Path, with_labels: bool) -> Result<Self::File, TaskError>;

    /// Takes the labels of the config, else of the training data.
    fn open(config: &Self::Config, train: &Self::File) -> Result<Self, TaskError>;

    /// Opens the head of a checkpoint, which has these labels.
    fn of_checkpoint(config: &Self::Config, labels: LabelSet) -> Result<Self, TaskError>;

    /// Makes samples of a file that was read with or without labels.
    fn samples(&self, file: &Self::File, start: &Pretrained, with_labels: bool) -> Result<Self::Samples, TaskError>;

    /// The labels in the order of the model's outputs.
    fn labels(&self) -> Vec<String>;

    fn model(&self, config: &BertConfig, device: &Device) -> BertClassifier;

    fn terms(&self) -> Vec<Term> {
        vec![Term { name: "loss".to_owned(), weight: 1.0 }]
    }

    /// As [`Task::forward`].
    fn forward(&self, pass: &ForwardPass<'_, Self>) -> Result<StepOutput, TaskError>;

    /// As [`Task::metrics`]. `samples` are those of validation.
    fn metrics(&self, totals: &Totals, samples: &Self::Samples) -> Vec<Metric>;

    /// Answers each sample of a batch.
    fn answers(&self, pass: &ForwardPass<'_, Self>) -> Result<Vec<Answer>, TaskError>;

    /// Writes a file with its predictions.
    fn write(&self, predicted: &Predicted<'_, Self>, format: PredictionFormat, out: &mut dyn Write) -> io::Result<()>;
}

/// A file, its samples, and an answer for each of them.
pub struct Predicted<'a, H: BertHead> {
    file: &'a H::File,
    samples: &'a H::Samples,
    answers: &'a [Answer],
}

/// One forward pass: the model, its input, and the samples the input is made of.
pub struct ForwardPass<'a, H: BertHead> {
    model: &'a BertClassifier,
    input: BertInput,
    batch: &'a Batch,
    samples: &'a H::Samples,
    /// Given if the layers are to be recomputed in the backward pass.
    tape: Option<&'a Tape>,
    ctx: &'a ForwardContext,
}

impl<'a, H: BertHead> ForwardPass<'a, H> {
    fn new(
        model: &'a BertClassifier,
        batch: &'a Batch,
        samples: &'a H::Samples,
        recompute: bool,
        ctx: &'a ForwardContext,
    ) -> Result<Self, TaskError> {
        let input = bert::input(batch, &ctx.device)?;
        let tape = (recompute && ctx.is_training()).then_some(&ctx.tape);
        Ok(ForwardPass { model, input, batch, samples, tape, ctx })
    }

    /// Sums of integers as scores. Those of one micro-batch are small enough to be exact in f32.
    fn scores(&self, counts: impl IntoIterator<Item = u64>) -> Vec<Tensor<1>> {
        counts.into_iter().map(|count| Tensor::from_data([count as f32], &self.ctx.device)).collect()
    }
}

impl<H: BertHead> TaskData for FineTuning<H> {
    fn fingerprint(&self) -> String {
        self.samples.fingerprint(H::Samples::fingerprint)
    }

    fn lengths(&self, split: Split) -> SampleLengths {
        self.samples.lengths(split, H::Samples::lengths)
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
        Ok(self.samples.of(samples.split).collate(samples.ids)?)
    }

    fn terms(&self) -> Vec<Term> {
        self.head.terms()
    }
}

impl<H: BertHead> Task for FineTuning<H> {
    const NAME: &'static str = H::TASK;
    const PATH_KEYS: &'static [&'static str] = H::PATH_KEYS;
    const LOCAL_KEYS: &'static [&'static str] = &["recompute"];
    type Config = H::Config;
    type Model = BertClassifier;

    fn open(config: &H::Config) -> Result<Self, TaskError> {
        let keys: SharedKeys<'_> = config.shared();
        let start = Pretrained::open(&keys)?;
        let train = H::read(config, keys.train, true)?;
        let valid = keys.valid.map(|path| H::read(config, path, true)).transpose()?;
        let head = H::open(config, &train)?;
        let hub = ClassifierFiles::new(&start, H::ARCHITECTURE, &head.labels(), &keys)?;
        let samples = Splits {
            train: head.samples(&train, &start, true)?,
            valid: valid.map(|file| head.samples(&file, &start, true)).transpose()?,
        };
        Ok(FineTuning { head, start, samples, hub, recompute: keys.recompute })
    }

    fn model(&self, device: &Device) -> BertClassifier {
        self.head.model(&self.start.model, device)
    }

    fn forward(&self, model: &BertClassifier, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError> {
        let split = if ctx.is_training() { Split::Train } else { Split::Valid };
        self.head.forward(&ForwardPass::new(model, batch, self.samples.of(split), self.recompute, ctx)?)
    }

    fn metrics(&self, totals: &Totals) -> Vec<Metric> {
        self.head.metrics(totals, self.samples.of(Split::Valid))
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        &self.hub
    }
}

/// The error for predictions that cannot be read from a device.
fn unreadable(error: &dyn std::fmt::Debug) -> TaskError {
    TaskError::Other(format!("reading the predictions: {error:?}"))
}
