//! One device's copy of the model: computes gradients and evaluates micro-batches. Runs on the
//! device thread (`thread.rs`), which turns panics into errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use hetseq_kernels::is_host;
use hetseq_optim::Layout;
use hetseq_random::Key;

use crate::data::loader::Job;
use crate::devices::params::{self, Accumulator};
use crate::task::{ForwardContext, StepOutput, Task, Totals};

pub(crate) struct Replica<T: Task> {
    task: Arc<T>,
    layout: Arc<Layout>,
    device: Device,
    model: T::Model,
    terms: usize,
    /// Micro-batches computed so far. Shows the process that the device is not stuck.
    steps: Arc<AtomicU64>,
}

/// A device's result for one update.
pub(crate) struct ReplicaOutput {
    /// The flat gradient sum, then the loss sum of each term.
    pub(crate) flat: Vec<f32>,
    /// Time for the micro-batches.
    pub(crate) compute: Duration,
    /// Time after them, to download the gradients.
    pub(crate) after: Duration,
    /// GPU memory, not host memory. The backend keeps freed memory, so this is the peak.
    pub(crate) held_bytes: Option<u64>,
}

impl<T: Task> Replica<T> {
    pub(crate) fn new(task: Arc<T>, layout: Arc<Layout>, device: Device) -> Self {
        let model = task.model(&device);
        let terms = task.terms().len();
        Replica { task, layout, device, model, terms, steps: Arc::default() }
    }

    /// Counts micro-batches in `steps`.
    pub(crate) fn counting(self, steps: Arc<AtomicU64>) -> Self {
        Replica { steps, ..self }
    }

    pub(crate) fn load(&mut self, parameters: &[f32]) -> Result<(), String> {
        self.model = params::load(self.model.clone(), parameters, &self.layout, &self.device);
        self.wait()
    }

    /// Waits until the device has finished all launched work, so that times are correct. Nothing to
    /// do in host memory.
    fn wait(&self) -> Result<(), String> {
        if is_host(&self.device) { Ok(()) } else { self.device.sync().map_err(|error| error.to_string()) }
    }

    /// Computes the gradients of `sum over terms of scales[t] * loss sum t`. They are added up over
    /// the micro-batches on the device and downloaded once. Without micro-batches they are zeros.
    pub(crate) fn gradients(&self, jobs: &[Job<T>], scales: &[f32], update_key: Key) -> Result<ReplicaOutput, String> {
        let start = Instant::now();
        let mut sums = Accumulator::default();
        let mut losses: Option<Tensor<1>> = None;
        for job in jobs {
            let keys = job.micro.samples.iter().map(|&sample| update_key.index(u64::from(sample))).collect();
            let ctx = ForwardContext::new(&self.device, keys);
            let output = self.forward(&self.model, job, &ctx)?;
            let objective = output
                .losses
                .iter()
                .zip(scales)
                .map(|(loss, &scale)| loss.clone() * scale)
                .reduce(|a, b| a + b)
                .ok_or("the task returned no loss")?;
            let terms = Tensor::cat(output.losses, 0).inner();
            losses = Some(match losses {
                Some(sum) => sum + terms,
                None => terms,
            });
            ctx.tape.backward(&objective, |gradients| sums.add(&self.model, gradients));
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        self.wait()?;
        let computed = start.elapsed();
        let flat = sums.download(&self.layout, losses, self.terms, &self.device)?;
        let after = start.elapsed() - computed;
        let held_bytes = self.device.memory_pool_usage().map(|usage| usage.bytes_reserved);
        Ok(ReplicaOutput { flat, compute: computed, after, held_bytes })
    }

    /// Computes sums of losses and scores without dropout. Runs without an autodiff graph, which
    /// only a backward pass would free.
    pub(crate) fn evaluate(&self, jobs: &[Job<T>]) -> Result<(Totals, Duration), String> {
        let start = Instant::now();
        let (model, device) = (self.model.valid(), self.device.clone().inner());
        let mut totals = Totals { counts: vec![0; self.terms], losses: vec![0.0; self.terms], ..Totals::default() };
        for job in jobs {
            let output = self.forward(&model, job, &ForwardContext::new(&device, Vec::new()))?;
            totals.samples += job.micro.samples.len() as u64;
            add(&mut totals.counts, self.task.counts(&job.batch));
            add(&mut totals.losses, scalars(output.losses)?);
            add(&mut totals.scores, scalars(output.scores)?);
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        Ok((totals, start.elapsed()))
    }

    fn forward(&self, model: &T::Model, job: &Job<T>, ctx: &ForwardContext) -> Result<StepOutput, String> {
        let output = self.task.forward(model, &job.batch, ctx);
        if output.losses.len() == self.terms {
            return Ok(output);
        }
        Err(format!("the task names {} loss terms but its forward returned {}", self.terms, output.losses.len()))
    }
}

fn scalars(sums: Vec<Tensor<1>>) -> Result<Vec<f64>, String> {
    sums.into_iter()
        .map(|sum| {
            let mut value = Vec::with_capacity(1);
            params::append(sum.inner(), 1, &mut value).map(|()| f64::from(value[0]))
        })
        .collect()
}

/// Element-wise `sums += more`; grows `sums` where `more` is longer.
pub(crate) fn add<N: Copy + Default + std::ops::AddAssign>(sums: &mut Vec<N>, more: Vec<N>) {
    sums.resize(sums.len().max(more.len()), N::default());
    for (sum, value) in sums.iter_mut().zip(more) {
        *sum += value;
    }
}
