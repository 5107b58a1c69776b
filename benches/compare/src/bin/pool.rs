//! The host's pool of ndgc beside mimalloc, jemalloc and the system's allocator, on the size mix of
//! `tests/traces/size_mix.trace`: a cycle ends a block and begins another one, and writes the first bytes of its pages.
//!
//! ```text
//! cargo run --release --no-default-features --features pool --bin pool -- [ROUNDS]
//! ```
//!
//! Each contender is a process of its own, with a heap as it would have it alone, a new one each round, in rotated order.
//! It runs the mix twice: fresh, and settled. Of each it says the time of a cycle (the median of those of 20 cycles, and
//! the mean, in which rare and slow ones are too), the pages that the system gave in a cycle, and to the bytes that were
//! alive at most those that were resident at most, and that ndgc's pool counted as reserved. These are looked at every 20
//! cycles; the last line has those that the pool reserves of a replay, in which each request is looked at.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::{Command, ExitCode};
use std::ptr;
use std::time::Instant;

use mimalloc::MiMalloc;
use ndgc::Device;
use ndgc::bench::DevicePool;
use ndgc::memory::{HostPool, Recording, ReplayPool};
use tikv_jemallocator::Jemalloc;

const MIX: &str = include_str!("../../../../tests/traces/size_mix.trace");
const PLACES: usize = 64;
const CONTENDERS: [&str; 4] = ["ndgc", "mimalloc", "jemalloc", "system"];
const FIGURES: [&str; 10] =
    ["fresh: ns", "mean", "faults", "resident", "reserved", "settled: ns", "mean", "faults", "resident", "reserved"];
/// Cycles that are timed together.
const CHUNK: usize = 20;
const PAGE: usize = 4096;

/// Places and bytes, in order.
fn mix() -> Vec<(usize, usize)> {
    let number = |word: &str| word.parse().expect("a number");
    let requests = MIX.lines().filter_map(|line| line.strip_prefix("+ ")?.split_once(' '));
    requests.map(|(place, bytes)| (number(place), number(bytes))).collect()
}

/// Ends what a place has, begins so many bytes there, and writes the first of each page.
trait Blocks {
    fn replace(&mut self, place: usize, bytes: usize);

    /// Bytes that it counts as reserved, if it counts.
    fn reserved(&self) -> Option<u64> {
        None
    }
}

impl Blocks for DevicePool {
    fn replace(&mut self, place: usize, bytes: usize) {
        DevicePool::replace(self, place, bytes);
        self.touch(place);
    }

    fn reserved(&self) -> Option<u64> {
        let memory = Device::Cpu.memory();
        Some(memory.used + memory.cached)
    }
}

/// Blocks of an allocator.
struct Heap<A: GlobalAlloc> {
    allocator: A,
    blocks: [(*mut u8, usize); PLACES],
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 64).expect("a size")
}

impl<A: GlobalAlloc> Blocks for Heap<A> {
    fn replace(&mut self, place: usize, bytes: usize) {
        let (block, size) = self.blocks[place];
        if size > 0 {
            // SAFETY: the block is of this allocator, with this layout, and is forgotten below.
            unsafe { self.allocator.dealloc(block, layout(size)) };
        }
        // SAFETY: the mix asks for one byte at least.
        let block = unsafe { self.allocator.alloc(layout(bytes)) };
        assert!(!block.is_null(), "memory");
        self.blocks[place] = (block, bytes);
        for at in (0..bytes - 4).step_by(PAGE) {
            // SAFETY: four bytes inside the block.
            unsafe { ptr::write_volatile(block.add(at).cast::<u32>(), 1) };
        }
    }
}

/// Pages that the system gave this process so far, and bytes that it has resident.
fn pages() -> [u64; 2] {
    let field = |file: &str, nth: usize| -> u64 {
        let text = std::fs::read_to_string(file).expect("a Linux system");
        text.split(' ').nth(nth).and_then(|word| word.parse().ok()).expect("a number")
    };
    [field("/proc/self/stat", 9), field("/proc/self/statm", 1) * PAGE as u64]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The figures of a contender, alone in its process.
fn serve(blocks: &mut dyn Blocks) -> String {
    let mix = mix();
    let (mut now, mut alive, mut peak) = ([0; PLACES], 0, 0);
    for &(place, bytes) in &mix {
        alive = alive + bytes - std::mem::replace(&mut now[place], bytes);
        peak = peak.max(alive);
    }
    let base = pages()[1];
    let mut figures = Vec::new();
    for _ in ["fresh", "settled"] {
        let (before, mut most, mut reserved) = (pages()[0], 0, blocks.reserved());
        let mut times = Vec::with_capacity(mix.len() / CHUNK + 1);
        for part in mix.chunks(CHUNK) {
            let begun = Instant::now();
            part.iter().for_each(|&(place, bytes)| blocks.replace(place, bytes));
            times.push(begun.elapsed().as_nanos() as f64 / part.len() as f64);
            most = most.max(pages()[1].saturating_sub(base));
            reserved = reserved.max(blocks.reserved());
        }
        let faults = (pages()[0] - before) as f64 / mix.len() as f64;
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let [resident, reserved] =
            [Some(most), reserved].map(|bytes| bytes.map_or(f64::NAN, |bytes| bytes as f64 / peak as f64));
        figures.extend([median(times), mean, faults, resident, reserved]);
    }
    figures.iter().map(|figure| format!("{figure} ")).collect()
}

fn worker(name: &str) -> Option<String> {
    fn heap<A: GlobalAlloc>(allocator: A) -> String {
        serve(&mut Heap { allocator, blocks: [(ptr::null_mut(), 0); PLACES] })
    }
    match name {
        "ndgc" => {
            let mut pool = DevicePool::new(&Device::Cpu);
            (0..PLACES).for_each(|_| pool.fill(64));
            Some(serve(&mut pool))
        }
        "mimalloc" => Some(heap(MiMalloc)),
        "jemalloc" => Some(heap(Jemalloc)),
        "system" => Some(heap(System)),
        _ => None,
    }
}

/// The figures of a contender, from a process that is started for them.
fn measured(name: &str) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let output = Command::new(std::env::current_exe()?).arg(name).output()?;
    let text = String::from_utf8(output.stdout)?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

fn compare(rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    let mut found = vec![vec![Vec::new(); FIGURES.len()]; CONTENDERS.len()];
    for round in 0..rounds {
        for turn in 0..CONTENDERS.len() {
            let contender = (round + turn) % CONTENDERS.len();
            for (all, figure) in found[contender].iter_mut().zip(measured(CONTENDERS[contender])?) {
                all.push(figure);
            }
        }
    }
    println!("{:<10}{}", "", FIGURES.map(|name| format!("{name:>12}")).concat());
    for (name, figures) in CONTENDERS.iter().zip(found) {
        let medians: String = figures.into_iter().map(|all| format!("{:>12.2}", median(all))).collect();
        println!("{name:<10}{medians}");
    }
    let done = Recording::read(MIX.as_bytes())?.replay(ReplayPool::Host(HostPool::default()), 2);
    println!("ndgc, replayed: {done}");
    Ok(())
}

fn main() -> ExitCode {
    let word = std::env::args().nth(1);
    if let Some(figures) = word.as_deref().and_then(worker) {
        println!("{figures}");
        return ExitCode::SUCCESS;
    }
    let rounds = word.map_or(Ok(9), |word| word.parse());
    match rounds.map_err(Into::into).and_then(|rounds: usize| compare(rounds.max(1))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
