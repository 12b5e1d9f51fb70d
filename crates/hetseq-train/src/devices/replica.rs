//! One device's copy of a Burn model: computes gradients, evaluates or predicts micro-batches. Runs
//! on the device thread (`thread.rs`). Burn reports failures by panicking; here they become errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use hetseq_kernels::{Dtype, is_host, with_precision};
use hetseq_optim::Layout;

use super::StepParams;
use super::burn_compute::catch_panic;
use crate::data::loader::Job;
use crate::devices::gradients::{Accumulator, append};
use crate::devices::params;
use crate::task::compute::GradientSums;
use crate::task::totals::add;
use crate::task::{Answer, ComputeError, ForwardContext, Inference, Replica, StepOutput, Task, Totals};

/// An open device, with autodiff.
pub(crate) struct BurnDevice {
    pub(crate) device: Device,
    /// The dtype of its products.
    pub(crate) precision: Dtype,
    pub(crate) layout: Arc<Layout>,
    /// Micro-batches computed so far. Shows the process that the device is not stuck.
    pub(crate) steps: Arc<AtomicU64>,
}

impl BurnDevice {
    /// Runs `work` in this device's precision, and turns panics into errors.
    fn run<R>(&self, work: impl FnOnce() -> Result<R, ComputeError>) -> Result<R, ComputeError> {
        catch_panic(|| with_precision(self.precision, work))
    }

    fn load<M: Module>(&self, model: &mut M, all: &Arc<Vec<f32>>, count: usize) -> Result<(), ComputeError> {
        self.run(|| {
            *model = match is_host(&self.device) {
                true => params::load_shared(model.clone(), all, &self.layout, &self.device),
                false => params::load(model.clone(), &all[..count], &self.layout, &self.device),
            };
            self.wait()
        })
    }

    fn release<M: Module>(&self, model: &mut M) {
        if is_host(&self.device) {
            *model = params::release(model.clone(), &self.device);
        }
    }

    /// Waits until the device has finished all launched work, so that times are correct. Nothing to
    /// do in host memory.
    fn wait(&self) -> Result<(), ComputeError> {
        match is_host(&self.device) {
            true => Ok(()),
            false => self.device.sync().map_err(|error| ComputeError::from_message(error.to_string())),
        }
    }

    fn count_step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
    }

    /// The context of a pass without an autodiff graph, which only a backward pass would free.
    fn evaluating(&self, job: &Job) -> ForwardContext {
        ForwardContext::evaluating(&self.device.clone().inner(), &job.micro.samples)
    }
}

/// The model of a [`Task`].
pub(crate) struct TrainingReplica<T: Task> {
    task: Arc<T>,
    on: BurnDevice,
    model: T::Model,
    terms: usize,
}

impl<T: Task> TrainingReplica<T> {
    pub(crate) fn new(task: Arc<T>, on: BurnDevice) -> Self {
        // Loads nothing, but freezes: the probe measures before the first load.
        let model = params::load(task.model(&on.device), &[], &on.layout, &on.device);
        let terms = task.terms().len();
        TrainingReplica { task, on, model, terms }
    }

    fn forward(&self, model: &T::Model, job: &Job, ctx: &ForwardContext) -> Result<StepOutput, ComputeError> {
        let output = self.task.forward(model, &job.batch, ctx)?;
        if output.losses.len() == self.terms {
            return Ok(output);
        }
        let reason = format!("it names {} loss terms but its forward returned {}", self.terms, output.losses.len());
        Err(ComputeError::Task(reason.into()))
    }

    /// Gradients are added up over the micro-batches on the device and downloaded once.
    fn sum_gradients(&self, jobs: &[Arc<Job>], params: &StepParams) -> Result<GradientSums, ComputeError> {
        let start = Instant::now();
        let loss_scale = if self.on.precision == Dtype::F16 { params.loss_scale } else { 1.0 };
        let mut sums = Accumulator::new(&self.model, self.terms, &self.on.device);
        let mut losses: Option<Tensor<1>> = None;
        for job in jobs {
            let ctx = ForwardContext::training(&self.on.device, &job.micro.samples, params.update_key);
            let output = self.forward(&self.model, job, &ctx)?;
            let objective = output
                .losses
                .iter()
                .zip(&params.scales)
                .map(|(loss, &scale)| loss.clone() * (scale * loss_scale))
                .reduce(|a, b| a + b)
                .ok_or_else(|| ComputeError::Task("it has no loss term".into()))?;
            let terms = Tensor::cat(output.losses, 0).inner();
            losses = Some(match losses {
                Some(sum) => sum + terms,
                None => terms,
            });
            sums.backward(&self.model, ctx.tape, &objective);
            self.on.count_step();
        }
        self.on.wait()?;
        let compute = start.elapsed();
        let layout = &self.on.layout;
        let mut flat = sums.download(layout, losses, self.terms, &self.on.device)?;
        let after = start.elapsed() - compute;
        let held_bytes = self.on.device.memory_pool_usage().map(|usage| usage.bytes_reserved);
        let is_scaled = self.on.precision == Dtype::F16;
        let has_overflowed = is_scaled && !hetseq_optim::unscale(&mut flat[..layout.trainable_len()], loss_scale);
        Ok(GradientSums { flat, has_overflowed, compute, after, held_bytes })
    }

    fn sum_scores(&self, jobs: &[Arc<Job>]) -> Result<(Totals, Duration), ComputeError> {
        let start = Instant::now();
        let model = self.model.valid();
        let mut totals = Totals { counts: vec![0; self.terms], losses: vec![0.0; self.terms], ..Totals::default() };
        for job in jobs {
            let output = self.forward(&model, job, &self.on.evaluating(job))?;
            totals.samples += job.micro.samples.len() as u64;
            add(&mut totals.counts, job.batch.counts());
            add(&mut totals.losses, &scalars(output.losses)?);
            add(&mut totals.scores, &scalars(output.scores)?);
            totals.predictions.extend(job.micro.samples.iter().copied().zip(output.predictions));
            self.on.count_step();
        }
        Ok((totals, start.elapsed()))
    }
}

impl<T: Task> Replica for TrainingReplica<T> {
    fn precision(&self) -> Dtype {
        self.on.precision
    }

    fn load(&mut self, parameters: &Arc<Vec<f32>>, count: usize) -> Result<(), ComputeError> {
        self.on.load(&mut self.model, parameters, count)
    }

    fn release(&mut self) {
        self.on.release(&mut self.model);
    }

    fn gradients(&mut self, jobs: &[Arc<Job>], params: &StepParams) -> Result<GradientSums, ComputeError> {
        self.on.run(|| self.sum_gradients(jobs, params))
    }

    fn evaluate(&mut self, jobs: &[Arc<Job>]) -> Result<(Totals, Duration), ComputeError> {
        self.on.run(|| self.sum_scores(jobs))
    }

    fn predict(&mut self, _jobs: &[Arc<Job>]) -> Result<Vec<Answer>, ComputeError> {
        Err(ComputeError::Task("a task that trains does not predict".into()))
    }
}

/// The model of an [`Inference`].
pub(crate) struct PredictingReplica<I: Inference> {
    inference: Arc<I>,
    on: BurnDevice,
    model: I::Model,
}

impl<I: Inference> PredictingReplica<I> {
    pub(crate) fn new(inference: Arc<I>, on: BurnDevice) -> Self {
        let model = inference.model(&on.device);
        PredictingReplica { inference, on, model }
    }
}

impl<I: Inference> Replica for PredictingReplica<I> {
    fn precision(&self) -> Dtype {
        self.on.precision
    }

    fn load(&mut self, parameters: &Arc<Vec<f32>>, count: usize) -> Result<(), ComputeError> {
        self.on.load(&mut self.model, parameters, count)
    }

    fn release(&mut self) {
        self.on.release(&mut self.model);
    }

    fn gradients(&mut self, _jobs: &[Arc<Job>], _params: &StepParams) -> Result<GradientSums, ComputeError> {
        Err(ComputeError::Task("a model opened for inference does not train".into()))
    }

    fn evaluate(&mut self, _jobs: &[Arc<Job>]) -> Result<(Totals, Duration), ComputeError> {
        Err(ComputeError::Task("a model opened for inference has no loss".into()))
    }

    fn predict(&mut self, jobs: &[Arc<Job>]) -> Result<Vec<Answer>, ComputeError> {
        self.on.run(|| {
            let model = self.model.valid();
            let mut predictions = Vec::new();
            for job in jobs {
                predictions.extend(self.inference.predict(&model, &job.batch, &self.on.evaluating(job))?);
                self.on.count_step();
            }
            Ok(predictions)
        })
    }
}

fn scalars(sums: Vec<Tensor<1>>) -> Result<Vec<f64>, ComputeError> {
    sums.into_iter()
        .map(|sum| {
            let mut value = Vec::with_capacity(1);
            append(sum.inner(), 1, &mut value).map(|()| f64::from(value[0]))
        })
        .collect()
}
