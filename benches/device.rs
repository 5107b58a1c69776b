//! What the layer above a device's driver costs: a block taken from the pool and given back, among 100 to 100,000 others.
//!
//! The driver below does nothing, so what is measured is the pool with its locks: two calls, each of which takes the
//! device's lock. Blocks go in an order that neither repeats soon nor is foreseen by the prefetcher, and their sizes
//! are those of a training step: from a scalar to a batch.
//!
//! ```text
//! cargo bench --bench device
//! ```

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ndgc::bench::IdlePool;

/// Sizes of blocks, in bytes.
const SIZES: [usize; 8] = [4, 40, 512, 1200, 4000, 12_288, 40_000, 131_072];

fn alloc_and_free(c: &mut Criterion) {
    let mut group = c.benchmark_group("device/alloc_and_free");
    for live in [100, 10_000, 100_000] {
        for (name, sizes) in [("one_size", &SIZES[3..4]), ("mixed", &SIZES[..])] {
            let mut pool = IdlePool::new();
            (0..live).for_each(|i| pool.fill(sizes[i % sizes.len()]));
            let mut at = 0;
            group.bench_function(BenchmarkId::new(name, live), |b| {
                b.iter(|| {
                    at = (at * 5 + 7_919) % live;
                    pool.replace(at, sizes[at % sizes.len()]);
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, alloc_and_free);
criterion_main!(benches);
