//! The share: which device computes which micro-batch of an update.
//!
//! A pure function of (the update's costs, speeds, caps). Every rank calls it with the same arguments before each update
//! and takes its own devices' shares; nothing about it is sent over the network. It decides time, not mathematics:
//! whatever it returns, the update is the same sum over the same samples. Speeds come from [`drift`](crate::drift).
//!
//! Three steps: how much each device should get so that all finish together (`balance`), where to cut the samples so
//! that each gets that, and how to cut a share into micro-batches that fit the device's memory (`micro`).
//!
//! Memory caps a micro-batch, never a share, with one exception: a sample that alone exceeds a device's cap cannot go
//! there. Samples ascend in length, so such a device can take a prefix of them, its *reach*. Devices are then laid out in
//! order of reach, and those that reach further leave the short samples to the others.

mod balance;
mod micro;

use std::ops::Range;

use crate::error::BalanceError;
use balance::{Block, Worker};

/// What is known of a device before an update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceLoad {
    /// Padded tokens per second; only the ratios between devices matter while overheads are zero. A device whose speed
    /// is not a positive number gets nothing.
    pub speed: f64,
    /// Seconds per update whatever the share; zero when unknown.
    pub overhead_s: f64,
    /// The most padded tokens in a micro-batch.
    pub max_tokens: Option<u32>,
    /// The most samples in a micro-batch.
    pub max_samples: Option<u32>,
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
/// largest finishing time is the least that whole samples allow. With mixed costs each cut is moved to the nearest
/// sample, so a device may be off by one sample more.
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
    limit_reach(&mut workers, devices, &costs)?;

    for block in balance::blocks(&workers, &costs) {
        for (worker, samples) in block.workers.iter().zip(cut(&block, &costs)) {
            shares[worker.device].micro = micro::batches(&costs, samples, &devices[worker.device]);
        }
    }
    Ok(shares)
}

/// The costs of an update and what is asked of them again and again. Never empty.
struct UpdateCosts<'a> {
    samples: &'a [u32],
    tokens: u64,
    longest: u32,
    is_uniform: bool,
}

impl<'a> UpdateCosts<'a> {
    fn new(samples: &'a [u32]) -> Option<Self> {
        let shortest = *samples.iter().min()?;
        let longest = *samples.iter().max()?;
        let mut costs = UpdateCosts { samples, tokens: 0, longest: longest.max(1), is_uniform: shortest == longest };
        costs.tokens = costs.tokens_in(0..samples.len());
        Some(costs)
    }

    /// As in the plan, a cost of zero counts as one token: the sample still has to be computed.
    fn cost(&self, sample: usize) -> u32 {
        self.samples[sample].max(1)
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
fn limit_reach(workers: &mut Vec<Worker>, devices: &[DeviceLoad], costs: &UpdateCosts) -> Result<(), BalanceError> {
    let cap = |worker: &Worker| devices[worker.device].max_tokens.unwrap_or(u32::MAX);
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

/// Cuts a block's samples so that each worker gets as near as possible to its number of average samples, in tokens.
fn cut(block: &Block, costs: &UpdateCosts) -> Vec<Range<usize>> {
    let counts = balance::whole_samples(block);
    let average = block.tokens as f64 / block.samples.len() as f64;
    let mut cuts = Vec::with_capacity(counts.len());
    let mut start = block.samples.start;
    let mut end = start;
    let (mut counted, mut tokens) = (0usize, 0u64);
    for (at, (worker, count)) in block.workers.iter().zip(counts).enumerate() {
        counted += count;
        if at + 1 == block.workers.len() {
            end = block.samples.end;
        } else if costs.is_uniform {
            end = block.samples.start + counted;
        } else {
            let target = counted as f64 * average;
            let limit = block.samples.end.min(worker.reach);
            // A sample belongs to the side of the cut that holds its middle.
            while end < limit && tokens as f64 + f64::from(costs.cost(end)) * 0.5 <= target {
                tokens += u64::from(costs.cost(end));
                end += 1;
            }
        }
        cuts.push(start..end);
        start = end;
    }
    cuts
}
