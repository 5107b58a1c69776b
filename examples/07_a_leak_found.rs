//! A leak found: a list that grows, and the line that feeds it.
//!
//! What you learn: `memory::growth` names the line that feeds a leak, the number of arrays a round and what keeps them;
//! in a test `gc::assert_no_growth` fails with the same text. `memory::lines` has what lives by line, and `debug_dump`
//! each array. A handle that somebody keeps is a leak that no collector can take: the dump shows it with 1 handle, an
//! array that is only kept by its manager with 0.
//!
//! ```text
//! $ cargo run --release --example 07_a_leak_found
//! 1000 arrays more (1 a round), 1000.00 KiB more, made at examples/07_a_leak_found.rs:38:22: 1000 held by handles
//! a test: 1003 live arrays and 1027072 B before, 1004 and 1028096 B after the last run
//! 1004 arrays, 1004.00 KiB, made at examples/07_a_leak_found.rs:38:22, the oldest … s old
//! \--- NDManager(training) resource count: 4, 3 arrays, 3.00 KiB, cpu, made at examples/07_a_leak_found.rs:44:19
//!     |-- … f32 [256], 1.00 KiB, 1 handle, … s old, made at examples/07_a_leak_found.rs:38:22
//!     |-- … f32 [256], 1.00 KiB, 1 handle, … s old, made at examples/07_a_leak_found.rs:38:22
//!     |-- … f32 [256], 1.00 KiB, 1 handle, … s old, made at examples/07_a_leak_found.rs:38:22
//!     \--- NDManager(other) resource count: 1, 1 array, 8 B, cpu, made at examples/07_a_leak_found.rs:63:25
//!         |-- … u8 [8], 8 B, 0 handles, … s old, made at examples/07_a_leak_found.rs:66:20
//! collect_orphans took 1
//! no growth; 0 arrays
//! ```

use std::panic::catch_unwind;
use std::sync::{Mutex, MutexGuard};

use ndgc::{DType, Device, NdManager, Result, Tensor, gc, memory};

/// For a plot of the losses later. It ought to keep numbers.
static HISTORY: Mutex<Vec<Tensor>> = Mutex::new(Vec::new());

fn history() -> MutexGuard<'static, Vec<Tensor>> {
    HISTORY.lock().expect("nobody panics with it")
}

fn step(manager: &NdManager) -> Result<f32> {
    let x = manager.ones((256, 256), DType::F32)?;
    let loss = x.sqr()?.mean_all()?;
    history().push(x.sum(1)?); // the leak
    loss.to_scalar()
}

fn main() -> Result<()> {
    gc::on(); // so that what nobody holds goes, and what stays is held
    let manager = NdManager::new_base_manager(&Device::Cpu)?;
    manager.set_name("training");

    // 1. Does it grow, where, by how much, and what keeps it?
    println!("{}", memory::growth(1000, || step(&manager)));

    // 2. In a test this line stands alone, and its panic is the failure.
    std::panic::set_hook(Box::new(|_| {}));
    let panic = catch_unwind(|| gc::assert_no_growth(&Device::Cpu, || step(&manager)));
    drop(std::panic::take_hook());
    if let Some(text) = panic.err().and_then(|panic| panic.downcast::<String>().ok()) {
        println!("a test: {}", text.lines().next().unwrap_or_default());
    }

    // 3. Which line made what is alive? Most bytes first.
    memory::lines().iter().for_each(|line| println!("{line}"));

    // 4. Who holds them? The list: each has a handle. For comparison one that was dropped while the switch was off.
    history().drain(..1001);
    let other = manager.child("other")?;
    {
        let _off = gc::scoped(false);
        drop(other.zeros(8, DType::U8)?);
    }
    print!("{}", manager.debug_dump());

    // 5. What nobody holds can be taken; what the list holds goes with the list. Then the loop stands still.
    println!("collect_orphans took {}", gc::collect_orphans());
    history().clear();
    gc::assert_no_growth(&Device::Cpu, || manager.ones((256, 256), DType::F32)?.sqr()?.mean_all()?.to_scalar::<f32>());
    println!("no growth; {} arrays", manager.array_count());
    Ok(())
}
