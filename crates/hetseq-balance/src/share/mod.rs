//! The share of each device: which device computes which micro-batches of an update.
//!
//! A pure function of the samples' costs, the devices' costs and the caps. Called by the planner,
//! on every rank with the same arguments before each update; each rank picks its devices'
//! shares, and nothing is sent over the network. It affects the time only: for any split, the
//! update is the same sum over the same samples.
//!
//! Three steps: how much each device should get so that all finish together (`finish_time`), where
//! to cut the samples accordingly, and how to cut a share into micro-batches that fit the device
//! (`micro_batches`). With samples of one length the second step is plain counting. Otherwise a
//! device's time depends on the samples it gets, since they are padded to the longest of their
//! micro-batch. The cut is then corrected by the times of the resulting shares (`mixed_lengths`,
//! `many_devices`).
//!
//! Memory limits a micro-batch, never a share, with one exception: a sample that alone exceeds a
//! device's cap cannot go there. Samples ascend in length, so such a device can take a prefix of
//! them, its *reach*. Devices are then ordered by reach, and those that reach further leave the
//! short samples to the others.

mod finish_time;
mod many_devices;
mod micro_batches;
mod mixed_lengths;
mod worker;

use std::ops::Range;

use crate::error::BalanceError;
use crate::table::{CostTable, Curve};
use finish_time::WorkerTiming;
use micro_batches::{Cap, MicroBatchRange};
use worker::ShareWorker;

/// A device's costs and caps for the next update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceLoad<'a> {
    /// The time of micro-batches, up to the factor.
    pub table: &'a CostTable,
    /// The device's time divided by the time in the table. Without a positive factor a device gets
    /// nothing.
    pub factor: f64,
    /// Seconds per update with any work, independent of the share; zero if unknown.
    pub overhead_s: f64,
    /// The largest number of padded tokens in a micro-batch.
    pub max_tokens: Option<u32>,
    /// The largest number of samples in a micro-batch.
    pub max_samples: Option<u32>,
    /// The table for choosing the size of micro-batches, if measured; usually the same as `table`.
    /// Without it they are as large as the caps allow.
    pub measured: Option<&'a CostTable>,
}

/// One device's part of an update: contiguous micro-batches, as ranges into the update's samples.
/// May be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Share {
    pub micro: Vec<Range<usize>>,
}

impl Share {
    /// All samples of this share; `0..0` if it is empty.
    pub fn samples(&self) -> Range<usize> {
        match (self.micro.first(), self.micro.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.micro.is_empty()
    }
}

/// Splits an update among devices so that the slowest finishes as early as possible. The result is
/// in the devices' order, and each sample is in exactly one share.
///
/// `costs_of_update` should ascend, as in a plan; any other order is split correctly too, but pads
/// more. With uniform costs the largest finish time is optimal for whole samples. With mixed costs
/// it is close to that of the best cut: off by at most one sample in updates of up to a few
/// thousand samples, and by a few percent in larger ones.
pub fn share(costs_of_update: &[u32], devices: &[DeviceLoad]) -> Result<Vec<Share>, BalanceError> {
    let mut shares = vec![Share::default(); devices.len()];
    let Some(costs) = UpdateCosts::new(costs_of_update) else {
        return Ok(shares);
    };
    let mut workers: Vec<ShareWorker> = devices
        .iter()
        .enumerate()
        .filter_map(|(device, load)| ShareWorker::new(device, load, costs.samples.len()))
        .collect();
    if workers.is_empty() {
        return Err(BalanceError::NoUsableDevice { devices: devices.len() });
    }
    limit_reach(&mut workers, &costs)?;

    let cuts = if costs.is_uniform { by_count(&workers, &costs) } else { mixed_lengths::cut(&workers, &costs) };
    for (worker, samples) in workers.iter().zip(cuts) {
        let micro = &mut shares[worker.device].micro;
        worker.load.micro_batches(&costs, samples, |batch| micro.push(batch.samples));
    }
    Ok(shares)
}

/// Cuts samples of one length so that the last device finishes as early as possible.
fn by_count(workers: &[ShareWorker], costs: &UpdateCosts) -> Vec<Range<usize>> {
    let samples = costs.samples.len();
    let timing = |worker: &ShareWorker| WorkerTiming { timing: worker.at(costs.longest), reach: samples as f64 };
    let timings: Vec<WorkerTiming> = workers.iter().map(timing).collect();
    let finish_s = finish_time::finish_s(&timings, samples as f64, finish_time::tolerance(timings.len()));
    let mut start = 0;
    let range = |count: usize| {
        start += count;
        start - count..start
    };
    finish_time::whole_samples(&timings, finish_s, 0..samples).into_iter().map(range).collect()
}

impl DeviceLoad<'_> {
    /// The largest number of samples of this length in a micro-batch.
    fn at_a_time(&self, tokens: u32) -> u32 {
        match self.measured.filter(|table| table.is_measured()) {
            None => self.cap_samples(tokens),
            Some(table) => self.at_a_time_by(tokens, table, &table.curve(tokens)),
        }
    }

    /// The same, by a measured table's curve for this length.
    fn at_a_time_by(&self, tokens: u32, measured: &CostTable, curve: &Curve) -> u32 {
        match self.has_caps() {
            true => curve.at_a_time(self.cap_samples(tokens)),
            false => curve.best_up_to(measured.measured_samples(tokens)),
        }
    }

    fn cap_samples(&self, tokens: u32) -> u32 {
        let by_tokens = self.max_tokens.map_or(u32::MAX, |cap| cap / tokens.max(1));
        by_tokens.min(self.max_samples.unwrap_or(u32::MAX)).max(1)
    }

    /// Cuts a share into micro-batches.
    fn micro_batches(&self, costs: &UpdateCosts, samples: Range<usize>, found: impl FnMut(MicroBatchRange)) {
        if !samples.is_empty() {
            let measured = self.measured.filter(|table| table.is_measured());
            micro_batches::cut(costs, samples.clone(), self.cap(costs, samples), measured, found);
        }
    }

    /// The limits of its micro-batches for this share. Long samples in the share do not reduce the
    /// number of short ones in a micro-batch.
    fn cap(&self, costs: &UpdateCosts, samples: Range<usize>) -> Cap {
        let by_user = Cap {
            tokens: self.max_tokens.map_or(u64::MAX, u64::from),
            samples: self.max_samples.map_or(usize::MAX, |samples| samples as usize),
        };
        let Some(table) = self.measured.filter(|table| table.is_measured()) else { return by_user };
        let (shortest, longest) = costs.bounds(samples);
        let at_longest = self.at_a_time(longest);
        if self.has_caps() && at_longest == self.cap_samples(longest) {
            return by_user;
        }
        let at_shortest =
            if self.has_caps() { usize::MAX } else { table.measured_samples(shortest).max(at_longest) as usize };
        let tokens = u64::from(at_longest) * u64::from(longest);
        Cap { tokens: tokens.min(by_user.tokens), samples: by_user.samples.min(at_shortest) }
    }

    fn has_caps(&self) -> bool {
        self.max_tokens.is_some() || self.max_samples.is_some()
    }
}

/// The costs of an update and values derived from them. Never empty.
struct UpdateCosts<'a> {
    samples: &'a [u32],
    tokens: u64,
    longest: u32,
    is_uniform: bool,
    ascends: bool,
}

impl<'a> UpdateCosts<'a> {
    fn new(samples: &'a [u32]) -> Option<Self> {
        let shortest = *samples.iter().min()?;
        let longest = *samples.iter().max()?;
        let (is_uniform, ascends) = (shortest == longest, samples.is_sorted());
        let mut costs = UpdateCosts { samples, tokens: 0, longest: longest.max(1), is_uniform, ascends };
        costs.tokens = costs.tokens_in(0..samples.len());
        Some(costs)
    }

    /// A cost of zero counts as one token, as in the plan: the sample still has to be computed.
    fn cost(&self, sample: usize) -> u32 {
        self.samples[sample].max(1)
    }

    /// The shortest and the longest of at least one sample.
    fn bounds(&self, samples: Range<usize>) -> (u32, u32) {
        if self.ascends {
            return (self.cost(samples.start), self.cost(samples.end - 1));
        }
        let costs = samples.map(|sample| self.cost(sample));
        costs.fold((u32::MAX, 1), |(shortest, longest), cost| (shortest.min(cost), longest.max(cost)))
    }

    fn tokens_in(&self, range: Range<usize>) -> u64 {
        match self.is_uniform {
            true => range.len() as u64 * u64::from(self.longest),
            false => range.map(|sample| u64::from(self.cost(sample))).sum(),
        }
    }
}

/// Sets the reach of each worker, and sorts them by it if it differs. Removes workers that reach
/// nothing.
fn limit_reach(workers: &mut Vec<ShareWorker>, costs: &UpdateCosts) -> Result<(), BalanceError> {
    let cap = |worker: &ShareWorker| worker.load.max_tokens.unwrap_or(u32::MAX);
    if workers.iter().all(|worker| cap(worker) >= costs.longest) {
        return Ok(());
    }
    // The running maximum ascends even if the samples do not, so binary search works on it.
    let mut longest_so_far: Vec<u32> = (0..costs.samples.len()).map(|sample| costs.cost(sample)).collect();
    for at in 1..longest_so_far.len() {
        longest_so_far[at] = longest_so_far[at].max(longest_so_far[at - 1]);
    }
    let mut largest_cap = 0;
    for worker in workers.iter_mut() {
        let cap = cap(worker);
        worker.reach = longest_so_far.partition_point(|&longest| longest <= cap);
        largest_cap = largest_cap.max(cap);
    }
    if largest_cap < costs.longest {
        return Err(BalanceError::SampleTooLong { sample_tokens: costs.longest, largest_cap_tokens: largest_cap });
    }
    workers.retain(|worker| worker.reach > 0);
    workers.sort_by_key(|worker| worker.reach);
    Ok(())
}
