//! Each sample goes to exactly one device, micro-batches respect the caps, and all finish as early
//! as possible.

use std::ops::Range;

use hetseq_balance::share::{DeviceLoad, Share, share as share_loads};
use hetseq_balance::{BalanceError, CostPoint, CostTable};
use proptest::prelude::*;

/// A device that owns its table.
#[derive(Debug, Clone)]
struct Device {
    table: CostTable,
    factor: f64,
    overhead_s: f64,
    max_tokens: Option<u32>,
    max_samples: Option<u32>,
}

fn device(tokens_per_s: f64) -> Device {
    let table = CostTable::proportional(tokens_per_s);
    Device { table, factor: 1.0, overhead_s: 0.0, max_tokens: None, max_samples: None }
}

impl Device {
    fn load(&self) -> DeviceLoad<'_> {
        let &Device { ref table, factor, overhead_s, max_tokens, max_samples } = self;
        DeviceLoad { table, factor, overhead_s, max_tokens, max_samples, measured: Some(table) }
    }
}

fn share(costs: &[u32], devices: &[Device]) -> Result<Vec<Share>, BalanceError> {
    share_loads(costs, &devices.iter().map(Device::load).collect::<Vec<_>>())
}

fn counts(shares: &[Share]) -> Vec<usize> {
    shares.iter().map(|share| share.samples().len()).collect()
}

fn finish_s(costs: &[u32], device: &Device, share: &Share) -> f64 {
    let micro = |micro: &Range<usize>| {
        let longest = costs[micro.clone()].iter().map(|&cost| cost.max(1)).max().unwrap();
        device.table.seconds(micro.len() as u32, longest)
    };
    if share.is_empty() { 0.0 } else { device.overhead_s + device.factor * share.micro.iter().map(micro).sum::<f64>() }
}

fn last_finish_s(costs: &[u32], devices: &[Device], shares: &[Share]) -> f64 {
    devices.iter().zip(shares).map(|(device, share)| finish_s(costs, device, share)).fold(0.0, f64::max)
}

/// The time of a device that computes all of these samples alone.
fn alone_s(costs: &[u32], device: &Device) -> f64 {
    let device = std::slice::from_ref(device);
    if costs.is_empty() { 0.0 } else { last_finish_s(costs, device, &share(costs, device).unwrap()) }
}

/// The smallest possible last finish time over all cuts of the samples into one range per device,
/// in order.
fn best_s(costs: &[u32], devices: &[Device]) -> f64 {
    // best[n]: the optimum with the devices so far and the first n samples.
    let mut best = vec![f64::INFINITY; costs.len() + 1];
    best[0] = 0.0;
    for device in devices {
        let before = best.clone();
        for end in 0..=costs.len() {
            let with = |start: usize| before[start].max(alone_s(&costs[start..end], device));
            best[end] = (0..=end).map(with).fold(f64::INFINITY, f64::min);
        }
    }
    best[costs.len()]
}

/// Panics unless the shares cover all samples once and respect the caps.
fn check(costs: &[u32], devices: &[Device], shares: &[Share]) {
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

fn any_table() -> impl Strategy<Value = CostTable> {
    let point = (1u32..40, 1u32..500, 1u64..100_000);
    let point = point.prop_map(|(samples, tokens, micros)| CostPoint { samples, tokens, micros, bytes: 0 });
    prop_oneof![
        (10.0f64..10_000.0).prop_map(CostTable::proportional),
        prop::collection::vec(point, 1..8).prop_map(|points| CostTable::new(points).unwrap()),
        // Typical of devices: a launch time, then time per token.
        (1u64..50_000, 1u64..1000).prop_map(|(launch, per_token)| {
            let at = |samples: u32, tokens: u32| CostPoint {
                samples,
                tokens,
                micros: launch.max(per_token * u64::from(samples * tokens)),
                bytes: 0,
            };
            CostTable::new([1, 2, 4, 8, 16].map(|samples| at(samples, 128)).to_vec()).unwrap()
        }),
    ]
}

fn any_device() -> impl Strategy<Value = Device> {
    (
        any_table(),
        0.1f64..10.0,
        prop_oneof![Just(0.0), 0.0f64..3.0],
        prop::option::of(500u32..3000),
        prop::option::of(1u32..40),
    )
        .prop_map(|(table, factor, overhead_s, max_tokens, max_samples)| Device {
            table,
            factor,
            overhead_s,
            max_tokens,
            max_samples,
        })
}

/// A launch time plus time per token, and a little for the square of the length.
fn real_device() -> impl Strategy<Value = Device> {
    let table = (1u64..20_000, 1u64..100, 0u64..30).prop_map(|(launch, per_token, squared)| {
        let at = |(samples, tokens): (u32, u32)| {
            let each = u64::from(tokens) * (per_token * 1000 + squared * u64::from(tokens)) / 1000;
            CostPoint { samples, tokens, micros: launch + each * u64::from(samples), bytes: 0 }
        };
        let sizes = [(1, 32), (4, 32), (16, 32), (64, 32), (1, 128), (4, 128), (16, 128), (1, 512), (4, 512)];
        CostTable::new(sizes.map(at).to_vec()).unwrap()
    });
    (table, any_device()).prop_map(|(table, device)| Device { table, ..device })
}

proptest! {
    #[test]
    fn shares_cover_the_update_in_order(costs in any_costs(), devices in prop::collection::vec(any_device(), 1..30)) {
        let shares = share(&costs, &devices).unwrap();
        check(&costs, &devices, &shares);

        // No cap is below a sample here, so the shares follow the order of the devices.
        let mut next = 0;
        for share in shares.iter().filter(|share| !share.is_empty()) {
            prop_assert_eq!(share.samples().start, next);
            next = share.samples().end;
        }
    }

    #[test]
    fn equal_samples_finish_as_early_as_possible(
        n in 1usize..=12, cost in 1u32..300, devices in prop::collection::vec(any_device(), 1..=4),
    ) {
        let costs = vec![cost; n];
        let last = last_finish_s(&costs, &devices, &share(&costs, &devices).unwrap());
        let best = best_s(&costs, &devices);
        prop_assert!(last <= best * (1.0 + 1e-9), "{last} s, optimum {best} s");
    }

    #[test]
    fn many_equal_samples_finish_as_early_as_with_greedy_assignment(
        n in 1usize..300, cost in 1u32..300, devices in prop::collection::vec(any_device(), 1..12),
    ) {
        let costs = vec![cost; n];
        let shares = share(&costs, &devices).unwrap();
        // Giving each sample in turn to the device that finishes it first is known to be optimal.
        let mut assigned = vec![0usize; devices.len()];
        let finish = |assigned: &[usize], i: usize, more: usize| alone_s(&costs[..assigned[i] + more], &devices[i]);
        for _ in 0..n {
            let order = |&a: &usize, &b: &usize| finish(&assigned, a, 1).total_cmp(&finish(&assigned, b, 1));
            let first = (0..devices.len()).min_by(order).unwrap();
            assigned[first] += 1;
        }
        let optimum = (0..devices.len()).map(|i| finish(&assigned, i, 0)).fold(0.0, f64::max);
        let last = last_finish_s(&costs, &devices, &shares);
        prop_assert!(last <= optimum * (1.0 + 1e-9), "{last} s, optimum {optimum} s");
    }

    #[test]
    fn one_more_sample_never_takes_less(n in 1usize..200, cost in 1u32..300, device in any_device()) {
        let costs = vec![cost; n + 1];
        prop_assert!(alone_s(&costs, &device) >= alone_s(&costs[..n], &device) * (1.0 - 1e-9));
    }

    #[test]
    fn mixed_samples_finish_within_a_sample_of_the_best_cut(
        mut costs in prop::collection::vec(1u32..500, 1..=12), devices in prop::collection::vec(real_device(), 1..=4),
    ) {
        costs.sort_unstable();
        let last = last_finish_s(&costs, &devices, &share(&costs, &devices).unwrap());
        let best = best_s(&costs, &devices);
        // The best cut uses no device that would only start after its end, however fast it is then.
        let used = devices.iter().filter(|device| device.overhead_s < best);
        let one_s = |device: &Device| device.factor * device.table.seconds(1, costs[costs.len() - 1]);
        let sample_s = used.map(one_s).fold(f64::INFINITY, f64::min);
        prop_assert!(last <= best + sample_s && last <= best * 1.25, "{last} s, optimum {best} s");
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
        mut costs in prop::collection::vec(1u32..500, 1..40),
        loads in prop::collection::vec((0.1f64..100.0, 1u32..500), 1..4),
    ) {
        costs.sort_unstable();
        let mut devices: Vec<_> =
            loads.into_iter().map(|(speed, cap)| Device { max_tokens: Some(cap), ..device(speed) }).collect();
        devices.push(device(5.0));
        let shares = share(&costs, &devices).unwrap();
        check(&costs, &devices, &shares);
        // The reference: a device takes no sample above its cap, and devices with less reach come
        // first.
        let mut in_order = devices.clone();
        in_order.sort_by_key(|d| costs.partition_point(|&cost| d.max_tokens.is_none_or(|cap| cost <= cap)));
        let mut best = vec![f64::INFINITY; costs.len() + 1];
        best[0] = 0.0;
        for device in &in_order {
            let before = best.clone();
            let reach = costs.partition_point(|&cost| device.max_tokens.is_none_or(|cap| cost <= cap));
            for end in 0..=reach {
                let with = |start: usize| before[start].max(alone_s(&costs[start..end], device));
                best[end] = (0..=end).map(with).fold(f64::INFINITY, f64::min);
            }
        }
        let best = best[costs.len()];
        let last = last_finish_s(&costs, &devices, &shares);
        // With few samples, one of them may be more than a quarter of the time.
        let longest = costs[costs.len() - 1];
        let takes_it = devices.iter().filter(|device| device.max_tokens.is_none_or(|cap| longest <= cap));
        let sample_s = takes_it.map(|device| alone_s(&[longest], device)).fold(f64::INFINITY, f64::min);
        prop_assert!(last <= (best * 1.25).max(best + sample_s), "{last} s, optimum {best} s");
    }

    #[test]
    fn invalid_numbers_do_no_harm(
        costs in prop::collection::vec(any::<u32>(), 0..50),
        loads in prop::collection::vec((any::<f64>(), any::<f64>(), any::<f64>(), any::<Option<u32>>(), any::<Option<u32>>()), 0..20),
        points in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u64>()), 1..5),
    ) {
        let point = |(samples, tokens, micros)| CostPoint { samples, tokens, micros, bytes: 0 };
        let measured = CostTable::new(points.into_iter().map(point).collect());
        let devices: Vec<_> = loads.into_iter().map(|(speed, factor, overhead_s, max_tokens, max_samples)| {
            let table = match &measured {
                Ok(table) if speed > 0.0 => table.clone(),
                _ => CostTable::proportional(speed),
            };
            Device { table, factor, overhead_s, max_tokens, max_samples }
        }).collect();
        if let Ok(shares) = share(&costs, &devices) {
            check(&costs, &devices, &shares);
        }
    }
}

#[test]
fn shares_follow_the_speeds() {
    let devices = [device(4.0), device(2.0), device(1.0)];
    assert_eq!(counts(&share(&[128; 70], &devices).unwrap()), [40, 20, 10]);
    // The fastest device computes a single sample; the others are idle.
    assert_eq!(counts(&share(&[128], &devices).unwrap()), [1, 0, 0]);
}

#[test]
fn a_device_with_a_long_overhead_is_left_out_of_a_short_update() {
    let slow_start = Device { overhead_s: 10.0, ..device(100.0) };
    assert_eq!(counts(&share(&[1; 100], &[device(100.0), slow_start.clone()]).unwrap()), [100, 0]);
    assert_eq!(counts(&share(&[1; 3000], &[device(100.0), slow_start]).unwrap()), [2000, 1000]);
}

#[test]
fn micro_batches_are_few_and_even() {
    let capped = |max_tokens, max_samples| [Device { max_tokens, max_samples, ..device(1.0) }];
    let sizes = |costs: &[u32], devices: &[Device]| -> Vec<usize> {
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
    let small = Device { max_tokens: Some(100), ..device(50.0) };
    let shares = share(&costs, &[device(1.0), small]).unwrap();
    assert_eq!((shares[0].samples(), shares[1].samples()), (6..8, 0..6));
    assert_eq!(shares[1].micro.len(), 1);
}

#[test]
fn errors_name_the_cap_to_raise() {
    let small = Device { max_tokens: Some(100), ..device(1.0) };
    let error =
        share(&[10, 4000], &[small.clone(), Device { max_tokens: Some(512), ..small }]).unwrap_err().to_string();
    assert!(error.contains("4000 tokens") && error.contains("512 tokens") && error.contains("max_tokens"), "{error}");

    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let unusable = Device { factor, ..device(1.0) };
        let error = share(&[10], &vec![unusable.clone(); 3]).unwrap_err();
        assert!(matches!(error, BalanceError::NoUsableDevice { devices: 3 }), "{error}");
        let shares = share(&[10; 8], &[unusable.clone(), device(1.0)]).unwrap();
        assert_eq!(counts(&shares), [0, 8]);
        assert_eq!(share(&[], &[unusable]).unwrap(), [Share::default()]);
    }
    assert!(share(&[10], &[]).is_err());
}

#[test]
fn very_many_devices_are_busy_almost_until_the_end() {
    let key = hetseq_random::Key::root(5);
    let mut costs: Vec<u32> = (0..15_000).map(|i| 8 + key.below(i, 505) as u32).collect();
    costs.sort_unstable();
    for max_tokens in [None, Some(1024)] {
        let device = |i: u32| {
            let per_token = u64::from(key.index(1).bits(i) % 50 + 5);
            let at = |(samples, tokens): (u32, u32)| CostPoint {
                samples,
                tokens,
                micros: 500 + per_token * u64::from(samples * tokens),
                bytes: 0,
            };
            let table = CostTable::new([(1, 64), (8, 64), (1, 512), (8, 512)].map(at).to_vec()).unwrap();
            // Some devices cannot take the longest samples.
            let max_tokens = max_tokens.map(|cap| if i.is_multiple_of(3) { cap / 4 } else { cap });
            Device { table, factor: 1.0, overhead_s: 0.001, max_tokens, max_samples: None }
        };
        let devices: Vec<Device> = (0..1500).map(device).collect();
        let shares = share(&costs, &devices).unwrap();
        check(&costs, &devices, &shares);
        let finished: Vec<f64> = devices.iter().zip(&shares).map(|(d, share)| finish_s(&costs, d, share)).collect();
        let last = finished.iter().copied().fold(0.0, f64::max);
        let busy = finished.iter().sum::<f64>() / finished.len() as f64 / last;
        assert!(busy > 0.8, "{busy}");
    }
}
