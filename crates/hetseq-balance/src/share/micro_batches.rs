//! Cuts a share into micro-batches that fit the device.
//!
//! Without measurements: as few micro-batches as the caps allow, then as even as possible, so that
//! none is tiny and still pays a whole launch. With measurements and different lengths, smaller
//! ones are tried too, since they pad less, and the fastest cut is used. Called by `share` only,
//! which makes sure that each sample alone fits.

use std::ops::Range;

use super::UpdateCosts;
use crate::table::CostTable;

/// The search for an even cut stops when its bounds differ by less than 1/32.
const EVENNESS: u64 = 32;
/// Samples that differ by less than 1/8 of the longest count as equally long.
const SIMILAR_LENGTH: u32 = 8;
/// The parts of the fullest micro-batch that are tried as a cap, in eighths.
const TRIED_EIGHTHS: [u64; 3] = [6, 4, 3];

/// The limits of a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cap {
    pub(super) tokens: u64,
    pub(super) samples: usize,
}

/// One micro-batch, and the length of its longest sample.
pub(super) struct MicroBatchRange {
    pub(super) samples: Range<usize>,
    pub(super) longest: u32,
}

impl MicroBatchRange {
    pub(super) fn padded_tokens(&self) -> u64 {
        self.samples.len() as u64 * u64::from(self.longest)
    }

    pub(super) fn seconds(&self, table: &CostTable) -> f64 {
        table.seconds(u32::try_from(self.samples.len()).unwrap_or(u32::MAX), self.longest)
    }
}

/// Passes the micro-batches of one share to `found`, contiguous and in order; none if the share is
/// empty.
pub(super) fn cut(
    costs: &UpdateCosts,
    share: Range<usize>,
    cap: Cap,
    measured: Option<&CostTable>,
    mut found: impl FnMut(MicroBatchRange),
) {
    if share.is_empty() {
        return;
    }
    if costs.is_uniform {
        let limit = usize::try_from(cap.tokens / u64::from(costs.longest)).unwrap_or(usize::MAX);
        let found = |samples| found(MicroBatchRange { samples, longest: costs.longest });
        return even_counts(share, limit.min(cap.samples).max(1), found);
    }
    let (shortest, longest) = costs.bounds(share.clone());
    let tokens = match measured {
        Some(table) if longest - shortest > longest / SIMILAR_LENGTH => fastest(costs, share.clone(), cap, table),
        _ => even_cap(costs, share.clone(), cap),
    };
    fill(costs, share, Cap { tokens, ..cap }, found);
}

/// Samples of one length: the fewest micro-batches of at most `limit` samples, with sizes that
/// differ by at most one.
fn even_counts(share: Range<usize>, limit: usize, found: impl FnMut(Range<usize>)) {
    let parts = share.len().div_ceil(limit);
    let (size, longer) = (share.len() / parts, share.len() % parts);
    let mut start = share.start;
    let cut = |part| {
        let end = start + size + usize::from(part < longer);
        let batch = start..end;
        start = end;
        batch
    };
    (0..parts).map(cut).for_each(found);
}

/// Fills each micro-batch as far as the cap allows, which gives the fewest micro-batches.
fn fill(costs: &UpdateCosts, share: Range<usize>, cap: Cap, mut found: impl FnMut(MicroBatchRange)) {
    let (mut start, mut longest) = (share.start, 0);
    for sample in share.clone() {
        let count = sample - start + 1;
        let longest_before = longest;
        longest = longest.max(costs.cost(sample));
        if count > 1 && (u64::from(longest) * count as u64 > cap.tokens || count > cap.samples) {
            found(MicroBatchRange { samples: start..sample, longest: longest_before });
            start = sample;
            longest = costs.cost(sample);
        }
    }
    found(MicroBatchRange { samples: start..share.end, longest });
}

/// The number of micro-batches that filling makes, and the tokens of the fullest.
fn parts(costs: &UpdateCosts, share: Range<usize>, cap: Cap) -> (usize, u64) {
    let (mut parts, mut fullest) = (0, 0);
    fill(costs, share, cap, |micro| {
        parts += 1;
        fullest = fullest.max(micro.padded_tokens());
    });
    (parts, fullest)
}

/// The lowest cap in tokens that keeps the number of micro-batches: none is much fuller than
/// necessary, and no small rest remains at the end.
fn even_cap(costs: &UpdateCosts, share: Range<usize>, cap: Cap) -> u64 {
    let (fewest, mut high) = parts(costs, share.clone(), cap);
    if fewest == 1 {
        return cap.tokens;
    }
    let mut low = costs.tokens_in(share.clone()) / fewest as u64;
    while high.saturating_sub(low) > high / EVENNESS {
        let middle = low + (high - low) / 2;
        let (parts, _) = parts(costs, share.clone(), Cap { tokens: middle, ..cap });
        if parts == fewest { high = middle } else { low = middle + 1 }
    }
    high
}

/// The cap in tokens with the shortest total time, out of a few.
fn fastest(costs: &UpdateCosts, share: Range<usize>, cap: Cap, table: &CostTable) -> u64 {
    let (mut best, mut best_s, mut fullest) = (cap.tokens, 0.0, 0);
    fill(costs, share.clone(), cap, |micro| {
        best_s += micro.seconds(table);
        fullest = fullest.max(micro.padded_tokens());
    });
    for eighths in TRIED_EIGHTHS {
        let tokens = fullest / 8 * eighths + fullest % 8;
        let mut seconds = 0.0;
        fill(costs, share.clone(), Cap { tokens, ..cap }, |micro| seconds += micro.seconds(table));
        if seconds < best_s {
            (best, best_s) = (tokens, seconds);
        }
    }
    best
}
