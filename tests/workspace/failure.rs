//! No memory: for a first block, for growth, for what spills, for a fresh block. Each is a typed error, or the
//! workspace goes on with what it has; the counters stay true, and later cycles are as if nothing had happened.

use ndgc::{Closer, DType, Device, Error, Result, SimConfig, SpillPolicy, Tensor, Workspace, WorkspaceConfig};

use crate::common::text_of;
use crate::workspace::rings::{MIB, assert_filled, cycle, cycle_on, cycles, in_use, made, ring, strict};
use crate::workspace::support::{alone, filled};

/// A device whose requests for memory can be refused.
fn sim() -> (Device, ndgc::Sim) {
    let device = Device::sim(SimConfig::default());
    match &device {
        Device::Sim(sim) => (device.clone(), sim.clone()),
        other => panic!("a simulated device, not {other}"),
    }
}

#[test]
fn a_first_block_that_cannot_be_had() {
    alone(|| {
        let (device, sim) = sim();
        let config = strict().initial_size(MIB).build().unwrap();
        for device in [&device, &Device::Cpu] {
            // A byte less than the block would need.
            let before = in_use(device);
            let limit = device.set_limit(Some(before + MIB - 1));
            let refused = Workspace::enter_on(device, "FIRST", &config);
            device.set_limit(limit);
            let Err(Error::OutOfMemory(oom)) = refused else { panic!("no memory, not {refused:?}") };
            assert_eq!((oom.op, oom.requested), ("workspace", MIB));
            assert!(Workspace::find("FIRST").is_none() && Workspace::current().is_none());
            assert_eq!(in_use(device), before);
        }
        // Refused once, it is tried again, as any array.
        sim.refuse_allocation(Some(1));
        let workspace = Workspace::for_current_thread_on(&device, "FIRST", &config).unwrap();
        assert_eq!(cycle_on(&workspace, &[100]).externals, 0);
    });
}

#[test]
fn what_gives_memory_back_for_a_block_may_make_the_workspace_itself() {
    alone(|| {
        let config = strict().initial_size(MIB).build().unwrap();
        let limit = Device::Cpu.set_limit(Some(in_use(&Device::Cpu) + 2 * MIB - 1));
        let kept = std::sync::Mutex::new(Some(Tensor::zeros(MIB as usize, DType::U8, &Device::Cpu).unwrap()));
        let own = config.clone();
        let _reclaimer = ndgc::memory::on_pressure("cache", 0, move |_| {
            drop(kept.lock().unwrap().take());
            let made = Workspace::for_current_thread("BOTH", &own).unwrap();
            // So that there is room for the block that was asked for.
            made.destroy().unwrap();
            Workspace::for_current_thread("BOTH", &strict().build().unwrap()).unwrap();
        });
        let refused = Workspace::for_current_thread("BOTH", &config);
        Device::Cpu.set_limit(limit);
        assert!(matches!(refused, Err(Error::Workspace { .. })), "another configuration: {refused:?}");
        assert_eq!(Workspace::find("BOTH").unwrap().stats().size, 0, "the other one");
    });
}

/// Makes arrays of so many doubles, some of which may be refused: those leave no trace, the others keep their values.
fn tolerant(workspace: &Workspace, sizes: &[usize]) -> u64 {
    let cycle = workspace.activate().unwrap();
    let mut arrays = Vec::new();
    let mut refusals = 0;
    for (n, &size) in sizes.iter().enumerate() {
        let before = cycle.stats();
        match Tensor::full(n as f64, size, workspace.device()) {
            Ok(array) => arrays.push((n, array)),
            Err(Error::OutOfMemory(_)) => {
                refusals += 1;
                assert_eq!(cycle.stats(), before, "a refused request leaves nothing");
            }
            Err(other) => panic!("no memory, not {other}"),
        }
    }
    arrays.iter().for_each(|(n, array)| assert_filled(array, *n as f64));
    refusals
}

const SIZES: [usize; 4] = [50, 20_000, 300, 30_000];

/// Refuses the n-th request of a cycle that spills and grows, for each n.
fn refuse_each(name: &str, config: &WorkspaceConfig) {
    for n in 1..=8 {
        let (device, sim) = sim();
        let workspace = Workspace::for_current_thread_on(&device, &format!("{name} {n}"), config).unwrap();
        cycles(&workspace, 2, &[50]);
        let before = workspace.stats();
        sim.refuse_allocation(Some(n));
        tolerant(&workspace, &SIZES);
        let stats = workspace.stats();
        assert_eq!((stats.cycles, stats.generation), (before.cycles + 1, before.generation + 1));
        sim.refuse_allocation(None);
        cycles(&workspace, 20, &SIZES);
        let stats = cycle_on(&workspace, &SIZES);
        if config.policy_spill() == SpillPolicy::Reallocate {
            assert_eq!((stats.externals, stats.pinned_requests), (0, 0), "{name} {n}: it has grown: {stats:?}");
        }
        workspace.destroy().unwrap();
        assert_eq!(in_use(&device), 0, "{name} {n}");
        crate::common::check(&device);
    }
}

#[test]
fn each_request_of_a_growing_cycle_may_be_refused() {
    alone(|| {
        let grows =
            |config: ndgc::WorkspaceConfigBuilder| config.policy_spill(SpillPolicy::Reallocate).build().unwrap();
        refuse_each("BLOCK", &grows(WorkspaceConfig::builder()));
        refuse_each("STRICT", &grows(strict()));
        refuse_each("RING", &grows(ring(3)));
        refuse_each("EXTERNAL", &WorkspaceConfig::default());
    });
}

#[test]
fn growth_that_is_refused_leaves_the_size_and_comes_later() {
    alone(|| {
        let (device, sim) = sim();
        let config = strict().policy_spill(SpillPolicy::Reallocate).build().unwrap();
        let workspace = Workspace::for_current_thread_on(&device, "GROWTH", &config).unwrap();
        let small = cycle(&workspace, &[1000]).size;
        let entered = workspace.activate().unwrap();
        let _arrays = [1., 2.].map(|value| Tensor::full(value, 1000, &device).unwrap());
        sim.refuse_allocation(Some(1));
        entered.leave();
        assert_eq!(workspace.stats().size, small, "as before, in a block of its own");
        assert_eq!(cycle_on(&workspace, &[1000]).externals, 0);
        assert_eq!(cycle(&workspace, &[1000, 1000]).size, 2 * small);
        crate::common::check(&device);
    });
}

#[test]
fn a_limit_on_the_host_is_met_and_can_be_lifted() {
    alone(|| {
        let workspace = made("LIMIT", strict().policy_spill(SpillPolicy::Reallocate));
        let size = cycle(&workspace, &[100_000]).size;
        let limit = Device::Cpu.set_limit(Some(in_use(&Device::Cpu)));
        let outcome = std::panic::catch_unwind(|| {
            let workspace = Workspace::find("LIMIT").unwrap();
            assert_eq!(tolerant(&workspace, &[100_000, 100_000, 10]), 2, "what fits goes on, what does not is refused");
            assert_eq!(tolerant(&workspace, &[100_000]), 0);
            (workspace.stats().size, workspace.stats().spilled)
        });
        Device::Cpu.set_limit(limit);
        assert_eq!(outcome.unwrap(), (size, 0));
        assert_eq!(cycle(&workspace, &[100_000, 100_000]).size, 2 * size);
    });
}

#[test]
fn a_fresh_block_that_cannot_be_had() {
    alone(|| {
        for learning in [ndgc::LearningPolicy::FirstLoop, ndgc::LearningPolicy::None] {
            let id = format!("RENEWAL {learning:?}");
            let workspace = made(&id, strict().initial_size(MIB).policy_learning(learning));
            let entered = workspace.activate().unwrap();
            let holder = held(&filled(5., 1000)).unwrap();
            entered.leave();
            let limit = Device::Cpu.set_limit(Some(in_use(&Device::Cpu)));
            let outcome = std::panic::catch_unwind(|| tolerant(&Workspace::find(&id).unwrap(), &[1000, 10]));
            Device::Cpu.set_limit(limit);
            assert_eq!(outcome.unwrap(), 2, "the old block is held, and there is no other");
            assert_eq!(workspace.stats().renewals, 1);
            assert_filled(&holder, 5.);
            drop(holder);
            cycles(&workspace, 2, &[1000, 10]);
            let stats = cycle_on(&workspace, &[1000, 10]);
            assert_eq!((stats.externals, stats.size > 0), (0, true), "{id}: {stats:?}");
        }
    });
}

/// An array that holds the bytes of another one, and so its block.
fn held(array: &Tensor) -> Result<Tensor> {
    Tensor::from_dlpack(array.to_dlpack()?, &Device::Cpu)
}

/// Two arrays and their sum, in a cycle.
fn add(device: &Device, id: &str, config: &WorkspaceConfig, len: usize) -> Result<()> {
    Workspace::cycle_on(device, id, config, || {
        let (one, two) = (Tensor::full(1., len, device)?, Tensor::full(2., len, device)?);
        let sum = (&one + &two)?.sum_all()?.to_scalar::<f64>()?;
        assert_eq!(sum, 3. * len as f64);
        Ok(())
    })
}

#[test]
fn each_driver_call_of_a_loop_may_fail() {
    alone(|| {
        let grows =
            |config: ndgc::WorkspaceConfigBuilder| config.policy_spill(SpillPolicy::Reallocate).build().unwrap();
        for (name, config) in [("CALLS", grows(WorkspaceConfig::builder())), ("RING_CALLS", grows(ring(2)))] {
            let mut failures = 0;
            for n in 1..=60 {
                let (device, sim) = sim();
                let id = format!("{name} {n}");
                sim.fail_call(Some(n));
                for len in [100, 1000, 5000] {
                    match add(&device, &id, &config, len) {
                        Ok(()) => {}
                        Err(Error::Device { .. }) => failures += 1,
                        Err(other) => panic!("{id}: {other}"),
                    }
                    assert!(Workspace::current().is_none());
                }
                sim.fail_call(None);
                // A failure that nobody waited for is told once.
                let _ = device.synchronize();
                for _ in 0..20 {
                    add(&device, &id, &config, 5000).unwrap();
                }
                let workspace = Workspace::find(&id).unwrap();
                assert_eq!((workspace.stats().externals, workspace.stats().pinned_requests), (0, 0), "{id}");
                workspace.destroy().unwrap();
                assert_eq!(in_use(&device), 0, "{id}");
            }
            assert!(failures > 10, "{name}: {failures} calls failed");
        }
    });
}

#[test]
fn a_detach_without_memory_is_told_by_the_next_use() {
    alone(|| {
        let config = strict().initial_size(MIB).build().unwrap();
        // With room for one element, and with none.
        for room in [4096, 0] {
            let cycle = Workspace::enter("DETACH", &config).unwrap();
            let array = Tensor::full(1f64, 50_000, &Device::Cpu).unwrap();
            let limit = Device::Cpu.set_limit(Some(in_use(&Device::Cpu) + room));
            let (kept, line) = (array.detach(), line!());
            Device::Cpu.set_limit(limit);
            cycle.leave();
            assert!(!kept.is_open() && !kept.is_attached() && !kept.is_same(&array), "not the array of the workspace");
            if room > 0 {
                assert_eq!((kept.dims(), kept.dtype()), (&[50_000][..], DType::F64), "what it would have been");
            }
            let told = kept.sum_all().unwrap_err();
            assert!(matches!(&told, Error::StaleArray(stale) if stale.closed_by == Closer::Failure), "{told:?}");
            let told = text_of(&told);
            let place = format!("failure.rs:{line}");
            for part in [
                "sum_all",
                "the result of detach() at",
                &place,
                "detach wants 390.62 KiB",
                "Can't allocate [HOST] memory: 400000;",
            ] {
                assert!(told.contains(part), "{part}: {told}");
            }
            assert!(told.ends_with("was never made"), "no advice to detach: {told}");
        }
    });
}
