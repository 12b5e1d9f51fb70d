//! A table passes through its measured points, never decreases, and accepts any input.

use hetseq_balance::{BalanceError, CostPoint, CostTable};
use proptest::prelude::*;

fn point(samples: u32, tokens: u32, micros: u64) -> CostPoint {
    CostPoint { samples, tokens, micros, bytes: 0 }
}

fn table(points: &[(u32, u32, u64)]) -> CostTable {
    CostTable::new(points.iter().map(|&(samples, tokens, micros)| point(samples, tokens, micros)).collect()).unwrap()
}

fn any_points() -> impl Strategy<Value = Vec<CostPoint>> {
    let point = (1u32..100, 1u32..600, 0u64..1_000_000, 0u64..1 << 36);
    prop::collection::vec(
        point.prop_map(|(samples, tokens, micros, bytes)| CostPoint { samples, tokens, micros, bytes }),
        1..14,
    )
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

proptest! {
    #[test]
    fn more_or_longer_samples_never_cost_less(points in any_points(), samples in 1u32..300, tokens in 1u32..900) {
        let table = CostTable::new(points).unwrap();
        let here = table.seconds(samples, tokens);
        prop_assert!(here > 0.0 && here.is_finite());
        prop_assert!(table.seconds(samples + 1, tokens) >= here * (1.0 - 1e-12));
        prop_assert!(table.bytes(samples + 1, tokens) >= table.bytes(samples, tokens));
        // Outside the measured sizes each length is extrapolated by its own slope.
        let measured = || table.points().iter().map(|p| p.samples);
        if measured().min() <= Some(samples) && Some(samples) <= measured().max() {
            prop_assert!(table.seconds(samples, tokens + 1) >= here * (1.0 - 1e-12));
            prop_assert!(table.bytes(samples, tokens + 1) >= table.bytes(samples, tokens));
        }
    }

    /// Measured points that ascend are not changed.
    #[test]
    fn a_table_passes_through_its_points(
        at in prop::collection::btree_set((1u32..60, 1u32..300), 1..14),
        fixed in 0u64..5000, per_sample in 0u64..500, per_token in 1u64..50, noise in prop::collection::vec(0u64..20, 14),
    ) {
        let micros = |&(samples, tokens): &(u32, u32)| {
            fixed + per_sample * u64::from(samples) + per_token * u64::from(samples * tokens)
        };
        // An ascending function, and noise that keeps it ascending.
        let mut points: Vec<CostPoint> = at.iter().map(|at| point(at.0, at.1, micros(at) * 100)).collect();
        points.sort_by_key(|p| p.micros);
        for (i, p) in points.iter_mut().enumerate() {
            p.micros += noise[..=i].iter().sum::<u64>();
        }
        let table = CostTable::new(points.clone()).unwrap();
        for p in points {
            let seconds = table.seconds(p.samples, p.tokens);
            prop_assert!(near(seconds, p.micros as f64 * 1e-6), "{p:?} is {seconds} in {table:?}");
        }
    }

    #[test]
    fn linear_growth_needs_few_points(
        fixed in 1u64..5000, per_token in 1u64..50, samples in 1u32..60, tokens in 8u32..512,
    ) {
        let micros = |samples: u32, tokens: u32| fixed + per_token * u64::from(samples * tokens);
        let corners = [(1, 8), (60, 8), (1, 512), (60, 512)].map(|(samples, tokens)| (samples, tokens, micros(samples, tokens)));
        let expected = micros(samples, tokens) as f64 * 1e-6;
        let got = table(&corners).seconds(samples, tokens);
        prop_assert!(near(got, expected), "{got} instead of {expected}");
    }

    #[test]
    fn time_per_sample_never_falls_beyond_the_points(points in any_points(), more in 1u32..1000, tokens in 1u32..900) {
        let table = CostTable::new(points).unwrap();
        let largest = table.points().iter().map(|p| p.samples).max().unwrap();
        let each = |samples: u32| table.seconds(samples, tokens) / f64::from(samples);
        prop_assert!(each(largest + more) >= each(largest) * (1.0 - 1e-9));
    }

    #[test]
    fn invalid_numbers_do_no_harm(
        points in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>()), 0..10),
        samples in any::<u32>(), tokens in any::<u32>(), limit in any::<u64>(), speed in any::<f64>(),
    ) {
        let of = |(samples, tokens, micros, bytes)| CostPoint { samples, tokens, micros, bytes };
        let measured = CostTable::new(points.into_iter().map(of).collect());
        for table in measured.into_iter().chain([CostTable::proportional(speed)]) {
            let seconds = table.seconds(samples, tokens);
            prop_assert!(seconds >= 0.0 && seconds.is_finite(), "{seconds}");
            prop_assert!(table.best_samples(tokens) >= 1);
            let most = table.largest_samples(tokens, limit);
            prop_assert!(most == 0 || table.bytes(most, tokens) <= limit);
            prop_assert!(most == u32::MAX || table.bytes(most + 1, tokens) > limit);
        }
    }

    #[test]
    fn a_table_survives_a_round_trip(points in any_points(), speed in 1e-3f64..1e9) {
        for table in [CostTable::new(points).unwrap(), CostTable::proportional(speed)] {
            let json = serde_json::to_string(&table).unwrap();
            prop_assert_eq!(&serde_json::from_str::<CostTable>(&json).unwrap(), &table);
            let bytes = postcard::to_stdvec(&table).unwrap();
            prop_assert_eq!(&postcard::from_bytes::<CostTable>(&bytes).unwrap(), &table);
        }
    }
}

#[test]
fn between_and_beyond_the_points() {
    let table = table(&[(1, 100, 10_000), (8, 100, 24_000), (16, 100, 40_000), (1, 200, 16_000), (8, 200, 40_000)]);
    let near = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-12, "{got} instead of {expected}");
    near(table.seconds(4, 100), 0.016);
    near(table.seconds(12, 100), 0.032);
    near(table.seconds(8, 150), 0.032);
    // By the last slope, 2 ms a sample, 32 samples would take 72 ms; but 16 took 2.5 ms each.
    near(table.seconds(32, 100), 0.080);
    // Extrapolated to half the length: 4 ms at zero tokens plus 6 ms per 100 tokens for one sample,
    // and 8 ms plus 16 ms for eight.
    near(table.seconds(1, 50), 0.007);
    near(table.seconds(8, 50), 0.016);
    near(table.seconds(8, 400), 0.080);
    assert_eq!(table.seconds(0, 100), 0.0);
}

#[test]
fn the_faster_of_two_measurements_counts() {
    let table = table(&[(4, 64, 900), (4, 64, 700), (4, 64, 800)]);
    assert_eq!(table.points(), [point(4, 64, 700)]);
}

#[test]
fn the_best_number_of_samples_is_the_smallest_that_is_nearly_as_good() {
    // Per sample: 10, 6, 4.04, 4.0 ms, then worse.
    let one_length =
        table(&[(1, 128, 10_000), (4, 128, 24_000), (16, 128, 64_640), (32, 128, 128_000), (64, 128, 300_000)]);
    assert_eq!(one_length.best_samples(128), 16);
    assert_eq!(CostTable::proportional(5.0).best_samples(128), 1);
    // Long samples were measured at most four at a time, probably because of memory.
    let two_lengths = table(&[(1, 128, 5_000), (64, 128, 64_000), (1, 512, 20_000), (4, 512, 60_000)]);
    assert_eq!([128, 256, 512, 1024].map(|tokens| two_lengths.best_samples(tokens)), [64, 16, 4, 2]);
}

#[test]
fn memory_is_overestimated() {
    let gib = 1 << 30;
    let point =
        |samples, tokens, gibs| CostPoint { samples, tokens, micros: 1000 * u64::from(samples), bytes: gibs * gib };
    let table = CostTable::new(vec![point(8, 128, 3), point(16, 128, 4), point(8, 256, 4)]).unwrap();
    assert_eq!(table.bytes(8, 128), 3 * gib);
    assert_eq!(table.bytes(1, 16), 3 * gib);
    // 1 GiB per 8 samples, and an eighth more for each 8 beyond the measured sizes.
    assert_eq!(table.bytes(32, 128), 4 * gib + 2 * gib + gib / 4);
    assert_eq!(table.largest_samples(128, 4 * gib), 16);
    assert_eq!(table.largest_samples(128, gib), 0);
    let unknown = CostTable::new(vec![CostPoint { bytes: 0, ..point(8, 128, 0) }]).unwrap();
    assert_eq!((unknown.bytes(8, 128), unknown.largest_samples(128, 1)), (0, u32::MAX));
}

#[test]
fn invalid_tables_are_rejected() {
    assert_eq!(CostTable::new(Vec::new()), Err(BalanceError::EmptyTable));
    assert!(matches!(CostTable::new(vec![point(0, 1, 1)]), Err(BalanceError::EmptyPoint { .. })));
    for json in ["[]", "-3", "0", "\"fast\"", r#"[{"samples":1,"tokens":0,"micros":1}]"#] {
        let error = serde_json::from_str::<CostTable>(json).unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
    }
    assert_eq!(serde_json::from_str::<CostTable>("20000").unwrap(), CostTable::proportional(20_000.0));
}
