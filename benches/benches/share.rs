//! Benchmark of splitting an update among devices. Every rank does this before every update.

use criterion::{Criterion, criterion_group, criterion_main};
use hetseq_balance::CostTable;
use hetseq_balance::share::{DeviceLoad, share};
use hetseq_random::Key;

fn tables(count: u32) -> Vec<CostTable> {
    let key = Key::root(2);
    (0..count).map(|i| CostTable::proportional(f64::from(key.between(i, 1e3, 1e5)))).collect()
}

fn devices(tables: &[CostTable], overhead_s: f32, max_tokens: Option<u32>) -> Vec<DeviceLoad<'_>> {
    let key = Key::root(2);
    let device = |(i, table)| DeviceLoad {
        table,
        factor: 1.0,
        overhead_s: f64::from(key.between(tables.len() as u32 + i, 0.0, overhead_s)),
        max_tokens,
        max_samples: Some(64),
        measured: None,
    };
    (0..).zip(tables).map(device).collect()
}

fn shares(c: &mut Criterion) {
    let key = Key::root(1);
    let uniform = vec![128; 65_536];
    let mut text: Vec<u32> = (0..65_536).map(|i| 8 + key.below(i, 505) as u32).collect();
    text.sort_unstable();
    let (many, few) = (tables(10_000), tables(8));
    let mut few_reach = devices(&many, 0.0, Some(4096));
    for (i, device) in few_reach.iter_mut().enumerate() {
        device.max_tokens = Some(256 + (i as u32 * 7) % 1024);
    }
    let mut group = c.benchmark_group("share, 65,536 samples");
    group.bench_function("uniform, 10,000 devices", |b| {
        let devices = devices(&many, 0.0, None);
        b.iter(|| share(&uniform, &devices))
    });
    group.bench_function("uniform, 10,000 devices, overheads", |b| {
        let devices = devices(&many, 0.001, None);
        b.iter(|| share(&uniform, &devices))
    });
    group.bench_function("text, 10,000 devices, token caps", |b| {
        let devices = devices(&many, 0.0, Some(4096));
        b.iter(|| share(&text, &devices))
    });
    group.bench_function("text, 10,000 devices, caps that not every sample fits", |b| {
        b.iter(|| share(&text, &few_reach))
    });
    group.bench_function("text, 8 devices, token caps", |b| {
        let devices = devices(&few, 0.0, Some(4096));
        b.iter(|| share(&text, &devices))
    });
    group.finish();
}

criterion_group!(benches, shares);
criterion_main!(benches);
