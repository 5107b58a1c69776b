//! What the test programs share: the lock, the cases (switch and device), and what is asked of a device after each.
//!
//! Switch, registry, queue and byte counts belong to the process, and cargo runs tests as threads of one: so every test
//! that touches ndgc runs inside [`alone`] or [`each_case`], or holds [`turn`].
#![allow(dead_code)] // each program uses a part

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ndgc::{Device, SimConfig, gc};

/// Waits until no other test of this program runs that waits here too, and until the guard falls keeps them waiting.
#[must_use]
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    // A test that failed under the lock left nothing that the next one relies on.
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `body` while no other test of this program runs, with the switch off at first and put back at the end.
pub(crate) fn alone<R>(body: impl FnOnce() -> R) -> R {
    let _turn = turn();
    let _switch = gc::scoped(false);
    gc::collect();
    body()
}

/// The host, a simulated device that nobody used before, and a CUDA device if there is one.
pub(crate) fn devices() -> Vec<Device> {
    let devices = [Device::Cpu, Device::sim(SimConfig::default())].into_iter();
    #[cfg(feature = "cuda")]
    let devices = devices.chain(cuda::device());
    devices.collect()
}

/// Runs `body` in these positions of the switch on every device, and asks of each case that it leaves no byte behind
/// and that checked devices found nothing wrong.
pub(crate) fn each_case(positions: &[bool], body: impl Fn(&Device)) {
    alone(|| {
        for &on in positions {
            let _switch = gc::scoped(on);
            for device in devices() {
                case(on, &device, || body(&device));
            }
        }
    });
}

fn case(on: bool, device: &Device, body: impl FnOnce()) {
    gc::collect();
    let before = device.memory().active;
    if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
        eprintln!("the case was: switch {}, device {device}", if on { "on" } else { "off" });
        resume_unwind(panic);
    }
    gc::collect();
    assert_eq!(device.memory().active, before, "the test's own bytes are back; switch on: {on}, device {device}");
    check(device);
}

/// Waits for a device and asserts that its checker, if it has one, found nothing.
pub(crate) fn check(device: &Device) {
    device.synchronize().unwrap();
    match device {
        Device::Sim(sim) => assert_eq!(sim.violations(), [], "the simulated device found nothing wrong"),
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => cuda::check(),
        _ => {}
    }
}

/// Numbers that look random, the same each time.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}
