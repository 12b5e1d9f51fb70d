//! A share, cut into micro-batches that fit the device.
//!
//! As few micro-batches as the caps allow, then as even as possible, so that none is a tiny one that pays a whole
//! launch. Called by `share` only; that each sample alone fits is its business.

use std::ops::Range;

use super::{DeviceLoad, UpdateCosts};

/// The search for an even cut stops when its bounds are this close, relatively: 1/32.
const EVENNESS: u64 = 32;

/// The most that a micro-batch may hold.
#[derive(Clone, Copy)]
struct Cap {
    tokens: u64,
    samples: usize,
}

/// Micro-batches of one share, contiguous and in order; none if the share is empty.
pub(super) fn batches(costs: &UpdateCosts, share: Range<usize>, load: &DeviceLoad) -> Vec<Range<usize>> {
    let cap = Cap {
        tokens: load.max_tokens.map_or(u64::MAX, u64::from),
        samples: load.max_samples.map_or(usize::MAX, |samples| samples as usize),
    };
    if share.is_empty() {
        return Vec::new();
    }
    if costs.is_uniform {
        let most = usize::try_from(cap.tokens / u64::from(costs.longest)).unwrap_or(usize::MAX);
        return even_counts(share, most.min(cap.samples).max(1));
    }
    let greedy = fill(costs, share.clone(), cap);
    if greedy.len() == 1 { greedy } else { level(costs, share, cap, greedy) }
}

/// Equal samples: the fewest micro-batches of at most `most` samples, whose sizes differ by at most one.
fn even_counts(share: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let parts = share.len().div_ceil(most);
    let (size, longer) = (share.len() / parts, share.len() % parts);
    let mut start = share.start;
    let cut = |part| {
        let end = start + size + usize::from(part < longer);
        let batch = start..end;
        start = end;
        batch
    };
    (0..parts).map(cut).collect()
}

/// Fills each micro-batch as far as the cap allows: the fewest there can be.
fn fill(costs: &UpdateCosts, share: Range<usize>, cap: Cap) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut longest) = (share.start, 0);
    for sample in share.clone() {
        let count = sample - start + 1;
        longest = longest.max(u64::from(costs.cost(sample)));
        if count > 1 && (longest * count as u64 > cap.tokens || count > cap.samples) {
            batches.push(start..sample);
            start = sample;
            longest = u64::from(costs.cost(sample));
        }
    }
    batches.push(start..share.end);
    batches
}

/// Lowers the token cap as far as the number of micro-batches stays the same: none is then much fuller than it must be,
/// and the rest that filling leaves is gone.
fn level(costs: &UpdateCosts, share: Range<usize>, cap: Cap, greedy: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let padded = |batch: &Range<usize>| {
        let longest = batch.clone().map(|sample| u64::from(costs.cost(sample))).max().unwrap_or(0);
        longest * batch.len() as u64
    };
    let mut best = greedy;
    let parts = best.len();
    let mut high = best.iter().map(padded).max().unwrap_or(0);
    let mut low = costs.tokens_in(share.clone()) / parts as u64;
    while high.saturating_sub(low) > high / EVENNESS {
        let middle = low + (high - low) / 2;
        let cut = fill(costs, share.clone(), Cap { tokens: middle, ..cap });
        if cut.len() == parts {
            high = middle;
            best = cut;
        } else {
            low = middle + 1;
        }
    }
    best
}
