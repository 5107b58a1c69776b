//! Workspaces in three loops: sequences whose lengths vary, a ring of batches for another thread, and a file in the place
//! of memory.
//!
//! What you learn: a workspace learns its size in the first cycle; a longer cycle spills beside the block, which then
//! grows, and the device is asked for memory a few times in all, not once for each array. A circular one hands
//! batches to another thread: each stays until it was read, and what has no room meanwhile lies beside the ring. A mapped
//! one computes on more bytes than the device's limit allows.
//!
//! ```text
//! $ cargo run --release --example workspaces
//! sequences: 40 cycles of 8 to 85 steps
//!   cycle  steps    asked for        block       beside  system allocations
//!       1      8     21.4 KiB     27.8 KiB     21.4 KiB                   2
//!       2     11     29.4 KiB     38.2 KiB      1.6 KiB                   4
//!       4     19     50.6 KiB     65.8 KiB     12.5 KiB                   6
//!       7     26     69.2 KiB     89.9 KiB      3.4 KiB                   8
//!      13     36     95.8 KiB    124.5 KiB      5.9 KiB                  10
//!      28     49    130.3 KiB    169.4 KiB      5.9 KiB                  12
//!      33     64    170.1 KiB    221.2 KiB      0.8 KiB                  14
//!      40     85    225.9 KiB    293.7 KiB      4.9 KiB                  16
//!   the other cycles asked for no memory
//! ring: 200 batches from another thread, mean 0.500
//!   509.8 KiB for batches of 98.0 KiB
//! mapped: with a limit of 16 MiB more, an array of 64 MiB is refused
//!   in a file, x * 2 + 1 of it sums to 50331650, 128 MiB of the file used
//! ```

use ndgc::nn::{self, Prefetch, RNN, VarBuilder, VarMap};
use ndgc::{
    AllocationPolicy, DType, Device, Error, Generator, LocationPolicy, ResetPolicy, Result, SpillPolicy, Tensor,
    Workspace, WorkspaceConfig, no_grad,
};

fn kib(bytes: u64) -> String {
    format!("{:.1} KiB", bytes as f64 / 1024.)
}

/// One cycle a sequence. A line is printed when memory was asked for.
fn sequences() -> Result<()> {
    let variables = VarMap::new();
    let lstm = nn::lstm(8, 32, Default::default(), VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu))?;
    let config = WorkspaceConfig::builder().policy_spill(SpillPolicy::Reallocate).build()?;
    let lengths = (0..40).map(|i| 8 + i * 13 % (8 + 2 * i));
    println!("sequences: 40 cycles of 8 to 85 steps");
    println!("  cycle  steps    asked for        block       beside  system allocations");
    let mut known = 0;
    for (cycle, length) in lengths.enumerate() {
        let (beside, last) = {
            let cycle = Workspace::enter("SEQUENCE", &config)?;
            let x = Tensor::ones((length, 1, 8), DType::F32, &Device::Cpu)?;
            let mut state = lstm.zero_state(1)?;
            no_grad(|| {
                for time in 0..length {
                    state = lstm.step(&x.get(time)?, &state)?;
                }
                Ok::<(), Error>(())
            })?;
            (cycle.stats().spilled, state.h().detach()) // what leaves is a copy; all else ends here
        };
        assert!(last.to_vec2::<f32>()?[0].iter().all(|value| value.is_finite()));
        let stats = Workspace::find("SEQUENCE").expect("entered above").stats();
        if stats.system_allocations != known {
            known = stats.system_allocations;
            println!(
                "  {:5}  {length:5}  {:>11}  {:>11}  {:>11}  {known:18}",
                cycle + 1,
                kib(stats.last_cycle),
                kib(stats.size),
                kib(beside)
            );
        }
    }
    println!("  the other cycles asked for no memory");
    Ok(())
}

/// A thread of its own makes batches in a ring of four; this one reads them.
fn prefetch() -> Result<()> {
    const BATCHES: usize = 200;
    let config = WorkspaceConfig::builder()
        .policy_reset(ResetPolicy::EndOfBufferReached)
        .overallocation_limit(3.) // blocks beside the first
        .build()?;
    let mut random = Generator::new(1);
    let batches = Prefetch::new(&config, 2, move |at| {
        if at == BATCHES {
            return Ok(None);
        }
        let images = random.uniform(0., 1., (32, 784), DType::F32, &Device::Cpu)?;
        let ring = Workspace::current().expect("each batch is made in a cycle of the ring").stats();
        Ok(Some((images, ring)))
    })?;
    let (mut sum, mut size, mut cycle) = (0., 0, 0);
    for batch in batches {
        let batch = batch?; // its place in the ring is free again when this drops
        let (images, ring) = &*batch;
        sum += images.mean_all()?.to_scalar::<f32>()?;
        (size, cycle) = (ring.size, ring.max_cycle);
    }
    println!("ring: {BATCHES} batches from another thread, mean {:.3}", sum / BATCHES as f32);
    println!("  {} for batches of {}", kib(size), kib(cycle));
    Ok(())
}

/// More bytes than the limit on memory, in a file.
fn mapped() -> Result<()> {
    const MIB: u64 = 1 << 20;
    let device = Device::Cpu;
    let limit = device.memory().active + device.memory().cached + 16 * MIB;
    let before = device.set_limit(Some(limit));
    let make = || Tensor::ones((64, 1 << 18), DType::F32, &Device::Cpu); // 64 MiB
    let refused = matches!(make(), Err(Error::OutOfMemory(_)));
    println!(
        "mapped: with a limit of 16 MiB more, an array of 64 MiB is {}",
        if refused { "refused" } else { "there" }
    );
    let config = WorkspaceConfig::builder()
        .policy_allocation(AllocationPolicy::Strict)
        .policy_location(LocationPolicy::Mmap)
        .initial_size(160 * MIB) // of a sparse temporary file
        .build()?;
    Workspace::cycle("FILE", &config, || {
        let sum = make()?.affine(2., 1.)?.sum_all()?.to_scalar::<f32>()?;
        let stats = Workspace::find("FILE").expect("entered above").stats();
        println!("  in a file, x * 2 + 1 of it sums to {sum}, {} MiB of the file used", stats.offset / MIB);
        Ok::<_, ndgc::Error>(())
    })?;
    device.set_limit(before);
    Ok(())
}

fn main() -> Result<()> {
    sequences()?;
    prefetch()?;
    mapped()
}
