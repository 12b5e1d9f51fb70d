//! Fuzzing of the update header, which all ranks send to all: damaged headers are rejected, or merged
//! without a panic and without much more memory than they take. `hetseq-fuzz` sets seed and time.

use hetseq_comm::Candidate;
use hetseq_fuzz::{Rng, bounded, damage, fuzz};

use crate::task::skipped_samples::SkippedSample;

use super::header::{DeviceTime, LostDevice, MergedHeader, RankTime, UpdateHeader, merge_headers};
use super::messages;
use super::stop::{Announcement, StopCause};

/// A valid header for an update of 8 samples, of which each of two ranks computes half.
fn header(rng: &mut Rng) -> UpdateHeader {
    let lost = LostDevice { device: rng.below(2), reason: "gone".to_owned(), has_replacement: rng.below(2) == 0 };
    let skipped = SkippedSample { sample: rng.below(8) as u32, reason: "torn".to_owned() };
    UpdateHeader {
        update: 7,
        plan: 1,
        layout: 2,
        samples: 4,
        counts: vec![4; 2],
        stop: (rng.below(8) == 0).then_some(Announcement { cause: StopCause::Hangup, is_due: rng.below(2) == 0 }),
        ends: false,
        lr: 0.5,
        checksum: None,
        saved: Some(6),
        best: None,
        devices: vec![DeviceTime { micros: 10, after_micros: 1, most_tokens: (rng.below(2) == 0).then_some(9) }; 2],
        rank: RankTime::default(),
        loss_scale: 8.0,
        overflow: (rng.below(2) == 0).then_some(false),
        lost: vec![lost; rng.below(2)],
        skipped: vec![skipped; rng.below(3)],
        computed: vec![3; rng.below(5)],
        newcomer: (rng.below(2) == 0).then_some(Candidate { id: 5, sees_directory: true }),
    }
}

#[test]
fn damaged_headers_are_rejected_or_merged() {
    fuzz("update headers", |rng| {
        let intact = header(rng);
        let mut bytes = messages::encode(&header(rng)).unwrap();
        if rng.below(16) > 0 {
            damage(&mut bytes, rng);
        }
        let limit_bytes = 64 * bytes.len() + (8 << 10);
        let decoded = bounded(limit_bytes, || messages::decode::<UpdateHeader>(1, &bytes));
        let Ok(damaged) = decoded else { return };
        let merged = bounded(limit_bytes + (8 << 10), || merge_headers(&[intact, damaged.clone()], 8));
        let Ok(merged) = merged else { return };
        // What the trainer relies on.
        assert_eq!((damaged.samples, merged.counts.len()), (4, 2));
        assert!(merged.lost.iter().all(|lost| lost.device < merged.devices.len()));
        // A rank that computes again gets it from another one.
        let mut bytes = messages::encode(&merged).unwrap();
        damage(&mut bytes, rng);
        _ = bounded(64 * bytes.len() + (8 << 10), || messages::decode::<MergedHeader>(1, &bytes));
    });
}
