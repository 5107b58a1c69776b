//! What belongs to a process: the environment, `fork`, the end of threads and of `main`.
//!
//! A test that needs a process of its own runs this executable again, with the part to play in `NDGC_TEST_CHILD`.

#![allow(unsafe_code)]

use std::process::{Command, Output};

#[cfg(unix)]
use ndgc::memory;
use ndgc::{DType, Device, Error, NdManager, Proxy, gc};

use crate::common::turn;

#[cfg(unix)]
mod ends;
#[cfg(unix)]
mod forks;
mod told;

const PART: &str = "NDGC_TEST_CHILD";

/// Runs the part in a new process. `NDGC` and other variables are as given and else not set.
fn play(part: &str, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "process::the_part_of_a_child", "--nocapture", "--test-threads=1"]);
    for name in ["NDGC", "NDGC_DEVICE", "NDGC_MAX_BYTES"] {
        command.env_remove(name);
    }
    command.env(PART, part).envs(env.iter().copied()).output().unwrap()
}

fn succeeds(part: &str, env: &[(&str, &str)]) -> String {
    let output = play(part, env);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{part}: {:?}\n{out}\n{err}", output.status);
    err
}

/// Not a test by itself: what the other tests run in a process of their own.
#[test]
fn the_part_of_a_child() {
    match std::env::var(PART).as_deref() {
        Err(_) => {}
        Ok("on") => the_switch_stands(true),
        Ok("off") => the_switch_stands(false),
        Ok("rubbish") => nothing_can_be_made(),
        #[cfg(unix)]
        Ok("fork") => unix::fork_and_look(),
        #[cfg(unix)]
        Ok("fork_before_use") => unix::fork_before_the_first_use(),
        #[cfg(unix)]
        Ok("after_main") => unix::leave_work_for_after_main(),
        Ok(part) if told::play(part) => {}
        #[cfg(unix)]
        Ok(part) if forks::play(part) || ends::play(part) => {}
        Ok(other) => panic!("no part is called {other}"),
    }
}

fn the_switch_stands(on: bool) {
    let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
    drop(manager.zeros(4, DType::F32).unwrap());
    assert_eq!(gc::is_on(), on);
    let other = manager.zeros(4, DType::F32).unwrap();
    other.storage_bytes().unwrap();
    assert_eq!(manager.array_count(), if on { 1 } else { 2 });
}

fn nothing_can_be_made() {
    for _ in 0..2 {
        let refused =
            [NdManager::new_base_manager(&Device::Cpu).map(drop), Proxy::zeros(4, DType::F32, &Device::Cpu).map(drop)];
        for result in refused {
            let Err(Error::Environment { name, value, .. }) = result else { panic!("{result:?}") };
            assert_eq!((name, value.as_str()), ("NDGC", "perhaps"));
        }
    }
    assert_eq!(gc::collect(), 0);
}

#[test]
fn the_environment_sets_the_switch() {
    succeeds("on", &[("NDGC", "on")]);
    succeeds("on", &[("NDGC", " on ")]);
    succeeds("off", &[("NDGC", "off")]);
    succeeds("off", &[("NDGC", "")]);
    succeeds("off", &[]);
}

#[test]
fn an_environment_that_cannot_be_understood_is_an_error_of_the_first_call() {
    succeeds("rubbish", &[("NDGC", "perhaps")]);
}

#[test]
fn a_misspelt_variable_is_reported_once() {
    let err = succeeds("off", &[("NDGC_MAX_BITES", "1g")]);
    assert_eq!(err.matches("NDGC_MAX_BITES").count(), 1, "{err}");
}

#[cfg(unix)]
#[test]
fn a_forked_child_finds_its_handles_inert() {
    succeeds("fork", &[]);
    succeeds("fork", &[("NDGC", "on")]);
}

#[cfg(unix)]
#[test]
fn a_child_forked_before_the_first_use_has_a_runtime_of_its_own() {
    succeeds("fork_before_use", &[]);
}

#[cfg(unix)]
#[test]
fn arrays_may_be_used_and_dropped_after_main() {
    let err = succeeds("after_main", &[]);
    assert!(err.contains("after main: 2 arrays before, 0 after"), "{err}");
}

#[test]
fn the_orphans_of_a_finished_thread_go_with_the_next_call_of_another() {
    let _turn = turn();
    gc::collect();
    let (live, active) = (gc::stats().live, Device::Cpu.memory().active);
    let mine = Proxy::zeros(4, DType::F32, &Device::Cpu).unwrap();
    std::thread::spawn(|| {
        let arrays: Vec<_> = (0..100).map(|_| Proxy::zeros(4, DType::F32, &Device::Cpu).unwrap()).collect();
        drop(arrays);
    })
    .join()
    .unwrap();
    assert_eq!(gc::stats().queued, 100, "nobody called since");
    mine.storage_bytes().unwrap();
    assert_eq!((gc::stats().live, gc::stats().queued), (live + 1, 0));
    drop(mine);
    gc::collect();
    assert_eq!((gc::stats().live, Device::Cpu.memory().active), (live, active));
}

#[test]
fn more_threads_than_lanes_come_and_go() {
    let _turn = turn();
    gc::collect();
    let (live, active) = (gc::stats().live, Device::Cpu.memory().active);
    for _ in 0..3 {
        let threads: Vec<_> = (0..40)
            .map(|_| {
                std::thread::spawn(|| {
                    let a = Proxy::zeros(4, DType::F32, &Device::Cpu).unwrap();
                    (a.clone(), a.detach())
                })
            })
            .collect();
        let handles: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(gc::stats().live, live + 80);
        drop(handles);
        gc::collect();
        assert_eq!((gc::stats().live, Device::Cpu.memory().active), (live, active));
    }
}

#[cfg(unix)]
mod unix {
    //! Parts that call the system.

    use super::{DType, Device, Error, NdManager, Proxy, gc, memory};
    use std::sync::Mutex;

    /// Forks; the child runs `f` and ends with `exit`, which runs what is registered for the end of a process.
    pub(super) fn in_child(f: impl FnOnce()) {
        // SAFETY: the child runs on with a copy of everything and this thread alone; what it calls waits for no other.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork failed");
        if pid == 0 {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            // SAFETY: runs what was registered for the end. Rust's own `exit` first takes a lock that any thread has
            // while it begins and ends.
            unsafe { libc::exit(i32::from(done.is_err())) }
        }
        let mut status = 0;
        // SAFETY: waits for the child made above, and writes its status into an integer of ours.
        let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!((waited, status), (pid, 0), "the child ended badly");
    }

    fn is_forked<T>(result: &Result<T, Error>) -> bool {
        matches!(result, Err(Error::Forked { .. }))
    }

    pub(super) fn fork_and_look() {
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let owned = manager.zeros(4, DType::F32).unwrap();
        let free = Proxy::zeros(4, DType::F32, &Device::Cpu).unwrap();
        let watch = memory::watch(&Device::Cpu);
        // Until its thread rests: a lock that it had would be held in the child for ever.
        crate::common::system::until_they_wait("ndgc-watch", 1);
        in_child(|| {
            // Its thread is the parent's, which waits for it.
            drop(watch);
            assert_eq!(memory::trim(&Device::Cpu, memory::Trim::All), 0);
            assert!(memory::frame(&Device::Cpu, None).rows.is_empty() && manager.leak_report().is_empty());
            drop(memory::watch(&Device::Cpu));
            assert!(is_forked(&owned.add(&free)));
            assert!(is_forked(&free.storage_bytes()));
            assert!(is_forked(&free.to_vec::<f32>()));
            assert!(is_forked(&free.add_(&owned)));
            assert!(is_forked(&free.attach(&manager)));
            assert!(is_forked(&manager.zeros(4, DType::F32)));
            assert!(is_forked(&manager.new_sub_manager()));
            assert!(is_forked(&manager.close()));
            // Nothing of the parent's tree: a lock of it may be held for ever.
            assert_eq!((manager.manager_count(), format!("{manager}").is_empty()), (0, false));
            assert!(is_forked(&Proxy::zeros(4, DType::F32, &Device::Cpu)));
            assert!(is_forked(&NdManager::new_base_manager(&Device::Cpu)));
            gc::on();
            gc::collect();
            gc::collect_orphans();
            free.close();
            drop((owned.clone(), free.clone()));
            // The last ones; they are copies of the parent's.
            drop((owned, free, manager));
        });
    }

    /// As the parent of `fork_and_look` goes on after its child, which took its own copies along.
    pub(super) fn fork_before_the_first_use() {
        in_child(|| {
            let a = Proxy::ones(4, DType::F32, &Device::Cpu).unwrap();
            assert_eq!(a.add(&a).unwrap().dims(), [4]);
        });
        let a = Proxy::zeros(4, DType::F32, &Device::Cpu).unwrap();
        in_child(|| assert!(is_forked(&a.storage_bytes())));
        // The parent is as before.
        assert_eq!(a.dims(), [4]);
        drop(a);
        gc::collect();
        assert_eq!(gc::stats().live, 0);
    }

    static LEFT: Mutex<Option<(Proxy, NdManager)>> = Mutex::new(None);

    extern "C" fn after_main() {
        let before = gc::stats().live;
        if let Some((array, manager)) = LEFT.lock().unwrap().take() {
            let sum = array.add(&array).unwrap();
            assert_eq!(sum.dims(), [4]);
            // `manager`, `array` and `sum` are dropped here.
            drop(manager);
        }
        gc::collect();
        eprintln!("after main: {before} arrays before, {} after", gc::stats().live);
    }

    pub(super) fn leave_work_for_after_main() {
        let manager = NdManager::new_base_manager(&Device::Cpu).unwrap();
        let array = manager.zeros(4, DType::F32).unwrap();
        let kept = Proxy::zeros(4, DType::F32, &Device::Cpu).unwrap();
        kept.attach(&manager).unwrap();
        *LEFT.lock().unwrap() = Some((array, manager));
        // SAFETY: the handler takes no arguments and touches nothing that ended with `main`.
        let registered = unsafe { libc::atexit(after_main) };
        assert_eq!(registered, 0);
        drop(kept);
        std::process::exit(0);
    }
}
