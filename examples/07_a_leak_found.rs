//! A leak found: a list that grows, and the line that feeds it.
//!
//! What you learn: a loop that leaks is proven by `gc::assert_no_growth`, as a test would; `report().by_line()` names
//! the lines whose arrays have the most bytes, and `debug_dump` each array. A handle that somebody keeps is a leak that
//! no collector can take: the dump shows it with 1 handle, an array that is only kept by its manager with 0.
//!
//! ```text
//! $ cargo run --release --example 07_a_leak_found
//! 2 live arrays and 2048 B before, 3 and 3072 B after the last run
//! 1003 arrays, 1027072 B, made at examples/07_a_leak_found.rs:36:22
//! \--- NDManager(training) resource count: 4, 3 arrays, 3.00 KiB, cpu, made at examples/07_a_leak_found.rs:42:19
//!     |-- … f32 [256], 1.00 KiB, 1 handle, … s old, made at examples/07_a_leak_found.rs:36:22
//!     |-- … f32 [256], 1.00 KiB, 1 handle, … s old, made at examples/07_a_leak_found.rs:36:22
//!     |-- … f32 [256], 1.00 KiB, 1 handle, … s old, made at examples/07_a_leak_found.rs:36:22
//!     \--- NDManager(other) resource count: 1, 1 array, 8 B, cpu, made at examples/07_a_leak_found.rs:61:25
//!         |-- … u8 [8], 8 B, 0 handles, … s old, made at examples/07_a_leak_found.rs:64:20
//! collect_orphans took 1
//! no growth; 0 arrays
//! ```

use std::panic::catch_unwind;
use std::sync::{Mutex, MutexGuard};

use ndgc::{DType, Device, NdManager, Result, Tensor, gc};

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

    // 1. Does it grow? In a test this line stands alone, and its panic is the failure.
    std::panic::set_hook(Box::new(|_| {}));
    let panic = catch_unwind(|| gc::assert_no_growth(&Device::Cpu, || step(&manager)));
    drop(std::panic::take_hook());
    if let Some(text) = panic.err().and_then(|panic| panic.downcast::<String>().ok()) {
        println!("{}", text.lines().next().unwrap_or_default());
    }

    // 2. Which line made what is alive? Most bytes first.
    (0..1000).try_for_each(|_| step(&manager).map(drop))?;
    for (line, arrays, bytes, _) in manager.report().by_line() {
        println!("{arrays} arrays, {bytes} B, made at {}", line.expect("the lines of arrays are known"));
    }

    // 3. Who holds them? The list: each has a handle. For comparison one that was dropped while the switch was off.
    history().drain(..1000);
    let other = manager.child("other")?;
    {
        let _off = gc::scoped(false);
        drop(other.zeros(8, DType::U8)?);
    }
    print!("{}", manager.debug_dump());

    // 4. What nobody holds can be taken; what the list holds goes with the list. Then the loop stands still.
    println!("collect_orphans took {}", gc::collect_orphans());
    history().clear();
    gc::assert_no_growth(&Device::Cpu, || manager.ones((256, 256), DType::F32)?.sqr()?.mean_all()?.to_scalar::<f32>());
    println!("no growth; {} arrays", manager.array_count());
    Ok(())
}
