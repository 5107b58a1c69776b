//! What the test programs share: the lock, the cases (switch and device), and what is asked of a device after each.
//!
//! Switch, registry, queue and byte counts belong to the process, and cargo runs tests as threads of one: so every test
//! that touches ndgc runs inside [`alone`] or [`each_case`], or holds [`turn`].
#![allow(dead_code)] // each program uses a part

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
pub(crate) mod system;

use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ndgc::{DebugMode, Device, SimConfig, Workspace, destroy_all_workspaces_for_current_thread, gc};
use proptest::test_runner::{Config, RngSeed};

/// Keeps other tests waiting.
#[must_use]
pub(crate) struct Turn(#[allow(unused)] MutexGuard<'static, ()>);

impl Drop for Turn {
    fn drop(&mut self) {
        // Not when the test's thread ends: the next test counts bytes then. Open ones stay if the test failed.
        let _ = destroy_all_workspaces_for_current_thread();
        // Nor does the thread hand over then what died on it, and the blocks that it keeps for reuse: others would not find
        // them, or count them, until it has.
        let _ = catch_unwind(|| {
            gc::collect();
            Device::Cpu.clear_cache()
        });
    }
}

/// So many cases of a random test, the same ones in each run. What these do not meet is looked for by another seed,
/// `PROPTEST_RNG_SEED=7 cargo test`, or by more cases, `PROPTEST_CASES=10000`.
pub(crate) fn random_cases(cases: u32) -> Config {
    let given = Config::default();
    Config {
        cases: if std::env::var_os("PROPTEST_CASES").is_some() { given.cases } else { cases },
        rng_seed: match given.rng_seed {
            RngSeed::Random => RngSeed::Fixed(1),
            fixed => fixed,
        },
        failure_persistence: None,
        ..given
    }
}

/// Waits until no other test of this program runs that waits here too, and until the guard falls keeps them waiting.
pub(crate) fn turn() -> Turn {
    static LOCK: Mutex<()> = Mutex::new(());
    // A test that failed under the lock left nothing that the next one relies on.
    Turn(LOCK.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The debug mode of workspaces that `NDGC_TEST_DEBUG_MODE` names, in which no number changes.
fn debug_mode() -> DebugMode {
    match std::env::var("NDGC_TEST_DEBUG_MODE").as_deref() {
        Err(_) => DebugMode::Disabled,
        Ok("spill") => DebugMode::SpillEverything,
        Ok("bypass") => DebugMode::BypassEverything,
        Ok(other) => panic!("there is no debug mode {other}"),
    }
}

/// Runs `body` while no other test of this program runs, in [`debug_mode`], with the switch off at first and put back
/// at the end.
pub(crate) fn alone<R>(body: impl FnOnce() -> R) -> R {
    let _turn = turn();
    Workspace::set_debug_mode(debug_mode());
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
    // The end of a scope of threads does not wait for what each of them owns, workspaces among it.
    let begun = Instant::now();
    while device.memory().active != before && begun.elapsed() < Duration::from_secs(20) {
        thread::yield_now();
        gc::collect();
    }
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

/// Set in processes that a test started to run itself again.
const CHILD: &str = "NDGC_TEST_CHILD";

/// Whether a test started this process: [`in_child`] or [`ran_apart`].
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs one test of this binary again in a process of its own, with these variables set and no other of ndgc's.
pub(crate) fn in_child(test: &str, variables: &[(&str, &str)]) -> Output {
    let variables: Vec<_> = variables.iter().map(|&(name, value)| (name, OsStr::new(value))).collect();
    in_child_with(test, &variables)
}

/// As [`in_child`]; what the variables are set to need be no text.
pub(crate) fn in_child_with(test: &str, variables: &[(&str, &OsStr)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, "1");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("NDGC") && name != CHILD) {
            command.env_remove(name);
        }
    }
    run(command.envs(variables.iter().copied()), test)
}

fn run(command: &mut Command, test: &str) -> Output {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{test} failed in its own process, {command:?}:\n{out}\n{err}");
    assert!(out.contains("1 passed"), "{test} names a test that exists:\n{out}");
    output
}

/// Runs the body of a test in a process of its own: what it counts there is its own, whatever other tests do.
pub(crate) fn in_own_process(test: &str, body: impl FnOnce()) {
    if is_child() {
        body();
    } else {
        in_child(test, &[]);
    }
}

/// Whether this test has run in a process of its own: for those of seconds, that others have their turn meanwhile, and
/// for those of peaks, which a thread that ends meanwhile moves by the little that it kept to itself.
pub(crate) fn ran_apart() -> bool {
    let thread = thread::current();
    // One by one they run on the main thread.
    let Some(test) = thread.name().filter(|&name| name != "main" && !is_child()) else { return false };
    let mut command = Command::new(std::env::current_exe().unwrap());
    run(command.args(["--exact", test, "--test-threads=1"]).env(CHILD, "1"), test);
    true
}

/// An error says on which line of these tests the call was that failed, unless it is of a kind that is of no one call.
pub(crate) fn assert_names_its_line(error: &ndgc::Error) {
    use ndgc::Error;
    if let Error::Context { inner, .. } | Error::WithPath { inner, .. } | Error::WithBacktrace { inner, .. } = error {
        return assert_names_its_line(inner);
    }
    let of_no_call = matches!(
        error,
        Error::Environment { .. } | Error::Wrapped(_) | Error::UnsupportedDTypeForOp(..) | Error::Msg(_)
    );
    let line = error.site().map(|site| site.file());
    assert!(of_no_call || line.is_some_and(|file| file.starts_with("tests/")), "no line of the test's: {error}");
}

/// The text of an error, without the place of the call at its end, which is one of these tests.
pub(crate) fn text_of(error: &ndgc::Error) -> String {
    assert_names_its_line(error);
    let text = error.to_string();
    let Some(site) = error.site() else { return text };
    text.strip_suffix(&format!(" (called at {site})")).map_or_else(|| text.clone(), str::to_owned)
}
