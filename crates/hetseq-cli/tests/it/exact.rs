//! Any mix of workers computes what one device computes: gradients and losses of
//! `configs/mnist.toml`, from the start and from checkpoints, with and without dropout, and each
//! sample exactly once per epoch.

use std::collections::BTreeMap;

use hetseq_metrics::Event;

use crate::cluster::Job;
use crate::data::{TRAIN_SAMPLES, UPDATES_PER_EPOCH};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const UPDATES: u64 = 60;
const WEIGHTS: [u32; 3] = [7, 2, 1];

#[test]
fn workers_agree_with_dropout() {
    assert_agreement(Reference::shipped(), |job| job);
}

#[test]
fn workers_agree_without_dropout() {
    let no_dropout = |job: Job| job.set("task.dropout", 0);
    assert_agreement(&Reference::new(no_dropout), no_dropout);
}

/// (ranks, name, changes of the job)
type Topology = (usize, &'static str, fn(Job) -> Job);

const TOPOLOGIES: [Topology; 3] = [
    (3, "three ranks, 7:2:1", |job| job.weights(&WEIGHTS)),
    (3, "three ranks, 7:2:1, micro-batches of 7", |job| job.weights(&WEIGHTS).set("batch.micro", 7)),
    (1, "three devices", |job| job.set("run.devices", "cpu:3")),
];

fn assert_agreement(reference: &Reference, vary: impl Fn(Job) -> Job) {
    for (ranks, name, set_up) in TOPOLOGIES {
        let train = |dir: &RunDir, updates| set_up(vary(shipped(dir, updates).set("debug.gradients", true)));
        // Ranks compare checksums after every update and stop if they differ.
        let dir = RunDir::new();
        train(&dir, UPDATES).set("debug.audit", true).succeed();
        reference.assert_gradient(&dir, 1, name);
        reference.assert_losses(&dir, UPDATES, name);
        assert_checksums(&dir);
        assert_each_sample_once(&dir, ranks);
        for from in [20, 60] {
            let dir = RunDir::new();
            train(&dir, from + 1).arg("--resume").arg(reference.checkpoint(from)).succeed();
            assert_eq!(dir.starts(), [(ranks, from)], "{name}");
            reference.assert_gradient(&dir, from + 1, name);
        }
    }
}

fn assert_checksums(dir: &RunDir) {
    let has_checksum = |event| match event {
        Event::Update { checksum, .. } => Some(checksum.is_some()),
        _ => None,
    };
    let taken: Vec<bool> = dir.events().into_iter().filter_map(has_checksum).collect();
    assert_eq!(taken, [true; UPDATES as usize]);
}

fn assert_each_sample_once(dir: &RunDir, ranks: usize) {
    let mut epochs: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for (rank, weight) in WEIGHTS.iter().enumerate().take(ranks) {
        let audit = dir.audit(rank);
        assert!(audit.iter().map(|(update, ..)| *update).eq(1..=UPDATES), "rank {rank}");
        for (update, epoch, samples) in audit {
            assert_eq!(epoch, 1 + (update - 1) / UPDATES_PER_EPOCH);
            if ranks == WEIGHTS.len() {
                let all = if update % UPDATES_PER_EPOCH == 0 { 70 } else { 100 };
                assert_eq!(samples.len() as u32, all * weight / 10, "update {update}, rank {rank}");
            }
            epochs.entry(epoch).or_default().extend(samples);
        }
    }
    assert_eq!(epochs.len() as u64, UPDATES / UPDATES_PER_EPOCH);
    for (epoch, mut samples) in epochs {
        samples.sort_unstable();
        assert!(samples.into_iter().eq(0..TRAIN_SAMPLES as u32), "epoch {epoch}");
    }
}
