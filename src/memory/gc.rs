//! The switch, and reclaiming by hand.
//!
//! With the switch **off** (the default) an array made by a manager lives until that manager closes, whether or not
//! anybody holds a proxy of it: the leak that a long-lived manager collects. With the switch **on** the drop of its
//! last proxy queues it, and the next call on this thread that does work closes it. Arrays that their handles own end
//! with their last handle in both positions.
//!
//! Such a call is each operation, creation and read of elements, whatever the array; moving one to a manager; making,
//! listing and closing a manager; entering and leaving a workspace; [`collect`], [`collect_orphans`],
//! [`Device::clear_cache`](crate::Device::clear_cache), a report or dump, and a request for memory that would fail.
//! What a handle or manager knows is answered at once, and closes nothing: `dims`, `is_open`, `name`, `array_count`,
//! [`stats`], and `close` of one array.
//!
//! The switch is one for the process. `NDGC=on` or `NDGC=off` in the environment sets it at the start.
//!
//! ```
//! use ndgc::{gc, Device, DType, NdManager};
//! let manager = NdManager::new_base_manager(&Device::Cpu)?;
//! {
//!     let _on = gc::scoped(true);
//!     drop(manager.zeros(1000, DType::F32)?);
//!     gc::collect(); // or any other call
//!     assert_eq!(manager.array_count(), 0);
//! }
//! drop(manager.zeros(1000, DType::F32)?); // off again: the manager keeps it
//! assert_eq!(manager.array_count(), 1);
//! # Ok::<(), ndgc::Error>(())
//! ```

use crate::device::Device;
use crate::memory::{hazard, lines, manager::NdManager, owner, reclaim, registry, slot::OPEN, switch, threads};

pub use crate::memory::periodic::{
    auto_gc_window, invoke_gc, is_periodic_gc_active, occasional_gc_frequency, set_auto_gc_window,
    set_occasional_gc_frequency, since_last_gc, toggle_periodic_gc,
};

/// Switches reclaiming on, for every thread. Arrays whose last proxy fell before stay with their manager;
/// [`collect_orphans`] finds them.
///
/// ```
/// # use ndgc::{DType, Device, NdManager, gc};
/// let manager = NdManager::new_base_manager(&Device::Cpu)?;
/// gc::on();
/// drop(manager.zeros(4, DType::F32)?);
/// let _y = manager.zeros(4, DType::F32)?; // a call: it closes the one that fell
/// assert_eq!(manager.array_count(), 1);
/// # gc::off();
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn on() {
    switch::set(true);
}

/// Switches reclaiming off, for every thread.
pub fn off() {
    switch::set(false);
}

/// Whether reclaiming is on.
pub fn is_on() -> bool {
    switch::is_on()
}

/// Sets the switch for the life of a guard, which puts back what it found. It is one switch for the process, so
/// the guard is felt on every thread.
#[must_use = "the switch goes back when the guard drops, with `let _ = ...` at once; name it, as in `let _on = ...`"]
pub fn scoped(on: bool) -> SwitchGuard {
    SwitchGuard { before: switch::set(on) }
}

/// Puts the switch back as it was; made by [`scoped`].
#[derive(Debug)]
pub struct SwitchGuard {
    before: bool,
}

impl Drop for SwitchGuard {
    fn drop(&mut self) {
        switch::set(self.before);
    }
}

/// Closes every array that is queued now, whatever thread dropped it. Returns how many left the queue.
///
/// Ordinary calls do this by themselves, in bounded batches; this is for the moment before a measurement.
///
/// ```
/// # use ndgc::{DType, Device, Tensor, gc};
/// # gc::collect();
/// drop(Tensor::zeros(1000, DType::U8, &Device::Cpu)?);
/// assert_eq!(Device::Cpu.memory().active, 1000); // queued, and there still
/// assert_eq!(gc::collect(), 1);
/// assert_eq!(Device::Cpu.memory().active, 0);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn collect() -> usize {
    if switch::check("gc::collect").is_err() {
        return 0;
    }
    reclaim::collect()
}

/// Closes every array without a handle that a manager still keeps, because its last proxy fell while the switch was
/// off, and, as [`collect`] does, every one that is queued. Returns how many there were of both. Walks all slots of the
/// registry.
///
/// ```
/// # use ndgc::{DType, Device, NdManager, gc};
/// let manager = NdManager::new_base_manager(&Device::Cpu)?;
/// let _x = manager.zeros(4, DType::F32)?;
/// drop(manager.zeros(4, DType::F32)?); // with the switch off, the manager keeps it
/// assert_eq!(manager.array_count(), 2);
/// assert_eq!(gc::collect_orphans(), 1);
/// assert_eq!(manager.array_count(), 1);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn collect_orphans() -> usize {
    if switch::check("gc::collect_orphans").is_err() {
        return 0;
    }
    reclaim::collect_kept()
}

/// Arrays of the process by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcStats {
    /// Arrays that were not closed yet, whether or not anybody holds a proxy of them; those of ended cycles of
    /// workspaces that somebody holds a handle of among them.
    pub live: u64,
    /// Dead arrays in the reclaim queue.
    pub queued: u64,
    /// Dead arrays that a manager keeps, because their last proxy fell while the switch was off.
    pub kept: u64,
    /// Arrays ever made.
    pub created: u64,
    /// Arrays ever closed.
    pub closed: u64,
    /// Dead arrays that left the queue.
    pub drained: u64,
    /// How often a call interrupted the other threads of the process (`membarrier`), to see whether they use what it
    /// ends or writes into: an array that another thread than its maker used. 0 in loops whose arrays only their own
    /// threads use.
    pub interrupts: u64,
}

impl GcStats {
    /// Arrays that nobody can reach by a proxy any more.
    pub fn dead(&self) -> u64 {
        self.queued + self.kept
    }
}

/// Counts over all threads; exact while they rest.
///
/// ```
/// # use ndgc::{DType, Device, NdManager, gc};
/// let (manager, before) = (NdManager::new_base_manager(&Device::Cpu)?, gc::stats());
/// let _x = manager.zeros(4, DType::F32)?;
/// drop(manager.zeros(4, DType::F32)?); // nobody can reach it; the manager keeps it
/// let now = gc::stats();
/// assert_eq!((now.live - before.live, now.kept - before.kept), (2, 1));
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn stats() -> GcStats {
    // What goes down is read before what goes up, so that no difference is negative.
    let (closed, drained, unkept) =
        (threads::sum(|c| &c.live.went), threads::sum(|c| &c.drained), threads::sum(|c| &c.kept.went));
    let (created, queued, kept) =
        (threads::sum(|c| &c.live.came), threads::sum(|c| &c.queued), threads::sum(|c| &c.kept.came));
    GcStats {
        live: created.saturating_sub(closed),
        queued: queued.saturating_sub(drained),
        kept: kept.saturating_sub(unkept),
        created,
        closed,
        drained,
        interrupts: hazard::interrupts(),
    }
}

/// Arrays of the process that their handles own, by walking the registry.
///
/// ```
/// # use ndgc::{DType, Device, NdManager, gc};
/// let (manager, before) = (NdManager::new_base_manager(&Device::Cpu)?, gc::handle_owned());
/// let x = manager.zeros(4, DType::F32)?;
/// let y = x.detach();
/// assert_eq!(gc::handle_owned() - before, 1); // `y`: `x` is the manager's
/// # drop(y);
/// # Ok::<(), ndgc::Error>(())
/// ```
pub fn handle_owned() -> usize {
    (0..registry::extent())
        .filter(|&index| {
            let cell = registry::slot(index);
            // Relaxed: a count of this moment; arrays move meanwhile.
            cell.core.state() & OPEN != 0 && cell.owner.load(std::sync::atomic::Ordering::Relaxed) == owner::HANDLES
        })
        .count()
}

/// Runs `body` twice, so that what is made once is there, then once more, and panics if that left more arrays or bytes
/// behind: a leak check for tests. Run before what takes longer to settle, as a network's workspaces do.
///
/// It counts what all threads of the process have, as [`memory::no_growth`](crate::memory::no_growth) does: other tests
/// that use ndgc have to wait, as with `cargo test -- --test-threads=1`.
///
/// # Panics
/// If there are more live arrays, or active bytes of `device`, after the last run; the message has both, the lines
/// whose arrays are more and what keeps them ([`memory::growth`](crate::memory::growth)), and what the device's
/// managers hold.
///
/// ```
/// # use ndgc::{gc, Device, DType, Tensor};
/// gc::assert_no_growth(&Device::Cpu, || Tensor::zeros(100, DType::F32, &Device::Cpu).map(drop));
/// ```
#[track_caller]
pub fn assert_no_growth<R>(device: &Device, mut body: impl FnMut() -> R) {
    let mut measure = || {
        drop(body());
        collect();
        (stats().live, device.memory().active)
    };
    measure();
    let (before, mark) = (measure(), lines::mark());
    let after = measure();
    assert!(
        after.0 <= before.0 && after.1 <= before.1,
        "{} live arrays and {} B before, {} and {} B after the last run\n{}\n{}{}",
        before.0,
        before.1,
        after.0,
        after.1,
        mark.diff(),
        NdManager::system(device).debug_dump(),
        lines::OF_ALL
    );
}
