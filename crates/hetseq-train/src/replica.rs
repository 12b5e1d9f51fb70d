//! One device's copy of the model and what it does with micro-batches. Lives on its device's thread; [`crate::devices`]
//! is the only caller and turns panics into errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use hetseq_kernels::is_host;
use hetseq_optim::Layout;
use hetseq_random::Key;

use crate::flat::{self, Accumulator};
use crate::loader::Job;
use crate::task::{Outcome, Pass, Task, Totals};

pub(crate) struct Replica<T: Task> {
    task: Arc<T>,
    layout: Arc<Layout>,
    device: Device,
    model: T::Model,
    terms: usize,
    /// Micro-batches computed so far: how the process sees that the device is not stuck.
    steps: Arc<AtomicU64>,
}

/// What a device did for one update: the flat gradient sum with the loss sums of the terms behind it.
pub(crate) struct Work {
    pub(crate) flat: Vec<f32>,
    /// Over its micro-batches.
    pub(crate) compute: Duration,
    /// After them: the gradients come from the device.
    pub(crate) after: Duration,
    /// Of a GPU's memory, and not of the machine's. What is freed stays with the engine, so this is the most that was needed.
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
        self.model = flat::load(self.model.clone(), parameters, &self.layout, &self.device);
        self.wait()
    }

    /// Until the device has done all it was told to, so that times are its own. Nothing to wait for in host memory.
    fn wait(&self) -> Result<(), String> {
        if is_host(&self.device) { Ok(()) } else { self.device.sync().map_err(|error| error.to_string()) }
    }

    /// Gradients of `sum over terms of scales[t] * loss sum t`, added up over the micro-batches on the device and
    /// downloaded once. No micro-batches: zeros.
    pub(crate) fn gradients(&self, jobs: &[Job<T>], scales: &[f32], update_key: Key) -> Result<Work, String> {
        let start = Instant::now();
        let mut sums = Accumulator::default();
        let mut losses: Option<Tensor<1>> = None;
        for job in jobs {
            let keys = job.micro.samples.iter().map(|&sample| update_key.index(u64::from(sample))).collect();
            let pass = Pass::new(&self.device, keys);
            let outcome = self.forward(&self.model, job, &pass)?;
            let minimised = outcome
                .losses
                .iter()
                .zip(scales)
                .map(|(loss, &scale)| loss.clone() * scale)
                .reduce(|a, b| a + b)
                .ok_or("the task returned no loss")?;
            let terms = Tensor::cat(outcome.losses, 0).inner();
            losses = Some(match losses {
                Some(sum) => sum + terms,
                None => terms,
            });
            pass.tape.backward(&minimised, |gradients| sums.add(&self.model, gradients));
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        self.wait()?;
        let computed = start.elapsed();
        let flat = sums.download(&self.layout, losses, self.terms, &self.device)?;
        let after = start.elapsed() - computed;
        let held_bytes = self.device.memory_pool_usage().map(|usage| usage.bytes_reserved);
        Ok(Work { flat, compute: computed, after, held_bytes })
    }

    /// Sums of losses and scores, without dropout, and without a graph, which only a backward pass would free.
    pub(crate) fn evaluate(&self, jobs: &[Job<T>]) -> Result<(Totals, Duration), String> {
        let start = Instant::now();
        let (model, device) = (self.model.valid(), self.device.clone().inner());
        let mut totals = Totals { counts: vec![0; self.terms], losses: vec![0.0; self.terms], ..Totals::default() };
        for job in jobs {
            let outcome = self.forward(&model, job, &Pass::new(&device, Vec::new()))?;
            totals.samples += job.micro.samples.len() as u64;
            add(&mut totals.counts, self.task.counts(&job.batch));
            add(&mut totals.losses, scalars(outcome.losses)?);
            add(&mut totals.scores, scalars(outcome.scores)?);
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        Ok((totals, start.elapsed()))
    }

    fn forward(&self, model: &T::Model, job: &Job<T>, pass: &Pass) -> Result<Outcome, String> {
        let outcome = self.task.forward(model, &job.batch, pass);
        if outcome.losses.len() == self.terms {
            return Ok(outcome);
        }
        Err(format!("the task names {} loss terms but its forward pass gave {}", self.terms, outcome.losses.len()))
    }
}

fn scalars(sums: Vec<Tensor<1>>) -> Result<Vec<f64>, String> {
    sums.into_iter()
        .map(|sum| {
            let mut value = Vec::with_capacity(1);
            flat::append(sum.inner(), 1, &mut value).map(|()| f64::from(value[0]))
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
