//! A task with its devices, in its group: what training and evaluation both start from.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;
use hetseq_comm::{Group, Options, Secret};
use hetseq_optim::Layout;
use rayon::ThreadPool;

use crate::config::Config;
use crate::devices::{Devices, parse_devices};
use crate::error::TrainError;
use crate::flat;
use crate::identity::identity;
use crate::loader;
use crate::roster::{Member, Roster};
use crate::run::{RunOptions, run_dir};
use crate::task::{Task, TaskError, Which};

pub(crate) struct Crew<T: Task> {
    pub(crate) task: Arc<T>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) devices: Devices<T>,
    pub(crate) group: Group,
    pub(crate) roster: Roster,
    pub(crate) loader_pool: Arc<ThreadPool>,
}

impl<T: Task> Crew<T> {
    /// Start the devices, then meet the other ranks: in this order, so that a rank with a wrong device fails before it
    /// makes others wait.
    pub(crate) fn assemble(
        command: &str,
        task: T,
        config: &Config<T::Config>,
        options: &RunOptions,
    ) -> Result<Self, TrainError> {
        let task = Arc::new(task);
        let layout = Arc::new(layout_of(&*task)?);
        let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let specs = parse_devices(&config.run.devices, cores)
            .map_err(|reason| TrainError::Config(format!("run.devices: {reason}")))?;
        let mut devices = Devices::start(&task, &layout, &specs, config.comm.progress())?;
        let loader_pool = loader::pool(config.run.loader_threads, &specs, cores)?;
        let identity = identity(command, config, &*task, &layout)?;
        let mut group = Group::join(&options.place, &identity, &comm_options(config, options))?;
        // Not before: a rank may get its number only now.
        devices.slow_down(config.emulate.slowdown.get(group.rank()).copied().unwrap_or(1.0));
        let members: Vec<Member> = devices
            .names()
            .map(|name| Member {
                device: name.to_owned(),
                weight: options.weight.unwrap_or(1.0) / specs.len() as f64,
                max_tokens: config.batch.max_tokens,
                max_samples: config.batch.micro,
            })
            .collect();
        let roster = Roster::exchange(&mut group, config.comm.own, &members)?;
        Ok(Crew { task, layout, devices, group, roster, loader_pool })
    }
}

pub(crate) fn open<T: Task>(config: &Config<T::Config>) -> Result<T, TrainError> {
    let failed = |reason| TrainError::Task { task: T::NAME, reason };
    let task = T::open(&config.task).map_err(failed)?;
    if task.costs(Which::Train).samples() == 0 {
        return Err(failed(TaskError::Other("there are no training samples".to_owned())));
    }
    Ok(task)
}

/// The flat layout of the task's model. Building it asks Burn, which panics on impossible shapes.
pub(crate) fn layout_of<T: Task>(task: &T) -> Result<Layout, TrainError> {
    let build = || flat::layout_of(&task.model(&Device::flex().autodiff()));
    match catch_unwind(AssertUnwindSafe(build)) {
        Ok(layout) => Ok(layout?),
        Err(_) => Err(TrainError::Task {
            task: T::NAME,
            reason: TaskError::Other("its model could not be built (see above)".to_owned()),
        }),
    }
}

/// The parameters that a run starts from.
pub(crate) fn initial_of<T: Task>(task: &T, layout: &Layout, seed: u64) -> Vec<f32> {
    flat::initial(&task.model(&Device::flex()), layout, seed)
}

fn comm_options<C>(config: &Config<C>, options: &RunOptions) -> Options {
    let comm = &config.comm;
    Options {
        silence: Duration::from_secs_f64(comm.silence_s),
        progress: comm.progress(),
        join: Duration::from_secs_f64(comm.join_s),
        interface: comm.interface.clone(),
        ports: comm.ports.map(|[first, last]| first..=last),
        // A run is never open to everybody: if nothing is set, who may use the run directory may join.
        secret: options.secret.clone().map_or_else(|| Secret::InDirectory(run_dir(config)), Secret::Given),
        encrypt: comm.encrypt,
        name: None,
    }
}
