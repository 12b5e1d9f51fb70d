//! How long sharing an update takes: every rank does it before every update.

use criterion::{Criterion, criterion_group, criterion_main};
use hetseq_data::share::{DeviceLoad, share};
use hetseq_random::Key;

fn devices(count: u32, overhead_s: f32, max_tokens: Option<u32>) -> Vec<DeviceLoad> {
    let key = Key::root(2);
    let device = |i| DeviceLoad {
        speed: f64::from(key.between(i, 1e3, 1e5)),
        overhead_s: f64::from(key.between(count + i, 0.0, overhead_s)),
        max_tokens,
        max_samples: Some(64),
    };
    (0..count).map(device).collect()
}

fn shares(c: &mut Criterion) {
    let key = Key::root(1);
    let uniform = vec![128; 65_536];
    let mut text: Vec<u32> = (0..65_536).map(|i| 8 + key.below(i, 505) as u32).collect();
    text.sort_unstable();
    let mut few_reach = devices(10_000, 0.0, Some(4096));
    for (i, device) in few_reach.iter_mut().enumerate() {
        device.max_tokens = Some(256 + (i as u32 * 7) % 1024);
    }
    let mut group = c.benchmark_group("share, 65,536 samples");
    group.bench_function("uniform, 10,000 devices", |b| {
        let devices = devices(10_000, 0.0, None);
        b.iter(|| share(&uniform, &devices))
    });
    group.bench_function("uniform, 10,000 devices, overheads", |b| {
        let devices = devices(10_000, 0.001, None);
        b.iter(|| share(&uniform, &devices))
    });
    group.bench_function("text, 10,000 devices, token caps", |b| {
        let devices = devices(10_000, 0.0, Some(4096));
        b.iter(|| share(&text, &devices))
    });
    group.bench_function("text, 10,000 devices, caps that not every sample fits", |b| {
        b.iter(|| share(&text, &few_reach))
    });
    group.bench_function("text, 8 devices, token caps", |b| {
        let devices = devices(8, 0.0, Some(4096));
        b.iter(|| share(&text, &devices))
    });
    group.finish();
}

criterion_group!(benches, shares);
criterion_main!(benches);
