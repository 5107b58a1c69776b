//! What an audit of figures, reports, traces and reclaimers found.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
#[cfg(unix)]
use std::time::Duration;

use ndgc::memory::{self, HostPool, Reclaimer, Recording, ReplayPool, Segments, TraceMode};
use ndgc::{
    AllocationPolicy, Budget, DType, Device, Error, NdManager, SimConfig, Tensor, Var, Workspace, WorkspaceConfig, gc,
};

use crate::common::in_own_process;
use crate::it::support::{alone, base, block};

const MIB: usize = 1 << 20;

fn bytes(count: usize) -> Tensor {
    Tensor::zeros(count, DType::U8, &Device::Cpu).unwrap()
}

/// Panics where it is dropped.
struct Fuse;

impl Drop for Fuse {
    fn drop(&mut self) {
        panic!("{}", "on purpose");
    }
}

#[test]
fn a_reclaimer_that_ends_within_its_call_may_panic_in_its_drop() {
    alone(|| {
        let tenant = base(&Device::Cpu);
        tenant.set_budget(Budget::new().max_bytes(100)).unwrap();
        let (own, fuse) = (Arc::<Mutex<Option<Reclaimer>>>::default(), Fuse);
        let registered = Arc::clone(&own);
        let reclaimer = memory::on_pressure("ends itself", 0, move |_| {
            let _held = &fuse;
            drop(registered.lock().unwrap().take());
        });
        *own.lock().unwrap() = Some(reclaimer);
        let ask = || tenant.zeros(200, DType::U8);
        assert!(matches!(ask(), Err(Error::OutOfMemory(_))), "no panic goes further");
        assert!(own.lock().unwrap().is_none(), "it was called");
        // The thread still looks for bytes.
        let asked = Arc::new(Mutex::new(0));
        let count = Arc::clone(&asked);
        let _next = memory::on_pressure("counts", 0, move |_| *count.lock().unwrap() += 1);
        assert!(matches!(ask(), Err(Error::OutOfMemory(_))));
        assert_eq!(*asked.lock().unwrap(), 1);
    });
}

#[test]
fn scopes_of_two_threads_have_peaks_of_their_own() {
    alone(|| {
        memory::clear_scopes();
        drop(bytes(16 * MIB));
        gc::collect();
        let most = Device::Cpu.memory().peak;
        let ((begun, has_begun), (end, may_end)) = (mpsc::channel(), mpsc::channel());
        thread::scope(|threads| {
            let first = threads.spawn(move || {
                memory::scope("first", &Device::Cpu, || {
                    drop(bytes(4 * MIB));
                    gc::collect();
                    begun.send(()).unwrap();
                    may_end.recv().unwrap();
                });
            });
            has_begun.recv().unwrap();
            memory::scope("second", &Device::Cpu, || {
                end.send(()).unwrap();
                first.join().unwrap();
                drop(bytes(1000));
            });
        });
        let scopes = memory::scopes();
        let peaks: Vec<_> = scopes.iter().map(|scope| (scope.path.as_str(), scope.peak_bytes)).collect();
        let [("first", first), ("second", second)] = peaks[..] else { panic!("{peaks:?}") };
        assert!(first >= 4 * MIB as u64, "what came before the other one began: {first}");
        assert!((1000..MIB as u64).contains(&second), "nothing of what was before both: {second}");
        assert!(Device::Cpu.memory().peak >= most, "the peak of the process is what it was");
        memory::clear_scopes();
    });
}

#[test]
fn a_peak_is_never_below_what_was_active() {
    alone(|| {
        let mut held = Vec::new();
        // Few enough that this thread keeps the difference to itself, for some of these at least.
        for _ in 0..10 {
            held.push(bytes(6000));
            Device::Cpu.reset_peak();
            let look = || {
                let large = bytes(MIB);
                let active = Device::Cpu.memory().active;
                drop(large);
                gc::collect();
                active
            };
            let active = thread::spawn(look).join().unwrap();
            let peak = Device::Cpu.memory().peak;
            assert!(peak >= active, "a peak of {peak}, and {active} were active");
        }
    });
}

#[test]
fn names_with_line_breaks_leave_folded_stacks_whole() {
    alone(|| {
        let manager = base(&Device::Cpu);
        manager.set_name("a\nb;c");
        gc::collect();
        memory::clear_trace();
        memory::set_trace(TraceMode::Full);
        let held = block(&manager);
        memory::set_trace(TraceMode::Off);
        let folded = memory::timeline().to_folded();
        memory::clear_trace();
        let [line] = folded.lines().collect::<Vec<_>>()[..] else { panic!("{folded:?}") };
        assert!(line.starts_with("a b,c;") && line.ends_with(" 64"), "{line}");
        drop(held);
    });
}

#[test]
fn a_timeline_that_the_program_changed_is_written_without_a_panic() {
    alone(|| {
        gc::collect();
        memory::clear_trace();
        memory::set_trace(TraceMode::Full);
        drop([(); 20].map(|()| bytes(1000)));
        gc::collect();
        memory::set_trace(TraceMode::Off);
        let mut timeline = memory::timeline();
        memory::clear_trace();
        assert_eq!(timeline.spans.len(), 20);
        (timeline.sample, timeline.end) = (u64::MAX, u64::MAX);
        for (at, span) in timeline.spans.iter_mut().enumerate() {
            // Each a group of its own; some end before they start, some never.
            (span.owner, span.bytes) = (format!("{at}").into(), u64::MAX / 2);
            (span.start, span.end) = (10, at.is_multiple_of(2).then_some(at as u64));
        }
        assert_eq!(timeline.peak(), u64::MAX);
        assert!(timeline.to_html("changed").contains("changed"));
        assert!(timeline.to_folded().lines().all(|line| line.ends_with(&format!(" {}", u64::MAX))));
        timeline.write_chrome_json(&mut Vec::new()).unwrap();
        let refused = timeline.write_pytorch_snapshot(&mut Vec::new()).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidData);
        assert_eq!(timeline.recording().requests(), 20);
        let mut one = timeline.clone();
        one.spans.truncate(1);
        for (below, fits) in [(0, false), (1, true)] {
            // The segment begins at 2^40.
            one.spans[0].bytes = (1 << 53) - (1 << 40) - below;
            assert_eq!(one.write_pytorch_snapshot(&mut Vec::new()).is_ok(), fits, "{below} below 2^53");
        }
        for (at, span) in timeline.spans.iter_mut().enumerate() {
            // One line that grows, in all the time that there can be.
            (span.owner, span.start, span.end) = ("handles".into(), at as u64 * (u64::MAX / 20), None);
        }
        assert!(timeline.to_html("long").contains(",true]"));
    });
}

#[test]
fn a_ring_without_room_says_what_it_forgot() {
    alone(|| {
        gc::collect();
        memory::clear_trace();
        memory::set_trace(TraceMode::Full);
        let _own = bytes(8);
        let other = thread::spawn(|| bytes(100)).join().unwrap();
        let before = memory::set_trace_bytes(0);
        drop(other);
        gc::collect();
        memory::set_trace(TraceMode::Off);
        assert_eq!(memory::set_trace_bytes(before), 0);
        let timeline = memory::timeline();
        memory::clear_trace();
        assert!(timeline.lost >= 2, "{timeline:?}");
        assert!(timeline.spans.is_empty(), "what ended meanwhile would seem to be alive: {timeline:?}");
    });
}

#[test]
fn recordings_of_more_than_there_are_addresses_are_replayed() {
    let text = "+ 1 6000000000000000000\n+ 2 6000000000000000000\n- 1\n- 2\n\
                + 1 9000000000000000000\n- 1\n+ 1 8000000000000000000\n- 1\n";
    let recording = Recording::read(text.as_bytes()).unwrap();
    let keeps_nothing = HostPool { kept_eighths: 0, kept_bytes: 0, ..HostPool::default() };
    for pool in [
        ReplayPool::System,
        ReplayPool::Host(HostPool::default()),
        ReplayPool::Host(keeps_nothing),
        ReplayPool::Device(Segments::Each, u64::MAX),
        ReplayPool::Device(Segments::Of(4 << 20), u64::MAX),
        ReplayPool::Device(Segments::Graded, u64::MAX),
    ] {
        let replayed = recording.replay(pool, 3);
        assert_eq!((replayed.requests, replayed.live), (12, 0), "{pool:?}");
        assert!(replayed.hits() + replayed.misses + replayed.refused == 12, "{pool:?}: {replayed:?}");
        assert!(replayed.peak_reserved >= replayed.peak_live, "{pool:?}: {replayed:?}");
    }
}

/// In a process of its own, which a hang holds up with the lock of standard error in its hands.
#[cfg(unix)]
#[test]
fn who_ends_a_watch_may_hold_standard_error() {
    in_own_process("it::audited_reports::who_ends_a_watch_may_hold_standard_error", || {
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            let held = std::io::stderr().lock();
            drop(memory::watch(&Device::Cpu));
            drop(held);
            done.send(()).unwrap();
        });
        if is_done.recv_timeout(Duration::from_secs(30)).is_err() {
            std::process::exit(3);
        }
    });
}

#[test]
fn larger_values_that_graphs_keep_are_growth() {
    alone(|| {
        let x = Var::ones(1, DType::F32, &Device::Cpu).unwrap();
        let loss = |count: usize| {
            let zeros = Tensor::zeros(count, DType::F32, &Device::Cpu).unwrap();
            zeros.broadcast_add(&x).unwrap().exp().unwrap().sum_all().unwrap()
        };
        let kept = loss(10_000);
        let before = memory::mark();
        drop(kept);
        let kept = loss(100_000);
        let growth = before.diff();
        assert_eq!((growth.saved_values, growth.lines.len()), (0, 0), "{growth}");
        assert!(!growth.is_empty(), "{growth:?}");
        let text = growth.to_string();
        assert!(text.starts_with("gradient graphs keep larger values, "), "{text}");
        drop(kept);
    });
}

#[test]
fn an_error_has_a_text_where_a_limit_is_no_limit_and_kept_bytes_lie_elsewhere() {
    alone(|| {
        let device = Device::sim(SimConfig { memory_bytes: 1 << 20, ..SimConfig::default() });
        device.set_limit(Some(u64::MAX));
        let manager = base(&device);
        assert_eq!(memory::set_device_spill(Some(8 << 20)), None);
        // In memory of the host, and kept by the manager.
        drop(manager.zeros(4 * MIB, DType::U8).unwrap());
        memory::set_device_spill(None);
        let Err(error) = manager.zeros(2 * MIB, DType::U8) else { panic!("there was room") };
        let Error::OutOfMemory(told) = &error else { panic!("{error:?}") };
        assert_eq!((told.active, told.kept_bytes, told.reachable()), (0, 4 * MIB as u64, u64::MAX));
        assert!(error.to_string().contains("PiB reachable, limit "), "{error}");
    });
}

#[test]
fn all_items_that_there_can_be_are_split() {
    alone(|| {
        let tenant = base(&Device::Cpu);
        tenant.set_budget(Budget::new().max_bytes(1)).unwrap();
        let some = usize::MAX / 3;
        let pieces = memory::with_oom_split(usize::MAX, |items| {
            let len = items.end.checked_sub(items.start).unwrap();
            let taken = tenant.zeros(if len > some { 2 } else { 1 }, DType::U8)?;
            taken.close();
            Ok(len)
        });
        assert_eq!(pieces.unwrap().iter().map(|&len| len as u128).sum::<u128>(), usize::MAX as u128);
    });
}

/// In a process of its own, which the end of a stack ends.
#[test]
fn managers_in_any_depth_are_reported() {
    in_own_process("it::audited_reports::managers_in_any_depth_are_reported", || {
        const COUNT: usize = 10_000;
        let mut chain = vec![base(&Device::Cpu)];
        for at in 0..COUNT {
            chain.push(chain[at].new_sub_manager().unwrap());
        }
        let _held = block(&chain[COUNT]);
        let report = chain[0].report();
        assert_eq!((report.total_arrays(), report.total_bytes()), (1, 64));
        assert_eq!(report.to_string().lines().count(), 1 + COUNT + 1, "each manager, and the array");
        let (mut below, mut levels) = (&report.managers, 0);
        while let [one] = &below[..] {
            (below, levels) = (&one.managers, levels + 1);
        }
        assert_eq!((levels, below.len()), (64, COUNT - 64), "side by side from there on");
    });
}

#[test]
fn bytes_elsewhere_are_those_that_no_array_has() {
    alone(|| {
        gc::collect();
        let elsewhere = || NdManager::system(&Device::Cpu).report().elsewhere;
        let before = elsewhere();
        // Of the host, below a manager of another device. Broken by: looking at the managers of the host alone.
        let device = Device::sim(SimConfig::default());
        let above = base(&device);
        let below = above.new_sub_manager_on(&Device::Cpu).unwrap();
        let _below = below.zeros(1000, DType::U8).unwrap();
        // With room for more than it has.
        let mut numbers = Vec::with_capacity(100_000);
        numbers.resize(10_000, 1f32);
        let _vector = Tensor::from_vec(numbers, 10_000, &Device::Cpu).unwrap();
        // Others' bytes are not active ones. Broken by: taking them off these.
        let _shared = Tensor::from_shared(Arc::new([7u8; 4096]), 0..4096, DType::U8, 4096, &Device::Cpu).unwrap();
        // Those of two managers are there once.
        let (first, second) = (base(&Device::Cpu), base(&Device::Cpu));
        let whole = first.zeros(6000, DType::U8).unwrap();
        let view = whole.narrow(0, 0, 10).unwrap();
        view.attach(&second).unwrap();
        assert_eq!(elsewhere(), before);
        let x = Var::ones(5000, DType::F32, &Device::Cpu).unwrap();
        let y = x.exp().unwrap();
        let loss = y.sum_all().unwrap();
        y.close();
        assert_eq!(elsewhere(), before + 20_000, "what the graph keeps");
        drop(loss);
    });
}

/// As in containers, whose first processes all have one number.
#[test]
fn a_report_is_written_over_no_other_one() {
    in_own_process("it::audited_reports::a_report_is_written_over_no_other_one", || {
        let folder = std::env::temp_dir().join(format!("ndgc-kept-reports-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let report = |number: u32| folder.join(format!("ndgc-{}-{number}.txt", std::process::id()));
        for number in [0, 1, 3] {
            std::fs::write(report(number), "of a process before").unwrap();
        }
        memory::set_crash_report(Some(&folder));
        let manager = base(&Device::Cpu);
        manager.set_budget(Budget::new().max_bytes(10)).unwrap();
        for _ in 0..2 {
            assert!(matches!(manager.zeros(77, DType::U8), Err(Error::OutOfMemory(_))));
        }
        let read = |number| std::fs::read_to_string(report(number)).unwrap();
        for number in [0, 1, 3] {
            assert_eq!(read(number), "of a process before");
        }
        assert!([2, 4].iter().all(|&number| read(number).contains("memory: 77")), "{}", read(2));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 5);
        std::fs::remove_dir_all(&folder).unwrap();
    });
}

/// Its bytes are not the device's, which had too few for what is elsewhere.
#[test]
fn a_spilled_block_of_a_workspace_hides_nothing_of_what_is_elsewhere() {
    alone(|| {
        let device = Device::Cpu;
        let elsewhere = || NdManager::system(&Device::Cpu).report().elsewhere;
        let before = elsewhere();
        let exported = bytes(MIB).to_dlpack().unwrap();
        assert_eq!(elsewhere() - before, MIB as u64);
        device.clear_cache();
        let limit = device.set_limit(Some(device.memory().active));
        memory::set_spill(Some(&std::env::temp_dir())).unwrap();
        let spilled = memory::stats(&device).get("requests.spilled");
        let config = WorkspaceConfig::builder().initial_size(2 << 20).build().unwrap();
        let workspace = Workspace::for_current_thread("SPILLED", &config).unwrap();
        assert_ne!(memory::stats(&device).get("requests.spilled"), spilled);
        let report = NdManager::system(&device).report();
        let of_it = report.workspaces.iter().find(|workspace| workspace.name == "SPILLED").unwrap();
        assert!(of_it.bytes >= 2 << 20);
        assert_eq!(report.elsewhere - before, MIB as u64);
        workspace.destroy().unwrap();
        memory::set_spill(None).unwrap();
        device.set_limit(limit);
        drop(exported);
    });
}

#[test]
fn a_report_has_budgets_and_where_bytes_may_spill_to() {
    alone(|| {
        let outer = base(&Device::Cpu);
        let manager = outer.child("hoard").unwrap();
        manager.set_budget(Budget::new().max_bytes(1000).soft_bytes(900).max_arrays(9).soft_arrays(7)).unwrap();
        let _held = [manager.zeros(100, DType::U8).unwrap(), manager.zeros(200, DType::U8).unwrap()];
        let room = manager.reserve(50).unwrap();
        assert!(manager.zeros(851, DType::U8).is_err());
        let config = WorkspaceConfig::builder().policy_allocation(AllocationPolicy::Strict).initial_size(4096);
        let workspace = Workspace::for_current_thread("REPORTED", &config.build().unwrap()).unwrap();
        workspace.set_budget(Budget::new().max_bytes(1 << 20)).unwrap();
        let report = || memory::crash_report(&Device::Cpu);
        for part in [
            "\nspill: off, of devices: off\n",
            "\nhoard: 350 B of 1000 B (soft: 900 B), peak 350 B, reserved 50 B; arrays: 2 of 9 (soft: 7), peak 2; refused: \
             1\n",
            "\nworkspace [REPORTED]: 4.00 KiB of 1.00 MiB (soft: no limit), peak 4.00 KiB, reserved 0 B; arrays: no limit \
             in a cycle (soft: no limit), peak 0; refused: 0\n",
        ] {
            assert!(report().contains(part), "{part} in\n{}", report());
        }
        drop(room);
        let folder = std::env::temp_dir();
        memory::set_spill(Some(&folder)).unwrap();
        memory::set_device_spill(Some(3 << 20));
        let part = format!("\nspill: {}, of devices: 0 B of 3.00 MiB\n", folder.display());
        assert!(report().contains(&part), "{part} in\n{}", report());
        memory::set_device_spill(None);
        memory::set_spill(None).unwrap();
    });
}
