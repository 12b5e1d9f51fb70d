//! Each sample to exactly one device, no micro-batch over its caps, and nobody much later than the ideal.

use std::ops::Range;

use hetseq_balance::BalanceError;
use hetseq_balance::share::{DeviceLoad, Share, share};
use proptest::prelude::*;

fn device(speed: f64) -> DeviceLoad {
    DeviceLoad { speed, overhead_s: 0.0, max_tokens: None, max_samples: None }
}

fn counts(shares: &[Share]) -> Vec<usize> {
    shares.iter().map(|share| share.samples().len()).collect()
}

fn tokens(costs: &[u32], samples: Range<usize>) -> f64 {
    costs[samples].iter().map(|&cost| f64::from(cost.max(1))).sum()
}

fn finish_s(load: &DeviceLoad, tokens: f64) -> f64 {
    if tokens == 0.0 { 0.0 } else { load.overhead_s + tokens / load.speed }
}

fn last_finish_s(costs: &[u32], devices: &[DeviceLoad], shares: &[Share]) -> f64 {
    let finish = |(load, share): (&DeviceLoad, &Share)| finish_s(load, tokens(costs, share.samples()));
    devices.iter().zip(shares).map(finish).fold(0.0, f64::max)
}

/// The water level by bisection, as slow and plain as can be.
fn ideal_s(total: f64, devices: &[DeviceLoad]) -> f64 {
    let done_by = |time: f64| devices.iter().map(|d| ((time - d.overhead_s) * d.speed).max(0.0)).sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0);
    while done_by(high) < total {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if done_by(middle) < total { low = middle } else { high = middle }
    }
    high
}

/// Panics unless the shares cover all samples once and keep the caps.
fn check(costs: &[u32], devices: &[DeviceLoad], shares: &[Share]) {
    assert_eq!(shares.len(), devices.len());
    let mut all: Vec<Range<usize>> = Vec::new();
    for (load, share) in devices.iter().zip(shares) {
        for (i, micro) in share.micro.iter().enumerate() {
            assert!(!micro.is_empty());
            assert!(i == 0 || share.micro[i - 1].end == micro.start, "micro-batches are contiguous");
            let longest = costs[micro.clone()].iter().map(|&c| u64::from(c.max(1))).max().unwrap();
            assert!(longest * micro.len() as u64 <= load.max_tokens.map_or(u64::MAX, u64::from));
            assert!(micro.len() <= load.max_samples.map_or(usize::MAX, |n| n as usize));
            all.push(micro.clone());
        }
    }
    all.sort_by_key(|micro| micro.start);
    let mut next = 0;
    for micro in all {
        assert_eq!(micro.start, next, "each sample is in one micro-batch");
        next = micro.end;
    }
    assert_eq!(next, costs.len());
}

fn any_costs() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![
        (0usize..400, 0u32..500).prop_map(|(n, cost)| vec![cost; n]),
        prop::collection::vec(0u32..500, 0..400).prop_map(|mut costs| {
            costs.sort_unstable();
            costs
        }),
    ]
}

fn any_device() -> impl Strategy<Value = DeviceLoad> {
    (0.1f64..100.0, prop_oneof![Just(0.0), 0.0f64..500.0], prop::option::of(500u32..3000), prop::option::of(1u32..40))
        .prop_map(|(speed, overhead_s, max_tokens, max_samples)| DeviceLoad {
            speed,
            overhead_s,
            max_tokens,
            max_samples,
        })
}

proptest! {
    #[test]
    fn shares_cover_the_update_in_order_and_finish_within_a_sample_of_the_ideal(
        costs in any_costs(), devices in prop::collection::vec(any_device(), 1..30),
    ) {
        let shares = share(&costs, &devices).unwrap();
        check(&costs, &devices, &shares);

        // No cap is below a sample here, so the shares follow the order of the devices.
        let mut next = 0;
        for share in shares.iter().filter(|share| !share.is_empty()) {
            prop_assert_eq!(share.samples().start, next);
            next = share.samples().end;
        }

        if !costs.is_empty() {
            let total = tokens(&costs, 0..costs.len());
            let slowest = devices.iter().map(|d| d.speed).fold(f64::MAX, f64::min);
            // Whole samples instead of tokens, and a cut at the nearest sample: one average and one longest sample.
            let sample = total / costs.len() as f64 + f64::from(costs[costs.len() - 1]);
            let ideal = ideal_s(total, &devices);
            let last = last_finish_s(&costs, &devices, &shares);
            prop_assert!(last <= ideal * 1.000001 + sample / slowest, "{last} s, ideally {ideal} s");
        }
    }

    #[test]
    fn equal_samples_finish_as_early_as_whole_samples_can(
        n in 1usize..200, cost in 1u32..300, devices in prop::collection::vec(any_device(), 1..12),
    ) {
        let costs = vec![cost; n];
        let devices: Vec<_> = devices.into_iter().map(|d| DeviceLoad { max_tokens: None, ..d }).collect();
        let shares = share(&costs, &devices).unwrap();
        // Each sample in turn to whoever would finish it first is known to be optimal.
        let mut best = vec![0usize; devices.len()];
        for _ in 0..n {
            let finish = |i: usize| finish_s(&devices[i], (best[i] + 1) as f64 * f64::from(cost));
            let first = (0..devices.len()).min_by(|&a, &b| finish(a).total_cmp(&finish(b))).unwrap();
            best[first] += 1;
        }
        let finish = |i: usize| finish_s(&devices[i], best[i] as f64 * f64::from(cost));
        let optimum = (0..devices.len()).map(finish).fold(0.0, f64::max);
        let last = last_finish_s(&costs, &devices, &shares);
        prop_assert!(last <= optimum * 1.000001, "{last} s, optimally {optimum} s");
    }

    #[test]
    fn equal_devices_get_equal_shares(n in 0usize..5000, count in 1usize..200, speed in 1e-3f64..1e6, cost in 1u32..999) {
        let got = counts(&share(&vec![cost; n], &vec![device(speed); count]).unwrap());
        prop_assert!(got.iter().all(|&c| c == n / count || c == n.div_ceil(count)), "{got:?}");
    }

    #[test]
    fn samples_go_only_where_they_fit(
        mut costs in prop::collection::vec(1u32..500, 1..300),
        mut devices in prop::collection::vec(any_device(), 1..20),
        caps in prop::collection::vec(0u32..500, 20),
        is_sorted in prop::bool::weighted(0.8),
    ) {
        if is_sorted {
            costs.sort_unstable();
        }
        for (device, cap) in devices.iter_mut().zip(caps) {
            device.max_tokens = Some(cap);
        }
        let longest = *costs.iter().max().unwrap();
        let largest_cap = devices.iter().filter_map(|d| d.max_tokens).max().unwrap();
        match share(&costs, &devices) {
            Ok(shares) => check(&costs, &devices, &shares),
            Err(BalanceError::SampleTooLong { sample_tokens, largest_cap_tokens }) => {
                prop_assert!(longest > largest_cap);
                prop_assert_eq!((sample_tokens, largest_cap_tokens), (longest, largest_cap));
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn limited_devices_are_still_balanced(
        mut costs in prop::collection::vec(1u32..500, 1..300),
        loads in prop::collection::vec((0.1f64..100.0, 1u32..500), 1..8),
    ) {
        costs.sort_unstable();
        let mut devices: Vec<_> =
            loads.into_iter().map(|(speed, cap)| DeviceLoad { max_tokens: Some(cap), ..device(speed) }).collect();
        devices.push(device(5.0));
        let shares = share(&costs, &devices).unwrap();
        check(&costs, &devices, &shares);
        // No split can beat the ideal of any suffix of the samples on the devices that can take it.
        let ideal = (0..costs.len()).map(|from| {
            let able: Vec<_> = devices.iter().copied().filter(|d| d.max_tokens.is_none_or(|cap| cap >= costs[from])).collect();
            ideal_s(tokens(&costs, from..costs.len()), &able)
        }).fold(0.0, f64::max);
        let slowest = devices.iter().map(|d| d.speed).fold(f64::MAX, f64::min);
        let last = last_finish_s(&costs, &devices, &shares);
        let sample = 2.0 * f64::from(costs[costs.len() - 1]);
        prop_assert!(last <= ideal * 1.000001 + sample / slowest, "{last} s, ideally {ideal} s");
    }

    #[test]
    fn strange_numbers_do_no_harm(
        costs in prop::collection::vec(any::<u32>(), 0..50),
        loads in prop::collection::vec((any::<f64>(), any::<f64>(), any::<Option<u32>>(), any::<Option<u32>>()), 0..20),
    ) {
        let devices: Vec<_> = loads.into_iter()
            .map(|(speed, overhead_s, max_tokens, max_samples)| DeviceLoad { speed, overhead_s, max_tokens, max_samples })
            .collect();
        if let Ok(shares) = share(&costs, &devices) {
            check(&costs, &devices, &shares);
        }
    }
}

#[test]
fn shares_follow_the_speeds() {
    let devices = [device(4.0), device(2.0), device(1.0)];
    assert_eq!(counts(&share(&[128; 70], &devices).unwrap()), [40, 20, 10]);
    // One sample: the fastest does it; the others may rest.
    assert_eq!(counts(&share(&[128], &devices).unwrap()), [1, 0, 0]);
}

#[test]
fn a_device_that_takes_long_to_begin_is_left_out_of_a_short_update() {
    let slow_start = DeviceLoad { overhead_s: 10.0, ..device(100.0) };
    assert_eq!(counts(&share(&[1; 100], &[device(100.0), slow_start]).unwrap()), [100, 0]);
    assert_eq!(counts(&share(&[1; 3000], &[device(100.0), slow_start]).unwrap()), [2000, 1000]);
}

#[test]
fn micro_batches_are_few_and_even() {
    let capped = |max_tokens, max_samples| [DeviceLoad { max_tokens, max_samples, ..device(1.0) }];
    let sizes = |costs: &[u32], devices: &[DeviceLoad]| -> Vec<usize> {
        share(costs, devices).unwrap()[0].micro.iter().map(Range::len).collect()
    };
    assert_eq!(sizes(&[1; 33], &capped(None, Some(32))), [17, 16]);
    assert_eq!(sizes(&[128; 100], &capped(Some(4096), None)), [25, 25, 25, 25]);
    assert_eq!(sizes(&[128; 10], &capped(Some(128), Some(4))), [1; 10]);
    // Filling up to 500 tokens would leave 5 of 40 samples, 200 tokens, for the last micro-batch.
    let mixed: Vec<u32> = (1..=40).collect();
    let shares = share(&mixed, &capped(Some(500), None)).unwrap();
    let padded: Vec<usize> = shares[0].micro.iter().map(|m| m.len() * mixed[m.end - 1] as usize).collect();
    assert_eq!(padded.len(), 3);
    assert!(padded.iter().max().unwrap() - padded.iter().min().unwrap() < 100, "{padded:?}");
}

#[test]
fn long_samples_go_to_the_device_that_can_take_them() {
    // The small device is by far the faster one, but cannot take the last two.
    let costs = [10, 10, 10, 10, 10, 10, 300, 400];
    let small = DeviceLoad { max_tokens: Some(100), ..device(50.0) };
    let shares = share(&costs, &[device(1.0), small]).unwrap();
    assert_eq!((shares[0].samples(), shares[1].samples()), (6..8, 0..6));
    assert_eq!(shares[1].micro.len(), 1);
}

#[test]
fn errors_say_what_to_raise() {
    let small = DeviceLoad { max_tokens: Some(100), ..device(1.0) };
    let error = share(&[10, 4000], &[small, DeviceLoad { max_tokens: Some(512), ..small }]).unwrap_err().to_string();
    assert!(error.contains("4000 tokens") && error.contains("512 tokens") && error.contains("max_tokens"), "{error}");

    for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = share(&[10], &[device(speed); 3]).unwrap_err();
        assert!(matches!(error, BalanceError::NoUsableDevice { devices: 3 }), "{error}");
        let shares = share(&[10; 8], &[device(speed), device(1.0)]).unwrap();
        assert_eq!(counts(&shares), [0, 8]);
    }
    assert!(share(&[10], &[]).is_err());
    assert_eq!(share(&[], &[device(0.0)]).unwrap(), [Share::default()]);
}
