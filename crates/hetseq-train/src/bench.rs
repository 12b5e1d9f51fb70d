//! `hetseq bench step`: how fast training steps are, on the same devices and replicas that train.

use std::sync::Arc;
use std::time::Instant;

use burn::tensor::{Device, Tensor};
use hetseq_metrics::median;
use hetseq_optim::Optimizer;
use hetseq_random::Key;
use serde::Serialize;

use crate::config::Config;
use crate::crew::{initial_of, layout_of, open};
use crate::devices::{Devices, parse_devices};
use crate::error::TrainError;
use crate::header::scales;
use crate::loader::{self, Loader, Order};
use crate::task::{Task, Which};

/// What to time.
#[derive(Debug, Clone)]
pub struct StepRequest {
    pub devices: String,
    /// Samples per update, cut evenly over the devices.
    pub batch: usize,
    pub steps: usize,
    pub warmup: usize,
}

#[derive(Debug, Clone, Serialize)]
pub struct StepReport {
    pub task: String,
    pub devices: usize,
    pub threads: usize,
    pub parameters: usize,
    pub batch: usize,
    /// Medians over the steps.
    pub step_ms: f64,
    pub samples_per_second: f64,
    /// CPU time of the whole process over wall time: how many cores were busy.
    pub cpu_over_wall: f64,
}

pub(crate) fn step<T: Task>(config: Config<T::Config>, request: &StepRequest) -> Result<StepReport, TrainError> {
    let task = Arc::new(open::<T>(&config)?);
    let layout = Arc::new(layout_of(&*task)?);
    let cores = std::thread::available_parallelism().unwrap_or(std::num::NonZeroUsize::MIN);
    let specs =
        parse_devices(&request.devices, cores).map_err(|reason| TrainError::Config(format!("--devices: {reason}")))?;
    let devices = Devices::start(&task, &layout, &specs, config.comm.progress())?;
    let pool = loader::pool(config.run.loader_threads, &specs, cores)?;
    let loader = Loader::start(&task, config.run.seed, &pool, config.comm.progress())?;
    let mut optimizer = Optimizer::new(&config.optim.optimizer(), &layout)?;
    let mut parameters: Arc<Vec<f32>> = Arc::new(initial_of(&*task, &layout, config.run.seed));
    let samples = task.costs(Which::Train).samples() as u32;
    let order = || {
        let ids: Vec<u32> = (0..request.batch as u32).map(|i| i % samples).collect();
        let per_device = request.batch.div_ceil(specs.len());
        let devices = ids.chunks(per_device.max(1)).map(|ids| vec![ids.to_vec()]);
        let devices = devices.chain(std::iter::repeat_with(Vec::new)).take(specs.len()).collect();
        loader.order(Order { which: Which::Train, epoch: 0, devices })
    };
    order()?;
    let mut seconds = Vec::new();
    let mut mark = (Instant::now(), cpu_seconds());
    for k in 0..request.warmup + request.steps {
        if k == request.warmup {
            mark = (Instant::now(), cpu_seconds());
        }
        let started = Instant::now();
        devices.load(&parameters)?;
        let work = loader.take()?;
        order()?;
        let weights: Vec<f64> = task.terms().iter().map(|term| term.weight).collect();
        let scales = scales(&weights, &work.counts);
        let sum = devices.gradients(work.devices, scales, Key::root(0).index(k as u64))?;
        let values = Arc::make_mut(&mut parameters);
        optimizer.step(values, &sum.flat[..layout.len()], 1.0, 1e-3);
        if k >= request.warmup {
            seconds.push(started.elapsed().as_secs_f64());
        }
    }
    let cpu_over_wall = (cpu_seconds() - mark.1) / mark.0.elapsed().as_secs_f64();
    let median = median(seconds);
    Ok(StepReport {
        task: T::NAME.to_owned(),
        devices: specs.len(),
        threads: specs.iter().map(|spec| spec.threads).sum(),
        parameters: layout.len(),
        batch: request.batch,
        step_ms: 1e3 * median,
        samples_per_second: request.batch as f64 / median,
        cpu_over_wall,
    })
}

/// User and system time of this process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 and 15 after the command name, which may hold spaces but ends at the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks: f64 = [11, 12].iter().filter_map(|&i| fields.get(i)?.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// Matrix products on `cores` threads at once, each by itself, as `cores` single-threaded devices would do them.
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
