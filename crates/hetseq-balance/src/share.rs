//! The share: which device computes which micro-batch of an update.
//!
//! A pure function of (the update's costs, what devices take, caps). Every rank calls it with the same arguments before
//! each update and takes its own devices' shares; nothing about it is sent over the network. It decides time, not
//! mathematics: whatever it returns, the update is the same sum over the same samples. Called by the planner.
//!
//! Three steps: how much each device should get so that all finish together (`balance`), where to cut the samples so
//! that each gets that, and how to cut a share into micro-batches that fit the device (`micro`). With samples of one
//! length the second is plain counting. Otherwise what a device takes depends on which samples it gets, since they are
//! padded to the longest of their micro-batch, and the cut is corrected by what it would really take (`mixed`).
//!
//! Memory caps a micro-batch, never a share, with one exception: a sample that alone exceeds a device's cap cannot go
//! there. Samples ascend in length, so such a device can take a prefix of them, its *reach*. Devices are then laid out in
//! order of reach, and those that reach further leave the short samples to the others.

mod balance;
mod many;
mod micro;
mod mixed;
mod worker;

use std::ops::Range;

use crate::error::BalanceError;
use crate::table::{CostTable, Curve};
use balance::Runner;
use micro::{Cap, MicroBatch};
use worker::Worker;

/// What is known of a device before an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceLoad<'a> {
    /// What it takes, up to the factor.
    pub table: &'a CostTable,
    /// So many times as long as by the table. A device whose factor is not a positive number gets nothing.
    pub factor: f64,
    /// Seconds per update if it has any work, whatever the share; zero when unknown.
    pub overhead_s: f64,
    /// The most padded tokens in a micro-batch.
    pub max_tokens: Option<u32>,
    /// The most samples in a micro-batch.
    pub max_samples: Option<u32>,
    /// By which to choose the size of micro-batches, if it was measured: as a rule the same as `table`. Without it they are
    /// as large as the caps allow.
    pub measured: Option<&'a CostTable>,
}

/// One device's part of an update: contiguous micro-batches, as ranges into the update's samples. It may be empty.
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

/// Shares an update among devices so that the slowest finishes as early as possible. The result is in the devices'
/// order, and each sample is in exactly one share.
///
/// `costs_of_update` should ascend, as in a plan; any order is shared correctly, but pads more. With uniform costs the
/// largest finishing time is the least that whole samples allow. With mixed costs it is about the least of all cuts: off by a
/// sample at most in updates of up to some thousand samples, by a few percent in larger ones.
pub fn share(costs_of_update: &[u32], devices: &[DeviceLoad]) -> Result<Vec<Share>, BalanceError> {
    let mut shares = vec![Share::default(); devices.len()];
    let Some(costs) = UpdateCosts::new(costs_of_update) else {
        return Ok(shares);
    };
    let mut workers: Vec<Worker> = devices
        .iter()
        .enumerate()
        .filter_map(|(device, load)| Worker::new(device, load, costs.samples.len()))
        .collect();
    if workers.is_empty() {
        return Err(BalanceError::NoUsableDevice { devices: devices.len() });
    }
    limit_reach(&mut workers, &costs)?;

    let cuts = if costs.is_uniform { by_count(&workers, &costs) } else { mixed::cut(&workers, &costs) };
    for (worker, samples) in workers.iter().zip(cuts) {
        let micro = &mut shares[worker.device].micro;
        worker.load.micro_batches(&costs, samples, |batch| micro.push(batch.samples));
    }
    Ok(shares)
}

/// Samples of one length: as many to each as let the last finish earliest.
fn by_count(workers: &[Worker], costs: &UpdateCosts) -> Vec<Range<usize>> {
    let samples = costs.samples.len();
    let runner = |worker: &Worker| Runner { pace: worker.at(costs.longest), reach: samples as f64 };
    let runners: Vec<Runner> = workers.iter().map(runner).collect();
    let finish_s = balance::finish_s(&runners, samples as f64, balance::close(runners.len()));
    let mut start = 0;
    let run = |count: usize| {
        start += count;
        start - count..start
    };
    balance::whole_samples(&runners, finish_s, 0..samples).into_iter().map(run).collect()
}

impl DeviceLoad<'_> {
    /// How many samples of this length it computes at a time, at most.
    fn at_a_time(&self, tokens: u32) -> u32 {
        match self.measured.filter(|table| table.is_measured()) {
            None => self.cap_samples(tokens),
            Some(table) => self.at_a_time_by(tokens, table, &table.curve(tokens)),
        }
    }

    /// The same by a measured table's curve for this length.
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
    fn micro_batches(&self, costs: &UpdateCosts, samples: Range<usize>, found: impl FnMut(MicroBatch)) {
        if !samples.is_empty() {
            let measured = self.measured.filter(|table| table.is_measured());
            micro::batches(costs, samples.clone(), self.cap(costs, samples), measured, found);
        }
    }

    /// What its micro-batches may hold if this is its share: short samples are not computed fewer at a time because there
    /// are long ones too.
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

/// The costs of an update and what is asked of them again and again. Never empty.
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

    /// As in the plan, a cost of zero counts as one token: the sample still has to be computed.
    fn cost(&self, sample: usize) -> u32 {
        self.samples[sample].max(1)
    }

    /// The shortest and the longest of some samples, of which there is at least one.
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

/// Finds how far each device reaches, and orders the workers by it if that differs. A device that reaches nothing is
/// removed.
fn limit_reach(workers: &mut Vec<Worker>, costs: &UpdateCosts) -> Result<(), BalanceError> {
    let cap = |worker: &Worker| worker.load.max_tokens.unwrap_or(u32::MAX);
    if workers.iter().all(|worker| cap(worker) >= costs.longest) {
        return Ok(());
    }
    // The longest sample so far ascends even if the samples do not, so it can be searched.
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
