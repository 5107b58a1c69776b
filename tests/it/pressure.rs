//! What is tried before an allocation fails, each step with a scenario that it alone saves; what the program's caches
//! give; running a step again, or in halves; reports.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ndgc::memory::{self, Trim};
use ndgc::{
    Budget, DType, Device, Error, NdManager, OutOfMemory, OutOfMemoryClass, Result, SimConfig, Tensor, Workspace,
    WorkspaceConfig, gc,
};

use crate::common::in_own_process;
use crate::it::support::{alone, base, block, both, each_case, in_child, is_child, text};

const MIB: usize = 1 << 20;

/// Runs `body` on the host and the simulation with a limit of so many bytes.
fn limited(on: bool, limit: u64, body: impl Fn(&Device)) {
    each_case(&[on], |device| {
        device.clear_cache();
        device.set_limit(Some(device.memory().active + limit));
        body(device);
        gc::collect_orphans();
        device.set_limit(None);
    });
}

fn bytes(manager: &NdManager, count: usize) -> Result<Tensor> {
    manager.zeros(count, DType::U8)
}

fn out_of_memory<T>(result: Result<T>) -> Box<OutOfMemory> {
    match result.map(drop) {
        Err(Error::OutOfMemory(oom)) => oom,
        other => panic!("{other:?}"),
    }
}

fn names(oom: &OutOfMemory) -> Vec<&'static str> {
    oom.steps.iter().map(|step| step.name).collect()
}

/// A request that is refused, and granted after `ready`: by the one step that `ready` gave something to find, for all
/// else is as it was. Of the steps after it none is taken: `is_last` if it is that after the program's reclaimers.
fn is_saved(device: &Device, is_last: bool, request: impl Fn() -> Result<Tensor>, ready: impl FnOnce()) {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let _asked_last = memory::on_pressure("asked last", i32::MAX, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    out_of_memory(request());
    ready();
    asked.store(0, Ordering::Relaxed);
    let figures = ["requests.retried", "requests.refused", "requests.spilled"];
    let before = memory::stats(device);
    let _saved = request().unwrap();
    let (after, last) = (memory::stats(device), u64::from(is_last));
    let more = figures.map(|name| after.get(name).unwrap() - before.get(name).unwrap());
    assert_eq!((more, asked.load(Ordering::Relaxed)), ([1, 0, last], last), "{figures:?}, and who is asked last");
}

#[test]
fn dead_arrays_on_the_lane_of_another_thread_are_enough() {
    limited(true, 3 * MIB as u64, |device| {
        let manager = base(device);
        std::thread::scope(|scope| {
            let (send, receive) = std::sync::mpsc::channel::<()>();
            let (said, heard) = std::sync::mpsc::channel();
            let manager = &manager;
            scope.spawn(move || {
                let held = bytes(manager, 2 * MIB).unwrap();
                said.send(()).unwrap();
                let _ = receive.recv();
                drop(held);
                said.send(()).unwrap();
                let _ = receive.recv();
            });
            heard.recv().unwrap();
            let drops = || {
                send.send(()).unwrap();
                heard.recv().unwrap();
            };
            is_saved(device, false, || bytes(manager, 2 * MIB), drops);
            drop(send);
        });
    });
}

/// Bytes that the process has resident, without those of files.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: Vec<u64> = text.split_whitespace().map(|field| field.parse().unwrap()).collect();
    (pages[1] - pages[2]) << 12
}

/// What a thread keeps of small blocks, which limits on resident memory cannot take by themselves: no other step knows
/// of it. What else is resident is nobody else's, so in a process of its own.
#[test]
fn blocks_that_a_thread_keeps_are_given_up_where_the_process_may_have_no_more() {
    let make = |size: usize| Tensor::zeros(size, DType::U8, &Device::Cpu);
    let fill = || {
        Device::Cpu.set_physical_limit(None).unwrap();
        // Of each size above 2 KiB as many as are kept: 128 KiB.
        let sizes = (8..12u32).flat_map(|log| (9..17usize).map(move |eighths| eighths << log));
        let made: Vec<_> = sizes.flat_map(|size| (0..MIB / 8 / size).map(move |_| make(size).unwrap())).collect();
        drop(made);
        gc::collect();
    };
    let limit = || {
        Device::Cpu.set_physical_limit(Some(resident() + MIB as u64 / 2)).unwrap();
    };
    in_own_process("it::pressure::blocks_that_a_thread_keeps_are_given_up_where_the_process_may_have_no_more", || {
        alone(|| {
            fill();
            assert!(Device::Cpu.clear_cache() >= 3 * MIB as u64);
            limit();
            let fills = || {
                fill();
                limit();
            };
            is_saved(&Device::Cpu, false, || make(2 * MIB), fills);
        });
    });
}

#[test]
fn what_managers_keep_and_what_programs_keep_is_each_enough() {
    limited(true, 3 * MIB as u64, |device| {
        let manager = base(device);
        let held = bytes(&manager, 2 * MIB).unwrap();
        let falls = || {
            let _off = gc::scoped(false);
            drop(held);
        };
        is_saved(device, false, || bytes(&manager, 2 * MIB), falls);
    });
    limited(false, 3 * MIB as u64, |device| {
        let cache = Arc::new(Mutex::new(vec![Tensor::zeros(2 * MIB, DType::U8, device).unwrap()]));
        let mut reclaimer = None;
        let registers = || {
            let own = Arc::clone(&cache);
            let gives = memory::on_pressure("cache", 0, move |_| own.lock().unwrap().iter().for_each(Tensor::close));
            reclaimer = Some(gives);
        };
        is_saved(device, false, || Tensor::zeros(2 * MIB, DType::U8, device), registers);
        drop(reclaimer);
    });
}

#[test]
fn a_file_and_memory_of_the_host_are_each_enough() {
    alone(|| {
        let (device, folder) = (Device::Cpu, folder("enough"));
        device.clear_cache();
        device.set_limit(Some(device.memory().active + 3 * MIB as u64));
        let _held = Tensor::zeros(2 * MIB, DType::U8, &device).unwrap();
        let allows = || drop(memory::set_spill(Some(&folder)).unwrap());
        is_saved(&device, true, || Tensor::zeros(2 * MIB, DType::U8, &device), allows);
        memory::set_spill(None).unwrap();
        device.set_limit(None);
        std::fs::remove_dir(&folder).unwrap();
    });
    spilling(&[false], 4 << 20, |device, manager| {
        let _held = bytes(manager, 2 * MIB).unwrap();
        let room = memory::set_device_spill(None);
        is_saved(device, true, || bytes(manager, MIB), || assert_eq!(memory::set_device_spill(room), None));
    });
}

#[test]
fn with_the_switch_on_what_managers_keep_is_given_up_and_with_it_off_it_is_named() {
    limited(false, 3 * MIB as u64, |device| {
        let manager = base(device);
        drop(bytes(&manager, 2 * MIB).unwrap());
        let oom = out_of_memory(bytes(&manager, 2 * MIB));
        assert_eq!((&oom.class, oom.kept, oom.kept_bytes), (&OutOfMemoryClass::OverLimit, 1, 2 * MIB as u64));
        assert_eq!(names(&oom), ["drain", "trim"]);
        assert!(oom.reachable() >= 3 * MIB as u64, "{}", oom.reachable());
        let _on = gc::scoped(true);
        bytes(&manager, 2 * MIB).unwrap();
    });
}

#[test]
fn reclaimers_are_called_by_rank_and_only_as_far_as_it_takes() {
    limited(false, 4 * MIB as u64, |device| {
        let caches: [Arc<Mutex<Vec<Tensor>>>; 3] = Default::default();
        let log: Arc<Mutex<Vec<(&str, u64)>>> = Arc::default();
        let named = [("dear", 2), ("cheap", -1), ("middle", 0)];
        let guards: Vec<_> = std::iter::zip(&caches, named)
            .map(|(cache, (name, rank))| {
                cache.lock().unwrap().push(Tensor::zeros(MIB, DType::U8, device).unwrap());
                let (cache, log) = (Arc::clone(cache), Arc::clone(&log));
                memory::on_pressure(name, rank, move |pressure| {
                    log.lock().unwrap().push((name, pressure.wanted));
                    cache.lock().unwrap().clear();
                })
            })
            .collect();
        let x = Tensor::zeros(3 * MIB, DType::U8, device).unwrap();
        assert_eq!(*log.lock().unwrap(), [("cheap", 3 * MIB as u64), ("middle", 3 * MIB as u64)]);
        assert_eq!(caches[0].lock().unwrap().len(), 1, "the dear one was not needed");
        let oom = out_of_memory(Tensor::zeros(2 * MIB, DType::U8, device));
        assert_eq!(names(&oom), ["drain", "trim", "cheap", "middle", "dear"]);
        // Of a device whose pool has segments, a whole one may go back.
        assert!(oom.steps[3].freed == 0 && oom.steps[4].freed >= MIB as u64, "{:?}", oom.steps);
        assert_eq!(oom.class, OutOfMemoryClass::OverLimit);
        drop(guards);
        log.lock().unwrap().clear();
        out_of_memory(Tensor::zeros(2 * MIB, DType::U8, device));
        assert!(log.lock().unwrap().is_empty(), "the guards are gone");
        drop(x);
    });
}

#[test]
fn each_level_of_trim_gives_back_what_those_before_it_do_and_more() {
    both(|device| {
        memory::trim(device, Trim::All);
        let manager = base(device);
        let make = |mib: usize| Tensor::zeros(mib * MIB, DType::U8, device).unwrap();
        if device.is_cuda() {
            // Whole segments go back there, and what else lies in one keeps it.
            drop(make(2));
            let held = || device.memory().active + device.memory().cached;
            let before = held();
            let given = memory::trim(device, Trim::All);
            return assert_eq!(before - held(), given);
        }
        let cache = Arc::new(Mutex::new(vec![make(8)]));
        let (own, asked) = (Arc::clone(&cache), Arc::new(Mutex::new(Vec::new())));
        let log = Arc::clone(&asked);
        let _reclaimer = memory::on_pressure("cache", 0, move |pressure| {
            log.lock().unwrap().push(pressure.wanted);
            own.lock().unwrap().clear();
            // It calls nobody again.
            memory::trim(&pressure.device, Trim::All);
        });
        drop((bytes(&manager, 4 * MIB).unwrap(), make(2)));
        let mib = |bytes: u64| bytes / MIB as u64;
        // With the switch off the manager keeps its dead array.
        let (queued, kept) = if gc::is_on() { (6, 0) } else { (2, 4) };
        let before = device.memory();
        assert_eq!(mib(memory::trim(device, Trim::Queue)), queued);
        let now = device.memory();
        assert_eq!((mib(before.active - now.active), mib(now.cached - before.cached)), (queued, queued));
        assert_eq!(memory::trim(device, Trim::Queue), 0, "once");
        assert_eq!(mib(memory::trim(device, Trim::Cache)), queued);
        assert_eq!((device.memory().active, device.memory().cached), (now.active, 0));
        assert_eq!((cache.lock().unwrap().len(), asked.lock().unwrap().len()), (1, 0), "not asked below `All`");
        assert_eq!(mib(memory::trim(device, Trim::All)), 8);
        assert_eq!(*asked.lock().unwrap(), [u64::MAX], "once, for all there is");
        assert_eq!((mib(now.active - device.memory().active), device.memory().cached), (8, 0));
        assert_eq!((manager.array_count(), gc::stats().kept), ((kept / 4) as usize, kept / 4), "off: kept");
        {
            let _on = gc::scoped(true);
            assert_eq!(mib(memory::trim(device, Trim::All)), kept);
        }
        assert_eq!(manager.array_count(), 0);
    });
}

#[test]
fn a_reclaimer_may_panic_or_ask_for_memory_itself() {
    limited(false, 2 * MIB as u64, |device| {
        let own = device.clone();
        let _first = memory::on_pressure("asks", 0, move |_| {
            out_of_memory(Tensor::zeros(3 * MIB, DType::U8, &own));
            panic!("and panics");
        });
        let kept = Arc::new(Mutex::new(vec![Tensor::zeros(MIB, DType::U8, device).unwrap()]));
        let own = Arc::clone(&kept);
        let _second = memory::on_pressure("gives", 1, move |_| own.lock().unwrap().clear());
        Tensor::zeros(2 * MIB, DType::U8, device).unwrap();
        assert!(kept.lock().unwrap().is_empty());
    });
}

#[test]
fn reclaimers_may_come_and_go_while_they_are_called() {
    limited(false, 2 * MIB as u64, |device| {
        let kept = Mutex::new(vec![Tensor::zeros(MIB, DType::U8, device).unwrap()]);
        let others = Arc::new(Mutex::new(Vec::new()));
        let (own, asked) = (Arc::clone(&others), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&asked);
        let first = memory::on_pressure("exchanged for another", 0, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
            let count = Arc::clone(&count);
            let again = memory::on_pressure("that which came", 0, move |_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            drop(std::mem::replace(&mut *own.lock().unwrap(), vec![again]));
        });
        others.lock().unwrap().push(first);
        let _last = memory::on_pressure("gives", 0, move |_| kept.lock().unwrap().clear());
        Tensor::zeros(2 * MIB, DType::U8, device).unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), 1, "who came meanwhile is called the next time");
        others.lock().unwrap().clear();
    });
}

/// A folder of this test's own on a disk, and what says so to the end.
fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("ndgc-spill-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn where_nothing_else_helps_a_file_does_if_it_may() {
    each_case(&[false, true], |device| {
        let folder = folder("saved");
        device.clear_cache();
        let (before, spilled) = (device.memory(), memory::stats(device).get("requests.spilled").unwrap());
        device.set_limit(Some(before.active + 2 * MIB as u64));
        let manager = base(device);
        manager.set_budget(Budget::new().max_bytes(8 * MIB as u64)).unwrap();
        let x = bytes(&manager, 2 * MIB).unwrap();
        out_of_memory(bytes(&manager, MIB));
        assert_eq!(memory::set_spill(Some(&folder)).unwrap(), None);
        let spilling = |count| bytes(&manager, count);
        if !device.is_cpu() {
            assert!(!names(&out_of_memory(spilling(MIB))).contains(&"spill"), "files are the host's");
        } else {
            memory::set_trace(memory::TraceMode::Full);
            memory::clear_trace();
            let y = spilling(MIB + 1).unwrap();
            memory::set_trace(memory::TraceMode::Off);
            let timeline = memory::timeline();
            let told: Vec<_> = timeline.events.iter().filter(|event| event.kind == memory::EventKind::Spill).collect();
            assert_eq!((told.len(), told[0].amount), (1, MIB as u64 + 1));
            assert_eq!(timeline.spans[0].bytes, MIB as u64 + 1, "an array like others");
            let now = device.memory();
            assert_eq!((now.active - before.active, now.mapped - before.mapped), (2 << 20, (1 << 20) + 4096));
            assert_eq!(memory::stats(device).get("requests.spilled"), Some(spilled + 1));
            assert_eq!(manager.budget_use().unwrap().bytes, 3 * MIB as u64 + 1, "charged");
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "without a name");
            // It is read, written in place, and an operand; results spill too.
            y.affine_(1., 3.).unwrap();
            let z = y.add(&y.ones_like().unwrap()).unwrap();
            assert!(z.to_vec::<u8>().unwrap().iter().all(|&byte| byte == 4));
            // The ones are dead: with the switch off the manager keeps them.
            let files = 3 - u64::from(gc::is_on());
            assert_eq!(device.memory().mapped - before.mapped, files * ((1 << 20) + 4096));
            let oom = out_of_memory(spilling(6 * MIB));
            assert!(matches!(oom.class, OutOfMemoryClass::OverBudget { .. }), "what a budget refuses is not spilled");
            assert!(!names(&oom).contains(&"spill"));
            drop((y, z));
            gc::collect_orphans();
            assert_eq!(device.memory().mapped, before.mapped, "gone with its array");
            std::fs::remove_dir(&folder).unwrap();
            let Err(error) = spilling(MIB) else { panic!("there is no folder") };
            let text = error.to_string();
            assert!(text.contains("so it was not spilled\nCan't allocate [HOST] memory: 1048576;"), "{text}");
            assert!(text.contains("spill"), "a step");
            assert!(matches!(memory::set_spill(Some(&folder)), Err(Error::File { .. })));
        }
        memory::set_spill(None).unwrap();
        device.set_limit(None);
        let _ = std::fs::remove_dir(&folder);
        drop(x);
    });
}

/// Runs `body` on each device but the host, with room for 2 MiB and so much of the host's; asks that nothing of the
/// host's stays.
fn spilling(on: &[bool], room: u64, body: impl Fn(&Device, &NdManager)) {
    each_case(on, |device| {
        if device.is_cpu() {
            return;
        }
        // What copies go through, which is page-locked too and stays.
        for count in [MIB, 2 * MIB] {
            Tensor::from_vec(vec![0u8; count], count, device).unwrap().to_vec::<u8>().unwrap();
        }
        gc::collect();
        device.clear_cache();
        let before = device.memory();
        device.set_limit(Some(before.active + 2 * MIB as u64));
        assert_eq!(memory::set_device_spill(Some(room)), None);
        body(device, &base(device));
        gc::collect_orphans();
        device.synchronize().unwrap();
        assert_eq!(device.memory().pinned, before.pinned, "gone with its arrays");
        assert_eq!(memory::set_device_spill(None), Some(room));
        device.set_limit(None);
    });
}

/// Bytes of the device, not of the host.
fn on_device(device: &Device) -> (u64, u64, u64) {
    let memory = device.memory();
    (memory.active, memory.used, memory.cached)
}

#[test]
fn where_nothing_else_helps_memory_of_the_host_does_for_a_device_if_it_may() {
    spilling(&[false, true], 16 << 20, |device, manager| {
        let spilled = || memory::stats(device).get("requests.spilled").unwrap();
        let pinned = || device.memory().pinned;
        manager.set_budget(Budget::new().max_bytes(12 * MIB as u64)).unwrap();
        let x = bytes(manager, 2 * MIB).unwrap();
        memory::set_device_spill(None);
        let oom = out_of_memory(bytes(manager, MIB));
        assert!(!names(&oom).contains(&"spill"), "not allowed: {:?}", names(&oom));
        memory::set_device_spill(Some(16 << 20));
        let (before, count, own) = (pinned(), spilled(), on_device(device));
        memory::set_trace(memory::TraceMode::Full);
        memory::clear_trace();
        let y = bytes(manager, MIB + 1).unwrap();
        memory::set_trace(memory::TraceMode::Off);
        let timeline = memory::timeline();
        let told: Vec<_> = timeline.events.iter().filter(|event| event.kind == memory::EventKind::Spill).collect();
        assert_eq!((told.len(), told[0].amount, spilled() - count), (1, MIB as u64 + 1, 1));
        assert_eq!(timeline.spans[0].bytes, MIB as u64 + 1, "an array like others");
        assert_eq!(on_device(device), own, "not the device's");
        let one = pinned() - before;
        assert!((MIB as u64 + 1..(MIB + MIB / 31) as u64).contains(&one), "{one}");
        assert_eq!(memory::stats(device).get("bytes.pinned"), Some(pinned()));
        assert_eq!(manager.budget_use().unwrap().bytes, 3 * MIB as u64 + 1, "charged");
        // It is read, written in place, and an operand; results spill too.
        y.affine_(1., 3.).unwrap();
        let z = y.add(&y.ones_like().unwrap()).unwrap();
        assert!(z.to_vec::<u8>().unwrap().iter().all(|&byte| byte == 4));
        let data: Vec<u8> = (0..=MIB).map(|i| i as u8).collect();
        let up = manager.from_slice(&data, MIB + 1).unwrap();
        assert_eq!(up.to_vec::<u8>().unwrap(), data, "copied both ways");
        let oom = out_of_memory(bytes(manager, 12 * MIB));
        assert!(matches!(oom.class, OutOfMemoryClass::OverBudget { .. }), "what a budget refuses is not spilled");
        assert!(!names(&oom).contains(&"spill"));
        drop((x, y, z, up));
        gc::collect_orphans();
        let fits = bytes(manager, MIB).unwrap();
        assert_eq!(on_device(device).0 - (own.0 - 2 * MIB as u64), MIB as u64, "there is room again");
        drop(fits);
    });
}

#[test]
fn memory_of_the_host_is_ordered_among_streams_and_goes_back_when_nothing_uses_it() {
    spilling(&[true], 16 << 20, |device, manager| {
        let on = |stream, f: &dyn Fn() -> Result<Tensor>| match device {
            Device::Sim(sim) => sim.on_stream(stream, f),
            #[cfg(feature = "cuda")]
            Device::Cuda(cuda) => cuda.on_stream(stream, f),
            _ => f(),
        };
        let _x = bytes(manager, 2 * MIB).unwrap();
        let before = device.memory().pinned;
        let mut y = bytes(manager, MIB).unwrap();
        for round in 1..8 {
            y = on(round % 3, &|| y.affine(1., 1.)).unwrap();
        }
        assert_eq!(y.to_vec::<u8>().unwrap(), vec![7; MIB]);
        gc::collect();
        device.synchronize().unwrap();
        assert_eq!(device.memory().pinned - before, MIB as u64, "the others are gone");
        // A section uses it, and has it after its array.
        let (graph, ()) = device.capture(|| y.affine_(1., 1.).map(drop)).unwrap();
        graph.replay().unwrap();
        assert_eq!(y.to_vec::<u8>().unwrap(), vec![8; MIB]);
        let refused = text(device.capture(|| y.affine(1., 1.)));
        assert!(refused.contains("captured takes no memory of the host, so it was not spilled\nCan't"), "{refused}");
        y.close();
        graph.replay().unwrap();
        device.synchronize().unwrap();
        assert_eq!(device.memory().pinned - before, MIB as u64);
        drop(graph);
        device.synchronize().unwrap();
        assert_eq!(device.memory().pinned, before);
    });
}

#[test]
fn a_host_that_has_no_room_for_a_device_is_named_and_a_call_that_fails_changes_nothing() {
    spilling(&[false], 3 << 20, |device, manager| {
        let _x = bytes(manager, 2 * MIB).unwrap();
        let before = device.memory().pinned;
        let y = bytes(manager, 2 * MIB).unwrap();
        let told = text(bytes(manager, 2 * MIB));
        let why = "devices have 2.00 MiB of the 3.00 MiB of the host that are for them, so it was not spilled\nCan't \
                   allocate [DEVICE] memory: 2097152;";
        assert!(told.contains(why) && told.contains("spill 0 B"), "{told}");
        let limit = Device::Cpu.set_physical_limit(Some(1 << 20)).unwrap();
        let told = text(bytes(manager, MIB));
        Device::Cpu.set_physical_limit(limit).unwrap();
        assert!(told.contains(" of 1.00 MiB resident, so it was not spilled\nCan't"), "{told}");
        assert!(bytes(manager, MIB).is_ok());
        drop(y);
        gc::collect_orphans();
        device.synchronize().unwrap();
        let Device::Sim(sim) = device else { return };
        for nth in 1.. {
            let calls = sim.calls();
            sim.fail_call(Some(nth));
            let made = bytes(manager, MIB);
            sim.fail_call(None);
            match &made {
                Ok(_) => assert!(sim.calls().allocations > calls.allocations),
                Err(Error::Device { .. } | Error::OutOfMemory(_)) => {}
                Err(other) => assert!(other.to_string().contains("so it was not spilled\nCan't allocate"), "{other}"),
            }
            let is_over = made.is_ok();
            drop(made);
            gc::collect_orphans();
            let _ = device.synchronize();
            assert_eq!(device.memory().pinned, before, "call {nth}");
            assert_eq!(bytes(manager, MIB).unwrap().to_vec::<u8>().unwrap(), vec![0; MIB], "after call {nth} failed");
            gc::collect_orphans();
            if is_over {
                break;
            }
        }
        assert!(bytes(manager, 3 * MIB).is_ok(), "all of it is there again");
    });
}

#[test]
fn a_block_of_a_workspace_lies_in_memory_of_the_host_where_its_device_has_none() {
    spilling(&[false], 4 << 20, |device, manager| {
        let _x = bytes(manager, 2 * MIB).unwrap();
        let before = device.memory().pinned;
        let config = WorkspaceConfig::builder().initial_size(2 * MIB as u64).build().unwrap();
        for round in 0..3 {
            let _cycle = Workspace::enter_on(device, "SPILLED", &config).unwrap();
            let x = Tensor::full(round, MIB, device).unwrap();
            assert_eq!(x.to_vec::<u8>().unwrap(), vec![round; MIB]);
        }
        assert!(device.memory().pinned - before >= 2 * MIB as u64);
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
    });
}

#[test]
fn a_block_of_a_workspace_lies_in_a_file_where_there_is_no_memory() {
    alone(|| {
        let folder = folder("block");
        let (device, before) = (Device::Cpu, Device::Cpu.memory());
        device.set_limit(Some(before.active + MIB as u64));
        let config = WorkspaceConfig::builder().initial_size(2 * MIB as u64).build().unwrap();
        assert!(Workspace::for_current_thread("SPILLED", &config).is_err());
        memory::set_spill(Some(&folder)).unwrap();
        let workspace = Workspace::for_current_thread("SPILLED", &config).unwrap();
        for round in 0..3 {
            let _cycle = workspace.activate().unwrap();
            let x = Tensor::full(round, MIB, &device).unwrap();
            assert_eq!(x.sum_all().unwrap().to_scalar::<u8>().unwrap(), 0, "a power of two of them");
            assert_eq!(x.to_vec::<u8>().unwrap(), vec![round; MIB]);
        }
        assert!(device.memory().mapped - before.mapped >= 2 * MIB as u64);
        ndgc::destroy_all_workspaces_for_current_thread().unwrap();
        assert_eq!(device.memory().mapped, before.mapped);
        memory::set_spill(None).unwrap();
        device.set_limit(None);
        std::fs::remove_dir(&folder).unwrap();
    });
}

#[test]
fn a_budget_looks_for_memory_too_and_a_soft_one_before_it_is_needed() {
    each_case(&[false], |device| {
        let manager = base(device);
        manager.set_name("tenant");
        manager.set_budget(Budget::new().soft_bytes(500).max_bytes(1000)).unwrap();
        let cache = Arc::new(Mutex::new(vec![bytes(&manager, 400).unwrap()]));
        let told = Arc::new(Mutex::new(Vec::new()));
        let (own, log) = (Arc::clone(&cache), Arc::clone(&told));
        let _reclaimer = memory::on_pressure("cache", 0, move |pressure| {
            log.lock().unwrap().push(pressure.manager.clone());
            own.lock().unwrap().drain(..).for_each(|array| array.close());
        });
        let x = bytes(&manager, 90).unwrap();
        assert!(told.lock().unwrap().is_empty());
        let y = bytes(&manager, 20).unwrap();
        assert_eq!(*told.lock().unwrap(), [Some("tenant".to_owned())], "of the soft one");
        assert_eq!(manager.budget_use().unwrap().bytes, 110);
        assert_eq!(manager.budget_use().unwrap().soft_passed, 1);
        cache.lock().unwrap().push(bytes(&manager, 300).unwrap());
        told.lock().unwrap().clear();
        let z = bytes(&manager, 800).unwrap();
        assert_eq!(told.lock().unwrap()[0], Some("tenant".to_owned()), "of the hard one");
        drop((x, y, z));
    });
}

/// Two caches and a program that needs what one of them has: the other one keeps its own.
#[test]
fn no_cache_gives_more_than_is_needed() {
    each_case(&[false], |device| {
        let manager = base(device);
        manager.set_budget(Budget::new().soft_bytes(500).max_bytes(1000)).unwrap();
        let caches: Vec<Arc<Mutex<Vec<Tensor>>>> = (0..2).map(|_| Arc::default()).collect();
        let of = |rank: usize| {
            let own = Arc::clone(&caches[rank]);
            memory::on_pressure("cache", rank as i32, move |_| {
                own.lock().unwrap().drain(..).for_each(|array| array.close());
            })
        };
        let _reclaimers = [of(0), of(1)];
        let fill = || caches.iter().for_each(|cache| cache.lock().unwrap().push(bytes(&manager, 200).unwrap()));
        let left = || [0, 1].map(|rank: usize| caches[rank].lock().unwrap().len());
        fill();
        let x = bytes(&manager, 150).unwrap();
        assert_eq!(left(), [0, 1], "the first one was enough for the soft limit");
        // Larger than the device: no cache can help.
        let before = device.set_limit(Some(1 << 20));
        assert!(matches!(bytes(&base(device), (1 << 20) + 1), Err(Error::OutOfMemory(_))));
        device.set_limit(before);
        assert_eq!(left(), [0, 1]);
        x.close();
        caches[1].lock().unwrap().drain(..).for_each(|array| array.close());
        manager.set_budget(Budget::new().max_bytes(1000)).unwrap();
        fill();
        assert_eq!(manager.reserve(700).unwrap().bytes(), 700);
        assert_eq!(left(), [0, 1], "room is looked for, as for an array, and no more than is needed");
    });
}

#[test]
fn what_is_kept_for_reuse_is_looked_for_after_a_budget_has_room_too() {
    alone(|| {
        let device = Device::sim(SimConfig { memory_bytes: 4 * MIB as u64, ..SimConfig::default() });
        let (tenant, other) = (base(&device), base(&device));
        tenant.set_budget(Budget::new().max_bytes(3 * MIB as u64)).unwrap();
        let cache = Arc::new(Mutex::new(vec![bytes(&tenant, MIB).unwrap()]));
        let own = Arc::clone(&cache);
        let _reclaimer = memory::on_pressure("cache", 0, move |_| {
            own.lock().unwrap().drain(..).for_each(|array| array.close());
        });
        // Kept for reuse, in pieces that are too small.
        let pieces: Vec<_> = (0..6).map(|_| bytes(&other, MIB / 2).unwrap()).collect();
        pieces.iter().for_each(Tensor::close);
        assert!(bytes(&tenant, 3 * MIB).is_ok(), "its budget has room after the reclaimer, the device after a trim");
    });
}

#[test]
fn what_is_taken_from_a_driver_has_a_limit_that_changes() {
    // Broken by: a limit of the pool alone, which is set where the device is opened.
    alone(|| {
        let device = Device::sim(SimConfig::default());
        let make = |size: usize| Tensor::zeros(size, DType::U8, &device);
        assert_eq!(device.set_physical_limit(Some(8 * MIB as u64)).unwrap(), None);
        assert_eq!(device.memory().physical_limit, Some(8 * MIB as u64));
        let kept = make(5 * MIB).unwrap();
        let Error::OutOfMemory(refused) = make(5 * MIB).unwrap_err() else { panic!() };
        let OutOfMemoryClass::OverPhysicalLimit { resident, max } = refused.class else { panic!("{refused}") };
        assert_eq!(max, 8 * MIB as u64);
        assert!((5 * MIB as u64..=max).contains(&resident), "{resident}");
        assert_eq!(device.set_physical_limit(Some(16 * MIB as u64)).unwrap(), Some(max));
        // What is kept for reuse goes back before a request is refused, though no piece of it is large enough.
        drop((kept, make(5 * MIB).unwrap()));
        gc::collect();
        drop(make(15 * MIB).unwrap());
        gc::collect();
        assert_eq!(device.set_physical_limit(Some(MIB as u64)).unwrap(), Some(16 * MIB as u64));
        assert_eq!(device.memory().cached, 0, "what is kept beyond a new limit goes back, as on the host");
        assert_eq!(device.set_physical_limit(None).unwrap(), Some(MIB as u64));
        make(17 * MIB).unwrap();
    });
}

#[test]
fn what_a_reclaimer_makes_is_of_its_own_line_and_manager() {
    limited(false, 4 * MIB as u64, |device| {
        let (own, manager) = (device.clone(), base(device));
        let made = Arc::new(Mutex::new(Vec::new()));
        let (log, maker) = (Arc::clone(&made), manager.clone());
        let kept = Mutex::new(Some(Tensor::zeros(3 * MIB, DType::U8, &own).unwrap()));
        let _reclaimer = memory::on_pressure("maker", 0, move |_| {
            drop(kept.lock().unwrap().take());
            log.lock().unwrap().push((maker.zeros(8, DType::U8).unwrap(), line!()));
        });
        let x = Tensor::zeros(MIB / 2, DType::U8, device).unwrap();
        x.broadcast_as((2, MIB / 2)).unwrap().clamp(0., 1.).unwrap(); // composed of steps
        let made = made.lock().unwrap();
        assert_eq!((made.len(), manager.array_count()), (1, 1), "not the operation's");
        assert_eq!(made[0].0.created_at().unwrap().line(), made[0].1);
    });
}

#[test]
fn a_step_is_run_again_or_in_halves() {
    limited(true, 2 * MIB as u64, |device| {
        let manager = base(device);
        let tries = AtomicU64::new(0);
        let kept = Mutex::new(vec![bytes(&manager, MIB).unwrap()]);
        let found = memory::with_oom_retry(2, || {
            if tries.fetch_add(1, Ordering::Relaxed) == 1 {
                kept.lock().unwrap().clear();
            }
            bytes(&manager, 2 * MIB)
        });
        assert!(found.is_ok() && tries.load(Ordering::Relaxed) == 2);
        drop(found);
        tries.store(0, Ordering::Relaxed);
        let failed = memory::with_oom_retry(2, || {
            tries.fetch_add(1, Ordering::Relaxed);
            bytes(&manager, 3 * MIB)
        });
        assert_eq!((out_of_memory(failed).class, tries.load(Ordering::Relaxed)), (OutOfMemoryClass::TooBig, 3));
        let other = memory::with_oom_retry::<()>(2, || Err(Error::msg("another one")));
        assert_eq!(text(other), "another one");

        let mut pieces = Vec::new();
        let sizes = memory::with_oom_split(10, |rows| {
            let made = bytes(&manager, rows.len() * MIB / 2);
            pieces.push(rows.clone());
            made.map(|_| rows.len())
        });
        assert_eq!(sizes.unwrap(), [3, 3, 3, 1]);
        assert_eq!(pieces, [0..10, 0..5, 0..3, 3..6, 6..9, 9..10]);
        let failed = memory::with_oom_split(4, |_| bytes(&manager, 5 * MIB));
        out_of_memory(failed);
        assert!(memory::with_oom_split(0, |_| bytes(&manager, 1)).unwrap().is_empty());
    });
}

#[test]
fn a_report_is_written_where_it_is_asked_for() {
    alone(|| {
        let folder = std::env::temp_dir().join(format!("ndgc-reports-{}", std::process::id()));
        assert_eq!(memory::set_crash_report(Some(&folder)), None);
        let manager = base(&Device::Cpu);
        manager.set_name("hoard");
        let _x = block(&manager);
        manager.set_budget(Budget::new().max_bytes(100)).unwrap();
        out_of_memory(bytes(&manager, 64));
        assert_eq!(memory::set_crash_report(None), Some(folder.clone()));
        out_of_memory(bytes(&manager, 64));
        let written: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(written.len(), 1);
        let report = std::fs::read_to_string(&written[0]).unwrap();
        for part in ["Can't allocate [HOST] memory: 64;", "\nndgc 0.1.0, ", "lines:\n1 array, 64 B, made at", "hoard"] {
            assert!(report.contains(part), "{part} in\n{report}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    });
}

/// They are read once, so in processes of their own.
#[test]
fn limits_of_the_environment_are_read_as_javacpp_writes_them() {
    if is_child() {
        // Read by the first array.
        let fits = Tensor::zeros(MIB, DType::U8, &Device::Cpu).unwrap();
        println!("limit: {:?}", Device::Cpu.memory().limit);
        println!("room: {:?}", memory::set_device_spill(None));
        if let Some(limit) = Device::Cpu.memory().limit.filter(|&limit| limit == 8 * MIB as u64) {
            Tensor::zeros(limit as usize - MIB, DType::U8, &Device::Cpu).unwrap();
            let oom = out_of_memory(Tensor::zeros(limit as usize - MIB + 1, DType::U8, &Device::Cpu));
            assert_eq!(oom.class, OutOfMemoryClass::OverLimit);
        }
        drop(fits);
        return;
    }
    let test = "it::pressure::limits_of_the_environment_are_read_as_javacpp_writes_them";
    let found = |what, variables: &[(&str, &str)]| {
        let output = String::from_utf8(in_child(test, variables).stdout).unwrap();
        output.lines().find_map(|line| line.split(what).nth(1)).map(str::to_owned)
    };
    let said = |variables: &[(&str, &str)]| found("limit: ", variables);
    let both = [("NDGC_MAX_BYTES", "8G"), ("NDGC_MAX_PHYSICAL_BYTES", "8G")];
    assert_eq!(said(&both).as_deref(), Some("Some(8589934592)"));
    assert_eq!(said(&both[1..]).as_deref(), Some("None"), "the other one bounds the process");
    for (text, bytes) in [("8m", 8 << 20), ("8192k", 8 << 20), ("8388608", 8 << 20), ("0.5t", 1u64 << 39)] {
        assert_eq!(said(&[("NDGC_MAX_BYTES", text)]), Some(format!("Some({bytes})")), "{text}");
    }
    assert_eq!(said(&[("NDGC_MAX_BYTES", "none")]).as_deref(), Some("None"));
    assert_eq!(found("room: ", &[]).as_deref(), Some("None"), "off");
    assert_eq!(found("room: ", &[("NDGC_DEVICE_SPILL", "3m")]).as_deref(), Some("Some(3145728)"));
    let half = said(&[("NDGC_MAX_BYTES", "50%")]).unwrap();
    assert!(half.starts_with("Some(") && half.len() > "Some(100000000)".len(), "of the machine's memory: {half}");
}

#[test]
fn a_soft_number_of_arrays_asks_for_memory_each_time_that_it_is_passed() {
    each_case(&[false], |device| {
        let manager = base(device);
        manager.set_name("many");
        let budget = Budget::new().soft_arrays(3);
        manager.set_budget(budget).unwrap();
        assert_eq!((manager.budget(), manager.stats().get("arrays.soft")), (budget, Some(3)));
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&told);
        let _reclaimer = memory::on_pressure("cache", 0, move |why| log.lock().unwrap().push(why.manager.clone()));
        let tell = || std::mem::take(&mut *told.lock().unwrap());
        let mut arrays: Vec<_> = (0..3).map(|_| bytes(&manager, 10).unwrap()).collect();
        assert!(tell().is_empty(), "as many as it may have");
        arrays.push(bytes(&manager, 10).unwrap());
        assert_eq!(tell(), [Some("many".to_owned())]);
        arrays.push(bytes(&manager, 10).unwrap());
        assert!(tell().is_empty(), "it is above");
        arrays.drain(1..).for_each(|array| array.close());
        arrays.extend((0..3).map(|_| bytes(&manager, 10).unwrap()));
        assert_eq!((tell().len(), manager.budget_use().unwrap().soft_passed), (1, 2));
        drop(arrays);
    });
}
