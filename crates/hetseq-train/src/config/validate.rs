//! Checks of config values that types cannot express. `file.rs` runs them when it reads a config.

use hetseq_balance::SplitMode;
use hetseq_comm::{Algorithm, TransportKind};
use hetseq_kernels::Dtype;

use super::{Comm, Config, Every, LeaveWhen};

impl<C> Config<C> {
    /// Returns the first invalid value, with its key and what to do.
    pub fn check(&self) -> Result<(), String> {
        self.check_run()?;
        self.check_batch()?;
        self.comm.check()?;
        self.elastic.leave_when.as_ref().map_or(Ok(()), LeaveWhen::check)?;
        if self.checkpoint.keep == 0 {
            return Err("checkpoint.keep must be at least 1".to_owned());
        }
        if let Some(factor) = self.emulate.slowdown.iter().find(|factor| !(1.0..=1000.0).contains(*factor)) {
            return Err(format!("emulate.slowdown: {factor} is not in 1..1000"));
        }
        Ok(())
    }

    /// `[run]`, `[optim]` and `[valid]`.
    fn check_run(&self) -> Result<(), String> {
        if self.run.max_updates.is_none() && self.run.max_epochs.is_none() {
            return Err("set run.max_updates or run.max_epochs: a run needs an end".to_owned());
        }
        self.optim.check()?;
        if let Some(least) = self.run.stop_min_lr {
            self.optim.check_stop(least)?;
        }
        if self.valid.patience == Some(0) {
            return Err("valid.patience must be at least 1; leave it out to never stop early".to_owned());
        }
        if self.valid.patience.is_some() && self.valid.every == Every::Never {
            return Err("valid.patience counts validations, but valid.every = \"never\"".to_owned());
        }
        if self.run.loader_threads.is_some_and(|threads| !(1..=1024).contains(&threads)) {
            return Err("run.loader_threads must be 1 to 1024; leave it out to use the free cores".to_owned());
        }
        if !(1..=64).contains(&self.run.prefetch) {
            return Err(format!("run.prefetch = {} must be 1 to 64 updates", self.run.prefetch));
        }
        Ok(())
    }

    /// `[batch]` and the memory limits that need a probe.
    fn check_batch(&self) -> Result<(), String> {
        if self.batch.micro == Some(0) || self.batch.max_tokens == Some(0) {
            return Err("batch.micro and batch.max_tokens must be at least 1".to_owned());
        }
        if self.batch.even_updates > 0 && self.batch.split != SplitMode::Measured {
            return Err("batch.even_updates needs batch.split = \"measured\"".to_owned());
        }
        if !(0.0..=3600.0).contains(&self.batch.probe_s) {
            return Err(format!("batch.probe_s = {} must be 0 to 3600 seconds", self.batch.probe_s));
        }
        for (key, mib) in [("run.memory_mib", self.run.memory_mib), ("run.gpu_memory_mib", self.run.gpu_memory_mib)] {
            if mib == Some(0) {
                return Err(format!("{key} must be at least 1; leave it out to use what is available"));
            }
            if mib.is_some() && self.batch.probe_s == 0.0 {
                return Err(format!(
                    "{key} needs batch.probe_s above 0: what fits is measured before the first update"
                ));
            }
        }
        Ok(())
    }
}

impl LeaveWhen {
    fn check(&self) -> Result<(), String> {
        let LeaveWhen { command, load, user, after_s, free_s } = self;
        if command.is_none() && load.is_none() && !user {
            return Err("elastic.leave_when needs a condition: command, load or user = true".to_owned());
        }
        if command.as_ref().is_some_and(|command| command.trim().is_empty()) {
            return Err("elastic.leave_when.command is empty; leave it out".to_owned());
        }
        if let Some(load) = load.filter(|load| !(load.is_finite() && *load > 0.0)) {
            return Err(format!("elastic.leave_when.load = {load} must be above 0"));
        }
        for (name, seconds) in [("after_s", after_s), ("free_s", free_s)] {
            if !(0.0..=1e7).contains(seconds) {
                return Err(format!("elastic.leave_when.{name} = {seconds} must be 0 to 10,000,000 seconds"));
            }
        }
        Ok(())
    }
}

impl Comm {
    fn check(&self) -> Result<(), String> {
        if self.ports.is_some_and(|[first, last]| first > last || first == 0) {
            return Err("comm.ports: give the first and the last port, such as [29500, 29510]".to_owned());
        }
        if self.encrypt && self.transport == TransportKind::Mpi {
            return Err(
                "comm.encrypt: traffic over MPI cannot be encrypted; leave it out, or leave out comm.transport"
                    .to_owned(),
            );
        }
        if let Some(weight) = self.shard_weight.filter(|weight| !(weight.is_finite() && *weight >= 0.0)) {
            return Err(format!("comm.shard_weight = {weight} must be zero or more"));
        }
        if self.wire_dtype == Dtype::F16 {
            return Err(
                "comm.wire_dtype = \"f16\" would overflow on large gradients; use \"bf16\" or \"f32\"".to_owned()
            );
        }
        if self.wire_dtype == Dtype::Bf16 && self.algorithm == Algorithm::Ring {
            return Err(
                "comm.algorithm = \"ring\" would round at every hop; with comm.wire_dtype = \"bf16\" leave it out"
                    .to_owned(),
            );
        }
        for (name, seconds) in [("silence_s", self.silence_s), ("progress_s", self.progress_s), ("join_s", self.join_s)]
        {
            if !(0.1..=1e7).contains(&seconds) {
                return Err(format!("comm.{name} = {seconds} must be between 0.1 and 10,000,000 seconds"));
            }
        }
        Ok(())
    }
}
