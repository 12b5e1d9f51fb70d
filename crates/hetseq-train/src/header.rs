//! The update header: what ranks tell each other before an update. It follows the gradients of the update before it,
//! so that there is one moment per update at which ranks wait for each other, not two. Pure: what a rank says, and what
//! follows from what all ranks said. Counts and samples make the arithmetic exact, hashes make it safe, the stop flag makes
//! signals work, and the times of the last update steer the split: none of them needs a protocol of its own.

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
    /// This rank was told to stop: save, leave, and do not begin this update.
    pub(crate) stop: bool,
    /// Whether the run ends before this update, though it was planned; rank 0's is used.
    pub(crate) ends: bool,
    /// Computed from the schedule; rank 0's is used, since `cos` and `pow` differ between machines.
    pub(crate) lr: f64,
    /// Of the parameters, when it was taken.
    pub(crate) checksum: Option<u64>,
    /// The updates of the newest complete checkpoint and of the best one. Rank 0's count: it has the disk.
    pub(crate) saved: Option<u64>,
    pub(crate) best: Option<u64>,
    /// What each device of this rank did in the update that was just computed.
    pub(crate) devices: Vec<DeviceTime>,
    /// What this rank did beside.
    pub(crate) rank: RankTime,
    /// What losses are multiplied by where products are in `f16`; the same everywhere.
    pub(crate) loss_scale: f32,
    /// Whether gradients of the update that was just computed have overflowed; none if this rank has no device in `f16`.
    pub(crate) overflow: Option<bool>,
    /// Devices that failed since the last header.
    pub(crate) lost: Vec<LostDevice>,
    /// Samples of this update that this rank could not read; they are counted in `samples`, but not in `counts`.
    pub(crate) skipped: Vec<Skipped>,
}

/// Integers, so that every rank computes the same split from them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceTime {
    /// Own time over its micro-batches, never waiting.
    pub(crate) micros: u64,
    /// Own time after them.
    pub(crate) after_micros: u64,
    /// It ran out of memory: from now on at most so many tokens in a micro-batch.
    pub(crate) most_tokens: Option<u64>,
}

/// A device that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LostDevice {
    /// In a header of its rank, afterwards of the group.
    pub(crate) device: usize,
    pub(crate) reason: String,
    /// Its rank's CPU computes in its place.
    pub(crate) has_stand_in: bool,
}

/// Where a rank's time went beside its devices'.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankTime {
    /// In this update: waiting for the samples of the next one.
    pub(crate) data_micros: u64,
    /// In the update before: adding the devices up, the optimizer, loading parameters.
    pub(crate) host_micros: u64,
    /// In the exchange before: moving bytes, and waiting for others or for the line.
    pub(crate) exchange_micros: u64,
    pub(crate) wait_micros: u64,
}

/// What all ranks agreed on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Agreed {
    pub(crate) counts: Vec<u64>,
    /// The first rank that was asked to stop.
    pub(crate) stop: Option<usize>,
    pub(crate) ends: bool,
    pub(crate) lr: f64,
    pub(crate) saved: Option<u64>,
    pub(crate) best: Option<u64>,
    /// Of all devices of the group, rank by rank.
    pub(crate) devices: Vec<DeviceTime>,
    pub(crate) ranks: Vec<RankTime>,
    /// Whether gradients have overflowed anywhere; none if no device computes in `f16`.
    pub(crate) overflow: Option<bool>,
    pub(crate) lost: Vec<LostDevice>,
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
    same(headers, "the loss scale", |header| u64::from(header.loss_scale.to_bits()))?;
    let samples = total(headers, "who computes what", |header| header.samples)?;
    if samples != expected {
        let detail = format!("{samples} samples are taken of {expected}");
        return Err(Conflict { what: "who computes what", detail });
    }
    let count = |term: usize| total(headers, "the counts of the loss terms", |header| header.counts[term]);
    let counts = (0..first.counts.len()).map(count).collect::<Result<_, _>>()?;
    let (mut lost, mut before) = (Vec::new(), 0);
    for (rank, header) in headers.iter().enumerate() {
        if let Some(LostDevice { device, .. }) = header.lost.iter().find(|lost| lost.device >= header.devices.len()) {
            let detail = format!("rank {rank} lost device {device} of {}", header.devices.len());
            return Err(Conflict { what: "the devices", detail });
        }
        lost.extend(header.lost.iter().map(|lost| LostDevice { device: before + lost.device, ..lost.clone() }));
        before += header.devices.len();
    }
    Ok(Agreed {
        counts,
        stop: headers.iter().position(|header| header.stop),
        ends: first.ends,
        lr: first.lr,
        saved: first.saved,
        best: first.best,
        devices: headers.iter().flat_map(|header| header.devices.iter().copied()).collect(),
        ranks: headers.iter().map(|header| header.rank).collect(),
        overflow: headers.iter().filter_map(|header| header.overflow).reduce(|any, one| any | one),
        lost,
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

/// The sum over all ranks; what is too large for it came from a rank that computes something else.
fn total(headers: &[Header], what: &'static str, value: impl Fn(&Header) -> u64) -> Result<u64, Conflict> {
    headers.iter().enumerate().try_fold(0u64, |sum, (rank, header)| {
        let value = value(header);
        sum.checked_add(value).ok_or_else(|| Conflict { what, detail: format!("rank {rank} reports {value}") })
    })
}

impl Agreed {
    /// Of the rank that waited longest for samples: the others wait for it.
    pub(crate) fn data_wait_s(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.data_micros).max().unwrap_or(0) as f64 * 1e-6
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
            ends: false,
            lr: 0.5,
            checksum: None,
            saved: None,
            best: None,
            devices: vec![DeviceTime { micros: 10, ..DeviceTime::default() }],
            rank: RankTime { data_micros: samples, ..RankTime::default() },
            loss_scale: 8.0,
            overflow: None,
            lost: Vec::new(),
            skipped: vec![Skipped { sample: samples as u32, reason: "torn".to_owned() }],
        }
    }

    #[test]
    fn one_overflow_is_everybodys() {
        let with = |overflow| Header { overflow, ..header(3, 3) };
        let agreed = |votes: [Option<bool>; 2]| agree(&votes.map(with), 6).unwrap().overflow;
        assert_eq!(agreed([None, None]), None);
        assert_eq!(agreed([Some(false), None]), Some(false));
        assert_eq!(agreed([Some(false), Some(true)]), Some(true));
        let other = Header { loss_scale: 4.0, ..header(3, 3) };
        assert_eq!(agree(&[header(3, 3), other], 6).unwrap_err().what, "the loss scale");
    }

    #[test]
    fn lost_devices_are_counted_over_all_ranks() {
        let lost = LostDevice { device: 0, reason: "gone".to_owned(), has_stand_in: false };
        let second = Header { lost: vec![lost], ..header(3, 3) };
        let agreed = agree(&[header(3, 3), second], 6).unwrap();
        assert_eq!(agreed.lost.iter().map(|lost| lost.device).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let refused = |second: Header| agree(&[header(3, 3), second], 2).unwrap_err();
        // Added up without a check, these would come out as the two samples that there are.
        let conflict = refused(header(u64::MAX, 3));
        assert_eq!((conflict.what, &*conflict.detail), ("who computes what", "rank 1 reports 18446744073709551615"));
        let second = Header { counts: vec![u64::MAX], ..header(3, 3) };
        assert_eq!(agree(&[header(3, 3), second], 6).unwrap_err().what, "the counts of the loss terms");
        for device in [1, usize::MAX] {
            let lost = LostDevice { device, reason: "gone".to_owned(), has_stand_in: false };
            let second = Header { lost: vec![lost], ..header(3, 3) };
            let conflict = agree(&[header(3, 3), second], 6).unwrap_err();
            assert_eq!((conflict.what, conflict.detail), ("the devices", format!("rank 1 lost device {device} of 1")));
        }
    }

    #[test]
    fn counts_are_added_and_any_rank_may_stop() {
        let mut second = header(0, 0);
        second.stop = true;
        second.lr = 0.25;
        second.ends = true;
        let first = Header { saved: Some(6), best: Some(4), ..header(6, 60) };
        let agreed = agree(&[first, second], 6).unwrap();
        assert!(!agreed.ends, "it is for rank 0 to say");
        assert_eq!((agreed.saved, agreed.best), (Some(6), Some(4)));
        assert_eq!((agreed.data_wait_s(), agreed.skipped.len()), (6e-6, 2));
        assert_eq!((agreed.counts, agreed.stop, agreed.lr, agreed.devices.len()), (vec![60], Some(1), 0.5, 2));
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
