//! What the host's pool costs: a block that it had already, also beside many others, and the size mix of a recorded
//! trace beside the system's allocator.
//!
//! Blocks come and go as storages take them, without arrays. Beside the times it prints how many pages the system gave,
//! and what the process had resident at most to what was alive. mimalloc and jemalloc need a C compiler, so they stand
//! in `benches/compare` (`--bin pool`), each in a process of its own.
//!
//! ```text
//! cargo bench --bench pool
//! ```

use std::hint::black_box;
use std::mem::MaybeUninit;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ndgc::Device;
use ndgc::bench::DevicePool;

/// Places and bytes, in the order of `tests/traces/size_mix.trace`.
fn size_mix() -> Vec<(usize, usize)> {
    let text = include_str!("../tests/traces/size_mix.trace");
    let number = |word: &str| word.parse().expect("a number");
    let requests = text.lines().filter_map(|line| line.strip_prefix("+ ")?.split_once(' '));
    requests.map(|(place, bytes)| (number(place), number(bytes))).collect()
}

/// Pages that the system gave this process so far, and how many bytes it has resident.
fn pages() -> (u64, u64) {
    let field = |file: &str, nth: usize| -> u64 {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.split(' ').nth(nth).and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    (field("/proc/self/stat", 9), field("/proc/self/statm", 1) * 4096)
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
            let (before, _) = pages();
            (0..10_000).for_each(|_| pool.replace(at, black_box(bytes)));
            println!("{bytes} bytes beside {beside}: {:.4} pages a block", (pages().0 - before) as f64 / 10_000.);
            group.bench_function(BenchmarkId::new(format!("{bytes}"), beside), |b| {
                b.iter(|| pool.replace(at, black_box(bytes)));
            });
        }
    }
    group.finish();
    Device::Cpu.clear_cache();
}

/// What makes and ends blocks in the size mix.
trait Blocks {
    /// Ends what a place has, begins so many bytes there, and writes the first of each of their pages.
    fn replace(&mut self, place: usize, bytes: usize);
}

impl Blocks for DevicePool {
    fn replace(&mut self, place: usize, bytes: usize) {
        DevicePool::replace(self, place, bytes);
        self.touch(place);
    }
}

impl Blocks for Vec<Vec<u8>> {
    fn replace(&mut self, place: usize, bytes: usize) {
        self[place] = Vec::new();
        self[place].reserve_exact(bytes);
        for page in self[place].spare_capacity_mut().chunks_mut(4096) {
            if let Some(first) = page.first_chunk_mut() {
                *first = 1u32.to_ne_bytes().map(MaybeUninit::new);
            }
        }
    }
}

/// Runs the whole mix once. Returns pages that the system gave, and the most bytes resident beyond those before.
fn once(blocks: &mut impl Blocks, mix: &[(usize, usize)], base: u64) -> (u64, u64) {
    let (before, mut most) = (pages().0, 0);
    for part in mix.chunks(20) {
        part.iter().for_each(|&(place, bytes)| blocks.replace(place, bytes));
        most = most.max(pages().1.saturating_sub(base));
    }
    (pages().0 - before, most)
}

fn mixed(c: &mut Criterion, name: &str, mut blocks: impl Blocks) {
    let mix = size_mix();
    let (mut now, mut alive, mut peak) = ([0; 64], 0, 0);
    for &(place, bytes) in &mix {
        alive = alive + bytes - std::mem::replace(&mut now[place], bytes);
        peak = peak.max(alive);
    }
    let base = pages().1;
    for round in ["first", "second"] {
        let (faults, most) = once(&mut blocks, &mix, base);
        let (faults, most) = (faults as f64 / mix.len() as f64, most as f64 / peak as f64);
        println!("size mix, {name}, {round} round: {faults:.2} pages a cycle, resident {most:.2} of what is alive");
    }
    let mut group = c.benchmark_group("pool/size_mix");
    group.throughput(Throughput::Elements(mix.len() as u64)).sample_size(20);
    group.bench_function(name, |b| {
        b.iter(|| mix.iter().for_each(|&(place, bytes)| blocks.replace(place, black_box(bytes))));
    });
    group.finish();
}

fn mixes(c: &mut Criterion) {
    let mut pool = DevicePool::new(&Device::Cpu);
    (0..64).for_each(|_| pool.fill(64));
    mixed(c, "ndgc", pool);
    Device::Cpu.clear_cache();
    mixed(c, "malloc", vec![Vec::new(); 64]);
}

// The mix first: what is resident is that of a fresh process.
criterion_group!(benches, mixes, hits);
criterion_main!(benches);
