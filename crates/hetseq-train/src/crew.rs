//! A task with its devices, in its group: what training and evaluation both start from.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;
use hetseq_balance::{CostTable, DeviceProfile, Planner, Profile, Split};
use hetseq_comm::{Group, Options, Secret};
use hetseq_optim::Layout;
use rayon::ThreadPool;

use crate::config::{Config, FaultAt, WireType};
use crate::data_check::DataCheck;
use crate::devices::{Devices, Emulated, devices_named};
use crate::error::TrainError;
use crate::flat;
use crate::identity::identity;
use crate::lines;
use crate::loader;
use crate::memory::{self, Sharing};
use crate::probe::{self, Entry, Kept, Limits, ProbeKey, Probed};
use crate::roster::Roster;
use crate::run::{RunOptions, run_dir};
use crate::signals::StopFlag;
use crate::task::{Task, TaskError, Which};

pub(crate) struct Crew<T: Task> {
    pub(crate) task: Arc<T>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) devices: Devices<T>,
    pub(crate) group: Group,
    pub(crate) roster: Roster,
    pub(crate) loader_pool: Arc<ThreadPool>,
    pub(crate) data: DataCheck,
}

/// What is to be known of the machines beforehand.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Survey<'a> {
    /// Measure what the split needs. A signal from then on asks for a stop, which cuts the measurement short.
    Measure(&'a StopFlag),
    /// Nothing: it is not worth it for a short job, and the first rounds show it.
    Nothing,
}

impl<T: Task> Crew<T> {
    /// Start the devices, then meet the other ranks: in this order, so that a rank with a wrong device fails before it
    /// makes others wait. Then all measure what they have.
    pub(crate) fn assemble(
        command: &str,
        task: T,
        config: &Config<T::Config>,
        options: &RunOptions,
        survey: Survey<'_>,
    ) -> Result<Self, TrainError> {
        let task = Arc::new(task);
        // First, while nothing else needs the cores.
        let data = DataCheck::begin(T::NAME, task.sealed_files())?;
        let layout = Arc::new(layout_of(&*task)?);
        let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let specs = devices_named(&config.run.devices)
            .map_err(|reason| TrainError::Config(format!("run.devices: {reason}")))?;
        let devices = Devices::start(&task, &layout, &specs, config.run.precision, config.comm.device_patience())?;
        let loader_pool = loader::pool(config.run.loader_threads, &specs, cores)?;
        let identity = identity(command, config, &*task, &layout)?;
        let group = Group::join(&options.place, &identity, &comm_options(config, options))?;
        devices.tell(group.waker());
        let like = Profile {
            task: T::NAME.to_owned(),
            parameters: layout.len() as u64,
            exchange_bytes: exchange_bytes(config.comm.wire, layout.len()),
            ranks: Vec::new(),
        };
        let roster = Roster { profile: like, members: Vec::new(), mine: 0..0, keys: Vec::new() };
        let mut crew = Crew { task, layout, devices, group, roster, loader_pool, data };
        match crew.survey(config, options, survey) {
            Ok(()) => Ok(crew),
            Err(error) => {
                crew.group.abort(&error.to_string());
                Err(error)
            }
        }
    }

    /// What this rank's devices can do, how fast the lines are, and the same of everybody.
    fn survey(
        &mut self,
        config: &Config<T::Config>,
        options: &RunOptions,
        survey: Survey<'_>,
    ) -> Result<(), TrainError> {
        let stop = match survey {
            Survey::Measure(stop) => Some(stop),
            Survey::Nothing => None,
        };
        // Not while ranks are still missing: a rank that waits for them has nothing to save, and ends at once.
        stop.map_or(Ok(()), StopFlag::listen).map_err(TrainError::io("listening for signals"))?;
        // Not before: a rank may get its number only by meeting the others.
        let rank = self.group.rank();
        let of_rank = |faults: &[FaultAt]| -> Vec<(String, u64)> {
            faults.iter().filter(|fault| fault.rank == rank).map(|fault| (fault.device.clone(), fault.update)).collect()
        };
        self.devices.emulate(Emulated {
            slowdown: config.emulate.slowdown.get(rank).copied().unwrap_or(1.0),
            most_tokens: config.emulate.memory_tokens.get(rank).copied().filter(|&tokens| tokens > 0),
            lost: of_rank(&config.emulate.lost),
            hung: of_rank(&config.emulate.hung),
            overflows: config.emulate.overflow.clone(),
        });
        self.group.at("the measuring of devices");
        let is_measured = stop.is_some() && config.batch.split == Split::Measured;
        // A limit of memory counts whatever the split: what fits must be known before.
        let limit = config.run.memory_mib.or(config.run.gpu_memory_mib);
        let is_limited = stop.is_some() && limit.is_some();
        // All ranks take part in both exchanges, whatever the keys of their own machine say.
        let known = match stop {
            Some(stop) => Some((self.memory_sharing()?, self.kept(config)?, stop)),
            None => None,
        };
        let (key, mut devices) = match known {
            Some((sharing, kept, stop)) if (is_measured || is_limited) && config.batch.probe_s > 0.0 => {
                let Entry { key, devices } = self.probe(config, sharing, &kept, stop)?;
                // Without a key, what was cut short is not kept for the next start.
                ((!stop.is_set()).then_some(key), devices)
            }
            _ => (None, self.unmeasured(config)),
        };
        for device in &mut devices {
            device.weight = options.weight.unwrap_or(1.0) / self.devices.names().count() as f64;
        }
        self.group.at("the measuring of lines");
        let lines = if is_measured && config.comm.measure { lines::measure(&mut self.group)? } else { Vec::new() };
        self.group.at("the start");
        let like = self.roster.profile.clone();
        self.roster = Roster::exchange(&mut self.group, (config.comm.own, key, devices), lines, like)?;
        Ok(())
    }

    fn probe(
        &mut self,
        config: &Config<T::Config>,
        sharing: Sharing,
        kept: &Kept,
        stop: &StopFlag,
    ) -> Result<Entry, TrainError> {
        let parameters = 4 * self.layout.len() as u64;
        let limits = Limits {
            max_samples: config.batch.micro,
            max_tokens: config.batch.max_tokens,
            global: config.batch.global,
            memory_bytes: memory::limit_bytes(config.run.memory_mib.map(|mib| mib << 20), sharing),
            gpu_memory_bytes: config.run.gpu_memory_mib.map(|mib| mib << 20),
            // Two values of the optimizer for each parameter, the sum and what is on its way through the network.
            reserved_bytes: 4 * parameters,
            budget: Duration::from_secs_f64(config.batch.probe_s),
        };
        let key = self.probe_key(config, &limits, sharing);
        let known = self.known(kept, &key);
        let Probed { devices, is_new } =
            probe::probe(&*self.task, &mut self.devices, &self.loader_pool, &limits, known.as_deref(), stop)?;
        for words in probe::in_words(&self.devices, &devices, is_new) {
            tracing::info!("{words}");
        }
        Ok(Entry { key, devices })
    }

    /// How many ranks share this rank's memory. After this exchange all ranks have read how much is free, and none has begun
    /// to use it.
    fn memory_sharing(&mut self) -> Result<Sharing, TrainError> {
        let mine = memory::control_groups();
        let all = self.group.agree(mine.as_bytes())?;
        let rank = self.group.rank();
        let on_host = |other: &usize| self.group.host(*other) == self.group.host(rank);
        let in_group =
            |other: &usize| on_host(other) && all.get(*other).is_some_and(|groups| groups == mine.as_bytes());
        let ranks = || 0..self.group.world();
        Ok(Sharing { host: ranks().filter(on_host).count() as u64, group: ranks().filter(in_group).count() as u64 })
    }

    /// What earlier starts measured: rank 0 has it on its disk.
    fn kept(&mut self, config: &Config<T::Config>) -> Result<Kept, TrainError> {
        let is_keeper = self.group.rank() == 0;
        let kept = if is_keeper { Kept::read(&run_dir(config)).to_bytes() } else { Vec::new() };
        Ok(Kept::parse(&self.group.broadcast_bytes(0, kept)?))
    }

    /// What is kept of this rank's devices.
    fn known(&self, kept: &Kept, key: &ProbeKey) -> Option<Vec<DeviceProfile>> {
        let rank = self.group.rank();
        let turn = (0..rank).filter(|&other| self.group.host(other) == self.group.host(rank)).count();
        let names: Vec<String> = self.devices.names().map(str::to_owned).collect();
        kept.find(key, turn, &names).map(<[_]>::to_vec)
    }

    fn probe_key(&self, config: &Config<T::Config>, limits: &Limits, sharing: Sharing) -> ProbeKey {
        ProbeKey {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.group.host(self.group.rank()).to_owned(),
            devices: self.devices.names().collect::<Vec<_>>().join(","),
            task: T::NAME.to_owned(),
            settings: toml::to_string(&config.task).unwrap_or_default(),
            data: self.task.fingerprint(),
            layout: format!("{:016x}", self.layout.hash()),
            precision: self.devices.specs().map(|(_, precision)| precision.to_string()).collect::<Vec<_>>().join(","),
            // What the machine has free differs from start to start; what was set does not.
            limits: format!(
                "{} {:?} {:?} {:?} {:?} {sharing:?}",
                limits.global, limits.max_samples, limits.max_tokens, config.run.memory_mib, config.run.gpu_memory_mib
            ),
        }
    }

    fn unmeasured(&self, config: &Config<T::Config>) -> Vec<DeviceProfile> {
        let device = |name: &str| DeviceProfile {
            name: name.to_owned(),
            table: CostTable::proportional(1.0),
            after_s: 0.0,
            weight: 1.0,
            max_tokens: config.batch.max_tokens,
            max_samples: config.batch.micro,
        };
        self.devices.names().map(device).collect()
    }

    /// How this rank is called where something is wrong with what it has; none if it is alone.
    pub(crate) fn whose(&self) -> Option<String> {
        let rank = self.group.rank();
        (self.group.world() > 1).then(|| format!("rank {rank}, {}", self.group.host(rank)))
    }

    /// Waits until the data of all ranks has passed its checksums. A collective.
    pub(crate) fn finish_data_check(&mut self, patience: Duration) -> Result<(), TrainError> {
        self.data.finish(&mut self.group, patience)
    }

    pub(crate) fn planner(&self) -> Planner {
        Planner::new(&self.roster.profile)
    }
}

fn exchange_bytes(wire: WireType, parameters: usize) -> u64 {
    let each = match wire {
        WireType::F32 => 4,
        WireType::Bf16 => 2,
    };
    each * parameters as u64
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
