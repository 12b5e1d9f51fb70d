//! A rank whose parameters change by themselves, as in faulty memory: it is named, takes the state of
//! the others, and the losses are those of an undisturbed run.

use hetseq_metrics::Event;

use crate::cluster::{Job, codes};
use crate::reference::{Reference, shipped};
use crate::run_dir::RunDir;

const UPDATES: u64 = 12;

fn job(dir: &RunDir, world: usize, flipped: &[(usize, u64)]) -> Job {
    let fault = |(rank, update): &(usize, u64)| format!("{{ rank = {rank}, update = {update} }}");
    let flipped: Vec<String> = flipped.iter().map(fault).collect();
    shipped(dir, UPDATES)
        .ranks(world)
        .set("batch.probe_s", 0)
        .set("debug.audit", true)
        .set("emulate.flipped_bit", format!("[{}]", flipped.join(", ")))
}

fn healed(dir: &RunDir) -> Vec<(u64, usize)> {
    let healed = |event| match event {
        Event::Healed { update, rank, .. } => Some((update, rank)),
        _ => None,
    };
    dir.events().into_iter().filter_map(healed).collect()
}

fn assert_undisturbed(dir: &RunDir, ranks: usize) {
    assert_eq!(dir.end(), (UPDATES, "finished".to_owned()));
    Reference::shipped().assert_losses(dir, UPDATES, "a flipped bit");
    let mut samples: Vec<(u64, u32)> = (0..ranks)
        .flat_map(|rank| dir.audit(rank))
        .flat_map(|(_, epoch, ids)| ids.into_iter().map(move |id| (epoch, id)))
        .collect();
    let count = samples.len();
    samples.sort_unstable();
    samples.dedup();
    assert_eq!((samples.len(), count), (count, dir.samples()), "each sample once");
}

#[test]
fn a_flipped_bit_is_found_by_the_next_comparison_and_has_no_effect() {
    for odd in [1, 0] {
        let dir = RunDir::new();
        let ended = job(&dir, 3, &[(odd, 5)]).set("run.checksum_every", 1).run();
        assert_eq!(codes(&ended), [Some(0); 3], "{ended:#?}");
        assert_eq!(healed(&dir), [(5, odd)]);
        assert_undisturbed(&dir, 3);
        assert!(ended[odd].stderr.contains("differ from those of the others: taking theirs"), "{ended:#?}");
        assert!(ended[0].stderr.contains(&format!("after update 5 the parameters of rank {odd} (")), "{ended:#?}");
    }
}

#[test]
fn a_flipped_bit_is_never_saved() {
    let dir = RunDir::new();
    let job = job(&dir, 3, &[(0, 4), (2, 8)]).set("run.checksum_every", 0).set("checkpoint.every", "1 update");
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(0); 3], "{ended:#?}");
    assert_eq!(healed(&dir), [(4, 0), (8, 2)]);
    assert_undisturbed(&dir, 3);
}

#[test]
fn a_machine_that_is_wrong_too_often_leaves() {
    let dir = RunDir::new();
    let job = job(&dir, 3, &[(1, 2), (1, 4), (1, 6), (1, 8)]).set("run.checksum_every", 1);
    let ended = job.run();
    assert_eq!(codes(&ended), [Some(0), Some(1), Some(0)], "{ended:#?}");
    assert_eq!(healed(&dir), [(2, 1), (4, 1), (6, 1)]);
    assert_eq!(dir.membership_events(), ["lost 1", "regrouped 2"]);
    assert!(ended[1].stderr.contains("Its memory or its processor is faulty"), "{ended:#?}");
    assert_undisturbed(&dir, 3);
}

#[test]
fn two_ranks_cannot_tell_which_is_wrong() {
    let dir = RunDir::new();
    let ended = job(&dir, 2, &[(1, 5)]).set("run.checksum_every", 1).run();
    assert_eq!(codes(&ended), [Some(1); 2], "{ended:#?}");
    assert!(ended[0].stderr.contains("the ranks no longer agree on the parameters"), "{ended:#?}");
}
