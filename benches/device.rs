//! What the layer above a device's driver costs: a block taken from the pool and given back, among 100 to 100,000
//! others.
//!
//! The driver below does nothing, so what is measured is the pool with its locks: two calls, each of which takes the
//! device's lock. Each step gives back a block drawn at random and takes another one in its place: of the same size
//! (`same`), which is what a training step does again and again, or of a size drawn anew (`other`), where blocks are
//! split and merged. Sizes go from a scalar to a batch. What the pool knows of a block is cold then; what the program
//! knows of it is not.
//!
//! ```text
//! cargo bench --bench device
//! ```

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ndgc::bench::IdlePool;

/// Sizes of blocks, in bytes.
const SIZES: [usize; 8] = [4, 40, 512, 1200, 4000, 12_288, 40_000, 131_072];
/// Steps that are drawn before the measurement: more than the caches hold blocks.
const STEPS: usize = 1 << 18;

/// Numbers below `n`: splitmix64.
fn draws(seed: u64, n: usize) -> impl Iterator<Item = usize> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % n as u64) as usize
    })
}

fn alloc_and_free(c: &mut Criterion) {
    let mut group = c.benchmark_group("device/alloc_and_free");
    for live in [100, 10_000, 100_000] {
        for (name, changes) in [("same", false), ("other", true)] {
            let mut pool = IdlePool::new();
            draws(1, SIZES.len()).take(live).for_each(|size| pool.fill(SIZES[size]));
            let steps: Vec<(u32, u32)> = draws(2, live)
                .zip(draws(3, SIZES.len()))
                .take(STEPS)
                .map(|(at, size)| (at as u32, if changes { SIZES[size] as u32 } else { 0 }))
                .collect();
            let step = |pool: &mut IdlePool, (at, bytes): (u32, u32)| match bytes {
                0 => pool.replace(at as usize),
                bytes => pool.change(at as usize, bytes as usize),
            };
            // Every block has been replaced a few times before the first measurement.
            steps.iter().for_each(|&drawn| step(&mut pool, drawn));
            let mut next = 0;
            group.bench_function(BenchmarkId::new(name, live), |b| {
                b.iter(|| {
                    let now = next;
                    next = (next + 1) % STEPS;
                    pool.look_at(steps[next].0 as usize);
                    step(&mut pool, steps[now]);
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, alloc_and_free);
criterion_main!(benches);
