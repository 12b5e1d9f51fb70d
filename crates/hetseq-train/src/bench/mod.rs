//! `hetseq bench step`: times training steps, on the same devices and replicas as training.
//! `short_training` computes the steps; `hetseq selftest` uses it too, and `operations`.

mod operations;
mod short_training;

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use hetseq_metrics::median;
use hetseq_optim::{Layout, OptimizerConfig, OptimizerName};
use serde::Serialize;

use self::short_training::ShortTraining;
use crate::config::RunConfig;
use crate::devices::DeviceSpec;
use crate::error::TrainError;
use crate::task::{OpenedTask, Task};
use crate::tasks::synthetic_bert::{self, SyntheticBert, SyntheticBertConfig};

pub use self::operations::{Operation, OperationResult, precisions_of};
pub use self::short_training::{Trial, TrialFault, TrialRequest};
pub use crate::tasks::synthetic_bert::names as geometries;

/// The options of a benchmark.
#[derive(Debug, Clone)]
pub struct StepRequest {
    /// In the syntax of `run.devices`.
    pub devices: String,
    /// Samples per update, split evenly among the devices; by default as many as the task has.
    pub batch: Option<usize>,
    pub steps: usize,
    pub warmup: usize,
}

/// The result of a benchmark.
#[derive(Debug, Clone, Serialize)]
pub struct StepReport {
    pub task: String,
    pub devices: usize,
    pub threads: usize,
    pub parameters: usize,
    pub batch: usize,
    /// The median over the steps; the rates below are medians too.
    pub step_ms: f64,
    pub best_ms: f64,
    /// Part of a step: parameters to the devices, and gradients from the slowest one.
    pub upload_ms: f64,
    pub download_ms: f64,
    pub samples_per_second: f64,
    /// Without padding.
    pub tokens_per_s: f64,
    /// CPU time of the whole process over wall time: the number of busy cores.
    pub cpu_over_wall: f64,
    /// CPU time of the whole process per step: comparable even on a machine with other load.
    pub cpu_ms: f64,
    /// Peak memory of the process, in MiB.
    pub peak_rss_mb: u64,
}

/// Settings of a step that come from a config or have a fixed value.
struct StepSettings {
    optimizer: OptimizerConfig,
    lr: f32,
    seed: u64,
    loader_threads: Option<usize>,
    timeout: Duration,
}

impl StepSettings {
    fn of(config: &RunConfig) -> Self {
        StepSettings {
            optimizer: config.optim.optimizer(),
            lr: 1e-3,
            seed: config.run.seed,
            loader_threads: config.run.loader_threads,
            timeout: config.comm.device_timeout(),
        }
    }

    fn of_geometry() -> Self {
        StepSettings {
            optimizer: OptimizerConfig { name: OptimizerName::Adam, ..OptimizerConfig::default() },
            lr: 1e-4,
            seed: 1,
            loader_threads: None,
            timeout: Duration::from_secs(1800),
        }
    }
}

/// Times the configured task.
pub(crate) fn step(task: &OpenedTask, config: &RunConfig, request: &StepRequest) -> Result<StepReport, TrainError> {
    time_steps(task, config.optim.freeze(task.layout()?)?, &StepSettings::of(config), request)
}

/// Trains the configured task for some updates.
pub(crate) fn trial(task: &OpenedTask, config: &RunConfig, request: &TrialRequest) -> Result<Trial, TrainError> {
    short_training::trial(task, config.optim.freeze(task.layout()?)?, &StepSettings::of(config), request)
}

/// Times BERT in one of the [`geometries`], without any data.
pub fn step_of_geometry(name: &str, dropout: f64, request: &StepRequest) -> Result<StepReport, TrainError> {
    let samples = request.batch.or(synthetic_bert::default_sequences(name)).unwrap_or(1);
    let task = open_geometry(name, samples, dropout)?;
    time_steps(&task, task.layout()?, &StepSettings::of_geometry(), request)
}

/// Trains BERT in one of the [`geometries`] for some updates, without any data.
pub fn trial_of_geometry(name: &str, request: &TrialRequest) -> Result<Trial, TrainError> {
    let task = open_geometry(name, request.batch, 0.0)?;
    short_training::trial(&task, task.layout()?, &StepSettings::of_geometry(), request)
}

fn open_geometry(name: &str, samples: usize, dropout: f64) -> Result<OpenedTask, TrainError> {
    let config = SyntheticBertConfig { geometry: name.to_owned(), samples, dropout };
    let failed = |reason| TrainError::Task { task: SyntheticBert::NAME.to_owned(), reason: Box::new(reason) };
    Ok(OpenedTask::new(SyntheticBert::open(&config).map_err(failed)?, String::new()))
}

fn time_steps(
    task: &OpenedTask,
    layout: Layout,
    settings: &StepSettings,
    request: &StepRequest,
) -> Result<StepReport, TrainError> {
    let mut training = ShortTraining::start(task, layout, settings, &request.devices, request.batch)?;
    let (mut seconds, mut uploads, mut downloads) = (Vec::new(), Vec::new(), Vec::new());
    let mut measured_from = (Instant::now(), cpu_seconds());
    for k in 0..request.warmup + request.steps {
        if k == request.warmup {
            measured_from = (Instant::now(), cpu_seconds());
        }
        let done = training.update()?;
        if k >= request.warmup {
            seconds.push(done.total.as_secs_f64());
            uploads.push(done.upload.as_secs_f64());
            let after = done.sum.devices.iter().map(|device| device.after).max().unwrap_or_default();
            downloads.push(after.as_secs_f64());
        }
    }
    let (wall, cpu) = (measured_from.0.elapsed().as_secs_f64(), cpu_seconds() - measured_from.1);
    let best = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let (median, upload, download) = (median(seconds), median(uploads), median(downloads));
    let batch = training.ids.len();
    Ok(StepReport {
        task: task.name.to_string(),
        devices: training.specs.len(),
        threads: training.specs.iter().map(DeviceSpec::threads).sum(),
        parameters: training.layout.len(),
        batch,
        step_ms: 1e3 * median,
        best_ms: 1e3 * best,
        upload_ms: 1e3 * upload,
        download_ms: 1e3 * download,
        samples_per_second: batch as f64 / median,
        tokens_per_s: training.tokens as f64 / median,
        cpu_over_wall: cpu / wall,
        cpu_ms: 1e3 * cpu / request.steps as f64,
        peak_rss_mb: peak_rss_mb(),
    })
}

/// The peak resident set size (`VmHWM`) on Linux; 0 elsewhere.
fn peak_rss_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    kib.unwrap_or(0u64) / 1024
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 and 15. The command name before them may contain spaces but ends at the last
    // parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks: f64 = [11, 12].iter().filter_map(|&i| fields.get(i)?.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// The speed of matrix products on `cores` threads at once, each independent, as on `cores`
/// single-threaded devices.
pub fn matmul_gflops(cores: usize) -> Result<f64, TrainError> {
    const SIDE: usize = 512;
    const PRODUCTS: usize = 12;
    let work = || {
        let device = Device::flex();
        let a = Tensor::<2>::full([SIDE, SIDE], 0.5, &device);
        let mut total = Tensor::<2>::zeros([SIDE, SIDE], &device);
        for _ in 0..PRODUCTS {
            total = total + a.clone().matmul(a.clone());
        }
        total.try_into_data().map_err(|error| error.to_string())
    };
    let pools: Vec<_> =
        (0..cores).filter_map(|_| rayon::ThreadPoolBuilder::new().num_threads(1).build().ok()).collect();
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let started = Instant::now();
        let done: Vec<Result<_, String>> = std::thread::scope(|scope| {
            let threads: Vec<_> = pools.iter().map(|pool| scope.spawn(move || pool.install(work))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("it panicked".to_owned()))).collect()
        });
        if let Some(reason) = done.into_iter().find_map(Result::err) {
            return Err(TrainError::Device { device: "cpu".to_owned(), doing: "multiplying matrices", reason });
        }
        best = best.min(started.elapsed().as_secs_f64());
    }
    let operations = 2.0 * (SIDE as f64).powi(3) * PRODUCTS as f64 * pools.len() as f64;
    Ok(operations / best * 1e-9)
}
