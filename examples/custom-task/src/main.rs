//! A custom task and model in one file: fits a curve to noisy points.
//!
//!     cargo run --release -p custom-task -- train examples/custom-task/curve.toml
//!
//! The binary has all subcommands of `hetseq`. The task has everything that built-in tasks have:
//! any mix of machines, exact sums, checkpoints, resume, validation.

use std::process::ExitCode;

use burn::module::Module;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Tensor, TensorData};
use hetseq_train::prelude::*;
use serde::{Deserialize, Serialize};

fn main() -> ExitCode {
    hetseq_cli::main(Tasks::builtin().with::<Curve>())
}

/// The `[task]` table of `curve.toml`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CurveConfig {
    points: usize,
    noise: f32,
    #[serde(default)]
    dropout: f32,
}

/// Pairs (x, y) on the curve y = sin 3x + x / 2, drawn with a fixed key, so that all ranks have the
/// same points.
struct Curve {
    config: CurveConfig,
    train: Vec<(f32, f32)>,
    valid: Vec<(f32, f32)>,
}

impl Task for Curve {
    const NAME: &'static str = "curve";
    type Config = CurveConfig;
    type Model = Perceptron;
    type Batch = (TensorData, TensorData);

    fn open(config: &CurveConfig) -> Result<Self, TaskError> {
        if config.points == 0 {
            return Err(TaskError::Other("task.points must be at least 1".to_owned()));
        }
        let draw = |name: &str, count: usize, noise: f32| -> Vec<(f32, f32)> {
            let key = Key::root(7).name(name);
            let x = |i: usize| key.between(i as u32, -2.0, 2.0);
            let y = |i: usize| (3.0 * x(i)).sin() + x(i) / 2.0 + noise * key.normal(i as u64);
            (0..count).map(|i| (x(i), y(i))).collect()
        };
        let (train, valid) = (draw("train", config.points, config.noise), draw("valid", 500, 0.0));
        Ok(Curve { config: config.clone(), train, valid })
    }

    /// Ranks with the same fingerprint have the same data.
    fn fingerprint(&self) -> String {
        format!("{} points, noise {}", self.config.points, self.config.noise)
    }

    fn lengths(&self, split: Split) -> SampleLengths {
        SampleLengths::Uniform { samples: self.points(split).len(), tokens: 1 }
    }

    fn model(&self, device: &Device) -> Perceptron {
        let hidden = 64;
        Perceptron {
            first: Linear::new(1, hidden, device),
            second: Linear::new(hidden, hidden, device),
            last: Linear::new(hidden, 1, device),
        }
    }

    fn collate(&self, samples: &Samples<'_>) -> Result<Self::Batch, TaskError> {
        let points = self.points(samples.split);
        let (x, y): (Vec<f32>, Vec<f32>) = samples.ids.iter().map(|&id| points[id as usize]).unzip();
        let shape = [x.len(), 1];
        Ok((TensorData::new(x, shape), TensorData::new(y, shape)))
    }

    fn counts(&self, batch: &Self::Batch) -> Vec<u64> {
        vec![batch.0.shape()[0] as u64]
    }

    /// Sums over the micro-batch, never means: the trainer divides by the count over all machines.
    fn forward(&self, model: &Perceptron, (x, y): &Self::Batch, ctx: &ForwardContext) -> StepOutput {
        let x = Tensor::<2>::from_data(x.clone(), &ctx.device);
        let y = Tensor::<2>::from_data(y.clone(), &ctx.device);
        let error = model.forward(x, self.config.dropout, &ctx.keys) - y;
        let squares = (error.clone() * error).sum();
        StepOutput { losses: vec![squares.clone()], scores: vec![squares] }
    }

    fn metrics(&self) -> Vec<Metric> {
        vec![Metric::lower("rmse")]
    }

    fn measure(&self, totals: &Totals) -> Vec<f64> {
        vec![(totals.scores[0] / totals.samples.max(1) as f64).sqrt()]
    }
}

impl Curve {
    fn points(&self, split: Split) -> &[(f32, f32)] {
        match split {
            Split::Train => &self.train,
            Split::Valid => &self.valid,
        }
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

impl Perceptron {
    fn forward(&self, x: Tensor<2>, rate: f32, keys: &[Key]) -> Tensor<2> {
        let x = tanh(self.first.forward(x));
        let x = dropout(tanh(self.second.forward(x)), rate, keys);
        self.last.forward(x)
    }
}
