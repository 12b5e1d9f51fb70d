//! Benchmark of planning an epoch. Every rank does this between two epochs.

use criterion::{Criterion, criterion_group, criterion_main};
use hetseq_data::plan::{EpochPlan, GlobalBatch, PlanSpec, SampleLengths};
use hetseq_random::Key;

fn plan(c: &mut Criterion) {
    let key = Key::root(1);
    let lengths: Vec<u32> = (0..1_000_000).map(|i| 8 + key.below(i, 505) as u32).collect();
    let images = SampleLengths::Uniform { samples: 1_000_000, tokens: 1 };
    let text = SampleLengths::PerSample(lengths);
    let mut group = c.benchmark_group("plan, 1 million samples");
    group.sample_size(10);
    for (name, lengths, batch) in [
        ("images, 256 sequences", &images, GlobalBatch::Sequences(256)),
        ("text, 256 sequences", &text, GlobalBatch::Sequences(256)),
        ("text, 65536 tokens", &text, GlobalBatch::Tokens(65_536)),
    ] {
        let spec = PlanSpec { seed: 1, batch, curriculum_epochs: 0, shuffle: true };
        group.bench_function(name, |b| b.iter(|| EpochPlan::new(lengths, &spec, 3)));
    }
    group.finish();
}

criterion_group!(benches, plan);
criterion_main!(benches);
