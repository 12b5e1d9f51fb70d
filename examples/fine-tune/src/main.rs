//! Fine-tuning, with metrics of its own: tells even digits from odd ones, starting from a network
//! that has learned all ten. See `even.toml` for the commands.
//!
//! `examples/custom-task` explains the parts of a task. New here: a pre-trained start
//! ([`HuggingFace`]), and metrics that are not means but follow from sums.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burn::tensor::activation::log_softmax;
use hetseq_data::LabelledImages;
use hetseq_data::source::idx;
use hetseq_models::convnet::ConvNet;
use hetseq_train::prelude::*;
use serde::{Deserialize, Serialize};

fn main() -> ExitCode {
    hetseq_cli::main(Tasks::builtin().with::<Even>())
}

/// The `[task]` table of `even.toml`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EvenConfig {
    /// A directory with MNIST's four files.
    data: PathBuf,
    /// A checkpoint of the task `images`; without it, training starts from random weights.
    init: Option<PathBuf>,
}

struct Even {
    init: Option<PathBuf>,
    train: LabelledImages,
    valid: LabelledImages,
}

impl Even {
    fn images(&self, split: Split) -> &LabelledImages {
        if split == Split::Train { &self.train } else { &self.valid }
    }
}

impl TaskData for Even {
    fn fingerprint(&self) -> String {
        format!("{} {}", self.train.fingerprint(), self.valid.fingerprint())
    }

    fn lengths(&self, split: Split) -> SampleLengths {
        SampleLengths::Uniform { samples: self.images(split).len(), tokens: 1 }
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
        let LabelledImages { images, labels } = self.images(samples.split);
        let size = images.height * images.width;
        let pixels = |&id: &u32| images.pixels[id as usize * size..][..size].iter();
        // MNIST's mean and deviation, with which the pre-trained network has seen its images.
        let pixels = samples.ids.iter().flat_map(pixels).map(|&pixel| (f32::from(pixel) / 255.0 - 0.1307) / 0.3081);
        let count = samples.ids.len();
        let even = samples.ids.iter().map(|&id| i32::from(labels[id as usize] % 2 == 0));
        Ok(Batch::new([count as u64])
            .with_f32("pixels", [count, 1, images.height, images.width], pixels.collect())
            .with_i32("even", [count, 1], even.collect()))
    }
}

impl Task for Even {
    const NAME: &'static str = "even";
    const PATH_KEYS: &'static [&'static str] = &["data", "init"];
    type Config = EvenConfig;
    type Model = ConvNet;

    fn open(config: &EvenConfig) -> Result<Self, TaskError> {
        let [train, valid] = ["train", "t10k"].map(|split| idx::open_pair(&config.data, split));
        Ok(Even { init: config.init.clone(), train: train?, valid: valid? })
    }

    fn model(&self, device: &Device) -> ConvNet {
        ConvNet::new(1, self.train.images.height, self.train.images.width, 2, device)
    }

    fn forward(&self, model: &ConvNet, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError> {
        let even = ctx.ints::<2>(batch, "even")?;
        let logits = model.forward(ctx.floats(batch, "pixels")?, 0.0, &ctx.keys);
        let predicted = logits.clone().argmax(1).float();
        let actual = even.clone().float();
        let found = (predicted.clone() * actual.clone()).sum();
        let loss = log_softmax(logits, 1).gather(1, even).sum().neg();
        Ok(StepOutput {
            losses: vec![loss],
            scores: vec![found, predicted.sum(), actual.sum()],
            ..StepOutput::default()
        })
    }

    /// Of even digits. Computed from sums over all ranks, so it is that of one machine.
    fn metrics(&self, totals: &Totals) -> Vec<Metric> {
        let score = |at: usize| totals.scores.get(at).copied().unwrap_or(0.0);
        let (found, predicted, actual) = (score(0), score(1), score(2));
        let ratio = |part: f64, whole: f64| if whole == 0.0 { 0.0 } else { part / whole };
        vec![
            Metric::higher("precision", ratio(found, predicted)),
            Metric::higher("recall", ratio(found, actual)),
            Metric::higher("f1", ratio(2.0 * found, predicted + actual)),
        ]
    }

    fn hugging_face(&self) -> &dyn HuggingFace {
        self
    }
}

/// All layers but the last come from the pre-trained network; the last one has other classes.
impl HuggingFace for Even {
    fn init_from(&self) -> Option<&Path> {
        self.init.as_deref()
    }

    fn parameter_name(&self, theirs: &str) -> Option<String> {
        (!self.allow_missing(theirs)).then(|| theirs.to_owned())
    }

    fn allow_missing(&self, name: &str) -> bool {
        name.starts_with("fc2.")
    }
}
