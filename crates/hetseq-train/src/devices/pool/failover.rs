//! Failover: drops failed devices and assigns their work to the others. Called by `pool`.

use std::sync::Arc;

use crate::data::loader::Job;
use crate::devices::handle::DeviceHandle;
use crate::devices::spec::DeviceSpec;
use crate::devices::thread::DeviceSetup;
use crate::devices::{DeviceKind, Lost, PrecisionPolicy};
use crate::error::TrainError;

use super::Devices;
use super::round::{Round, RoundPart};

impl Devices {
    /// Indices of the devices that have not failed.
    pub(super) fn alive(&self) -> Vec<usize> {
        (0..self.handles.len()).filter(|&at| !self.handles[at].is_lost).collect()
    }

    /// Indices of the devices that have failed and were not replaced.
    pub(crate) fn failed(&self) -> Vec<usize> {
        (0..self.handles.len()).filter(|&at| self.handles[at].is_lost).collect()
    }

    /// Drops the failed device and assigns its unfinished part of the round to the others. Fails if
    /// another device has failed with the same samples before.
    pub(super) fn reassign(&mut self, round: &mut Round, at: usize, reason: String) -> Result<(), TrainError> {
        let (done, left): (Vec<RoundPart>, Vec<RoundPart>) =
            std::mem::take(&mut round.parts[at]).into_iter().partition(|part| part.done.is_some());
        round.parts[at] = done;
        if let Some(first) = left.iter().find_map(|part| part.earlier_failure.as_ref()) {
            let both = if *first == reason { reason } else { format!("{reason} (and on another device: {first})") };
            return Err(self.handles[at].failed(round.doing(), both));
        }
        self.drop_device(at, reason.clone(), round.doing())?;
        let jobs: Vec<Arc<Job>> = left.into_iter().flat_map(|part| part.jobs).collect();
        for (at, jobs) in round_robin(&self.alive(), jobs) {
            round.assign(at, &self.handles[at], jobs, (true, Some(reason.clone())));
        }
        Ok(())
    }

    /// Stops using a device. If it is the last one, the CPU replaces it; without the CPU, the run
    /// cannot continue on this rank.
    pub(super) fn drop_device(&mut self, at: usize, reason: String, doing: &'static str) -> Result<(), TrainError> {
        let is_last = self.alive() == [at];
        let is_cpu = matches!(self.handles[at].spec.kind, DeviceKind::Cpu { .. });
        if is_last && (is_cpu || !self.setup.task.compute.runs_on_cpu()) {
            return Err(self.handles[at].failed(doing, reason));
        }
        tracing::warn!("{} failed while {doing}: {reason}", self.handles[at].spec.name);
        self.handles[at].is_lost = true;
        if is_last {
            self.handles[at] = self.cpu_replacement(at)?;
        }
        self.newly_lost.push(Lost { device: at, reason, has_replacement: is_last });
        Ok(())
    }

    /// All cores as one device, to replace the device at `at`. It opens in the background.
    pub(in crate::devices) fn cpu_replacement(&self, at: usize) -> Result<DeviceHandle, TrainError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let spec = DeviceSpec { name: format!("{} (cpu)", self.handles[at].spec.name), ..DeviceSpec::cpu(0, threads) };
        let setup = DeviceSetup { policy: PrecisionPolicy::default(), ..self.setup.clone() };
        let mut handle = DeviceHandle::start(&spec, &setup)?;
        let parameters = match &self.loaded {
            None => None,
            Some(loaded) => {
                // Computing with other parameters would be a wrong result.
                let gone = || handle.failed("replacing another device", "the parameters are no longer in memory");
                Some(loaded.upgrade().ok_or_else(gone)?)
            }
        };
        handle.open_in_background(parameters);
        Ok(handle)
    }
}

/// Deals `work` out to the devices that are `alive`. Devices that get none are not in the result.
pub(super) fn round_robin<W>(alive: &[usize], work: impl IntoIterator<Item = W>) -> Vec<(usize, Vec<W>)> {
    let mut hands: Vec<(usize, Vec<W>)> = alive.iter().map(|&at| (at, Vec::new())).collect();
    for (work, hand) in work.into_iter().zip((0..alive.len()).cycle()) {
        hands[hand].1.push(work);
    }
    hands.retain(|(_, work)| !work.is_empty());
    hands
}
