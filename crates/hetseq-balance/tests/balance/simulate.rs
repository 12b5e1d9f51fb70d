//! Simulated training.

use std::time::Instant;

use hetseq_balance::simulate::{Absence, Disturbance, SimulateError, SimulatedRank};
use hetseq_balance::{
    CostPoint, CostTable, DeviceProfile, LinkProfile, Profile, RankProfile, Setup, Simulation, SplitMode, simulate,
};
use proptest::prelude::*;

const TOKENS: u32 = 100;

/// A device that takes `sample_micros` for each sample of [`TOKENS`] tokens, in micro-batches of
/// any size.
fn device(sample_micros: u64) -> DeviceProfile {
    let point =
        |samples: u32| CostPoint { samples, tokens: TOKENS, micros: sample_micros * u64::from(samples), bytes: 0 };
    let table = CostTable::new([1, 2, 4, 8].map(point).to_vec()).unwrap();
    DeviceProfile { name: "cpu:0".into(), table, after_s: 0.0, weight: 1.0, max_tokens: None, max_samples: None }
}

fn rank(sample_micros: u64) -> RankProfile {
    let devices = vec![device(sample_micros)];
    RankProfile { host: "host".into(), devices, host_s: 0.0, link: LinkProfile::unlimited(), shard_weight: None }
}

/// One device per rank.
fn group(sample_micros: &[u64]) -> Profile {
    let ranks = sample_micros.iter().map(|&micros| rank(micros)).collect();
    Profile { task: "test".into(), parameters: 1000, exchange_bytes: 4000, ranks }
}

fn run(profile: &Profile, setup: &Setup) -> Simulation {
    let result = simulate(profile, setup).unwrap();
    assert_eq!(result.update_s.len() as u64, setup.updates);
    assert_eq!(result.predicted_s.len() as u64, setup.updates);
    for rank in &result.ranks {
        let SimulatedRank { compute_s, wait_s, net_s, host_s, away_s, .. } = *rank;
        let sum_s = compute_s + wait_s + net_s + host_s + away_s;
        assert!((sum_s - result.seconds).abs() < 1e-6 * result.seconds.max(1.0), "{rank:?} of {} s", result.seconds);
    }
    result
}

#[test]
fn one_device_takes_the_time_in_its_table() {
    let mut profile = group(&[1000]);
    profile.ranks[0].host_s = 0.010;
    profile.ranks[0].devices[0].after_s = 0.002;
    profile.ranks[0].link = LinkProfile { bytes_per_s: 1.0, latency_s: 9.0 };
    let result = run(&profile, &Setup::uniform(64, TOKENS, 10));
    for seconds in result.update_s {
        assert!((seconds - 0.076).abs() < 1e-5, "{seconds}");
    }
    assert!((result.efficiency - 1.0).abs() < 1e-3, "{}", result.efficiency);
    assert_eq!((result.samples, result.replans.len()), (640, 0));
}

#[test]
fn two_devices_share_by_speed_and_an_equal_split_waits_for_the_slower() {
    let profile = group(&[1000, 4000]);
    let mut setup = Setup::uniform(40, TOKENS, 20);
    let measured = run(&profile, &setup);
    assert_eq!((measured.devices[0].samples, measured.devices[1].samples), (32 * 20, 8 * 20));
    assert!((measured.median_update_s() - 0.032).abs() < 1e-4, "{}", measured.median_update_s());
    assert!(measured.efficiency > 0.99, "{}", measured.efficiency);

    setup.split = SplitMode::Equal;
    let equal = run(&profile, &setup);
    assert!((equal.median_update_s() - 0.080).abs() < 1e-4, "{}", equal.median_update_s());
    assert!((equal.ranks[0].wait_s - 0.060 * 20.0).abs() < 1e-3, "{:?}", equal.ranks[0]);
    assert!(equal.ranks[1].wait_s < 1e-6);
}

#[test]
fn with_equal_links_updates_take_the_predicted_time() {
    let mut profile = group(&[1000, 2000, 4000]);
    profile.exchange_bytes = 30_000_000;
    for rank in &mut profile.ranks {
        rank.link = LinkProfile { bytes_per_s: 1e9, latency_s: 0.0005 };
        rank.host_s = 0.005;
    }
    let result = run(&profile, &Setup::uniform(140, TOKENS, 12));
    for (seconds, predicted) in result.update_s.iter().zip(&result.predicted_s) {
        assert!((seconds - predicted).abs() < 1e-5, "{seconds} s, predicted {predicted} s");
    }
    // Each sends and receives four thirds of the gradient, with a latency of 1 ms in total.
    assert!((result.ranks[0].net_s - 12.0 * 0.041).abs() < 1e-6, "{}", result.ranks[0].net_s);
}

#[test]
fn a_slow_link_delays_the_first_update_and_is_then_hidden_behind_computing() {
    let mut profile = group(&[1000, 1000]);
    profile.exchange_bytes = 1_000_000;
    profile.ranks[0].link = LinkProfile { bytes_per_s: 1e9, latency_s: 0.0 };
    profile.ranks[1].link = LinkProfile { bytes_per_s: 1e7, latency_s: 0.0 };
    let result = run(&profile, &Setup::uniform(300, TOKENS, 20));
    // Half of the second rank's 0.1 s comes after the first begins to contribute.
    let compute_s = result.devices[0].samples as f64 / 20.0 * 0.001;
    assert!(result.update_s[0] >= compute_s + 0.05 - 1e-9, "{} after {compute_s}", result.update_s[0]);
    assert!(
        result.update_s[19] <= result.predicted_s[19] + 1e-3,
        "{} of {}",
        result.update_s[19],
        result.predicted_s[19]
    );
    assert!((result.ranks[1].net_s - 20.0 * 0.1).abs() < 1e-6, "{:?}", result.ranks[1]);
}

#[test]
fn a_disturbance_is_followed_within_a_few_updates() {
    let profile = group(&[2000, 2000]);
    let mut setup = Setup::uniform(120, TOKENS, 60);
    setup.disturbances = vec![Disturbance { rank: 1, device: None, from_update: 21, to_update: 40, factor: 3.0 }];
    let result = run(&profile, &setup);
    let at = |update: usize| result.update_s[update - 1];
    assert!((at(20) - 0.120).abs() < 1e-3 && (at(21) - 0.360).abs() < 1e-3, "{:?}", result.update_s);
    for update in 27..=40 {
        assert!(at(update) < 0.190, "update {update}: {}", at(update));
    }
    for update in 47..=60 {
        assert!(at(update) < 0.130, "update {update}: {}", at(update));
    }
    assert!(!result.replans.is_empty() && result.replans[0].gain > 0.02, "{:?}", result.replans);
    let by_equal = run(&profile, &Setup { split: SplitMode::Equal, ..setup });
    assert!(result.seconds < by_equal.seconds);
}

#[test]
fn one_device_of_a_rank_can_be_disturbed() {
    let mut profile = group(&[1000]);
    profile.ranks[0].devices.push(device(1000));
    let mut setup = Setup::uniform(16, TOKENS, 1);
    setup.disturbances = vec![Disturbance { rank: 0, device: Some(1), from_update: 1, to_update: 1, factor: 2.0 }];
    let result = run(&profile, &setup);
    assert!((result.devices[0].compute_s - 0.008).abs() < 1e-6 && (result.devices[1].compute_s - 0.016).abs() < 1e-6);
    assert!((result.update_s[0] - 0.016).abs() < 1e-6);
}

#[test]
fn a_failure_loses_no_samples() {
    let profile = group(&[1000, 1000, 2000]);
    let mut setup = Setup::uniform(100, TOKENS, 30);
    setup.absences = vec![Absence { rank: 1, at_update: 11, back_at_update: Some(21) }];
    setup.pause_s = 5.0;
    let result = run(&profile, &setup);
    assert_eq!(result.samples, 3000);
    assert_eq!((result.paused_s, result.update_s.len()), (10.0, 30));
    let seconds_of = |update: usize| result.update_s[update - 1];
    assert!(
        (seconds_of(10) - 0.040).abs() < 2e-3
            && (seconds_of(15) - 0.067).abs() < 2e-3
            && (seconds_of(25) - 0.040).abs() < 2e-3
    );
    let updates: f64 = result.update_s.iter().sum();
    assert!((updates + 10.0 - result.seconds).abs() < 1e-6);
    assert!((result.ranks[1].away_s - 10.0 - 10.0 * seconds_of(15)).abs() < 1e-3, "{:?}", result.ranks[1]);
    assert!(result.ranks[1].samples < result.ranks[0].samples);
}

#[test]
fn the_result_depends_only_on_the_seed() {
    let profile = group(&[1000, 3000, 5000]);
    let setup = Setup { jitter: 0.1, ..Setup::uniform(64, TOKENS, 40) };
    let first = run(&profile, &setup);
    assert_eq!(first, run(&profile, &setup));
    assert_ne!(first, run(&profile, &Setup { seed: 2, ..setup }));
}

#[test]
fn invalid_setups_are_rejected() {
    let profile = group(&[1000, 1000]);
    let setup = Setup::uniform(8, TOKENS, 10);
    let rejected = |setup: &Setup| simulate(&profile, setup).unwrap_err();
    assert_eq!(rejected(&Setup { tokens: Vec::new(), ..setup.clone() }), SimulateError::Nothing);
    assert_eq!(rejected(&Setup { updates: 0, ..setup.clone() }), SimulateError::Nothing);
    let mut endless = profile.clone();
    endless.ranks[1].host_s = 1e300;
    assert_eq!(
        simulate(&endless, &setup).unwrap_err().to_string(),
        "an update would take 1.0e300 seconds with this profile; look for a speed, a link or a time in it that is \
         zero, infinite or mistyped"
    );
    for jitter in [-0.1, 1.0, f64::NAN] {
        assert!(matches!(rejected(&Setup { jitter, ..setup.clone() }), SimulateError::BadSetup { .. }));
    }
    let away = |rank| Absence { rank, at_update: 5, back_at_update: None };
    let alone = Setup { absences: vec![away(0), away(1)], ..setup.clone() };
    assert_eq!(rejected(&alone), SimulateError::NoRankLeft { update: 5 });
    let no_rank = rejected(&Setup { absences: vec![away(7)], ..setup.clone() }).to_string();
    assert_eq!(no_rank, "cannot remove rank 7: the profile has ranks 0 to 1");
    for (rank, device, to_update, factor) in [
        (2, None, 5, 2.0),
        (0, Some(1), 5, 2.0),
        (0, None, 1, 2.0),
        (0, None, 5, 0.0),
        (0, None, 5, 1e300),
        (0, None, 5, f64::NAN),
    ] {
        let disturbances = vec![Disturbance { rank, device, from_update: 2, to_update, factor }];
        rejected(&Setup { disturbances, ..setup.clone() });
    }
}

#[test]
fn ten_thousand_ranks_are_simulated_in_seconds() {
    let speeds: Vec<u64> = (0..10_000).map(|rank| 1000 + 1000 * (rank % 8)).collect();
    let mut profile = group(&speeds);
    profile.exchange_bytes = 440_000_000;
    for rank in &mut profile.ranks {
        rank.link = LinkProfile { bytes_per_s: 1.25e9, latency_s: 0.0001 };
    }
    let setup = Setup { jitter: 0.05, ..Setup::uniform(200_000, TOKENS, 100) };
    let started = Instant::now();
    let result = run(&profile, &setup);
    assert_eq!(result.samples, 20_000_000);
    // Two orders of magnitude less than a quadratic step would take, and far more than a busy
    // machine adds.
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn splitting_by_speed_is_never_slower_than_evenly(
        speeds in prop::collection::vec(500u64..20_000, 1..9),
        samples in 64usize..400,
        jitter in 0.0f64..0.1,
        seed in 0u64..100,
    ) {
        let profile = group(&speeds);
        let setup = Setup { jitter, seed, ..Setup::uniform(samples, TOKENS, 25) };
        let measured = run(&profile, &setup);
        let equal = run(&profile, &Setup { split: SplitMode::Equal, ..setup });
        prop_assert_eq!(measured.samples, equal.samples);
        // Noise can mislead by its own size, and a whole sample may be too much.
        let sample_s = 1e-6 * *speeds.iter().max().unwrap() as f64;
        let most = equal.seconds * (1.0 + 2.0 * jitter) / (1.0 - jitter) + 25.0 * sample_s;
        prop_assert!(measured.seconds <= most, "{} s, evenly {} s", measured.seconds, equal.seconds);
        prop_assert!(measured.efficiency <= (1.0 + 1e-3) / (1.0 - jitter), "{}", measured.efficiency);
    }
    #[test]
    fn in_the_long_run_updates_take_the_predicted_time(
        ranks in prop::collection::vec((500u64..9000, 1e7f64..1e9, 0.0f64..0.02), 1..7),
    ) {
        let mut profile = group(&ranks.iter().map(|rank| rank.0).collect::<Vec<u64>>());
        profile.exchange_bytes = 2_000_000;
        for (rank, &(_, bytes_per_s, host_s)) in profile.ranks.iter_mut().zip(&ranks) {
            rank.link = LinkProfile { bytes_per_s, latency_s: 0.0001 };
            rank.host_s = host_s;
        }
        let result = run(&profile, &Setup::uniform(100, TOKENS, 60));
        let taken: f64 = result.update_s[30..].iter().sum();
        let predicted: f64 = result.predicted_s[30..].iter().sum();
        prop_assert!((taken / predicted - 1.0).abs() < 0.01, "{} s, predicted {} s", taken, predicted);
    }
}
