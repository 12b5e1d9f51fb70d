//! A task with its devices, in its group of ranks. Training and evaluation both start from one
//! (`run.rs`).

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use hetseq_balance::{CostTable, DeviceProfile, Planner, Profile, SplitMode};
use hetseq_comm::{
    Candidate, Group, Joining, Newcomers, Options, RegroupRules, Regrouped, RunningGroup, Secret, TransportKind, Waker,
};
use hetseq_metrics::terminal;
use hetseq_optim::{Layout, Optimizer};
use rayon::ThreadPool;

use crate::config::rank_match::identity;
use crate::config::{FaultAt, RunConfig};
use crate::data::data_check::DataCheck;
use crate::data::loader::{self, Loader};
use crate::devices::memory::{self, Sharing};
use crate::devices::{DeviceSpec, Devices, FaultInjection, devices_named};
use crate::error::TrainError;
use crate::profiling::cluster::ClusterProfile;
use crate::profiling::links;
use crate::profiling::probe::{self, ProbeCache, ProbeEntry, ProbeKey, ProbeLimits, Probed};
use crate::run::{RunOptions, run_dir};
use crate::task::OpenedTask;
use crate::trainer::stop::StopFlag;

/// How long a process looks for the run of which it has just been a rank.
const REJOIN_LIMIT: Duration = Duration::from_secs(10);

/// In the run directory of each rank: where the ranks of its group can be reached.
const MEMBERS_FILE: &str = "members.json";

pub(crate) struct Session {
    pub(crate) task: OpenedTask,
    pub(crate) layout: Arc<Layout>,
    pub(crate) devices: Devices,
    pub(crate) group: Group,
    pub(crate) cluster: ClusterProfile,
    loader_pool: Arc<ThreadPool>,
    pub(crate) data_check: DataCheck,
    /// The group to join, which trains already. Until then, `group` is this process alone.
    pub(crate) running: Option<RunningGroup>,
}

/// Whether to measure the machines before the first update.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ProbeMode<'a> {
    /// Measure what the split needs. From then on a signal sets the flag, which cuts the
    /// measurement short.
    Measure(&'a StopFlag),
    /// Measure nothing: it does not pay for a short job, whose first rounds show the speeds.
    Skip,
}

impl Session {
    /// Starts the devices, then joins the other ranks: in this order, so that a rank with a wrong
    /// device fails before others wait for it.
    pub(crate) fn assemble(
        command: &str,
        task: &OpenedTask,
        config: &RunConfig,
        options: &RunOptions,
        stop: &StopFlag,
    ) -> Result<Self, TrainError> {
        terminal::stamp_lines();
        // First, while nothing else needs the cores.
        let data_check = DataCheck::begin(&task.name, task.data.checksummed_files())?;
        let layout = Arc::new(config.optim.freeze(task.layout()?)?);
        let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let names = match config.run.devices.as_str() {
            "all" => task.compute.all_devices().unwrap_or_else(|| "all".to_owned()),
            names => names.to_owned(),
        };
        let specs = devices_named(&names).map_err(|reason| TrainError::Config(format!("run.devices: {reason}")))?;
        if let Some(warning) = too_many_threads(&config.run.devices, &specs, cores.get()) {
            tracing::warn!("{warning}");
        }
        let devices = Devices::start(task, &layout, &specs, config.run.precision, config.comm.device_timeout())?;
        let loader_pool = loader::pool(config.run.loader_threads, &specs, cores)?;
        let identity = identity(command, task, &layout)?;
        let comm_options = comm_options(command, config, options, stop);
        let (group, running) = match Group::join_or_find(&options.rank_env, &identity, &comm_options)? {
            Joining::Started(group) => (group, None),
            Joining::Running(running) => {
                let hosts: Vec<&str> = running.hosts().collect();
                tracing::info!("this run trains already, on {}: joining it", hosts.join(", "));
                (Group::alone()?, Some(running))
            }
        };
        devices.set_waker(group.waker());
        let template = Profile {
            task: task.name.to_string(),
            parameters: layout.len() as u64,
            exchange_bytes: config.comm.wire_dtype.bytes() * layout.trainable_len() as u64,
            ranks: Vec::new(),
        };
        let cluster = ClusterProfile::empty(template);
        let task = task.clone();
        Ok(Session { task, layout, devices, group, cluster, loader_pool, data_check, running })
    }

    /// Leaves the group after the last collective, or passes an error on to the other ranks.
    pub(crate) fn leave<R>(mut self, result: Result<R, TrainError>) -> Result<R, TrainError> {
        match &result {
            Ok(_) => self.group.close(),
            Err(error) => self.report_failure(error, false),
        }
        result
    }

    /// Passes an error on to the other ranks. They continue without this one if it is the only one
    /// affected.
    pub(crate) fn report_failure(&mut self, error: &TrainError, fails_everywhere: bool) {
        match error.is_of_this_rank() && !fails_everywhere {
            true => self.group.fail(&error.to_string()),
            false => self.group.abort(&error.to_string()),
        }
    }

    /// Continues with the ranks that are left, in a new generation of the group. The result names
    /// lost ranks by their numbers at the start.
    pub(crate) fn regroup(&mut self) -> Result<Regrouped, TrainError> {
        let regrouped = self.group.regroup()?;
        Ok(self.follow(regrouped))
    }

    /// Admits a newcomer, in a new generation of the group. Ranks may be lost meanwhile, and then the
    /// newcomer may stay outside.
    pub(crate) fn admit(&mut self, candidate: Candidate) -> Result<Regrouped, TrainError> {
        let regrouped = self.group.admit(candidate)?;
        Ok(self.follow(regrouped))
    }

    fn follow(&mut self, mut regrouped: Regrouped) -> Regrouped {
        for lost in &mut regrouped.lost {
            lost.rank = self.cluster.original_ranks.get(lost.rank).copied().unwrap_or(lost.rank);
        }
        self.cluster.keep(&regrouped.survivors, self.group.rank());
        // Some ranks may already know that all have passed.
        self.data_check.ask_again();
        regrouped
    }

    /// Joins the group that trains: waits until it admits this process, or until a signal.
    pub(crate) fn enter(
        &mut self,
        running: RunningGroup,
        config: &RunConfig,
        stop: &StopFlag,
    ) -> Result<(), TrainError> {
        let dir = run_dir(config);
        let rules = RegroupRules { directory: Some(dir.clone()), min_workers: config.elastic.min_workers };
        self.group = Group::enter(running, rules, dir.join(MEMBERS_FILE), &|| stop.is_set())?;
        self.devices.set_waker(self.group.waker());
        Ok(())
    }

    /// A loader for this task. `waker` wakes a rank that polls it.
    pub(crate) fn loader(&self, config: &RunConfig, waker: Option<Waker>) -> Result<Loader, TrainError> {
        Loader::start(&self.task, config.run.seed, &self.loader_pool, config.comm.progress_timeout(), waker)
    }

    /// Probes this rank's devices and the links, and exchanges the results with all ranks. A collective,
    /// from its beginning: no rank measures before all have come here.
    pub(crate) fn probe_cluster(
        &mut self,
        config: &RunConfig,
        options: &RunOptions,
        probe_mode: ProbeMode<'_>,
    ) -> Result<(), TrainError> {
        let stop = match probe_mode {
            ProbeMode::Measure(stop) => Some(stop),
            ProbeMode::Skip => None,
        };
        // Not while ranks are still missing: a rank that waits for them has nothing to save, and a
        // signal ends it at once.
        stop.map_or(Ok(()), StopFlag::listen).map_err(TrainError::io("listening for signals"))?;
        // Not earlier: a rank may get its number only when it joins.
        self.emulate_faults(config, self.group.rank());
        self.group.at("the device probe");
        let is_measured = stop.is_some() && config.batch.split == SplitMode::Measured;
        // A memory limit needs a probe with any split, to find what fits.
        let limit = config.run.memory_mib.or(config.run.gpu_memory_mib);
        let is_limited = stop.is_some() && limit.is_some();
        // All ranks join both exchanges, whatever their own config says.
        let known = match stop {
            Some(stop) => Some((self.memory_sharing()?, self.probe_cache(config)?, stop)),
            None => None,
        };
        let (key, mut devices) = match known {
            Some((sharing, cache, stop))
                if (is_measured || is_limited)
                    && config.batch.probe_s > 0.0
                    && self.devices.names().next().is_some() =>
            {
                let ProbeEntry { key, devices } = self.probe(config, sharing, &cache, stop)?;
                // Without a key, a measurement that was cut short is not cached for the next start.
                ((!stop.is_set()).then_some(key), devices)
            }
            _ => (None, self.unmeasured_profiles(config)),
        };
        for device in &mut devices {
            device.weight = options.weight.unwrap_or(1.0) / self.devices.names().count() as f64;
        }
        self.group.at("the link measurement");
        let link_profiles =
            if is_measured && config.comm.measure_links { links::measure(&mut self.group)? } else { Vec::new() };
        self.group.at("the start");
        let template = self.cluster.profile.clone();
        self.cluster = ClusterProfile::exchange(
            &mut self.group,
            (config.comm.shard_weight, key, devices),
            link_profiles,
            template,
        )?;
        if self.cluster.members.is_empty() && self.running.is_none() {
            let reason = "run.devices = \"none\" on all ranks: at least one has to compute";
            return Err(TrainError::Config(reason.to_owned()));
        }
        Ok(())
    }

    /// Lets this rank, number `rank` of the run, fail or be slow where `emulate` says so.
    pub(crate) fn emulate_faults(&mut self, config: &RunConfig, rank: usize) {
        let of_rank = |faults: &[FaultAt]| -> Vec<(String, u64)> {
            faults.iter().filter(|fault| fault.rank == rank).map(|fault| (fault.device.clone(), fault.update)).collect()
        };
        self.devices.inject_faults(FaultInjection {
            slowdown: config.emulate.slowdown.get(rank).copied().unwrap_or(1.0),
            most_tokens: config.emulate.memory_tokens.get(rank).copied().filter(|&tokens| tokens > 0),
            lost: of_rank(&config.emulate.lost),
            hung: of_rank(&config.emulate.hung),
            not_finite: of_rank(&config.emulate.not_finite),
            wrong: Vec::new(),
            overflows: config.emulate.overflow.clone(),
        });
    }

    fn probe(
        &mut self,
        config: &RunConfig,
        sharing: Sharing,
        cache: &ProbeCache,
        stop: &StopFlag,
    ) -> Result<ProbeEntry, TrainError> {
        let trainable_bytes = 4 * self.layout.trainable_len() as u64;
        let limits = ProbeLimits {
            max_samples: config.batch.micro,
            max_tokens: config.batch.max_tokens,
            global: config.batch.global,
            memory_bytes: memory::limit_bytes(config.run.memory_mib.map(|mib| mib << 20), sharing),
            gpu_memory_bytes: config.run.gpu_memory_mib.map(|mib| mib << 20),
            // Two optimizer values for each trainable parameter, the sum, and the buffers of the
            // exchange.
            reserved_bytes: 4 * trainable_bytes,
            budget: Duration::from_secs_f64(config.batch.probe_s),
        };
        let key = self.probe_key(config, &limits, sharing);
        let known = self.cached_profiles(cache, &key);
        let Probed { devices, is_new } =
            probe::probe(&self.task, &mut self.devices, &self.loader_pool, &limits, known.as_deref(), stop)?;
        for line in probe::describe(&self.devices, &devices, is_new) {
            tracing::info!("{line}");
        }
        Ok(ProbeEntry { key, devices })
    }

    /// How many ranks share this rank's memory. A collective, before any rank starts its probe.
    fn memory_sharing(&mut self) -> Result<Sharing, TrainError> {
        let local = memory::control_groups();
        let all = self.group.all_gather_bytes(local.as_bytes())?;
        let rank = self.group.rank();
        let on_host = |other: &usize| self.group.host(*other) == self.group.host(rank);
        let in_group =
            |other: &usize| on_host(other) && all.get(*other).is_some_and(|groups| groups == local.as_bytes());
        let ranks = || 0..self.group.world();
        // The ranks of a group to join: whether they share more than the machine is not known.
        let own = self.group.host(rank);
        let others = self.running.iter().flat_map(RunningGroup::hosts).filter(|host| *host == own).count();
        let shared = |count: usize| (count + others) as u64;
        Ok(Sharing { host: shared(ranks().filter(on_host).count()), group: shared(ranks().filter(in_group).count()) })
    }

    /// Measurements of earlier starts, from rank 0's disk.
    fn probe_cache(&mut self, config: &RunConfig) -> Result<ProbeCache, TrainError> {
        let is_rank_0 = self.group.rank() == 0;
        let cache = if is_rank_0 { ProbeCache::read(&run_dir(config)).to_bytes() } else { Vec::new() };
        Ok(ProbeCache::parse(&self.group.broadcast_bytes(0, cache)?))
    }

    /// Cached measurements of this rank's devices.
    fn cached_profiles(&self, cache: &ProbeCache, key: &ProbeKey) -> Option<Vec<DeviceProfile>> {
        let rank = self.group.rank();
        let index = (0..rank).filter(|&other| self.group.host(other) == self.group.host(rank)).count();
        let names: Vec<String> = self.devices.names().map(str::to_owned).collect();
        cache.find(key, index, &names).map(<[_]>::to_vec)
    }

    fn probe_key(&self, config: &RunConfig, limits: &ProbeLimits, sharing: Sharing) -> ProbeKey {
        ProbeKey {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: self.group.host(self.group.rank()).to_owned(),
            devices: self.devices.names().collect::<Vec<_>>().join(","),
            task: self.task.name.to_string(),
            settings: toml::to_string(&config.task).unwrap_or_default(),
            data: self.task.data.fingerprint(),
            layout: format!("{:016x}", self.layout.hash()),
            precision: self.devices.specs().map(|(_, precision)| precision.to_string()).collect::<Vec<_>>().join(","),
            // From the config, not the free memory, which differs from start to start.
            limits: format!(
                "{} {:?} {:?} {:?} {:?} {sharing:?}",
                limits.global, limits.max_samples, limits.max_tokens, config.run.memory_mib, config.run.gpu_memory_mib
            ),
        }
    }

    fn unmeasured_profiles(&self, config: &RunConfig) -> Vec<DeviceProfile> {
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

    /// This rank's name in messages about its local files; none if it is the only rank.
    pub(crate) fn rank_label(&self) -> Option<String> {
        let rank = self.group.rank();
        (self.group.world() > 1).then(|| format!("rank {rank}, {}", self.group.host(rank)))
    }

    /// Waits until the data of all ranks has passed its checksums. A collective.
    pub(crate) fn finish_data_check(&mut self, timeout: Duration) -> Result<(), TrainError> {
        self.data_check.finish(&mut self.group, timeout)
    }

    /// The optimizer for the task's parameters.
    pub(crate) fn optimizer(&self, config: &RunConfig) -> Result<Optimizer, TrainError> {
        let groups = self.task.compute.groups(&self.layout).transpose()?;
        Ok(config.optim.build(&self.layout, groups)?)
    }

    pub(crate) fn planner(&self) -> Planner {
        Planner::new(&self.cluster.profile)
    }
}

/// The warning about devices that share cores.
fn too_many_threads(names: &str, specs: &[DeviceSpec], cores: usize) -> Option<String> {
    let computing = specs.iter().filter(|spec| !spec.is_gpu());
    let threads: usize = computing.map(DeviceSpec::threads).sum();
    (threads > cores).then(|| {
        format!(
            "run.devices = \"{names}\" computes with {threads} threads on {cores} cores, which is slower than one per core; \
             use \"cpu\" or \"cpu:{cores}\""
        )
    })
}

fn comm_options(command: &str, config: &RunConfig, options: &RunOptions, stop: &StopFlag) -> Options {
    let comm = &config.comm;
    let is_elastic = config.elastic.enabled && comm.transport == TransportKind::Tcp;
    let newcomers = Newcomers {
        members_file: run_dir(config).join(MEMBERS_FILE),
        join: options.join.clone(),
        limit: options.rejoin.then_some(REJOIN_LIMIT),
        start_with: config.elastic.start_with.map(NonZeroUsize::get),
    };
    Options {
        silence: Duration::from_secs_f64(comm.silence_s),
        progress: comm.progress_timeout(),
        join: Duration::from_secs_f64(comm.join_s),
        interface: comm.interface.clone(),
        ports: comm.ports.map(|[first, last]| first..=last),
        // A run is never open to all: without a secret, ranks that can read the run directory may
        // join.
        secret: options.secret.clone().map_or_else(|| Secret::InDirectory(run_dir(config)), Secret::Given),
        encrypt: comm.encrypt,
        name: None,
        newcomers: Some(newcomers).filter(|_| is_elastic && command == "train"),
        transport: comm.transport,
        terminated: stop.terminated(),
    }
}
