//! Benchmark of the host's part of an update: the optimizers and the global norm over 10 M
//! parameters, with 1 and 2 threads.
//!
//!     cargo bench --manifest-path benches/Cargo.toml --bench optim
//!
//! Throughput counts each byte moved once. Adam and Adadelta read four f32 streams and write three.
//! LAMB reads seven and writes three in its two passes. Adafactor reads five and writes one in its
//! three passes. The norm reads one. All should run at memory bandwidth.

#![allow(clippy::expect_used)] // a benchmark whose setup fails should stop

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hetseq_optim::{Layout, Optimizer, OptimizerConfig, OptimizerName, global_norm};

const SIDE: usize = 1024;
const LAYERS: usize = 10;

/// Ten square layers with their biases: 10.5 M parameters.
fn layout() -> Layout {
    let layers =
        (0..LAYERS).flat_map(|i| [(format!("{i}.weight"), vec![SIDE, SIDE]), (format!("{i}.bias"), vec![SIDE])]);
    Layout::new(layers).expect("distinct names")
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 1000) as f32 * 1e-3 - 0.5).collect()
}

fn bench(c: &mut Criterion) {
    let layout = layout();
    let gradients = values(layout.len());
    let stream_bytes = 4 * layout.len() as u64;
    let mut group = c.benchmark_group("10M");
    group.sample_size(20);
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.expect("a thread pool");

        for (name, streams) in [
            (OptimizerName::Adam, 7),
            (OptimizerName::Adadelta, 7),
            (OptimizerName::Lamb, 10),
            (OptimizerName::Adafactor, 6),
        ] {
            group.throughput(Throughput::Bytes(streams * stream_bytes));
            group.bench_function(BenchmarkId::new(name.as_str(), threads), |b| {
                let config = OptimizerConfig { name, weight_decay: 0.01, ..OptimizerConfig::default() };
                let mut optimizer = Optimizer::new(&config, &layout).expect("valid settings");
                let mut parameters = values(layout.len());
                pool.install(|| b.iter(|| optimizer.step(&mut parameters, &gradients, 0.5, 1e-3)));
            });
        }

        group.throughput(Throughput::Bytes(stream_bytes));
        group.bench_function(BenchmarkId::new("norm", threads), |b| {
            pool.install(|| b.iter(|| black_box(global_norm(black_box(&gradients)))));
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
