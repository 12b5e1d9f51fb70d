//! Predictions of a fine-tuned model for a new file, for `hetseq predict`. The checkpoint is one of
//! ours, or a directory that `transformers` saved.

use std::io;
use std::path::Path;

use burn::tensor::Device;
use hetseq_data::finetune::{LabelSet, LabelledSamples};
use hetseq_data::tokenize::Tokenizer;
use hetseq_data::{Batch, SampleLengths};
use hetseq_models::bert::{BertClassifier, BertConfig};

use super::classifier_files::ClassifierFiles;
use super::shared_keys::{FineTuningConfig, Pretrained};
use super::{BertHead, ForwardPass, Predicted};
use crate::inference::{PredictOptions, PredictionFormat};
use crate::task::{Answer, FileInference, ForwardContext, HuggingFace, Inference, TaskError};
use crate::tasks::bert::MODEL_CONFIG;

/// A fine-tuned model, and the file to predict.
pub struct FineTuned<H: BertHead> {
    head: H,
    model: BertConfig,
    file: H::File,
    samples: H::Samples,
    hub: ClassifierFiles,
}

impl<H: BertHead> Inference for FineTuned<H> {
    const TASK: &'static str = H::TASK;
    const ARCHITECTURE: Option<&'static str> = Some(H::ARCHITECTURE.name());
    type Model = BertClassifier;

    fn model(&self, device: &Device) -> BertClassifier {
        self.head.model(&self.model, device)
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        &self.hub
    }

    fn predict(&self, model: &BertClassifier, batch: &Batch, ctx: &ForwardContext) -> Result<Vec<Answer>, TaskError> {
        self.head.answers(&ForwardPass::new(model, batch, &self.samples, false, ctx)?)
    }
}

impl<H: BertHead> FileInference for FineTuned<H> {
    fn open(checkpoint: &Path, options: &PredictOptions) -> Result<Self, TaskError> {
        // Keys of training that a checkpoint of another program lacks, and prediction does not need.
        let config: H::Config = options.task_config(&["train"])?;
        let path = checkpoint.join(MODEL_CONFIG);
        let named = |reason: String| TaskError::Other(format!("{}: {reason}", path.display()));
        let text = fs_err::read_to_string(&path).map_err(|error| error.to_string())?;
        let model = BertConfig::from_json(&text).map_err(|error| named(error.to_string()))?;
        let json = serde_json::from_str(&text).map_err(|error| named(error.to_string()))?;
        let labels = LabelSet::from_config(&json).map_err(|error| named(error.to_string()))?;
        let max_seq_length = config.shared().max_seq_length;
        let positions = model.max_position_embeddings;
        if max_seq_length > positions {
            return Err(named(format!("the model has {positions} positions: --set task.max_seq_length={positions}")));
        }
        let start = Pretrained { model, tokenizer: Tokenizer::read(checkpoint)? };
        let head = H::of_checkpoint(&config, labels)?;
        let file = H::read(&config, &options.input, false)?;
        let samples = head.samples(&file, &start, false)?;
        let hub = ClassifierFiles::of_checkpoint(H::ARCHITECTURE);
        Ok(FineTuned { head, model: start.model, file, samples, hub })
    }

    fn lengths(&self) -> SampleLengths {
        self.samples.lengths()
    }

    fn collate(&self, samples: &[u32]) -> Result<Batch, TaskError> {
        Ok(self.samples.collate(samples)?)
    }

    fn write(&self, answers: &[Answer], format: PredictionFormat, out: &mut dyn io::Write) -> io::Result<()> {
        self.head.write(&Predicted { file: &self.file, samples: &self.samples, answers }, format, out)
    }
}

/// The most likely class and its probability. Of equal ones, the first.
pub(crate) fn best(probabilities: &[f32], name: impl Fn(usize) -> String) -> (String, f64) {
    let mut best = (0, f32::NEG_INFINITY);
    for (class, &probability) in probabilities.iter().enumerate() {
        if probability > best.1 {
            best = (class, probability);
        }
    }
    (name(best.0), best.1.into())
}

/// All classes with their probabilities, the most likely first.
pub(crate) fn sorted(probabilities: &[f32], name: impl Fn(usize) -> String) -> Vec<(String, f64)> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]).then(a.cmp(&b)));
    order.into_iter().map(|class| (name(class), probabilities[class].into())).collect()
}
