//! A custom task and model in one file: fits a curve to noisy points.
//!
//!     cargo run --release -p custom-task -- train examples/custom-task/curve.toml
//!
//! The binary has all subcommands of `hetseq`. The task has everything that built-in tasks have:
//! any mix of machines, exact sums, checkpoints, resume, validation.

use std::path::PathBuf;
use std::process::ExitCode;

use burn::tensor::activation::tanh;
use hetseq_train::prelude::*;
use serde::{Deserialize, Serialize};

fn main() -> ExitCode {
    hetseq_cli::main(Tasks::builtin().with::<Curve>())
}

/// The `[task]` table of `curve.toml`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CurveConfig {
    /// A file of `x,y` lines.
    points: PathBuf,
    #[serde(default)]
    dropout: f32,
}

/// Points of the file: every fifth is for validation.
struct Curve {
    dropout: f32,
    fingerprint: String,
    train: Vec<(f32, f32)>,
    valid: Vec<(f32, f32)>,
}

impl Curve {
    fn points(&self, split: Split) -> &[(f32, f32)] {
        if split == Split::Train { &self.train } else { &self.valid }
    }
}

/// The data half: which samples there are, and how they become arrays.
impl TaskData for Curve {
    /// Ranks with the same fingerprint have the same data.
    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn lengths(&self, split: Split) -> SampleLengths {
        SampleLengths::Uniform { samples: self.points(split).len(), tokens: 1 }
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<Batch, TaskError> {
        let points = self.points(samples.split);
        let (x, y): (Vec<f32>, Vec<f32>) = samples.ids.iter().map(|&id| points[id as usize]).unzip();
        let count = x.len();
        Ok(Batch::new([count as u64]).with_f32("x", [count, 1], x).with_f32("y", [count, 1], y))
    }
}

/// The compute half: a model, and its loss on a batch.
impl Task for Curve {
    const NAME: &'static str = "curve";
    const PATH_KEYS: &'static [&'static str] = &["points"];
    type Config = CurveConfig;
    type Model = Perceptron;

    fn open(config: &CurveConfig) -> Result<Self, TaskError> {
        let path = config.points.display();
        let text = std::fs::read_to_string(&config.points).map_err(|error| format!("{path}: {error}"))?;
        let point = |line: &str| line.split_once(',').and_then(|(x, y)| Some((x.parse().ok()?, y.parse().ok()?)));
        let (mut train, mut valid) = (Vec::new(), Vec::new());
        for (at, line) in text.lines().enumerate() {
            let point = point(line).ok_or_else(|| format!("{path}, line {}: expected x,y", at + 1))?;
            if at % 5 == 4 { valid.push(point) } else { train.push(point) }
        }
        Ok(Curve { dropout: config.dropout, fingerprint: fingerprint(text.as_bytes()), train, valid })
    }

    fn model(&self, device: &Device) -> Perceptron {
        let layer = |inputs, outputs| Linear::new(inputs, outputs, device);
        Perceptron { first: layer(1, 64), second: layer(64, 64), last: layer(64, 1) }
    }

    /// Sums over the micro-batch, never means: the trainer divides by the count over all machines.
    fn forward(&self, model: &Perceptron, batch: &Batch, ctx: &ForwardContext) -> Result<StepOutput, TaskError> {
        let hidden = tanh(model.first.forward(ctx.floats(batch, "x")?));
        let hidden = dropout(tanh(model.second.forward(hidden)), self.dropout, &ctx.keys);
        let error = model.last.forward(hidden) - ctx.floats::<2>(batch, "y")?;
        let squares = (error.clone() * error).sum();
        Ok(StepOutput { losses: vec![squares.clone()], scores: vec![squares], ..StepOutput::default() })
    }

    fn metrics(&self, totals: &Totals) -> Vec<Metric> {
        vec![Metric::lower("rmse", totals.mean_score(0, 0).sqrt())]
    }
}

/// Any Burn module works. `Network` defines the initial parameters; the default is fine here.
#[derive(Module, Debug)]
struct Perceptron {
    first: Linear,
    second: Linear,
    last: Linear,
}

impl Network for Perceptron {}
