//! The update header: what ranks report to each other before an update. It follows the gradients of
//! the update before it, so ranks wait for each other once per update, not twice. Counts and
//! samples make the arithmetic exact, hashes make it safe, the stop flag passes on signals, and the
//! times of the last update steer the split: none of them needs a separate protocol.
//!
//! Pure: the types and [`merge_headers`]. `exchange.rs` sends and receives.

use hetseq_comm::Candidate;
use serde::{Deserialize, Serialize};

use crate::task::skipped_samples::SkippedSample;
use crate::trainer::stop::{Announcement, StopRequest};

use super::healing::odd_ranks;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct UpdateHeader {
    /// Updates done before this one.
    pub(crate) update: u64,
    /// Hash of the samples of this update: all ranks must mean the same ones.
    pub(crate) plan: u64,
    pub(crate) layout: u64,
    /// Samples that this rank will compute, and the counts of each loss term in them.
    pub(crate) samples: u64,
    pub(crate) counts: Vec<u64>,
    /// What asked this rank to stop, if it was: all ranks stop, or it leaves, without starting this
    /// update.
    pub(crate) stop: Option<Announcement>,
    /// Whether the run ends before this update, though it was planned. Rank 0's is used.
    pub(crate) ends: bool,
    /// Computed from the schedule. Rank 0's is used, since `cos` and `pow` differ between machines.
    pub(crate) lr: f64,
    /// Checksum of the parameters, if one was taken.
    pub(crate) checksum: Option<u64>,
    /// The updates of the newest complete checkpoint and of the best one. Rank 0's are used: it has
    /// the disk.
    pub(crate) saved: Option<u64>,
    pub(crate) best: Option<u64>,
    /// Times of this rank's devices in the update that was just computed.
    pub(crate) devices: Vec<DeviceTime>,
    /// Times of this rank outside its devices.
    pub(crate) rank: RankTime,
    /// The factor of losses where products are in `f16`; equal on all ranks.
    pub(crate) loss_scale: f32,
    /// Whether gradients of the update that was just computed have overflowed. None if this rank
    /// has no device in `f16`.
    pub(crate) overflow: Option<bool>,
    /// Devices that failed since the last header.
    pub(crate) lost: Vec<LostDevice>,
    /// Samples of this update that this rank could not read. `samples` includes them, `counts` does
    /// not.
    pub(crate) skipped: Vec<SkippedSample>,
    /// With `debug.audit`: the samples that this rank has computed in the update before.
    pub(crate) computed: Vec<u32>,
    /// A process that can join before this update. Rank 0's is used.
    pub(crate) newcomer: Option<Candidate>,
}

/// A device's times, as integers so that every rank computes the same split from them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceTime {
    /// Time spent on its micro-batches, without waiting.
    pub(crate) micros: u64,
    /// Time spent after them, without waiting.
    pub(crate) after_micros: u64,
    /// Set if the device ran out of memory: the most tokens of its micro-batches from now on.
    pub(crate) most_tokens: Option<u64>,
}

/// A device that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LostDevice {
    /// Its index in its rank; in [`MergedHeader`] its index in the group.
    pub(crate) device: usize,
    pub(crate) reason: String,
    /// Its rank's CPU replaces it.
    pub(crate) has_replacement: bool,
}

/// Where a rank's time went, besides its devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankTime {
    /// In this update: waiting for the samples of the next one.
    pub(crate) data_micros: u64,
    /// In the update before: adding up the devices, the optimizer, loading parameters.
    pub(crate) host_micros: u64,
    /// In the exchange before: moving bytes, and waiting for peers or for the link.
    pub(crate) exchange_micros: u64,
    pub(crate) wait_micros: u64,
}

/// The headers of all ranks, merged. Equal on all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MergedHeader {
    pub(crate) counts: Vec<u64>,
    /// The first rank that was asked to stop, if the ranks must deal with that now.
    pub(crate) stop: Option<StopRequest>,
    pub(crate) ends: bool,
    pub(crate) lr: f64,
    pub(crate) saved: Option<u64>,
    pub(crate) best: Option<u64>,
    /// All devices of the group, rank by rank.
    pub(crate) devices: Vec<DeviceTime>,
    pub(crate) ranks: Vec<RankTime>,
    /// Whether gradients have overflowed on any device. None if no device computes in `f16`.
    pub(crate) overflow: Option<bool>,
    pub(crate) lost: Vec<LostDevice>,
    pub(crate) skipped: Vec<SkippedSample>,
    /// Per rank.
    pub(crate) computed: Vec<Vec<u32>>,
    pub(crate) newcomer: Option<Candidate>,
}

/// Headers that contradict each other.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct HeaderConflict {
    /// Completes "the ranks no longer agree on ...".
    pub(crate) what: &'static str,
    pub(crate) detail: String,
    /// The ranks whose parameters differ from those of the majority.
    pub(crate) odd_ranks: Vec<usize>,
}

impl HeaderConflict {
    fn new(what: &'static str, detail: String) -> Self {
        HeaderConflict { what, detail, odd_ranks: Vec::new() }
    }
}

/// Merges the headers of all ranks, in rank order. `expected` is the number of samples in the
/// update: each must be computed exactly once.
pub(crate) fn merge_headers(headers: &[UpdateHeader], expected: u64) -> Result<MergedHeader, HeaderConflict> {
    let Some(first) = headers.first() else {
        return Err(HeaderConflict::new("the header", "no rank sent one".to_owned()));
    };
    require_equal(headers, "the update number", |header| header.update)?;
    require_equal(headers, "the samples of this update", |header| header.plan)?;
    require_equal(headers, "the parameter layout", |header| header.layout)?;
    require_equal(headers, "the number of loss terms", |header| header.counts.len() as u64)?;
    require_equal(headers, "the parameters", |header| header.checksum.unwrap_or_default()).map_err(|conflict| {
        let checksums: Vec<_> = headers.iter().map(|header| header.checksum).collect();
        HeaderConflict { odd_ranks: odd_ranks(&checksums), ..conflict }
    })?;
    require_equal(headers, "the loss scale", |header| u64::from(header.loss_scale.to_bits()))?;
    let samples = checked_sum(headers, "the assignment of samples", |header| header.samples)?;
    if samples != expected {
        let detail = format!("{samples} samples are assigned, the update has {expected}");
        return Err(HeaderConflict::new("the assignment of samples", detail));
    }
    let count = |term: usize| checked_sum(headers, "the counts of the loss terms", |header| header.counts[term]);
    let counts = (0..first.counts.len()).map(count).collect::<Result<_, _>>()?;
    let (mut lost, mut before) = (Vec::new(), 0);
    for (rank, header) in headers.iter().enumerate() {
        if let Some(LostDevice { device, .. }) = header.lost.iter().find(|lost| lost.device >= header.devices.len()) {
            let detail = format!("rank {rank} lost device {device} of {}", header.devices.len());
            return Err(HeaderConflict::new("the devices", detail));
        }
        lost.extend(header.lost.iter().map(|lost| LostDevice { device: before + lost.device, ..lost.clone() }));
        before += header.devices.len();
    }
    Ok(MergedHeader {
        counts,
        stop: StopRequest::due(headers.iter().map(|header| header.stop)),
        ends: first.ends,
        lr: first.lr,
        saved: first.saved,
        best: first.best,
        devices: headers.iter().flat_map(|header| header.devices.iter().copied()).collect(),
        ranks: headers.iter().map(|header| header.rank).collect(),
        overflow: headers.iter().filter_map(|header| header.overflow).reduce(|any, one| any | one),
        lost,
        skipped: headers.iter().flat_map(|header| header.skipped.iter().cloned()).collect(),
        computed: headers.iter().map(|header| header.computed.clone()).collect(),
        newcomer: first.newcomer,
    })
}

fn require_equal(
    headers: &[UpdateHeader],
    what: &'static str,
    value: impl Fn(&UpdateHeader) -> u64,
) -> Result<(), HeaderConflict> {
    let first = value(&headers[0]);
    match headers.iter().position(|header| value(header) != first) {
        None => Ok(()),
        Some(rank) => {
            let detail = format!("rank 0 has {first:016x}, rank {rank} has {:016x}", value(&headers[rank]));
            Err(HeaderConflict::new(what, detail))
        }
    }
}

/// The sum over all ranks. A value too large to add came from a rank that computes something else.
fn checked_sum(
    headers: &[UpdateHeader],
    what: &'static str,
    value: impl Fn(&UpdateHeader) -> u64,
) -> Result<u64, HeaderConflict> {
    headers.iter().enumerate().try_fold(0u64, |sum, (rank, header)| {
        let value = value(header);
        sum.checked_add(value).ok_or_else(|| HeaderConflict::new(what, format!("rank {rank} reports {value}")))
    })
}

impl MergedHeader {
    /// The wait of the rank that waited longest for samples: the others wait for it.
    pub(crate) fn data_wait_s(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.data_micros).max().unwrap_or(0) as f64 * 1e-6
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::stop::StopCause;

    fn header(samples: u64, count: u64) -> UpdateHeader {
        UpdateHeader {
            update: 7,
            plan: 1,
            layout: 2,
            samples,
            counts: vec![count],
            stop: None,
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
            skipped: vec![SkippedSample { sample: samples as u32, reason: "torn".to_owned() }],
            computed: Vec::new(),
            newcomer: None,
        }
    }

    #[test]
    fn an_overflow_on_one_rank_counts_for_all() {
        let with = |overflow| UpdateHeader { overflow, ..header(3, 3) };
        let merged = |votes: [Option<bool>; 2]| merge_headers(&votes.map(with), 6).unwrap().overflow;
        assert_eq!(merged([None, None]), None);
        assert_eq!(merged([Some(false), None]), Some(false));
        assert_eq!(merged([Some(false), Some(true)]), Some(true));
        let other = UpdateHeader { loss_scale: 4.0, ..header(3, 3) };
        assert_eq!(merge_headers(&[header(3, 3), other], 6).unwrap_err().what, "the loss scale");
    }

    #[test]
    fn lost_devices_are_numbered_over_all_ranks() {
        let lost = LostDevice { device: 0, reason: "gone".to_owned(), has_replacement: false };
        let second = UpdateHeader { lost: vec![lost], ..header(3, 3) };
        let merged = merge_headers(&[header(3, 3), second], 6).unwrap();
        assert_eq!(merged.lost.iter().map(|lost| lost.device).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn impossible_numbers_are_rejected() {
        let rejected = |second: UpdateHeader| merge_headers(&[header(3, 3), second], 2).unwrap_err();
        // Without the overflow check, these would add up to the two samples of the update.
        let conflict = rejected(header(u64::MAX, 3));
        assert_eq!(
            (conflict.what, &*conflict.detail),
            ("the assignment of samples", "rank 1 reports 18446744073709551615")
        );
        let second = UpdateHeader { counts: vec![u64::MAX], ..header(3, 3) };
        assert_eq!(merge_headers(&[header(3, 3), second], 6).unwrap_err().what, "the counts of the loss terms");
        for device in [1, usize::MAX] {
            let lost = LostDevice { device, reason: "gone".to_owned(), has_replacement: false };
            let second = UpdateHeader { lost: vec![lost], ..header(3, 3) };
            let conflict = merge_headers(&[header(3, 3), second], 6).unwrap_err();
            assert_eq!((conflict.what, conflict.detail), ("the devices", format!("rank 1 lost device {device} of 1")));
        }
    }

    #[test]
    fn counts_are_added_and_any_rank_may_stop() {
        let mut second = header(0, 0);
        second.stop = Some(Announcement { cause: StopCause::Terminate, is_due: true });
        second.lr = 0.25;
        second.ends = true;
        let first = UpdateHeader { saved: Some(6), best: Some(4), ..header(6, 60) };
        let merged = merge_headers(&[first, second], 6).unwrap();
        assert!(!merged.ends, "only rank 0 decides");
        assert_eq!((merged.saved, merged.best), (Some(6), Some(4)));
        assert_eq!((merged.data_wait_s(), merged.skipped.len()), (6e-6, 2));
        let stop = StopRequest { rank: 1, cause: StopCause::Terminate };
        assert_eq!((merged.counts, merged.stop, merged.lr, merged.devices.len()), (vec![60], Some(stop), 0.5, 2));
    }

    #[test]
    fn a_missing_or_repeated_sample_is_detected() {
        let conflict = merge_headers(&[header(3, 3), header(4, 4)], 6).unwrap_err();
        assert_eq!(conflict.detail, "7 samples are assigned, the update has 6");
    }

    #[test]
    fn a_rank_with_other_parameters_is_named() {
        let mut second = header(3, 3);
        second.checksum = Some(9);
        let conflict = merge_headers(&[header(3, 3), second.clone()], 6).unwrap_err();
        assert_eq!((conflict.what, &*conflict.odd_ranks), ("the parameters", &[][..] as &[usize]), "no majority");
        assert!(conflict.detail.contains("rank 1"));
        second.checksum = Some(7);
        let third = UpdateHeader { checksum: Some(7), ..header(0, 0) };
        let conflict = merge_headers(&[header(3, 3), second, third], 6).unwrap_err();
        assert_eq!(conflict.odd_ranks, [0]);
    }
}
