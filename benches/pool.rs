//! What the host's pool costs: a block that it had already, also beside many others.
//!
//! Blocks come and go as storages take them, without arrays. Beside the times it prints how many pages the system gave.
//! The size mix of a recorded trace, beside other allocators, is that of `benches/compare` (`--bin pool`), which runs
//! each of them in a process of its own.
//!
//! ```text
//! cargo bench --bench pool
//! ```

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ndgc::Device;
use ndgc::bench::DevicePool;

/// Pages that the system gave this process so far.
fn pages() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    text.split(' ').nth(9).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// A block of a size that the pool has had: alone, and beside so many others.
fn hits(c: &mut Criterion) {
    let mut group = c.benchmark_group("pool/hit");
    for bytes in [64, 4 << 10, 64 << 10, 1 << 20] {
        for beside in [0, 100, 10_000, 100_000] {
            // Addresses for 6 GiB; who writes to none of them has none resident.
            if bytes == 1 << 20 && beside > 10_000 {
                continue;
            }
            let mut pool = DevicePool::new(&Device::Cpu);
            (0..=beside).for_each(|_| pool.fill(bytes));
            // A block from the middle, so that it has neighbours.
            let at = beside / 2;
            (0..1000).for_each(|_| pool.replace(at, bytes));
            let before = pages();
            (0..10_000).for_each(|_| pool.replace(at, black_box(bytes)));
            println!("{bytes} bytes beside {beside}: {:.4} pages a block", (pages() - before) as f64 / 10_000.);
            group.bench_function(BenchmarkId::new(format!("{bytes}"), beside), |b| {
                b.iter(|| pool.replace(at, black_box(bytes)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, hits);
criterion_main!(benches);
