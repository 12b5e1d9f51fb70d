//! Tests of the plan: each sample is used once per epoch for any lengths, and updates have little
//! padding.

use hetseq_data::plan::{EpochPlan, GlobalBatch, Padding, PlanSpec, SampleLengths};
use hetseq_random::Key;
use proptest::prelude::*;

fn spec(batch: GlobalBatch) -> PlanSpec {
    PlanSpec { seed: 17, batch, curriculum_epochs: 0, shuffle: true }
}

fn random_lengths(count: u64) -> Vec<u32> {
    (0..count).map(|i| 8 + Key::root(3).below(i, 505) as u32).collect()
}

fn order(plan: &EpochPlan) -> Vec<u32> {
    (0..plan.updates()).flat_map(|k| plan.update(k).samples.to_vec()).collect()
}

fn any_lengths() -> impl Strategy<Value = SampleLengths> {
    prop_oneof![
        (0usize..3000, 0u32..600).prop_map(|(samples, tokens)| SampleLengths::Uniform { samples, tokens }),
        prop::collection::vec(0u32..600, 0..3000).prop_map(SampleLengths::PerSample),
        prop::collection::vec(prop_oneof![Just(0), Just(1), Just(u32::MAX)], 0..50).prop_map(SampleLengths::PerSample),
    ]
}

fn any_batch() -> impl Strategy<Value = GlobalBatch> {
    prop_oneof![
        (1usize..300).prop_map(GlobalBatch::Sequences),
        (1usize..20_000).prop_map(GlobalBatch::Tokens),
        prop_oneof![Just(0), Just(usize::MAX)].prop_map(GlobalBatch::Sequences),
        prop_oneof![Just(0), Just(usize::MAX)].prop_map(GlobalBatch::Tokens),
    ]
}

proptest! {
    #[test]
    fn every_sample_is_in_exactly_one_update_within_the_batch_size(
        lengths in any_lengths(), batch in any_batch(), seed: u64, epoch in 0u64..4, shuffle: bool,
    ) {
        let spec = PlanSpec { seed, batch, curriculum_epochs: 2, shuffle };
        let plan = EpochPlan::new(&lengths, &spec, epoch);

        let mut seen = order(&plan);
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..lengths.samples() as u32).collect::<Vec<_>>());

        let mut padding = Padding::default();
        for k in 0..plan.updates() {
            let samples = plan.update(k).samples;
            let tokens: Vec<u32> = samples.iter().map(|&s| lengths.tokens(s)).collect();
            prop_assert!(!samples.is_empty());
            prop_assert!(tokens.is_sorted());
            let padded = u64::from(tokens[tokens.len() - 1]) * tokens.len() as u64;
            match batch {
                GlobalBatch::Tokens(budget) => prop_assert!(samples.len() == 1 || padded <= budget as u64),
                GlobalBatch::Sequences(n) if k + 1 < plan.updates() => prop_assert_eq!(samples.len(), n.max(1)),
                GlobalBatch::Sequences(n) => prop_assert!(samples.len() <= n.max(1)),
            }
            padding.padded_tokens += padded;
            padding.real_tokens += tokens.iter().map(|&t| u64::from(t)).sum::<u64>();
        }
        prop_assert_eq!(plan.padding(), padding);
        prop_assert_eq!(plan, EpochPlan::new(&lengths, &spec, epoch));
    }
}

#[test]
fn epochs_and_seeds_differ() {
    for lengths in [SampleLengths::Uniform { samples: 1000, tokens: 1 }, SampleLengths::PerSample(random_lengths(1000))]
    {
        for batch in [GlobalBatch::Sequences(32), GlobalBatch::Tokens(4096)] {
            let spec = spec(batch);
            let first = order(&EpochPlan::new(&lengths, &spec, 0));
            assert_ne!(first, order(&EpochPlan::new(&lengths, &spec, 1)));
            assert_ne!(first, order(&EpochPlan::new(&lengths, &PlanSpec { seed: 18, ..spec }, 0)));
        }
    }
}

#[test]
fn the_plan_matches_the_recorded_one() {
    // Recorded once. A change here breaks resuming of all runs: bump the checkpoint format instead.
    let images =
        EpochPlan::new(&SampleLengths::Uniform { samples: 1000, tokens: 1 }, &spec(GlobalBatch::Sequences(64)), 2);
    let text = EpochPlan::new(&SampleLengths::PerSample(random_lengths(20_000)), &spec(GlobalBatch::Tokens(4096)), 2);
    assert_eq!([images.fingerprint(3), text.fingerprint(3)], RECORDED);
}
const RECORDED: [u64; 2] = [16_815_076_445_412_635_553, 10_813_489_674_513_718_768];

#[test]
fn bucketed_updates_have_far_less_padding_than_a_plain_shuffle() {
    let lengths = SampleLengths::PerSample(random_lengths(50_000));
    let bucketed = EpochPlan::new(&lengths, &spec(GlobalBatch::Sequences(64)), 0).padding();

    let mut shuffled: Vec<u32> = (0..50_000).collect();
    Key::root(17).shuffle(&mut shuffled);
    let plain: u64 = shuffled
        .chunks(64)
        .map(|update| update.len() as u64 * u64::from(update.iter().map(|&s| lengths.tokens(s)).max().unwrap()))
        .sum();
    let plain = Padding { real_tokens: bucketed.real_tokens, padded_tokens: plain };
    assert!(plain.waste() > 0.45, "{}", plain.waste());
    assert!(bucketed.waste() < 0.03, "{}", bucketed.waste());
}

#[test]
fn lengths_do_not_rise_and_fall_periodically() {
    let lengths = SampleLengths::PerSample(random_lengths(20_000));
    let plan = EpochPlan::new(&lengths, &spec(GlobalBatch::Sequences(50)), 0);
    let longest: Vec<u32> = (0..plan.updates()).map(|k| lengths.tokens(plan.update(k).samples[49])).collect();
    let rises = longest.windows(2).filter(|pair| pair[1] > pair[0]).count();
    assert!((150..250).contains(&rises), "{rises} of {} updates are longer than the one before", longest.len());
}

#[test]
fn equal_lengths_give_the_same_plan_in_both_forms() {
    let spec = spec(GlobalBatch::Sequences(32));
    let uniform = EpochPlan::new(&SampleLengths::Uniform { samples: 500, tokens: 7 }, &spec, 1);
    assert_eq!(uniform, EpochPlan::new(&SampleLengths::PerSample(vec![7; 500]), &spec, 1));
}

#[test]
fn the_curriculum_is_sorted_by_length_and_later_epochs_are_shuffled() {
    let lengths = SampleLengths::PerSample(random_lengths(1000));
    let spec = PlanSpec { curriculum_epochs: 2, ..spec(GlobalBatch::Sequences(32)) };
    let plans: Vec<EpochPlan> = (0..3).map(|epoch| EpochPlan::new(&lengths, &spec, epoch)).collect();
    assert_eq!(order(&plans[0]), order(&plans[1]));
    assert!(order(&plans[0]).iter().map(|&s| (lengths.tokens(s), s)).is_sorted());
    assert_ne!(order(&plans[1]), order(&plans[2]));

    let images = SampleLengths::Uniform { samples: 100, tokens: 1 };
    assert!(order(&EpochPlan::new(&images, &spec, 0)).is_sorted());
    let validation = PlanSpec { shuffle: false, curriculum_epochs: 0, ..spec };
    assert!(order(&EpochPlan::new(&images, &validation, 9)).is_sorted());
}

#[test]
fn a_sample_longer_than_the_batch_is_a_single_update() {
    let mut lengths = vec![10; 20];
    lengths[7] = 5000;
    let plan = EpochPlan::new(&SampleLengths::PerSample(lengths), &spec(GlobalBatch::Tokens(100)), 0);
    assert_eq!(plan.updates(), 3);
    assert!((0..3).any(|k| plan.update(k).samples == [7]));
}

#[test]
fn fingerprints_differ_between_updates_and_epochs() {
    let lengths = SampleLengths::Uniform { samples: 64, tokens: 1 };
    let spec = PlanSpec { shuffle: false, ..spec(GlobalBatch::Sequences(32)) };
    let (first, second) = (EpochPlan::new(&lengths, &spec, 0), EpochPlan::new(&lengths, &spec, 1));
    assert_ne!(first.fingerprint(0), first.fingerprint(1));
    assert_ne!(first.fingerprint(0), second.fingerprint(0));
    assert_eq!(first.fingerprint(1), EpochPlan::new(&lengths, &spec, 0).fingerprint(1));
}

#[test]
fn an_update_past_the_end_is_empty() {
    let plan = EpochPlan::new(&SampleLengths::Uniform { samples: 10, tokens: 1 }, &spec(GlobalBatch::Sequences(4)), 0);
    assert_eq!(plan.updates(), 3);
    assert!(plan.update(3).samples.is_empty());
    assert!(plan.update(usize::MAX).samples.is_empty());
    let _ = plan.fingerprint(99);
    let empty = EpochPlan::new(&SampleLengths::PerSample(vec![]), &spec(GlobalBatch::Tokens(4)), 0);
    assert_eq!((empty.updates(), empty.padding().waste()), (0, 0.0));
}
