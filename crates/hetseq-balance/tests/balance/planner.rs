//! Groups simulated update by update: noise is ignored, changes are followed, and no device holds
//! up the others.

use hetseq_balance::{
    BalanceError, CostPoint, CostTable, DeviceProfile, LinkProfile, Plan, Planner, Profile, RankProfile, SplitMode,
    WorkTime, predict, predict_without, without,
};
use hetseq_random::Key;

/// A launch time of 2 ms plus time per token.
fn measured(tokens_per_s: f64) -> CostTable {
    let point = |samples: u32| {
        let micros = 2000.0 + f64::from(samples * 128) / tokens_per_s * 1e6;
        CostPoint { samples, tokens: 128, micros: micros as u64, bytes: 0 }
    };
    CostTable::new([1, 4, 16, 64].map(point).to_vec()).unwrap()
}

fn device(table: CostTable) -> DeviceProfile {
    DeviceProfile { name: String::new(), table, after_s: 0.0, weight: 1.0, max_tokens: None, max_samples: None }
}

fn rank(devices: Vec<DeviceProfile>) -> RankProfile {
    RankProfile { host: String::new(), devices, host_s: 0.0, link: LinkProfile::unlimited(), shard_weight: None }
}

/// One rank for each table.
fn group(tables: impl IntoIterator<Item = CostTable>) -> Profile {
    let ranks = tables.into_iter().map(|table| rank(vec![device(table)])).collect();
    Profile { task: String::new(), parameters: 0, exchange_bytes: 0, ranks }
}

fn counts(plan: &Plan) -> Vec<u64> {
    plan.work.iter().map(|work| work.samples).collect()
}

const UPDATE: [u32; 1000] = [128; 1000];

/// Plans and observes an update of 1,000 samples, with each device slower than its table by
/// `slowness`.
fn step(planner: &mut Planner, slowness: impl Fn(usize) -> f64) -> Plan {
    let plan = planner.share(SplitMode::Measured, &UPDATE).unwrap();
    assert_eq!(plan.work.iter().map(|work| work.samples).sum::<u64>(), 1000, "the global batch does not change");
    let time = |(device, work): (usize, &hetseq_balance::AssignedWork)| WorkTime {
        base_s: work.base_s,
        micros: (work.base_s * slowness(device) * 1e6) as u64,
        after_micros: 0,
    };
    planner.observe(&plan.work.iter().enumerate().map(time).collect::<Vec<_>>());
    plan
}

/// The time of the slowest device divided by the time if all finished together.
fn unevenness(plan: &Plan, slowness: impl Fn(usize) -> f64) -> f64 {
    let taken = plan.work.iter().enumerate().map(|(device, work)| work.base_s * slowness(device));
    let working = plan.work.iter().filter(|work| work.samples > 0).count() as f64;
    taken.clone().fold(0.0, f64::max) / (taken.sum::<f64>() / working)
}

#[test]
fn noise_causes_hardly_any_new_plans() {
    for (kind, most) in [("even", 2), ("normal", 20)] {
        for seed in 0..10 {
            let key = Key::root(seed);
            let noise = |update: u32, device: usize| match kind {
                "even" => f64::from(key.index(device as u64).between(update, 0.95, 1.05)),
                _ => 1.0 + 0.05 * f64::from(key.index(device as u64).normal(update.into()).clamp(-4.0, 4.0)),
            };
            let mut planner = Planner::new(&group([4e4, 4e4, 2e4, 1e4, 1e4, 5e3, 5e3, 4e3].map(measured)));
            let replans =
                (0..510).filter(|&update| step(&mut planner, |device| noise(update, device)).replanned.is_some());
            // In the first ten updates, measurements replace the probe.
            let replans = replans.filter(|&update| update >= 10).count();
            assert!(replans <= most, "{replans} new plans in 500 updates with {kind} noise, seed {seed}");
        }
    }
}

#[test]
fn a_device_that_becomes_slow_gets_its_right_share_after_two_measurements_and_back_again() {
    let mut planner = Planner::new(&group([4e4, 4e4, 2e4, 1e4].map(measured)));
    let slow_from_10_to_30 =
        |update: u32| move |device: usize| if device == 1 && (10..30).contains(&update) { 3.3 } else { 1.0 };
    for update in 0..50 {
        let slowness = slow_from_10_to_30(update);
        let plan = step(&mut planner, slowness);
        // It becomes slow in update 10. The times of 10 and 11 are known before 12 is planned.
        let is_surprised = (10..12).contains(&update) || (30..32).contains(&update);
        let uneven = unevenness(&plan, slowness);
        assert_eq!(uneven > 1.03, is_surprised, "update {update}: {uneven}, {:?}", counts(&plan));
        assert_eq!(plan.replanned.is_some(), update == 12 || update == 32, "update {update}");
        if let Some(replanned) = plan.replanned {
            let gain = 1.0 - replanned.after_s / replanned.before_s;
            assert!(replanned.gain > 0.1 && (replanned.gain - gain).abs() < 1e-12);
            assert_eq!(plan.prediction.update_s, replanned.after_s);
        }
    }
}

#[test]
fn plans_made_ahead_follow_changes_too() {
    // Three updates are planned before the first of them is measured.
    let mut planner = Planner::new(&group([4e4, 4e4].map(measured)));
    let mut planned = std::collections::VecDeque::new();
    let mut last = Vec::new();
    for update in 0..40 {
        let plan = planner.share(SplitMode::Measured, &UPDATE).unwrap();
        planned.push_back(plan);
        if planned.len() > 3 {
            let plan = planned.pop_front().unwrap();
            let slowness = |device| if device == 0 && update > 10 { 3.0 } else { 1.0 };
            let time = |(device, work): (usize, &hetseq_balance::AssignedWork)| WorkTime {
                base_s: work.base_s,
                micros: (work.base_s * slowness(device) * 1e6) as u64,
                after_micros: 0,
            };
            planner.observe(&plan.work.iter().enumerate().map(time).collect::<Vec<_>>());
            last = counts(&plan);
        }
    }
    assert!((240..=260).contains(&last[0]), "{last:?}");
}

#[test]
fn unmeasured_speeds_are_learned() {
    let mut planner = Planner::new(&group([1.0, 1.0, 1.0].map(CostTable::proportional)));
    let speeds = [3e4, 2e4, 1e4];
    let shares: Vec<_> = (0..4).map(|_| counts(&step(&mut planner, |device| 1.0 / speeds[device]))).collect();
    // The first update is a warm-up.
    assert_eq!(shares[..2], [[334, 333, 333], [334, 333, 333]]);
    assert!(matches!(shares[2][..], [499..=501, 332..=334, 166..=168]) && shares[3] == shares[2], "{shares:?}");
}

#[test]
fn a_device_without_measurements_counts_as_average() {
    let mut planner = Planner::new(&group([1.0, 1.0, 1.0].map(CostTable::proportional)));
    for _ in 0..3 {
        let time = |speed: f64| WorkTime { base_s: 1000.0, micros: (1000.0 / speed * 1e6) as u64, after_micros: 0 };
        planner.observe(&[time(1000.0), time(3000.0), WorkTime::default()]);
    }
    let factors = planner.factors();
    assert!((factors[2] * 2000.0 - 1.0).abs() < 1e-6, "{factors:?}");
}

#[test]
fn a_device_whose_overhead_is_too_long_is_left_out() {
    let mut profile = group([4e4, 4e4].map(measured));
    profile.ranks[1].host_s = 5.0;
    let plan = Planner::new(&profile).share(SplitMode::Measured, &UPDATE).unwrap();
    assert_eq!((counts(&plan), plan.left_out), (vec![1000, 0], vec![1]));
    profile.ranks[1].host_s = 0.5;
    let plan = Planner::new(&profile).share(SplitMode::Measured, &UPDATE).unwrap();
    assert!(plan.work[1].samples > 300 && plan.left_out.is_empty());
    // Devices without work because of too few samples do not count as left out.
    let plan = Planner::new(&group([4e4; 3].map(measured))).share(SplitMode::Measured, &[128; 2]).unwrap();
    assert!(plan.left_out.is_empty() && counts(&plan).contains(&0));
}

#[test]
fn a_device_without_work_is_rechecked() {
    let mut planner = Planner::new(&group([4e4, 4e4].map(measured)));
    let mut with_work = Vec::new();
    for update in 0..600 {
        // As if it had stopped for a while.
        let plan = step(&mut planner, |device| if device == 1 && update < 250 { 5000.0 } else { 1.0 });
        if plan.work[1].samples > 0 {
            with_work.push((update, plan.work[1].samples));
        } else {
            assert_eq!(plan.left_out, [1]);
        }
    }
    // Two updates until the stop is noticed, a recheck after 100 (still stopped), and one after 200
    // more; then it works as before. A recheck takes two updates: the first is a warm-up.
    let rechecks: Vec<_> = with_work[..6].iter().map(|&(update, _)| update).collect();
    assert_eq!(rechecks, [0, 1, 102, 103, 304, 305]);
    assert!(with_work[2..6].iter().all(|&(_, samples)| samples < 600));
    assert_eq!(with_work.last().map(|last| last.1), Some(500));
    assert_eq!(with_work.len(), 6 + (600 - 306));
}

#[test]
fn splits_by_weight_and_even_splits_ignore_measurements() {
    let mut profile = group([4e4, 1e3, 1e3].map(measured));
    profile.ranks[0].devices[0].weight = 3.0;
    profile.ranks[2].devices[0].weight = 0.0;
    let mut planner = Planner::new(&profile);
    let by_weight = planner.share(SplitMode::Weights, &UPDATE).unwrap();
    assert_eq!(counts(&by_weight), [750, 250, 0]);
    assert!(by_weight.left_out.is_empty() && by_weight.replanned.is_none());
    assert_eq!(counts(&planner.share(SplitMode::Equal, &UPDATE).unwrap()), [334, 333, 333]);
    profile.ranks[0].devices[0].weight = f64::NAN;
    profile.ranks[1].devices[0].weight = -1.0;
    let error = Planner::new(&profile).share(SplitMode::Weights, &UPDATE).unwrap_err();
    assert_eq!(error, BalanceError::NoUsableDevice { devices: 3 });
}

#[test]
fn micro_batches_follow_caps_and_otherwise_the_fastest_size() {
    let largest = |planner: &mut Planner| {
        let plan = planner.share(SplitMode::Measured, &UPDATE).unwrap();
        plan.shares
            .iter()
            .map(|share| share.micro.iter().map(|micro| micro.len()).max().unwrap_or(0))
            .collect::<Vec<_>>()
    };
    let mut profile = group([measured(4e4), CostTable::proportional(4e4)]);
    // 64 samples at a time is the fastest measured size. Without measurements there is no reason to
    // cut.
    let mut planner = Planner::new(&profile);
    assert!(matches!(largest(&mut planner)[..], [50..=64, 400..=600]));
    planner.cap_tokens(0, 1024);
    planner.cap_tokens(0, 4096);
    planner.cap_tokens(7, 1);
    assert_eq!(largest(&mut planner)[0], 8);
    let mut planner = planner.with_default_caps(None, Some(32));
    assert!(matches!(largest(&mut planner)[..], [8, 30..=32]));
    profile.ranks[1].devices[0].max_samples = Some(4);
    assert!(matches!(largest(&mut Planner::new(&profile).with_default_caps(None, Some(32)))[..], [30..=32, 4]));
}

#[test]
fn the_prediction_adds_up() {
    let gib = 1 << 30;
    let mut profile = group([4e4, 2e4, 2e4].map(measured));
    profile.exchange_bytes = gib;
    profile.ranks[0].devices.push(device(measured(1e4)));
    for (rank, gbit) in profile.ranks.iter_mut().zip([100.0, 100.0, 10.0]) {
        rank.link = LinkProfile { bytes_per_s: gbit * 1.25e8, latency_s: 1e-4 };
        rank.host_s = 0.125;
        rank.devices[0].after_s = 0.0625;
    }
    let mut planner = Planner::new(&profile);
    assert_eq!(planner.shard_weights(), [0.5, 0.5, 0.0]);
    assert_eq!((planner.devices(), planner.profile()), (4, profile));
    let prediction = planner.share(SplitMode::Measured, &UPDATE).unwrap().prediction;
    for (rank, link_bytes_per_s) in prediction.ranks.iter().zip([1.25e10, 1.25e10, 1.25e9]) {
        let part = if link_bytes_per_s > 1e10 { 0.5 } else { 0.0 };
        assert!((rank.net_s - (gib as f64 * (1.0 + part) / link_bytes_per_s + 2e-4)).abs() < 1e-9);
        let all_s = rank.compute_s + rank.host_s + rank.net_s + rank.idle_s;
        assert!((all_s - prediction.update_s).abs() < 1e-9);
        // A sample takes a few milliseconds here.
        assert!(rank.idle_s >= 0.0 && rank.idle_s < 0.02, "{prediction:?}");
    }
    let devices = &prediction.devices;
    assert!(
        (prediction.ranks[0].compute_s - devices[0].compute_s.max(devices[1].compute_s - 0.0625) - 0.0625).abs() < 0.02
    );
    assert!((devices[3].idle - (1.0 - (devices[3].compute_s + 0.0625) / prediction.update_s)).abs() < 1e-9);
}

#[test]
fn a_group_is_faster_without_a_rank_with_a_slow_link() {
    let mut profile = group([4e4, 4e4, 4e3].map(measured));
    profile.parameters = 250_000_000;
    for (rank, bytes_per_s) in profile.ranks.iter_mut().zip([1.25e10, 1.25e10, 1.25e8]) {
        rank.link.bytes_per_s = bytes_per_s;
    }
    let with = predict(&profile, SplitMode::Measured, &UPDATE).unwrap();
    let even = predict(&profile, SplitMode::Equal, &UPDATE).unwrap();
    let rest = predict_without(&profile, 2, &UPDATE).unwrap().unwrap();
    // Its gradient alone takes 8 s.
    assert!(with.update_s >= 8.0 && even.update_s > with.update_s);
    assert!(rest.update_s < 2.0 && rest.devices.len() == 2);
    assert!(predict_without(&profile, 0, &UPDATE).unwrap().unwrap().update_s > rest.update_s);
    assert_eq!(predict_without(&profile, 3, &UPDATE), Ok(None));
    assert!(without(&without(&without(&profile, 2).unwrap(), 1).unwrap(), 0).is_none());
    // In a ring all ranks wait for that link.
    let ring = Planner::new(&profile).with_ring().share(SplitMode::Measured, &UPDATE).unwrap().prediction;
    assert!(ring.ranks.iter().all(|rank| rank.net_s > 10.0));
}

#[test]
fn shard_weights_can_be_set_by_hand() {
    let mut profile = group([4e4, 4e4, 4e3].map(measured));
    profile.ranks[0].shard_weight = Some(3.0);
    profile.ranks[2].shard_weight = Some(0.0);
    assert_eq!(Planner::new(&profile).shard_weights(), [0.75, 0.25, 0.0]);
    for weight in [f64::NAN, -1.0, 0.0] {
        profile.ranks.iter_mut().for_each(|rank| rank.shard_weight = Some(weight));
        assert_eq!(Planner::new(&profile).shard_weights(), [1.0 / 3.0; 3]);
    }
}

#[test]
fn a_measured_exchange_limits_the_predicted_one() {
    let link = |bytes_per_s| hetseq_balance::LinkProfile { bytes_per_s, latency_s: 0.0 };
    let planned = |bytes_per_s: f64| {
        let mut profile = group([4e4, 4e4].map(measured));
        profile.exchange_bytes = 100_000_000;
        profile.ranks.iter_mut().for_each(|rank| rank.link = link(bytes_per_s));
        let mut planner = Planner::new(&profile);
        for _ in 0..3 {
            planner.observe_exchange(&[(50_000, 9_000_000), (200_000, 10_000)]);
        }
        let prediction = planner.share(SplitMode::Measured, &UPDATE).unwrap().prediction;
        ([prediction.ranks[0].net_s, prediction.ranks[1].net_s], planner.profile())
    };
    // By the link both need 0.25 s, but the second was measured to take less.
    let (net_s, profile) = planned(4e8);
    assert_eq!(net_s.map(|s| (s * 100.0).round()), [25.0, 21.0]);
    assert_eq!((profile.ranks[0].shard_weight, profile.ranks[1].shard_weight), (None, Some(0.5)));
    let again = Planner::new(&profile).share(SplitMode::Measured, &UPDATE).unwrap().prediction;
    assert!((again.ranks[1].net_s - 0.21).abs() < 1e-9, "a profile contains the latest measurements");
    // Even on a fast link, an exchange takes at least the time in which the rank is busy.
    assert_eq!(planned(1e12).0.map(|s| (s * 100.0).round()), [5.0, 20.0]);
}

#[test]
fn hosts_that_become_slow_are_followed() {
    let mut planner = Planner::new(&group([4e4, 4e4].map(measured)));
    assert_eq!(counts(&step(&mut planner, |_| 1.0)), [500, 500]);
    for _ in 0..3 {
        planner.observe_hosts(&[500_000, 0]);
    }
    // The larger the gain, the sooner it is adopted.
    let replanned: Vec<bool> = (0..14).map(|_| step(&mut planner, |_| 1.0).replanned.is_some()).collect();
    assert!(replanned[..4].contains(&true), "{replanned:?}");
    assert!(step(&mut planner, |_| 1.0).work[0].samples < 440);
}

#[test]
fn empty_groups_and_invalid_numbers_do_no_harm() {
    assert!(Planner::new(&group([])).share(SplitMode::Measured, &UPDATE).is_err());
    let mut profile = group([4e4, 4e4].map(measured));
    assert_eq!(Planner::new(&profile).share(SplitMode::Measured, &[]).unwrap().prediction.update_s, 0.0);
    profile.ranks[0].host_s = f64::NAN;
    profile.ranks[0].devices[0].after_s = -1.0;
    profile.ranks[1].link = LinkProfile { bytes_per_s: 0.0, latency_s: f64::NEG_INFINITY };
    let mut planner = Planner::new(&profile);
    for base_s in [f64::NAN, f64::INFINITY, -1.0, 1e-300, 1e300] {
        planner.observe(&[WorkTime { base_s, micros: u64::MAX, after_micros: u64::MAX }; 5]);
        planner.observe_hosts(&[u64::MAX; 5]);
        let plan = planner.share(SplitMode::Measured, &UPDATE).unwrap();
        assert_eq!(counts(&plan).iter().sum::<u64>(), 1000);
        assert!(plan.prediction.update_s.is_finite());
    }
}

#[test]
fn a_failed_device_gets_nothing_in_any_split() {
    let mut planner = Planner::new(&group([1e5, 2e5, 4e5].map(measured)));
    step(&mut planner, |_| 1.0);
    planner.retire(1);
    for split in [SplitMode::Measured, SplitMode::Equal, SplitMode::Weights] {
        let plan = planner.share(split, &UPDATE).unwrap();
        let counts = counts(&plan);
        assert_eq!((counts[1], counts.iter().sum::<u64>()), (0, 1000), "{split:?}");
        assert!(counts[0] > 0 && counts[2] > 0, "{split:?}: {counts:?}");
        assert!(!plan.left_out.contains(&1), "its failure was reported before");
    }
    // It is never rechecked, and the others stay balanced.
    for _ in 0..300 {
        let plan = step(&mut planner, |device| if device == 0 { 2.0 } else { 1.0 });
        assert_eq!(counts(&plan)[1], 0);
    }
    let plan = step(&mut planner, |device| if device == 0 { 2.0 } else { 1.0 });
    assert!(unevenness(&plan, |device| if device == 0 { 2.0 } else { 1.0 }) < 1.05);
    // The last device stays.
    planner.retire(0);
    planner.retire(2);
    assert_eq!(counts(&planner.share(SplitMode::Measured, &UPDATE).unwrap()), [0, 0, 1000]);
}
