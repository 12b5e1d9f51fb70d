//! Forecasts of a group before it trains.

use hetseq_balance::{CostPoint, CostTable, DeviceProfile, LinkProfile, Profile, RankProfile, SplitMode};

fn rank(host: &str, sample_micros: u64, link: LinkProfile) -> RankProfile {
    let point = |samples: u32| CostPoint { samples, tokens: 100, micros: sample_micros * u64::from(samples), bytes: 0 };
    let table = CostTable::new([1, 2, 4, 8].map(point).to_vec()).unwrap();
    let device =
        DeviceProfile { name: "cpu:0".into(), table, after_s: 0.0, weight: 1.0, max_tokens: None, max_samples: None };
    RankProfile { host: host.into(), devices: vec![device], host_s: 0.0, link, shard_weight: None }
}

fn group(ranks: Vec<RankProfile>) -> Profile {
    Profile { task: "test".into(), parameters: 1000, exchange_bytes: 10_000_000, ranks }
}

#[test]
fn shares_gain_and_the_effect_of_each_rank() {
    let profile = group(vec![
        rank("fast", 1000, LinkProfile::unlimited()),
        rank("slow", 4000, LinkProfile::unlimited()),
        rank("slow", 4000, LinkProfile::unlimited()),
    ]);
    let forecast = hetseq_balance::forecast(&profile, SplitMode::Measured, &[100; 60]).unwrap();
    assert_eq!(forecast.devices.iter().map(|device| device.samples).collect::<Vec<_>>(), [40, 10, 10]);
    assert!((forecast.update_s - 0.040).abs() < 1e-6 && (forecast.equal_s - 0.080).abs() < 1e-6, "{forecast:?}");
    assert!((forecast.samples_per_s - 1500.0).abs() < 1e-3);
    assert!((forecast.devices.iter().map(|device| device.share).sum::<f64>() - 1.0).abs() < 1e-12);
    // Without the fast one 60 samples take 0.12 s, without a slow one 0.048 s.
    let without: Vec<f64> = forecast.ranks.iter().map(|rank| rank.without.unwrap()).collect();
    assert!((without[0] - 2.0).abs() < 1e-6 && (without[1] - 0.2).abs() < 1e-6, "{without:?}");
}

#[test]
fn a_rank_that_makes_the_group_slower_is_found() {
    let slow_link = LinkProfile { bytes_per_s: 1e7, latency_s: 0.0 };
    let fast_link = LinkProfile { bytes_per_s: 1e10, latency_s: 0.0 };
    let profile =
        group(vec![rank("a", 1000, fast_link), rank("b", 1000, fast_link), rank("far away", 1000, slow_link)]);
    let forecast = hetseq_balance::forecast(&profile, SplitMode::Measured, &[100; 60]).unwrap();
    let without: Vec<f64> = forecast.ranks.iter().map(|rank| rank.without.unwrap()).collect();
    assert!(without[2] < -0.9 && without[0] > -0.3, "{:?}", forecast.ranks);
}

#[test]
fn a_rank_that_cannot_be_removed_has_no_effect_number() {
    let mut profile =
        group(vec![rank("large", 1000, LinkProfile::unlimited()), rank("small", 1000, LinkProfile::unlimited())]);
    profile.ranks[1].devices[0].max_tokens = Some(100);
    let forecast = hetseq_balance::forecast(&profile, SplitMode::Measured, &[200, 100, 100]).unwrap();
    assert_eq!(forecast.ranks[0].without, None);
    assert!(forecast.ranks[1].without.is_some());
    let alone = group(vec![rank("alone", 1000, LinkProfile::unlimited())]);
    assert_eq!(hetseq_balance::forecast(&alone, SplitMode::Measured, &[100; 4]).unwrap().ranks[0].without, None);
}
