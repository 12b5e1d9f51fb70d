//! A training in memory: the same samples in every update, on the devices and replicas of a real
//! training, without other ranks, a plan or a run directory. `hetseq bench step` times its updates;
//! `hetseq selftest` compares its losses and gradients between devices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hetseq_metrics::median;
use hetseq_optim::{Layout, LayoutEntry, Optimizer};
use hetseq_random::Key;

use super::StepSettings;
use crate::data::loader::{self, LoadRequest, Loader, MicroBatch};
use crate::devices::{DeviceSpec, Devices, FaultInjection, LocalSum, PrecisionPolicy, StepParams, devices_named};
use crate::error::TrainError;
use crate::task::{OpenedTask, Split, Term};
use crate::trainer::losses::{mean_losses, scales, weighted};

/// Gradients of devices that compute in `f16` are scaled by this. Small enough not to overflow in
/// the first updates of any built-in model.
const LOSS_SCALE: f32 = 1024.0;

pub(super) struct ShortTraining {
    pub(super) specs: Vec<DeviceSpec>,
    pub(super) layout: Arc<Layout>,
    /// The samples of every update.
    pub(super) ids: Vec<u32>,
    /// Tokens of an update, without padding.
    pub(super) tokens: u64,
    devices: Devices,
    loader: Loader,
    optimizer: Optimizer,
    parameters: Arc<Vec<f32>>,
    terms: Vec<Term>,
    micro_batches: Vec<Vec<MicroBatch>>,
    lr: f32,
    updates: u64,
}

/// The result of one update.
pub(super) struct UpdateDone {
    pub(super) sum: LocalSum,
    pub(super) loss: f64,
    /// Time to transfer the parameters to the devices, part of `total`.
    pub(super) upload: Duration,
    pub(super) total: Duration,
}

impl ShortTraining {
    /// Starts the devices, and splits `batch` samples evenly among them, one micro-batch each. By
    /// default all samples of the task.
    pub(super) fn start(
        task: &OpenedTask,
        layout: Layout,
        settings: &StepSettings,
        device_names: &str,
        batch: Option<usize>,
    ) -> Result<Self, TrainError> {
        let layout = Arc::new(layout);
        let cores = std::thread::available_parallelism().unwrap_or(std::num::NonZeroUsize::MIN);
        let specs = devices_named(device_names).map_err(|reason| TrainError::Config(format!("--devices: {reason}")))?;
        let mut devices = Devices::start(task, &layout, &specs, PrecisionPolicy::default(), settings.timeout)?;
        let pool = loader::pool(settings.loader_threads, &specs, cores)?;
        let loader = Loader::start(task, settings.seed, &pool, settings.timeout, None)?;
        let optimizer = Optimizer::new(&settings.optimizer, &layout)?;
        let initial = task.compute.initial(&layout, settings.seed).map_err(|reason| task.error(reason))?;
        let parameters = Arc::new(initial);
        devices.load(&parameters)?;
        let lengths = task.data.lengths(Split::Train);
        let batch = batch.unwrap_or(lengths.samples());
        let ids: Vec<u32> = (0..batch as u32).map(|i| i % lengths.samples() as u32).collect();
        let micro = |ids: &[u32]| MicroBatch {
            samples: ids.to_vec(),
            longest: ids.iter().map(|&id| lengths.padded(id)).max().unwrap_or(0),
        };
        let of_devices = ids.chunks(batch.div_ceil(specs.len()).max(1)).map(|ids| vec![micro(ids)]);
        let micro_batches = of_devices.chain(std::iter::repeat_with(Vec::new)).take(specs.len()).collect();
        let training = ShortTraining {
            tokens: ids.iter().map(|&id| u64::from(lengths.tokens(id))).sum(),
            terms: task.data.terms(),
            lr: settings.lr,
            updates: 0,
            specs,
            layout,
            ids,
            devices,
            loader,
            optimizer,
            parameters,
            micro_batches,
        };
        training.request()?;
        Ok(training)
    }

    fn request(&self) -> Result<(), TrainError> {
        self.loader.request(LoadRequest { split: Split::Train, epoch: 0, devices: self.micro_batches.clone() })
    }

    /// Computes one update. Fails if a device was lost: no other one must compute its samples.
    pub(super) fn update(&mut self) -> Result<UpdateDone, TrainError> {
        let started = Instant::now();
        self.devices.load_trainable(&self.parameters)?;
        let upload = started.elapsed();
        let work = self.loader.take()?;
        self.request()?;
        let params = StepParams {
            update: self.updates + 1,
            scales: scales(&self.terms, &work.counts),
            loss_scale: LOSS_SCALE,
            update_key: Key::root(0).index(self.updates),
            epoch_key: work.epoch_key,
        };
        self.devices.begin(work.devices, params);
        let sum = self.devices.finish()?;
        if let Some(lost) = sum.lost.first() {
            let device = self.specs.get(lost.device).map_or_else(String::new, |spec| spec.name.clone());
            return Err(TrainError::Device { device, doing: "computing gradients", reason: lost.reason.clone() });
        }
        let (gradients, loss_sums) = sum.flat.split_at(self.layout.trainable_len());
        self.devices.release()?;
        if sum.overflow != Some(true) {
            let parameters: &mut Vec<f32> = Arc::make_mut(&mut self.parameters);
            self.optimizer.step(parameters, gradients, 1.0, self.lr);
        }
        let loss_sums: Vec<f64> = loss_sums.iter().map(|&sum| f64::from(sum)).collect();
        let loss = weighted(&self.terms, &mean_losses(&loss_sums, &work.counts));
        self.updates += 1;
        Ok(UpdateDone { sum, loss, upload, total: started.elapsed() })
    }
}

/// The options of a [`Trial`].
#[derive(Debug, Clone)]
pub struct TrialRequest {
    /// In the syntax of `run.devices`.
    pub devices: String,
    /// Samples per update, split evenly among the devices.
    pub batch: usize,
    pub updates: usize,
    /// For tests: a fault of the first device in the second update.
    pub fault: Option<TrialFault>,
}

/// A fault that a [`Trial`] emulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrialFault {
    /// Gradients that are finite but wrong.
    Wrong,
    NotFinite,
    Lost,
}

/// The result of a short training.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The loss of each update.
    pub losses: Vec<f64>,
    /// The gradients of the first two updates, in the flat layout of `entries`.
    pub gradients: Vec<Vec<f32>>,
    pub entries: Vec<LayoutEntry>,
    /// After the last update.
    pub parameters: Vec<f32>,
    /// Samples per second, from the median time of an update without the first two, which compile.
    pub samples_per_s: f64,
    /// Updates skipped because gradients overflowed in `f16`.
    pub overflows: usize,
    /// Memory held on the GPU after each update.
    pub held_bytes: Vec<u64>,
}

/// Number of updates whose gradients a [`Trial`] returns.
const GRADIENTS: usize = 2;

pub(super) fn trial(
    task: &OpenedTask,
    layout: Layout,
    settings: &StepSettings,
    request: &TrialRequest,
) -> Result<Trial, TrainError> {
    let mut training = ShortTraining::start(task, layout, settings, &request.devices, Some(request.batch))?;
    if let Some(fault) = request.fault {
        let first = vec![(training.specs[0].name.clone(), GRADIENTS as u64)];
        training.devices.inject_faults(match fault {
            TrialFault::Wrong => FaultInjection { wrong: first, ..FaultInjection::default() },
            TrialFault::NotFinite => FaultInjection { not_finite: first, ..FaultInjection::default() },
            TrialFault::Lost => FaultInjection { lost: first, ..FaultInjection::default() },
        });
    }
    let (mut losses, mut gradients, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
    let (mut overflows, mut held_bytes) = (0, Vec::new());
    for update in 0..request.updates {
        let done = training.update()?;
        losses.push(done.loss);
        overflows += usize::from(done.sum.overflow == Some(true));
        held_bytes.extend(done.sum.devices.iter().filter_map(|device| device.held_bytes).max());
        if update >= GRADIENTS || request.updates <= GRADIENTS {
            seconds.push(done.total.as_secs_f64());
        }
        if update < GRADIENTS {
            let mut flat = done.sum.flat;
            flat.truncate(training.layout.trainable_len());
            gradients.push(flat);
        }
    }
    Ok(Trial {
        losses,
        gradients,
        entries: training.layout.trainable_entries().to_vec(),
        parameters: training.parameters.to_vec(),
        samples_per_s: training.ids.len() as f64 / median(seconds),
        overflows,
        held_bytes,
    })
}
