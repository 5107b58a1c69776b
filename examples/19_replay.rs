//! A replay: what other pools would have done with the memory of a run.
//!
//! What you learn: `memory::timeline` has each request for bytes and its end; `recording` makes of it a list that can
//! be written, read, and asked of any pool, without the arrays and without the memory: how many bytes the pool would
//! have had of the system at most, how much of that in pieces, and how often it would have asked. Without a file the
//! run is a small training, and its list is left in `target/replay.trace`.
//!
//! With a file, which may also be the log of an allocator of RMM, and pools of your own:
//! `cargo run --release --example 19_replay -- FILE [--rounds N] [POOL]...`, where a pool is `system`, `host`,
//! `host:EIGHTHS:BYTES` (what it keeps beyond the recent peak), `device`, `device:each` or `device:BYTES` (a segment's).
//!
//! ```text
//! $ cargo run --release --example 19_replay
//! a training: … requests, recorded
//! pool               reserved   to live  fragments        hits     misses     of bytes  refused
//! system         … MiB      1.00       0.00           0        … MiB        0
//! host           … MiB … MiB        0
//! host:0:0       … MiB … MiB        0
//! device         … MiB … MiB        0
//! device:each    … MiB … MiB        0
//! device:1m      … MiB … MiB        0
//! ```

use std::fs::{self, File};
use std::io::{BufReader, BufWriter};

use ndgc::memory::{self, HostPool, Recording, ReplayPool, Segments, TraceMode};
use ndgc::nn::{Mlp, Module, Optimizer, SGD};
use ndgc::{Bytes, DType, Device, Generator, Tensor, gc};

const POOLS: [&str; 6] = ["system", "host", "host:0:0", "device", "device:each", "device:1m"];

type Failure = Box<dyn std::error::Error>;

/// Ten steps of a small network, and what they asked for.
fn recorded() -> ndgc::Result<Recording> {
    gc::on();
    memory::set_trace(TraceMode::Full);
    let mut random = Generator::new(7);
    let model = Mlp::new(&[784, 512, 256, 10], &mut random, &Device::Cpu)?;
    let mut descent = SGD::new(model.variables(), 0.1)?;
    for _ in 0..10 {
        let x = random.uniform(0., 1., (256, 784), DType::F32, &Device::Cpu)?;
        let y = Tensor::zeros(256, DType::U32, &Device::Cpu)?;
        let loss = model.forward(&x)?.cross_entropy(&y)?;
        descent.backward_step(&loss)?;
    }
    drop((model, descent));
    gc::collect();
    memory::set_trace(TraceMode::Off);
    Ok(memory::timeline().recording())
}

/// A number of bytes: `4096`, `64k`, `20m`.
fn bytes(text: &str) -> Option<usize> {
    let (digits, scale) = match text.strip_suffix(['k', 'm', 'g']) {
        Some(digits) if text.ends_with('k') => (digits, 10),
        Some(digits) if text.ends_with('m') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << scale)
}

fn pool(text: &str) -> Option<ReplayPool> {
    let parts: Vec<&str> = text.split(':').collect();
    let device = |segments| Some(ReplayPool::Device(segments, u64::MAX));
    match parts[..] {
        ["system"] => Some(ReplayPool::System),
        ["host"] => Some(ReplayPool::Host(HostPool::default())),
        ["host", eighths, kept] => {
            let (kept_eighths, kept_bytes) = (eighths.parse().ok()?, bytes(kept)?);
            Some(ReplayPool::Host(HostPool { kept_eighths, kept_bytes, ..HostPool::default() }))
        }
        ["device"] => device(Segments::Graded),
        ["device", "each"] => device(Segments::Each),
        ["device", segment] => device(Segments::Of(bytes(segment)?)),
        _ => None,
    }
}

fn main() -> Result<(), Failure> {
    let (mut file, mut rounds, mut pools) = (None, 1, Vec::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--rounds" {
            rounds = words.next().ok_or("--rounds wants a number")?.parse()?;
        } else if file.is_none() {
            file = Some(word);
        } else {
            pools.push(word);
        }
    }
    if pools.is_empty() {
        pools = POOLS.map(str::to_owned).to_vec();
    }
    let recording = match &file {
        Some(file) => {
            let read = File::open(file).and_then(|file| Recording::read(BufReader::new(file)));
            read.map_err(|error| format!("{file}: {error}"))?
        }
        None => {
            let recording = recorded()?;
            fs::create_dir_all("target")?;
            recording.write(&mut BufWriter::new(File::create("target/replay.trace")?))?;
            recording
        }
    };
    println!("{}: {} requests, recorded", file.as_deref().unwrap_or("a training"), recording.requests());
    println!(
        "{:<14} {:>12} {:>9} {:>10} {:>11} {:>10} {:>12} {:>8}",
        "pool", "reserved", "to live", "fragments", "hits", "misses", "of bytes", "refused"
    );
    for text in &pools {
        let pool = pool(text).ok_or_else(|| format!("{text} is no pool"))?;
        let done = recording.replay(pool, rounds);
        println!(
            "{text:<14} {:>12} {:>9.2} {:>10.2} {:>11} {:>10} {:>12} {:>8}",
            Bytes(done.peak_reserved).to_string(),
            done.overhead(),
            done.fragmentation(),
            done.hits(),
            done.misses,
            Bytes(done.fresh).to_string(),
            done.refused
        );
    }
    Ok(())
}
