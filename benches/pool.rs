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

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use ndgc::Device;
use ndgc::bench::DevicePool;

/// Pages that the system gave this process so far.
fn pages() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    text.split(' ').nth(9).and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Gives a block back and takes it again, beside so many others `of` a size, half of them on each side of it.
fn hit(group: &mut BenchmarkGroup<'_, WallTime>, bytes: usize, (beside, of): (usize, usize), id: BenchmarkId) {
    let mut pool = DevicePool::new(&Device::Cpu);
    let at = beside / 2;
    (0..at).for_each(|_| pool.fill(of));
    pool.fill(bytes);
    (at..beside).for_each(|_| pool.fill(of));
    (0..1000).for_each(|_| pool.replace(at, bytes));
    let before = pages();
    (0..10_000).for_each(|_| pool.replace(at, black_box(bytes)));
    println!("{bytes} bytes beside {beside} of {of}: {:.4} pages a block", (pages() - before) as f64 / 10_000.);
    group.bench_function(id, |b| b.iter(|| pool.replace(at, black_box(bytes))));
}

/// A block of a size that the pool has had: alone, and beside so many others of that size. A hundred thousand of 1 MiB
/// would be 100 GiB, which not every system hands out, so one of 1 MiB has them of 64 KiB beside it: all blocks above
/// 32 KiB are in the same ranges and lists, and it is their number that could make a search longer.
fn hits(c: &mut Criterion) {
    let mut group = c.benchmark_group("pool/hit");
    for bytes in [64, 4 << 10, 64 << 10, 1 << 20] {
        for beside in [0, 100, 10_000, 100_000] {
            // Addresses for 10 GiB; who writes to none of them has none resident.
            if bytes == 1 << 20 && beside > 10_000 {
                continue;
            }
            hit(&mut group, bytes, (beside, bytes), BenchmarkId::new(format!("{bytes}"), beside));
        }
    }
    for beside in [100, 10_000, 100_000] {
        hit(&mut group, 1 << 20, (beside, 64 << 10), BenchmarkId::new("1048576 beside 65536", beside));
    }
    group.finish();
}

criterion_group!(benches, hits);
criterion_main!(benches);
