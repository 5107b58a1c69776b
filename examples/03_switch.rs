//! The switch: whether an array of a manager ends with its last handle.
//!
//! What you learn: off, the default, a long-lived manager keeps what its user dropped; on, the next call takes it
//! back. `gc::scoped` sets the switch for a block, `NDGC=on` for a process, and any thread may turn it at run time.
//!
//! ```text
//! $ cargo run --release --example 03_switch
//! at the start, off by default       off     0 arrays     0 kept
//! 3 steps, off: the manager keeps    off     6 arrays     6 kept
//! gc::scoped(true), 3 steps more     on      6 arrays     6 kept
//! after the block, 1 step            off     8 arrays     8 kept
//! on by another thread, 3 steps      on      8 arrays     8 kept
//! gc::collect_orphans took 8         on      0 arrays     0 kept
//! the manager is closed              on      0 arrays     0 kept
//! ```
//!
//! With `NDGC=on` in front, every line says `on`, and nothing is ever kept.

use std::thread;

use ndgc::{DType, Device, NdManager, Result, gc};

/// What a careless user writes: two results on a long-lived manager, neither closed.
fn step(manager: &NdManager) -> Result<f32> {
    let x = manager.ones((100, 100), DType::F32)?;
    let mean = x.mean_all()?;
    mean.to_scalar()
}

/// Where the switch stands, what the manager owns, and how much of that nobody can reach any more.
fn show(what: &str, manager: &NdManager) {
    gc::collect(); // any call on any array does the same, a batch at a time; here it makes the counts exact
    let switch = if gc::is_on() { "on" } else { "off" };
    println!("{what:34} {switch:4} {:4} arrays  {:4} kept", manager.array_count(), gc::stats().kept);
}

fn main() -> Result<()> {
    let manager = NdManager::new_base_manager(&Device::Cpu)?;
    let start = if std::env::var_os("NDGC").is_some() { "NDGC says" } else { "off by default" };
    show(&format!("at the start, {start}"), &manager);

    (0..3).try_for_each(|_| step(&manager).map(drop))?;
    show(if gc::is_on() { "3 steps, on: nothing stays" } else { "3 steps, off: the manager keeps" }, &manager);

    {
        let _on = gc::scoped(true); // until the end of the block, for every thread
        (0..3).try_for_each(|_| step(&manager).map(drop))?;
        show("gc::scoped(true), 3 steps more", &manager);
    }
    step(&manager)?;
    show("after the block, 1 step", &manager);

    // A long job is leaking: switch reclaiming on from outside, while it runs.
    thread::scope(|scope| {
        scope.spawn(gc::on);
    });
    (0..3).try_for_each(|_| step(&manager).map(drop))?;
    show("on by another thread, 3 steps", &manager);

    // What was dropped while the switch was off stays kept until someone asks for it.
    let taken = gc::collect_orphans();
    show(&format!("gc::collect_orphans took {taken}"), &manager);

    manager.close()?; // ends all that is left, in either position
    show("the manager is closed", &manager);
    Ok(())
}
