//! The update header: the one tiny exchange before each backward pass. Pure: what a rank says, and what follows from
//! what all ranks said. Counts and samples make the arithmetic exact, hashes make it safe, the stop flag makes signals
//! work, and the times of the last update steer the split: none of them needs a protocol of its own.

use serde::{Deserialize, Serialize};

use crate::skips::Skipped;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// Updates done before this one.
    pub(crate) update: u64,
    /// Hash of the samples of this update: all ranks must mean the same ones.
    pub(crate) plan: u64,
    pub(crate) layout: u64,
    /// What this rank will compute, and the counts of each loss term in it.
    pub(crate) samples: u64,
    pub(crate) counts: Vec<u64>,
    /// This rank was told to stop: finish this update, save, leave.
    pub(crate) stop: bool,
    /// Whether the run ends early; rank 0's is used.
    pub(crate) ending: Ending,
    /// Computed from the schedule; rank 0's is used, since `cos` and `pow` differ between machines.
    pub(crate) lr: f64,
    /// Of the parameters before this update, when it was taken.
    pub(crate) checksum: Option<u64>,
    /// The updates of the newest complete checkpoint and of the best one. Rank 0's count: it has the disk.
    pub(crate) saved: Option<u64>,
    pub(crate) best: Option<u64>,
    /// What each device of this rank did in the last update.
    pub(crate) last: Vec<DeviceTime>,
    /// How long this rank waited for its samples of this update.
    pub(crate) data_wait_micros: u64,
    /// Samples of this update that this rank could not read; they are counted in `samples`, but not in `counts`.
    pub(crate) skipped: Vec<Skipped>,
}

/// Whether a run ends before its last planned update.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    #[default]
    No,
    /// There has been enough already: this update is not done.
    Before,
    /// This update is the last.
    After,
}

/// Integers, so that every rank computes the same split from them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceTime {
    pub(crate) samples: u64,
    /// As computed, padding included.
    pub(crate) tokens: u64,
    /// Own compute time, never waiting.
    pub(crate) micros: u64,
}

/// What all ranks agreed on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Agreed {
    pub(crate) counts: Vec<u64>,
    pub(crate) stop: bool,
    pub(crate) ending: Ending,
    pub(crate) lr: f64,
    pub(crate) saved: Option<u64>,
    pub(crate) best: Option<u64>,
    /// Of all devices of the group, rank by rank.
    pub(crate) last: Vec<DeviceTime>,
    /// Of the rank that waited longest: the others wait for it.
    pub(crate) data_wait_micros: u64,
    pub(crate) skipped: Vec<Skipped>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Conflict {
    pub(crate) what: &'static str,
    pub(crate) detail: String,
}

/// Fold the headers of all ranks, in rank order. `expected` is the number of samples in the update: each must be
/// computed once, by somebody.
pub(crate) fn agree(headers: &[Header], expected: u64) -> Result<Agreed, Conflict> {
    let Some(first) = headers.first() else {
        return Err(Conflict { what: "the header", detail: "no rank sent one".to_owned() });
    };
    same(headers, "the update number", |header| header.update)?;
    same(headers, "the samples of this update", |header| header.plan)?;
    same(headers, "the parameter layout", |header| header.layout)?;
    same(headers, "the number of loss terms", |header| header.counts.len() as u64)?;
    same(headers, "the parameters", |header| header.checksum.unwrap_or_default())?;
    let samples: u64 = headers.iter().map(|header| header.samples).sum();
    if samples != expected {
        let detail = format!("{samples} samples are taken of {expected}");
        return Err(Conflict { what: "who computes what", detail });
    }
    let mut counts = vec![0u64; first.counts.len()];
    for header in headers {
        for (sum, count) in counts.iter_mut().zip(&header.counts) {
            *sum += count;
        }
    }
    Ok(Agreed {
        counts,
        stop: headers.iter().any(|header| header.stop),
        ending: first.ending,
        lr: first.lr,
        saved: first.saved,
        best: first.best,
        last: headers.iter().flat_map(|header| header.last.iter().copied()).collect(),
        data_wait_micros: headers.iter().map(|header| header.data_wait_micros).max().unwrap_or(0),
        skipped: headers.iter().flat_map(|header| header.skipped.iter().cloned()).collect(),
    })
}

fn same(headers: &[Header], what: &'static str, value: impl Fn(&Header) -> u64) -> Result<(), Conflict> {
    let first = value(&headers[0]);
    match headers.iter().position(|header| value(header) != first) {
        None => Ok(()),
        Some(rank) => {
            let detail = format!("rank 0 has {first:016x}, rank {rank} has {:016x}", value(&headers[rank]));
            Err(Conflict { what, detail })
        }
    }
}

/// The factor of each term's loss sum: `weight / global count`; a term that nothing counts for contributes nothing.
pub(crate) fn scales(weights: &[f64], counts: &[u64]) -> Vec<f32> {
    let scale = |(&weight, &count): (&f64, &u64)| if count == 0 { 0.0 } else { (weight / count as f64) as f32 };
    weights.iter().zip(counts).map(scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(samples: u64, count: u64) -> Header {
        Header {
            update: 7,
            plan: 1,
            layout: 2,
            samples,
            counts: vec![count],
            stop: false,
            ending: Ending::No,
            lr: 0.5,
            checksum: None,
            saved: None,
            best: None,
            last: vec![DeviceTime { samples, tokens: samples, micros: 10 }],
            data_wait_micros: samples,
            skipped: vec![Skipped { sample: samples as u32, reason: "torn".to_owned() }],
        }
    }

    #[test]
    fn counts_are_added_and_any_rank_may_stop() {
        let mut second = header(0, 0);
        second.stop = true;
        second.lr = 0.25;
        second.ending = Ending::Before;
        let first = Header { saved: Some(6), best: Some(4), ..header(6, 60) };
        let agreed = agree(&[first, second], 6).unwrap();
        assert_eq!(agreed.ending, Ending::No, "it is for rank 0 to say");
        assert_eq!((agreed.counts, agreed.stop, agreed.lr, agreed.last.len()), (vec![60], true, 0.5, 2));
        assert_eq!((agreed.saved, agreed.best), (Some(6), Some(4)));
        assert_eq!((agreed.data_wait_micros, agreed.skipped.len()), (6, 2));
    }

    #[test]
    fn a_sample_missed_or_done_twice_is_found() {
        let conflict = agree(&[header(3, 3), header(4, 4)], 6).unwrap_err();
        assert_eq!(conflict.detail, "7 samples are taken of 6");
    }

    #[test]
    fn ranks_that_drifted_apart_are_named() {
        let mut second = header(3, 3);
        second.checksum = Some(9);
        let conflict = agree(&[header(3, 3), second], 6).unwrap_err();
        assert_eq!(conflict.what, "the parameters");
        assert!(conflict.detail.contains("rank 1"));
    }

    #[test]
    fn an_empty_term_contributes_nothing() {
        assert_eq!(scales(&[1.0, 0.5], &[4, 0]), [0.25, 0.0]);
    }
}
